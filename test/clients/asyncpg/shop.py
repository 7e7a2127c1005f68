"""A producer and a consumer with asyncpg, and with SQLAlchemy over it; the checks that ../run.sh counts.

The lines between the marks are those of doc/howto/python.md.
"""

import asyncio
import uuid
from contextlib import suppress

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

# >>> transaction
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg


@asynccontextmanager
async def transaction(conn):
    """As conn.transaction(), but an error that was caught inside is an error of the end."""
    async with conn.transaction():
        yield
        await conn.execute("SELECT 1")          # 25P02 if COMMIT would be a ROLLBACK
# <<<


# >>> producer
async def place_order(conn, order, total):
    """The order and its event commit together, or neither of them does."""
    async with transaction(conn):
        await conn.execute("INSERT INTO orders VALUES ($1, $2)", order, total)
        return await conn.fetchval(
            "SELECT idempotency.outbox_enqueue('order', $1::text, 'OrderCreated', $2::jsonb)",
            str(order), json.dumps({"order": order, "total": total}))
# <<<


# >>> consumer
async def handle(conn, event_id, payload):
    """Make one message's effect once. After it has returned, acknowledge all but busy."""
    async with transaction(conn):
        verdict = await conn.fetchval(
            "SELECT idempotency.claim_event($1::uuid, consumer => 'billing', wait => $2::interval)",
            event_id, timedelta(milliseconds=100))
        if verdict == "claimed":
            await conn.execute("INSERT INTO invoices VALUES ($1, $2, $3::uuid)",
                               payload["order"], payload["total"], event_id)
            await conn.execute(
                "SELECT idempotency.complete_event($1::uuid, consumer => 'billing', result => $2::jsonb)",
                event_id, json.dumps({"invoice": payload["order"]}))
    return verdict
# <<<


# >>> batch
BATCH = """
    WITH message AS (
        SELECT * FROM ROWS FROM (
            idempotency.claim_events($1::uuid[]::text[], consumer => 'billing'),
            unnest($2::jsonb[])
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


async def handle_many(conn, messages):
    """The same for (event_id, payload) pairs; the verdicts come in their order."""
    rows = await conn.fetch(BATCH, [event_id for event_id, _ in messages],
                            [json.dumps(payload) for _, payload in messages])
    return [row["result"] for row in rows]
# <<<


# >>> engine
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine


def engine_for(url):
    """An engine, of asyncpg or another driver, that refuses to commit an aborted transaction."""
    engine = create_async_engine(url)           # postgresql+asyncpg://...

    @event.listens_for(engine.sync_engine, "commit")
    def notice(connection):
        connection.exec_driver_sql("SELECT 1")  # 25P02

    return engine
# <<<


# Checks

def check(name, good):
    print("ok" if good else "NOT OK", name, flush=True)


async def fails(sqlstate, work):
    """Does it fail with that SQLSTATE?"""
    try:
        await work
    except Exception as error:
        return getattr(error, "orig", error).sqlstate == sqlstate
    return False


async def aborts(conn):
    """A transaction whose only error is caught."""
    await conn.execute("INSERT INTO orders VALUES (4, 1)")
    try:
        await conn.execute("SELECT 1/0")
    except asyncpg.DivisionByZeroError:
        pass


async def main():
    conn, other = [await asyncpg.connect() for _ in range(2)]

    async def invoices(event_id):
        return await conn.fetchval("SELECT count(*) FROM invoices WHERE event_id = $1::uuid", event_id)

    event_id = await place_order(conn, 1, 99)
    check("an event commits with its row", await conn.fetchval("SELECT enqueued(1)") == 1)
    rolled_back = conn.transaction()
    await rolled_back.start()
    await place_order(conn, 2, 99)
    await rolled_back.rollback()
    check("an event is rolled back with its row",
          await conn.fetchval("SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)") == 0)

    message = (event_id, {"order": 1, "total": 99})
    check("claimed: the effect is made and the result is stored",
          await handle(conn, *message) == "claimed" and await invoices(event_id) == 1 and
          json.loads(await conn.fetchval("SELECT idempotency.event_result($1::uuid, 'billing')", event_id)) ==
          {"invoice": 1})
    check("redelivered: duplicate, and one effect",
          await handle(conn, *message) == "duplicate" and await invoices(event_id) == 1)
    upper = str(event_id).upper()
    check("an upper-case id is cast to the same event",
          await handle(conn, upper, message[1]) == "duplicate" and await invoices(event_id) == 1 and
          await conn.fetchval("SELECT status FROM idempotency.event_status($1::text, 'billing')", upper) == "unknown")

    busy = uuid.uuid4()
    async with other.transaction():
        await other.execute("SELECT idempotency.claim_event($1::uuid, 'billing')", busy)
        check("busy while another session has the event",
              await handle(conn, busy, {"order": 3, "total": 1}) == "busy" and await invoices(busy) == 0)
        await other.execute("SELECT idempotency.release_event($1::uuid, 'billing')", busy)
    failed = await fails("23505", handle(conn, busy, {"order": 1, "total": 1}))
    check("a handler that failed is tried again",
          failed and await handle(conn, busy, {"order": 3, "total": 1}) == "claimed" and await invoices(busy) == 1)

    messages = [(uuid.uuid4(), {"order": 100 + n, "total": n}) for n in range(50)] * 2
    check("a batch of 100 with repeats is one statement",
          await handle_many(conn, messages) == ["claimed"] * 50 + ["duplicate"] * 50 and
          await conn.fetchval("SELECT count(*) FROM invoices WHERE order_id >= 100") == 50 and
          await handle_many(conn, messages) == ["duplicate"] * 100 and await handle_many(conn, []) == [])

    async with other.transaction():
        await aborts(other)
    silent = await conn.fetchval("SELECT count(*) FROM orders WHERE id = 4") == 0

    async def noticed():
        async with transaction(conn):
            await aborts(conn)
    check("COMMIT of an aborted transaction is noticed", silent and await fails("25P02", noticed()))

    engine = engine_for("postgresql+asyncpg://")
    async with engine.begin() as connection:
        committed = await connection.scalar(text("SELECT 1")) == 1

    async def through_engine():
        async with engine.begin() as connection:
            with suppress(DBAPIError):
                await connection.execute(text("SELECT 1/0"))
    check("SQLAlchemy: COMMIT of an aborted transaction is noticed", committed and await fails("25P02", through_engine()))
    await engine.dispose()

    async def forgotten():
        async with transaction(conn):
            await conn.execute("SELECT idempotency.claim_event('forgotten', 'billing')")
    check("a forgotten completion is ID001", await fails("ID001", forgotten()))
    check("an interval wants a timedelta",
          await fails("22000", conn.execute("SELECT $1::interval", "100 ms")))


asyncio.run(main())
