"""The nightly job of doc/howto/leases.md, which shows the lines between the marks.

    nightly.py NIGHT        for example 2026-11-25

drive.py runs it.  LEASE is in seconds.
"""

# >>> nightly
import os
import socket
import sys
import threading
import time

import psycopg

HOLDER = f"{socket.gethostname()} {os.getpid()}"
LEASE = float(os.environ.get("LEASE", "60"))    # so long is nothing done after the holder froze
BATCH = int(os.environ.get("BATCH", "1000"))


def run_job(night):
    run = f"invoices of {night}"                # the event: one run of the job
    with psycopg.connect(autocommit=True, application_name="nightly") as conn:
        token, point = take(conn, run)
        if token is None:
            return
        stop = threading.Event()
        beat = threading.Thread(target=heartbeat, args=[run, token, stop])
        beat.start()
        try:
            write_invoices(conn, run, night, token, int(point or 0))
        finally:
            stop.set()
            beat.join()
        conn.execute("SELECT idempotency.complete_event(%s::text, 'nightly', token => %s)", [run, token])
        print("done", flush=True)


def take(conn, run):
    """Token and recovery point; no token if the job has been done.  While another host has it, stand by."""
    while True:
        result, token, point, pause = conn.execute(
            """SELECT result, token, recovery_point, extract(epoch FROM retry_after)::float
               FROM idempotency.lease_event(%s::text, 'nightly', %s * interval '1 s', holder => %s)""",
            [run, LEASE, HOLDER]).fetchone()
        if result != "busy":
            print(result, flush=True)
            return token, point
        time.sleep(min(max(pause or 0, 0.1), LEASE))


def heartbeat(run, token, stop):
    """Keep the lease, on a connection of its own: the other one is in the middle of a transaction."""
    try:
        with psycopg.connect(autocommit=True, application_name="nightly heartbeat") as conn:
            while not stop.wait(LEASE / 3):
                conn.execute("SELECT idempotency.extend_lease(%s::text, %s, 'nightly', %s * interval '1 s')",
                             [run, token, LEASE])
    except psycopg.Error as error:              # the job's next transaction finds out by itself
        print("no heartbeat any more:", error, file=sys.stderr)


def write_invoices(conn, run, night, token, last):
    """From the customer behind the recovery point on, a transaction for each batch."""
    while last is not None:
        with conn.transaction():
            conn.execute("SELECT idempotency.assert_lease(%s::text, %s, 'nightly')", [run, token])
            last, = conn.execute(
                """WITH batch AS (
                       INSERT INTO invoices SELECT %s, customer, sum(amount) FROM usage
                       WHERE night = %s AND customer > %s GROUP BY customer ORDER BY customer LIMIT %s
                       RETURNING customer)
                   SELECT max(customer) FROM batch""", [run, night, last, BATCH]).fetchone()
            if last is not None:
                conn.execute("SELECT idempotency.extend_lease(%s::text, %s, 'nightly', %s * interval '1 s', %s)",
                             [run, token, LEASE, str(last)])


if __name__ == "__main__":
    run_job(sys.argv[1])
# <<<
