#!/usr/bin/env python3
"""Drive the postgres sink against a throw-away server.

usage: postgres_test.py [test...]

The server is started with test/setup/server.sh and stopped at the end, unless
SINK_SERVER names the directory of a running one.
"""
import contextlib
import json
import os
import pathlib
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from sinklib import HERE, Worker, codec, run_tests

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


SERVER = None


def wait_for(condition, what, timeout=30):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.02)


class Target:
    """A database at the server, and sinks into it."""

    def __init__(self, sql=POSITION + TARGET, extension=False):
        self.db = SERVER.database(sql, extension)
        self.host, self.port = SERVER.host, SERVER.port

    def psql(self, sql):
        return SERVER.psql(sql, self.db)

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
        proxy = Proxy(f"{SERVER.host}/.s.PGSQL.{SERVER.port}", d)
        target.host, target.port = proxy.host, proxy.port
        yield proxy
        proxy.close()


def test_function():
    t = Target()
    w = t.start()
    assert w.ready["capabilities"] == codec.STORES_POSITION | codec.TRANSACTIONAL
    assert w.ready["has_position"] == 0
    batch, ids = w.events([{"payload": b'{"a": "\xc3\xa9"}', "headers": b'{"h": 1}', "key": "k"},
                           {"payload": b"[1]"}], row_id=7, k=3)
    commits(w, batch, 2)
    assert t.psql("SELECT event_id, aggregate_type, key, event_type, payload, headers,"
                  " (extract(epoch FROM enqueued_at) * 1000000)::bigint FROM app.got ORDER BY n"
                  ).splitlines() == [
        f'{ids[0]}|order|k|T|{{"a": "é"}}|{{"h": 1}}|1795248000000001',
        f"{ids[1]}|order|1|T|[1]||1795248000000002"]
    assert t.position() == ["1", "log-1", "7", "3"]
    w.close()
    w = t.start()
    assert w.ready["has_position"] == 1
    assert (w.ready["incarnation"], w.ready["row_id"], w.ready["k"]) == ("log-1", 7, 3)
    w.close()


def test_order_and_size():
    t = Target()
    w = t.start()
    batch, ids = w.events([{"key": str(i % 7), "payload": b'{"i": %d}' % i} for i in range(5000)])
    commits(w, batch, 5000)
    assert t.psql("SELECT event_id FROM app.got ORDER BY n").split() == [str(i) for i in ids]
    big = b'{"x": "' + b"y" * 3000000 + b'"}'
    batch, _ = w.events([{"payload": big}])
    commits(w, batch, 1)
    assert t.psql("SELECT max(length(payload->>'x')) FROM app.got") == "3000000"
    w.close()


def test_pipelined_batches():
    t = Target()
    w = t.start()
    batches = [w.events([{} for _ in range(200)])[0] for _ in range(20)]
    for batch in batches:
        commits(w, batch, 200)
    assert t.count() == 4000
    w.close()


def test_table():
    t = Target()
    w = t.start(function=None, table="app.inbox")
    assert w.ready["capabilities"] & codec.DEDUPLICATES
    same = uuid.uuid4()
    batch, ids = w.events([
        {"payload": b'{"a": 1}', "headers": b'{"h": 1}'},
        {"payload": b"\0\xff", "json": False, "content_type": "image/x"},
        {"id": same}, {"id": same}])
    commits(w, batch, 4)
    batch, _ = w.events([{"id": ids[0], "payload": b'{"a": 2}'}])
    commits(w, batch, 1)
    assert t.psql("SELECT payload, payload_bytes, content_type, headers FROM app.inbox ORDER BY seq"
                  ).splitlines()[:2] == ['{"a": 1}|||{"h": 1}', "|\\x00ff|image/x|"]
    assert t.count("app.inbox") == 3
    w.close()


