"""PostgreSQL servers of the tests in Python: made, started, stopped, killed and started again.

A server is a child of this process, not of pg_ctl: it may be behind unshare or
ip netns exec, and it is killed by its process id.  Whoever kills the work
directory's processes (setup/lib.sh) ends it too.
"""
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import time

try:
    import psycopg2
except ImportError:  # the tests of sink programs get along with psql()
    psycopg2 = None

PATIENCE = float(os.environ.get("CRASH_PATIENCE", "120"))
READY = "database system is ready to accept connections"
HELD = re.compile("pre-existing shared memory block|could not bind|could not create any")
# A process of the server has "(PID n)" before it, a sink program has not.
DIED = re.compile(r"(?:TRAP|(PANIC)):|(\(PID \d+\) )?was terminated by signal (\d+)")

SETTINGS = """
shared_preload_libraries = 'idempotency'
listen_addresses = '127.0.0.1'
unix_socket_directories = '{sock}'
max_connections = 60
max_worker_processes = 32
fsync = off
log_line_prefix = '%m [%p] %q%a '
log_min_messages = info
timezone = 'UTC'
log_timezone = 'UTC'
"""


class Finding(Exception):
    """Something the system under test must not do."""


def wait_until(what, condition, seconds=PATIENCE, pause=0.02):
    """Until the condition holds; its value.  what, or what it returns, says what never came."""
    end = time.monotonic() + seconds
    nap = min(pause, 0.001)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Finding(f"not within {seconds:.0f} s: {what() if callable(what) else what}")
        time.sleep(nap)
        nap = min(2 * nap, pause)


def run(*args, **kwargs):
    """A command that has to succeed; its output."""
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **kwargs)
    if done.returncode != 0:
        raise Finding(f"{' '.join(str(a) for a in args)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def free_port():
    """A port of loopback on which nobody listens, below those that the kernel gives to connections.

    Otherwise a server that is killed and started again may find that somebody's connection has its port.
    """
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", random.SystemRandom().randrange(10000, lowest) if lowest > 12000 else 0))
                return s.getsockname()[1]
            except OSError:
                continue


# Processes.

def stat_of(pid):
    """Name, state and parent; of one that is gone an empty name, "X" and None."""
    try:
        name, rest = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)
    except OSError:
        return "", "X", None
    return name.partition("(")[2], rest.split()[0], int(rest.split()[1])


def parent_of(pid):
    return stat_of(pid)[2]


def command_of(pid):
    return stat_of(pid)[0]


