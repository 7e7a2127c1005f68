"""Servers that die, hang, are full, refuse, and forget; twins and foreign writers."""
import json

from nats.broker import Broker
from nats.target import SINK, Target, broker, commits, failed, until
from sinklib import codec, look


def position_of(w):
    return (w.ready["has_position"], w.ready["incarnation"], w.ready["row_id"], w.ready["k"])


def restarted(t, **options):
    w = t.start(**options)
    got = position_of(w)
    w.close()
    return got


def test_position():
    t = Target()
    w = t.start()
    assert w.ready["has_position"] == 0 and w.ready["capabilities"] & 3 == 3, w.ready
    batch, _ = w.events([{"key": "a"}], row_id=7, k=3)
    commits(w, batch, 1)
    w.kill()
    assert restarted(t) == (1, "log-1", 7, 3)
    assert restarted(t, incarnation="log-2") == (1, "log-1", 7, 3), "a start changes no position"
    assert t.stored()["epoch"] == 3, t.stored()


def test_twin():
    """The older instance is fenced, whatever it was doing; the younger one goes on."""
    t = Target()
    first = t.start()
    batch, _ = first.events([{"key": "a"}])
    commits(first, batch, 1)
    second = t.start(incarnation="log-2")
    batch, _ = first.events([{"key": "a"}])
    assert failed(first)["outcome"] == "fenced"
    batch, _ = second.events([{"key": "b"}])
    commits(second, batch, 1)
    second.close()
    assert len(t.values()) == 2


def test_position_gone():
    """What the stream's retention took away is no position, and no twin."""
    t = Target(allow_msg_ttl=None, allow_rollup_hdrs=None)
    w = t.start()
    batch, _ = w.events([{"key": "a"}])
    commits(w, batch, 1)
    t.client.api(f"STREAM.PURGE.{t.name}", {"filter": t.position})
    w.events([{"key": "a"}])
    f = failed(w)
    assert f["outcome"] == "outage" and "gone" in f["message"], f
    assert restarted(t)[0] == 0, "without a position in READY the relay is diverged"
    assert len(t.values()) == 1


def test_position_set_back():
    """A stream that was restored from a backup has an older position."""
    t = Target()
    w = t.start()
    old = t.stored()
    batch, _ = w.events([{"key": "a"}])
    commits(w, batch, 1)
    t.client.store(t.position, json.dumps(old).encode(), [("Nats-Rollup", "sub")])
    w.events([{"key": "a"}])
    f = failed(w)
    assert f["outcome"] == "outage" and "not the one" in f["message"], f


def test_position_of_another_relay():
    """Nothing is written to a subject that is another relay's, or no position."""
    t = Target()
    options = {"position_subject": t.position}
    w = t.start(**options)
    before = t.stored()
    f = failed(t.start(hello=False, relay="others", **options))
    assert f["outcome"] == "rejected" and "orders" in f["message"] and t.stored() == before, f
    batch, _ = w.events([{"key": "a"}])
    commits(w, batch, 1)
    w.close()
    for data in (b"", b"{", b"[]", b'{"relay": 1}', b"\xff" * 100):
        t.client.store(t.position, data, [("Nats-Rollup", "sub")])
        assert t.refused(**options)["outcome"] == "rejected", data


def test_position_does_not_expire():
    """Messages of the stream go by max_age; the position of an idle relay stays, where the stream has what that needs."""
    t = Target(max_age=1_000_000_000)
    w = t.start()
    batch, _ = w.events([{"key": "a"}], row_id=5)
    commits(w, batch, 1)
    until("the event expired", lambda: not t.events())
    w.close()
    assert restarted(t)[:3] == (1, "log-1", 5)


def test_server_killed():
    """Outage, and nothing lost or doubled."""
    b = Broker(jetstream={"store_dir": "data", "sync_interval": "always"})
    t = Target(b)
    w = t.start()
    batch, _ = w.events([{"key": "a"}], row_id=1)
    commits(w, batch, 1)
    b.kill()
    w.events([{"key": "b"}], row_id=2)
    assert failed(w)["outcome"] == "outage"
    assert t.refused(timeout=1000)["outcome"] == "outage"
    b.start()
    t.client = b.client()
    assert restarted(t)[2] == 1 and len(t.values()) == 1
    b.empty()
    t.client = b.client()
    assert t.refused()["outcome"] == "rejected", "the stream is gone"
    t.make()
    assert restarted(t)[0] == 0, "without a position in READY the relay is diverged"
    b.remove()


