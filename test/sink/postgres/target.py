"""The throw-away server, databases of it to deliver to, and what stands in between."""
import contextlib
import itertools
import os
import pathlib
import select
import socket
import subprocess
import tempfile
import threading

from sinklib import HERE, Worker, codec
from server import Server

TOP = HERE.parent.parent
BIN = pathlib.Path(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"))
SINK = BIN / "idempotency-sink-postgres"
SERVER_SH = TOP / "test/setup/server.sh"
BINDIR = pathlib.Path(subprocess.check_output(
    [os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip())
PSQL = BINDIR / "psql"

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


_server = None
_numbers = itertools.count(1)


def server():
    """Started when it is first needed, unless SINK_SERVER names the directory of one."""
    global _server
    if _server is None:
        directory = os.environ.get("SINK_SERVER")
        if not directory:
            directory = tempfile.mkdtemp(prefix="idem-sink.")
            os.chmod(directory, 0o755)
            subprocess.run([SERVER_SH, "start", directory], check=True, stdout=subprocess.DEVNULL)
        env = dict(line.split("=", 1) for line in
                   pathlib.Path(directory, "server.env").read_text().splitlines())
        _server = Server("sink", directory, BINDIR, data=f"{directory}/data", port=env["IDEM_PORT"])
    return _server


def stop_server():
    if _server is not None and "SINK_SERVER" not in os.environ:
        subprocess.run([SERVER_SH, "stop", _server.work], check=True, stdout=subprocess.DEVNULL)


def database(sql, extension):
    """One for a test."""
    name = f"sink_{os.getpid()}_{next(_numbers)}"
    server().psql(f"CREATE DATABASE {name} TEMPLATE template0")
    server().psql(("CREATE EXTENSION idempotency CASCADE;" if extension else "") + sql, name)
    return name


class Target:
    """A database at the server, and sinks into it."""

    def __init__(self, sql=POSITION + TARGET, extension=False):
        self.db = database(sql, extension)
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
    away and the connection cut (deliver=False: it is not even delivered), once
    or as often as swallow_times says.  Bytes with the string in "spare" pass.
    hold: a string and a number; behind that many Parse messages with the string
    the client's bytes wait for release.  To be set while the client is idle, or not there.
    """

    def __init__(self, target_path, directory):
        self.path = target_path
        self.port = "6432"
        self.host = directory
        self.swallow = None
        self.swallow_times = 1
        self.spare = None
        self.hold = None
        self.release = threading.Event()
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

    def hold_back(self, client, server, data):
        """Pass whole messages on, and wait behind the one to hold; the rest of the bytes."""
        if data[:1] == b"\0":       # the startup packet has no type
            server.sendall(data)
            return b""
        while self.hold and len(data) >= 5:
            size = 1 + int.from_bytes(data[1:5], "big")
            if len(data) < size:
                return data
            message, data = data[:size], data[size:]
            server.sendall(message)
            text, count = self.hold
            if message[:1] == b"P" and text in message:
                self.hold = (text, count - 1) if count > 1 else None
        if self.hold:
            return data
        self.release.wait()
        self.hit.set()
        server.sendall(data)
        return b""

    def pump(self, client, server):
        armed = False
        held = b""
        try:
            while True:
                ready = select.select([client, server], [], [])[0]
                if client in ready:
                    data = client.recv(65536)
                    if not data:
                        break
                    if self.swallow and self.swallow in data and not (self.spare and self.spare in data):
                        self.swallow_times -= 1
                        if self.swallow_times == 0:
                            self.swallow = None
                        armed = True
                        if not self.deliver:
                            break
                    if self.hold:
                        held = self.hold_back(client, server, held + data)
                    else:
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
