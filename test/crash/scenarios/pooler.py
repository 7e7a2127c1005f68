"""PgBouncer in transaction mode between the server and its clients, whose backends are killed."""
import signal
import subprocess
import time

import psycopg2

from machine.consumers import SCHEMA, Consumers
from machine.scenario import scenario
from machine.world import World
from server import is_stopped, send_signal, wait_until


class Pooler:
    """A PgBouncer in transaction mode in front of one server."""

    def __init__(self, lab, server):
        self.lab, self.server = lab, server
        self.port = next(lab.ports)
        self.file = lab.work / "pgbouncer.ini"
        self.file.write_text(f"""[databases]
postgres = host={server.host} port={server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
server_login_retry = 0.1
logfile = {lab.work}/pgbouncer.log
""")
        self.file.chmod(0o644)
        self.process = subprocess.Popen([*lab.as_user, "pgbouncer", "-q", str(self.file)],
                                        env=lab.env, stdin=subprocess.DEVNULL, cwd=lab.work)
        wait_until("the pooler answers", self.answers)

    def answers(self):
        try:
            self.connect().close()
            return True
        except psycopg2.Error:
            return False

    def connect(self):
        return psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres",
                                connect_timeout=10)

    def end(self):
        self.process.terminate()
        self.process.wait()


def crash(server, pid):
    """Kill a process of the server, so that the server restarts all its processes.  The process is stopped before:
    a process that is about to end would end by itself, and nothing would restart."""
    at = len(server.log_text())
    server.signals.add(signal.SIGKILL)
    if not send_signal(pid, signal.SIGSTOP) or not is_stopped(pid):
        return
    send_signal(pid, signal.SIGKILL)
    wait_until(lambda: f"server {server.name} starts again\n{server.tail()}",
               lambda: "ready to accept connections" in server.log_text()[at:])
    server.wait_ready()


def break_one(server, rng):
    """End a session of the pooler, by termination or by a crash of the server."""
    pids = [pid for pid, in server.rows("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
                                       " AND pid <> pg_backend_pid()")]
    if not pids:
        return
    if rng.random() < 0.2:
        crash(server, rng.choice(pids))
    else:
        server.rows("SELECT pg_terminate_backend(%s)", (rng.choice(pids),))


@scenario("pooler in transaction mode")
def pooler_in_transaction_mode(lab, rng):
    source, target = lab.server("source"), lab.server("target")
    target.start()
    target.rows(SCHEMA)
    world = World(lab, rng.random(), source, target, file_sink=False)
    before_source, before_target = Pooler(lab, source), Pooler(lab, target)
    try:
        world.write(connect=before_source.connect, durable=(True, True, True))
        consumers = Consumers(before_target.connect, rng.random())
        for _ in range(20):
            time.sleep(rng.random() * 0.2)
            break_one(rng.choice((source, target)), rng)
        world.wait_progress()
        world.drain()
        consumers.finish(target, len(world.committed()))
        return f"20 sessions ended, {world.judge()}"
    finally:
        before_source.end()
        before_target.end()
