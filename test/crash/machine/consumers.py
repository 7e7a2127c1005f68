"""Consumers at the target that claim every arrival, and the answers that they got.

An acknowledgement is noted after COMMIT only.  The consumers commit asynchronously: the
extension itself has to make completions durable.
"""
import random
import threading
import time

import psycopg2

from server import Finding, wait_until

SCHEMA = """
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA IF NOT EXISTS app;
CREATE TABLE app.booked (event_id uuid);
"""


# Some events that are not handled, which other consumers also choose, and some of all events.
CHOICE = """
(SELECT event_id::text FROM app.arrivals AS a
    WHERE NOT EXISTS (SELECT FROM app.booked AS b WHERE b.event_id = a.event_id) LIMIT 10)
UNION (SELECT event_id::text FROM app.arrivals ORDER BY random() LIMIT 10)
"""


class Consumers:
    """Threads that handle arrivals, until told to stop: many find them done.

    connect() returns a connection to the target; it may fail.
    """

    def __init__(self, connect, seed, number=3):
        self.connect = connect
        self.stopping = threading.Event()
        self.handled = {}
        self.threads = [threading.Thread(target=self.work, args=(random.Random(f"{seed}/{i}"),), daemon=True)
                        for i in range(number)]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)

    def work(self, rng):
        connection = None
        while not self.stopping.is_set():
            try:
                connection = connection or self.connect()
                with connection.cursor() as cursor:
                    cursor.execute(CHOICE)
                    events = [event for event, in cursor.fetchall()]
                connection.commit()
                for event in events:
                    self.handle(connection, event)
                if not events:
                    time.sleep(0.05)
            except psycopg2.Error:
                connection = None
                time.sleep(rng.random() * 0.05)

    def handle(self, connection, event):
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute("SELECT idempotency.claim_event(%s, consumer => 'books')::text", (event,))
            verdict = cursor.fetchone()[0]
            if verdict == "claimed":
                cursor.execute("INSERT INTO app.booked VALUES (%s)", (event,))
                cursor.execute("SELECT idempotency.complete_event(%s, consumer => 'books')", (event,))
        if verdict == "busy":
            connection.rollback()
            return
        connection.commit()
        self.handled[event] = verdict

    def judge(self, target):
        """No event has two effects, and a handled event has one; the number of effects."""
        handled = set(self.handled)
        booked = [event for event, in target.rows("SELECT event_id::text FROM app.booked")]
        if len(booked) != len(set(booked)):
            raise Finding(f"{len(booked)} booked, {len(set(booked))} of them distinct")
        if handled - set(booked):
            raise Finding(f"{len(handled - set(booked))} of {len(handled)} claims were completed and are gone,"
                          f" among them {min(handled - set(booked))}")
        return len(booked)

    def finish(self, target, due):
        """Go on until every arrival has its effect."""
        wait_until("everything is booked", lambda: self.judge(target) >= due, pause=0.2)
        self.stop()
        booked = self.judge(target)
        if booked != due:
            raise Finding(f"{due} committed, {booked} booked")
