"""Consume from Kafka into PostgreSQL, each record once.  ../../consume.py kills it.

The lines between the marks are those of doc/howto/kafka-consume.md.
"""

# >>> program
import os
import random
import signal
import sys
import time

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException

GROUP, TOPIC = os.environ["KAFKA_GROUP"], os.environ["KAFKA_TOPIC"]
SESSION = int(os.environ.get("KAFKA_SESSION_TIMEOUT", "45000"))     # ms
BATCH, TRIES = 50, 20

DRAW = "SELECT nextval('reader_generation')"
RESUME = "SELECT result, next_offset FROM idempotency.resume_offset(%s, %s, %s, generation => %s, wait => '30 s')"
CLAIM = """
    SELECT result, new_from
    FROM idempotency.claim_offset(%s, %s, %s, first_offset => %s, next_offset => %s, generation => %s, wait => '1 s')"""
CHARGE = """
    INSERT INTO accounts
    VALUES (convert_from(%s::bytea, 'UTF8'), (convert_from(%s::bytea, 'UTF8')::jsonb->>'total')::numeric)
    ON CONFLICT (customer) DO UPDATE SET owed = accounts.owed + EXCLUDED.owed"""
ENQUEUE = """
    SELECT idempotency.outbox_enqueue('account', convert_from(%s::bytea, 'UTF8'), 'AccountCharged',
        jsonb_build_object('cause', format('%%s/%%s/%%s', %s::text, %s::int, %s::bigint)))"""
REJECT = """
    INSERT INTO rejected_messages (consumer_group, topic, kafka_partition, kafka_offset, key, value, sqlstate, error)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"""

generation = 0              # of this reader
position = {}               # (topic, partition) -> the offset behind what we have claimed


class Busy(Exception):
    """Another transaction has the partition right now."""


def assigned(conn, consumer, partitions):
    """Go on where the database says; whoever read the partitions before is fenced from now on."""
    global generation
    generation, = conn.execute(DRAW).fetchone()
    position.clear()
    for p in partitions:
        result, next_offset = conn.execute(RESUME, [GROUP, p.topic, p.partition, generation]).fetchone()
        if result != "claimed":
            raise SystemExit(f"{p.topic}/{p.partition} cannot be resumed: {result}")
        p.offset = OFFSET_BEGINNING if next_offset is None else next_offset
        position[p.topic, p.partition] = next_offset or 0
    consumer.assign(partitions)


def handle(conn, message):
    """The effect of one message, or its row in rejected_messages."""
    where = [message.topic(), message.partition(), message.offset()]
    key, value = message.key(), message.value()
    try:
        with conn.transaction():                                    # a savepoint
            conn.execute(CHARGE, [key, value])
            conn.execute(ENQUEUE, [key, *where])
    except (psycopg.DataError, psycopg.IntegrityError) as e:        # classes 22 and 23: this message will never do
        conn.execute(REJECT, [GROUP, *where, key, value, e.sqlstate, str(e)])


def handle_batch(conn, messages):
    """Claim what was polled, and make its effects, in one transaction."""
    ends = {}
    for m in messages:
        ends[m.topic(), m.partition()] = m.offset() + 1
    new_from = {}
    with conn.transaction():
        for (topic, partition), end in ends.items():
            first = position[topic, partition]
            result, new_from[topic, partition] = conn.execute(
                CLAIM, [GROUP, topic, partition, first, end, generation]).fetchone()
            if result == "busy":
                raise Busy(f"{topic}/{partition}")
            if result != "claimed":
                raise SystemExit(f"{topic}/{partition}, offsets {first} to {end}: {result}")
        for m in messages:
            if m.offset() >= new_from[m.topic(), m.partition()]:
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
