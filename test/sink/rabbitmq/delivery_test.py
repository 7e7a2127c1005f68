"""What the rabbitmq sink publishes, and what becomes of a message that the server does not take."""
import json
import uuid

from rabbitmq.server import Server
from rabbitmq.target import Target, acked, failed
from sinklib import codec

KEY_ORDER = codec.KEY_ORDER
PLAIN = {"aggregate_type": "order", "aggregate_id": "1"}


def test_message():
    """Each property, header and byte of the body."""
    t = Target()
    w = t.start()
    event = uuid.uuid4()
    headers = json.dumps({"trace": "a\u00e9\x00b", "n": 7, "o": {"x": [1]}, "nothing": None, "": "empty", "CC": "elsewhere",
                          "bcc": "x", "aggregate-id": "of another", "x-death": "never", "x-first-death-queue": "q",
                          "cloudEvents_id": "of another"}).encode()
    acked(w, [{"id": event, "key": "k/\u00e9", "type": "Created", "headers": headers, "payload": b'{"a": 1}'},
              {"json": False, "payload": b"\x00\xff"},
              {"payload": b"x", "json": False, "content_type": "text/plain"}])
    w.close()
    one, two, three = t.messages()
    method, properties, body = one
    assert method.exchange == t.exchange and method.routing_key == "order" and body == b'{"a": 1}'
    assert properties.message_id == str(event) and properties.type == "Created"
    assert properties.delivery_mode == 2 and properties.timestamp == 1795248000 and properties.content_type == "application/json"
    got = {k: v for k, v in properties.headers.items() if k != "x-delivery-count"}
    assert got == {**PLAIN, "aggregate_id": "k/\u00e9", "trace": "a\u00e9\x00b", "n": "7", "o": '{"x": [1]}', "nothing": None, "": "empty"}, got
    assert properties.priority is None and properties.expiration is None and properties.reply_to is None
    assert (two[1].content_type, two[2]) == ("application/octet-stream", b"\x00\xff")
    assert (three[1].content_type, three[2]) == ("text/plain", b"x")


def test_cloudevents():
    t = Target(source="/shop/{relay}")
    event = uuid.uuid4()
    w = t.start(format="cloudevents_binary")
    acked(w, [{"id": event, "key": "7"}])
    w.close()
    (_, properties, body), = t.messages()
    want = {"specversion": "1.0", "id": str(event), "source": "/shop/orders", "type": "T", "subject": "7", "partitionkey": "7"}
    for name, value in want.items():
        assert properties.headers["cloudEvents_" + name] == value, properties.headers
    assert properties.content_type == "application/json" and body == b'{"n": 1}'
    t = Target(source="/shop/{relay}")
    w = t.start(format="cloudevents_structured")
    acked(w, [{"id": event, "key": "7", "payload": b"1"}])
    w.close()
    (_, properties, body), = t.messages()
    ce = json.loads(body)
    assert {k: ce[k] for k in want} == want and ce["data"] == 1, ce
    assert properties.content_type.startswith("application/cloudevents+json") and properties.message_id == str(event)


def test_templates():
    t = Target()
    t.server.declare("shop." + t.exchange, "direct-" + t.queue, key="7.orders.x", kind="direct")
    w = t.start(exchange="{header:at}." + t.exchange, routing_key="{aggregate_id}.{relay}.{header:to}")
    at = b'{"at": "shop", "to": "x"}'
    long = json.dumps({"at": "shop", "to": "x" * 250}).encode()
    zero = b'{"at": "shop", "to": "\\u0000"}'
    batch, _ = w.events([{"key": "7", "headers": at}, {"key": "7"}, {"key": "7", "headers": long}, {"key": "7", "headers": zero}])
    assert w.outcomes(batch, 4) == ["acked", "impossible", "impossible", "impossible"]
    assert 'option "exchange"' in w.notes[1][1] and "255 bytes" in w.notes[2][1] and "zero byte" in w.notes[3][1], w.notes
    w.close()
    assert len(t.server.messages("direct-" + t.queue)) == 1


def test_default_exchange():
    """The exchange without a name has a route to each queue."""
    t = Target()
    w = t.start(exchange="{header:none}", routing_key=t.queue)
    acked(w, [{"headers": b'{"none": ""}'}])
    w.close()
    assert len(t.ids()) == 1


def test_unroutable():
    """The server confirms a message that no queue takes; it returns the message before that."""
    t = Target(declare=False)
    t.server.declare(t.exchange, t.queue, key="good.*")
    for flags in (0, KEY_ORDER):
        w = t.start(flags=flags, routing_key="{event_type}", incarnation=f"log-{flags}")
        events = [{"key": str(i), "type": "bad" if i % 3 else "good.x", "payload": b'"' + b"x" * (200000 if i % 2 else 3) + b'"'} for i in range(30)]
        batch, ids = w.events(events)
        assert w.outcomes(batch, 30) == ["rejected" if i % 3 else "acked" for i in range(30)]
        assert w.last_result["destination"] == "bad"
        assert w.notes[1] == ("42704", f'no queue is bound to exchange "{t.exchange}" for routing key "bad"'), w.notes[1]
        w.close()
        assert sorted(t.ids()) == sorted(i.hex for n, i in enumerate(ids) if n % 3 == 0)
        with t.server.channel() as c:
            c.queue_purge(t.queue)


