"""Events that the target refuses, or takes too long over."""
import itertools
import uuid

from postgres.target import POSITION, Target, commits, through_proxy
from server import wait_until
from sinklib import codec


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
    out = w.outcomes(batch, 1000)
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


def test_claim_left_to_commit():
    """No event raises an error alone, COMMIT does: the verdict says so, and nothing is done."""
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (k text);
        CREATE FUNCTION app.on_event(event_id uuid, aggregate_id text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            IF event_type = 'BAD' THEN RAISE EXCEPTION 'bad'; END IF;
            INSERT INTO app.got VALUES (aggregate_id);
            IF aggregate_id = 'forgets' THEN PERFORM idempotency.claim_event(event_id::text, 'handler'); END IF;
        END $$;""", extension=True)
    for bad in (False, True):
        w = t.start()
        batch, _ = w.events([{}, {"key": "forgets"}, {"type": "BAD" if bad else "T"}])
        assert w.outcomes(batch, 3) == ["acked", "acked", "rejected" if bad else "acked"]
        if bad:
            w.send("SETTLE", batch=batch)
        v = w.expect("VERDICT", batch=batch, kind=2)
        assert v["sqlstate"] == "ID001" and "neither completed nor released" in v["message"], v
        w.expect("FAILED")
        assert w.exit_status() == 0 and t.count() == 0 and t.position()[2] != str(batch)
        w.sock.close()


RAISES = POSITION + """
    CREATE SCHEMA app;
    CREATE FUNCTION app.on_event(payload jsonb, headers jsonb, event_type text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF event_type <> 'T' THEN
            RAISE EXCEPTION '%', CASE split_part(event_type, ' ', 2)
                WHEN 'payload' THEN 'bad: ' || payload::text WHEN 'headers' THEN 'bad: ' || headers::text
                WHEN 'field' THEN 'bad: ' || (payload ->> 'card') WHEN 'own' THEN 'no such order'
                ELSE payload ->> 'says' END USING ERRCODE = split_part(event_type, ' ', 1);
        END IF;
    END $$;"""
CARD = b'{"card": "4111 1111 1111 1111"}'


def test_failures_have_no_event():
    """What ends the program is logged, so no part of an event is in it, whatever the function raises."""
    t = Target(RAISES)
    for state, outcome in (("42501", "rejected"), ("53100", "outage")):
        for what, payload in (("payload", CARD), ("payload", b'{"pin": 42}'), ("field", CARD), ("headers", CARD), ("own", CARD)):
            w = t.start()
            w.events([{"type": f"{state} {what}", "payload": payload, "headers": b'{"x-card": "4111 1111 1111"}'}] * 9)
            f = w.expect("FAILED")
            assert f["outcome"] == codec.OUTCOMES[outcome] and f["sqlstate"] == state, f
            if what == "own":
                assert f["message"] == "could not apply a batch: no such order", f
            else:
                assert "part of an event" in f["message"] and state in f["message"], f
                assert "4111" not in f["message"] and "42}" not in f["message"], f
            assert w.exit_status() == 0 and w.stderr() == ""
            w.sock.close()


# what a function may raise that targets say when they are down or not set up; what may be either's
OF_THE_FUNCTION = ("08001", "08006", "28P01", "3D000", "25006", "25P04", "57P01", "57P03")
DOUBTFUL = ("53100", "53200", "53400", "58030", "58P01", "42501", "40001", "40P01")


def settled(w, batch, expected):
    assert w.outcomes(batch, len(expected)) == expected, w.notes
    if set(expected) != {"acked"}:
        w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)


def test_function_raises_what_targets_say():
    """One event's error stops no other, whatever its SQLSTATE; a doubtful one counts when others pass."""
    t = Target(RAISES)
    w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
    for state in OF_THE_FUNCTION + DOUBTFUL:
        bad = {"key": "b", "type": f"{state} own"}
        batch, _ = w.events([{"key": "a"}, bad, {"key": "b"}, {"key": "c"}])
        # the others may have used up what a transaction has room for
        settled(w, batch, ["acked", "unknown" if state == "53400" else "rejected", "skipped", "acked"])
        assert w.last_result["retry_after"] == 0, w.last_result
        assert w.notes[1] == (state, "no such order"), w.notes
        # alone: an event passed before it
        batch, _ = w.events([bad])
        settled(w, batch, ["rejected"])
        # none has passed since: if it may be the target, it waits, and costs no attempt
        unsure = ("unknown", 5000) if state in DOUBTFUL else ("rejected", 0)
        batch, _ = w.events([bad])
        assert w.outcomes(batch, 1) == [unsure[0]] and w.notes[0][0] == state, w.notes
        assert w.last_result["retry_after"] == unsure[1], w.last_result
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        # behind the last that passed: the target may have gone down
        batch, _ = w.events([{"key": "a"}, bad])
        settled(w, batch, ["acked", unsure[0]])
    w.close()


def test_target_refuses_all():
    """What every event of a batch meets is the target's state; what a few meet stops no others."""
    t = Target(RAISES)
    for state in DOUBTFUL:
        bad = [{"key": str(i), "type": f"{state} own"} for i in range(200)]
        w = t.start()
        batch, _ = w.events(bad[:8])
        settled(w, batch, ["unknown"] * 8)
        batch, _ = w.events([{}, {}])
        settled(w, batch, ["acked"] * 2)
        batch, _ = w.events(bad[:8])
        settled(w, batch, ["unknown" if state == "53400" else "rejected"] + ["unknown"] * 7)
        w.events(bad)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["rejected" if state == "42501" else "outage"], f
        if state == "40P01":
            # the locks of so many are not kept for another try
            assert f["sqlstate"] == "53400" and "200 events" in f["message"], f
        else:
            assert f["sqlstate"] == state and f["message"] == "could not apply a batch: no such order", f
        assert w.exit_status() == 0
        w.sock.close()


def test_privilege_missing_from_the_start():
    """A target that never took a batch is not set up; later a few events, without others, are no reason to stop."""
    t = Target(RAISES)
    bad = [{"key": str(i), "type": "42501 own"} for i in range(8)]
    w = t.start()
    w.events(bad[:1])
    f = w.expect("FAILED")
    assert f["outcome"] == codec.OUTCOMES["rejected"] and f["sqlstate"] == "42501", f
    w.sock.close()
    w = t.start()
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    w.close()
    # as after each start of the program, which has forgotten what passed
    for n in (1, 8):
        w = t.start()
        batch, _ = w.events(bad[:n])
        settled(w, batch, ["unknown"] * n)
        batch, _ = w.events([{}])
        commits(w, batch, 1)
        batch, _ = w.events(bad[:n])
        settled(w, batch, ["rejected"] + ["unknown"] * (n - 1))
        w.close()


ENDS = POSITION + """
    CREATE SCHEMA app; CREATE TABLE app.got (k text); CREATE SEQUENCE app.ended;
    CREATE FUNCTION app.on_event(aggregate_id text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF event_type NOT IN ('T', 'ENDS') THEN RAISE EXCEPTION 'bad' USING ERRCODE = event_type; END IF;
        INSERT INTO app.got VALUES (aggregate_id);
        IF event_type = 'ENDS' THEN
            PERFORM nextval('app.ended');
            PERFORM pg_terminate_backend(pg_backend_pid());
        END IF;
    END $$;"""


def test_call_ends_the_session():
    """The event is found, and costs a session per retry; the others are delivered."""
    t = Target(ENDS)
    w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
    ends = {"key": "e", "type": "ENDS", "id": uuid.uuid4()}
    ended = lambda: int(t.psql("SELECT last_value FROM app.ended"))
    batch, _ = w.events([{"key": "a"}, {"key": "b", "type": "P0042"}, ends, {"key": "c"}, {"key": "e"}, {"key": "d"}])
    # something may end long transactions, so the first call alone is to blame
    settled(w, batch, ["acked", "rejected", "unknown", "unknown", "skipped", "unknown"])
    assert w.notes[2][0] == "ID006" and "ended when the event was called" in w.notes[2][1], w.notes
    assert w.notes[3][0] == "08006" and ended() == 2, w.notes
    batch, _ = w.events([{"key": "c"}, {"key": "d"}])
    commits(w, batch, 2)
    for tries in (3, 4):
        batch, _ = w.events([ends])
        settled(w, batch, ["rejected"])
        assert w.notes[0][0] == "ID006" and ended() == tries, w.notes
    # two of them: the first is refused, the next one ends the batch
    batch, _ = w.events([{"key": "f", "type": "ENDS"}, {"key": "a"}, {"key": "g", "type": "ENDS"}, {"key": "h"}])
    settled(w, batch, ["rejected", "acked", "unknown", "unknown"])
    assert ended() == 7 and t.psql("SELECT string_agg(k, '' ORDER BY k) FROM app.got") == "aacd"
    w.close()


def bad_ones_end(kinds):
    """A batch with bad events, and the batches with what was not decided, as a worker sends them."""
    t = Target(ENDS)
    w = t.start()
    bad = [{"key": f"bad{i}", "type": kind, "id": uuid.uuid4()} for i, kind in enumerate(kinds)]
    good = [{"key": f"good{i}", "id": uuid.uuid4()} for i in range(len(kinds) + 1)]
    left = [e for pair in zip(good, bad) for e in pair] + good[-1:]
    for tries in range(3 * len(kinds)):
        batch, _ = w.events(left)
        outcomes = w.outcomes(batch, len(left))
        if "unknown" in outcomes or "rejected" in outcomes:
            w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        assert all((outcome == "rejected") <= (e in bad) for e, outcome in zip(left, outcomes)), (kinds, outcomes)
        left = [e for e, outcome in zip(left, outcomes) if outcome == "unknown"]
        if not left:
            break
        left.append({"key": "later"})
    assert not left, (kinds, left)
    assert t.psql("SELECT count(*) FROM app.got WHERE k LIKE 'good%'") == str(len(good)), kinds
    w.close()


def test_bad_ones_in_any_order():
    """What one of them uses up, tries or sessions, the others do not lack."""
    for kinds in itertools.product(("40001", "ENDS", "53100", "P0042"), repeat=3):
        if {"40001", "ENDS"} <= set(kinds):
            bad_ones_end(kinds)


def test_session_ended_once():
    """By somebody else: no event is to blame."""
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (k text); CREATE SEQUENCE app.ended;
        CREATE FUNCTION app.on_event(aggregate_id text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO app.got VALUES (aggregate_id);
            IF nextval('app.ended') = 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
        END $$;""")
    w = t.start()
    batch, _ = w.events([{}, {}, {}])
    commits(w, batch, 3)
    assert t.count() == 3
    w.close()


def test_passing_failure_passes():
    """A serialization failure of a call is nobody's fault when the batch passes on another try."""
    t = Target(POSITION + """
        CREATE SCHEMA app; CREATE TABLE app.got (k text); CREATE SEQUENCE app.tries;
        CREATE FUNCTION app.on_event(aggregate_id text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            IF event_type = 'twice' AND nextval('app.tries') < 3 THEN
                RAISE EXCEPTION 'again' USING ERRCODE = '40001';
            END IF;
            INSERT INTO app.got VALUES (aggregate_id);
        END $$;""")
    w = t.start()
    batch, _ = w.events([{}, {"type": "twice"}, {}])
    settled(w, batch, ["acked"] * 3)
    assert t.count() == 3
    w.close()


def test_call_leaves_the_transaction_read_only():
    """What one call sets is no other event's, nor the completion's of the claims."""
    for extension in (False, True):
        t = Target(POSITION + """
            CREATE SCHEMA app; CREATE TABLE app.got (k text);
            CREATE FUNCTION app.on_event(aggregate_id text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
                IF event_type = 'early' THEN SET transaction_read_only = on; END IF;
                INSERT INTO app.got VALUES (aggregate_id);
                IF event_type = 'late' THEN SET transaction_read_only = on; END IF;
            END $$;""", extension=extension)
        w = t.start()
        batch, _ = w.events([{}, {"type": "late"}, {"type": "early"}, {}, {"type": "late"}])
        settled(w, batch, ["acked", "acked", "rejected", "acked", "acked"])
        assert w.notes[2][0] == "25006" and t.count() == 4, w.notes
        batch, _ = w.events([{}, {"type": "late"}])
        settled(w, batch, ["acked"] * 2)
        assert t.count() == 6
        w.close()


def test_aborted_batch_has_no_event():
    """The verdict on a batch that cannot be committed is logged, too."""
    t = Target(POSITION + """
        CREATE SCHEMA app;
        CREATE FUNCTION app.on_event(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM idempotency.claim_event(payload ->> 'card', 'handler');
        END $$;""", extension=True)
    w = t.start()
    batch, _ = w.events([{"payload": CARD}])
    assert w.outcomes(batch, 1) == ["acked"]
    v = w.expect("VERDICT", batch=batch, kind=2)
    f = w.expect("FAILED")
    for said in (v, f):
        assert said["sqlstate"] == "ID001" and "part of an event" in said["message"] and "4111" not in said["message"], said
    w.sock.close()


def test_secrets_that_the_target_repeats():
    """Neither an event's error nor a failure has the password in it, or a part of it."""
    t = Target(RAISES)
    long, short = "correct-horse-battery", "hunter2"
    for secret, said in ((long, f"got {long}"), (long, f"got {long[3:17]}"), (short, f"got {short}"), (short, "x" * 1020 + short)):
        for option in ("password", "sslpassword"):
            w = t.start(**{option: secret})
            batch, _ = w.events([{"type": "P0042 says", "payload": b'{"says": "%s"}' % said.encode()},
                                 {"type": "P0042 own"}])
            assert w.outcomes(batch, 2) == ["rejected"] * 2
            assert "part of a secret" in w.notes[0][1] and "P0042" in w.notes[0][1] and secret[:4] not in w.notes[0][1], w.notes
            assert w.notes[1] == ("P0042", "no such order"), w.notes
            w.send("SETTLE", batch=batch)
            w.expect("VERDICT", batch=batch, kind=1)
            w.events([{"type": "42501 says", "payload": b'{"says": "%s"}' % said.encode()}] * 9)
            f = w.expect("FAILED")
            assert f["sqlstate"] == "42501" and "part of a secret" in f["message"] and secret[:4] not in f["message"], f
            w.sock.close()
    t.psql(f'DROP FUNCTION app.on_event; CREATE FUNCTION app.on_event("{long}" int) RETURNS void LANGUAGE sql AS \'\'')
    f = t.failed(password=long)
    assert f["sqlstate"] == "42883" and "not shown" in f["message"] and long not in f["message"], f


def test_slow_event():
    t = Target()
    w = t.start(statement_timeout="5000")  # of the others as well, whatever the disk does
    batch, _ = w.events([{}, {"type": "SLOW"}, {}])
    # what the first one left was too little, and the third got nothing
    assert w.outcomes(batch, 3) == ["acked", "unknown", "unknown"]
    assert w.notes[1][0] == w.notes[2][0] == "57014", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    # as the relay sends them again: one that is too slow with all the time is to blame
    batch, _ = w.events([{"type": "SLOW"}, {}])
    assert w.outcomes(batch, 2) == ["retry", "unknown"]
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    w.close()


def test_timeout_behind_a_call():
    """The time of a batch ends in the RELEASE after the second event's call."""
    t = Target()
    with through_proxy(t) as proxy:
        w = t.start(statement_timeout="5000")
        proxy.hold = (b"RELEASE SAVEPOINT", 2)
        batch, _ = w.events([{}, {}, {}, {"type": "BAD"}])
        # the target's timer runs while it waits for the rest of the statement
        wait_until("the time is over", lambda: t.psql(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'ClientRead'"
            " AND query LIKE 'RELEASE SAVEPOINT%' AND datname = current_database()"
            " AND query_start < clock_timestamp() - interval '6 s')") == "t")
        proxy.release.set()
        assert w.outcomes(batch, 4) == ["acked", "unknown", "unknown", "unknown"], w.notes
        assert proxy.hit.is_set() and w.notes[1][0] == "57014", w.notes
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        assert t.count() == 1
        w.close()


def slow_batch(key_order):
    """Each call is quick, all of them are not: the transaction ends in time, without some."""
    t = Target(POSITION + """
        CREATE SCHEMA app;
        CREATE TABLE app.got (n serial, k text);
        CREATE FUNCTION app.on_event(aggregate_id text) RETURNS void LANGUAGE sql AS $$
            INSERT INTO app.got (k) VALUES (aggregate_id);
            SELECT pg_sleep(0.8) $$;""")
    w = t.start(statement_timeout="4000", flags=codec.WANT_POSITION | (codec.KEY_ORDER if key_order else 0))
    batch, _ = w.events([{"key": str(i % 2)} for i in range(8)])
    out = w.outcomes(batch, 8)
    done = out.count("acked")
    # in order, so that nothing is done after what was not; in the time, which has room for five calls that
    # sleep, on any machine
    assert 0 < done <= 5 and out[:done] == ["acked"] * done, out
    assert set(out[done:]) == {"unknown"}, out
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == done
    w.close()


def test_slow_batch():
    slow_batch(False)


def test_slow_batch_key_order():
    slow_batch(True)


def test_many_events_keep_no_locks_for_long():
    """The time of many events is short whatever statement_timeout says: fewer are asked for, and no event is blamed."""
    for timeout, how in (("0", "all"), ("60000", "behind a bad one")):
        t = Target(POSITION + """
            CREATE SCHEMA app;
            CREATE TABLE app.got (n serial);
            CREATE FUNCTION app.on_event(event_type text) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO app.got DEFAULT VALUES;
                IF event_type = 'BAD' THEN RAISE 'bad'; END IF;
                PERFORM pg_sleep(60);
            END $$;""")
        w = t.start(statement_timeout=timeout)
        w.events([{"type": "BAD" if how != "all" and i == 0 else "t"} for i in range(9)])
        f = w.expect("FAILED", 60)
        assert f["outcome"] == codec.OUTCOMES["outage"] and f["sqlstate"] == "53400", f
        assert "9 events" in f["message"], f
        w.sock.close()
        wait_until("nothing committed", lambda: t.count() == 0)


def test_ping_while_the_target_works():
    t = Target()
    w = t.start()
    w.events([{"type": "SLOW"}])
    wait_until("the call sleeps", lambda: t.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
               " AND datname = current_database()") == "1")
    w.send("PING", nonce=9)
    w.expect("PONG", nonce=9)
    w.close()       # exits at once although the call is under way
    wait_until("nothing committed", lambda: t.count() == 0)
