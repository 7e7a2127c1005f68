"""A throw-away server: made, started, stopped, killed and started again.

It runs as the user who runs this, listens on loopback and on a socket in the
work directory, and belongs to this process: whoever kills the work directory's
processes (lib.sh) ends it too.
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
from datetime import datetime, timezone

import psycopg2

READY = "database system is ready to accept connections"
PREPARED = 100


class Finding(Exception):
    """Something the system under test must not do."""


def wait_until(what, condition, seconds=120, pause=0.02):
    """Until the condition holds; its value.  Says what never came."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Finding(f"never reached within {seconds} s: {what}")
        time.sleep(pause)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    def __init__(self, name, work, bindir, extension_conf, conf=""):
        self.name = name
        self.work = pathlib.Path(work)
        self.bindir = pathlib.Path(bindir)
        self.data = self.work / f"data-{name}"
        self.log = self.work / f"{name}.log"
        self.sock = self.work / "s"
        self.sock.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.process = None
        self.extension_conf = pathlib.Path(extension_conf).read_text()
        self.conf = conf

    def make(self):
        subprocess.run([self.bindir / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust",
                        "-E", "UTF8", "--locale=C", "-N"], check=True, stdout=subprocess.DEVNULL)
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as f:
            f.write(f"""{self.extension_conf}
shared_preload_libraries = 'idempotency'
listen_addresses = '127.0.0.1'
port = {self.port}
unix_socket_directories = '{self.sock}'
max_connections = 60
max_worker_processes = 32
max_prepared_transactions = {PREPARED}
fsync = off
log_line_prefix = '%m [%p] %q%a '
log_min_messages = info
timezone = 'UTC'
log_timezone = 'UTC'
{self.conf}
""")

    # Starting and stopping.  Each returns when clients can connect, or nobody is left.

    def start(self):
        """Start it, again as long as processes of a killed postmaster hold its memory."""
        def up():
            if self.process is None or self.process.poll() is not None:
                with open(self.log, "ab") as out:
                    self.process = subprocess.Popen(
                        [self.bindir / "postgres", "-D", self.data], stdout=out, stderr=out,
                        stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.work)
            return self.accepts()
        wait_until(f"server {self.name} starts", up, pause=0.05)

    def stop(self, mode="fast", seconds=60):
        """fast or immediate; how long it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Finding(f"server {self.name}: {mode} shutdown takes more than {seconds} s") from None
        return time.monotonic() - began

    def kill9(self):
        self.process.kill()
        self.process.wait()

    def restart(self, mode="fast"):
        took = self.stop(mode)
        self.start()
        return took

    def remove(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill9()
        shutil.rmtree(self.data, ignore_errors=True)

    # Sessions.

    def connect(self, dbname="postgres", name="crash control", **more):
        """Ours are above the timeouts that faults set for everybody."""
        if name == "crash control":
            more["options"] = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
        c = psycopg2.connect(host=str(self.sock), port=self.port, user="postgres", dbname=dbname,
                             application_name=name, connect_timeout=20, **more)
        c.autocommit = True
        return c

    def dsn(self, name):
        """For a program of ours."""
        return f"host={self.sock} port={self.port} user=postgres dbname=postgres application_name='{name}'"

    def accepts(self):
        try:
            self.connect().close()
            return True
        except psycopg2.Error:
            return False

    def rows(self, sql, args=None, dbname="postgres"):
        """What a statement returns; raises what it raises."""
        c = self.connect(dbname)
        try:
            with c.cursor() as cur:
                cur.execute(sql, args)
                return cur.fetchall() if cur.description else []
        finally:
            c.close()

    def try_rows(self, sql, args=None, dbname="postgres"):
        """The same, as often as needed while the server goes down and comes back."""
        def attempt():
            try:
                return [self.rows(sql, args, dbname)]
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                return None
        return wait_until(f"server {self.name} answers: {sql}", attempt)[0]

    # Processes.

    def pids(self, where):
        return [r[0] for r in self.try_rows(f"SELECT pid FROM pg_stat_activity WHERE {where} ORDER BY pid")]

    def owns(self, pid):
        """A server process works in the data directory; programs of its are its grandchildren."""
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(self.data):
                return True
        except OSError:
            pass
        return False

    def signal(self, pid, sig):
        """False if the process is gone, or is not this server's any more."""
        if not pid or not self.owns(pid):
            return False
        try:
            os.kill(pid, sig)
            return True
        except ProcessLookupError:
            return False

    @staticmethod
    def is_stopped(pid):
        """Wait until SIGSTOP has taken effect; False if the process ended before."""
        while True:
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return False
            if state in "TZX":
                return state == "T"
            time.sleep(0.001)

    # The log.

    def log_size(self):
        return self.log.stat().st_size if self.log.exists() else 0

    def log_from(self, offset):
        with open(self.log, "rb") as f:
            f.seek(offset)
            return f.read().decode("utf-8", "replace")

    def wait_log(self, text, offset):
        wait_until(f"server {self.name} logs: {text}", lambda: text in self.log_from(offset))

    def own_crashes(self):
        """Lines about processes that failed by themselves: nobody but us sends SIGKILL, and no other signal kills
        a process of the server.  What terminates a worker reaches its program, which is of its group and may
        be seen to end before the worker does."""
        bad = re.compile(r"\(PID \d+\) was terminated by signal (?!9\b)"
                         r"|program was terminated by signal (?!(?:9|15)\b)|PANIC:|TRAP:")
        return [line for line in self.log_from(0).splitlines() if bad.search(line)]

    def refused_prepared(self):
        """How often PREPARE TRANSACTION found no slot."""
        return self.log_from(0).count("maximum number of prepared transactions reached")

    def ready_times(self):
        """When it began to accept connections, as seconds since the epoch."""
        found = []
        for line in self.log_from(0).splitlines():
            if READY in line:
                m = re.match(r"(\d+-\d+-\d+ \d+:\d+:\d+\.\d+) UTC", line)
                at = datetime.strptime(m.group(1), "%Y-%m-%d %H:%M:%S.%f")
                found.append(at.replace(tzinfo=timezone.utc).timestamp())
        return found
