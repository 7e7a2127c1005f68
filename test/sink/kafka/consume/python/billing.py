"""Consume from Kafka into PostgreSQL, each event once.  ../../consume.py kills it.

The lines between the marks are those of doc/howto/kafka-consume.md.
"""

# >>> program
import os
import random
import signal
import sys
import time

import psycopg
from confluent_kafka import Consumer, KafkaException

GROUP, TOPIC = os.environ["KAFKA_GROUP"], os.environ["KAFKA_TOPIC"]
SESSION = int(os.environ.get("KAFKA_SESSION_TIMEOUT", "45000"))     # ms
BATCH, TRIES = 50, 20

RESTORE = """
    INSERT INTO kafka_offsets VALUES (%s, %s, %s, -2)
    ON CONFLICT (consumer_group, topic, kafka_partition) DO UPDATE SET next_offset = kafka_offsets.next_offset
    RETURNING next_offset"""
STORE = """
    UPDATE kafka_offsets SET next_offset = %s
    WHERE consumer_group = %s AND topic = %s AND kafka_partition = %s AND next_offset = %s"""
CLAIM = "SELECT idempotency.claim_event(convert_from(%s::bytea, 'UTF8')::uuid, consumer => %s, wait => '1 s')"
CHARGE = """
    INSERT INTO accounts
    VALUES (convert_from(%s::bytea, 'UTF8'), (convert_from(%s::bytea, 'UTF8')::jsonb->>'total')::numeric)
    ON CONFLICT (customer) DO UPDATE SET owed = accounts.owed + EXCLUDED.owed"""
ENQUEUE = """
    SELECT idempotency.outbox_enqueue('account', convert_from(%s::bytea, 'UTF8'), 'AccountCharged',
        jsonb_build_object('cause', convert_from(%s::bytea, 'UTF8')::uuid))"""
COMPLETE = "SELECT idempotency.complete_event(convert_from(%s::bytea, 'UTF8')::uuid, consumer => %s)"
REJECT = """
    INSERT INTO rejected_messages (consumer_group, topic, kafka_partition, kafka_offset, event_id, key, value, sqlstate, error)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"""

position = {}               # (topic, partition) -> next_offset, as we stored it


class Busy(Exception):
    """Another transaction has the event right now."""


def assigned(conn, consumer, partitions):
    """Go on where the database says; a transaction of the former owner has ended by then."""
    position.clear()
    for p in partitions:
        p.offset, = conn.execute(RESTORE, [GROUP, p.topic, p.partition]).fetchone()
        position[p.topic, p.partition] = p.offset
    consumer.assign(partitions)


def handle(conn, message):
    """The effect of one message, or its row in rejected_messages."""
    event_id = dict(message.headers() or []).get("id")
    key, value = message.key(), message.value()
    try:
        with conn.transaction():                                    # a savepoint
            verdict, = conn.execute(CLAIM, [event_id, GROUP]).fetchone()
            if verdict == "duplicate":
                return
            if verdict != "claimed":
                raise Busy(verdict)
            conn.execute(CHARGE, [key, value])
            conn.execute(ENQUEUE, [key, event_id])
            conn.execute(COMPLETE, [event_id, GROUP])
    except (psycopg.DataError, psycopg.IntegrityError) as e:        # classes 22 and 23: this message will never do
        conn.execute(REJECT, [GROUP, message.topic(), message.partition(), message.offset(), event_id, key, value,
                              e.sqlstate, str(e)])


def handle_batch(conn, messages):
    """The effects of the messages and the offsets behind them, in one transaction."""
    ends = {}
    for m in messages:
        ends[m.topic(), m.partition()] = m.offset() + 1
    with conn.transaction():
        for (topic, partition), end in sorted(ends.items()):
            if conn.execute(STORE, [end, GROUP, topic, partition, position[topic, partition]]).rowcount != 1:
                raise SystemExit(f"{topic}/{partition} has another owner now")
        for m in messages:
            handle(conn, m)
    position.update(ends)


def main():
    running = True

    def stop(*_):
        nonlocal running
        running = False
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    conn = psycopg.connect(autocommit=True, options="-c idle_in_transaction_session_timeout=10s")
    consumer = Consumer({
        "bootstrap.servers": os.environ["KAFKA_BROKERS"], "group.id": GROUP,
        "session.timeout.ms": SESSION, "heartbeat.interval.ms": SESSION // 10,
        "enable.auto.commit": False, "isolation.level": "read_committed", "auto.offset.reset": "error"})
    consumer.subscribe([TOPIC], on_assign=lambda c, partitions: assigned(conn, c, partitions),
                       on_revoke=lambda c, partitions: position.clear())
    while running:
        polled = consumer.consume(BATCH, timeout=0.1)
        for m in polled:
            if m.error():
                raise KafkaException(m.error())
        # a rebalance during the call may have taken partitions away or set them back
        messages = [m for m in polled if m.offset() >= position.get((m.topic(), m.partition()), m.offset() + 1)]
        for tries in range(TRIES):
            try:
                if messages:
                    handle_batch(conn, messages)
                break
            except (Busy, psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as e:
                if tries == TRIES - 1:
                    raise
                print(f"again: {type(e).__name__}: {e}", file=sys.stderr)
                time.sleep(random.random() * 0.2)
    consumer.close()
    conn.close()


main()
# <<<
