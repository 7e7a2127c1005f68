"""Consumers on B, and their broker.

The broker hands out the events of the inbox.  It hands an event out again if no consumer
acknowledged it, and now and then although a consumer did; some events go to two consumers
at a time.  A consumer claims an event, makes its effect and completes the claim, in every
way there is, and acknowledges after COMMIT.
"""
import collections
import random
import threading

from clients import Client

REPEAT = 0.15
TWIN = 0.1


class Broker:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.queue = collections.deque()
        self.known = set()
        self.out = 0

    def put(self, events):
        with self.lock:
            for event in events:
                if event not in self.known:
                    self.known.add(event)
                    self.queue.append(event)

    def take(self, most):
        with self.lock:
            taken = {}
            while self.queue and len(taken) < most:
                taken[self.queue.popleft()] = True
            self.out += len(taken)
            # Another consumer gets some of these events at the same time.
            self.queue.extendleft(e for e in taken if self.rng.random() < TWIN)
            return list(taken)

    def settle(self, acked, nacked=()):
        with self.lock:
            self.out -= len(acked) + len(nacked)
            self.queue.extend(nacked)
            self.queue.extend(e for e in acked if self.rng.random() < REPEAT)

    def idle(self):
        with self.lock:
            return not self.queue and not self.out


class Fetcher(Client):
    """Reads the inbox into the broker."""

    def __init__(self, name, cluster, ledger, rng, broker):
        super().__init__(name, cluster, ledger, rng)
        self.broker = broker
        self.pos = 0

    def step(self):
        rows = self.sql("SELECT pos, event_id::text FROM app.inbox WHERE pos > %s ORDER BY pos LIMIT 5000", (self.pos,))
        self.broker.put([r[1] for r in rows])
        self.pos = rows[-1][0] if rows else self.pos
        if not rows:
            self.stopping.wait(0.05)

    def sweep(self):
        """Read the whole inbox, as the order of commits may differ from the order of pos; its size."""
        rows = self.cluster.rows("SELECT DISTINCT event_id::text FROM app.inbox")
        self.broker.put([r[0] for r in rows])
        return len(rows)


class Consumer(Client):
    MODES = (("single", 3), ("batch", 8), ("savepoints", 2), ("aborted", 1), ("released", 1),
             ("prepared", 1), ("lazily", 2))
    SIZES = {"single": 1, "batch": 200, "savepoints": 4, "aborted": 20, "released": 3, "prepared": 3, "lazily": 20}

    consumer = "default"

    def __init__(self, name, cluster, ledger, rng, broker, coordinator):
        super().__init__(name, cluster, ledger, rng)
        self.broker, self.coordinator = broker, coordinator

    def step(self):
        modes, weights = zip(*self.MODES)
        mode = self.rng.choices(modes, weights)[0]
        if mode == "prepared" and not self.coordinator.has_room():
            mode = "batch"
        self.events = self.broker.take(self.SIZES[mode])
        if not self.events:
            self.stopping.wait(0.02)
            return
        acked, nacked = [], self.events
        try:
            self.txn = self.begin(False)
            acked, nacked = getattr(self, mode)()
        finally:
            if acked is not None:
                self.broker.settle(acked, nacked)

    # The parts of a transaction.

    def claim_many(self, events):
        """The verdicts in order; one id is asked for twice."""
        asked = events + [self.rng.choice(events)]
        rows = self.sql("SELECT event_id, result::text FROM idempotency.claim_events(%s, %s) ORDER BY ord", (asked, self.consumer))
        if [r[0] for r in rows] != asked:
            raise AssertionError("claim_events: not one row per element, in order")
        verdicts = dict(rows[:-1])
        own, again = rows[-1]
        if again != ("duplicate" if verdicts[own] == "claimed" else verdicts[own]):
            raise AssertionError(f"claim_events: {own} is {verdicts[own]} and then {again}")
        self.ledger.write("answers", txn=self.txn, of=list(verdicts.items()))
        return verdicts

    def claim(self, event):
        verdict = self.sql("SELECT idempotency.claim_event(%s, %s)::text", (event, self.consumer))[0][0]
        self.ledger.write("answers", txn=self.txn, of=[(event, verdict)])
        return verdict

    def complete(self, event, result=None):
        self.sql("SELECT idempotency.complete_event(%s, %s, %s)", (event, self.consumer, result))

    def effects(self, events):
        self.sql("INSERT INTO app.effect (event_id, txn) SELECT e, %s FROM unnest(%s::text[]) e", (self.txn, events))

    def take_all(self):
        """Claim, make the effects, complete: the ids claimed, done before, and held by others."""
        verdicts = self.claim_many(self.events)
        claimed = [e for e in self.events if verdicts[e] == "claimed"]
        if claimed:
            self.effects(claimed)
            self.sql("SELECT idempotency.complete_events(%s, %s)", (claimed, self.consumer))
        return (claimed, [e for e in self.events if verdicts[e] == "duplicate"],
                [e for e in self.events if verdicts[e] not in ("claimed", "duplicate")])

    def done(self, effects, statement="COMMIT"):
        self.ledger.write("effects", txn=self.txn, of=effects)
        self.finish(self.txn, statement)

    # The ways to handle events.  Each returns the ids to acknowledge and the other ids.

    def single(self):
        event = self.events[0]
        verdict = self.claim(event)
        if verdict == "busy":
            self.abandon(self.txn)
            return [], [event]
        if verdict == "claimed":
            self.effects([event])
            self.complete(event, '{"done": true}')
        self.done([event] if verdict == "claimed" else [])
        return [event], []

    def batch(self):
        claimed, duplicate, busy = self.take_all()
        self.done(claimed)
        return claimed + duplicate, busy

    def savepoints(self):
        acked, nacked, kept = [], [], []
        for event in self.events:
            self.sql("SAVEPOINT s")
            verdict = self.claim(event)
            fate = self.rng.random()
            if verdict == "claimed":
                self.effects([event])
                self.complete(event)
                if fate < 0.3:
                    self.sql("ROLLBACK TO s")
                    if fate < 0.15 and self.claim(event) == "claimed":
                        self.effects([event])
                        self.complete(event)
                        fate = 1
                if fate >= 0.3:
                    kept.append(event)
            (nacked if verdict == "busy" or (verdict == "claimed" and event not in kept) else acked).append(event)
        self.done(kept)
        return acked, nacked

    def aborted(self):
        self.take_all()
        self.abandon(self.txn)
        return [], self.events

    def released(self):
        for event in self.events:
            if self.claim(event) == "claimed":
                self.sql("SELECT idempotency.release_event(%s, %s)", (event, self.consumer))
        self.done([])
        return [], self.events

    def prepared(self):
        """The coordinator ends the transaction.  The events are delivered again, however it ended."""
        claimed, _, _ = self.take_all()
        events, delay = self.events, self.rng.random() * 3
        what = self.rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        try:
            self.done(claimed, f"PREPARE TRANSACTION 'crash-{self.txn}'")
        finally:
            self.coordinator.add(self.txn, what, delay=delay)
        return [], events

    def lazily(self):
        """Commit asynchronously: acknowledge only the events answered as duplicate."""
        self.sql("SET LOCAL synchronous_commit = off")
        self.sql("SET LOCAL idempotency.durable_complete = off")
        claimed, duplicate, busy = self.take_all()
        self.done(claimed)
        return duplicate, claimed + busy
