"""A target that has the extension: each event is claimed there."""
import subprocess
import uuid

from postgres.target import POSITION, PSQL, Target, commits, server
from sinklib import PATIENCE, codec


def test_claims_without_answers():
    """An event whose claim has no answer is no duplicate: nothing of the batch is acked."""
    for answers in ("1, 'a', 'claimed'::idempotency.claim_result LIMIT 1", "g, 'a', NULL::idempotency.claim_result FROM generate_series(1, 3) g"):
        t = Target(extension=True)
        t.psql(f"""ALTER FUNCTION idempotency.claim_events RENAME TO claim_events_before;
            CREATE FUNCTION idempotency.claim_events(event_ids text[], consumer text, OUT ord int, OUT event_id text,
                OUT result idempotency.claim_result) RETURNS SETOF record LANGUAGE sql AS $$ SELECT {answers} $$""")
        w = t.start()
        w.events([{}] * 3)
        f = w.expect("FAILED")
        assert f["outcome"] == codec.OUTCOMES["rejected"] and "no answer for some events" in f["message"], f
        assert w.recv() is None and w.exit_status() == 0 and t.count() == 0
        w.sock.close()


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
        [PSQL, "-XAtq", "-h", server().host, "-p", server().port, "-U", "postgres", "-d", t.db],
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
    holder.wait(PATIENCE)
    batch, _ = w.events([{"key": "b", "id": busy}])
    commits(w, batch, 1)
    assert t.count() == 2
    w.close()


def test_consumer_that_cannot_claim():
    """A relay's name that grew in a restore may be no consumer.  The message names the option."""
    t = Target(extension=True)
    w = t.start(consumer="\u00fc" * 127 + "x")
    batch, _ = w.events([{}])
    commits(w, batch, 1)
    w.close()
    f = t.failed(consumer="\u00fc" * 128)
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "22023"), f
    assert "has 256 bytes" in f["message"] and 'option "consumer"' in f["message"], f
    f = t.failed(consumer="@relay/x")
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "22023") and 'option "consumer"' in f["message"], f
    # without claims there is no consumer
    t.start(consumer="\u00fc" * 128, claim="off").close()


def test_claim_off():
    t = Target(extension=True)
    w = t.start(claim="off")
    assert not w.ready["capabilities"] & codec.DEDUPLICATES
    same = uuid.uuid4()
    batch, _ = w.events([{"id": same}, {"id": same}])
    commits(w, batch, 2)
    assert t.count() == 2
    w.close()


# what a function may do with a claim; %s: the consumer
CLAIMS = POSITION + """
    CREATE SCHEMA app; CREATE TABLE app.got (event_id uuid, event_type text);
    CREATE FUNCTION app.on_event(event_id uuid, event_type text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF event_type = 'claim' THEN
            IF idempotency.claim_event(event_id, '%(c)s') <> 'claimed' THEN RETURN; END IF;
        ELSIF event_type = 'claims' THEN
            IF (SELECT result FROM idempotency.claim_events(ARRAY[event_id::text], '%(c)s')) <> 'claimed' THEN RETURN; END IF;
        ELSIF event_type = 'lease' THEN
            IF (SELECT result FROM idempotency.lease_event(event_id, '%(c)s')) <> 'claimed' THEN RETURN; END IF;
        ELSIF event_type = 'leases' THEN
            IF (SELECT result FROM idempotency.lease_events(ARRAY[event_id::text], '%(c)s')) <> 'claimed' THEN RETURN; END IF;
        ELSIF event_type = 'release' THEN PERFORM idempotency.release_event(event_id, '%(c)s');
        ELSIF event_type = 'part' THEN
            PERFORM idempotency.claim_event('part of ' || event_id, '%(c)s'), idempotency.claim_event('part of ' || event_id, '%(c)s');
        END IF;
        INSERT INTO app.got VALUES (event_id, event_type);
        IF event_type IN ('claim', 'claims', 'complete') THEN PERFORM idempotency.complete_event(event_id, '%(c)s');
        ELSIF event_type = 'part' THEN PERFORM idempotency.complete_event('part of ' || event_id, '%(c)s');
        END IF;
    END $$;"""
OWN = ("claim", "claims", "lease", "leases", "complete", "release")


