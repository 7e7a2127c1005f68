"""A COMMIT whose answer is lost, predecessors that still live, sessions that end."""
import contextlib
import os
import socket
import subprocess
import threading
import uuid

from postgres.target import PSQL, POSITION, Proxy, Target, commits, server, through_proxy
from server import wait_until
from sinklib import PATIENCE, codec


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


def test_every_commit_lost():
    """A target that drops the COMMIT of each batch is an outage: the relay waits before it tries again."""
    t = Target()
    with through_proxy(t) as proxy:
        w = t.start()
        proxy.deliver = False
        proxy.swallow = b"COMMIT\0"
        proxy.swallow_times = 1000
        proxy.spare = b"FOR UPDATE"     # the question whether a COMMIT arrived
        w.events([{}, {}], row_id=2)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["outage"] and "lost at COMMIT: " in f["message"], f
        assert "no answer" in f["message"] or "closed" in f["message"], f      # the target's reason
        assert 990 < proxy.swallow_times < 1000 and t.count() == 0
        assert w.recv() is None and w.exit_status() == 0
        w.sock.close()


def test_lost_commit_of_another_life():
    """Another history of the relay stored the same numbers: that is not this COMMIT."""
    t = Target()
    t.psql("INSERT INTO idempotency_sink_position (relay, epoch, incarnation, row_id, k)"
           " VALUES ('orders', 1, 'log-1/00000000000000aa', 2, 5)")
    with through_proxy(t) as proxy:
        w = t.start(incarnation="log-1/00000000000000bb")
        assert w.ready["incarnation"] == "log-1/00000000000000aa"
        proxy.deliver = False
        proxy.swallow = b"COMMIT\0"
        batch, _ = w.events([{}, {}], row_id=2, k=5)
        commits(w, batch, 2)
        assert proxy.hit.is_set()
        assert t.count() == 2 and t.position()[1:] == ["log-1/00000000000000bb", "2", "5"]
        w.close()


def test_killed_program_takes_over_late():
    """What a killed program has sent to take over reaches the target behind its successor, and fences nobody."""
    for known in (True, False):
        t = Target()
        if known:
            t.start().close()
        host, port = t.host, t.port
        with through_proxy(t) as proxy:
            proxy.hold = (b"BEGIN ISOLATION", 3)    # behind two look-ups
            old = t.start(hello=False)
            wait_until("the program takes over", lambda: proxy.hold is None)
            old.kill()
            t.host, t.port = host, port
            w = t.start()
            batch, _ = w.events([{}], row_id=1)
            commits(w, batch, 1)
            proxy.release.set()
            wait_until("the killed program's session ends", lambda: t.psql(SESSIONS) == "1")
            batch, _ = w.events([{}], row_id=2)
            commits(w, batch, 1)
            assert t.count() == 2
            w.close()


SESSIONS = ("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idempotency sink'"
            " AND datname = current_database()")
END_SESSIONS = ("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idempotency sink'"
                " AND datname = current_database()")


def ends_idle(w):
    """An idle program notices the end of its session, and ends: the next one compares the position."""
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["outage"] and "ended the session" in f["message"], f
    assert w.recv() is None and w.exit_status() == 0
    w.sock.close()


def set_back(sql):
    """A target that is set back while the program is idle and has its connection, or loses it."""
    for cut in (False, True):
        t = Target()
        w = t.start()
        for row_id in (1, 2):
            batch, _ = w.events([{}], row_id=row_id)
            commits(w, batch, 1)
        t.psql(sql)
        if cut:
            t.psql(END_SESSIONS)
            ends_idle(w)
        else:
            w.events([{}], row_id=3)
            f = w.expect("FAILED")
            assert f["outcome"] == codec.OUTCOMES["outage"] and "set back" in f["message"], f
            assert w.recv() is None and w.exit_status() == 0
            w.sock.close()
        assert t.count() == 2
        w = t.start()
        yield w.ready
        w.close()


def test_target_set_back():
    """It has an older position under the same epoch: what it lost must not be passed over."""
    for ready in set_back("UPDATE idempotency_sink_position SET row_id = 1"):
        assert ready["has_position"] == 1 and ready["row_id"] == 1, ready


