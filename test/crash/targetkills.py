"""Kill -9 everything between a server and the target of its relays under load, and judge what arrived.

test/sink/*/kills.py has the targets.  Producers commit business rows and events together and log
outside of the server what they know of each COMMIT (producers.py, ledger.py).  Meanwhile relay workers, sink programs, producers' backends and the target are
killed at moments that the seed draws.  At the end the target's events are read, and the rules
compare.
"""
import collections
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import traceback

import ledger
import resolve
import rules
from actions import Skip
from actions.process import crash, is_sink, pick
from clients import Coordinator
from history import Tally, bound
from producers import Pace, Producer
from server import Finding, Server, wait_until
from topology import CONF, KEYS, PREPARED

PRODUCERS = 4
# Shares of the kills; the rest is the target's.
SHARES = {"sink program": 0.4, "relay worker": 0.2, "producer's backend": 0.2}
# Seconds between recovery and the next kill: on average, and at most.
PAUSE, LONGEST_PAUSE = 0.3, 2.0
RECOVERY = 180
# Seconds for the target's start, and for its reading at the end.  How long these take says nothing of the relays.
START = 900
# Events a second.
SLOWEST, FASTEST = 100, 4000

SCHEMA = """
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA app;
CREATE TABLE app.business (txn text, events int, amount bigint);
CREATE TABLE app.keys (key text PRIMARY KEY, n bigint NOT NULL);
INSERT INTO app.keys SELECT i::text, 0 FROM generate_series(1, {keys}) i;
"""
RULES = (rules.business_rows, rules.same_id_twice, rules.lost, rules.phantom, rules.content, rules.double, rules.order)


