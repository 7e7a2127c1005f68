"""Producers: transactions on A that enqueue, in every possible way.

Each transaction leaves one row in app.business, with the number of its events and the sum
of their amounts.  The row tells whether the transaction committed.
"""
import json
import math
import threading
import time
import uuid

import psycopg2

from clients import Client
from topology import KEYS


class Pace:
    """The number of events a second, and altogether, that all producers together may enqueue."""

    def __init__(self, rate, most=math.inf):
        self.rate, self.most = rate, most
        self.lazy = 0.3         # share of asynchronous commits
        self.enqueued = 0       # an estimate: counted by several threads
        self.resting = threading.Event()


class Producer(Client):
    MODES = (("single", 4), ("small", 1), ("binary", 2), ("many", 4), ("savepoints", 3), ("aborted", 1),
             ("prepared", 1), ("given", 2), ("locked", 6))

    def __init__(self, name, cluster, ledger, rng, pace, coordinator, clients):
        super().__init__(name, cluster, ledger, rng)
        self.pace, self.coordinator, self.clients = pace, coordinator, clients
        self.rests = False

    def step(self):
        self.rests = self.pace.resting.is_set() or self.pace.enqueued >= self.pace.most
        if self.rests:
            self.stopping.wait(0.02)
            return
        modes, weights = zip(*self.MODES)
        mode = self.rng.choices(modes, weights)[0]
        if mode == "prepared" and not self.coordinator.has_room():
            mode = "single"
        lazy = mode != "given" and self.rng.random() < self.pace.lazy
        before = self.pace.enqueued
        self.txn, self.events = self.begin(lazy), []
        try:
            getattr(self, mode)(lazy)
        finally:
            self.pace.enqueued += len(self.events)
        if self.pace.rate:
            self.stopping.wait(len(self.events) * self.clients / self.pace.rate)
        elif self.pace.enqueued == before:
            time.sleep(0)

    # Making events.  n is the event's number under the lock of its key; 0 without the lock.

    def payload(self, amount, n=0):
        return {"t": self.txn, "i": len(self.events), "a": amount, "n": n}

    def note(self, event, key, kind, amount, n=0):
        self.events.append([event, key, n, amount, True, kind])

    def enqueue(self, kind="j", key=None, n=0, given=None):
        key = key or f"{kind}{self.rng.randrange(200)}"
        amount = self.rng.randrange(1000)
        event = self.sql("SELECT idempotency.outbox_enqueue(%s, %s, 'E', %s, event_id => %s)::text",
                         (kind, key, json.dumps(self.payload(amount, n)), given))[0][0]
        self.note(event, key, kind, amount, n)

    def commit(self, lazy, statement="COMMIT"):
        kept = [e for e in self.events if e[4]]
        xid = self.sql("INSERT INTO app.business VALUES (%s, %s, %s) RETURNING pg_current_xact_id()::text",
                       (self.txn, len(kept), sum(e[3] for e in kept)))[0][0]
        self.finish(self.txn, statement, xid=xid, events=self.events, sync=not lazy)

    # The ways to enqueue.

    def single(self, lazy):
        for _ in range(self.rng.randint(1, 3)):
            self.enqueue()
        self.commit(lazy)

    def small(self, lazy):
        for _ in range(self.rng.randint(1, 3)):
            self.enqueue("q")
        self.commit(lazy)

    def binary(self, lazy):
        for _ in range(self.rng.randint(1, 3)):
            self.enqueue_binary()
        self.commit(lazy)

    def enqueue_binary(self):
        key, amount = f"y{self.rng.randrange(200)}", self.rng.randrange(1000)
        event = self.sql("SELECT idempotency.outbox_enqueue_bytes('y', %s, 'E', %s)::text",
                         (key, psycopg2.Binary(json.dumps(self.payload(amount)).encode())))[0][0]
        self.note(event, key, "y", amount)

    def many(self, lazy, most=120):
        self.enqueue_many("j", self.rng.randint(2, most))
        self.commit(lazy)

    def enqueue_many(self, kind, n):
        keys, payloads, amounts = [], [], []
        for i in range(n):
            keys.append(f"{kind}{self.rng.randrange(200)}")
            amounts.append(self.rng.randrange(1000))
            payloads.append(json.dumps({"t": self.txn, "i": i, "a": amounts[-1], "n": 0}))
        found = self.sql("SELECT outbox_enqueue_many::text FROM idempotency.outbox_enqueue_many(%s, %s, %s, %s::jsonb[])",
                         (kind, keys, ["E"] * len(keys), payloads))
        for (event,), key, amount in zip(found, keys, amounts):
            self.note(event, key, kind, amount)

    def savepoints(self, lazy):
        for i in range(self.rng.randint(2, 5)):
            self.sql("SAVEPOINT s")
            self.enqueue()
            fate = self.rng.random()
            if fate < 0.3:
                self.sql("ROLLBACK TO s")
                self.events[-1][4] = False
            elif fate < 0.6:
                self.sql("RELEASE s")
        self.commit(lazy)

    def aborted(self, lazy):
        for _ in range(self.rng.randint(1, 20)):
            self.enqueue()
        self.abandon(self.txn)

    def prepared(self, lazy):
        for _ in range(self.rng.randint(1, 3)):
            self.enqueue()
        what = self.rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        delay = self.rng.random() * 4
        try:
            self.commit(lazy, f"PREPARE TRANSACTION 'crash-{self.txn}'")
        finally:    # prepared or not: nobody knows
            self.coordinator.add(self.txn, what, delay=delay)

    def given(self, lazy):
        """Repeat a transaction with the same event id until its end is known: it is enqueued once."""
        event = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        while True:
            try:
                self.enqueue(given=event)
                self.commit(lazy)
                return
            except psycopg2.errors.UniqueViolation:
                self.abandon(self.txn)
                return
            except psycopg2.Error:
                self.close()
            while True:
                if self.stopping.wait(0.02):
                    return
                try:
                    self.open()
                    self.txn, self.events = self.begin(lazy), []
                    break
                except psycopg2.Error:
                    self.close()

    def locked(self, lazy):
        self.enqueue_locked()
        self.commit(lazy)

    def enqueue_locked(self):
        key = str(self.rng.randint(1, KEYS))
        n = self.sql("UPDATE app.keys SET n = n + 1 WHERE key = %s RETURNING n", (key,))[0][0]
        self.enqueue("k", key, n)


class Bulk(Producer):
    """Enqueues batches only, as fast as possible."""
    MODES = (("many", 1),)

    def many(self, lazy, most=500):
        super().many(lazy, most)


class Holder(Producer):
    """Without a thread: one transaction that begins now and ends when the caller asks for it."""

    def __init__(self, name, cluster, ledger, rng):
        super().__init__(name, cluster, ledger, rng, Pace(0), None, 1)
        self.open()
        self.txn, self.events = self.begin(False), []
        self.enqueue()

    def end(self):
        try:
            if self.rng.random() < 0.3:
                self.abandon(self.txn)
            else:
                self.enqueue()
                self.commit(False)
        except psycopg2.Error:
            pass
        self.close()
        self.ledger.close()
