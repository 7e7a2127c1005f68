"""Writers, and the ledger of the answers that they got.

Every operation is noted outside of the servers, before it is tried and after it was
answered:

    ok        COMMIT was answered
    fail      an error before COMMIT was sent, or ROLLBACK
    unknown   the connection broke while COMMIT was under way

The business table of the server that is left in the end tells how an unknown operation
ended.  For the verdict, "committed" means a row in this table.
"""
import random
import threading
import time
import uuid

import psycopg2

from server import wait_until


class Operation:
    """One event: its writer, its number among the writer's events, and how it ended."""
    __slots__ = ("event", "key", "n", "durable", "outcome", "note", "tag")

    def __init__(self, event, key, n, durable, tag):
        self.event, self.key, self.n, self.durable, self.tag = event, key, n, durable, tag
        self.outcome, self.note = "invoked", ""

    def __str__(self):
        commit = "synchronous" if self.durable else "asynchronous"
        return f"{self.event} {self.key} #{self.n} {commit} {self.outcome} {self.tag} {self.note}".rstrip()


SCHEMA = """
CREATE TABLE aggregate (key text PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE orders (event_id uuid PRIMARY KEY, key text NOT NULL, n bigint NOT NULL);
"""


class Traffic:
    """Threads that write orders with their events until told to stop.

    connect() returns a connection to the present primary; it may fail.
    """

    def __init__(self, connect, seed, durable=(True, True, False, False), pause=0.004):
        self.connect = connect
        self.operations = []
        self.pause = pause
        self.tag = ""
        self.lazy_only = False      # writers of durable commits rest
        self.stopping = threading.Event()
        self.resumed = threading.Event()
        self.resumed.set()
        self.parked = set()         # writers that rest
        self.threads = [
            threading.Thread(target=self.write, args=(f"w{i}", d, random.Random(f"{seed}/{i}")), daemon=True)
            for i, d in enumerate(durable)]

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def stop(self):
        self.stopping.set()
        self.resumed.set()
        for thread in self.threads:
            thread.join(60)

    def pause_all(self):
        self.resumed.clear()

    def rest(self):
        """Wait until no writer has a transaction any more."""
        self.pause_all()
        wait_until("writers rest", lambda: len(self.parked) == len(self.threads))

    def resume(self):
        self.resumed.set()

    def count(self, outcome="ok"):
        return sum(op.outcome == outcome for op in self.operations)

    def write(self, key, durable, rng):
        connection, n = None, 0
        while not self.stopping.is_set():
            if not self.resumed.is_set():
                self.parked.add(key)
                self.resumed.wait()
                self.parked.discard(key)
            if durable and self.lazy_only:
                time.sleep(0.01)
                continue
            try:
                if connection is None:
                    connection = self.connect()
                    with connection.cursor() as cursor:
                        if not durable:
                            # A given event id is claimed, which would sync the commit.
                            cursor.execute("SET synchronous_commit = off; SET idempotency.durable_complete = off")
                    connection.commit()
            except psycopg2.Error:
                connection = self.drop(connection)
                time.sleep(0.05)
                continue
            n += 1
            op = Operation(str(uuid.UUID(int=rng.getrandbits(128), version=4)), key, n, durable, self.tag)
            self.operations.append(op)
            try:
                self.one(connection, op, rng.random() < 0.1)
            except psycopg2.Error as error:
                if op.outcome == "invoked":
                    op.outcome = "fail"
                op.note = str(error).split("\n", maxsplit=1)[0]
                connection = self.recover(connection)
            time.sleep(self.pause * 2 * rng.random())
        self.drop(connection)

    @staticmethod
    def enqueue(cursor, op):
        cursor.execute("INSERT INTO aggregate VALUES (%s, 1) ON CONFLICT (key)"
                       " DO UPDATE SET n = aggregate.n + 1", (op.key,))
        cursor.execute("INSERT INTO orders VALUES (%s, %s, %s)", (op.event, op.key, op.n))
        cursor.execute("SELECT idempotency.outbox_enqueue('order', %s, 'Made',"
                       " jsonb_build_object('n', %s::bigint), event_id => %s::uuid)",
                       (op.key, op.n, op.event))

    def one(self, connection, op, give_up):
        with connection.cursor() as cursor:
            self.enqueue(cursor, op)
        if give_up:
            connection.rollback()
            op.outcome = "fail"
            return
        op.outcome = "unknown"
        connection.commit()
        op.outcome = "ok"
        if connection.notices:
            # COMMIT gave a warning: the wait for a standby was cancelled.
            op.note = " ".join(connection.notices).strip()
            op.durable = False
            connection.notices.clear()

    def recover(self, connection):
        """After an error: the same connection, if it lives."""
        try:
            connection.rollback()
            return connection
        except psycopg2.Error:
            return self.drop(connection)

    @staticmethod
    def drop(connection):
        try:
            if connection is not None:
                connection.close()
        except psycopg2.Error:
            pass
