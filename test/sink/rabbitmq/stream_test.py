"""Streams on a real server: messages, repeats, twins, streams that others changed, servers that are down."""
import contextlib
import json
import pathlib
import tempfile
import threading
import time

from brokerlib import certificates
from rabbitmq.server import Server, shared, until
from rabbitmq.stream_target import StreamTarget
from rabbitmq.streamlib import DELETE_PUBLISHER, batch, message
from rabbitmq.target import failed
from redis.target import Proxy
from sinklib import PATIENCE, free_port


def commits(w, events, expected=None, **kwargs):
    """Send a batch; its ids in hexadecimal digits."""
    number, ids = w.events(events, **kwargs)
    assert w.outcomes(number, len(events)) == (expected or ["acked"] * len(events)), w.notes
    if expected and set(expected) != {"acked"}:
        w.send("SETTLE", batch=number)
    w.expect("VERDICT", batch=number, kind=1)
    return [i.hex for i in ids]


def behind(t):
    """A proxy in front of the target's server."""
    class Place:
        port = t.server.stream_port
    p = Proxy(Place)
    return p


def test_stream_message():
    for form in ("plain", "cloudevents_binary", "cloudevents_structured"):
        t = StreamTarget(format=form, source="/shop/{aggregate_type}")
        w = t.start()
        ids = commits(w, [{"key": "A-7", "payload": b'{"total": 99}', "headers": b'{"trace": "t1", "n": 5, "none": null, "cc": "x", "event_type": "y"}'},
                          {"json": False, "payload": b"\0\xff" * 200, "content_type": "image/x", "key": "k" * 300}])
        w.close()
        fence, one, two = t.messages()
        assert fence["data"] == b"" and "properties" not in fence, fence
        note = json.loads(one["annotations"]["x-opt-idempotency"])
        assert (note["relay"], note["incarnation"], note["row_id"], note["k"]) == ("orders", "log-1", w.batch, 0), note
        assert "annotations" not in two
        assert [m["properties"][0].replace("-", "") for m in (one, two)] == ids
        own = {"trace": "t1", "n": "5", "none": None}
        if form == "plain":
            assert one["application"] == {**own, "event_type": "T", "aggregate_type": "order", "aggregate_id": "A-7"}, one
            assert (one["properties"][6], one["data"]) == ("application/json", b'{"total": 99}')
            assert (two["properties"][6], two["data"]) == ("image/x", b"\0\xff" * 200)
            assert two["application"]["aggregate_id"] == "k" * 300
        elif form == "cloudevents_binary":
            assert one["application"]["cloudEvents_source"] == "/shop/order" and one["application"]["cloudEvents_subject"] == "A-7", one
            assert one["application"]["trace"] == "t1" and one["data"] == b'{"total": 99}'
        else:
            assert one["properties"][6].startswith("application/cloudevents+json")
            assert json.loads(one["data"])["data"] == {"total": 99} and "aggregate_type" not in one["application"]
        assert abs(one["properties"][9] / 1000 - 1795248000) < 100, one


def test_stream_batch_comes_late():
    """A batch of a program that was killed reaches the server behind its successor's fence."""
    t = StreamTarget()
    p = behind(t)
    w = t.start(servers=p.address)
    p.hold(b"latecomer")
    number, ids = w.events([{"payload": b'"latecomer"'}, {}])
    assert p.held.wait(PATIENCE)
    w.kill()
    w = t.start(incarnation="log-2")
    assert not w.ready["has_position"]
    again = commits(w, [{"id": ids[0]} for ids in ([ids[0]], [ids[1]])])
    p.release.set()
    # the server confirms what it drops, here of a connection that publishes with the first program's ids
    with t.client() as c:
        c.declare(t.stream, "idempotency.orders")
        c.publish((2 ** 32 + 2, batch(b"\0\x53\x73\xc0\x27\x01\xa1\x24" + b"f" * 36 + b"\0\x53\x75\xa0\0")))
    again += commits(w, [{}])
    assert t.ids() == again, t.ids()
    w.close()
    p.close()


