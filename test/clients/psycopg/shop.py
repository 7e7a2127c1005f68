"""A producer and a consumer with psycopg 3, and the checks that ../run.sh counts.

The lines between the marks are those of doc/howto/python.md.
"""

import uuid
from contextlib import suppress

# >>> producer
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb


def place_order(conn, order, total):
    """The order and its event commit together, or neither of them does."""
    with conn.transaction():
        conn.execute("INSERT INTO orders VALUES (%s, %s)", [order, total])
        row = conn.execute(
            "SELECT idempotency.outbox_enqueue('order', %s::text, 'OrderCreated', %s::jsonb)",
            [order, Jsonb({"order": order, "total": total})]).fetchone()
    return row[0]
# <<<


# >>> consumer
def handle(conn, event_id, payload):
    """Make one message's effect once. After it has returned, acknowledge all but busy."""
    with conn.transaction():
        verdict, = conn.execute(
            "SELECT idempotency.claim_event(%s::uuid, consumer => 'billing', wait => %s::interval)",
            [event_id, "100 ms"]).fetchone()
        if verdict == "claimed":
            conn.execute("INSERT INTO invoices VALUES (%s, %s, %s::uuid)",
                         [payload["order"], payload["total"], event_id])
            conn.execute(
                "SELECT idempotency.complete_event(%s::uuid, consumer => 'billing', result => %s::jsonb)",
                [event_id, Jsonb({"invoice": payload["order"]})])
    return verdict
# <<<


# >>> batch
BATCH = """
    WITH message AS (
        SELECT * FROM ROWS FROM (
            idempotency.claim_events(%s::uuid[]::text[], consumer => 'billing'),
            unnest(%s::jsonb[])
        ) AS m (ord, event_id, result, payload)
    ), effect AS (
        INSERT INTO invoices (order_id, total, event_id)
        SELECT (payload->>'order')::int, (payload->>'total')::numeric, event_id::uuid
        FROM message WHERE result = 'claimed'
        RETURNING event_id
    ), done AS (
        SELECT idempotency.complete_events(ARRAY(SELECT event_id::text FROM effect), consumer => 'billing')
    )
    SELECT result FROM message, done ORDER BY ord"""


def handle_many(conn, messages):
    """The same for (event_id, payload) pairs; the verdicts come in their order."""
    ids = [event_id for event_id, _ in messages]
    payloads = [Jsonb(payload) for _, payload in messages]
    return [verdict for verdict, in conn.execute(BATCH, [ids, payloads])]
# <<<


# >>> commit
def commit(conn):
    if conn.info.transaction_status == TransactionStatus.INERROR:
        conn.rollback()
        raise RuntimeError("a statement failed before: nothing is committed, do not acknowledge")
    conn.commit()
# <<<


def handle_blindly(conn, event_id, payload):
    """Wrong: all statements are sent before the verdict is read."""
    with conn.pipeline(), conn.transaction():
        conn.execute("SELECT idempotency.claim_event(%s::uuid, consumer => 'billing')", [event_id])
        conn.execute("INSERT INTO invoices VALUES (%s, %s, %s::uuid)",
                     [payload["order"], payload["total"], event_id])
        conn.execute("SELECT idempotency.complete_event(%s::uuid, consumer => 'billing')", [event_id])


# Checks

def check(name, good):
    print("ok" if good else "NOT OK", name, flush=True)


def fails(sqlstate, work, *args):
    """Does it fail with that SQLSTATE?"""
    try:
        work(*args)
    except psycopg.Error as error:
        return error.sqlstate == sqlstate
    return False


def main():
    conn, other = (psycopg.connect(autocommit=True) for _ in range(2))

    def value(query, *args):
        return conn.execute(query, args).fetchone()[0]

    def invoices(event_id):
        return value("SELECT count(*) FROM invoices WHERE event_id = %s::uuid", event_id)

    event_id = place_order(conn, 1, 99)
    check("an event commits with its row", value("SELECT enqueued(1)") == 1)
    with conn.transaction():
        place_order(conn, 2, 99)
        raise psycopg.Rollback()
    check("an event is rolled back with its row",
          value("SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)") == 0)

    message = (event_id, {"order": 1, "total": 99})
    check("claimed: the effect is made and the result is stored",
          handle(conn, *message) == "claimed" and invoices(event_id) == 1 and
          value("SELECT idempotency.event_result(%s::uuid, 'billing')", event_id) == {"invoice": 1})
    check("redelivered: duplicate, and one effect",
          handle(conn, *message) == "duplicate" and invoices(event_id) == 1)
    upper = str(event_id).upper()
    check("an upper-case id is cast to the same event",
          handle(conn, upper, message[1]) == "duplicate" and invoices(event_id) == 1 and
          value("SELECT status FROM idempotency.event_status(%s::text, 'billing')", upper) == "unknown")

    busy = uuid.uuid4()
    with other.transaction(force_rollback=True):
        other.execute("SELECT idempotency.claim_event(%s::uuid, 'billing')", [busy])
        check("busy while another session has the event",
              handle(conn, busy, {"order": 3, "total": 1}) == "busy" and invoices(busy) == 0)
    failed = fails("23505", handle, conn, busy, {"order": 1, "total": 1})
    check("a handler that failed is tried again",
          failed and handle(conn, busy, {"order": 3, "total": 1}) == "claimed" and invoices(busy) == 1)

    ids = [uuid.uuid4() for _ in range(50)]
    messages = [(i, {"order": 100 + n, "total": n}) for n, i in enumerate(ids)] * 2
    check("a batch of 100 with repeats is one statement",
          handle_many(conn, messages) == ["claimed"] * 50 + ["duplicate"] * 50 and
          value("SELECT count(*) FROM invoices WHERE event_id = ANY (%s)", ids) == 50 and
          handle_many(conn, messages) == ["duplicate"] * 100 and handle_many(conn, []) == [])

    with other.transaction():
        other.execute("INSERT INTO orders VALUES (4, 1)")
        with suppress(psycopg.Error):
            other.execute("SELECT 1/0")
    with psycopg.connect() as aborted:
        aborted.execute("INSERT INTO orders VALUES (4, 1)")
        with suppress(psycopg.Error):
            aborted.execute("SELECT 1/0")
        aborted.commit()
        silent = value("SELECT count(*) FROM orders WHERE id = 4") == 0
        with suppress(psycopg.Error):
            aborted.execute("SELECT 1/0")
        try:
            commit(aborted)
        except RuntimeError:
            check("COMMIT of an aborted transaction is noticed", silent)

    blind = (uuid.uuid4(), {"order": 5, "total": 1})
    handle_blindly(conn, *blind)
    check("a pipelined duplicate fails with ID002, and one statement answers it",
          fails("ID002", handle_blindly, conn, blind[0], {"order": 6, "total": 1}) and
          invoices(blind[0]) == 1 and handle_many(conn, [blind]) == ["duplicate"])

    check("a list of uuids has to be cast to text[]",
          fails("42883", conn.execute, "SELECT idempotency.claim_events(%s)", [ids]))


main()
