"""A postmaster that is process 1, as in a container: it reaps processes that it did not start.

An orphan that dies by a signal makes the postmaster restart all its processes.  So no sink
program may become an orphan, nor any process that a sink program or a publish witness starts.
"""
import ctypes
import os
import pathlib
import shutil
import signal
import time

from machine.scenario import scenario
from machine.world import World
from server import Finding, command_of, descendants, parent_of, send_signal, wait_until

KILLS = 24
QUESTIONS = 60
RESTARTED = "all server processes terminated; reinitializing"


def sinks(server):
    return [pid for pid in descendants(server.process.pid) if command_of(pid).startswith("idempotency-sin")]


@scenario("postmaster is process 1")
def process_one(lab, rng):
    source = lab.server("source", prefix=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    world = World(lab, rng.random(), source, lab.server("target"))
    if source.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'") > 20:
        raise Finding("the server is not in a process namespace of its own")
    source.sink_signals |= {signal.SIGSEGV, signal.SIGABRT}
    world.write()
    for number in range(KILLS):
        pids = wait_until("a sink runs", lambda: sinks(source))
        pid = rng.choice(pids)
        if number % 4 == 3:
            # The program is stopped and its worker is ended: the worker kills and reaps the program.
            send_signal(pid, signal.SIGSTOP)
            source.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                       " WHERE backend_type = 'idempotency relay'")
        else:
            send_signal(pid, rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))
        wait_until(f"sink {pid} is reaped", lambda p=pid: command_of(p) == "")
        time.sleep(rng.random() * 0.1)
    world.wait_progress()
    if RESTARTED in source.log_text():
        raise Finding("a sink's end restarted the server")
    # A worker that is killed restarts the server once; the worker's orphans add no restart.
    source.signals.add(signal.SIGKILL)
    send_signal(parent_of(wait_until("a sink runs", lambda: sinks(source))[0]), signal.SIGKILL)
    wait_until("the server restarts", lambda: RESTARTED in source.log_text())
    source.wait_ready()
    world.wait_progress()
    restarts = source.log_text().count(RESTARTED)
    if restarts > 2:
        raise Finding(f"one kill of a worker restarted the server {restarts} times")
    world.drain()
    return f"{KILLS} sinks ended, {world.judge()}"


# Each start of this sink program leaves two orphans, one of which would end badly, and then ends.
LITTER = """#!/bin/sh
echo >>"FOLDER/started"
sh -c 'trap "" TERM QUIT; sleep 1000' &
case $(($(wc -l <"FOLDER/started") % 4)) in
    0) (sh -c 'sleep 0.05; kill -SEGV $$' & exit 0) ;;
    1) (sh -c 'sleep 0.05; exit 3' & exit 0); exit 4 ;;
    2) setsid sh -c 'sleep 0.05; kill -ABRT $$' & kill -SEGV $$ ;;
    3) sh -c 'sleep 0.05; kill -KILL $$' & kill -KILL $$ ;;
esac
exit 0
"""
STARTS = 40


def add_program(lab, server, name, text):
    """Add a sink program beside the server's programs."""
    folder = lab.mkdir("programs")
    for program in pathlib.Path(server.value("SHOW idempotency.sink_directory")).iterdir():
        shutil.copy(program, folder)
    path = folder / f"idempotency-sink-{name}"
    path.write_text(text)
    path.chmod(0o755)
    server.rows(f"ALTER SYSTEM SET idempotency.sink_directory = '{folder}'")
    server.rows("SELECT pg_reload_conf()")


def hold(pid):
    """Trace a process: only the test can reap it from here on, as if it were in state D for its parent."""
    if ctypes.CDLL(None).ptrace(ctypes.c_long(0x4206), ctypes.c_long(pid), ctypes.c_long(0), ctypes.c_long(0)) != 0:
        raise Finding(f"process {pid} cannot be held")


def worker_left_behind(source):
    """A worker gives up a program that cannot be reaped, and reaps it later all the same."""
    sink = wait_until("a sink runs", lambda: sinks(source))[0]
    worker = parent_of(sink)
    hold(sink)
    source.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency relay'")
    wait_until("another worker", lambda: [pid for pid in sinks(source) if parent_of(pid) != worker])
    if parent_of(sink) != worker:
        raise Finding("the worker has left its program to process 1")
    if os.waitpid(sink, 0)[0] != sink:
        raise Finding("the program was not ours")
    wait_until("the worker ends", lambda: command_of(worker) == "")


@scenario("what sinks leave below process 1")
def litter_below(lab, rng):
    source = lab.server("source", prefix=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    source.sink_signals |= {signal.SIGSEGV}
    world = World(lab, rng.random(), source, lab.server("target"))
    folder = lab.mkdir("litter")
    add_program(lab, source, "litter", LITTER.replace("FOLDER", str(folder)))
    source.rows("CREATE SERVER litter FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'litter')")
    source.rows("SELECT idempotency.relay_create('litter', 'litter', min_backoff => '20 ms', max_backoff => '20 ms')")
    world.write()
    world.wait_progress()
    wait_until("it was started often",
               lambda: (folder / "started").exists() and (folder / "started").stat().st_size >= STARTS)
    source.rows("SELECT idempotency.relay_drop('litter')")
    wait_until("nothing is left of it",
               lambda: not [pid for pid in descendants(source.process.pid) if command_of(pid) == "sleep"])
    worker_left_behind(source)
    world.wait_progress()
    if RESTARTED in source.log_text():
        raise Finding("what a sink left behind restarted the server")
    world.drain()
    return f"{STARTS} starts, {world.judge()}"


# Each call of this witness leaves an orphan, dies, or is killed with its children.
WITNESS = """#!/bin/sh
echo >>"$1/asked"
case $(($(wc -l <"$1/asked") % 8)) in
    0) sleep 1000 & exit 0 ;;
    1) kill -SEGV $$ ;;
    2) sh -c 'sleep 0.05; kill -ABRT $$' & exit 0 ;;
    3) sh -c 'sleep 1000; exit 1' ;;
    4) (exec >&- 2>&-; exit 3) & exit 0 ;;
esac
exit 0
"""


@scenario("a witness below process 1")
def witness_below(lab, rng):
    folder = lab.mkdir("witness")
    script = folder / "witness"
    script.write_text(WITNESS)
    script.chmod(0o755)
    source = lab.server("source", conf=f"""
idempotency.publish_witness = '{script} {folder}'
idempotency.publish_witness_interval = 100ms
idempotency.publish_witness_timeout = 1s
""", prefix=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    source.sink_signals |= {signal.SIGSEGV}
    world = World(lab, rng.random(), source, lab.server("target"))
    world.write()
    world.wait_progress()
    wait_until("it was asked often", lambda: (folder / "asked").stat().st_size >= QUESTIONS)
    world.wait_progress()
    if RESTARTED in source.log_text():
        raise Finding("what a witness left behind restarted the server")
    # A call that runs at this moment may have a child.
    left = [pid for pid in descendants(source.process.pid) if command_of(pid) == "sleep"]
    if len(left) > 1:
        raise Finding(f"{len(left)} processes of witnesses are left")
    world.drain()
    return f"{QUESTIONS} questions, {world.judge()}"
