"""What arrives, in functions and tables: order, sizes, types, and the DDL it needs."""
import json
import re
import uuid

from postgres.target import POSITION, TOP, Target, commits
from sinklib import codec


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


def test_table_that_loses_a_column():
    """What was there and is gone is misconfigured; no event is acked without it."""
    t = Target()
    for column in ("payload", "payload_bytes", "headers", "enqueued_at"):
        w = t.start(function=None, table="app.inbox")
        batch, _ = w.events([{"headers": b'{"h": 1}'}])
        commits(w, batch, 1)
        before = t.count("app.inbox")
        t.psql(f"ALTER TABLE app.inbox RENAME {column} TO other")
        w.events([{}, {"payload": b"\0", "json": False}])
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42703", f
        w.sock.close()
        f = t.failed(function=None, table="app.inbox")
        assert f["outcome"] == "rejected" and f["sqlstate"] == "42703", f
        assert f'"{column}"' in f["message"] and "omit_columns" in f["message"], f
        assert t.count("app.inbox") == before
        t.psql(f"ALTER TABLE app.inbox RENAME other TO {column}")


def test_table_that_leaves_columns_out():
    t = Target(POSITION + """CREATE SCHEMA app;
        CREATE TABLE app.ids (event_id uuid PRIMARY KEY, payload_bytes bytea, content_type text);
        CREATE TABLE app.raw (event_id uuid PRIMARY KEY, payload bytea, content_type text);""")
    rest = "seq, aggregate_type, aggregate_id,event_type,headers ,enqueued_at"
    events = [{"payload": b"{}"}, {"payload": b"\1", "json": False, "content_type": "x/y"}]
    assert '"payload"' in t.failed(function=None, table="app.ids", omit_columns=rest)["message"]
    for table, omitted, expected in (("app.ids", rest + ",payload", ["|", "\\x01|x/y"]), ("app.raw", rest, ["\\x7b7d|", "\\x01|x/y"])):
        w = t.start(function=None, table=table, omit_columns=omitted, relay=table)
        batch, ids = w.events(events)
        commits(w, batch, 2)
        w.close()
        got = dict(line.split("|", 1) for line in t.psql(f"SELECT * FROM {table}").splitlines())
        assert [got[str(i)] for i in ids] == expected, got


def test_what_a_call_sets():
    """It ends with the batch, and where events are called one by one, with the event."""
    settings = ("client_encoding", "DateStyle", "search_path", "standard_conforming_strings", "lock_timeout", "statement_timeout",
                "synchronous_commit", "session_replication_role", "row_security", "bytea_output", "extra_float_digits",
                "default_transaction_read_only", "session_authorization", "role")
    t = Target(POSITION + f"""CREATE SCHEMA app; CREATE TABLE app.got (n serial, key text, headers text, settings text, lsn pg_lsn DEFAULT pg_current_wal_insert_lsn());
        GRANT USAGE ON SCHEMA app TO pg_monitor; GRANT ALL ON app.got, app.got_n_seq TO pg_monitor;
        CREATE FUNCTION app.on_event(aggregate_id text, event_type text, headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO app.got (key, headers, settings) SELECT aggregate_id, headers->>'h',
                string_agg(CASE s WHEN 'statement_timeout' THEN (current_setting(s) <> '0')::text ELSE current_setting(s) END, ',' ORDER BY i)
                FROM unnest('{{{",".join(settings)}}}'::text[]) WITH ORDINALITY AS u (s, i);
            IF event_type = 'BAD' THEN
                RAISE EXCEPTION 'no such thing' USING ERRCODE = 'P0042';
            ELSIF event_type = 'SETS' THEN
                SET client_encoding = LATIN1; SET DateStyle = German; SET search_path = pg_temp;
                SET standard_conforming_strings = off; SET lock_timeout = '1ms'; SET statement_timeout = 0;
                SET synchronous_commit = off; SET session_replication_role = replica; SET row_security = off;
                SET bytea_output = escape; SET extra_float_digits = -9; SET default_transaction_read_only = on;
                SET SESSION AUTHORIZATION pg_monitor; SET ROLE pg_read_all_stats;
            END IF;
        END $$""")
    w = t.start()
    event = {"key": "\u00e9", "headers": '{"h": "\u20ac"}'.encode()}
    sets = dict(event, type="SETS")
    for events in ([event], [sets], [event, event], [sets]):
        batch, _ = w.events(events)
        commits(w, batch, len(events))
        # what is acked is on disk, though the call has switched synchronous_commit off
        assert t.psql("SELECT bool_and(lsn <= pg_current_wal_flush_lsn()) FROM app.got") == "t"
    # the events of this batch are called one by one
    batch, _ = w.events([event, sets, dict(event, type="BAD"), event, sets, event])
    assert w.outcomes(batch, 6) == ["acked", "acked", "rejected", "acked", "acked", "acked"], w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == 10
    got = t.psql("SELECT DISTINCT key, headers, settings FROM app.got").splitlines()
    assert len(got) == 1 and got[0].startswith("\u00e9|\u20ac|UTF8,"), got
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


