"""The two servers of a lane: one with the relays, one they deliver to."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import psycopg2

BINDIR = pathlib.Path(os.environ["BINDIR"])
WORK = pathlib.Path(os.environ["WORK"])

SETTINGS = """
shared_preload_libraries = 'idempotency'
listen_addresses = ''
unix_socket_directories = '{sockets}'
port = 5432
fsync = off
shared_buffers = 16MB
max_connections = 40
max_worker_processes = 16
max_prepared_transactions = 10
autovacuum = off
log_line_prefix = '%m [%p] %b '
log_min_messages = info
timezone = 'UTC'
idempotency.sink_timeout = '3s'
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 0
idempotency.outbox_segment_size = '8kB'
"""

# A process of the server has "(PID n)" before it, a sink program has not.
DIED = re.compile(r"(?:PANIC|TRAP):|(\(PID \d+\) )?was terminated by signal (\d+)")


def make_template():
    """One initdb; every server begins as a copy of it."""
    directory = WORK / "lanes" / "template"
    subprocess.run([BINDIR / "initdb", "-D", directory, "-U", "postgres", "-A", "trust",
                    "-E", "UTF8", "--locale=C", "-N"], check=True, stdout=subprocess.DEVNULL)
    return directory


class Timeout(Exception):
    pass


def wait_for(what, condition, seconds=30):
    """Until the condition holds; its value."""
    until = time.monotonic() + seconds
    pause = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise Timeout(f"waited {seconds} s for {what}")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def is_gone(pid):
    """Reaped, too."""
    return not pathlib.Path(f"/proc/{pid}").exists()


class Server:
    def __init__(self, directory, template):
        self.directory = directory
        self.data = directory / "data"
        self.sockets = directory / "s"
        directory.mkdir(parents=True)
        self.sockets.mkdir()
        shutil.copytree(template, self.data)
        self.armed = self.data / "idempotency_fault" / "armed"
        self.hits = self.data / "idempotency_fault" / "hit"
        self.armed.mkdir(parents=True)
        self.hits.mkdir()
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write((WORK / "extension.conf").read_text())
            conf.write(SETTINGS.format(sockets=self.sockets))
        self.log = directory / "log"
        self.judged = 0             # so much of the log
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([BINDIR / "postgres", "-D", self.data],
                                            stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.wait_up()

    def stop(self):
        """What is wrong with how it ended, as lines."""
        if not self.process:
            return []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait()
                return [f"{self.directory.name}: a fast shutdown took more than 60 s"]
        if self.process.returncode != 0:
            return [f"{self.directory.name}: the server ended with status {self.process.returncode}"]
        return []

    def deaths(self, server=(), sink=()):
        """Lines of the log since the last call about what died of itself.

        server, sink: the signals that the step sent, to processes of the
        server and to sink programs.
        """
        with open(self.log, "rb") as f:
            f.seek(self.judged)
            data = f.read()
        end = data.rfind(b"\n") + 1
        self.judged += end
        found = []
        for line in data[:end].decode("utf-8", "replace").splitlines():
            m = DIED.search(line)
            if m and (not m[2] or int(m[2]) not in (server if m[1] else sink)):
                found.append(f"{self.directory.name}: {line}")
        return found

    def connect(self, autocommit=True, **settings):
        conn = psycopg2.connect(host=str(self.sockets), port=5432, user="postgres",
                                dbname="postgres", **settings)
        conn.autocommit = autocommit
        return conn

    def try_connect(self):
        try:
            return self.connect()
        except psycopg2.OperationalError:
            if self.process.poll() is not None:
                raise
            return None

    def wait_up(self):
        wait_for("the server to answer", self.try_connect, 60).close()

    def query(self, sql, *args):
        """Rows of one statement, whatever crash is under way."""
        for _ in range(20):
            conn = wait_for("the server to answer", self.try_connect, 60)
            try:
                with conn.cursor() as cur:
                    cur.execute(sql, args or None)
                    return cur.fetchall() if cur.description else []
            except psycopg2.OperationalError as e:
                last = e
            finally:
                conn.close()
        raise last

    def arm(self, point, action, skip=0):
        """Moved into place as a whole, so that nobody reads half of it."""
        name = self.directory / "arming"
        name.write_text(f"{action} {skip}\n")
        name.rename(self.armed / point)

    def disarm(self, point):
        """True if it had been reached."""
        (self.armed / point).unlink(missing_ok=True)
        return self.release(point)

    def is_hit(self, point):
        return (self.hits / point).exists()

    def hit_by(self, point):
        """The process that reached it; None if nobody did, or it was released."""
        try:
            return int((self.hits / point).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def release(self, point):
        """Let a stalled process go on."""
        try:
            (self.hits / point).unlink()
            return True
        except FileNotFoundError:
            return False
