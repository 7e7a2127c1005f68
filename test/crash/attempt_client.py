"""Clients whose work outlives a transaction: what holders of leases and executors of requests share.

A client takes a name that is open, an event's or a request's, and makes an attempt at it.  Each step of an attempt
is a transaction, which leaves rows in app.steps.  The rows tell whether the transaction committed, and their commit
times in which order the steps did.  The log has each call with its answer or error:

    {"op": "told", "call": C, "name": N, "txn": T or null, "asked": seconds, "answer": {...} or null, "error": SQLSTATE, ...}
                        without an answer and without an error nobody knows; "snapshot": when the transaction had taken
                        the snapshot that it keeps
    {"op": "commit", "txn": T, "rows": [[name, what, token], ...], "sync": bool}
"""
import json
import random
import threading
import time
from datetime import timedelta

import psycopg2

from clients import Client

LEVELS = ("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
# Shorter than the pauses of holders, so that others take over.
DURATIONS = (0.003, 0.01, 0.05, 0.2, 1)
# The log of leases grows by so many bytes with a request or its state, and twice as many with a lease's state, so that its tables
# take turns; a row is too short for TOAST.
PADDING = 850
# The attempts of an event or a request before it is dead: few, so that they die while their late holders still act.
MAX_ATTEMPTS = {"leases": 4, "requests": 2}
# How often a name is asked for again that is completed.
AGAIN = 0.15
# The ends of a transaction, and how often each is chosen.
ENDS = (("COMMIT", 16), ("lazily", 3), ("PREPARE", 2), ("ROLLBACK", 2))

SCHEMA = f"""
SET client_min_messages = warning;
CREATE TABLE app.steps (pos bigserial, txn text, name text, what text, token bigint, attempt int, point text, print text);
SELECT idempotency.consumer_create(c.name, lease_duration => '1 s', min_backoff => '4 ms', max_backoff => '50 ms',
    max_attempts => c.attempts::int) FROM jsonb_each('{json.dumps(MAX_ATTEMPTS)}') AS c (name, attempts);
"""


def interval(seconds):
    return timedelta(seconds=seconds)


class Pool:
    """The names that clients work at.  A few are open at a time, so that clients meet."""

    def __init__(self, name_of, width, seed):
        self.name_of, self.width = name_of, width
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.open, self.over = [], []
        self.dead = set()       # names that were answered dead: a hint for operators
        self.closed = False
        self.count = 0

    def pick(self):
        """A name to work at; None if nothing is open any more."""
        with self.lock:
            while not self.closed and len(self.open) < self.width:
                self.open.append(self.name_of(self.count))
                self.count += 1
            if self.over and self.rng.random() < AGAIN:
                return self.rng.choice(self.over)
            return self.rng.choice(self.open) if self.open else None

    def done(self, name):
        with self.lock:
            if name in self.open:
                self.open.remove(name)
                self.over.append(name)

    def died(self, name):
        with self.lock:
            self.dead.add(name)

    def alive(self, name):
        with self.lock:
            self.dead.discard(name)

    def some_dead(self):
        with self.lock:
            return sorted(self.dead)

    def close(self):
        """Open no more names."""
        self.closed = True

    def idle(self):
        with self.lock:
            return self.closed and not self.open

    def names(self):
        with self.lock:
            return self.open + self.over


class AttemptClient(Client):
    consumer = None

    def __init__(self, name, cluster, ledger, rng, pool, coordinator, resting):
        super().__init__(name, cluster, ledger, rng)
        self.pool, self.coordinator, self.resting = pool, coordinator, resting
        self.txn, self.rows = None, []
        self.snapshot = None    # when the transaction had taken the one it keeps

    def step(self):
        name = None if self.resting.is_set() else self.pool.pick()
        if name is None:
            self.stopping.wait(0.02)
            return
        self.attempt(name)
        self.pause(0.02)

    def attempt(self, name):
        raise NotImplementedError

    def pause(self, most):
        time.sleep(self.rng.uniform(0, most))

    # The parts of a transaction.

    def ask(self, call, name, statement, args, **more):
        """Call a function; its answer as a dictionary."""
        line = {"call": call, "name": name, "txn": self.txn, "asked": time.monotonic(), "snapshot": self.snapshot,
                "answer": None, "error": None, **more}
        try:
            rows = self.sql(statement, args)
            columns = [column.name for column in self.cursor.description]
            answers = [dict(zip(columns, map(plain, row))) for row in rows]
        except psycopg2.Error as error:
            self.ledger.write("told", **{**line, "error": error.pgcode})
            raise
        self.ledger.write("told", **{**line, "answer": answers[0]})
        return answers[0]

    def row(self, name, what, token=None, attempt=None, point=None, fingerprint=None):
        self.sql("INSERT INTO app.steps (txn, name, what, token, attempt, point, print) VALUES (%s, %s, %s, %s, %s, %s, %s)",
                 (self.txn, name, what, token, attempt, point, fingerprint))
        self.rows.append((name, what, token))

    def met_dead(self, name):
        """The call may have parked it; the row tells whether that stays."""
        self.row(name, "dead")
        self.pool.died(name)

    def gave_back(self, name, state, what, token):
        """An attempt ended without a completion."""
        self.row(name, "park" if state == "dead" else what, token)
        if state == "dead":
            self.pool.died(name)

    def transact(self, body, ends=ENDS):
        """Run body() in a transaction.  COMMIT or lazily: it was answered; PREPARE: the coordinator ends it; unknown;
        ROLLBACK: it was rolled back, or failed."""
        kinds, weights = zip(*ends)
        end = self.rng.choices(kinds, weights)[0]
        if end == "PREPARE" and not self.coordinator.has_room():
            end = "COMMIT"
        sent = False
        while self.resting.is_set() and not self.stopping.wait(0.02):
            pass
        try:
            self.open()
            self.txn, self.rows = self.begin(end == "lazily"), []
            self.isolate(self.rng.choice(LEVELS))
            body()
            if end == "ROLLBACK":
                self.abandon(self.txn)
                return end
            sent = True
            self.end(end)
            return end
        except psycopg2.Error as error:
            self.after(error, sent)
            return "unknown" if sent else "ROLLBACK"
        finally:
            self.txn = self.snapshot = None

    def isolate(self, level):
        """Set the level; where it keeps snapshots, often take one some time before the first call."""
        self.sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
        if level != "READ COMMITTED" and self.rng.random() < 0.4:
            self.sql("SELECT 1")
            self.snapshot = time.monotonic()
            self.pause(0.05)

    def end(self, how):
        if how != "PREPARE":
            self.finish(self.txn, rows=self.rows, sync=how == "COMMIT")
            return
        txn, delay = self.txn, self.rng.random()
        what = self.rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        try:
            self.finish(txn, f"PREPARE TRANSACTION 'crash-{txn}'", rows=self.rows, sync=False)
        finally:    # prepared or not: nobody knows
            self.coordinator.add(txn, what, delay=delay)

    def after(self, error, sent):
        """Go on after an error: in the same session if it lives."""
        if not sent and self.txn:
            self.ledger.write("fail", txn=self.txn, error=error.pgcode)
        try:
            self.sql("ROLLBACK")
        except (psycopg2.Error, AttributeError):
            self.close()

    def savepoint(self, body):
        """Run body() in a savepoint that is rolled back."""
        kept = list(self.rows)
        self.sql("SAVEPOINT s")
        body()
        self.sql("ROLLBACK TO s")
        self.rows = kept


def plain(value):
    """A value of an answer as JSON has it: bytes as hexadecimal."""
    return value.tobytes().hex() if isinstance(value, memoryview) else value
