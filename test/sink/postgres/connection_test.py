"""Options that do not fit, passwords, privileges, poolers, servers that are not there."""
import contextlib
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading

from postgres.target import POSITION, PSQL, Target, commits, server, through_proxy
from server import free_port, wait_until
from sinklib import PATIENCE, codec


def test_misconfigured():
    t = Target()
    # as pg_restore -t leaves it
    t.psql("CREATE TABLE app.keyless AS TABLE idempotency_sink_position")
    for options, state, text in (
            ({"function": "app.nothing"}, "42883", "does not exist"),
            ({"function": None}, "HV00B", "needs one of"),
            ({"table": "app.inbox"}, "HV00B", "needs one of"),
            ({"function": None, "table": "app.nothing"}, "42P01", "sink_setup_sql"),
            ({"function": None, "table": "app.got"}, "42P10", "no unique index"),
            ({"position_table": "app.nothing"}, "42P01", "sink_setup_sql"),
            ({"position_table": "app.inbox"}, "42703", "sink_setup_sql"),
            ({"position_table": "app.keyless"}, "42P10", 'ALTER TABLE "app"."keyless" ADD PRIMARY KEY (relay)'),
            ({"omit_columns": "headers"}, "HV00B", "is for a table"),
            ({"function": None, "table": "app.inbox", "omit_columns": "headers, event_id"}, "HV024", "separated by commas"),
            ({"claim": "on"}, "42704", "not installed"),
            ({"dbname": None}, "HV00B", "dbname"),
            ({"function": "on_event"}, "HV024", "with its schema"),
            ({"service": "x"}, "HV00D", "not known"),
            ({"passfile": "x"}, "HV00D", "not known"),
            ({"options": "-c x=y"}, "HV00D", "not known"),
            ({"secret_file": "/nonexistent/x"}, "58030", "could not open"),
            ({"secret_file": "/"}, "58030", "not a regular file"),
            ({"secret_file": "/dev/null"}, "58030", "not a regular file"),
            # without a look, libpq would go on unverified, or call it an outage
            ({"sslrootcert": "/nonexistent/ca", "sslmode": "require"}, "58030", 'could not open sslrootcert "/nonexistent/ca"'),
            ({"sslrootcert": "/nonexistent/ca", "sslmode": "verify-full"}, "58030", "could not open sslrootcert"),
            ({"sslrootcert": "/", "sslmode": "verify-full"}, "58030", "not a regular file"),
            ({"sslcrl": "/nonexistent/crl"}, "58030", "could not open sslcrl"),
            ({"sslcert": "/nonexistent/c", "sslkey": "/nonexistent/k"}, "58030", "could not open sslcert")):
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
        CREATE FUNCTION app.strict(event_id uuid, headers jsonb) RETURNS void LANGUAGE sql STRICT AS '';
        CREATE FUNCTION app.immutable() RETURNS void LANGUAGE sql IMMUTABLE AS '';
        CREATE PROCEDURE app.proc(event_id uuid) LANGUAGE sql AS '';""")
    for name, state in (("twice", "42725"), ("strange", "42883"), ("typed", "42804"),
                        ("rows", "42809"), ("unnamed", "42883"), ("proc", "42809"), ("strict", "42P13"),
                        ("immutable", "42P13")):
        f = t.failed(function=f"app.{name}")
        assert f["outcome"] == "rejected" and f["sqlstate"] == state, (name, f)


def test_target_goes_away():
    t = Target()
    w = t.start()
    t.psql("DROP FUNCTION app.on_event")
    w.events([{}])
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42883", f


def test_function_changes():
    """A function that becomes STRICT, or is replaced, while the program runs: between batches, or in the midst of one."""
    for careful in (False, True):
        for held in (False, True):
            t = Target()
            with through_proxy(t) as proxy:
                w = t.start(claim="off")
                bad = [{"type": "BAD", "key": "2", "headers": b"{}"}] if careful else []
                if held:
                    proxy.hold = (b"on_event", 2 if careful else 1)      # a call of the batch is parsed
                else:
                    t.psql("ALTER FUNCTION app.on_event STRICT")
                w.events([{}, *bad, {"headers": b'{"a": 1}'}, {}])
                if held:
                    wait_until("a call is held back", lambda: proxy.hold is None)
                    t.psql("ALTER FUNCTION app.on_event STRICT")
                    proxy.release.set()
                f = w.expect("FAILED")
                assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42P13", f
                assert t.count() == 0 and w.recv() is None and w.exit_status() == 0
                w.sock.close()

    t = Target()
    w = t.start()
    t.psql("ALTER FUNCTION app.on_event COST 50")
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    t.psql("""DROP FUNCTION app.on_event;
        CREATE FUNCTION app.on_event(event_id uuid, event_type text, aggregate_id text, payload jsonb, headers jsonb,
            enqueued_at timestamptz, seq bigint, aggregate_type text, content_type text DEFAULT 'none') RETURNS void
            BEGIN ATOMIC INSERT INTO app.got (event_id, event_type) VALUES (event_id, content_type); END""")
    for _ in range(2):
        batch, _ = w.events([{"content_type": "text/plain"}, {}])
        commits(w, batch, 2)
    assert t.psql("SELECT event_type, count(*) FROM app.got GROUP BY 1 ORDER BY 1") == "T|1\ntext/plain|2\n|2"
    w.close()


def test_inbox_without_its_index():
    """The planner misses it, and not PREPARE: no event is blamed, in large batches or small."""
    for sql in ("ALTER TABLE app.inbox DROP CONSTRAINT inbox_pkey",
                "ALTER TABLE app.inbox DROP CONSTRAINT inbox_pkey, ADD PRIMARY KEY (event_id) DEFERRABLE"):
        for passed, count in ((True, 1), (True, 20), (False, 1)):
            t = Target()
            w = t.start(function=None, table="app.inbox")
            if passed:
                batch, _ = w.events([{}])
                commits(w, batch, 1)
            t.psql(sql)
            w.events([{}] * count)
            f = w.expect("FAILED")
            assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42P10" and "unique index" in f["message"], f
            assert w.recv() is None and w.exit_status() == 0 and t.count("app.inbox") == passed
            w.sock.close()


def test_unlogged_inbox():
    """A crash of the target would empty it, and not the position."""
    t = Target()
    for sql in ("ALTER TABLE app.inbox SET UNLOGGED",
                """CREATE TABLE app.parts (LIKE app.inbox) PARTITION BY HASH (event_id);
                   ALTER TABLE app.parts ADD PRIMARY KEY (event_id);
                   CREATE UNLOGGED TABLE app.part PARTITION OF app.parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)"""):
        t.psql(sql)
        f = t.failed(function=None, table="app.parts" if "parts" in sql else "app.inbox")
        assert f["outcome"] == "rejected" and f["sqlstate"] == "55000" and "unlogged" in f["message"], f


def test_inbox_with_a_rule():
    """A rule may keep events from being inserted, without any error."""
    t = Target()
    for when in ("", " WHERE NEW.event_type = 'T'"):
        t.psql(f"CREATE OR REPLACE RULE hides AS ON INSERT TO app.inbox{when} DO INSTEAD NOTHING")
        f = t.failed(function=None, table="app.inbox")
        assert f["outcome"] == "rejected" and f["sqlstate"] == "55000" and 'rule "hides" on INSERT' in f["message"], f
    t.psql("ALTER TABLE app.inbox DISABLE RULE hides")
    w = t.start(function=None, table="app.inbox")
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    assert t.count("app.inbox") == 1
    w.close()


def test_inbox_with_a_trigger_that_fails():
    """The same SQLSTATEs of a trigger, while the table has its shape, are the event's; what came to it is no field."""
    t = Target()
    t.psql("""CREATE FUNCTION app.check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.event_type <> 'T' THEN RAISE EXCEPTION 'no' USING ERRCODE = NEW.event_type; END IF; RETURN NEW; END $$;
        CREATE TRIGGER t BEFORE INSERT ON app.inbox FOR EACH ROW EXECUTE FUNCTION app.check();
        ALTER TABLE app.inbox DROP COLUMN headers""")
    w = t.start(function=None, table="app.inbox", omit_columns="headers")
    t.psql("ALTER TABLE app.inbox ADD COLUMN headers jsonb")
    states = ("42P10", "42P01", "42703", "42883", "3F000", "55000")
    batch, _ = w.events([{"type": s, "headers": b'{"a": 1}'} for s in ("T", *states)])
    assert w.outcomes(batch, 7) == ["acked"] + ["rejected"] * 6 and [w.notes[i + 1][0] for i in range(6)] == list(states), w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    batch, _ = w.events([{"type": "42P10"}])
    assert w.outcomes(batch, 1) == ["rejected"]
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.psql("SELECT count(*) FROM app.inbox WHERE headers IS NULL") == "1"
    w.close()


