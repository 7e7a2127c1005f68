"""What is published, and what becomes of what the broker answers."""
import json
import threading
import uuid

from mqtt import packets
from mqtt.broker import Broker
from mqtt.packets import FakeBroker, ack, packet
from mqtt.target import SINK, Target, acks, failed, until
from sinklib import codec, look

EVENT = {"id": uuid.UUID("01234567-89ab-cdef-0123-456789abcdef"), "key": "k\u00fc", "type": "Created", "aggregate_type": "order",
         "headers": b'{"trace": "t", "n": 5, "no": null, "event-id": "evil", "Event_Type": "evil", "source": "mine"}', "payload": b'{"a": 1}'}


def test_message():
    t = Target()
    w = t.start(message_expiry=3600)
    acks(w, [EVENT, {"key": "b", "payload": b"\x00\xff", "json": False, "content_type": "application/x-thing"}])
    json_one, bytes_one = t.messages()
    assert (json_one.topic, json_one.payload, json_one.qos, json_one.retain) == (f"{t.name}/order/Created", EVENT["payload"], 1, False)
    assert json_one.property(packets.CONTENT_TYPE) == "application/json" and json_one.property(packets.FORMAT) == 1
    assert 3590 <= json_one.property(packets.EXPIRY) <= 3600
    assert json_one.user == [("Event-Id", str(EVENT["id"])), ("Event-Type", "Created"), ("Aggregate-Type", "order"), ("Aggregate-Id", "k\u00fc"),
                             ("trace", "t"), ("n", "5"), ("source", "mine")], json_one.user
    assert bytes_one.payload == b"\x00\xff" and bytes_one.property(packets.CONTENT_TYPE) == "application/x-thing"
    assert bytes_one.property(packets.FORMAT) is None
    w.close()


def test_qos_2_and_retain():
    t = Target()
    w = t.start(qos=2, retain="on")
    acks(w, [{"key": str(i % 7), "type": "A" if i < 500 else "B", "payload": b"%d" % i} for i in range(1000)])
    assert [int(m.payload) for m in t.messages() if int(m.payload) % 7 == 3] == list(range(3, 1000, 7))
    w.close()
    # who comes later gets the last message of each topic
    late = t.read().messages(f"{t.name}/sync")
    assert sorted(m.topic for m in late) == [f"{t.name}/order/A", f"{t.name}/order/B"] and all(m.retain for m in late), [m.topic for m in late]


def test_cloudevents():
    t = Target()
    for form in ("cloudevents_binary", "cloudevents_structured"):
        w = t.start(format=form)
        acks(w, [EVENT])
        w.close()
    binary, structured = t.messages()
    attributes = dict(binary.user)
    assert len(attributes) == len(binary.user) and attributes["source"] == "/idempotency/orders" and attributes["subject"] == "k\u00fc", binary.user
    assert attributes["id"] == attributes["Event-Id"] == str(EVENT["id"]) and attributes["specversion"] == "1.0" and attributes["trace"] == "t"
    assert binary.property(packets.CONTENT_TYPE) == "application/json" and binary.payload == EVENT["payload"]
    event = json.loads(structured.payload)
    assert event["data"] == {"a": 1} and event["subject"] == "k\u00fc" and event["type"] == "Created", event
    assert structured.property(packets.CONTENT_TYPE).startswith("application/cloudevents+json") and structured.property(packets.FORMAT) == 1


GOLDEN = """
CONNECT 00 04 4d 51 54 54 05 02 00 3c 03 21 00 14 00 12 69 64 65 6d 70 6f 74 65 6e 63 79 2d 6f 72 64 65 72 73
PUBLISH 2 00 0c 6f 75 74 62 6f 78 2f 6f 72 64 65 72 00 01 80 01 03 00 10 61 70 70 6c 69 63 61 74 69 6f 6e 2f 6a 73 6f 6e 01 01
 26 00 08 45 76 65 6e 74 2d 49 64 00 24 30 31 32 33 34 35 36 37 2d 38 39 61 62 2d 63 64 65 66 2d 30 31 32 33 2d 34 35 36 37 38 39 61 62 63 64 65 66
 26 00 0a 45 76 65 6e 74 2d 54 79 70 65 00 01 54
 26 00 0e 41 67 67 72 65 67 61 74 65 2d 54 79 70 65 00 05 6f 72 64 65 72
 26 00 0c 41 67 67 72 65 67 61 74 65 2d 49 64 00 01 31 7b 7d
DISCONNECT
"""


def test_golden():
    """The packets of a short talk, byte by byte."""
    there = FakeBroker()
    w = Target(address=there.address).start(client_id=None, topic="outbox/{aggregate_type}")
    acks(w, [{"id": EVENT["id"], "payload": b"{}"}])
    w.send("BYE")
    assert w.recv() is None and w.exit_status() == 0
    until("DISCONNECT", lambda: len(there.packets) == 3)
    said = ""
    for kind, flags, body in there.packets:
        name = {packets.CONNECT: "CONNECT", packets.PUBLISH: "PUBLISH", packets.DISCONNECT: "DISCONNECT"}[kind]
        said += " ".join([name, *([str(flags)] if flags else []), body.hex(" ")]).strip() + " "
    assert said.split() == GOLDEN.split(), said


