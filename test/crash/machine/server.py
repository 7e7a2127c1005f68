"""PostgreSQL servers that can be put on any disk, into any namespace, under any clock.

A server is a child of this process, not of pg_ctl: it may be behind unshare or
ip netns exec, and it is killed as one, with everything it started.
"""
import os
import pathlib
import pwd
import re
import signal
import subprocess
import time

import psycopg2

PATIENCE = float(os.environ.get("CRASH_PATIENCE", "120"))

# A process of the server has "(PID n)" before it, a sink program has not.
DIED = re.compile(r"(?:TRAP|(PANIC)):|(\(PID \d+\) )?was terminated by signal (\d+)")


class Failure(Exception):
    """Something that must hold does not."""


def wait_until(what, condition, patience=PATIENCE, pause=0.02):
    """Poll until the condition returns something true, and return that."""
    until = time.monotonic() + patience
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > until:
            raise Failure(f"not within {patience:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause)


def run(*args, **kwargs):
    """A command that has to succeed; its output."""
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **kwargs)
    if done.returncode != 0:
        raise Failure(f"{' '.join(str(a) for a in args)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def parent_of(pid):
    """None for one that is gone."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


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


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_stopped(pid):
    """Wait until SIGSTOP has taken effect; False if the process ended before."""
    while True:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "TZX":
            return state == "T"
        time.sleep(0.001)


class Lab:
    """The work directory of one scenario, the stage, and who runs servers."""

    def __init__(self, work, bindir, extension_conf, user):
        self.work = pathlib.Path(work)
        self.bindir = pathlib.Path(bindir)
        self.extension_conf = pathlib.Path(extension_conf).read_text()
        entry = pwd.getpwnam(user)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid
        self.as_user = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.gid),
                        "--init-groups", "--"]
        self.env = {"LC_ALL": "C", "PATH": f"{self.bindir}:/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME": str(self.work), "TMPDIR": str(self.work)}
        self.servers = []
        self.ports = iter(range(5501, 5600))
        os.chown(self.work, self.uid, self.gid)
        self.sock = self.mkdir("sock")
        self.template = self.work / "template"

    def mkdir(self, name):
        path = self.work / name
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, self.uid, self.gid)
        return path

    def user_run(self, *args, **kwargs):
        return run(*self.as_user, *args, env=self.env, cwd=self.work, **kwargs)

    def initdb(self, data, *options):
        self.user_run(self.bindir / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E",
                      "UTF8", "--locale=C", "-N", *options)
        with open(data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(self.extension_conf + f"""
shared_preload_libraries = 'idempotency'
unix_socket_directories = '{self.sock}'
listen_addresses = '*'
max_connections = 60
shared_buffers = 32MB
max_worker_processes = 16
max_prepared_transactions = 10
wal_level = replica
max_wal_size = 256MB
fsync = off
log_line_prefix = '%m [%p] %q%a '
timezone = 'UTC'
idempotency.sink_timeout = 3s
""")
        with open(data / "pg_hba.conf", "a", encoding="utf-8") as hba:
            hba.write("host all all 10.0.0.0/8 trust\nhost replication all 10.0.0.0/8 trust\n")

    def server(self, name, conf="", data=None, **kwargs):
        """A new server, initialised but not started."""
        server = Server(self, name, data or self.work / f"data-{name}", **kwargs)
        if not self.template.exists():
            self.initdb(self.template)
        server.copy_from(self.template)
        server.configure(conf)
        return server

    def standby_of(self, primary, name, conf=""):
        """A streaming standby of it, started."""
        standby = Server(self, name, self.work / f"data-{name}")
        self.user_run(self.bindir / "pg_basebackup", "-D", standby.data, "-c", "fast", "-h", primary.host,
                      "-p", str(primary.port), "-U", "postgres")
        (standby.data / "standby.signal").touch()
        standby.configure(f"primary_conninfo = 'host={primary.host} port={primary.port} user=postgres'\n{conf}")
        standby.start()
        return standby

    def end(self):
        for server in self.servers:
            server.kill()

    def judge(self):
        """No server may have crashed by itself: it would have recovered, and nobody would know."""
        found = [line for server in self.servers for line in server.deaths()]
        if found:
            raise Failure("\n".join(["died of itself:", *found[:20]]))


class Server:
    """One data directory and, while it runs, its postmaster."""

    def __init__(self, lab, name, data, prefix=(), host=None, env=None):
        self.lab = lab
        self.name = name
        self.data = pathlib.Path(data)
        self.prefix = list(prefix)
        self.host = host or str(lab.sock)
        self.env = dict(env or {})
        self.port = next(lab.ports)
        self.log = lab.work / f"{name}.log"
        self.process = None
        # What the scenario does to it: signals to its processes and to sink
        # programs, and what a PANIC may say, which ends in an abort.
        self.signals = set()
        # What terminates a worker reaches its programs, which are of its group.
        self.sink_signals = {signal.SIGKILL, signal.SIGTERM}
        self.panic = None
        lab.servers.append(self)

    def copy_from(self, source):
        self.data.parent.mkdir(parents=True, exist_ok=True)
        run("cp", "-a", "--reflink=auto", source, self.data)

    def configure(self, text):
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(text + "\n")

    def start(self, wait=True):
        env = dict(self.lab.env, **self.env)
        assignments = [f"{k}={v}" for k, v in env.items()]
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.lab.as_user, "env", "-i", *assignments,
                 str(self.lab.bindir / "postgres"), "-D", str(self.data), "-p", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        wait_until(lambda: f"server {self.name} accepts connections\n{self.tail()}", self.is_ready)

    def is_ready(self):
        if self.process.poll() is not None:
            raise Failure(f"server {self.name} ended with status {self.process.returncode}\n{self.tail()}")
        return self.answers()

    def answers(self):
        try:
            self.sql("SELECT 1")
        except psycopg2.Error:
            return False
        return True

    def tail(self, lines=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def log_text(self):
        return self.log.read_text(errors="replace")

    def deaths(self):
        """Lines of its log about what died, other than by the scenario's deed."""
        signals = self.signals | ({signal.SIGABRT} if self.panic else set())
        found = []
        for line in self.log_text().splitlines() if self.log.exists() else ():
            m = DIED.search(line)
            meant = m and (self.panic and self.panic in line if m[1] else
                           m[3] and int(m[3]) in (signals if m[2] else self.sink_signals))
            if m and not meant:
                found.append(f"{self.name}: {line}")
        return found

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def postmaster(self):
        """Its process id as seen from here."""
        if command_of(self.process.pid) == "postgres":
            return self.process.pid
        return next(p for p in descendants(self.process.pid) if command_of(p) == "postgres")

    def processes(self):
        return [] if self.process is None else [*descendants(self.process.pid), self.process.pid]

    def stop(self, mode="fast", patience=60):
        """Seconds until it had ended."""
        began = time.monotonic()
        send_signal(self.postmaster(), {"smart": signal.SIGTERM, "fast": signal.SIGINT,
                                        "immediate": signal.SIGQUIT}[mode])
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failure(f"server {self.name} did not end within {patience} s\n{self.tail()}") from None
        self.process = None
        return time.monotonic() - began

    def kill(self):
        """Everything at once, as when the machine goes."""
        if self.process is None:
            return
        pids = self.processes()
        self.signals.add(signal.SIGKILL)
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None
        # A child that was being forked just then, and those not of our own.
        wait_until(f"processes of {self.name} are gone", lambda: not any(map(self.is_ours, pids)))

    def is_ours(self, pid):
        try:
            return not pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return False

    def kill_postmaster(self):
        """SIGKILL to the postmaster alone; the rest must notice."""
        pids = self.processes()
        send_signal(self.postmaster(), signal.SIGKILL)
        self.process.wait()
        self.process = None
        wait_until(f"orphans of {self.name} are gone", lambda: not any(map(self.is_ours, pids)))

    def reload(self):
        send_signal(self.postmaster(), signal.SIGHUP)

    def connect(self, dbname="postgres", **kwargs):
        return psycopg2.connect(host=self.host, port=self.port, user="postgres", dbname=dbname,
                                connect_timeout=10, **kwargs)

    def sql(self, query, args=None, dbname="postgres"):
        """Run it by itself; its rows, if it has any."""
        connection = self.connect(dbname)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query, args)
                return cursor.fetchall() if cursor.description else None
        finally:
            connection.close()

    def value(self, query, args=None, dbname="postgres"):
        return self.sql(query, args, dbname)[0][0]

    def wait_for(self, query, expected=True, dbname="postgres", patience=PATIENCE):
        last = [None]

        def look():
            try:
                last[0] = self.value(query, dbname=dbname)
            except psycopg2.Error as error:
                last[0] = error
            return last[0] == expected
        wait_until(lambda: f"{query} is {expected!r} at {self.name}; it is {last[0]!r}\n{self.relays(dbname)}",
                   look, patience)

    def relays(self, dbname="postgres"):
        """What stat_relay says, for people."""
        try:
            rows = self.sql("SELECT relay, state, waiting_for, lag_events, sent, retried, last_error"
                            " FROM idempotency.stat_relay", dbname=dbname)
        except psycopg2.Error as error:
            return str(error)
        return "\n".join(str(row) for row in rows)
