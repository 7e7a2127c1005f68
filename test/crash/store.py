#!/usr/bin/python3
"""Kills under claims alone, while the store packs, merges, forgets and expires.

    store.py KILLS SEED WORK BINDIR EXTENSION_CONF

One server with the smallest segments.  Consumers claim new events and old ones in every way
there is; other clients forget events, and import events.  The events of some consumers expire:
another client sets the store's time forward.  Consumers' backends, the packer, auxiliary processes
and the postmaster are killed with SIGKILL, and the server is restarted in immediate mode.  The
clients log outside of the server what was answered; store_rules.py judges, in parts that fit into memory.  The last lines
are "ok NAME" or "NOT OK NAME".
"""
import collections
import gc
import itertools
import pathlib
import random
import resource
import signal
import sys
import time
import traceback
from contextlib import closing

import psycopg2

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import ledger  # noqa: E402
from actions import Skip, process  # noqa: E402
from clients import Client, Coordinator  # noqa: E402
from consumers import Broker, Consumer  # noqa: E402
from history import Tally, bound  # noqa: E402
from server import Finding, Server, wait_until  # noqa: E402
from store_parts import EVENTS, Parts  # noqa: E402
from store_rules import LEAST, STORE_RULES, expected  # noqa: E402
from topology import PREPARED  # noqa: E402

CONSUMERS = 4
BRIEF_CONSUMERS = 2
# Transactions that commit between two kills, and seconds of the store's time that pass.
BETWEEN = 25
BETWEEN_SECONDS = 400

SETTINGS = f"""
max_prepared_transactions = {PREPARED}
wal_writer_delay = 2s
wal_writer_flush_after = 64MB
idempotency.claim_segment_size = '8kB'
"""

# A row is an effect of an event, or an order to forget it.
SCHEMA = """
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE EXTENSION amcheck;
CREATE SCHEMA app;
SELECT idempotency.consumer_create('brief', retention => '1 hour');
CREATE TABLE app.effect (pos bigserial, event_id text, txn text, forgets bool DEFAULT false);
"""

UNPACKED = """SELECT kind, number, slot, state, held_by FROM idempotency.stat_claim_segments
    WHERE state NOT IN ('current', 'empty', 'searched')"""
# A packer that was killed may leave rows of a slot without index entries, so rows are compared
# with indexes in segments only.
DAMAGE = """
SELECT format('%s: %s', c.oid::regclass, v) FROM pg_class c, LATERAL verify_heapam(c.oid::regclass) v
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^store_(segment|slot)_[0-9]+$'
UNION ALL SELECT format('%s', bt_index_check(i.indexrelid, c.relname ~ 'segment'))
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^store_(segment|slot)_[0-9]+$'
"""


# Events that come again and again, and are forgotten as often.
HOT = 300
# Ids that nobody claims before the judgement.
STRANGERS = [f"never{i}" for i in range(2000)]
# When the judgement claims all events.
BEFORE, AFTER = "before packing", "after packing"


class Source(Broker):
    """Makes events as they are asked for, and hands old ones out again."""

    def __init__(self, seed, consumer="default", prefix="e"):
        super().__init__(f"{seed}/{consumer}")
        self.consumer, self.prefix = consumer, prefix
        self.ended = False
        self.made = 0

    def make(self):
        """A new event.  The caller holds the lock."""
        self.made += 1
        return f"{self.prefix}{self.made}"

    def make_many(self, n):
        with self.lock:
            return [self.make() for _ in range(n)]

    def every(self):
        """All events that were made."""
        return (f"{self.prefix}{i}" for i in range(1, self.made + 1))

    def has_made(self, event):
        return event.startswith(self.prefix)

    def old(self, rng):
        """An event that was made, half of the time one of the first."""
        return f"{self.prefix}{rng.randint(1, min(self.made, HOT) if rng.random() < 0.5 else self.made)}"

    def take(self, most):
        with self.lock:
            while len(self.queue) < most and not self.ended:
                self.queue.append(self.make())
                if self.rng.random() < 0.3:
                    self.queue.append(self.old(self.rng))
        return super().take(most)

    def again(self, event):
        with self.lock:
            self.queue.append(event)