def test_refused_events():
    """What MQTT has no topic or property for is refused, alone."""
    t = Target()
    bad = [{"type": "a+"}, {"type": "#"}, {"type": "a\nb"}, {"type": "a\ufdd0"}, {"headers": b'{"to": "' + b"x" * 66000 + b'"}'},
           {"key": "a\tb"}, {"headers": b'{"to": "x", "a": "b\\nc"}'}, {"headers": b'{"to": "x", "a\\u0001": "b"}'}, {"headers": b'{"a": 1}'},
           {"headers": b'{"to": "x", "a": "b\\u0000"}'}, {"headers": b'{"to": "x", "a": "' + b"x" * 70000 + b'"}'}, {"content_type": "a\nb"}]
    events = []
    for i, e in enumerate(bad):
        events += [{"headers": b'{"to": "x"}', "key": f"bad{i}", **e}, {"headers": b'{"to": "x"}', "key": f"good{i}", "type": "a/b c"}]
    w = t.start(topic=f"{t.name}/{{event_type}}/{{header:to}}")
    acks(w, events, ["impossible", "acked"] * len(bad))
    assert {w.notes[2 * i][0] for i in range(len(bad))} <= {"22023", "54000"}, w.notes
    assert [m.topic for m in t.messages()] == [f"{t.name}/a/b c/x"] * len(bad)
    w.close()
    w = t.start(topic="{event_type}")
    acks(w, [{"key": "1", "type": "$SYS/x"}, {"key": "2", "type": ""}, {"key": "3", "type": f"{t.name}/ok"}], ["impossible", "impossible", "acked"])
    w.close()


def test_large_event():
    """The broker's largest packet is known before anything is sent, to the byte."""
    b = Broker(conf="max_packet_size 2000")
    t = Target(b)
    w = t.start()
    sizes = range(1700, 1900)
    batch, _ = w.events([{"key": str(n), "payload": b"x" * n, "json": False} for n in sizes])
    out = w.outcomes(batch, len(sizes))
    fit = out.count("acked")
    assert 0 < fit < len(sizes) and out == ["acked"] * fit + ["impossible"] * (len(sizes) - fit), out
    assert {n[0] for n in w.notes.values()} == {"54000"} and "2000 bytes" in w.notes[len(sizes) - 1][1], w.notes
    assert len(t.messages()) == fit
    w.close()
    b.remove()


def test_reason_codes():
    """One code for each event: each outcome is that of its own message."""
    expected = {0: "acked", 0x10: "acked", 0x80: "retry", 0x83: "rejected", 0x87: "rejected", 0x90: "rejected", 0x97: "retry", 0x99: "rejected"}
    for qos in (1, 2):
        there = FakeBroker(lambda m: ack(m, int(m.payload)))
        w = Target(address=there.address).start(qos=qos)
        codes = list(expected) * 3
        batch, _ = w.events([{"key": str(i), "payload": b"%d" % code} for i, code in enumerate(codes)])
        out = w.outcomes(batch, len(codes))
        assert out == [expected[c] for c in codes], (qos, out)
        assert w.notes[6][0] == "53400" and w.notes[4][0] == "42501", w.notes
        w.close()
        there.close()


def test_refused_key():
    """A key waits for the answer to its last event; behind a refused one it is skipped."""
    there = FakeBroker(lambda m: ack(m, 0x87 if m.payload == b"bad" else 0))
    t = Target(address=there.address)
    w = t.start()
    events = [{"key": k, "payload": p} for k, p in (("a", b"1"), ("a", b"bad"), ("b", b"2"), ("a", b"3"), ("b", b"4"))]
    acks(w, events, ["acked", "rejected", "acked", "skipped", "acked"])
    assert sorted(m.payload for m in there.messages) == [b"1", b"2", b"4", b"bad"]
    acks(w, [{"key": "a", "payload": b"5"}])
    w.close()
    w = t.start(flags=0)
    acks(w, events, ["acked", "rejected", "acked", "acked", "acked"])
    w.close()


def test_block_and_settle_together():
    """An event before the SETTLE is skipped, and extends the block, also if both come in one piece."""
    there = FakeBroker(lambda m: ack(m, 0x87 if m.payload == b"bad" else 0))
    w = Target(address=there.address).start()
    first, _ = w.events([{"payload": b"bad"}])
    assert w.outcomes(first, 1) == ["rejected"]
    with w.in_one_piece():
        second, _ = w.events([{"payload": b"2"}])
        w.send("SETTLE", batch=first)
        third, _ = w.events([{"payload": b"3"}])
    assert w.outcomes(second, 1) + w.outcomes(third, 1) == ["skipped"] * 2
    w.close()