def descendants(pid):
    """The processes below one, nearest first."""
    children = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        children.setdefault(parent_of(process.name), []).append(int(process.name))
    found, front = [], [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        found += front
    return found


def send_signal(pid, number):
    """False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_stopped(pid):
    """Wait until SIGSTOP has taken effect; False if the process ended before."""
    while True:
        state = stat_of(pid)[1]
        if state in "TZX":
            return state == "T"
        time.sleep(0.001)


def is_gone(pid):
    """Reaped, too."""
    return not pathlib.Path(f"/proc/{pid}").exists()


def deaths(text, server=(), sink=(signal.SIGKILL, signal.SIGTERM), panic=None):
    """Lines of a log about processes that died of themselves.

    server, sink: the signals that the test sends to processes of the server and
    to sink programs; what terminates a worker reaches its programs, which are of
    its group, and workers kill programs.  panic: what a PANIC may say, which
    ends in an abort.
    """
    found = []
    for line in text.splitlines():
        m = DIED.search(line)
        if not m:
            continue
        number = int(m[3] or 0)
        meant = (panic and panic in line) if m[1] else \
            number in server or (panic and number == signal.SIGABRT) if m[2] else number and number in sink
        if not meant:
            found.append(line)
    return found


class Server:
    """One data directory and, while it runs, its postmaster.

    host, port: where it listens, a socket in the work directory by default.
    as_user, prefix: commands that run others as somebody, or somewhere; env: all
    the variables that it gets, those of this process by default.
    """

    def __init__(self, name, work, bindir, data=None, host=None, port=None, as_user=(), prefix=(), env=None):
        self.name = name
        self.work = pathlib.Path(work)
        self.bindir = pathlib.Path(bindir)
        self.data = pathlib.Path(data or self.work / f"data-{name}")
        self.log = self.work / f"{name}.log"
        self.sock = self.work / "sock"
        self.host = str(host or self.sock)
        self.port = port or free_port()
        self.as_user, self.prefix = list(as_user), list(prefix)
        self.env = env
        self.process = None
        self.began = 0              # so much log was there when it was started
        self.judged = 0             # so much log has deaths() seen
        # What the test does to it: deaths().
        self.signals = set()
        self.sink_signals = {signal.SIGKILL, signal.SIGTERM}
        self.panic = None

    # Its data directory.

    def user_run(self, *args, **kwargs):
        return run(*self.as_user, *args, env=self.env, cwd=self.work, **kwargs)

    def make(self, conf=""):
        self.sock.mkdir(parents=True, exist_ok=True)
        self.user_run(self.bindir / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E",
                      "UTF8", "--locale=C", "-N")
        self.configure(SETTINGS.format(sock=self.sock) + conf)

    def copy_from(self, source):
        self.data.parent.mkdir(parents=True, exist_ok=True)
        run("cp", "-a", "--reflink=auto", source, self.data)

    def configure(self, text):
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(text + "\n")

    def remove(self):
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    # Starting and ending it.

    def start(self, wait=True):
        clean = [] if self.env is None else ["env", "-i", *(f"{k}={v}" for k, v in self.env.items())]
        self.began = self.log_size()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.as_user, *clean, str(self.bindir / "postgres"), "-D", str(self.data),
                 "-p", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        wait_until(lambda: f"server {self.name} accepts connections\n{self.tail()}", self.is_ready)

    def is_ready(self):
        """Starts it again as long as processes of a killed postmaster hold its memory."""
        if self.process.poll() is not None:
            if not HELD.search(self.log_from(self.began)):
                raise Finding(f"server {self.name} ended with status {self.process.returncode}\n{self.tail()}")
            time.sleep(0.05)
            self.start(wait=False)
        return self.answers()

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self, mode="fast", seconds=60):
        """Seconds until it had ended."""
        began = time.monotonic()
        if not self.is_running():
            return 0
        send_signal(self.postmaster(), {"smart": signal.SIGTERM, "fast": signal.SIGINT,
                                        "immediate": signal.SIGQUIT}[mode])
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Finding(f"server {self.name}: {mode} shutdown takes more than {seconds} s\n{self.tail()}") from None
        return time.monotonic() - began

    def restart(self, mode="fast"):
        took = self.stop(mode)
        self.start()
        return took

    def kill(self):
        """Everything at once, as when the machine goes."""
        if not self.is_running():
            return
        pids = self.processes()
        self.signals.add(signal.SIGKILL)
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        self.process.wait()
        # A child that was being forked just then, and those not of our own.
        wait_until(f"processes of {self.name} are gone", lambda: all(stat_of(pid)[1] in "ZX" for pid in pids))

    def kill_postmaster(self):
        """SIGKILL to the postmaster alone; the rest must notice."""
        send_signal(self.postmaster(), signal.SIGKILL)
        self.process.wait()

    def reload(self):
        send_signal(self.postmaster(), signal.SIGHUP)

    # Its processes.

    def postmaster(self):
        """Its process id as seen from here."""
        return next(p for p in self.processes() if command_of(p) == "postgres")

    def processes(self):
        return [] if not self.is_running() else [self.process.pid, *descendants(self.process.pid)]

    def pids(self, where):
        return [r[0] for r in self.try_rows(f"SELECT pid FROM pg_stat_activity WHERE {where} ORDER BY pid")]

    def owns(self, pid):
        """A server process works in the data directory; programs of its are its grandchildren."""
        try:
            return os.readlink(f"/proc/{pid}/cwd") == str(self.data)
        except OSError:
            return False

    def signal(self, pid, number):
        """False if the process is gone, or is not this server's any more."""
        return bool(pid) and self.owns(pid) and send_signal(pid, number)

    # Sessions.

    def connect(self, dbname="postgres", name="control", autocommit=True, **more):
        """Those of the tests' own are above the timeouts that faults set for everybody."""
        if name == "control":
            more["options"] = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
        connection = psycopg2.connect(self.dsn(name, dbname), connect_timeout=20, **more)
        connection.autocommit = autocommit
        return connection

    def dsn(self, name, dbname="postgres"):
        return f"host={self.host} port={self.port} user=postgres dbname={dbname} application_name='{name}'"

    def try_connect(self):
        """None while it starts or recovers."""
        try:
            return self.connect()
        except psycopg2.Error:
            return None

    def answers(self):
        connection = self.try_connect()
        if connection:
            connection.close()
        return connection is not None

    def rows(self, sql, args=None, dbname="postgres"):
        """Run it by itself; its rows, if it has any."""
        connection = self.connect(dbname)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, args)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def value(self, sql, args=None, dbname="postgres"):
        return self.rows(sql, args, dbname)[0][0]

    def try_rows(self, sql, args=None, dbname="postgres"):
        """The same, as often as needed while the server goes down and comes back."""
        def attempt():
            try:
                return [self.rows(sql, args, dbname)]
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                return None
        return wait_until(f"server {self.name} answers: {sql}", attempt)[0]

    def psql(self, sql, dbname="postgres", check=True):
        """What psql prints, unaligned."""
        done = subprocess.run(
            [self.bindir / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.host, "-p", str(self.port),
             "-U", "postgres", "-d", dbname, "-f", "-"], input=sql, text=True, capture_output=True, check=False)
        if check and done.returncode != 0:
            raise Finding(done.stderr)
        return done.stdout.strip()

    def wait_for(self, sql, expected=True, dbname="postgres", seconds=PATIENCE):
        last = [None]

        def look():
            try:
                last[0] = self.value(sql, dbname=dbname)
            except psycopg2.Error as error:
                last[0] = error
            return last[0] == expected
        wait_until(lambda: f"{sql} is {expected!r} at {self.name}; it is {last[0]!r}\n{self.relays(dbname)}",
                   look, seconds)

    def relays(self, dbname="postgres"):
        """What stat_relay says, for people."""
        try:
            rows = self.rows("SELECT relay, state, waiting_for, position, lag_events, sent, retried, dead, last_error"
                             " FROM idempotency.stat_relay", dbname=dbname)
        except psycopg2.Error as error:
            return f"server {self.name} does not answer: {error}"
        return "\n".join(str(row) for row in rows)

    # Its log.

    def log_size(self):
        return self.log.stat().st_size if self.log.exists() else 0

    def log_bytes(self, offset):
        """Whole lines."""
        if not self.log.exists():
            return b""
        with open(self.log, "rb") as log:
            log.seek(offset)
            data = log.read()
        return data[:data.rfind(b"\n") + 1]

    def log_from(self, offset):
        return self.log_bytes(offset).decode("utf-8", "replace")

    def log_text(self):
        return self.log_from(0)

    def tail(self, lines=15):
        return "\n".join(self.log_text().splitlines()[-lines:])

    def wait_log(self, text, offset):
        wait_until(f"server {self.name} logs: {text}", lambda: text in self.log_from(offset))

    def deaths(self):
        """Lines of its log since the last call about what died, other than by the test's deed."""
        data = self.log_bytes(self.judged)
        self.judged += len(data)
        return [f"{self.name}: {line}" for line in
                deaths(data.decode("utf-8", "replace"), self.signals, self.sink_signals, self.panic)]
