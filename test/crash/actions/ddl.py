"""Commands in the way of a relay at work."""
import time

import psycopg2
import psycopg2.errors

from actions import Skip, action
from server import Finding, wait_until
from topology import TYPES


def main_relay(ctx, rng):
    return rng.choice(sorted(ctx.topology.relays()))


@action("pause and resume a relay", 4)
def pause(ctx, rng):
    relay = main_relay(ctx, rng)
    ctx.a.rows("SELECT idempotency.relay_pause(%s)", (relay,))
    time.sleep(rng.uniform(0, 0.3))
    ctx.a.rows("SELECT idempotency.relay_resume(%s)", (relay,))


@action("alter a relay", 3)
def alter(ctx, rng):
    relay = main_relay(ctx, rng)
    ctx.a.rows("SELECT idempotency.relay_alter(%s, batch_events => %s)",
               (relay, rng.choice((1, 2, 3, 8)) if TYPES[relay] == "q" else rng.randint(20, 100)))


@action("create and drop a relay", 3)
def create_and_drop(ctx, rng):
    """A second relay to a program that answers slowly, dropped with frames in flight."""
    name = f"side{rng.randrange(1 << 30)}"
    ctx.a.rows(f"""CREATE SERVER {name} FOREIGN DATA WRAPPER idempotency_program
        OPTIONS (program 'pytest', file '{ctx.topology.work}/{name}.side', delay_ms '50')""")
    ctx.a.rows("SELECT idempotency.relay_create(%s, %s, start_at => %s)",
               (name, name, rng.choice(("earliest", "latest"))))
    time.sleep(rng.uniform(0, 0.5))
    if rng.random() < 0.5:
        ctx.a.rows("SELECT idempotency.relay_drop(%s)", (name,))
        ctx.a.rows(f"DROP SERVER {name}")
    else:
        ctx.a.rows(f"DROP SERVER {name} CASCADE")


@action("drop a database with a hung sink", 2)
def drop_database(ctx, rng):
    name = f"side{rng.randrange(1 << 30)}"
    file = ctx.topology.work / f"{name}.side"
    ctx.a.rows(f"CREATE DATABASE {name}")
    ctx.a.rows(f"""SET client_min_messages = warning;
        CREATE EXTENSION idempotency CASCADE;
        CREATE SERVER hung FOREIGN DATA WRAPPER idempotency_program
            OPTIONS (program 'pytest', file '{file}', hang_type 'hang');
        SELECT idempotency.relay_create('hung', 'hung');
        SELECT idempotency.outbox_enqueue('t', 'k', 'hang', '1')""", dbname=name)
    if rng.random() < 0.7:
        wait_until("the side relay's program runs", lambda: file.exists() and b"hello" in file.read_bytes())
    began = time.monotonic()
    if rng.random() < 0.3:
        ctx.a.rows("DROP EXTENSION idempotency CASCADE", dbname=name)
    took = time.monotonic() - began
    # Our own sessions take a moment to end; this wait is not for the relay's processes.
    wait_until("our sessions are gone", lambda: not ctx.a.rows(
        "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'", (name,)))
    began = time.monotonic()
    ctx.a.rows(f"DROP DATABASE {name}")
    ctx.limit("DROP DATABASE", 10, took + time.monotonic() - began)


@action("update the extension", 2)
def update_extension(ctx, rng):
    """Update to the other of two versions: all tables are locked, all functions replaced.  Leases and requests take
    locks one after the other, so most updates beside them are deadlocks; hence they rest when one has failed."""
    cluster = rng.choice((ctx.a, ctx.b))
    try:
        update_to_other(ctx, cluster)
    except Skip:
        with ctx.attempts.at_rest():
            update_to_other(ctx, cluster)


def update_to_other(ctx, cluster):
    installed = "SELECT extversion FROM pg_extension WHERE extname = 'idempotency'"
    version = cluster.rows(installed)[0][0]
    other = version[:-len(".test")] if version.endswith(".test") else version + ".test"
    ctx.end_held(everything=True)       # it would wait for them
    try:
        cluster.rows(f"SET lock_timeout = '2s'; ALTER EXTENSION idempotency UPDATE TO '{other}'")
    except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected) as e:
        raise Skip(str(e)) from e
    if cluster.rows(installed) != [(other,)]:
        raise Finding(f"updated to {other}, the version is {cluster.rows(installed)}")


@action("vacuum", 1)
def vacuum(ctx, rng):
    rng.choice((ctx.a, ctx.b)).rows("VACUUM")


@action("checkpoint", 2)
def checkpoint(ctx, rng):
    rng.choice((ctx.a, ctx.b)).rows("CHECKPOINT")
