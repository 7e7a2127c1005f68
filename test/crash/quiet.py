"""Quiet times: after faults, while everything else rests, how soon does an event arrive?

    producers rest, no transaction is prepared
    backlog     the events that committed before arrive, and nothing wakes a relay meanwhile
    steps       a single event; or a transaction that fills some batches of a relay, and
                one more event while these are on their way or while the relay's sink is
                held; the next step begins when everything has arrived everywhere

Any later commit would hide a lost wake-up.  So the test waits for the end of each step, longer
than the relays' own timers run.  Meanwhile a process of its own (watch.py) notes the stalls of
the machine, and the reasons for which the relays wait according to the view.
"""
import os
import signal
import time

import ledger
from producers import Pace, Producer
from rules import Quiet
from server import wait_until
from topology import RELAYS, TABLES, TYPES, dashed
from watch import Watch

STEPS = 10
# Longer than the periodic reload of a worker, 60 s.
GIVE_UP = 90
BATCHES = (1, 2, 3, 7, 8, 9, 16)
LARGEST = 150       # events of a step
DELAYS = (0, 0.001, 0.003, 0.01, 0.03)


class Starter(Producer):
    """Without a thread: transactions of a quiet time, each committed when the caller asks for it."""

    def __init__(self, name, cluster, directory, rng):
        super().__init__(name, cluster, ledger.Ledger(directory, name), rng, Pace(0), None, 1)
        self.awaited = []       # (id, type, when COMMIT was sent, when answered)
        self.held = {}          # relay -> [(from, to)]

    def transaction(self, fill):
        lazy = self.rng.random() < 0.3
        self.open()
        self.txn, self.events = self.begin(lazy), []
        fill()
        self.commit(lazy)
        answered = time.time()
        self.awaited += [(event, kind, self.sent, answered) for event, _, _, _, _, kind in self.events]

    def finish(self, *args, **more):
        self.sent = time.time()
        return super().finish(*args, **more)

    def single(self, kind=None):
        kind = kind or self.rng.choice("jykq")
        self.transaction(lambda: self.fill(kind, 1))

    def burst(self, sizes, hold=None):
        """Full batches of one relay, and one more event soon after."""
        relay = self.rng.choice(sorted(sizes))
        batches = self.rng.choice([n for n in BATCHES if n * sizes[relay] <= LARGEST] or [1])
        kind = self.rng.choice(TYPES[relay].replace("k", "") or "k")
        n = batches * sizes[relay] + self.rng.choice((0, 0, 1))
        held = hold and hold(relay)
        try:
            self.transaction(lambda: self.fill(kind, n))
            if held:
                wait_until(f"relay {relay} waits for its sink", held.is_felt)
            else:
                time.sleep(self.rng.choice(DELAYS))
            self.single(kind)
            time.sleep(self.rng.choice(DELAYS))
        finally:
            if held:
                held.end()
                for name in held.relays:
                    self.held.setdefault(name, []).append((held.since, time.time()))

    def fill(self, kind, n):
        if kind in "jq":
            self.enqueue_many(kind, n)
            return
        for _ in range(n):
            (self.enqueue_binary if kind == "y" else self.enqueue_locked)()


class Locked:
    """The table that a relay's events go to."""

    def __init__(self, topology, relay):
        server, table = TABLES[relay][0], TABLES[relay][1].split()[0]
        self.relays = [r for r, (_, into, _) in TABLES.items() if into.split()[0] == table]
        self.cluster = topology.cluster(server)
        self.session = self.cluster.connect()
        self.since = time.time()
        with self.session.cursor() as cur:
            cur.execute(f"BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE")

    def is_felt(self):
        return self.cluster.rows("SELECT 1 FROM pg_locks WHERE NOT granted")

    def end(self):
        with self.session.cursor() as cur:
            cur.execute("COMMIT")
        self.session.close()


class Stopped:
    """The program of a relay."""

    def __init__(self, topology, relay):
        self.topology, self.relays = topology, [relay]
        self.pid = topology.relays()[relay][2]
        self.since = time.time()
        os.kill(self.pid, signal.SIGSTOP)

    def is_felt(self):
        return self.topology.a.rows("SELECT 1 FROM idempotency.stat_relay WHERE relay = %s AND waiting_for = 'answer'",
                                    (self.relays[0],))

    def end(self):
        os.kill(self.pid, signal.SIGCONT)


class Receivers:
    """The events that came to the relays since a moment, read over sessions that stay open."""

    def __init__(self, topology):
        self.topology, self.since = topology, time.time()
        self.sessions = {name: topology.cluster(name).connect() for name in "ab"}
        self.lines = {relay: len(lines.read()) for relay, lines in topology.files.items()}

    def arrived(self, relay):
        if relay in self.lines:
            return {dashed(e["event"]) for e in self.topology.program_acks(relay, self.lines[relay])}
        with self.sessions[TABLES[relay][0]].cursor() as cur:
            cur.execute(self.topology.times_sql(relay), (self.since - 1, float("inf")))
            return {event for event, _ in cur.fetchall()}

    def have(self, awaited):
        for relay in RELAYS:
            wanted = {event for event, kind, _, _ in awaited if kind in TYPES[relay]}
            if wanted and wanted - self.arrived(relay):
                return False
        return True

    def wait(self, awaited):
        """Wait until all events are everywhere; False after too long: the rules find the late or lost events."""
        end = time.monotonic() + GIVE_UP
        while not self.have(awaited):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def close(self):
        for session in self.sessions.values():
            session.close()


def batch_sizes(topology):
    return dict(r for r in topology.a.rows("SELECT relay, batch_events FROM idempotency_data.relays") if r[0] in RELAYS)


def take_steps(one, starter, rng):
    def hold(relay):
        return (Locked if relay in TABLES else Stopped)(one.topology, relay)

    receivers = Receivers(one.topology)
    sizes = batch_sizes(one.topology)
    try:
        for _ in range(STEPS):
            before = len(starter.awaited)
            step = rng.choice(("single", "burst", "held", "held"))
            if step == "single":
                starter.single()
            else:
                starter.burst(sizes, hold=hold if step == "held" else None)
            if not receivers.wait(starter.awaited[before:]):
                return
            time.sleep(rng.uniform(0, 0.1))
    finally:
        receivers.close()


def quiet_time(one, number, drain):
    """The quiet time of a Round whose producers rest; drain() waits for the events committed before."""
    starter = Starter(f"q{number}", one.a, one.directory, one.rng(f"q{number}"))
    watch = Watch(one.topology.work / f"watch{number}", *(c.dsn("crash watch") for c in one.topology.clusters))
    begin = time.time()
    try:
        drain()
        take_steps(one, starter, one.rng(f"quiet/{number}"))
    finally:
        starter.close()
        starter.ledger.close()
        end = time.time()
        stalls, named = watch.stop()
    return Quiet(begin, end, starter.awaited, stalls, named, starter.held)
