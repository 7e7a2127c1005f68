"""Quiet times of a world: writers rest, and each event of the quiet time has to arrive at once.

The rule is `late` of the rounds (rules.py), with the same witness (watch.py).  The time of an
arrival is seen from outside the servers, so a scenario may turn the servers' clocks.
"""
import time
import uuid

import rules
from machine.traffic import Operation, Traffic
from server import Finding
from topology import Lines
from watch import Watch

STEPS = 6
# Longer than the periodic reload of a worker, 60 s.
GIVE_UP = 90
BATCH_SIZES = (1, 2, 3, 8)
BATCHES = (1, 7, 8, 9)
DELAYS = (0, 0.001, 0.01, 0.03)


class QuietTime:
    """hold: a function that holds up the relays' events, and returns a function that releases them.  The view has
    to show the hold.  A function relay sends nothing: its own COMMIT is held up, and pg_stat_activity shows it."""

    def __init__(self, world, rng, hold=None):
        self.world, self.rng, self.hold = world, rng, hold
        self.number = 0
        self.awaited, self.arrived = [], {relay: {} for relay in world.relays}
        self.held = {"fn": []}
        self.lines = Lines(world.file) if world.file else None
        self.old_lines = len(self.lines.read()) if world.file else 0

    def commit(self, session, n):
        """Commit one transaction of n events, without waiting for a standby; their ids."""
        with session.cursor() as cursor:
            # An id that the client gives is claimed, and the claim would wait for the standby.
            cursor.execute("SET LOCAL synchronous_commit = local; SET LOCAL idempotency.durable_complete = off")
            for _ in range(n):
                self.number += 1
                op = Operation(str(uuid.UUID(int=self.rng.getrandbits(128), version=4)), self.key, self.number,
                               True, "quiet time")
                self.world.traffic.operations.append(op)
                Traffic.enqueue(cursor, op)
                self.awaited.append([op.event, "o", None, None])
        sent = time.time()
        session.commit()
        for awaited, op in zip(self.awaited[-n:], self.world.traffic.operations[-n:]):
            awaited[2:] = sent, time.time()
            op.outcome = "ok"

    def step(self, session, size):
        """Send full batches, and one more event while they are on their way; wait until all are everywhere."""
        first, begin = len(self.awaited), time.time()
        release = self.hold and self.rng.random() < 0.7 and self.hold()
        try:
            if self.rng.random() < 0.8:
                self.commit(session, self.rng.choice(BATCHES) * size + self.rng.choice((0, 0, 1)))
                time.sleep(self.rng.choice(DELAYS))
            self.commit(session, 1)
            if release:
                self.world.primary.wait_for("SELECT bool_or(waiting_for NOT IN ('events', 'answer'))"
                                            " FROM idempotency.stat_relay")
                time.sleep(self.rng.choice(DELAYS))
        finally:
            if release:
                release()
                self.held["fn"].append((begin, time.time()))
        return self.see({event for event, *_ in self.awaited[first:]})

    def see(self, wanted):
        end = time.monotonic() + GIVE_UP
        missing = {relay: set(wanted) for relay in self.world.relays}
        while any(missing.values()) and time.monotonic() < end:
            for relay, events in missing.items():
                if events:
                    there = events & self.there(relay)
                    self.arrived[relay].update(dict.fromkeys(there, time.time()))
                    events -= there
            time.sleep(0.01)
        return not any(missing.values())

    def there(self, relay):
        """Read only the new part of the file: reading megabytes would count as a wait of the relay."""
        if relay == "file":
            return {str(uuid.UUID(e["event"])) for e in self.lines.read()[self.old_lines:] if e.get("outcome") == "acked"}
        return {event for event, _, _ in self.world.arrivals(relay)}

    def run(self):
        """The longest time from COMMIT to arrival, in seconds."""
        world = self.world
        self.key = f"quiet{len(world.traffic.operations)}"
        size = self.rng.choice(BATCH_SIZES)
        for relay in world.relays:
            world.primary.rows("SELECT idempotency.relay_alter(%s, batch_events => %s)", (relay, size))
        watch = Watch(world.lab.work / self.key, *(f"host={s.host} port={s.port} user=postgres dbname=postgres"
                                                   for s in (world.primary, world.target)))
        begin = time.time()
        session = world.primary.connect(autocommit=False)
        try:
            for _ in range(STEPS):
                if not self.step(session, size):
                    break
        finally:
            session.close()
            end = time.time()
            stalls, named = watch.stop()
        return self.judge(rules.Quiet(begin, end, self.awaited, stalls, named, self.held, self.arrived))

    def judge(self, quiet):
        h = rules.History(types=dict.fromkeys(self.world.relays, "o"), quiet=[quiet])
        found = [f"{event}: {text}" for _, event, text in rules.late(h)]
        if found:
            raise Finding("\n".join([f"late: {len(found)}", *found[:5], self.world.primary.relays()]))
        return max(w.took for w in rules.waits(h))