def test_stream_nothing_is_sent_before_the_settle():
    t = StreamTarget(max_event_bytes=1000)
    w = t.start()
    number, ids = w.events([{}, {"payload": b'"%s"' % (b"x" * 2000)}])
    assert w.outcomes(number, 2) == ["acked", "impossible"]
    with contextlib.suppress(AssertionError):
        until("a batch without its SETTLE is there", t.ids, 1)
    assert t.ids() == []
    w.send("SETTLE", batch=number)
    w.expect("VERDICT", batch=number, kind=1)
    assert t.ids() == [ids[0].hex]
    w.close()


def test_stream_batch_comes_before_the_fence():
    """It comes between the look and the fence: then it counts."""
    t = StreamTarget()
    p = behind(t)
    w = t.start(servers=p.address)
    p.hold(b"latecomer")
    _, ids = w.events([{"payload": b'"latecomer"'}], row_id=7)
    assert p.held.wait(PATIENCE)
    w.kill()
    q = behind(t)
    q.hold(b'"owner"')
    w = t.start(hello=False, servers=q.address)
    assert q.held.wait(PATIENCE)
    p.release.set()
    until("it is there", lambda: t.ids() == [ids[0].hex])
    q.release.set()
    w.hello()
    assert (w.ready["has_position"], w.ready["row_id"]) == (1, 7), w.ready
    w.close()
    p.close()
    q.close()


def test_stream_confirm_is_lost():
    t = StreamTarget()
    p = behind(t)
    w = t.start(servers=p.address)
    p.hold(b"latecomer", answers=True)
    _, ids = w.events([{"payload": b'"latecomer"'}], row_id=9)
    assert p.held.wait(PATIENCE)
    p.cut()
    assert failed(w)["outcome"] == "outage"
    w = t.start(incarnation="log-2")
    assert (w.ready["row_id"], t.ids()) == (9, [ids[0].hex])
    w.close()
    p.close()


