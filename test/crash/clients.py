"""Clients that are cut off again and again: their sessions, their logs, how they go on.

A step is one transaction.  A step that breaks before COMMIT was sent has failed.  The end
of a step that breaks later is unknown; resolve.py resolves it at the end.
"""
import threading
import time

import psycopg2

from topology import PREPARED

GONE = (psycopg2.OperationalError, psycopg2.InterfaceError)


class Client(threading.Thread):
    def __init__(self, name, cluster, ledger, rng):
        super().__init__(name=name, daemon=True)
        self.cluster, self.ledger, self.rng = cluster, ledger, rng
        self.stopping = threading.Event()
        self.connection = None
        self.cursor = None
        self.broken = None      # an exception of this program, not of the system

    def run(self):
        try:
            while not self.stopping.is_set():
                try:
                    self.open()
                    self.step()
                except psycopg2.Error:
                    self.close()
                    self.stopping.wait(0.02)
        except Exception as error:
            self.broken = error
        finally:
            self.close()
            self.ledger.close()

    def step(self):
        raise NotImplementedError

    def open(self):
        if self.connection is None:
            self.connection = self.cluster.connect(name=f"crash {self.name}")
            self.cursor = self.connection.cursor()

    def close(self):
        if self.connection is not None:
            try:
                self.connection.close()
            except psycopg2.Error:
                pass
        self.connection = self.cursor = None

    def sql(self, statement, args=None):
        self.cursor.execute(statement, args)
        return self.cursor.fetchall() if self.cursor.description else None

    def begin(self, lazy):
        txn = self.ledger.transaction()
        self.sql("BEGIN")
        if lazy:
            self.sql("SET LOCAL synchronous_commit = off")
        return txn

    def abandon(self, txn):
        """The transaction ended before COMMIT was sent."""
        self.ledger.write("fail", txn=txn)
        self.sql("ROLLBACK")

    def finish(self, txn, statement="COMMIT", **more):
        """Send COMMIT and log what is known.  True if COMMIT was answered."""
        self.ledger.write("commit", txn=txn, **more)
        try:
            self.sql(statement)
        except psycopg2.Error:
            self.ledger.write("unknown", txn=txn)
            raise
        self.ledger.write("ok", txn=txn)
        return True

    def stop(self):
        self.stopping.set()


class Coordinator(Client):
    """Ends the prepared transactions of the other clients some time later, as these decided."""

    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()
        self.todo = []      # (due, gid, transaction, what, call when it is surely done)
        self.told = set()

    def add(self, txn, what, done=None, delay=1.0):
        with self.lock:
            self.todo.append((time.monotonic() + delay, f"crash-{txn}", txn, what, done))

    def has_room(self):
        """Can one more transaction be prepared?  They are prepared faster than they are ended."""
        with self.lock:
            return len(self.todo) < PREPARED - 10

    def step(self):
        with self.lock:
            due = [t for t in self.todo if t[0] <= time.monotonic()]
        for one in due:
            self.end_one(one)
            # finish_all may meanwhile have replaced the tuple by a tuple that is due at once.
            with self.lock:
                self.todo = [t for t in self.todo if t[1] != one[1]]
        self.stopping.wait(0.05)

    def end_one(self, one):
        _, gid, txn, what, done = one
        if txn not in self.told:
            self.ledger.write("decide", txn=txn, what=what)
            self.told.add(txn)
        try:
            self.sql(f"{what} PREPARED '{gid}'")
        except psycopg2.errors.UndefinedObject:
            pass    # an earlier try did it, or PREPARE never came to be
        if done:
            done()

    def finish_all(self):
        """End all prepared transactions; called when no client prepares any more."""
        with self.lock:
            self.todo = [(0, *t[1:]) for t in self.todo]

    def idle(self):
        with self.lock:
            return not self.todo