class Kills:
    """A target with its relays is a subclass."""

    target = None       # what the target is, in words: "broker"
    wrapper = None      # of the foreign servers
    mapping = ""        # options of the user mappings
    # relay -> letters of the aggregate types that it takes, options of its server, its arguments
    relays = {}
    repeating = set()   # relays that deliver at least once
    ended_by = {}       # what is not killed by SIGKILL, and how it is ended

    # What a subclass does: start the target, say where it listens, kill it, start it again, read it, end it.

    def make_target(self):
        raise NotImplementedError

    def options(self, relay):
        """Options of the relay's server that are not in relays."""
        raise NotImplementedError

    def target_port(self):
        raise NotImplementedError

    def target_is_up(self):
        """The process lives."""
        raise NotImplementedError

    def kill_target(self):
        raise NotImplementedError

    def start_target(self):
        """Without waiting until it answers."""
        raise NotImplementedError

    def arrivals(self, relay):
        """(event id, key, payload), those of each key in the order in which they arrived."""
        raise NotImplementedError

    def remove_target(self):
        raise NotImplementedError

    def judge_more(self, tally, h):
        """What the rules do not say."""

    def __init__(self, seed, kills, events, work, bindir, conf, sinks, hasty):
        # how often the next kill does not wait until the system has recovered
        self.hasty_share = hasty
        self.seed, self.kills, self.events = seed, kills, events
        self.work = pathlib.Path(work)
        self.directory = self.work / "ledger"
        self.directory.mkdir()
        self.a = Server("a", self.work, bindir, host=self.work / "sock")
        self.a.signals.add(signal.SIGKILL)
        self.settings = pathlib.Path(conf).read_text() + CONF.format(prepared=PREPARED, claims="256kB", sinks=sinks)
        self.shares = {**SHARES, self.target: 1 - sum(SHARES.values())}
        self.types = {relay: letters for relay, (letters, _, _) in self.relays.items()}
        self.counts = collections.Counter()
        self.hasty = 0
        self.longest = collections.Counter()
        self.pace = Pace(SLOWEST)

    def rng(self, name):
        return random.Random(f"{self.seed}/{name}")

    # The system.

    def make(self):
        self.make_target()
        self.a.make(self.settings)
        self.a.start()
        self.a.rows(SCHEMA.format(keys=KEYS))
        for relay, (letters, options, arguments) in self.relays.items():
            self.a.rows(f"""CREATE SERVER {relay} FOREIGN DATA WRAPPER {self.wrapper}
                OPTIONS ({self.options(relay)}{options})""")
            self.a.rows(f"CREATE USER MAPPING FOR CURRENT_USER SERVER {relay} {self.mapping}")
            self.a.rows(f"""SELECT idempotency.relay_create('{relay}', '{relay}', '{{{",".join(letters)}}}',
                min_backoff => '20 ms', max_backoff => '500 ms', max_attempts => 1000, {arguments})""")
        self.wait_whole()

    def states(self):
        """relay -> (state, pid, sink_pid); nothing while the server restarts."""
        try:
            rows = self.a.rows("SELECT relay, state, pid, sink_pid FROM idempotency.stat_relay")
        except Exception:  # noqa: whatever the restart raises
            return {}
        return {r[0]: r[1:] for r in rows}

    def target_listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.target_port()), 1).close()
            return True
        except OSError:
            return False

    def is_whole(self):
        """Every relay has a program that lives, or rests, and none is behind a target that is away."""
        self.look_at_clients()
        now = self.states()
        return len(now) == len(self.relays) and self.target_listens() and \
            all(state == "idle" and pid or state == "streaming" and sink and is_sink(sink)
                for state, pid, sink in now.values())

    def wait_target(self):
        """Until the target listens; one that ends by itself at its start is started again, and said."""
        def listens():
            self.look_at_clients()
            if not self.target_is_up():
                say(f"   the {self.target} ended by itself, and is started again")
                self.start_target()
            return self.target_listens()
        wait_until(f"the {self.target} listens", listens, START, 0.05)

    def wait_whole(self):
        began = time.monotonic()
        self.wait_target()
        wait_until(lambda: f"server, {self.target} and relays work\n{self.a.relays()}", self.is_whole, RECOVERY, 0.05)
        return time.monotonic() - began

    # The clients.

    def start_clients(self):
        def client(kind, name, *more):
            c = kind(name, self.a, ledger.Ledger(self.directory, name), self.rng(name), *more)
            c.start()
            return c
        self.coordinator = client(Coordinator, "ca")
        self.producers = [client(Producer, f"p{i}", self.pace, self.coordinator, PRODUCERS) for i in range(PRODUCERS)]

    def look_at_clients(self):
        for c in getattr(self, "producers", []):
            if c.broken:
                raise Finding(f"client {c.name}: {type(c.broken).__name__}: {c.broken}") from c.broken

    def stop(self, clients):
        for c in clients:
            c.stop()
        for c in clients:
            c.join(120)
            if c.is_alive():
                raise Finding(f"client {c.name} hangs")
        self.look_at_clients()

    # The kills.

    def schedule(self):
        chosen = [what for what, share in self.shares.items() for _ in range(max(1, int(self.kills * share)))]
        chosen += ["sink program"] * (self.kills - len(chosen))
        self.rng("schedule").shuffle(chosen)
        return chosen

    def kill(self, what, rng):
        """Kill one process; Skip if there is none now."""
        if what == self.target:
            if not self.target_is_up():
                self.start_target()
                raise Skip("it had ended by itself")
            self.kill_target()
            time.sleep(rng.random() * 0.5)
            self.start_target()
        elif what == "sink program":
            pid = pick(rng, sorted(sink for _, _, sink in self.states().values() if sink and is_sink(sink)))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                raise Skip("it has ended") from None
        elif what == "relay worker":
            crash(self.a, pick(rng, sorted({pid for _, pid, _ in self.states().values() if pid})))
        else:
            crash(self.a, pick(rng, self.a.pids("application_name LIKE 'crash p%'")))

    def act(self, what, rng):
        def tried():
            try:
                self.kill(what, rng)
                return True
            except Skip:
                return False
        wait_until(f"there is a {what} to kill", tried, RECOVERY)
        self.counts[what] += 1
        if rng.random() > self.hasty_share:
            self.longest[what] = max(self.longest[what], self.wait_whole())
            time.sleep(min(rng.expovariate(1 / PAUSE), LONGEST_PAUSE))
        else:
            self.hasty += 1
            time.sleep(rng.random() * 0.2)

    def run_schedule(self):
        schedule, lazy = self.schedule(), self.rng("lazy")
        began = said = time.monotonic()
        for i, what in enumerate(schedule):
            # A synchronous commit flushes all asynchronous commits before it: at times there are no synchronous commits.
            self.pace.lazy = lazy.choice((0, 0.3, 1, 1))
            self.trace(i, what)
            self.act(what, self.rng(f"{i}/{what}"))
            left = (len(schedule) - i - 1) * (time.monotonic() - began) / (i + 1)
            rate = (self.events - self.pace.enqueued) / max(left, 1)
            self.pace.rate = min(max(rate * 1.2, SLOWEST), FASTEST)
            if time.monotonic() - said > 15:
                said = time.monotonic()
                say(f"   {i + 1} of {len(schedule)} kills, {self.pace.enqueued} events")

    def trace(self, i, what):
        with open(self.work / "schedule", "a", encoding="ascii") as f:
            f.write(f"{time.monotonic():.3f} {i} {what}\n")

    # The end.

    def reach(self):
        """Produce until as many events are committed as asked for."""
        self.wait_whole()
        self.pace.rate = FASTEST

        def reached():
            self.look_at_clients()
            return self.a.value("SELECT coalesce(sum(events), 0)::int FROM app.business") >= self.events
        wait_until(f"{self.events} events are committed", reached, 600, 0.2)
        self.stop(self.producers)
        self.coordinator.finish_all()
        wait_until("prepared transactions are ended", self.coordinator.idle)
        self.stop([self.coordinator])

    def drain(self):
        """Until nothing is on its way, or nothing moves any more."""
        last, since = None, time.monotonic()
        while True:
            now = self.a.rows("SELECT relay, lag_events, retrying, position FROM idempotency.stat_relay ORDER BY relay")
            if all(lag == 0 and retrying == 0 for _, lag, retrying, _ in now):
                return
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > 60:
                say(f"   not drained:\n{self.a.relays()}")
                return
            time.sleep(0.2)

    def history(self):
        h = rules.History(types=self.types, repeats=self.repeating)
        xids, decided = resolve.producers(h, ledger.read(self.directory))
        for txn, events, amount in self.a.rows("SELECT txn, events, amount FROM app.business"):
            h.business.setdefault(txn, []).append((events, amount))
        resolve.resolve(h, self.a, xids, decided)
        # A commit may be answered a little before a reader of the target can see what it wrote last.
        due = {relay: sum(e.type in letters for e in rules.committed(h).values()) for relay, letters in self.types.items()}
        end = time.monotonic() + 30
        while True:
            h.arrivals = {relay: list(self.arrivals(relay)) for relay in self.relays}
            if all(len({a[0] for a in h.arrivals[relay]}) >= n for relay, n in due.items()) or time.monotonic() > end:
                return h

    def lines_about(self, what, h, most=30):
        """What clients and target know of an event or a transaction."""
        out = []
        for e in ledger.read(self.directory):
            if what in str(e):
                if "events" in e:
                    e = {**e, "events": [x for x in e["events"] if what in (x[0], e["txn"])][:5]}
                out.append(str(e))
        for relay, arrivals in h.arrivals.items():
            out += [f"{relay} number {n}: {a}" for n, a in enumerate(arrivals) if what in (a[0], a[2].get("t"))]
        return out[:most]

    def judge(self, tally):
        h = self.history()
        events = len(rules.committed(h))
        wrong = 0
        for rule in RULES:
            found = list(rule(h))
            wrong += len(found)
            for name, what, text in found[:5]:
                say(f"   {name}: {what}: {text}")
            if found:
                for line in self.lines_about(found[0][1], h):
                    say(f"      {line}")
            tally.line(not found, f"rule {rule.__name__}: {len(found)} in {events} events "
                       f"(95 %: {'findings' if found else bound(events)} per event)")
        for what in self.shares:
            n = self.counts[what]
            tally.line(n, f"{self.ended_by.get(what, 'kill -9')} of a {what}: {n} (95 %: {'findings' if wrong else bound(n)} per kill), "
                       f"recovery at most {self.longest[what]:.1f} s")
        tally.line(events >= self.events, f"{events} events committed, at least {self.events} asked for, "
                   f"in {sum(o == 'committed' for o in h.outcome.values())} transactions")
        aborted = [e for versions in h.events.values() for e in versions
                   if not e.kept or h.outcome.get(e.txn) != "committed"]
        tally.line(aborted, f"{len(aborted)} events of transactions and savepoints that had no effect: none arrived"
                   if not wrong else f"{len(aborted)} events had no effect")
        for relay, arrivals in h.arrivals.items():
            say(f"   {relay}: {len(arrivals)} arrivals, {repeats(arrivals)} of them repeats")
        self.judge_more(tally, h)

    def end(self, keep):
        """End all processes; after a failure the directories stay, to be examined."""
        self.a.kill()
        if keep:
            os.environ["KEEP"] = "1"
        self.remove_target()