def test_argument_types():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (a text);
        CREATE DOMAIN app.idtext AS varchar(64);
        CREATE FUNCTION app.f(event_id app.idtext, payload bytea, headers text) RETURNS text
            LANGUAGE sql AS $$ INSERT INTO app.got VALUES (event_id || ' ' || encode(payload, 'hex') || ' ' || headers)
            RETURNING a $$;
        CREATE FUNCTION app."No args"() RETURNS int LANGUAGE sql AS $$ INSERT INTO app.got VALUES ('x') RETURNING 1 $$;
        """)
    w = t.start(function="app.f")
    batch, ids = w.events([{"payload": b"{}", "headers": b'{"a":  1}'},
                           {"payload": b"\1", "json": False, "headers": b"{}"}])
    commits(w, batch, 2)
    assert t.psql("SELECT a FROM app.got").splitlines() == [f'{ids[0]} 7b7d {{"a":  1}}', f"{ids[1]} 01 {{}}"]
    w.close()
    w = t.start(function='app."No args"', relay="other")
    batch, _ = w.events([{}, {}])
    commits(w, batch, 2)
    assert t.count() == 4
    w.close()


def test_bytes_where_json_is_wanted():
    t = Target()
    w = t.start()
    batch, _ = w.events([{}, {"payload": b"\1", "json": False}, {}])
    assert w.outcomes(batch, 3) == ["acked", "rejected", "acked"]
    assert w.notes[1][0] == "42804", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == 2
    w.close()


def poison(key_order, expected, count):
    t = Target()
    w = t.start(flags=codec.WANT_POSITION | (codec.KEY_ORDER if key_order else 0))
    events = [{"key": "a"}, {"key": "b", "type": "BAD"}, {"key": "a"}, {"key": "b"},
              {"key": "c", "type": "BAD", "payload": b'{"secret": "pa55"}'}, {"key": "c"}, {"key": "d"}]
    batch, ids = w.events(events, row_id=5)
    assert w.outcomes(batch, 7) == expected
    assert w.notes[1] == ("P0042", "no such thing"), w.notes
    # nothing is visible before the worker has noted what failed
    assert t.count() == 0
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == count and t.position()[2] == "5"
    # the next batch is plain again, and the keys are free after SETTLE
    batch, _ = w.events([{"key": "b"}, {"key": "c"}])
    commits(w, batch, 2)
    assert "pa55" not in w.stderr()
    w.close()


def test_poison():
    poison(False, ["acked", "rejected", "acked", "acked", "rejected", "acked", "acked"], 5)


def test_poison_key_order():
    poison(True, ["acked", "rejected", "acked", "skipped", "rejected", "skipped", "acked"], 3)


def test_key_stays_blocked_until_settle():
    t = Target()
    w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
    first, _ = w.events([{"key": "b", "type": "BAD"}, {"key": "a"}])
    second, _ = w.events([{"key": "b"}, {"key": "a"}])    # sent before the SETTLE
    assert w.outcomes(first, 2) == ["rejected", "acked"]
    w.send("SETTLE", batch=first)
    w.expect("VERDICT", batch=first, kind=1)
    assert w.outcomes(second, 2) == ["skipped", "acked"]
    w.send("SETTLE", batch=second)
    w.expect("VERDICT", batch=second, kind=1)
    third, _ = w.events([{"key": "b"}])
    commits(w, third, 1)
    w.close()


def test_many_poison_in_a_large_batch():
    t = Target()
    w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
    events = [{"key": str(i), "type": "BAD" if i % 10 == 3 else "T"} for i in range(1000)]
    batch, _ = w.events(events)
    out = w.outcomes(batch, 1000, timeout=60)
    assert out == ["rejected" if i % 10 == 3 else "acked" for i in range(1000)]
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == 900
    w.close()


def test_invalid_json_value():
    t = Target()
    w = t.start()
    batch, _ = w.events([{}, {"payload": b'{"a": "\\u0000"}'}, {"payload": b"not json"}, {}])
    assert w.outcomes(batch, 4) == ["acked", "rejected", "rejected", "acked"]
    assert w.notes[1][0] == "22P05" and w.notes[2][0] == "22P02", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()


def test_deferred_constraint():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.k (id text PRIMARY KEY); INSERT INTO app.k VALUES ('1');
        CREATE TABLE app.got (n serial, k text REFERENCES app.k DEFERRABLE INITIALLY DEFERRED);
        CREATE FUNCTION app.on_event(aggregate_id text) RETURNS void LANGUAGE sql AS
            $$ INSERT INTO app.got (k) VALUES (aggregate_id) $$;""")
    w = t.start()
    batch, _ = w.events([{}, {"key": "missing"}, {}])
    assert w.outcomes(batch, 3) == ["acked", "rejected", "acked"]
    assert w.notes[1][0] == "23503", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()