class Holder(FakeBroker):
    """Keeps its answers until it is told."""

    def __init__(self, **kwargs):
        self.held, self.lock, self.most = [], threading.Lock(), 0
        super().__init__(self.hold, **kwargs)

    def hold(self, m):
        with self.lock:
            self.held.append(m)
            self.most = max(self.most, len(self.held))
        return b""

    def release(self, n):
        with self.lock:
            out, self.held = self.held[:n], self.held[n:]
        self.send(b"".join(ack(m) for m in out))


def test_window():
    """No more messages without an answer than the broker's Receive Maximum, or the option; and as many."""
    for connack, options, most in (([(packets.RECEIVE_MAXIMUM, 3)], {}, 3), ([], {"in_flight": 7}, 7), ([], {}, 100),
                                   ([(packets.RECEIVE_MAXIMUM, 500)], {"in_flight": 9}, 9)):
        there = Holder(connack=connack)
        w = Target(address=there.address).start(**options)
        batch, _ = w.events([{"key": str(i)} for i in range(most * 2 + 1)])
        for held in (most, most, 1):
            until(lambda: f"{held} in flight: {len(there.held)}", lambda: len(there.held) == held)
            there.release(held)
        assert w.outcomes(batch, most * 2 + 1) == ["acked"] * (most * 2 + 1) and there.most == most, there.most
        w.close()
        there.close()


def test_one_of_a_key():
    """Two events of a key are never in flight together, also across batches."""
    there = Holder()
    w = Target(address=there.address).start()
    first, _ = w.events([{"key": "a"}, {"key": "a"}])
    second, _ = w.events([{"key": "a"}, {"key": "b"}])
    until("two in flight", lambda: len(there.held) == 2)
    for _ in range(3):
        assert [m.header("Aggregate-Id") for m in there.held].count("a") == 1, there.held
        n = len(there.messages)
        there.release(len(there.held))
        if n < 4:
            until("the next one", lambda: len(there.messages) > n)
    assert w.outcomes(first, 2) + w.outcomes(second, 2) == ["acked"] * 4
    assert [m.header("Aggregate-Id") for m in there.messages].count("a") == 3
    w.close()


def test_bad_options():
    t = Target(address="127.0.0.1:1")
    for options in ({"topic": "a/+"}, {"topic": "#"}, {"topic": "$SYS/a"}, {"servers": "mqtt://a:1883"}, {"servers": "user:pw@a"}, {"servers": "a:0"},
                    {"servers": "a:99999"}, {"servers": ","}, {"servers": "[::1"}, {"client_id": "a\nb"}, {"user": "u"}, {"password": "s3cret"},
                    {"sslrootcert": "/etc/hostname"}, {"sslcert": "/etc/hostname"}, {"tls": "on", "sslcert": "/etc/hostname", "sslkey": "/etc/hostname"},
                    {"tls": "on", "sslrootcert": "/nonexistent"}, {"qos": "0"}, {"keepalive": "4"}, {"servers": ",".join(["a"] * 17)}):
        f = t.refused(**options)
        assert f["outcome"] == "rejected" and f["sqlstate"] in ("HV024", "22023", "58030"), (options, f)
    assert t.refused(flags=codec.REQUIRE_PASSWORD)["sqlstate"] == "2F003"


def test_limits():
    """A broker that cannot do what the options ask for."""
    for connack, options in (([(packets.MAXIMUM_QOS, 1)], {"qos": 2}), ([(packets.RETAIN_AVAILABLE, 0)], {"retain": "on"})):
        there = FakeBroker(connack=connack)
        t = Target(address=there.address)
        f = t.refused(**options)
        assert (f["outcome"], f["sqlstate"]) == ("rejected", "0A000"), f
        found, status = look(SINK, t.options(**options))
        assert status == 0 and found["connection"][0] and not found["limits of the broker"][0] and "rights" not in found, found
        w = t.start()
        acks(w, [{}])
        w.close()
        there.close()


def test_refused_connections():
    expected = {0x84: ("rejected", "0A000"), 0x85: ("rejected", "HV024"), 0x86: ("rejected", "28P01"), 0x87: ("rejected", "28000"),
                0x88: ("outage", "57P03"), 0x89: ("outage", "57P03"), 0x97: ("outage", "53000"), 0x9F: ("outage", "53300"), 0xAA: ("outage", "08006")}
    for code, what in expected.items():
        there = FakeBroker(code=code)
        f = Target(address=there.address).refused()
        assert (f["outcome"], f["sqlstate"]) == what, (code, f)
        there.close()
    # a broker of MQTT 3 answers without properties
    there = FakeBroker(code=packet(packets.CONNACK, bytes([0, 1])))
    f = Target(address=there.address).refused()
    assert f["outcome"] in ("rejected", "outage"), f


def test_next_server():
    """Each server is tried in turn."""
    t = Target()
    w = t.start(servers=f"127.0.0.1:1,{t.address}")
    acks(w, [{}])
    w.close()
    f = failed(t.start(hello=False, servers="127.0.0.1:1,127.0.0.1:2"))
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08006") and "refused" in f["message"], f
