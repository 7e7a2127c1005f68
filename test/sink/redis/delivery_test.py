"""What the redis sink writes, and that it is there once: twins, late requests, lost answers, a position that was set back."""
import base64
import hashlib
import io
import json
import re
import uuid

from redis.server import Refused, Server, shared, until
from redis.target import Proxy, Target, commits, failed
from sinklib import codec

KEY_ORDER = codec.WANT_POSITION | codec.KEY_ORDER


def test_entry():
    t = Target()
    w = t.start()
    event = uuid.uuid4()
    commits(w, [
        {"id": event, "headers": b'{"event_id": "no", "n": 1}', "payload": b'{"a":  1}', "aggregate_type": "order", "key": "7"},
        {"json": False, "payload": b"\r\n\0\xff$3\r\n", "content_type": "image/png"},
        {"payload": b""}])
    first, second, third = t.server.entries(t.stream)
    assert first.pop("_id") < second["_id"] < third["_id"]
    assert first == {"event_id": str(event).encode(), "aggregate_type": b"order", "aggregate_id": b"7", "event_type": b"T",
                     "enqueued_at": b"2026-11-21T08:00:00.000001Z", "headers": b'{"event_id": "no", "n": 1}',
                     "payload": b'{"a":  1}'}, first
    assert second["payload"] == b"\r\n\0\xff$3\r\n" and second["content_type"] == b"image/png" and "headers" not in second
    assert third["payload"] == b""
    w.close()


def test_cloudevents():
    t = Target(format="cloudevents", source="/shop/{relay}/{aggregate_type}")
    w = t.start()
    commits(w, [{"payload": b'{"a":  1}', "key": "7"}, {"json": False, "payload": b"\xff"}])
    first, second = (json.loads(e["cloudevent"]) for e in t.server.entries(t.stream))
    assert first["source"] == "/shop/orders/order" and first["subject"] == "7" and first["data"] == {"a": 1}
    assert base64.b64decode(second["data_base64"]) == b"\xff"
    assert t.ids() == [first["id"].replace("-", ""), second["id"].replace("-", "")]
    w.close()


def test_streams_of_a_template():
    t = Target()
    t.server.ask("SET", t.stream + ".wrong", "x")
    w = t.start(stream=t.stream + ".{relay}.{header:to}", flags=KEY_ORDER)
    good = commits(w, [{"key": str(i), "headers": b'{"to": "%s"}' % to} for i, to in enumerate([b"a", b"b", b"a"])])
    assert t.server.ids(t.stream + ".{orders}.a", t.stream + ".{orders}.b") == [good[0], good[2], good[1]]
    batch, _ = w.events([{"key": "1"}, {"key": "2", "headers": b'{"to": "{x}"}'}, {"key": "3", "headers": b'{"to": "b"}'}])
    assert w.outcomes(batch, 3) == ["impossible", "impossible", "acked"]
    assert "lacks a header" in w.notes[0][1] and "braces" in w.notes[1][1], w.notes
    assert len(t.server.ids(t.stream + ".{orders}.b")) == 1, "before its SETTLE"
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert len(t.server.ids(t.stream + ".{orders}.b")) == 2
    w.close()


def test_maxlen():
    t = Target(maxlen=200)
    w = t.start()
    for _ in range(10):
        commits(w, [{}] * 100)
    # "about" is a node of the stream, 100 entries
    assert 200 <= t.server.ask("XLEN", t.stream) <= 400
    w.close()


def _exhausted(server, stream):
    """A stream that takes no further entry: every XADD fails behind the look at its type."""
    server.ask("XADD", stream, "18446744073709551615-18446744073709551615", "foreign", "1")