def test_slow_event():
    t = Target()
    w = t.start(statement_timeout="300")
    batch, _ = w.events([{}, {"type": "SLOW"}, {}])
    assert w.outcomes(batch, 3) == ["acked", "retry", "acked"]
    assert w.notes[1][0] == "57014", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()


def test_ping_while_the_target_works():
    t = Target()
    w = t.start()
    w.events([{"type": "SLOW"}])
    wait_for(lambda: t.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
                            " AND datname = current_database()") == "1", "the call sleeps")
    w.send("PING", nonce=9)
    w.expect("PONG", nonce=9)
    w.close()       # exits at once although the call is under way
    wait_for(lambda: t.count() == 0, "nothing committed")


def test_lost_commit_reply():
    t = Target()
    with through_proxy(t) as proxy:
        w = t.start()
        batch, _ = w.events([{}], row_id=1)
        commits(w, batch, 1)
        proxy.swallow = b"COMMIT\0"
        batch, _ = w.events([{}, {}], row_id=2)
        commits(w, batch, 2)
        assert proxy.hit.is_set()
        assert t.count() == 3 and t.position()[2] == "2"
        w.close()


def test_lost_commit():
    """The COMMIT never arrives: the batch is done again, once."""
    t = Target()
    with through_proxy(t) as proxy:
        w = t.start()
        proxy.deliver = False
        proxy.swallow = b"COMMIT\0"
        batch, _ = w.events([{}, {}], row_id=2)
        commits(w, batch, 2)
        assert proxy.hit.is_set()
        assert t.count() == 2 and t.position()[2] == "2"
        w.close()


def test_lost_commit_after_results():
    """Results are out already: the same ones must come about again."""
    t = Target()
    with through_proxy(t) as proxy:
        w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
        proxy.deliver = False
        proxy.swallow = b"COMMIT\0"
        batch, _ = w.events([{"key": "a"}, {"key": "b", "type": "BAD"}, {"key": "b"}], row_id=2)
        assert w.outcomes(batch, 3) == ["acked", "rejected", "skipped"]
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        assert proxy.hit.is_set() and t.count() == 1
        w.close()


def test_lost_commit_and_fenced():
    """Somebody took over in between: the sink must not judge by his position."""
    t = Target()
    with through_proxy(t) as proxy:
        w = t.start()
        proxy.deliver = False
        proxy.stall.set()
        proxy.swallow = b"COMMIT\0"
        # make the way back fail until somebody else has taken over
        listener, proxy.listener = proxy.listener, socket.socket()
        listener.close()
        os.unlink(f"{proxy.host}/.s.PGSQL.{proxy.port}")
        w.events([{}], row_id=2)
        assert proxy.hit.wait(20)
        for pair in proxy.pairs:
            pair[1].close()
        t.psql("UPDATE idempotency_sink_position SET epoch = epoch + 1, row_id = 9, k = 0, incarnation = 'log-1'")
        again = Proxy(f"{SERVER.host}/.s.PGSQL.{SERVER.port}", proxy.host)
        f = w.expect("FAILED", timeout=30)
        assert f["outcome"] == codec.OUTCOMES["fenced"], f
        assert t.count() == 0
        again.close()


def test_fenced():
    t = Target()
    old = t.start()
    batch, _ = old.events([{}])
    commits(old, batch, 1)
    new = t.start()
    batch, _ = new.events([{}], row_id=50)
    commits(new, batch, 1)
    old.events([{}, {}])
    f = old.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["fenced"] and f["sqlstate"] == "55000", f
    assert old.exit_status() == 0
    assert t.count() == 2 and t.position() == ["2", "log-1", "50", "0"]
    new.close()