def test_stream_twins():
    """Several programs take over at once, all the time: what has a verdict is there once, in the order of the verdicts."""
    t = StreamTarget()
    kept, lock = [], threading.Lock()

    def one(name):
        for i in range(4):
            w = t.start(hello=False, incarnation=f"{name}-{i}")
            try:
                got = w.recv()
                while got and got[0] not in ("READY", "FAILED"):
                    got = w.recv()
                if got and got[0] == "READY":
                    w.batch = 100 * i
                    for _ in range(3):
                        number, ids = w.events([{}, {}])
                        while (got := w.recv()) and got[0] not in ("VERDICT", "FAILED"):
                            pass
                        if not got or got[0] == "FAILED":
                            break
                        with lock:
                            kept.extend(i.hex for i in ids)
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                w.kill()
    threads = [threading.Thread(target=one, args=(f"twin{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = t.ids()
    assert len(set(ids)) == len(ids) and set(kept) <= set(ids) and kept, (kept, ids)


def test_stream_same_incarnation_twin():
    """A copy of the disk has the same names: still one of the two is fenced."""
    t = StreamTarget()
    old = t.start()
    commits(old, [{}], row_id=1)
    new = t.start()
    commits(new, [{}], row_id=2)
    old.events([{}], row_id=2)
    assert failed(old)["outcome"] == "fenced"
    commits(new, [{}], row_id=3)
    assert len(t.ids()) == 3
    new.close()


def test_stream_of_another_relay():
    t = StreamTarget()
    w = t.start()
    commits(w, [{}])
    before = t.sequence()
    f = failed(t.start(hello=False, relay="stock"))
    assert f["outcome"] == "rejected" and 'relay "orders"' in f["message"], f
    # it has written nothing, and the other one goes on
    assert t.sequence("stock") == 0 and t.sequence() == before
    commits(w, [{}])
    w.close()


def test_stream_foreign_writer():
    """Messages of others are told of; the position is found behind them."""
    t = StreamTarget()
    w = t.start()
    ids = commits(w, [{}] * 3, row_id=5)
    w.close()
    t.publish_foreign(3000)
    w = t.start(hello=False)
    assert "not of relay" in w.expect("LOG")["message"]
    w.hello()
    assert (w.ready["has_position"], w.ready["row_id"]) == (1, 5)
    t.publish_foreign(10)
    ids += commits(w, [{}] * 3, row_id=6)
    t.publish_foreign(10)
    ids += commits(w, [{}] * 3, row_id=7)
    w.close()
    assert t.ids() == ids


def test_stream_name_in_other_hands():
    """Somebody publishes under our name: the running program is fenced, the next one goes beyond."""
    t = StreamTarget()
    w = t.start()
    ids = commits(w, [{}], row_id=1)
    with t.client() as c:
        c.declare(t.stream, "idempotency.orders")
        c.publish((9 << 32, message(b"\0\x53\x75\xa0\0")))
    w.events([{}], row_id=2)
    assert failed(w)["outcome"] == "fenced"
    w = t.start()
    assert w.ready["row_id"] == 1 and t.sequence() == 10 << 32
    ids += commits(w, [{}], row_id=2)
    assert t.ids() == ids
    w.close()


def test_stream_name_is_forgotten():
    """Of more than 255 names the server forgets the oldest when a segment is full; our messages have the id, too."""
    t = StreamTarget(create=False)
    with t.client() as c:
        c.create(t.stream, stream_max_segment_size_bytes="100000")
        w = t.start()
        ids = commits(w, [{}], row_id=1)
        for n in range(300):
            c.declare(t.stream, f"name{n}", number=n % 200)
            c.publish((1, message(b"\0\x53\x75\xb0\0\0\x02\0" + b"x" * 512)), number=n % 200)
            if n >= 100:
                c.ask(DELETE_PUBLISHER, bytes([(n - 100) % 200]))
        # a segment is full once more
        c.publish(*((i + 2, message(b"\0\x53\x75\xb0\0\0\x02\0" + b"x" * 512)) for i in range(400)), number=299 % 200)
        c.publish((500, message(b"\0\x53\x75\xa0\0")), number=299 % 200)
        until("it is forgotten", lambda: t.sequence() == 0)
        # the running program does not rely on what is not there any more
        w.events([{}], row_id=2)
        f = failed(w)
        assert f["outcome"] == "outage" and "forgotten" in f["message"], f
        w = t.start(hello=False)
        w.expect("LOG")
        w.hello()
        assert w.ready["row_id"] == 1 and t.sequence() > 1 << 32
        ids += commits(w, [{}], row_id=2)
        w.close()
        assert t.ids() == ids


def test_stream_is_trimmed():
    """Retention takes whole segments, and never the last one."""
    t = StreamTarget(create=False)
    with t.client() as c:
        c.create(t.stream, stream_max_segment_size_bytes="100000", max_length_bytes="200000")
    w = t.start()
    ids = []
    for _ in range(40):
        ids += commits(w, [{"payload": b'"%s"' % (b"x" * 1000)}] * 20)
    w.close()
    left = t.ids()
    assert len(left) < len(ids) and left == ids[-len(left):]
    last, sequence = w.batch, t.sequence()
    t.settle()
    w = t.start()
    assert w.ready["row_id"] == last and t.sequence() > sequence
    commits(w, [{}])
    w.close()


def test_stream_is_gone():
    """While the program runs the stream is deleted, then made anew."""
    t = StreamTarget()
    w = t.start()
    commits(w, [{}])
    with t.client() as c:
        c.delete(t.stream)
        w.events([{}])
        assert failed(w)["outcome"] in ("outage", "rejected")
        f = t.refused()
        assert f["outcome"] == "rejected" and f["sqlstate"] == "42704", f
        c.create(t.stream)
        w = t.start()
        assert not w.ready["has_position"]
        commits(w, [{}], row_id=5)
        c.delete(t.stream)
        c.create(t.stream)
        w.events([{}], row_id=6)
        assert failed(w)["outcome"] == "outage"
        assert t.ids() == []
        # and what is there is older than what was stored last
        w = t.start()
        for n in range(7, 10):
            commits(w, [{}], row_id=n)
    t.copy_without(1)
    w.events([{}], row_id=10)
    assert failed(w)["outcome"] == "outage"
    w = t.start()
    assert w.ready["row_id"] == 8
    w.close()


def test_stream_server_is_killed():
    server = Server()
    t = StreamTarget(server)
    t.settle()
    w = t.start()
    ids = commits(w, [{}] * 5, row_id=1)
    server.kill()
    w.events([{}], row_id=2)
    f = failed(w)
    assert f["outcome"] == "outage", f
    f = t.refused()
    assert f["outcome"] == "outage" and "refused" in f["message"], f
    server.start()
    t.wait()
    w = t.start()
    assert (w.ready["row_id"], t.ids()) == (1, ids)
    # an idle program notices, and goes on with the next batch
    fences = t.fences()
    t.restart()
    ids += commits(w, [{}] * 2, row_id=2)
    assert t.ids() == ids and t.fences() == fences + 1
    w.close()


def test_stream_server_is_slow():
    server = Server()
    t = StreamTarget(server, timeout=1500)
    with server.stopped():
        assert t.refused()["outcome"] == "outage"
    w = t.start()
    commits(w, [{}], row_id=1)
    with server.stopped():
        w.events([{}], row_id=2)
        w.send("PING", nonce=5)
        w.expect("PONG", nonce=5)
        f = failed(w)
        assert f["outcome"] == "outage" and "alarm" in f["message"], f
    w = t.start()
    assert len(t.ids()) == w.ready["row_id"]
    w.close()


def test_stream_server_is_full():
    """A disk alarm: the server takes nothing, and no event is to blame."""
    server = Server()
    t = StreamTarget(server, timeout=2000)
    w = t.start()
    ids = commits(w, [{}], row_id=1)
    server.ctl("set_disk_free_limit", "900000GB")
    try:
        until("the alarm is raised", lambda: "alarm" in server.ctl("status").lower() and "disk" in server.ctl("eval", "rabbit_alarm:get_alarms()."))
        w.events([{}] * 3, row_id=2)
        f = failed(w)
        assert f["outcome"] == "outage" and "alarm" in f["message"], f
    finally:
        server.ctl("set_disk_free_limit", "1MB")
    until("the alarm is over", lambda: "disk" not in server.ctl("eval", "rabbit_alarm:get_alarms()."))
    w = t.start(timeout=30000)
    if w.ready["row_id"] == 1:
        ids += commits(w, [{}], row_id=2)
    assert t.ids()[:1] == ids[:1] and len(t.ids()) == len(set(t.ids()))
    w.close()


def test_stream_heartbeats():
    t = StreamTarget(heartbeat=1)
    w = t.start()
    commits(w, [{}])
    time.sleep(4)           # as long as the server waits for a heartbeat, twice
    commits(w, [{}])
    assert t.fences() == 1, "the connection was lost"
    w.close()


def test_stream_login():
    server = shared()
    t = StreamTarget()
    f = t.refused(password="s3cret-s3cret")
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "28P01"), f
    f = t.refused(vhost="nowhere")
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "42501"), f
    server.ctl("add_user", "guest2", "s3cret-s3cret")
    login = {"user": "guest2", "password": "s3cret-s3cret"}
    f = t.refused(**login)
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "42501"), f
    server.ctl("set_permissions", "guest2", "^$", "^$", t.stream)
    f = t.refused(**login)
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "42501"), f
    server.ctl("set_permissions", "guest2", "^$", t.stream, "^$")
    f = t.refused(**login)
    assert (f["outcome"], f["sqlstate"]) == ("rejected", "42501") and "read" in f["message"], f
    assert t.messages() == []
    server.ctl("set_permissions", "guest2", "^$", t.stream, t.stream)
    w = t.start(**login)
    commits(w, [{}])
    w.close()