def test_key_order():
    """A returned message blocks its key, also those of a later batch; other keys go on."""
    t = Target(declare=False)
    t.server.declare(t.exchange, t.queue, key="good")
    w = t.start(flags=KEY_ORDER, routing_key="{event_type}")
    with w.in_one_piece():
        one, ids = w.events([{"key": "a", "type": "good"}, {"key": "a", "type": "bad"}, {"key": "b", "type": "good"}, {"key": "a", "type": "good"}])
        two, more = w.events([{"key": "a", "type": "good"}, {"key": "b", "type": "good"}])
    assert w.outcomes(one, 4) == ["acked", "rejected", "acked", "skipped"]
    assert w.outcomes(two, 2) == ["skipped", "acked"]
    w.send("SETTLE", batch=two)
    last = acked(w, [{"key": "a", "type": "good"}])
    w.close()
    assert t.ids() == [ids[0].hex, ids[2].hex, more[1].hex] + last


def test_order_of_many():
    """Events of few keys, in several batches at once: each key's are in order."""
    t = Target()
    w = t.start(flags=KEY_ORDER)
    with w.in_one_piece():
        batches = [w.events([{"key": str(i % 7), "payload": b"%d" % (100 * n + i)} for i in range(100)])[0] for n in range(5)]
    for batch in batches:
        assert w.outcomes(batch, 100) == ["acked"] * 100
    w.close()
    values = {}
    for _, properties, body in t.messages():
        values.setdefault(properties.headers["aggregate_id"], []).append(int(body))
    assert len(values) == 7 and sum(map(len, values.values())) == 500
    assert all(v == sorted(v) for v in values.values())


def test_full_queue():
    """A queue that is full refuses, and the message behind it may be taken: the key is blocked."""
    t = Target(declare=False)
    t.server.declare(t.exchange, t.queue, queue_type="classic", max_length=3, overflow="reject-publish")
    w = t.start(flags=KEY_ORDER)
    ids = acked(w, [{"key": str(i)} for i in range(3)])
    batch, _ = w.events([{"key": "a"}, {"key": "a"}, {"key": "b"}])
    assert w.outcomes(batch, 3) == ["retry", "skipped", "retry"], w.notes
    assert w.notes[0][0] == "53000", w.notes
    w.send("SETTLE", batch=batch)
    assert t.ids() == ids
    with t.server.channel() as c:
        c.queue_purge(t.queue)
    ids = acked(w, [{"key": "a"}])
    w.close()
    assert t.ids() == ids


def test_exchange_is_missing():
    t = Target(declare=False)
    f = t.refused()
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42704" and t.exchange in f["message"] and "sink_setup" in f["message"], f
    # it goes while the program is at work
    t.server.declare(t.exchange, t.queue)
    w = t.start()
    acked(w, [{}])
    with t.server.channel() as c:
        c.exchange_delete(t.exchange)
    w.events([{}] * 3)
    f = failed(w)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42704", f


def test_exchange_of_an_event_is_missing():
    """Events to an exchange that is there go on, in order; the channel is opened again."""
    t = Target()
    w = t.start(flags=KEY_ORDER, exchange="{event_type}")
    for _ in range(2):
        kinds = ["none", t.exchange, "also-none", t.exchange, "none", t.exchange, "it's", "none"]
        batch, ids = w.events([{"key": str(i % 6), "type": kind} for i, kind in enumerate(kinds)])
        want = ["acked" if kind == t.exchange else "rejected" for kind in kinds]
        want[6] = "skipped"     # its key's earlier event was refused
        assert w.outcomes(batch, 8) == want, w.notes
        assert w.last_result["destination"] == "none/order", w.last_result
        assert w.notes[0][0] == "42704" and "'none'" in w.notes[0][1] and "also-none" in w.notes[2][1], w.notes
        w.send("SETTLE", batch=batch)
        good = [i.hex for i, kind in zip(ids, kinds) if kind == t.exchange]
        # what was in flight when the channel was closed went twice
        assert set(good) <= set(t.ids())
    w.close()


def test_too_large():
    """The server closes the channel, and does not say for which message."""
    server = Server("max_message_size = 100000\n")
    t = Target(server)
    w = t.start(flags=KEY_ORDER)
    large = b'"' + b"x" * 150000 + b'"'
    batch, ids = w.events([{"key": str(i), "payload": large if i in (3, 7) else b"1"} for i in range(10)])
    assert w.outcomes(batch, 10) == ["rejected" if i in (3, 7) else "acked" for i in range(10)], w.notes
    assert w.notes[3][0] == "54000" and "larger than" in w.notes[3][1], w.notes
    w.send("SETTLE", batch=batch)
    more = acked(w, [{"key": "3"}] * 3)
    w.close()
    first = list(dict.fromkeys(t.ids()))
    assert set(first) == {i.hex for n, i in enumerate(ids) if n not in (3, 7)} | set(more)
    assert first[-3:] == more


def test_large_events():
    t = Target()
    w = t.start()
    for size in (131064, 131065, 131072, 3000000, 20000000):
        acked(w, [{"payload": b'"' + b"x" * (size - 2) + b'"'}])
    # headers and properties have to fit into a frame
    batch, _ = w.events([{"headers": json.dumps({"h": "x" * n}).encode()} for n in (120000, 131000, 200000)] +
                        [{"headers": json.dumps({"n" * 256: "x"}).encode()}, {"type": "t" * 256}, {"content_type": "t" * 256},
                         {"headers": json.dumps({str(i): "" for i in range(20000)}).encode()}, {"type": "t" * 255}])
    assert w.outcomes(batch, 8) == ["acked"] + ["impossible"] * 6 + ["acked"], w.notes
    assert [w.notes[i][0] for i in range(1, 7)] == ["54000", "54000", "22023", "22023", "22023", "54000"], w.notes
    w.send("SETTLE", batch=batch)
    w.close()
    assert sorted(len(body) for _, _, body in t.messages() if len(body) > 1000) == [131064, 131065, 131072, 3000000, 20000000]