def test_server_hangs():
    b = Broker()
    t = Target(b)
    w = t.start(timeout=1000)
    b.pause()
    try:
        w.events([{"key": "a"}])
        w.send("PING", nonce=5)
        w.expect("PONG", nonce=5)
        assert failed(w)["outcome"] == "outage"
    finally:
        b.resume()
    # the server may take the batch now: the next start finds either
    found = restarted(t)
    assert found[0] == len(t.values()) and len(t.values()) <= 1, found
    b.remove()


def test_full_stream():
    """A full stream is an outage: no event is to blame."""
    t = Target(max_msgs=10, discard="new")
    w = t.start()
    batch, _ = w.events([{"key": str(i)} for i in range(5)])
    commits(w, batch, 5)
    w.events([{"key": str(i)} for i in range(20)])
    f = failed(w)
    assert f["outcome"] == "outage" and "maximum messages" in f["message"], f
    t.make(max_msgs=-1)
    w = t.start()
    batch, _ = w.events([{"key": str(i)} for i in range(20)])
    commits(w, batch, 20)
    w.close()
    assert len(t.values()) == 25


def test_too_many_open_batches():
    """The server drops the messages of a batch beyond 50 that are open, which makes no event guilty."""
    t = Target()
    w = t.start()
    for i in range(50):
        assert t.client.request(f"{t.name}.foreign", b"x", [("Nats-Batch-Id", f"b{i}"), ("Nats-Batch-Sequence", "1")]).data == b""
    w.events([{"key": "a"}, {"key": "b"}])
    f = failed(w)
    assert f["outcome"] == "outage" and "inflight" in f["message"], f
    t.client.request(f"{t.name}.foreign", b"x", [("Nats-Batch-Id", "b0"), ("Nats-Batch-Sequence", "2"), ("Nats-Batch-Commit", "1")])
    w = t.start()
    batch, _ = w.events([{"key": "a"}, {"key": "b"}])
    commits(w, batch, 2)
    w.close()


def test_full_subject():
    """A subject that is full is its events' fault: others have room.  A stream that would have none for positions is unfit."""
    full = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    f = Target(**full, allow_rollup_hdrs=None, allow_msg_ttl=None).refused()
    assert f["outcome"] == "rejected" and "discard_new_per_subject" in f["message"], f
    t = Target(**full)
    w = t.start()
    batch, _ = w.events([{"type": "A"}])
    commits(w, batch, 1)
    batch, _ = w.events([{"type": "A"}])
    assert w.outcomes(batch, 1) == ["acked"]
    w.expect("VERDICT", batch=batch, kind=2)
    assert failed(w)["outcome"] == "outage"
    w = t.start(delivery="at_least_once")
    batch, _ = w.events([{"key": "a", "type": "A"}, {"key": "b", "type": "B"}])
    assert w.outcomes(batch, 2) == ["rejected", "acked"], w.notes
    w.close()
    assert len(t.events()) == 2


def test_subject_taken_from_the_stream():
    """The stream loses a subject while the relay runs: its events are refused, the others go on."""
    t = Target()
    w = t.start()
    batch, _ = w.events([{"key": "a"}])
    commits(w, batch, 1)
    t.make(subjects=[f"{t.name}.*.T", f"idempotency.position.{t.name}.>"])
    batch, _ = w.events([{"key": "a", "type": "T"}, {"key": "b", "type": "U"}])
    assert w.outcomes(batch, 2) == ["acked", "rejected"], w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()
    assert len(t.values()) == 2


def test_subject_taken_at_least_once():
    """No stream has the subject any more, which the library does not say of which message."""
    t = Target()
    w = t.start(delivery="at_least_once", flags=codec.KEY_ORDER)
    batch, _ = w.events([{"key": "a"}])
    assert w.outcomes(batch, 1) == ["acked"]
    t.make(subjects=[f"{t.name}.*.T", f"idempotency.position.{t.name}.>"])
    batch, _ = w.events([{"key": k, "type": n} for k, n in ("aT", "bU", "bT", "cT")])
    assert w.outcomes(batch, 4) == ["acked", "rejected", "skipped", "acked"] and w.notes[1][0] == "42704", w.notes
    w.close()
    assert len(t.values()) == 3


