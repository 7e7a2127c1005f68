"""One round: two fresh servers, clients, a schedule of faults, the judgement.

    seed -> schedule and each client's choices; the interleaving depends on the machine

Faults get the round itself as their context: a, b, topology, kill_sink, wait_sinks_replaced,
leave_open, limit.
"""
import collections
import os
import pathlib
import random
import signal
import time
from contextlib import closing

import attempts
import ledger
import measure
import quiet
import resolve
from actions import ACTIONS, Skip
from actions.process import is_sink
from clients import Coordinator
from consumers import Broker, Consumer, Fetcher
from producers import Bulk, Holder, Pace, Producer
from rules import PATIENCE, RULES, waits
from server import Finding, wait_until
from topology import RELAYS, TYPES, Topology

PRODUCERS = 4
CONSUMERS = 3
# Faults between two quiet times.
QUIET_EVERY = 40
# Sizes of a segment of claims: small, so that faults meet packing, merging and emptying.
SEGMENTS = ("8kB", "64kB", "256kB")


class Mix:
    """The least number of faults of each kind in a round.  complete: the round has every fault,
    and enough restarts for a percentile of the times after them."""

    def __init__(self, crash, postmaster, sink, other, events, auxiliary=0, steady=0, rate=2500, complete=False):
        self.crash, self.auxiliary, self.postmaster = crash, auxiliary, postmaster
        self.sink, self.other = sink, other
        self.events, self.steady, self.rate, self.complete = events, steady, rate, complete

    def schedule(self, rng):
        """Names of actions: each once as far as there is room, the others by weight.
        A sink action ends two programs on average."""
        chosen = []
        for kind, n in (("crash", self.crash), ("auxiliary", self.auxiliary), ("postmaster", self.postmaster),
                        ("sink", (self.sink + 1) // 2), ("other", self.other)):
            of = [a for _, a in sorted(ACTIONS.items()) if a.kind == kind]
            once = rng.sample(of, min(n, len(of)))
            chosen += [a.name for a in once + rng.choices(of, [a.weight for a in of], k=n - len(once))]
        rng.shuffle(chosen)
        return chosen


class Round:
    def __init__(self, seed, work, bindir, extension_conf, sinks, say=print):
        self.seed, self.say = seed, say
        self.segment = self.rng("segment").choice(SEGMENTS)
        self.topology = Topology(work, bindir, extension_conf, sinks, self.segment)
        self.a, self.b = self.topology.clusters
        self.directory = pathlib.Path(work) / "ledger"
        self.directory.mkdir()
        self.counts = collections.Counter()
        self.kinds = collections.Counter()
        self.longest = {}
        self.held = []
        self.clients, self.producers, self.consumers = [], [], []
        self.figures = {}
        self.events = 0
        self.follower = ledger.Follower(self.directory)
        self.promised = {}      # transaction -> events it keeps, per type
        self.quiet = []

    # Functions for the faults.

    def kill_sink(self, pid):
        if not is_sink(pid):
            return
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kinds["sink"] += 1

    def wait_sinks_replaced(self, before):
        """Wait until all programs that are gone by now have a successor.  A process that was about to become a
        program, when it was looked at, is its own successor."""
        gone = {r: pid for r, pid in before.items() if not is_sink(pid)}

        def replaced():
            now = self.topology.relays_or_none()
            return all(r in now and now[r][2] is not None and (now[r][2] != pid or is_sink(pid)) for r, pid in gone.items())
        wait_until(f"the programs of {sorted(gone)} are started again", replaced)

    def leave_open(self, rng):
        name = f"h{self.counts['leave a transaction open']}"
        self.held.append((rng.randint(1, 6), Holder(name, self.a, ledger.Ledger(self.directory, name), rng)))

    def limit(self, what, seconds, took):
        self.longest[what] = max(took, self.longest.get(what, 0))
        if took > seconds:
            raise Finding(f"{what} took {took:.1f} s, at most {seconds} are allowed")

    # The clients.

    def rng(self, name):
        return random.Random(f"{self.seed}/{name}")

    def client(self, kind, name, cluster, *more, **named):
        c = kind(name, cluster, ledger.Ledger(self.directory, name), self.rng(name), *more, **named)
        self.clients.append(c)
        c.start()
        return c

    def start_clients(self, rate):
        self.pace = Pace(rate)
        self.broker = Broker(f"{self.seed}/broker")
        self.coordinators = [self.client(Coordinator, "ca", self.a), self.client(Coordinator, "cb", self.b)]
        self.producers = [self.client(Producer, f"p{i}", self.a, self.pace, self.coordinators[0], PRODUCERS)
                          for i in range(PRODUCERS)]
        self.fetcher = self.client(Fetcher, "f", self.b, self.broker)
        self.consumers = [self.client(Consumer, f"c{i}", self.b, self.broker, self.coordinators[1])
                          for i in range(CONSUMERS)]
        self.attempts = attempts.Attempts(self)

    def stop(self, clients):
        for c in clients:
            c.stop()
        for c in clients:
            c.join(120)
            if c.is_alive():
                raise Finding(f"client {c.name} hangs")
        self.look_at_clients()

    def look_at_clients(self):
        for c in self.clients:
            if c.broken:
                raise Finding(f"client {c.name}: {type(c.broken).__name__}: {c.broken}") from c.broken

    # The schedule.

    def act(self, name, rng):
        """Run a fault; if it finds nothing to break, try again until it does."""
        for _ in range(200):
            try:
                ACTIONS[name].run(self, rng)
                break
            except Skip:
                time.sleep(0.02)
        else:
            raise Finding(f"there never was anything to do \"{name}\" to")
        self.counts[name] += 1
        if ACTIONS[name].kind in ("crash", "auxiliary", "postmaster"):
            self.kinds[ACTIONS[name].kind] += 1
        self.topology.wait_whole()
        self.look_at_clients()

    def end_held(self, everything=False):
        still = []
        for left, holder in self.held:
            if left <= 0 or everything:
                holder.end()
            else:
                still.append((left - 1, holder))
        self.held = still

    def run_schedule(self, mix):
        schedule = mix.schedule(self.rng("schedule"))
        said = time.monotonic()
        lazy = self.rng("lazy")
        for i, name in enumerate(schedule):
            target = mix.events * (i + 1) / len(schedule)
            wait_until("producers make progress", lambda: self.pace.enqueued >= target, 300)
            # One synchronous commit flushes all asynchronous commits before it, so
            # at times there are no synchronous commits.
            self.pace.lazy = lazy.choice((0, 0.3, 1, 1))
            self.trace(i, name)
            self.act(name, self.rng(f"{i}/{name}"))
            self.end_held()
            if (i + 1) % QUIET_EVERY == 0:
                self.rest()
            if time.monotonic() - said > 15:
                said = time.monotonic()
                self.say(f"   {i + 1} of {len(schedule)} faults, {self.pace.enqueued} events")
        while self.kinds["sink"] < mix.sink:
            self.act("kill sink programs", self.rng(f"more/{self.kinds['sink']}"))
        self.end_held(everything=True)

    def committed(self):
        """Events in business rows, while producers work."""
        return self.a.rows("SELECT coalesce(sum(events), 0)::int FROM app.business")[0][0]

    def reach(self, events):
        """Go on producing until as many events are committed as the mix asks for."""
        self.figures["after the last fault"] = max(0, events - self.committed())

        def reached():
            self.look_at_clients()
            return self.committed() >= events
        wait_until(f"{events} events are committed", reached, 300, 0.1)

    def trace(self, i, name):
        with open(self.topology.work / "schedule", "a", encoding="ascii") as f:
            f.write(f"{time.monotonic():.3f} {i} {name}\n")

    # The end of a round.

    def expected(self):
        """relay -> events that have to arrive, by the clients' logs and the business rows."""
        for e in self.follower.new():
            if e["op"] == "commit" and "events" in e:
                self.promised[e["txn"]] = collections.Counter(x[5] for x in e["events"] if x[4])
        by_type = collections.Counter()
        for txn, in self.a.rows("SELECT DISTINCT txn FROM app.business"):
            by_type.update(self.promised.get(txn, ()))
        self.events = sum(by_type.values())
        return {relay: sum(by_type[t] for t in TYPES[relay]) for relay in RELAYS}

    def drain_relays(self):
        """Wait until as many events have arrived as committed, or no more events come."""
        expected = self.expected()
        last, since = None, time.monotonic()
        while True:
            now = self.topology.arrived()
            if all(now.get(r, 0) >= n for r, n in expected.items()):
                return
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > 60:
                self.say(f"   not drained: {now} of {expected}\n{self.topology.a.relays()}")
                return
            time.sleep(0.2)

    def end_prepared(self):
        self.coordinators[0].finish_all()
        def ended():
            self.look_at_clients()
            return self.coordinators[0].idle()
        wait_until("prepared transactions are ended", ended)

    def rest(self):
        """A quiet time among the faults."""
        self.pace.resting.set()
        wait_until("producers rest", lambda: self.look_at_clients() or all(p.rests for p in self.producers))
        self.end_prepared()
        wait_until("no session commits any more", lambda: not self.a.rows("""SELECT 1 FROM pg_stat_activity
            WHERE application_name LIKE 'crash p%' AND state <> 'idle'"""))
        for producer in self.producers:
            producer.ledger.flush()
        with self.attempts.at_rest():
            self.be_quiet()
        self.pace.resting.clear()

    def be_quiet(self):
        self.topology.wait_whole()
        self.quiet.append(quiet.quiet_time(self, len(self.quiet), self.drain_relays))

    def stop_producing(self):
        self.stop(self.producers)
        self.end_prepared()
        wait_until("the sessions of producers are gone", lambda: not self.a.rows("""SELECT 1 FROM pg_stat_activity
            WHERE application_name LIKE 'crash p%' OR application_name LIKE 'crash h%'"""))
        left = self.a.rows("SELECT gid FROM pg_prepared_xacts")
        if left:
            raise Finding(f"still prepared, and nobody's: {left}")

    def drain_consumers(self):
        def drained():
            self.look_at_clients()
            return self.broker.idle() and self.coordinators[1].idle() \
                and self.fetcher.sweep() == len(self.broker.known) and self.broker.idle()
        wait_until("consumers have acknowledged all", drained, 400, 0.1)
        self.stop([*self.consumers, self.fetcher, *self.coordinators])

    def forgotten(self):
        """The events that have an effect, and whose claim is not answered "duplicate" any more."""
        ids = [r[0] for r in self.b.rows("SELECT DISTINCT event_id FROM app.effect")]
        with closing(self.b.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for i in range(0, len(ids), 10000):
                cursor.execute("""SELECT event_id, result::text FROM idempotency.claim_events(%s)
                    WHERE result <> 'duplicate'""", (ids[i:i + 10000],))
                for event, verdict in cursor.fetchall():
                    yield "remembered", event, f"has an effect, and its claim is answered {verdict}"
                connection.rollback()

    def judge(self):
        h = resolve.history(self.topology, self.directory, self.quiet)
        found = {rule.__name__: list(rule(h)) for rule in RULES}
        found["remembered"] = list(self.forgotten())
        self.figures["runs"] = self.topology.runs()
        self.figures["repeated"] = len(h.arrivals["prog"]) - len({a[0] for a in h.arrivals["prog"]})
        self.figures["claims"] = len(h.claims)
        self.figures["duplicates"] = sum(c.verdict == "duplicate" for c in h.claims)
        self.figures["transactions"] = len(h.outcome)
        self.figures["aborted"] = sum(o == "aborted" for o in h.outcome.values())
        self.figures["lazy lost"] = self.lazy_lost(h)
        self.figures["prepared"] = {c.name: (len(o.told), c.log_text().count("maximum number of prepared transactions reached"))
                                    for c, o in zip(self.topology.clusters, self.coordinators)}
        self.figures.update(self.waited(h))
        for violations in found.values():
            self.say_violations(violations, lambda what: resolve.lines_about(what, self.topology, self.directory))
        more, self.figures["attempts"] = self.attempts.judge()
        for violations in more.values():
            self.say_violations(violations, self.attempts.lines_about)
        return {name: len(v) for name, v in {**found, **more}.items()}

    def say_violations(self, violations, lines_about):
        for rule, what, text in violations[:5]:
            self.say(f"   {rule}: {what}: {text}")
        if violations:
            self.say(f"   {len(violations)} in all; what is known of {violations[0][1]}:")
            for line in lines_about(violations[0][1]):
                self.say(f"      {line}")

    @staticmethod
    def waited(h):
        """The seconds that events took in quiet times."""
        every = list(waits(h))
        return {"quiet times": len(h.quiet),
                "arrival": sorted(round(w.took, 4) for w in every if w.took is not None),
                "quiet seconds": sum(q.end - q.begin for q in h.quiet),
                "excused": sum((w.took or w.end - w.begin) > PATIENCE >= w.unexplained for w in every),
                "behind": max((w.end - w.begin for w in every if w.took is None), default=0.0),
                "unexplained": max((w.unexplained for w in every), default=0.0)}

    def own_crashes(self):
        found = [line for c in self.topology.clusters for line in c.deaths()]
        for line in found[:5]:
            self.say(f"   {line}")
        return len(found)

    def lazy_lost(self, h):
        answered = set()
        for e in ledger.read(self.directory):
            if e["op"] == "commit" and "events" in e and not e["sync"] and "xid" in e:
                answered.add(e["txn"])
            elif e["op"] == "ok" and e["txn"] in answered and h.outcome[e["txn"]] == "aborted":
                answered.discard(e["txn"])
                answered.add(("lost", e["txn"]))
        return sum(isinstance(a, tuple) for a in answered)

    def run(self, mix):
        """rule -> violations."""
        self.topology.make()
        self.start_clients(mix.rate)
        self.run_schedule(mix)
        self.reach(mix.events)
        self.attempts.close()
        self.stop_producing()
        self.attempts.drain()
        self.be_quiet()
        self.figures["mixed"] = self.events
        if mix.steady:
            self.steady(mix.steady)
        self.expected()
        self.drain_consumers()
        self.topology.pack()
        self.figures["first send"], self.figures["first send cut"] = measure.first_sends(self.topology)
        return self.judge()

    # The measurements.

    def workers(self):
        return sorted({pid for _, pid, _ in self.topology.relays().values()})

    def burst(self, name, events, kills):
        """Enqueue as fast as possible, and kill sink programs, until all events have arrived; their number.

        During a kill producers go on, with the next share only: a slow machine is not given more to do."""
        share = events / (kills + 1)
        pace = Pace(0, share)
        bulk = [self.client(Bulk, f"{name}{i}", self.a, pace, None, 1) for i in range(2)]
        for i in range(kills):
            wait_until("producers make progress", lambda: pace.enqueued >= share * (i + 1), 300)
            pace.most = share * (i + 2)
            self.act("kill sink programs", self.rng(f"{name}/{i}"))
        wait_until("producers make progress", lambda: pace.enqueued >= events, 300)
        self.stop(bulk)
        self.drain_relays()
        return pace.enqueued

    def steady(self, events):
        """Measure the descriptors and memory that workers keep: no server restarts from here on."""
        # A burst may last longer than a relay rests with its process: compare the same processes.
        self.a.rows("ALTER SYSTEM SET idempotency.sink_idle_timeout = '1d'")
        self.a.rows("SELECT pg_reload_conf()")
        self.burst("w", events // 2, 5)
        workers = self.workers()
        before = measure.settled_descriptors(self.a, workers), measure.memory(self.a, workers)
        done = self.burst("s", events, 10)
        if self.workers() != workers:
            raise Finding(f"workers {workers} became {self.workers()} though nobody touched them")
        after = measure.settled_descriptors(self.a, workers), measure.memory(self.a, workers)
        self.figures["descriptors"] = after[0] - before[0]
        self.figures["steady"] = done
        self.figures["memory per million"] = (after[1] - before[1]) * 1e6 / done / 1024
        self.figures["resident"] = measure.resident(workers)