def test_position_that_no_relay_has_written():
    t = Target()
    for epoch, incarnation, why in (("1", "repeat('y', 100000)", "incarnation is too long"),
                                    ("9223372036854775807", "'log-1'", "epoch cannot be raised")):
        t.psql("INSERT INTO idempotency_sink_position (relay, epoch, incarnation, row_id, k)"
               f" VALUES ('orders', {epoch}, {incarnation}, 1, 0)")
        w = t.start(hello=False)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["rejected"] and why in f["message"] and "relay_adopt" in f["message"], f
        assert w.recv() is None and w.exit_status() == 0
        w.sock.close()
        t.psql("DELETE FROM idempotency_sink_position")
    # without an incarnation it is no position, and the first batch replaces it
    t.psql("INSERT INTO idempotency_sink_position (relay, epoch, row_id, k) VALUES ('orders', 7, 33, 10)")
    w = t.start()
    assert w.ready["has_position"] == 0, w.ready
    batch, _ = w.events([{}], row_id=2, k=5)
    commits(w, batch, 1)
    assert t.position() == ["8", "log-1", "2", "5"], t.position()
    w.close()


ON_POSITION = """
    CREATE FUNCTION app.meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s END $$;
    CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON idempotency_sink_position FOR EACH ROW EXECUTE FUNCTION app.meddle()"""


def not_stored(f):
    assert f["outcome"] in ("rejected", codec.OUTCOMES["rejected"]) and f["sqlstate"] == "55000", f
    assert "did not store position" in f["message"] and "triggers" in f["message"], f


def test_position_is_not_stored_as_sent():
    """What the table's triggers make of the position is no position: nothing is committed, at hello or with a batch."""
    for body, takes in (("RETURN NULL;", False), ("RETURN OLD;", False), ("NEW.row_id = 1; RETURN NEW;", True), ("NEW.k = NULL; RETURN NEW;", False),
                        ("NEW.k = NEW.k + 1; RETURN NEW;", False), ("NEW.incarnation = 'mine'; RETURN NEW;", False), ("NEW.epoch = 9; RETURN NEW;", True)):
        t = Target()
        w = t.start()
        batch, _ = w.events([{}], row_id=1)
        commits(w, batch, 1)
        stored = t.position()[1:]
        t.psql(ON_POSITION % body)
        w.events([{}, {}], row_id=2)
        not_stored(w.expect("FAILED"))
        assert w.recv() is None and w.exit_status() == 0
        w.sock.close()
        assert t.count() == 1, body
        if takes:
            w = t.start()
            w.close()
        else:
            not_stored(t.failed())
            assert t.position()[1:] == stored, "a start has changed the position"
    # an epoch that does not rise fences nobody
    t = Target()
    t.start().close()
    t.psql(ON_POSITION % "NEW.epoch = 1; RETURN NEW;")
    not_stored(t.failed())
    # before there is a row
    t = Target()
    t.psql(ON_POSITION % "RETURN NULL;")
    not_stored(t.failed())


def test_position_that_does_not_stay():
    """A crash would empty the table, or a part of it, or what is behind it: the effects that stay would come again."""
    t = Target()
    t.psql("""CREATE TABLE app.parts (LIKE public.idempotency_sink_position INCLUDING ALL) PARTITION BY LIST (relay);
        CREATE UNLOGGED TABLE app.part PARTITION OF app.parts DEFAULT;
        CREATE UNLOGGED TABLE app.gone (LIKE public.idempotency_sink_position INCLUDING ALL);
        CREATE TABLE app.kept (LIKE public.idempotency_sink_position INCLUDING ALL);
        CREATE VIEW app.seen AS SELECT * FROM app.kept;
        CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
        CREATE FOREIGN TABLE app.far (relay text, epoch bigint, incarnation text, row_id bigint, k bigint, updated_at timestamptz) SERVER s""")
    for table, says in (("gone", "unlogged"), ("parts", "unlogged"), ("seen", "no table"), ("far", "no table")):
        f = t.failed(position_table=f"app.{table}")
        assert f["outcome"] == "rejected" and f["sqlstate"] == "55000" and says in f["message"] and f'"app"."{table}"' in f["message"], f
    t.psql("ALTER TABLE app.part SET LOGGED")
    for table in ("kept", "parts"):
        t.start(position_table=f"app.{table}").close()


