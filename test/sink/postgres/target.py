"""The throw-away server, databases of it to deliver to, and what stands in between."""
import contextlib
import os
import pathlib
import select
import socket
import subprocess
import tempfile
import threading
import time

from sinklib import HERE, Worker, codec

TOP = HERE.parent.parent
BIN = pathlib.Path(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"))
SINK = BIN / "idempotency-sink-postgres"
SERVER_SH = TOP / "test/setup/server.sh"
PSQL = pathlib.Path(subprocess.check_output(
    [os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip(), "psql")

POSITION = """
CREATE TABLE public.idempotency_sink_position (relay text PRIMARY KEY, epoch bigint NOT NULL,
    incarnation text, row_id bigint, k bigint, updated_at timestamptz NOT NULL DEFAULT now());
"""
TARGET = """
CREATE SCHEMA app;
CREATE TABLE app.got (n serial, event_id uuid, seq bigint, aggregate_type text, key text,
    event_type text, payload jsonb, headers jsonb, enqueued_at timestamptz);
CREATE FUNCTION app.on_event(event_id uuid, aggregate_id text, event_type text, payload jsonb,
    headers jsonb, enqueued_at timestamptz, seq bigint, aggregate_type text,
    "extra" int DEFAULT 5) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO app.got (event_id, seq, aggregate_type, key, event_type, payload, headers, enqueued_at)
        VALUES (event_id, seq, aggregate_type, aggregate_id, event_type, payload, headers, enqueued_at);
    IF event_type = 'BAD' THEN
        RAISE EXCEPTION 'no such thing' USING ERRCODE = 'P0042';
    ELSIF event_type = 'SLOW' THEN
        PERFORM pg_sleep(3600);
    END IF;
END $$;
CREATE TABLE app.inbox (event_id uuid PRIMARY KEY, seq bigint, aggregate_type varchar(255),
    aggregate_id text, event_type text, payload jsonb, payload_bytes bytea, content_type text,
    headers json, enqueued_at timestamptz, received_at timestamptz DEFAULT clock_timestamp());
"""


class Server:
    """The throw-away server, and one database per test."""

    def __init__(self):
        self.own = "SINK_SERVER" not in os.environ
        if self.own:
            self.dir = tempfile.mkdtemp(prefix="idem-sink.")
            os.chmod(self.dir, 0o755)
            subprocess.run([SERVER_SH, "start", self.dir], check=True,
                           stdout=subprocess.DEVNULL)
        else:
            self.dir = os.environ["SINK_SERVER"]
        env = dict(line.split("=", 1) for line in
                   pathlib.Path(self.dir, "server.env").read_text().splitlines())
        self.port = env["IDEM_PORT"]
        self.host = self.dir + "/sock"
        self.count = 0

    def stop(self):
        if self.own:
            subprocess.run([SERVER_SH, "stop", self.dir], check=True, stdout=subprocess.DEVNULL)

    def psql(self, sql, db="postgres", check=True):
        done = subprocess.run(
            [PSQL, "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.host, "-p", self.port,
             "-U", "postgres", "-d", db, "-f", "-"], input=sql, text=True, capture_output=True)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def database(self, sql=POSITION + TARGET, extension=False):
        self.count += 1
        name = f"sink_{os.getpid()}_{self.count}"
        self.psql(f"CREATE DATABASE {name} TEMPLATE template0")
        if extension:
            sql = "CREATE EXTENSION idempotency CASCADE;" + sql
        self.psql(sql, name)
        return name


def wait_for(condition, what, timeout=30):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.02)


_server = None


def server():
    """Started when it is first needed."""
    global _server
    if _server is None:
        _server = Server()
    return _server


def stop_server():
    if _server is not None:
        _server.stop()


class Target:
    """A database at the server, and sinks into it."""

    def __init__(self, sql=POSITION + TARGET, extension=False):
        self.db = server().database(sql, extension)
        self.host, self.port = server().host, server().port

    def psql(self, sql):
        return server().psql(sql, self.db)

    def options(self, **options):
        out = {"host": self.host, "port": str(self.port), "dbname": self.db, "user": "postgres",
               "function": "app.on_event"}
        out.update(options)
        return {k: v for k, v in out.items() if v is not None}

    def start(self, hello=True, flags=codec.WANT_POSITION, relay="orders",
              incarnation="log-1", env=None, **options):
        w = Worker(SINK, options=self.options(**options), flags=flags, relay=relay,
                   incarnation=incarnation, env=env)
        if hello:
            w.hello()
        return w

    def failed(self, flags=codec.WANT_POSITION, env=None, **options):
        w = self.start(hello=False, flags=flags, env=env, **options)
        f = w.expect("FAILED")
        assert w.recv() is None and w.exit_status() == 0
        w.sock.close()
        f["outcome"] = {v: k for k, v in codec.OUTCOMES.items()}[f["outcome"]]
        return f

    def count(self, table="app.got"):
        return int(self.psql(f"SELECT count(*) FROM {table}"))

    def position(self, relay="orders"):
        row = self.psql("SELECT epoch, incarnation, row_id, k FROM idempotency_sink_position"
                        f" WHERE relay = '{relay}'")
        return row.split("|")


def commits(w, batch, count, expected=None):
    assert w.outcomes(batch, count) == (expected or ["acked"] * count), w.notes
    w.expect("VERDICT", batch=batch, kind=1)


class Proxy:
    """Passes connections on to the server, until told otherwise.

    swallow: a string; when the client has sent it, the next answer is thrown
    away and the connection cut (deliver=False: it is not even delivered).
    """

    def __init__(self, target_path, directory):
        self.path = target_path
        self.port = "6432"
        self.host = directory
        self.swallow = None
        self.deliver = True
        self.stall = threading.Event()
        self.hit = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{directory}/.s.PGSQL.{self.port}")
        self.listener.listen(16)
        self.pairs = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.path)
            except OSError:
                client.close()
                continue
            self.pairs.append((client, server))
            threading.Thread(target=self.pump, args=(client, server), daemon=True).start()

    def pump(self, client, server):
        armed = False
        try:
            while True:
                ready = select.select([client, server], [], [])[0]
                if client in ready:
                    data = client.recv(65536)
                    if not data:
                        break
                    if self.swallow and self.swallow in data:
                        self.swallow = None
                        armed = True
                        if not self.deliver:
                            break
                    server.sendall(data)
                if server in ready:
                    data = server.recv(65536)
                    if not data or armed:
                        break
                    client.sendall(data)
        except OSError:
            pass
        if armed:
            self.hit.set()
            # half-open: the server is left alone with its transaction
            if self.stall.is_set():
                client.close()
                return
        client.close()
        server.close()

    def close(self):
        self.listener.close()
        for pair in self.pairs:
            for s in pair:
                s.close()


@contextlib.contextmanager
def through_proxy(target):
    with tempfile.TemporaryDirectory(prefix="idem-proxy.") as d:
        proxy = Proxy(f"{server().host}/.s.PGSQL.{server().port}", d)
        target.host, target.port = proxy.host, proxy.port
        yield proxy
        proxy.close()