def repeats(arrivals):
    return len(arrivals) - len({a[0] for a in arrivals})


def read_by(program, *arguments):
    """What the client of another project reads, in a process of its own that prints a line of JSON for each arrival."""
    done = subprocess.run([sys.executable, "-B", program, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          check=True, timeout=START)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def say(text):
    print(text, flush=True)


def main(kind):
    """Play the kind of Kills; arguments: SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS.

    The last lines are "ok NAME" or "NOT OK NAME", and "N passed, N failed".
    """
    seed, kills, events, work, bindir, conf, sinks, hasty = sys.argv[1:]
    tally, began = Tally(), time.monotonic()
    one = kind(seed, int(kills), int(events), work, bindir, conf, sinks, float(hasty))
    try:
        one.make()
        one.start_clients()
        one.run_schedule()
        one.reach()
        one.drain()
        one.judge(tally)
    except Exception as error:  # noqa: every failure has to be counted
        if not isinstance(error, Finding):
            traceback.print_exc()
        tally.line(False, f"{one.target}: {type(error).__name__}: {error}")
    finally:
        one.end(tally.failed)
    died = one.a.deaths()
    for line in died[:5]:
        say(f"   {line}")
    tally.line(not died, f"processes that failed by themselves: {len(died)} in {sum(one.counts.values())} kills")
    say(f"   {one.hasty} kills before the system had recovered from the one before")
    say(f"   {time.monotonic() - began:.0f} s, seed {seed}")
    if tally.failed:
        say(f"   SEED={seed} repeats the schedule; the directory {work} stays")
    say(f"{tally.passed} passed, {tally.failed} failed")
    return tally.failed != 0