def test_target_cleared():
    for ready in set_back("DELETE FROM idempotency_sink_position"):
        assert ready["has_position"] == 0, ready


def a_commit_waits():
    """Try one, and cancel its wait.  No COMMIT waits before the checkpointer has read the setting."""
    probe = subprocess.Popen(
        [PSQL, "-Xq", "-h", server().host, "-p", server().port, "-U", "postgres", "-d", "postgres", "-o", os.devnull,
         "-c", "SELECT pg_logical_emit_message(true, '', '')"], env={"PGAPPNAME": "probe"}, stderr=subprocess.DEVNULL)
    cancelled = ""
    while probe.poll() is None and not cancelled:
        cancelled = server().psql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                                  " WHERE application_name = 'probe' AND wait_event = 'SyncRep'")
    probe.wait(PATIENCE)
    return cancelled


@contextlib.contextmanager
def no_synchronous_standby():
    """Every COMMIT that wrote waits for a standby that is not there."""
    def configure(sql):
        server().psql(sql)
        server().psql("SELECT pg_reload_conf()")

    configure("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    try:
        wait_until("a COMMIT waits for a standby", a_commit_waits)
        yield
    finally:
        configure("ALTER SYSTEM RESET synchronous_standby_names")


def waits(count):
    """So many sessions of sinks wait for a standby; their process ids."""
    def pids():
        return server().psql("SELECT pid FROM pg_stat_activity WHERE application_name = 'idempotency sink'"
                             " AND wait_event = 'SyncRep'").split()

    wait_until("a COMMIT waits for a standby", lambda: len(pids()) == count)
    return pids()


class Cancelling:
    """Somebody cancels each wait for a standby."""
    def __enter__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.cancel)
        self.thread.start()

    def cancel(self):
        while not self.ended.wait(0.05):
            server().psql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def test_wait_for_standby_cancelled():
    """The target says COMMIT, and that a failover may lose it: that is no verdict, until a later COMMIT has waited."""
    t = Target()
    w = t.start()
    with no_synchronous_standby():
        batch, _ = w.events([{}], row_id=1)
        first = waits(1)
        server().psql(f"SELECT pg_cancel_backend({first[0]})")
        wait_until("the program asks by another connection", lambda: waits(1) != first)
    commits(w, batch, 1)
    assert t.count() == 1 and t.position()[2] == "1"
    w.close()


def test_wait_for_standby_always_cancelled():
    """An outage: the batch was not acknowledged, nor is the position that the next program reads."""
    t = Target()
    w = t.start()
    with no_synchronous_standby(), Cancelling():
        w.events([{}], row_id=1)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["outage"] and "synchronous standby" in f["message"], f
        assert w.recv() is None and w.exit_status() == 0
        w.sock.close()
        f = t.failed()
        assert f["outcome"] == "outage" and "synchronous standby" in f["message"], f
    w = t.start()
    assert w.ready["row_id"] == 1, w.ready
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
        assert proxy.hit.wait(PATIENCE)
        for pair in proxy.pairs:
            pair[1].close()
        t.psql("UPDATE idempotency_sink_position SET epoch = epoch + 1, row_id = 9, k = 0, incarnation = 'log-1'")
        again = Proxy(f"{server().host}/.s.PGSQL.{server().port}", proxy.host)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["fenced"], f
        assert t.count() == 0
        again.close()