def test_stream_least():
    """At least once, beside others: no name, no fence, no position."""
    t = StreamTarget(delivery="at_least_once")
    t.publish_foreign(5)
    one, two = t.start(flags=0), t.start(flags=0, relay="stock")
    ids = []
    for w in (one, two, one, two):
        number, sent = w.events([{}] * 3)
        assert w.outcomes(number, 3) == ["acked"] * 3
        ids += [i.hex for i in sent]
    one.close()
    two.close()
    assert t.ids() == ids and t.fences() == 0 and t.sequence() == 0
    # what is confirmed is repeated, if the confirm is lost
    p = behind(t)
    w = t.start(flags=0, servers=p.address)
    p.hold(b"latecomer", answers=True)
    _, sent = w.events([{"payload": b'"latecomer"'}])
    assert p.held.wait(PATIENCE)
    p.cut()
    assert failed(w)["outcome"] == "outage"
    w = t.start(flags=0)
    number, _ = w.events([{"id": sent[0]}])
    assert w.outcomes(number, 1) == ["acked"]
    w.close()
    assert t.ids() == ids + [sent[0].hex] * 2
    p.close()


def test_stream_frames():
    """What does not fit into a frame is asked for again; what never fits is refused."""
    t = StreamTarget()
    w = t.start()
    half = {"payload": b'"' + b"x" * 500000 + b'"'}
    ids = commits(w, [half, {"payload": b'"' + b"y" * 700000 + b'"'}], ["acked", "retry"])
    assert w.notes[1][0] == "53400"
    ids[1:] = commits(w, [{"payload": b'"' + b"y" * 700000 + b'"'}])
    commits(w, [{"payload": b'"' + b"z" * (1 << 20) + b'"'}], ["impossible"])
    assert w.notes[0][0] == "54000" and "frame_max" in w.notes[0][1], w.notes
    w.close()
    assert t.ids() == ids
    # the position of a batch of which nothing is left is there, too
    assert t.start().ready["row_id"] == w.batch