def test_unreachable():
    t = Target()
    f = t.failed(host="/nonexistent")
    assert f["outcome"] == "outage", f
    f = t.failed(dbname="no_such_database")
    assert f["outcome"] == "outage" and "no_such_database" in f["message"], f


def test_timeouts_of_the_role():
    """They hold neither for a batch nor for the look-ups before the first one."""
    t = Target()
    t.psql(f"ALTER DATABASE {t.db} SET lock_timeout = '1ms'")
    holder = subprocess.Popen(
        [PSQL, "-XAtq", "-h", server().host, "-p", server().port, "-U", "postgres", "-d", t.db],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holder.stdin.write("BEGIN; LOCK TABLE pg_catalog.pg_extension; SELECT 'locked';\n")
    holder.stdin.flush()
    assert holder.stdout.readline().strip() == "locked"
    w = t.start(hello=False)
    wait_until("the look-up waits for the lock, or failed", lambda: w.proc.poll() is not None or server().psql(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{t.db}' AND wait_event_type = 'Lock'") == "1")
    holder.stdin.close()
    holder.wait(PATIENCE)
    w.hello()
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    w.close()


def message(kind, body):
    """A message of a server to its client."""
    return kind + struct.pack("!I", len(body) + 4) + body


NOTICE = message(b"N", b"SWARNING\0VWARNING\0C01000\0M\n2026-11-22 12:00:00 UTC [1] PANIC:  forged\0\0")
CONNECTED = message(b"R", struct.pack("!I", 0)) + b"".join(
    message(b"S", name + b"\0" + value + b"\0") for name, value in
    ((b"server_version", b"15.0"), (b"in_hot_standby", b"off"), (b"default_transaction_read_only", b"off"))) + \
    message(b"Z", b"I")


@contextlib.contextmanager
def talker(before):
    """A target that says that, and then notices for as long as somebody listens."""
    def talk(client):
        with client:
            client.recv(65536)
            with contextlib.suppress(OSError):
                client.sendall(before)
                while True:
                    client.sendall(NOTICE * 100)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    with tempfile.TemporaryDirectory(prefix="idem-talker.") as d, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{d}/.s.PGSQL.5432")
        listener.listen(16)
        threading.Thread(target=accept, daemon=True).start()
        yield d
        listener.shutdown(socket.SHUT_RDWR)


def test_target_that_never_stops_talking():
    t = Target()
    t.port = "5432"
    for before, connect_timeout, text in ((message(b"R", struct.pack("!I", 0)), "2", "connect_timeout"),
                                          (CONNECTED, "60", "no answer from the target")):
        with talker(before) as t.host:
            w = t.start(hello=False, connect_timeout=connect_timeout, statement_timeout="1")
            f = w.expect("FAILED")
            assert f["outcome"] == codec.OUTCOMES["outage"] and text in f["message"], f
            assert w.recv() is None and w.exit_status() == 0
            assert w.stderr() == "", "what the target says is printed"
            w.sock.close()


def test_target_that_asks_for_tickets():
    """A target that asks for a login by Kerberos gets no tickets of the server's user."""
    t = Target()
    t.port = "5432"
    with talker(message(b"R", struct.pack("!I", 7))) as t.host:
        f = t.failed(connect_timeout="60")
        assert f["outcome"] == "outage" and "/nonexistent/tickets" in f["message"], f


def test_hosts_of_a_list():
    t = Target()
    with talker(b"") as silent:
        w = t.start(host=f"/nonexistent,{silent},{t.host}", port=f"1,5432,{t.port}", connect_timeout="5")
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    w.close()
    f = t.failed(host="/nonexistent,/nowhere", port="1,2")
    assert f["outcome"] == "outage" and "/nonexistent" in f["message"] and "/nowhere" in f["message"], f
    f = t.failed(host="/nonexistent,/nowhere", port="1,2,3")
    assert f["outcome"] == "outage" and "could not match 3 port numbers to 2 hosts" in f["message"], f
    f = t.failed(host="no-such-host.invalid")
    assert f["outcome"] == "outage" and "no-such-host.invalid" in f["message"], f
    for host, hostaddr in (("localhost", None), ("some.name", "127.0.0.1"), (None, "127.0.0.1")):
        f = t.failed(host=host, hostaddr=hostaddr, port="1", connect_timeout="60")
        assert f["outcome"] == "outage" and "refused" in f["message"], f


@contextlib.contextmanager
def password_needed(t, user):
    """The server asks that user for a password, in that database."""
    hba = server().data / "pg_hba.conf"
    before = hba.read_text()
    t.psql(f"CREATE ROLE {user} LOGIN PASSWORD 'right';"
           f"GRANT SELECT, INSERT, UPDATE ON idempotency_sink_position TO {user};"
           f"GRANT USAGE ON SCHEMA app TO {user}; GRANT ALL ON ALL TABLES IN SCHEMA app TO {user};"
           f"GRANT ALL ON ALL SEQUENCES IN SCHEMA app TO {user}")
    hba.write_text(f"local all {user} scram-sha-256\nhost all {user} all scram-sha-256\n" + before)
    t.psql("SELECT pg_reload_conf()")
    wait_until("the rule is read", lambda: user in t.psql("SELECT string_agg(user_name::text, ' ') FROM pg_hba_file_rules"))
    probe = ["psql", "-XAtqw", "-h", server().host, "-p", server().port, "-U", user, "-d", t.db, "-c", ""]
    wait_until("the rule is in force", lambda: subprocess.run(probe, capture_output=True).returncode != 0)
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
                   "PGUSER": "postgres", "PGHOST": server().host}
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


def test_secret_files_stay_secret():
    t = Target()
    with tempfile.TemporaryDirectory() as d:
        secret = pathlib.Path(d, "secret")
        for content in ("", "\nhushhush\n", "hushhush" * 1000):
            secret.write_text(content)
            f = t.failed(secret_file=str(secret))
            assert f["sqlstate"] == "58030" and "hush" not in f["message"], f


def test_no_privilege_is_configuration():
    t = Target()
    user = f"u_{t.db}"
    with password_needed(t, user):
        t.psql("REVOKE EXECUTE ON FUNCTION app.on_event FROM PUBLIC")
        w = t.start(user=user, password="right")
        w.events([{}, {}])
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42501", f


@contextlib.contextmanager
def pgbouncer(t):
    """A pooler in transaction mode with a single server connection."""
    with tempfile.TemporaryDirectory(prefix="idem-bouncer.") as d:
        port = free_port()
        pathlib.Path(d, "users").write_text('"postgres" ""\n')
        pathlib.Path(d, "ini").write_text(
            f"[databases]\n* = host={server().host} port={server().port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {d}/users\npool_mode = transaction\n"
            "default_pool_size = 1\nmax_client_conn = 50\n"
            "ignore_startup_parameters = extra_float_digits\n"
            f"[databases]\n{t.db} = host={server().host} port={server().port} user=postgres dbname={t.db}\n")
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
            wait_until("pgbouncer listens", up)
            yield
        finally:
            t.host, t.port = host, base_port
            proc.terminate()
            proc.wait(PATIENCE)


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