def test_hello_waits_for_a_batch_in_flight():
    t = Target()
    old = t.start()
    batch, _ = old.events([{"type": "BAD"}, {}])     # waits for its SETTLE, in a transaction
    old.outcomes(batch, 2)
    new = t.start(hello=False)
    wait_for(lambda: t.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                            " AND datname = current_database()") == "1", "hello waits")
    old.send("SETTLE", batch=batch)
    old.expect("VERDICT", batch=batch, kind=1)
    assert new.hello()["row_id"] == batch
    old.kill()
    new.close()


def test_partitioned_predecessor_lets_go():
    t = Target()
    with through_proxy(t) as proxy:
        old = t.start(idle_timeout="1000")
        batch, _ = old.events([{"type": "BAD"}, {}])
        old.outcomes(batch, 2)
        proxy.swallow = b"nothing will match this"
        new = t.start(host=SERVER.host, port=SERVER.port)   # waits for the timeout
        assert new.ready["has_position"] == 0
        assert t.count() == 0
        old.kill()
        new.close()


def test_server_restarts_sessions():
    t = Target()
    w = t.start()
    for _ in range(3):
        batch, _ = w.events([{}])
        commits(w, batch, 1)
        t.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
               " WHERE application_name = 'idempotency sink' AND datname = current_database()")
    batch, _ = w.events([{"type": "SLOW"}])
    sleeping = ("FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
    for _ in range(2):
        wait_for(lambda: t.psql(f"SELECT count(*) {sleeping}") == "1", "the call sleeps")
        t.psql(f"SELECT pg_terminate_backend(pid) {sleeping}")
    wait_for(lambda: t.psql(f"SELECT count(*) {sleeping}") == "1", "the call sleeps again")
    w.kill()
    assert t.count() == 3


def test_deadlock_is_nobodys_fault():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (x int); CREATE SEQUENCE app.tries MINVALUE -1000 START 1;
        CREATE FUNCTION app.on_event() RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO app.got VALUES (1);
            IF nextval('app.tries') < 3 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF;
        END $$;""")
    w = t.start()
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    assert t.count() == 1
    t.psql("ALTER SEQUENCE app.tries RESTART WITH -1000")
    w.events([{}])
    f = w.expect("FAILED", timeout=30)
    assert f["outcome"] == codec.OUTCOMES["outage"] and f["sqlstate"] == "40P01", f


def test_disk_full_is_an_outage():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE FUNCTION app.on_event() RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$;""")
    w = t.start()
    w.events([{}])
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["outage"] and f["sqlstate"] == "53100", f


def test_misconfigured():
    t = Target()
    for options, state, text in (
            ({"function": "app.nothing"}, "42883", "does not exist"),
            ({"function": None}, "HV00B", "needs one of"),
            ({"table": "app.inbox"}, "HV00B", "needs one of"),
            ({"function": None, "table": "app.nothing"}, "42P01", "sink_setup_sql"),
            ({"function": None, "table": "app.got"}, "42P10", "no unique index"),
            ({"position_table": "app.nothing"}, "42P01", "sink_setup_sql"),
            ({"position_table": "app.inbox"}, "42703", "sink_setup_sql"),
            ({"claim": "on"}, "42704", "not installed"),
            ({"dbname": None}, "HV00B", "dbname"),
            ({"function": "on_event"}, "HV024", "with its schema"),
            ({"service": "x"}, "HV00D", "not known"),
            ({"passfile": "x"}, "HV00D", "not known"),
            ({"options": "-c x=y"}, "HV00D", "not known"),
            ({"secret_file": "/nonexistent/x"}, "58030", "could not open"),
            ({"secret_file": "/"}, "58030", "not a regular file"),
            ({"secret_file": "/dev/null"}, "58030", "not a regular file")):
        f = t.failed(**options)
        assert f["outcome"] == "rejected" and f["sqlstate"] == state and text in f["message"], (options, f)
    f = t.failed(flags=0)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "0A000", f
    # nothing of that may have fenced a sink that works
    assert t.psql("SELECT count(*) FROM idempotency_sink_position WHERE epoch > 1") == "0"