class Claimant(Consumer):
    MODES = (*Consumer.MODES, ("kept", 2))
    SIZES = {**Consumer.SIZES, "batch": 60, "kept": 4}

    def __init__(self, *args):
        super().__init__(*args)
        self.consumer = self.broker.consumer
        self.committed = 0

    def begin(self, lazy):
        txn = super().begin(lazy)
        if self.rng.random() < 0.2:
            self.sql(f"SET TRANSACTION ISOLATION LEVEL {self.rng.choice(('REPEATABLE READ', 'SERIALIZABLE'))}")
        if self.rng.random() < 0.2:
            self.sql("SET LOCAL idempotency.max_claim_locks = 2")
        self.ledger.write("begin", txn=txn)
        return txn

    def finish(self, txn, statement="COMMIT", **more):
        done = super().finish(txn, statement, **more)
        self.committed += 1
        return done

    def lazily(self):
        self.ledger.write("lazy", txn=self.txn)
        return super().lazily()

    def kept(self):
        self.sql("SET LOCAL idempotency.uncompleted_claims = keep")
        self.claim_many(self.events)
        self.done([])
        return [], self.events


class Forgetter(Client):
    """Forgets some events; most of these come again."""

    def __init__(self, name, cluster, log, rng, source):
        super().__init__(name, cluster, log, rng)
        self.source = source
        self.forgotten = 0

    def step(self):
        self.stopping.wait(0.03)
        events = {self.source.old(self.rng) for _ in range(self.rng.randint(1, 4))} if self.source.made else ()
        txn = self.begin(False)
        done = []
        for event in sorted(events):
            if self.sql("SELECT idempotency.forget_event(%s)", (event,))[0][0]:
                self.sql("INSERT INTO app.effect (event_id, txn, forgets) VALUES (%s, %s, true)", (event, txn))
                done.append(event)
        self.ledger.write("forgets", txn=txn, of=done)
        # Its end may stay unknown: then the event comes again as well.
        for event in done:
            if self.rng.random() < 0.8:
                self.source.again(event)
        self.finish(txn)
        self.forgotten += len(done)


class Importer(Client):
    """Imports new events, all at once; or one by one, some of which were made before.  An event that is
    imported has its effect by this transaction: the import is a claim and its completion."""

    def __init__(self, name, cluster, log, rng, sources):
        super().__init__(name, cluster, log, rng)
        self.sources = sources
        self.imported = 0

    def step(self):
        self.stopping.wait(0.05)
        source = self.rng.choice(self.sources)
        new = self.rng.random() < 0.5
        if new:
            events = source.make_many(self.rng.randint(1, 200))
        else:
            events = sorted({source.old(self.rng) for _ in range(self.rng.randint(1, 5))}) if source.made else []
        try:
            self.bring(source.consumer, events, new)
        finally:
            # However it ended: the events that were imported are duplicates, the others are claimed.
            for event in events:
                source.again(event)

    def bring(self, consumer, events, new):
        txn = self.begin(False)
        if self.rng.random() < 0.2:
            self.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.ledger.write("begin", txn=txn)
        mine = []
        for part in [events] if new else [[event] for event in events]:
            mine += self.bring_part(txn, consumer, part)
        if mine:
            self.sql("INSERT INTO app.effect (event_id, txn) SELECT e, %s FROM unnest(%s::text[]) e", (txn, mine))
        self.ledger.write("effects", txn=txn, of=mine)
        self.finish(txn)
        self.imported += len(mine)

    def bring_part(self, txn, consumer, events):
        """Import events of which all are new, or none; the new ones."""
        long_ago = ["2001-01-01"] * len(events) if self.rng.random() < 0.5 else None
        self.sql("SAVEPOINT s")
        try:
            count = self.sql("SELECT idempotency.claims_import(%s, %s, %s::timestamptz[])", (consumer, events, long_ago))[0][0]
        except psycopg2.errors.LockNotAvailable:
            count = -1
        if 0 < count < len(events) or count < 0:
            # Somebody has, or had, one of them.
            self.sql("ROLLBACK TO s")
            return []
        self.ledger.write("answers", txn=txn, of=[(event, "claimed" if count else "duplicate") for event in events])
        return events if count else []