def test_failing_script_leaves_nothing():
    t = Target(stream=None)
    a, b = t.stream + ".a", t.stream + ".b"
    _exhausted(t.server, b)
    w = t.start(stream=t.stream + ".{event_type}", flags=KEY_ORDER)
    batch, ids = w.events([{"type": "a", "key": "1"}, {"type": "b", "key": "2"}, {"type": "a", "key": "2"}, {"type": "a", "key": "3"}])
    assert w.outcomes(batch, 4) == ["acked", "rejected", "skipped", "acked"]
    assert "exhausted" in w.notes[1][1], w.notes
    assert t.server.ids(a) == [] and "row_id" not in t.stored(), "what the failing script had added is there"
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert t.server.ids(a) == [ids[0].hex, ids[3].hex] and t.stored()["row_id"] == "1"
    w.close()


def test_failing_script_does_not_trim():
    t = Target(stream=None)
    a = t.stream + ".a"
    for i in range(300):
        t.server.ask("XADD", a, "*", "old", i)
    _exhausted(t.server, t.stream + ".b")
    w = t.start(stream=t.stream + ".{event_type}", maxlen=200)
    batch, _ = w.events([{"type": "a"}] * 300 + [{"type": "b"}])
    assert w.outcomes(batch, 301)[300] == "rejected"
    assert t.server.ask("XLEN", a) == 300
    w.close()


def test_fixed_stream_that_takes_nothing():
    t = Target()
    _exhausted(t.server, t.stream)
    w = t.start()
    w.events([{}])
    f = failed(w)
    assert f["outcome"] == "outage" and "exhausted" in f["message"], f
    assert "row_id" not in t.stored()
    t.server.ask("DEL", t.stream)
    t.server.ask("SET", t.stream, "x")
    w = t.start()
    w.events([{}])
    assert failed(w)["outcome"] == "rejected"


def test_others_write_to_the_stream():
    t = Target()
    w = t.start()
    want = []
    for _ in range(5):
        want += commits(w, [{}] * 3)
        t.server.ask("XADD", t.stream, "*", "foreign", "1")
    w.kill()
    w = t.start(incarnation="log-2")
    assert (w.ready["incarnation"], w.ready["row_id"]) == ("log-1", 5)
    want += commits(w, [{}], row_id=6)
    assert t.ids() == want and t.server.ask("XLEN", t.stream) == 5 + len(want)
    w.close()


def test_twin():
    t = Target()
    old = t.start()
    ids = commits(old, [{}])
    new = t.start(incarnation="log-2")
    assert new.ready["row_id"] == 1
    old.events([{}])
    f = failed(old)
    assert f["outcome"] == "fenced" and "orders" in f["message"], f
    assert t.ids() == ids
    commits(new, [{}], row_id=2)
    new.close()


def _proxied(**options):
    t = Target(**options)
    proxy = Proxy(t.server)
    t.more["servers"] = proxy.address
    return t, proxy


def _calls(server, command):
    """How often the server has run the command."""
    found = re.search(rb"cmdstat_%s:calls=(\d+)" % command.encode(), server.ask("INFO", "commandstats"))
    return int(found[1]) if found else 0