def test_functions_that_do_not_fit():
    t = Target(POSITION + """
        CREATE SCHEMA app;
        CREATE FUNCTION app.twice(a int DEFAULT 1) RETURNS void LANGUAGE sql AS '';
        CREATE FUNCTION app.twice(a text DEFAULT '') RETURNS void LANGUAGE sql AS '';
        CREATE FUNCTION app.strange(event_id uuid, color text) RETURNS void LANGUAGE sql AS '';
        CREATE FUNCTION app.typed(event_id int) RETURNS void LANGUAGE sql AS '';
        CREATE FUNCTION app.rows(event_id uuid) RETURNS SETOF int LANGUAGE sql AS 'SELECT 1';
        CREATE FUNCTION app.unnamed(uuid) RETURNS void LANGUAGE sql AS '';
        CREATE PROCEDURE app.proc(event_id uuid) LANGUAGE sql AS '';""")
    for name, state in (("twice", "42725"), ("strange", "42883"), ("typed", "42804"),
                        ("rows", "42809"), ("unnamed", "42883"), ("proc", "42809")):
        f = t.failed(function=f"app.{name}")
        assert f["outcome"] == "rejected" and f["sqlstate"] == state, (name, f)


def test_target_goes_away():
    t = Target()
    w = t.start()
    t.psql("DROP FUNCTION app.on_event")
    w.events([{}])
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42883", f


def test_unreachable():
    t = Target()
    f = t.failed(host="/nonexistent")
    assert f["outcome"] == "outage", f
    f = t.failed(dbname="no_such_database")
    assert f["outcome"] == "outage" and "no_such_database" in f["message"], f


@contextlib.contextmanager
def password_needed(t, user):
    """The server asks that user for a password, in that database."""
    hba = pathlib.Path(SERVER.dir, "data/pg_hba.conf")
    before = hba.read_text()
    t.psql(f"CREATE ROLE {user} LOGIN PASSWORD 'right';"
           f"GRANT SELECT, INSERT, UPDATE ON idempotency_sink_position TO {user};"
           f"GRANT USAGE ON SCHEMA app TO {user}; GRANT ALL ON ALL TABLES IN SCHEMA app TO {user};"
           f"GRANT ALL ON ALL SEQUENCES IN SCHEMA app TO {user}")
    hba.write_text(f"local all {user} scram-sha-256\nhost all {user} all scram-sha-256\n" + before)
    t.psql("SELECT pg_reload_conf()")
    wait_for(lambda: user in t.psql("SELECT string_agg(user_name::text, ' ') FROM pg_hba_file_rules"),
             "the rule is read")
    probe = ["psql", "-XAtqw", "-h", SERVER.host, "-p", SERVER.port, "-U", user, "-d", t.db, "-c", ""]
    wait_for(lambda: subprocess.run(probe, capture_output=True).returncode != 0, "the rule is in force")
    try:
        yield
    finally:
        hba.write_text(before)
        t.psql("SELECT pg_reload_conf()")


def test_passwords():
    t = Target()
    need = codec.WANT_POSITION | codec.REQUIRE_PASSWORD
    user = f"u_{t.db}"
    with password_needed(t, user), tempfile.TemporaryDirectory() as d:
        pgpass = pathlib.Path(d, ".pgpass")
        pgpass.write_text("*:*:*:*:right\n")
        pgpass.chmod(0o600)
        outside = {"PGPASSWORD": "right", "PGPASSFILE": str(pgpass), "HOME": d,
                   "PGUSER": "postgres", "PGHOST": SERVER.host}
        f = t.failed(user=user, env=outside)
        assert f["outcome"] == "outage" and "no password supplied" in f["message"], f
        f = t.failed(user=user, password="wr0ng", env=outside)
        assert "password authentication failed" in f["message"] and "wr0ng" not in f["message"], f
        secret = pathlib.Path(d, "secret")
        secret.write_text("right\nsecond line\n")
        for options in ({"password": "right"}, {"secret_file": str(secret)}):
            w = t.start(user=user, flags=need, **options)
            batch, _ = w.events([{}])
            commits(w, batch, 1)
            w.close()
        f = t.failed(user=user, flags=need)
        assert f["outcome"] == "rejected" and f["sqlstate"] == "2F003", f
        # trust: logs in without a password although there is one
        f = t.failed(password="whatever", flags=need)
        assert f["outcome"] == "rejected" and f["sqlstate"] == "2F003", f
        f = t.failed(user=user, password="right", secret_file=str(secret))
        assert "exclude each other" in f["message"], f


