"""Servers that are down, full, slow, or refuse: to whom the rabbitmq sink gives the blame."""
import contextlib
import tempfile
import time
import uuid

from rabbitmq.server import PATIENCE, Server, until
from rabbitmq.target import OUTCOMES, SINK, Target, acked, failed
from sinklib import codec, look


@contextlib.contextmanager
def alarm(server, what="disk"):
    """The server is short of memory or disk, by its own settings."""
    if what == "disk":
        server.ctl("set_disk_free_limit", 10 ** 15)
    else:
        server.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        yield
    finally:
        if what == "disk":
            server.ctl("set_disk_free_limit", "1MB")
        else:
            server.ctl("set_vm_memory_high_watermark", "absolute", "2GB")


def _persist(t, **options):
    """A program that has delivered, and the event's id; a server that has just started may be silent for a while."""
    event = uuid.uuid4()
    deadline = time.monotonic() + PATIENCE
    while True:
        w = t.start(**options)
        w.events([{"id": event}])
        got = w.recv()
        if got[0] != "FAILED":
            assert got[0] == "RESULT" and OUTCOMES[got[1]["outcome"]] == "acked", got
            return w, event.hex
        assert OUTCOMES[got[1]["outcome"]] == "outage" and time.monotonic() < deadline, got
        w.close()


def test_down():
    server = Server()
    t = Target(server)
    w = t.start()
    idle = t.start()
    ids = acked(w, [{}])
    # a quorum queue is started after a kill if it stands in this file, which follows half a second later
    names = server.dir / "data/rabbit@localhost/quorum/rabbit@localhost/names.dets"
    until("the queue's name is on disk", lambda: b"%2F_" + t.queue.encode() in names.read_bytes())
    server.kill()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        w.events([{}])
    assert failed(w)["outcome"] == "outage"
    # an idle program notices that the connection has ended
    assert failed(idle)["outcome"] == "outage"
    f = t.refused()
    assert f["outcome"] == "outage" and f"127.0.0.1:{server.port}" in f["message"], f
    server.start()
    w, more = _persist(t, servers=f"127.0.0.1:1,localhost:{server.port}", timeout=3000)
    got = t.ids()
    assert got[:1] == ids and set(got) == {*ids, more}, "a quorum queue keeps what was confirmed"
    # the server goes in good order
    server.ctl("stop_app")
    f = failed(w)
    assert f["outcome"] == "outage" and f["sqlstate"] == "57P01", f


def test_slow():
    """Silence is an outage after the timeout; a heartbeat notices it while nothing is to be done."""
    server = Server()
    t = Target(server, timeout=1500)
    with server.stopped():
        assert t.refused()["outcome"] == "outage"
    w = t.start()
    idle = t.start(heartbeat=1)
    acked(w, [{}])
    with server.stopped():
        w.events([{}])
        w.send("PING", nonce=5)
        w.expect("PONG", nonce=5)
        f = failed(w)
        assert f["outcome"] == "outage" and "1500 ms" in f["message"], f
        f = failed(idle)
        assert f["outcome"] == "outage" and "heartbeat" in f["message"], f
    # heartbeats keep an idle connection
    w = t.start(heartbeat=1)
    with contextlib.suppress(TimeoutError):
        assert w.recv(5) is None, "the program ended while it was idle"
    acked(w, [{}])
    w.close()


def test_alarm():
    """The server is short of disk or memory: the program says so, waits, and goes on without a second message."""
    server = Server()
    t = Target(server)
    for what, word in (("disk", "disk"), ("memory", "memory")):
        w = t.start(timeout=60000, flags=codec.KEY_ORDER)
        ids = acked(w, [{}])
        with alarm(server, what):
            batch, more = w.events([{"key": str(i)} for i in range(300)])
            note = w.expect("LOG")["message"]
            assert "blocks" in note and word in note, note
            w.send("PING", nonce=1)
            while (got := w.recv())[0] in ("RESULT", "CREDIT"):
                pass
            assert got[0] == "PONG", got
        assert w.outcomes(batch, 300) == ["acked"] * 300
        w.close()
        assert sorted(t.ids()) == sorted(ids + [i.hex for i in more])
        with server.channel() as c:
            c.queue_purge(t.queue)
    # one that lasts is an outage with its name
    w = t.start(timeout=1500)
    with alarm(server):
        w.events([{"payload": b'"' + b"x" * 1000000 + b'"'}] * 3)
        f = failed(w)
        assert f["outcome"] == "outage" and f["sqlstate"] == "53000" and "disk" in f["message"], f


