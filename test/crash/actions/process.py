"""Signals to processes: kill, stop and go on."""
import os
import signal
import time
from contextlib import closing

from actions import Skip, action
from server import READY, command_of, descendants, is_stopped, stat_of, wait_until

CLIENTS = "application_name LIKE 'crash %'"
AUXILIARY = ("walwriter", "checkpointer", "background writer", "autovacuum launcher",
             "logical replication launcher")


def crash(cluster, pid):
    """SIGKILL to a server process: the server restarts itself.

    The process is stopped before: a process that is about to end would end by itself,
    and the server would not restart.
    """
    offset = cluster.log_size()
    if not cluster.signal(pid, signal.SIGSTOP) or not is_stopped(pid):
        raise Skip("the process is gone")
    cluster.signal(pid, signal.SIGKILL)
    cluster.wait_log(READY, offset)


def pick(rng, pids):
    if not pids:
        raise Skip("no such process")
    return rng.choice(pids)


@action("kill a producer's backend", 4, "crash")
def kill_producer(ctx, rng):
    crash(ctx.a, pick(rng, ctx.a.pids(CLIENTS)))


@action("kill a consumer's backend", 3, "crash")
def kill_consumer(ctx, rng):
    crash(ctx.b, pick(rng, ctx.b.pids(CLIENTS)))


@action("kill a backend that a sink uses", 3, "crash")
def kill_target(ctx, rng):
    crash(ctx.b, pick(rng, ctx.b.pids("application_name = 'idempotency sink'")))


@action("kill a relay's worker", 8, "crash")
def kill_worker(ctx, rng):
    crash(ctx.a, pick(rng, sorted({pid for _, pid, _ in ctx.topology.relays().values() if pid})))


@action("kill the launcher", 1, "crash")
def kill_launcher(ctx, rng):
    cluster = rng.choice((ctx.a, ctx.b))
    crash(cluster, pick(rng, cluster.pids("backend_type = 'idempotency launcher'")))


@action("kill a packer", 6, "crash")
def kill_packer(ctx, rng):
    """Claims keep a packer at work on one of the servers."""
    cluster = rng.choice((ctx.a, ctx.b))
    crash(cluster, pick(rng, cluster.pids("backend_type = 'idempotency packer'")))


# Each row has some 1.7 kB.
FILL = """SELECT count(idempotency.extend_lease('filler', token, 'filler', '1 ms', 'p' || i, state))
    FROM generate_series(1, 300) i, (SELECT token FROM idempotency.lease_event('filler', 'filler', duration => '1 ms')) l,
        (SELECT jsonb_build_object('padding', repeat(md5('x'), 50))) s (state)"""


@action("kill the worker of the logs", 2, "crash")
def kill_log_worker(ctx, rng):
    """It lives for moments, when a table of a log has grown: fill the log of leases until it is there."""
    with closing(ctx.b.connect()) as connection, connection.cursor() as cursor:
        for _ in range(50):
            cursor.execute(FILL)
            pids = ctx.b.pids("backend_type = 'idempotency logs'")
            if pids:
                break
    time.sleep(rng.uniform(0, 0.03))
    crash(ctx.b, pick(rng, pids))


@action("kill an auxiliary process", 2, "auxiliary")
def kill_auxiliary(ctx, rng):
    cluster = rng.choice((ctx.a, ctx.b))
    crash(cluster, pick(rng, cluster.pids(f"backend_type = '{rng.choice(AUXILIARY)}'")))


@action("kill sink programs", 20, "sink")
def kill_sinks(ctx, rng):
    """Kill one or all sink programs: the relay starts another program."""
    relays = {r: sink for r, (_, _, sink) in ctx.topology.relays().items() if sink}
    names = sorted(relays)
    for relay in names if rng.random() < 0.5 else [pick(rng, names)]:
        ctx.kill_sink(relays[relay])
    ctx.wait_sinks_replaced(relays)


@action("kill -9 of a postmaster", 8, "postmaster")
def kill_postmaster(ctx, rng):
    cluster = rng.choice((ctx.a, ctx.a, ctx.b))
    sinks = [p for p in descendants(cluster.process.pid) if is_sink(p)]
    cluster.kill_postmaster()
    cluster.start()
    wait_until("no sink program outlives its server", lambda: not any(map(is_sink, sinks)), 30)


def is_sink(pid):
    return command_of(pid).startswith("idempotency-sin") and stat_of(pid)[1] != "Z"


@action("stop a process for a while", 6)
def stop_process(ctx, rng):
    """Stop a backend, a worker, an auxiliary process or a sink program for a moment."""
    cluster = rng.choice((ctx.a, ctx.b))
    pid = pick(rng, sorted(descendants(cluster.process.pid)))
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(rng.uniform(0.02, 0.6))
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        raise Skip("the process is gone") from None


@action("fast restart", 2)
def fast_restart(ctx, rng):
    ctx.limit("fast shutdown", 10, rng.choice((ctx.a, ctx.b)).restart())


@action("immediate restart", 2)
def immediate_restart(ctx, rng):
    rng.choice((ctx.a, ctx.b)).restart("immediate")