def test_no_privilege_is_configuration():
    t = Target()
    user = f"u_{t.db}"
    with password_needed(t, user):
        t.psql("REVOKE EXECUTE ON FUNCTION app.on_event FROM PUBLIC")
        w = t.start(user=user, password="right")
        w.events([{}, {}])
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42501", f


def test_synchronous_commit_is_raised():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (x text);
        CREATE FUNCTION app.on_event() RETURNS void LANGUAGE sql AS
        $$ INSERT INTO app.got VALUES (current_setting('synchronous_commit') || ' ' ||
           current_setting('transaction_isolation') || ' ' ||
           current_setting('idle_in_transaction_session_timeout')) $$;""")
    for setting, expected in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        t.psql(f"ALTER DATABASE {t.db} SET synchronous_commit = {setting};"
               f"ALTER DATABASE {t.db} SET default_transaction_isolation = 'serializable';"
               f"ALTER DATABASE {t.db} SET default_transaction_read_only = off")
        w = t.start()
        batch, _ = w.events([{}])
        commits(w, batch, 1)
        w.close()
        assert t.psql("SELECT DISTINCT x FROM app.got") == f"{expected} read committed 1min"
        t.psql("TRUNCATE app.got")


def test_claims():
    t = Target(extension=True)
    w = t.start(consumer="billing")
    assert w.ready["capabilities"] & codec.DEDUPLICATES
    batch, ids = w.events([{} for _ in range(300)])
    commits(w, batch, 300)
    # a replay: same ids, a new position
    batch, _ = w.events([{"id": i} for i in ids] + [{}])
    commits(w, batch, 301)
    assert t.count() == 301
    assert t.psql("SELECT count(*), min(status::text) FROM idempotency.processed_events"
                  " WHERE consumer = 'billing'").lower() == "301|completed"
    # a repeat inside one batch
    same = uuid.uuid4()
    batch, _ = w.events([{"id": same}, {"id": same}])
    commits(w, batch, 2)
    assert t.count() == 302
    w.close()


def test_claims_and_poison():
    t = Target(extension=True)
    w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
    same = uuid.uuid4()
    batch, ids = w.events([{"key": "a"}, {"key": "b", "type": "BAD"}, {"key": "b"},
                           {"key": "c", "type": "BAD", "id": same}, {"key": "c", "id": same}])
    assert w.outcomes(batch, 5) == ["acked", "rejected", "skipped", "rejected", "skipped"]
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == 1
    # what failed was not claimed: it works when it is sent again
    batch, _ = w.events([{"key": "b", "id": ids[1]}, {"key": "b", "id": ids[2]}, {"id": ids[0]}])
    commits(w, batch, 3)
    assert t.count() == 3
    w.close()


def test_claim_of_a_refused_event_is_released():
    t = Target(extension=True)
    w = t.start()
    batch, ids = w.events([{}, {"type": "BAD"}, {}])
    assert w.outcomes(batch, 3) == ["acked", "rejected", "acked"]
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    batch, _ = w.events([{"id": i} for i in ids])
    commits(w, batch, 3)
    assert t.count() == 3
    w.close()


def test_claim_busy_elsewhere():
    t = Target(extension=True)
    w = t.start(consumer="billing", flags=codec.WANT_POSITION | codec.KEY_ORDER)
    busy = uuid.uuid4()
    holder = subprocess.Popen(
        [PSQL, "-XAtq", "-h", SERVER.host, "-p", SERVER.port, "-U", "postgres", "-d", t.db],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holder.stdin.write(f"BEGIN; SELECT idempotency.claim_event('{busy}'::text, 'billing');\n")
    holder.stdin.flush()
    assert holder.stdout.readline().strip() == "claimed"
    batch, _ = w.events([{"key": "a"}, {"key": "b", "id": busy}, {"key": "b"}])
    assert w.outcomes(batch, 3) == ["acked", "retry", "skipped"]
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    holder.stdin.write("ROLLBACK;\n")
    holder.stdin.close()
    holder.wait(10)
    batch, _ = w.events([{"key": "b", "id": busy}])
    commits(w, batch, 1)
    assert t.count() == 2
    w.close()


def test_claim_off():
    t = Target(extension=True)
    w = t.start(claim="off")
    assert not w.ready["capabilities"] & codec.DEDUPLICATES
    same = uuid.uuid4()
    batch, _ = w.events([{"id": same}, {"id": same}])
    commits(w, batch, 2)
    assert t.count() == 2
    w.close()


@contextlib.contextmanager
def pgbouncer(t):
    """A pooler in transaction mode with a single server connection."""
    with tempfile.TemporaryDirectory(prefix="idem-bouncer.") as d:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        pathlib.Path(d, "users").write_text('"postgres" ""\n')
        pathlib.Path(d, "ini").write_text(
            f"[databases]\n* = host={SERVER.host} port={SERVER.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {d}/users\npool_mode = transaction\n"
            "default_pool_size = 1\nmax_client_conn = 50\n"
            "ignore_startup_parameters = extra_float_digits\n"
            f"[databases]\n{t.db} = host={SERVER.host} port={SERVER.port} user=postgres dbname={t.db}\n")
        os.chmod(d, 0o755)
        command = [shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", "-q", f"{d}/ini"]
        if os.getuid() == 0:
            command = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups",
                       "--"] + command
        proc = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        host, base_port = t.host, t.port
        t.host, t.port = "127.0.0.1", str(port)

        def up():
            assert proc.poll() is None, "pgbouncer ended"
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0
        try:
            wait_for(up, "pgbouncer listens")
            yield
        finally:
            t.host, t.port = host, base_port
            proc.terminate()
            proc.wait(10)


def test_through_pgbouncer():
    t = Target()
    with pgbouncer(t):
        sinks = [t.start(relay=f"r{i}", flags=codec.WANT_POSITION | codec.KEY_ORDER) for i in range(3)]
        for _ in range(10):
            batches = [(w, w.events([{} for _ in range(50)])[0]) for w in sinks]
            for w, batch in batches:
                commits(w, batch, 50)
        w = sinks[0]
        batch, _ = w.events([{"key": "a"}, {"key": "b", "type": "BAD"}, {"key": "b"}])
        assert w.outcomes(batch, 3) == ["acked", "rejected", "skipped"]
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        for w in sinks:
            w.close()
    assert t.count() == 1501


def test_setup_sql():
    """The DDL in setup_sql.h is what the program needs."""
    header = (TOP / "src/sink/postgres/setup_sql.h").read_text()

    def text(macro):
        body = header.split(f"#define {macro} ")[1].split("\n\n")[0]
        return "".join(json.loads(line.strip().rstrip("\\").strip())
                       for line in body.splitlines()[1:])
    sql = text("IDEM_SINK_POSTGRES_SETUP_SQL") % (("public.idempotency_sink_position",) * 3 + ("postgres",))
    sql += "CREATE SCHEMA app;" + text("IDEM_SINK_POSTGRES_INBOX_SQL") % ("app.inbox", "app.inbox", "postgres")
    t = Target(sql)
    w = t.start(function=None, table="app.inbox")
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    w.close()


def test_oversized_batch():
    t = Target()
    w = t.start()
    w.events([{} for _ in range(10001)], end=False)
    assert w.exit_status() == 2
    assert "larger than READY allows" in w.stderr()


if __name__ == "__main__":
    SERVER = Server()
    try:
        status = run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
    finally:
        SERVER.stop()
    sys.exit(status)