def test_login():
    server = Server()
    t = Target(server)
    server.ctl("add_user", "sink", "s3cret")
    for options in ({"user": "sink", "password": "s3cretive"}, {"user": "nobody", "password": "s3cret"}):
        f = t.refused(**options)
        assert f["outcome"] == "rejected" and f["sqlstate"] == "28P01", f
    login = {"user": "sink", "password": "s3cret"}
    # no right on the virtual host, or there is none
    f = t.refused(**login)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "3D000" and "vhost" in f["message"], f
    f = t.refused(vhost="elsewhere")
    assert f["outcome"] == "rejected" and f["sqlstate"] == "3D000" and "elsewhere" in f["message"], f
    for options in ({"user": None}, {"password": None}):
        f = t.refused(flags=codec.REQUIRE_PASSWORD, **options)
        assert f["outcome"] == "rejected" and f["sqlstate"] == "28000", f
    # no right to publish
    server.ctl("set_permissions", "sink", "^$", "^$", "^$")
    w = t.start(**login)
    w.events([{}] * 3)
    f = failed(w)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42501" and t.exchange in f["message"], f
    w = t.start(exchange="{event_type}", **login)
    batch, _ = w.events([{"type": t.exchange, "key": "a"}, {"type": t.exchange, "key": "b"}])
    assert w.outcomes(batch, 2) == ["rejected"] * 2 and w.notes[0][0] == "42501", w.notes
    w.close()
    # the one right that it needs
    server.ctl("set_permissions", "sink", "^$", f"^{t.exchange}$", "^$")
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("s3cret\nnot this\n")
        secret.flush()
        w = t.start(user="sink", password=None, secret_file=secret.name)
        acked(w, [{}])
        w.close()
        assert t.refused(secret_file=secret.name, **login)["outcome"] == "rejected"
    # rights on routing keys are an event's affair
    server.ctl("set_topic_permissions", "sink", t.exchange, "^good$", "^$")
    w = t.start(routing_key="{event_type}", flags=codec.KEY_ORDER, **login)
    batch, _ = w.events([{"type": "good" if i % 4 else "bad", "key": str(i)} for i in range(8)])
    assert w.outcomes(batch, 8) == ["acked" if i % 4 else "rejected" for i in range(8)], w.notes
    assert w.notes[0][0] == "42501" and "topic" in w.notes[0][1], w.notes
    w.send("SETTLE", batch=batch)
    w.close()


def test_virtual_host():
    server = Server()
    t = Target(server, declare=False)
    server.ctl("add_vhost", "shop")
    server.ctl("set_permissions", "-p", "shop", "admin", ".*", ".*", ".*")
    with server.channel(vhost="shop") as c:
        c.exchange_declare(t.exchange, "fanout", durable=True)
        c.queue_declare(t.queue, durable=True)
        c.queue_bind(t.queue, t.exchange)
    w = t.start(vhost="shop")
    acked(w, [{}] * 3)
    w.close()
    with server.channel(vhost="shop") as c:
        assert c.queue_declare(t.queue, passive=True).method.message_count == 3


def test_queue_is_deleted():
    t = Target()
    w = t.start(flags=codec.KEY_ORDER)
    acked(w, [{}])
    with t.server.channel() as c:
        c.queue_delete(t.queue)
    batch, _ = w.events([{}, {}])
    assert w.outcomes(batch, 2) == ["rejected", "skipped"], w.notes
    w.send("SETTLE", batch=batch)
    t.server.declare(t.exchange, t.queue)
    ids = acked(w, [{}, {}])
    w.close()
    assert t.ids() == ids


def test_connection_is_closed():
    """An operator ends the connection of an idle program, and of one at work."""
    t = Target()
    w = t.start()
    acked(w, [{}])
    said = t.server.ctl("list_connections", "client_properties")
    assert "idempotency relay orders" in said, said
    t.server.ctl("close_all_connections", "enough")
    f = failed(w)
    assert f["outcome"] == "outage" and f["sqlstate"] == "57P01" and "enough" in f["message"], f


def test_options():
    t = Target()
    for options, word in (({"servers": "::1"}, "servers"), ({"servers": "a:b"}, "servers"), ({"servers": "a:1,"}, "servers"),
                          ({"servers": "h:70000"}, "servers"), ({"servers": "amqp://h"}, "servers"), ({"servers": "u@h"}, "servers"),
                          ({"sslrootcert": __file__}, "tls"), ({"tls": "on", "sslcert": __file__}, "sslkey"),
                          ({"vhost": "v" * 256}, "vhost"), ({"exchange": "e" * 256}, "exchange"), ({"heartbeat": "0"}, "heartbeat"),
                          ({"format": "xml"}, "format"), ({"exchange": "{aggregate_id}"}, "exchange"), ({"tls": "on", "sslrootcert": "/nowhere"}, "sslrootcert")):
        f = t.refused(**options)
        assert f["outcome"] == "rejected" and word in f["message"], (options, f)


def test_look():
    """What LOOK finds; it publishes nothing."""
    t = Target()
    found, status = look(SINK, t.options())
    assert status == 0 and [f[0] for f in found.values()] == [1] * 4, found
    assert list(found) == ["options", "connection", "exchange", "rights and bindings"], found
    assert t.ids() == []
    found, status = look(SINK, t.options(password="s3cret"))
    assert status == 0 and found["connection"][0] == 0 and "exchange" not in found, found
    found, _ = look(SINK, t.options(exchange="none"))
    assert found["exchange"][0] == 0 and "none" in found["exchange"][1] and "sink_setup" in found["exchange"][2], found
    found, _ = look(SINK, t.options(exchange="{event_type}"))
    assert found["exchange"][0] == 1 and "names come from events" in found["exchange"][1], found
    found, _ = look(SINK, t.options(servers="x:"))
    assert found["options"][0] == 0 and len(found) == 1, found
    until("no connection is left", lambda: "orders" not in t.server.ctl("list_connections", "client_properties"))