def test_function_that_claims_by_itself():
    """Under the sink's own consumer it would be told "duplicate", and its effect be left out: such an event is refused."""
    t = Target(CLAIMS % {"c": "billing"}, extension=True)
    w = t.start(consumer="billing")
    for types in (OWN, OWN[:1]):
        batch, ids = w.events([{"type": i} for i in (*types, "T", "part")])
        n = len(types)
        assert w.outcomes(batch, n + 2) == ["rejected"] * n + ["acked", "acked"], w.notes
        for i in range(n):
            assert w.notes[i][0] == "55000" and f'claimed event "{ids[i]}" for consumer "billing": its function' in w.notes[i][1], w.notes
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
    assert t.psql("SELECT count(*), count(*) FILTER (WHERE event_type IN ('T', 'part')) FROM app.got") == "4|4"
    # a batch in which no call claims is one statement, and its claims are completed as before
    same = uuid.uuid4()
    batch, _ = w.events([{"id": same, "type": "T"}, {"id": same, "type": "T"}, {"type": "part"}])
    commits(w, batch, 3)
    assert t.count() == 6 and t.psql("SELECT count(*) FROM idempotency.processed_events WHERE consumer = 'billing' AND status = 'completed'") == "9"
    w.close()
    # without claims of the program, the function's are the only ones, and a repeat finds them
    w = t.start(consumer="billing", claim="off")
    for _ in range(2):
        batch, ids = w.events([{"type": "claim", "id": i} for i in ids[:2]])
        commits(w, batch, 2)
    assert t.psql("SELECT count(*) FROM app.got WHERE event_type = 'claim'") == "1"
    w.close()


def test_function_with_a_consumer_of_its_own():
    t = Target(CLAIMS % {"c": "own"}, extension=True)
    w = t.start(consumer="billing")
    batch, _ = w.events([{"type": i} for i in ("claim", "claims", "lease", "leases", "part")])
    commits(w, batch, 5)
    assert t.count() == 5
    w.close()


def settled(w, batch, outcomes):
    assert w.outcomes(batch, len(outcomes)) == outcomes, w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)


def test_claims_that_are_refused_for_good():
    """What is too old or dead at the target is a dead letter at once, and has its effect when an operator has acted there."""
    t = Target(extension=True)
    t.psql("SELECT idempotency.consumer_create('billing', retention => '1 hour', expire_by_id_age => true)")
    w = t.start(consumer="billing")
    old, dead, again = uuid.UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), uuid.uuid4(), uuid.uuid4()
    t.psql(f"""SELECT idempotency.release_lease('{dead}'::uuid, token, 'billing', park => true)
                 FROM idempotency.lease_event('{dead}'::uuid, 'billing')""")
    batch, _ = w.events([{"id": old}, {"id": dead}, {"id": again}])
    settled(w, batch, ["impossible", "impossible", "acked"])
    assert w.notes[0][0] == "22023" and "consumer_alter" in w.notes[0][1] and 'consumer "billing"' in w.notes[0][1], w.notes
    assert w.notes[1][0] == "55000" and "consumer_redrive" in w.notes[1][1] and 'consumer "billing"' in w.notes[1][1], w.notes
    assert t.count() == 1
    t.psql("SELECT idempotency.consumer_redrive('billing'), idempotency.consumer_alter('billing', retention => '99 years')")
    batch, _ = w.events([{"id": old}, {"id": dead}, {"id": again}])
    commits(w, batch, 3)
    assert t.count() == 3
    w.close()


def test_verdict_of_a_later_version():
    """A word that the program does not know is no duplicate."""
    t = Target(extension=True)
    t.psql("""ALTER FUNCTION idempotency.claim_events RENAME TO claim_events_before;
        CREATE FUNCTION idempotency.claim_events(event_ids text[], consumer text, OUT ord int, OUT event_id text, OUT result text)
            RETURNS SETOF record LANGUAGE sql AS $$
            SELECT c.ord, c.event_id, CASE c.ord WHEN 2 THEN 'later' ELSE c.result::text END FROM idempotency.claim_events_before($1, $2) c $$""")
    w = t.start(consumer="billing")
    batch, _ = w.events([{}, {}, {}])
    assert w.outcomes(batch, 3) == ["acked", "rejected", "acked"] and w.notes[1][0] == "0A000", w.notes
    w.sock.close()
    assert t.count() == 0


def test_busy_by_the_budget():
    """A consumer with foreign lockers keeps each lock: what is past the budget is busy, and nobody else has it."""
    t = Target(extension=True)
    t.psql(f"SELECT idempotency.consumer_create('billing', foreign_lockers => true); ALTER DATABASE {t.db} SET idempotency.max_claim_locks = 2")
    w = t.start(consumer="billing")
    batch, ids = w.events([{}] * 5)
    got = w.outcomes(batch, 5)
    assert sorted(got) == ["acked"] * 2 + ["retry"] * 3, got
    assert all(state == "55P03" and "foreign_lockers" in m and "max_claim_locks" in m for state, m in w.notes.values()), w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.count() == 2
    w.close()