def test_server_hangs_at_least_once():
    """PINGs are answered while the server takes nothing, and then it is an outage; what it has stored it does not store again."""
    b = Broker()
    t = Target(b)
    w = t.start(delivery="at_least_once", timeout=1000)
    b.pause()
    events = [{"key": str(i), "payload": b'"' + b"x" * 5000 + b'"'} for i in range(800)]
    try:
        ids = [i for n in range(4) for i in w.events(events[200 * n:200 * n + 200])[1]]
        w.send("PING", nonce=5)
        w.expect("PONG", nonce=5)
        assert failed(w)["outcome"] == "outage"
    finally:
        b.resume()
    w = t.start(delivery="at_least_once")
    batch, _ = w.events([{**e, "id": i} for e, i in zip(events, ids)])
    assert w.outcomes(batch, 800) == ["acked"] * 800, w.notes
    w.close()
    assert len(t.values()) == 800
    b.remove()


def test_at_least_once_on_an_old_server():
    """A server without batches drops repeats within its window; exactly once is refused there."""
    t = Target(broker("bookworm"), allow_atomic=None, allow_msg_ttl=None)
    f = t.refused()
    assert f["outcome"] == "rejected" and "allow_atomic" in f["message"], f
    w = t.start(delivery="at_least_once", flags=codec.KEY_ORDER)
    assert w.ready["capabilities"] == 0, w.ready
    events = [{"key": str(i % 3), "payload": b"%d" % i} for i in range(50)]
    batch, ids = w.events(events)
    assert w.outcomes(batch, 50) == ["acked"] * 50
    batch, _ = w.events([{**e, "id": i} for e, i in zip(events, ids)])
    assert w.outcomes(batch, 50) == ["acked"] * 50, w.notes
    w.close()
    assert len(t.values()) == 50
    for key in "012":
        got = [int(m.data) for m in t.events() if m.header("Aggregate-Id") == key]
        assert got == sorted(got), "the order of a key"


def test_look():
    """A LOOK names what is wrong, and what is not to be seen; nothing is taken over, written or made."""
    t = Target()
    w = t.start()
    before = t.client.api(f"STREAM.INFO.{t.name}")["state"]
    things = ["options", "connection", "stream", "subjects", "rights", "position"]
    found, status = look(SINK, t.options())
    assert status == 0 and list(found) == things and all(f == (1, "", "") for f in found.values()), found
    assert list(look(SINK, t.options(delivery="at_least_once"))[0]) == things[:-1]

    def wrong(*whats, **options):
        found, status = look(SINK, t.options(**options))
        bad = {what: problem for what, (ok, problem, remedy) in found.items() if not ok and remedy}
        assert status == 0 and list(bad) == list(whats), (options, found)
        return " ".join(bad.values())
    assert "user" in wrong("options", user="u")
    assert "connect" in wrong("connection", servers="127.0.0.1:1", timeout=1000)
    assert "not found" in wrong("stream", stream="NONE")
    assert "elsewhere" in wrong("subjects", subject="elsewhere")
    assert "elsewhere" in wrong("subjects", position_subject="elsewhere.{relay}")
    t.client.store(f"{t.position}2", b'{"relay": "others"}')
    before = {**before, "last_seq": before["last_seq"] + 1}
    assert "relay others" in wrong("position", position_subject=t.position + "2")
    unfit = Target(allow_atomic=None)
    assert "allow_atomic" in wrong("stream", **unfit.options())
    unfit = Target(allow_msg_ttl=None, max_age=10**12)
    assert "max_age" in look(SINK, unfit.options())[0]["stream"][1]
    assert "memory" in look(SINK, Target(storage="memory").options())[0]["stream"][1]
    assert t.client.api(f"STREAM.INFO.{t.name}")["state"]["last_seq"] == before["last_seq"]
    batch, _ = w.events([{"key": "a"}])
    commits(w, batch, 1)
    w.close()
