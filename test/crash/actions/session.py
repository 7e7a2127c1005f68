"""What happens to sessions: cancelled, terminated, timed out, left open."""
import time

import psycopg2

from actions import Skip, action
from actions.process import CLIENTS


def signal_some(ctx, rng, function):
    cluster = rng.choice((ctx.a, ctx.b))
    pids = cluster.pids(f"({CLIENTS} OR application_name = 'idempotency sink')")
    if not pids:
        raise Skip("no session")
    for pid in rng.sample(pids, min(len(pids), rng.randint(1, 3))):
        cluster.rows(f"SELECT {function}(%s)", (pid,))


@action("cancel clients", 5)
def cancel_clients(ctx, rng):
    signal_some(ctx, rng, "pg_cancel_backend")


@action("terminate clients", 4)
def terminate_clients(ctx, rng):
    signal_some(ctx, rng, "pg_terminate_backend")


@action("cancel or terminate a relay's worker", 5)
def signal_worker(ctx, rng):
    function = rng.choice(("pg_cancel_backend", "pg_terminate_backend"))
    pids = sorted({pid for _, pid, _ in ctx.topology.relays().values() if pid})
    ctx.a.rows(f"SELECT {function}(%s)", (rng.choice(pids),))


@action("terminate the launcher", 1)
def terminate_launcher(ctx, rng):
    if not ctx.a.rows("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE backend_type = 'idempotency launcher'"""):
        raise Skip("it is being started")


def setting_for_a_while(cluster, name, value, seconds):
    cluster.rows(f"ALTER SYSTEM SET {name} = '{value}'")
    cluster.rows("SELECT pg_reload_conf()")
    time.sleep(seconds)
    cluster.rows(f"ALTER SYSTEM RESET {name}")
    cluster.rows("SELECT pg_reload_conf()")


def timeout(name):
    """Set a short timeout for all sessions; it must not affect the workers."""
    @action(f"{name} for everybody")
    def set_timeout(ctx, rng):
        setting_for_a_while(rng.choice((ctx.a, ctx.b)), name, f"{rng.randint(1, 20)}ms", rng.uniform(0.1, 0.5))


for _name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
    timeout(_name)


@action("leave a transaction open", 4)
def leave_open(ctx, rng):
    """A transaction with an event that is enqueued before many others and commits long after them."""
    ctx.leave_open(rng)


@action("hold old snapshots", 2)
def hold_snapshot(ctx, rng):
    """A reader of outbox and claims, which keeps segments from being emptied."""
    cluster = rng.choice((ctx.a, ctx.b))
    c = cluster.connect(name="crash reader")
    cur = c.cursor()
    try:
        cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cur.execute("SELECT count(*) FROM idempotency.outbox_events")
        time.sleep(rng.uniform(0.1, 1))
        cur.execute("SELECT count(*) FROM idempotency.processed_events")
        cur.execute("COMMIT")
    except psycopg2.Error as error:
        if isinstance(error, psycopg2.OperationalError):
            return
        raise
    finally:
        c.close()