class Timekeeper(Client):
    """Lets time pass for the store, as pg_upgrade sets it.  The packer may note an older time just then."""

    def __init__(self, *args):
        super().__init__(*args)
        self.passed = 0

    def step(self):
        self.stopping.wait(0.05 + 0.2 * self.rng.random())
        seconds = self.rng.choice((60, 300, 601))
        self.passes(seconds)
        self.passed += seconds

    def passes(self, seconds):
        txn = self.begin(False)
        self.ledger.write("passes", txn=txn, seconds=seconds)
        try:
            self.sql("SELECT setval('idempotency_data.store_clock', last_value + (%s::bigint << 32))"
                     " FROM idempotency_data.store_clock", (seconds,))
            self.sql("COMMIT")
        finally:
            self.ledger.write("passed", txn=txn)


class StoreRound:
    """Faults get this as their context: its one server is both servers of theirs."""

    def __init__(self, kills, seed, work, bindir, conf):
        self.kills, self.seed = kills, seed
        self.work = pathlib.Path(work)
        self.server = Server("store", work, bindir, host=self.work / "sock")
        self.server.signals.add(signal.SIGKILL)
        self.a = self.b = self.server
        self.conf = pathlib.Path(conf).read_text() + SETTINGS
        self.directory = self.work / "ledger"
        self.directory.mkdir()
        self.done = collections.Counter()
        self.source = Source(seed)
        self.brief = Source(seed, "brief", "b")
        self.sources = [self.source, self.brief]
        self.figures = {}
        self.found = collections.Counter()

    def rng(self, name):
        return random.Random(f"{self.seed}/{name}")

    def client(self, kind, name, *more):
        return kind(name, self.server, ledger.Ledger(self.directory, name), self.rng(name), *more)

    def start(self):
        self.server.make(self.conf)
        self.server.start()
        self.server.rows(SCHEMA)
        self.coordinator = self.client(Coordinator, "coordinator")
        self.claimants = [self.client(Claimant, f"c{i}", self.source if i < CONSUMERS else self.brief, self.coordinator)
                          for i in range(CONSUMERS + BRIEF_CONSUMERS)]
        self.forgetter = self.client(Forgetter, "forgetter", self.source)
        self.importer = self.client(Importer, "importer", self.sources)
        self.timekeeper = self.client(Timekeeper, "timekeeper")
        self.clients = [self.coordinator, self.forgetter, self.importer, self.timekeeper, *self.claimants]
        for one in self.clients:
            one.start()

    def look(self):
        for one in self.clients:
            if one.broken:
                raise Finding(f"client {one.name}: {type(one.broken).__name__}: {one.broken}") from one.broken

    # The kills.

    def kill_packer(self, _, rng):
        """Kill a packer that is at a step, not one that waits."""
        process.crash(self.server, process.pick(rng, self.server.pids("backend_type = 'idempotency packer' AND state = 'active'")))

    def schedule(self):
        """Each fault once, if there is room; the others by weight."""
        faults = {"claimant": (process.kill_consumer, 20), "packer": (self.kill_packer, 25), "postmaster": (process.kill_postmaster, 10),
                  "immediate restart": (process.immediate_restart, 5), "auxiliary process": (process.kill_auxiliary, 3)}
        rng = self.rng("schedule")
        names = sorted(faults)[:self.kills]
        names += rng.choices(sorted(faults), [faults[name][1] for name in sorted(faults)], k=self.kills - len(names))
        rng.shuffle(names)
        return [(name, faults[name][0]) for name in names]

    def progress(self):
        return sum(one.committed for one in self.claimants)

    def kill_all(self):
        said = time.monotonic()
        for i, (name, fault) in enumerate(self.schedule()):
            target, time_target = self.progress() + BETWEEN, self.timekeeper.passed + BETWEEN_SECONDS
            wait_until("claims are committed", lambda n=target: self.look() or self.progress() >= n)
            wait_until("time passes", lambda n=time_target: self.look() or self.timekeeper.passed >= n)

            def done(i=i, name=name, fault=fault):
                try:
                    fault(self, self.rng(f"{i}/{name}"))
                    return True
                except Skip:
                    return False
            wait_until(f"there is something to kill: {name}", done)
            self.done[name] += 1
            wait_until("the server answers", self.server.answers)
            if time.monotonic() - said > 15:
                said = time.monotonic()
                print(f"   {i + 1} of {self.kills} kills, {sum(s.made for s in self.sources)} events, {self.progress()} commits", flush=True)

    # The end.

    def stop(self, clients):
        for one in clients:
            one.stop()
        for one in clients:
            one.join(60)
            if one.is_alive():
                raise Finding(f"client {one.name} hangs")
        self.look()

    def drain(self):
        self.stop([self.forgetter, self.importer, self.timekeeper])
        for source in self.sources:
            source.ended = True
        wait_until("all events are acknowledged", lambda: self.look() or (
            all(source.idle() for source in self.sources) and self.coordinator.idle()), 300)
        self.stop([*self.claimants, self.coordinator])

    def parts(self):
        parts = Parts(self.work / "parts", sum(source.made for source in self.sources) // EVENTS + 1, self.brief.has_made)
        for source in self.sources:
            parts.add_made(source.every())
        with closing(self.server.connect(autocommit=False)) as connection, connection.cursor("rows") as cursor:
            cursor.execute("SELECT event_id, txn, forgets FROM app.effect ORDER BY pos")
            parts.add_rows(cursor)
        parts.add_log(ledger.read(self.directory))
        parts.close()
        other = parts.verdicts.keys() - {"claimed", "duplicate", "busy"}
        if other:
            raise Finding(f"claims were answered {other}")
        return parts

    def claim_all(self, source, events):
        """Events with the verdict of their next claim."""
        events = iter(events)
        with closing(self.server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            while some := list(itertools.islice(events, 5000)):
                cursor.execute("SELECT event_id, result::text FROM idempotency.claim_events(%s, %s)", (some, source.consumer))
                yield from cursor.fetchall()
                connection.rollback()

    def remembered(self, h, when):
        """Events whose next claim is not answered as the rows tell."""
        verdicts = [answer for source in self.sources for answer in self.claim_all(source, filter(source.has_made, h.made))]
        told = expected(h, time.monotonic())
        for event, verdict in verdicts:
            if verdict not in told.get(event, {"claimed"}):
                yield "remembered", event, f"{when} its claim is answered {verdict}, not {told.get(event, 'claimed')}"

    def strangers(self, when):
        """Ids that nobody has claimed, and are remembered."""
        for source in self.sources:
            for event, verdict in self.claim_all(source, STRANGERS):
                if verdict != "claimed":
                    yield "remembered", event, f"{when} its first claim is answered {verdict}"

    def expired(self):
        """Ids that expire, and are remembered when all slices are over."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            for _ in range(2):
                cursor.execute("SELECT setval('idempotency_data.store_clock', last_value + (%s::bigint << 32))"
                               " FROM idempotency_data.store_clock", (2 * LEAST,))
                self.pack()
        for event, verdict in self.claim_all(self.brief, self.brief.every()):
            if verdict != "claimed":
                yield "expired", event, f"its claim is answered {verdict} when its retention is over"

    def pack(self):
        left = []

        def packed():
            self.server.rows("SELECT idempotency.claims_maintain()")
            left[:] = self.server.rows(UNPACKED)
            return not left
        wait_until(lambda: f"the claims are packed: {left}", packed, 60, 0.1)

    def note(self, name, violations):
        """Count the violations of a rule, and show the first ones."""
        self.found[name] += 0
        for rule, what, text in violations:
            self.found[name] += 1
            if self.found[name] <= 5:
                print(f"   {rule}: {what}: {text}", flush=True)

    def told(self, histories, count, when):
        """The histories; now and then print how many are judged."""
        said = time.monotonic()
        for i, h in enumerate(histories):
            yield h
            if time.monotonic() - said > 15:
                said = time.monotonic()
                print(f"   {i + 1} of {count} parts judged {when}", flush=True)

    def judge(self):
        began, again = time.monotonic(), 0
        gc.disable()    # histories have no cycles, and to look for cycles takes half of the time
        parts = self.parts()
        print(f"   {parts.count} parts to judge", flush=True)
        for h in self.told(parts.histories(), parts.count, BEFORE):
            for rule in STORE_RULES:
                self.note(rule.__name__, rule(h))
            self.note("remembered", self.remembered(h, BEFORE))
            again += sum(n - 1 for n in collections.Counter(event for event, _, _ in h.changes if event in h.brief).values())
        self.note("remembered", self.strangers(BEFORE))
        self.pack()
        for h in self.told(parts.histories(claims=False), parts.count, AFTER):
            self.note("remembered", self.remembered(h, AFTER))
        self.note("remembered", self.strangers(AFTER))
        self.note("expired", self.expired())
        self.note("damage", (("damage", "amcheck", row[0]) for row in self.server.rows(DAMAGE) if row[0]))
        self.figures = {
            "claims": parts.verdicts.total(), "verdicts": parts.verdicts, "orders": parts.orders, "changes": parts.rows, "again": again,
            "imported": self.server.value("SELECT count(*) FROM app.effect WHERE txn LIKE 'importer.%'"),
            "passed": sum(p.seconds for p in parts.shared.passing), "transactions": len(parts.shared.begun),
            "judged": (time.monotonic() - began, parts.count),
            "runs": self.server.rows("""SELECT count(*), coalesce(max(level), -1), coalesce(sum(entries), 0)::bigint
                FROM idempotency.stat_claim_segments WHERE kind = 'run'""")[0]}
        return self.found

    def run(self):
        self.start()
        self.kill_all()
        self.drain()
        return self.judge()


def report(tally, one, found):
    figures, kills = one.figures, sum(one.done.values())
    for rule, n in found.items():
        tally.line(not n, f"rule {rule}: {n} in {figures['claims']} claims and {kills} kills "
                   f"(95 %: {'findings' if n else bound(kills)} per kill)")
    tally.line(kills >= one.kills, "kills: " + ", ".join(f"{n} {what}" for what, n in sorted(one.done.items())))
    tally.line(figures["orders"] >= one.kills, f"{figures['changes'] - figures['orders']} completions, "
               f"{figures['orders']} orders to forget")
    tally.line(figures["imported"] >= one.kills, f"{figures['imported']} events imported")
    tally.line(figures["again"] > 0, f"{figures['again']} events made again after they expired, in {figures['passed'] / 3600:.1f} hours")
    verdicts = figures["verdicts"]
    tally.line(all(verdicts[v] for v in ("claimed", "duplicate", "busy")),
               "verdicts: " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())))
    runs, level, entries = figures["runs"]
    tally.line(level >= 1, f"claims packed and merged: {entries} in {runs} runs, up to level {level}")
    print("   judged in {:.0f} s, in {} parts, and {} transactions".format(*figures["judged"], figures["transactions"]))


def main():
    kills, seed, work, bindir, conf = sys.argv[1:]
    began, tally = time.monotonic(), Tally()
    one = StoreRound(int(kills), seed, work, bindir, conf)
    try:
        report(tally, one, one.run())
    except Exception as error:
        if not isinstance(error, Finding):
            traceback.print_exc()
        tally.line(False, f"round: {type(error).__name__}: {error}")
    finally:
        one.server.kill()
        crashes = one.server.deaths()
        for line in crashes[:5]:
            print(f"   {line}")
        tally.line(not crashes, f"server processes that failed by themselves: {len(crashes)}")
    print(f"   {time.monotonic() - began:.0f} s, {sum(s.made for s in one.sources)} events, "
          f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB, seed {seed}")
    if tally.failed:
        print(f"   SEED={seed} repeats the schedule; the directory {work} stays")
    print(f"{tally.passed} passed, {tally.failed} failed", flush=True)
    return tally.failed != 0


if __name__ == "__main__":
    sys.exit(main())