def test_stream_many_batches():
    """Batches that are complete go together, and are read in the order of the events."""
    t = StreamTarget()
    w = t.start()
    with w.in_one_piece():
        sent = [w.events([{"key": str(i)} for i in range(100)]) for _ in range(60)]
    for number, _ in sent:
        # results and verdict of a batch come together
        assert w.outcomes(number, 100) == ["acked"] * 100
        w.expect("VERDICT", batch=number, kind=1)
    w.close()
    assert t.ids() == [i.hex for _, ids in sent for i in ids]


def test_stream_options():
    t = StreamTarget()
    for options, word in (({"exchange": "x"}, "exclude"), ({"routing_key": "x"}, "exclude"), ({"stream": None, "delivery": "exactly_once"}, "stream"),
                          ({"delivery": "twice"}, "delivery"), ({"stream": "x" * 256}, "255"), ({"stream": "{aggregate_id}"}, "stream")):
        f = t.refused(**options)
        assert f["outcome"] == "rejected" and word in f["message"], (options, f)
    assert t.refused(flags=0)["sqlstate"] == "0A000"


def test_stream_leader():
    """The leader is elsewhere, by the name that it has: the program goes there, or stays where it is."""
    server = Server("stream.advertised_port = 1\n")
    t = StreamTarget(server)
    w = t.start()           # the server's own name is the leader's
    commits(w, [{}])
    w.close()


def test_stream_tls():
    c = certificates(pathlib.Path(tempfile.mkdtemp(prefix="idem-rabbitmq-tls.")), server="IP:127.0.0.1")
    server = Server(start=False)
    port = free_port()
    with open(server.dir / "rabbitmq.conf", "a") as conf:
        conf.write(f"stream.listeners.ssl.local = 127.0.0.1:{port}\nstream.advertised_tls_port = {port}\n"
                   f"ssl_options.cacertfile = {c}/ca.crt\nssl_options.certfile = {c}/server.crt\nssl_options.keyfile = {c}/server.key\n"
                   "ssl_options.verify = verify_none\n")
    server.start()
    t = StreamTarget(server, tls="on", sslrootcert=c / "ca.crt", servers=f"127.0.0.1:{port}")
    w = t.start()
    ids = commits(w, [{}] * 3)
    ids += commits(w, [{"payload": b'"%s"' % (b"x" * 400000)}])
    w.close()
    assert t.ids() == ids
    for options, word in (({"sslrootcert": c / "other.crt"}, "certificate"), ({"servers": f"localhost:{port}"}, "certificate"),
                          ({"servers": f"127.0.0.1:{server.stream_port}"}, "TLS")):
        f = t.refused(**options)
        assert f["outcome"] == "outage" and word in f["message"], (options, f)
