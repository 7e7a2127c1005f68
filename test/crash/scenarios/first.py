"""A postmaster that is process 1, as in a container: it reaps what is not its own.

An orphan that dies by a signal makes it restart all its processes.  No sink
program may become one.
"""
import signal
import time

from machine.scenario import scenario
from machine.server import Failure, command_of, descendants, parent_of, send_signal, wait_until
from machine.world import World

KILLS = 24
RESTARTED = "all server processes terminated; reinitializing"


def sinks(server):
    return [pid for pid in descendants(server.process.pid) if command_of(pid).startswith("idempotency-sin")]


@scenario("postmaster is process 1")
def process_one(lab, rng):
    source = lab.server("source", prefix=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    world = World(lab, rng.random(), source, lab.server("target"))
    if source.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'") > 20:
        raise Failure("the server is not in a process namespace of its own")
    source.sink_signals |= {signal.SIGSEGV, signal.SIGABRT}
    world.write()
    for number in range(KILLS):
        pids = wait_until("a sink runs", lambda: sinks(source))
        pid = rng.choice(pids)
        if number % 4 == 3:
            # Stopped, and its worker ended: the worker kills and reaps it.
            send_signal(pid, signal.SIGSTOP)
            source.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                       " WHERE backend_type = 'idempotency relay'")
        else:
            send_signal(pid, rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))
        wait_until(f"sink {pid} is reaped", lambda p=pid: command_of(p) == "")
        time.sleep(rng.random() * 0.1)
    world.wait_progress()
    if RESTARTED in source.log_text():
        raise Failure("a sink's end restarted the server")
    # A worker that is killed restarts the server, once: its orphans change nothing.
    source.signals.add(signal.SIGKILL)
    send_signal(parent_of(wait_until("a sink runs", lambda: sinks(source))[0]), signal.SIGKILL)
    wait_until("the server restarts", lambda: RESTARTED in source.log_text())
    source.wait_ready()
    world.wait_progress()
    restarts = source.log_text().count(RESTARTED)
    if restarts > 2:
        raise Failure(f"one kill of a worker restarted the server {restarts} times")
    world.drain()
    return f"{KILLS} sinks ended, {world.judge()}"