def test_lost_commit_and_claimed_elsewhere():
    """What was answered as done cannot be done again: no verdict, rather than one that leaves it out."""
    t = Target(extension=True)
    event = uuid.uuid4()
    holder = subprocess.Popen(
        [PSQL, "-XAtq", "-h", server().host, "-p", server().port, "-U", "postgres", "-d", t.db],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def claim():
        holder.stdin.write(f"ROLLBACK; BEGIN; SELECT idempotency.claim_event('{event}'::text, 'billing');\n")
        holder.stdin.flush()
        return holder.stdout.readline().strip() == "claimed"

    with through_proxy(t) as proxy:
        w = t.start(consumer="billing")
        proxy.deliver = False
        proxy.swallow = b"COMMIT\0"
        listener, proxy.listener = proxy.listener, socket.socket()
        listener.close()
        os.unlink(f"{proxy.host}/.s.PGSQL.{proxy.port}")
        batch, _ = w.events([{"id": event}, {"type": "BAD"}], row_id=2)
        assert w.outcomes(batch, 2) == ["acked", "rejected"]
        w.send("SETTLE", batch=batch)
        assert proxy.hit.wait(PATIENCE)
        for pair in proxy.pairs:
            pair[1].close()
        wait_until("the claim is free", claim)
        again = Proxy(f"{server().host}/.s.PGSQL.{server().port}", proxy.host)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["outage"], f
        assert t.count() == 0
        again.close()
    holder.stdin.close()
    holder.wait(PATIENCE)


def test_fenced():
    """By a successor that has stored something, and by one that has only said hello."""
    for stores in (True, False):
        t = Target()
        old = t.start()
        batch, _ = old.events([{}])
        commits(old, batch, 1)
        new = t.start()
        if stores:
            batch, _ = new.events([{}], row_id=50)
            commits(new, batch, 1)
        before = t.position()
        old.events([{}, {}])
        f = old.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["fenced"] and f["sqlstate"] == "55000", f
        assert old.exit_status() == 0
        assert t.count() == 1 + stores and t.position() == before and before[0] == "2"
        old.sock.close()
        new.close()


def test_hello_waits_for_a_batch_in_flight():
    t = Target()
    old = t.start()
    batch, _ = old.events([{"type": "BAD"}, {}])     # waits for its SETTLE, in a transaction
    old.outcomes(batch, 2)
    new = t.start(hello=False)
    wait_until("hello waits", lambda: t.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
               " AND datname = current_database()") == "1")
    old.send("SETTLE", batch=batch)
    old.expect("VERDICT", batch=batch, kind=1)
    assert new.hello()["row_id"] == batch
    old.kill()
    new.close()


def test_partitioned_predecessor_lets_go():
    t = Target()
    with through_proxy(t) as proxy:
        old = t.start(idle_timeout="5000")
        batch, _ = old.events([{"type": "BAD"}, {}])
        old.outcomes(batch, 2)
        proxy.swallow = b"nothing will match this"
        new = t.start(host=server().host, port=server().port)   # waits for the timeout
        assert new.ready["has_position"] == 0
        assert t.count() == 0
        old.kill()
        new.close()


def test_server_restarts_sessions():
    t = Target()
    for row_id in (1, 2, 3):
        w = t.start()
        batch, _ = w.events([{}], row_id=row_id)
        commits(w, batch, 1)
        t.psql(END_SESSIONS)
        ends_idle(w)
    w = t.start()
    batch, _ = w.events([{"type": "SLOW"}])
    sleeping = ("FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
    # once: it is called again; twice in a row: the call is to blame.  The session of the first call is gone
    # before the second call is waited for.
    for _ in range(2):
        wait_until("the call sleeps", lambda: t.psql(f"SELECT count(*) {sleeping}") == "1")
        assert t.psql(f"SELECT pg_terminate_backend(pid, {PATIENCE * 1000:.0f}) {sleeping}") == "t"
    assert w.outcomes(batch, 1) == ["rejected"] and w.notes[0][0] == "ID006", w.notes
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
    w.events([{}] * 9)     # more than a few
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["outage"] and f["sqlstate"] == "53400", f
    assert t.psql("SELECT last_value FROM app.tries") == "-996"


def test_disk_full_is_an_outage():
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE FUNCTION app.on_event() RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$;""")
    w = t.start()
    w.events([{}] * 9)     # more than a few, and none passes: see poison_test.py
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["outage"] and f["sqlstate"] == "53100", f