def _read_requests(data):
    """Lists of arguments."""
    file = io.BytesIO(bytes(data))
    while line := file.readline():
        yield [file.read(int(file.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]


def test_conversation():
    """Every request of a start, a batch, and a batch whose event is refused."""
    t, proxy = _proxied(maxlen=1000, max_event_bytes=1000, wait_aof="off", user="default", password="any")
    t.server.ask("SCRIPT", "FLUSH")
    w = t.start()
    first, second, third = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    commits(w, [{"id": first, "key": "7", "payload": b"1"}])
    commits(w, [{"payload": b" " * 2000}, {"id": second, "key": "7", "headers": b"{}", "payload": b"2", "json": False, "content_type": "a/b"}],
            ["impossible", "acked"], k=5)
    commits(w, [{"id": third, "key": "7", "payload": b"3"}])
    w.close()
    requests = list(_read_requests(proxy.requests))
    script = next(r[1] for r in requests if r[0] == b"EVAL" and b"unpack" in r[1])
    sha = hashlib.sha1(script).hexdigest().encode()
    position, stream = t.position.encode(), t.stream.encode()

    def entry(event, time, *more):
        fields = [b"event_id", str(event).encode(), b"aggregate_type", b"order", b"aggregate_id", b"7", b"event_type", b"T",
                  b"enqueued_at", b"2026-11-21T08:00:00.00000%dZ" % time, *more]
        return [b"0", b"%d" % len(fields), *fields]

    def batch(expected, k, look, row, entries):
        return [b"2", position, stream, b"1", b"1", *expected, b"log-1", b"%d" % row, b"%d" % k, b"1000", b"%d" % look,
                b"%d" % bool(entries), *entries]
    none, one, two = [b"", b"", b""], [b"log-1", b"1", b"0"], [b"log-1", b"2", b"5"]
    added = batch(none, 0, 0, 1, entry(first, 1, b"payload", b"1"))
    expected = [
        [b"HELLO", b"2", b"AUTH", b"default", b"any"],
        [b"EVAL", requests[1][1], b"1", position, script],
        [b"EVAL", requests[2][1], b"1", position, b"", b"1", b"log-1", b"orders"],
        [b"EVALSHA", sha, *added],
        [b"EVAL", script, *added],
        [b"EVALSHA", sha, *batch(one, 5, 1, 2, [])],
        [b"EVALSHA", sha, *batch(one, 5, 0, 2, entry(second, 3, b"content_type", b"a/b", b"headers", b"{}", b"payload", b"2"))],
        [b"EVALSHA", sha, *batch(two, 0, 0, 3, entry(third, 4, b"payload", b"3"))],
    ]
    for got, wanted in zip(requests, expected):
        assert got == wanted, f"{got} instead of {wanted}"
    assert len(requests) == len(expected), requests[len(expected):]
    proxy.close()


def test_late_takeover_fences_nobody():
    """The take-over of a program that was killed reaches the server behind its successor's."""
    t, proxy = _proxied()
    proxy.hold(b"raced")
    killed = t.start(hello=False, incarnation="killed")
    assert proxy.held.wait(60)
    killed.kill()
    w = t.start(servers=t.server.address)
    ids = commits(w, [{}])
    epoch = t.stored()["epoch"]
    # its connection still has the request
    before = _calls(t.server, "eval")
    proxy.release.set()
    until("the late request has run", lambda: _calls(t.server, "eval") > before)
    ids += commits(w, [{}])
    assert t.stored()["epoch"] == epoch and t.stored()["owner"] == "log-1" and t.ids() == ids
    w.close()
    proxy.close()


def test_lost_answer():
    """The script has run, and its answer is lost: the batch is not added again."""
    t, proxy = _proxied()
    w = t.start()
    ids = commits(w, [{}])
    proxy.hold(b"EVALSHA", answers=True)
    batch, more = w.events([{}] * 3)
    assert proxy.held.wait(60)
    proxy.cut()
    assert w.outcomes(batch, 3) == ["acked"] * 3
    w.expect("VERDICT", batch=batch, kind=1)
    ids += [i.hex for i in more] + commits(w, [{}])
    assert t.ids() == ids and t.stored()["epoch"] == "2"
    w.close()
    proxy.close()


def test_late_script_has_no_effect():
    """The script reaches the server behind the program's new connection."""
    t, proxy = _proxied()
    w = t.start()
    ids = commits(w, [{}])
    proxy.hold(b"EVALSHA")
    batch, more = w.events([{}] * 3)
    assert proxy.held.wait(60)
    proxy.cut()
    assert w.outcomes(batch, 3) == ["acked"] * 3
    w.expect("VERDICT", batch=batch, kind=1)
    ids += [i.hex for i in more]
    assert t.ids() == ids
    before = _calls(t.server, "evalsha")
    proxy.release.set()
    until("the late script has run", lambda: _calls(t.server, "evalsha") > before)
    assert t.ids() == ids
    ids += commits(w, [{}])
    assert t.ids() == ids
    w.close()
    proxy.close()


def test_lost_answer_at_least_once():
    t, proxy = _proxied(delivery="at_least_once")
    w = t.start()
    proxy.hold(b"EVALSHA", answers=True)
    w.events([{}])
    assert proxy.held.wait(60)
    proxy.cut()
    assert failed(w)["outcome"] == "outage"
    proxy.close()


def test_idle_connection_is_closed():
    t = Target()
    w = t.start()
    ids = commits(w, [{}])
    for _ in range(3):
        t.server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        ids += commits(w, [{}])
    assert t.ids() == ids
    w.close()


def test_twin_while_the_connection_is_lost():
    t = Target()
    w = t.start()
    commits(w, [{}])
    twin = t.start(incarnation="log-2")
    t.server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    w.events([{}])
    assert failed(w)["outcome"] == "fenced"
    commits(twin, [{}], row_id=2)
    twin.close()


def test_script_is_forgotten():
    t = Target()
    w = t.start()
    ids = commits(w, [{}])
    t.server.ask("SCRIPT", "FLUSH")
    ids += commits(w, [{}]) + commits(w, [{}])
    assert t.ids() == ids
    w.close()


def test_position_is_set_back_or_gone():
    t = Target()
    for change in (("HSET", t.position, "k", "7"), ("HSET", t.position, "epoch", "1"), ("DEL", t.position)):
        w = t.start()
        commits(w, [{}])
        before = t.ids()
        t.server.ask(*change)
        w.events([{}])
        f = failed(w)
        assert f["outcome"] == "outage" and "set back" in f["message"], (change, f)
        assert t.ids() == before, change
    w = t.start()
    assert not w.ready["has_position"]
    w.close()


def test_position_of_another_relay():
    t = Target()
    w = t.start()
    commits(w, [{}])
    f = failed(t.start(hello=False, relay="another", incarnation="x"))
    assert f["outcome"] == "rejected" and '"orders"' in f["message"], f
    commits(w, [{}])
    w.close()
    t.server.ask("DEL", t.position)
    t.server.ask("SET", t.position, "x")
    assert "not a hash" in t.refused()["message"]


def test_set_back_while_there_is_no_connection():
    t = Target()
    w = t.start()
    commits(w, [{}])
    t.server.ask("HSET", t.position, "row_id", "0")
    t.server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    w.events([{}])
    assert failed(w)["outcome"] == "outage"


def test_killed_server():
    """appendfsync always: what had its verdict is there after a kill, and the rest at most once."""
    server = Server()
    t = Target(server)
    want = []
    w = t.start()
    for turn in range(5):
        want += commits(w, [{}] * 20)
        batch, more = w.events([{}] * 20)
        server.kill()
        # A program that has its verdict notices nothing.
        while (got := w.recv()) is not None and got[0] != "VERDICT":
            pass
        w.sock.close()
        w.exit_status()
        server.start()
        w = t.start(incarnation=f"log-{turn + 2}")
        if w.ready["row_id"] == batch and w.ready["incarnation"] == f"log-{turn + 1}":
            want += [i.hex for i in more]
        assert t.ids() == want
    w.close()


def test_restarted_empty():
    server = Server()
    t = Target(server)
    w = t.start()
    commits(w, [{}])
    w.events([{}], end=False)
    server.restart(empty=True)
    w.raw(codec.encode("END", batch=2, count=1, row_id=2, k=0))
    assert failed(w)["outcome"] == "outage"
    w = t.start()
    assert not w.ready["has_position"]
    w.close()


def test_there_is_no_entry_0_0():
    """The look at the position deletes it, to see whether it may."""
    try:
        shared().ask("XADD", Target().stream, "0-0", "a", "b")
        raise AssertionError("0-0 is an id")
    except Refused:
        pass