def test_json_where_bytes_are_wanted():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (a bytea);
        CREATE FUNCTION app.f(payload_bytes bytea) RETURNS void LANGUAGE sql AS 'INSERT INTO app.got VALUES (payload_bytes)';
        """)
    w = t.start(function="app.f")
    batch, _ = w.events([{"payload": b"\1", "json": False}, {}])
    assert w.outcomes(batch, 2) == ["acked", "rejected"]
    assert w.notes[1][0] == "42804", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.psql("SELECT a FROM app.got") == "\\x01"
    w.close()


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


def test_setup_sql():
    """The DDL in setup_sql.h is what the program needs."""
    header = (TOP / "src/sink/postgres/setup_sql.h").read_text()

    def text(macro):
        body = header.split(f"#define {macro} ")[1].split("\n\n")[0]
        return "".join(json.loads(line.strip().rstrip("\\").strip())
                       for line in body.splitlines()[1:])
    columns = re.findall(r'^\t\{"(.*)", "(.*)"\},$', header, re.M)
    sql = text("IDEM_SINK_POSTGRES_SETUP_SQL") % (("public.idempotency_sink_position",) * 3 + ("postgres",))
    sql += "CREATE SCHEMA app;" + text("IDEM_SINK_POSTGRES_INBOX_SQL") % (
        "app.inbox", "".join(f", {name} {kind}" for name, kind in columns), "app.inbox", "postgres")
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


def test_every_result_is_computed():
    """Whatever a function returns, and wherever the planner puts its body: one effect per event."""
    t = Target(POSITION + """
        CREATE SCHEMA app;
        CREATE TABLE app.got (name text, event_id uuid);
        CREATE FUNCTION app.note(name text, event_id uuid) RETURNS int LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO app.got VALUES (name, event_id); RETURN CASE WHEN name LIKE '%null%' THEN NULL ELSE 1 END; END $$;
        CREATE FUNCTION app.note_big(name text, event_id uuid) RETURNS text LANGUAGE sql AS
            $$ SELECT repeat('x', 1000000) FROM app.note(name, event_id) $$;
        CREATE TYPE app.pair AS (a int, b int);
        CREATE DOMAIN app.some AS int NOT NULL;
        CREATE FUNCTION app.first(event_id uuid) RETURNS app.pair LANGUAGE sql AS
            $$ SELECT ROW(0, app.note('first', event_id))::app.pair $$;
        CREATE FUNCTION app.second(event_id uuid) RETURNS app.pair LANGUAGE sql AS
            $$ SELECT ROW(app.note('second', event_id), 0)::app.pair $$;
        CREATE FUNCTION app.both(event_id uuid) RETURNS app.pair LANGUAGE sql AS
            $$ SELECT ROW(app.note('both', event_id), app.note('both too', event_id))::app.pair $$;
        CREATE FUNCTION app.both_null(event_id uuid) RETURNS app.pair LANGUAGE sql AS
            $$ SELECT ROW(app.note('both null', event_id), app.note('both null too', event_id))::app.pair $$;
        CREATE FUNCTION app.out(event_id uuid, OUT a int, OUT b int) LANGUAGE sql AS
            $$ SELECT 0, app.note('out', event_id) $$;
        CREATE FUNCTION app.record(event_id uuid) RETURNS record LANGUAGE sql AS
            $$ SELECT 0, app.note('record', event_id) $$;
        CREATE FUNCTION app.scalar(event_id uuid) RETURNS int LANGUAGE sql AS $$ SELECT app.note('scalar', event_id) $$;
        CREATE FUNCTION app.scalar_null(event_id uuid) RETURNS int LANGUAGE sql AS $$ SELECT app.note('null', event_id) $$;
        CREATE FUNCTION app.arr(event_id uuid) RETURNS int[] LANGUAGE sql AS $$ SELECT ARRAY[0, app.note('arr', event_id)] $$;
        CREATE FUNCTION app.dom(event_id uuid) RETURNS app.some LANGUAGE sql AS $$ SELECT app.note('dom', event_id)::app.some $$;
        CREATE FUNCTION app.big(event_id uuid) RETURNS text LANGUAGE sql AS $$ SELECT app.note_big('big', event_id) $$;
        CREATE FUNCTION app.nothing(event_id uuid) RETURNS void LANGUAGE sql AS $$ SELECT app.note('nothing', event_id) $$;
        CREATE FUNCTION app.stable(event_id uuid) RETURNS int LANGUAGE sql STABLE AS $$ SELECT app.note('stable', event_id) $$;
        CREATE FUNCTION app.lone() RETURNS app.pair LANGUAGE sql AS $$ SELECT ROW(0, app.note('lone', NULL))::app.pair $$;""")
    names = ("first", "second", "both", "both_null", "out", "record", "scalar", "scalar_null", "arr", "dom", "big", "nothing",
             "stable", "lone")
    for name in names:
        w = t.start(function=f"app.{name}", relay=name)
        batch, _ = w.events([{}] * 3)
        commits(w, batch, 3)
        w.close()
    assert t.psql("SELECT string_agg(name, ', ' ORDER BY name COLLATE \"C\") FROM (SELECT name FROM app.got GROUP BY name"
                  " HAVING count(*) = 3 AND count(DISTINCT event_id) IN (0, 3)) AS g") == (
        "arr, big, both, both null, both null too, both too, dom, first, lone, nothing, null, out, record, scalar, second, stable")
    assert t.psql("SELECT count(*) FROM app.got") == str(3 * 16)
