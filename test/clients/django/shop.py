"""A producer and a consumer in Django, and the checks that ../run.sh counts.

The lines between the marks are those of doc/howto/python.md.
"""

import os
import uuid

import django
from django.conf import settings

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "USER": os.environ["PGUSER"],
    "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"]}})
django.setup()

# >>> transaction
import json
from contextlib import contextmanager

from django.db import DatabaseError, connection, transaction


def value(query, *args):
    """The first column of a statement's first row."""
    with connection.cursor() as cursor:
        cursor.execute(query, args)
        return cursor.fetchone()[0]


@contextmanager
def atomic():
    """As transaction.atomic(), but an error that was caught inside is an error of the end."""
    with transaction.atomic():
        yield
        value("SELECT 1")                       # 25P02 if COMMIT would be a ROLLBACK
# <<<


# >>> producer
def place_order(order, total):
    """The order and its event commit together; an Order.objects.create() does as well."""
    with atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s, %s)", [order, total])
        return value("SELECT idempotency.outbox_enqueue('order', %s::text, 'OrderCreated', %s::jsonb)",
                     order, json.dumps({"order": order, "total": total}))
# <<<


# >>> consumer
def handle(event_id, payload):
    """Make one message's effect once. After it has returned, acknowledge all but busy."""
    with atomic():
        verdict = value("SELECT idempotency.claim_event(%s::uuid, consumer => 'billing', wait => %s::interval)",
                        event_id, "100 ms")
        if verdict == "claimed":
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO invoices VALUES (%s, %s, %s::uuid)",
                               [payload["order"], payload["total"], event_id])
            value("SELECT idempotency.complete_event(%s::uuid, consumer => 'billing', result => %s::jsonb)",
                  event_id, json.dumps({"invoice": payload["order"]}))
    return verdict
# <<<


# Checks

def check(name, good):
    print("ok" if good else "NOT OK", name, flush=True)


def fails(sqlstate, work, *args):
    """Does it fail with that SQLSTATE?"""
    try:
        work(*args)
    except DatabaseError as error:
        return error.__cause__.sqlstate == sqlstate
    return False


def aborts():
    """A transaction whose only error is caught."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (4, 1)")
        try:
            cursor.execute("SELECT 1/0")
        except DatabaseError:
            pass


def main():
    def invoices(event_id):
        return value("SELECT count(*) FROM invoices WHERE event_id = %s::uuid", event_id)

    event_id = place_order(1, 99)
    check("an event commits with its row", value("SELECT enqueued(1)") == 1)
    with transaction.atomic():
        place_order(2, 99)
        transaction.set_rollback(True)
    check("an event is rolled back with its row",
          value("SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)") == 0)

    message = (event_id, {"order": 1, "total": 99})
    check("claimed: the effect is made and the result is stored",
          handle(*message) == "claimed" and invoices(event_id) == 1)
    check("redelivered: duplicate, and one effect", handle(*message) == "duplicate" and invoices(event_id) == 1)
    upper = str(event_id).upper()
    check("an upper-case id is cast to the same event", handle(upper, message[1]) == "duplicate" and invoices(event_id) == 1)
    again = uuid.uuid4()
    failed = fails("23505", handle, again, {"order": 1, "total": 1})
    check("a handler that failed is tried again",
          failed and handle(again, {"order": 3, "total": 1}) == "claimed" and invoices(again) == 1)

    with transaction.atomic():
        aborts()
    silent = value("SELECT count(*) FROM orders WHERE id = 4") == 0

    def noticed():
        with atomic():
            aborts()
    check("COMMIT of an aborted transaction is noticed", silent and fails("25P02", noticed))

    def autocommit():
        value("SELECT idempotency.claim_event('alone', 'billing')")
    check("a claim outside of atomic() is ID001", fails("ID001", autocommit))


main()
