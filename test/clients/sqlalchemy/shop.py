"""A producer and a consumer with SQLAlchemy's text(), and the checks that ../run.sh counts.

The lines between the marks are those of doc/howto/python.md.
"""

import uuid
from contextlib import suppress

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

# >>> producer
import json

from psycopg.pq import TransactionStatus
from sqlalchemy import text


def place_order(connection, order, total):
    """To be called in a transaction: with engine.begin() as connection."""
    connection.execute(text("INSERT INTO orders VALUES (:order, :total)"), {"order": order, "total": total})
    return connection.scalar(
        text("""SELECT idempotency.outbox_enqueue('order', CAST(:order AS text), 'OrderCreated',
                                                  CAST(:payload AS jsonb))"""),
        {"order": order, "payload": json.dumps({"order": order, "total": total})})
# <<<


# >>> consumer
def handle(engine, event_id, payload):
    """Make one message's effect once. After it has returned, acknowledge all but busy."""
    with engine.begin() as connection:
        verdict = connection.scalar(
            text("""SELECT idempotency.claim_event(CAST(:id AS uuid), consumer => 'billing',
                                                   wait => CAST(:wait AS interval))"""),
            {"id": event_id, "wait": "100 ms"})
        if verdict == "claimed":
            connection.execute(text("INSERT INTO invoices VALUES (:order, :total, CAST(:id AS uuid))"),
                               {"id": event_id, "order": payload["order"], "total": payload["total"]})
            connection.execute(
                text("""SELECT idempotency.complete_event(CAST(:id AS uuid), consumer => 'billing',
                                                          result => CAST(:result AS jsonb))"""),
                {"id": event_id, "result": json.dumps({"invoice": payload["order"]})})
    return verdict
# <<<


# >>> batch
BATCH = text("""
    WITH message AS (
        SELECT * FROM ROWS FROM (
            idempotency.claim_events(CAST(CAST(:ids AS uuid[]) AS text[]), consumer => 'billing'),
            unnest(CAST(:payloads AS jsonb[]))
        ) AS m (ord, event_id, result, payload)
    ), effect AS (
        INSERT INTO invoices (order_id, total, event_id)
        SELECT CAST(payload->>'order' AS int), CAST(payload->>'total' AS numeric), CAST(event_id AS uuid)
        FROM message WHERE result = 'claimed'
        RETURNING event_id
    ), done AS (
        SELECT idempotency.complete_events(ARRAY(SELECT CAST(event_id AS text) FROM effect), consumer => 'billing')
    )
    SELECT result FROM message, done ORDER BY ord""")


def handle_many(engine, messages):
    """The same for (event_id, payload) pairs; the verdicts come in their order."""
    with engine.begin() as connection:
        return connection.scalars(BATCH, {
            "ids": [str(event_id) for event_id, _ in messages],
            "payloads": [json.dumps(payload) for _, payload in messages]}).all()
# <<<


# >>> commit
def commit(connection):
    driver = connection.connection.driver_connection        # psycopg's
    if driver.info.transaction_status == TransactionStatus.INERROR:
        connection.rollback()
        raise RuntimeError("a statement failed before: nothing is committed, do not acknowledge")
    connection.commit()
# <<<


# Checks

def check(name, good):
    print("ok" if good else "NOT OK", name, flush=True)


def fails(sqlstate, work, *args):
    """Does it fail with that SQLSTATE?"""
    try:
        work(*args)
    except DBAPIError as error:
        return error.orig.sqlstate == sqlstate
    return False


def main():
    engine = create_engine("postgresql+psycopg://")     # to where PGHOST and its like say

    def value(query, **args):
        with engine.begin() as connection:
            return connection.scalar(text(query), args)

    def invoices(event_id):
        return value("SELECT count(*) FROM invoices WHERE event_id = CAST(:id AS uuid)", id=event_id)

    with engine.begin() as connection:
        event_id = place_order(connection, 1, 99)
    check("an event commits with its row", value("SELECT enqueued(1)") == 1)
    with engine.connect() as connection:
        place_order(connection, 2, 99)
        connection.rollback()
    check("an event is rolled back with its row",
          value("SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)") == 0)

    message = (event_id, {"order": 1, "total": 99})
    check("claimed: the effect is made and the result is stored",
          handle(engine, *message) == "claimed" and invoices(event_id) == 1 and
          value("SELECT idempotency.event_result(CAST(:id AS uuid), 'billing')", id=event_id) == {"invoice": 1})
    check("redelivered: duplicate, and one effect",
          handle(engine, *message) == "duplicate" and invoices(event_id) == 1)
    upper = str(event_id).upper()
    check("an upper-case id is cast to the same event",
          handle(engine, upper, message[1]) == "duplicate" and invoices(event_id) == 1 and
          value("SELECT status FROM idempotency.event_status(CAST(:id AS text), 'billing')", id=upper) == "unknown")

    busy = uuid.uuid4()
    with engine.connect() as other:
        other.execute(text("SELECT idempotency.claim_event(CAST(:id AS uuid), 'billing')"), {"id": busy})
        check("busy while another session has the event",
              handle(engine, busy, {"order": 3, "total": 1}) == "busy" and invoices(busy) == 0)
    failed = fails("23505", handle, engine, busy, {"order": 1, "total": 1})
    check("a handler that failed is tried again",
          failed and handle(engine, busy, {"order": 3, "total": 1}) == "claimed" and invoices(busy) == 1)

    messages = [(uuid.uuid4(), {"order": 100 + n, "total": n}) for n in range(50)] * 2
    check("a batch of 100 with repeats is one statement",
          handle_many(engine, messages) == ["claimed"] * 50 + ["duplicate"] * 50 and
          value("SELECT count(*) FROM invoices WHERE order_id >= 100") == 50 and
          handle_many(engine, messages) == ["duplicate"] * 100 and handle_many(engine, []) == [])

    with engine.begin() as other:
        other.execute(text("INSERT INTO orders VALUES (4, 1)"))
        with suppress(DBAPIError):
            other.execute(text("SELECT 1/0"))
    with engine.connect() as aborted:
        aborted.execute(text("INSERT INTO orders VALUES (4, 1)"))
        with suppress(DBAPIError):
            aborted.execute(text("SELECT 1/0"))
        aborted.commit()
        silent = value("SELECT count(*) FROM orders WHERE id = 4") == 0
        with suppress(DBAPIError):
            aborted.execute(text("SELECT 1/0"))
        try:
            commit(aborted)
        except RuntimeError:
            check("COMMIT of an aborted transaction is noticed", silent)

    check(":id::uuid is not taken for a parameter",
          fails("42601", lambda: value("SELECT idempotency.lock_key(:id::uuid)", id=event_id)))


main()
