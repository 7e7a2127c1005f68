"""A target that has the extension: each event is claimed there."""
import subprocess
import uuid

from postgres.target import PSQL, Target, commits, server
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


def test_claim_off():
    t = Target(extension=True)
    w = t.start(claim="off")
    assert not w.ready["capabilities"] & codec.DEDUPLICATES
    same = uuid.uuid4()
    batch, _ = w.events([{"id": same}, {"id": same}])
    commits(w, batch, 2)
    assert t.count() == 2
    w.close()
