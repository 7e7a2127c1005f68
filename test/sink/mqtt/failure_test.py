"""Brokers that are away, slow, refuse, end the connection or come back empty; copies of a relay."""
import contextlib
import socket
import threading

from mqtt import packets
from mqtt.broker import Broker, free_port
from mqtt.packets import FakeBroker, ack, disconnect, packet
from mqtt.target import SINK, Target, acks, failed, until
from sinklib import look


def test_nobody_there():
    """A message that nobody has subscribed to is acknowledged: the broker has nothing to keep it for."""
    t = Target(reader=False)
    w = t.start()
    acks(w, [{}])
    w.close()
    assert t.read().messages(f"{t.name}/sync") == []


def test_twin():
    """A copy of the relay takes the session over; the older program ends, and is not fenced: the other one may be a stranger."""
    t = Target()
    first = t.start()
    acks(first, [{"key": "a"}])
    second = t.start()
    f = failed(first)
    # mosquitto says no reason
    assert f["outcome"] == "outage" and f["sqlstate"] in ("08006", "55006") and "same client id" in f["message"], f
    acks(second, [{"key": "b"}])
    third = t.start(client_id=f"{t.name}-other")
    acks(third, [{"key": "c"}])
    acks(second, [{"key": "d"}])
    # a LOOK takes nothing over
    found, status = look(SINK, t.options())
    assert status == 0 and all(ok for ok, *_ in found.values()), found
    acks(second, [{"key": "e"}])
    second.close()
    third.close()
    assert len(t.values()) == 5


def test_session_is_new():
    """A successor's first message has a packet identifier that the predecessor's open message had: the broker must not know it."""
    for qos in (1, 2):
        there = FakeBroker(lambda m: ack(m) if m.payload == b"2" else b"")
        t = Target(address=there.address)
        w = t.start(qos=qos)
        w.events([{"payload": b"1"}])
        until("sent", lambda: there.messages)
        w.kill()
        w = t.start(qos=qos)
        acks(w, [{"payload": b"2"}])
        w.close()
        first, second = there.messages
        assert first.mid == second.mid and all(c[7] & 2 for c in there.connects), there.connects
        there.close()


def test_broker_dies():
    """What was not answered comes again from the relay; what was answered and a subscriber has not is the broker's to keep."""
    b = Broker()
    t = Target(b)
    w = t.start()
    acks(w, [{"key": "a"}])
    b.stop()
    f = failed(w)
    assert f["outcome"] == "outage" and f["sqlstate"] in ("08006", "57P01"), f
    f = failed(t.start(hello=False))
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08006"), f
    b.start()
    w = t.start()
    acks(w, [{"key": "a"}])
    b.empty()
    assert failed(w)["outcome"] == "outage"
    # no position is kept at the broker: there is nothing to compare, and events go on
    w = t.start()
    t.reader = t.read()
    acks(w, [{"key": "a"}])
    assert len(t.values()) == 1
    w.close()
    b.remove()


class Between:
    """Stands between sink and broker, which takes one connection.  Keeps the broker's answers to messages back."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sent = 0           # messages that went to the broker
        self.answered = 0       # answers that it gave
        threading.Thread(target=self.serve, args=(port,), daemon=True).start()

    def serve(self, port):
        ours = self.listener.accept()[0]
        self.listener.close()
        theirs = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=self.pump, args=(ours, theirs), daemon=True).start()
        self.pump(theirs, ours)

    def pump(self, source, sink):
        file = source.makefile("rb")
        with contextlib.suppress(OSError):
            while (got := packets.read_packet(file)) is not None:
                kind, flags, body = got
                self.sent += kind == packets.PUBLISH
                if kind in (packets.PUBACK, packets.PUBREC):
                    self.answered += 1
                else:
                    sink.sendall(packet(kind, body, flags))
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_broker_ends_within_window():
    """A broker with a bounded window ends when it has all messages of the window, and the sink none of the answers: nothing is lost."""
    for qos in (1, 2):
        b = Broker(conf="max_queued_messages 1000000\nmax_inflight_messages 5")
        t = Target(b, reader=False)
        b.client(client_id="durable", expiry=3600).subscribe(f"{t.name}/#", qos).close()
        between = Between(b.port)
        w = t.start(servers=between.address, qos=qos)
        events = [{"key": str(i), "payload": b"%d" % i} for i in range(20)]
        w.events(events)
        until(lambda: f"the window is full: {between.answered}", lambda: between.answered == 5)
        # the program, which has seen that there is room for no more, is awake
        w.send("PING", nonce=1)
        w.expect("PONG", nonce=1)
        assert between.sent == 5, between.sent
        b.stop()
        f = failed(w)
        assert f["outcome"] == "outage", f
        b.start()
        w = t.start(qos=qos)
        acks(w, events)
        w.close()
        durable = b.client(client_id="durable", expiry=3600)
        while {m.payload for m in durable.got} != {e["payload"] for e in events}:
            durable.take(packets.read_packet(durable.file))
        durable.close()
        b.remove()


def test_stored_for_who_is_away():
    """A session that is to stay gets what was published while nobody read, after a restart, in order: also more than the default of 1000."""
    b = Broker()
    t = Target(b, reader=False)
    b.client(client_id="durable", expiry=3600).subscribe(f"{t.name}/#").close()
    w = t.start()
    acks(w, [{"key": str(i % 5), "payload": b"%d" % i} for i in range(1000)])
    acks(w, [{"key": str(i % 5), "payload": b"%d" % i} for i in range(1000, 2000)])
    w.close()
    b.stop()
    b.start()
    durable = b.client(client_id="durable", expiry=3600)
    while len(durable.got) < 2000:
        durable.take(packets.read_packet(durable.file))
    got = [int(m.payload) for m in durable.got]
    assert sorted(got) == list(range(2000)) and all(sorted(k) == k for k in ([n for n in got if n % 5 == i] for i in range(5)))
    b.remove()


def test_slow_broker():
    """No answer within the timeout is an outage; a slow one is waited for, and PINGs are answered."""
    t = Target(Broker())
    w = t.start(timeout=2000)
    t.b.pause()
    w.events([{"key": "a"}])
    w.send("PING", nonce=7)
    w.expect("PONG", nonce=7)
    f = failed(w)
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08006") and "2000 ms" in f["message"], f
    f = failed(t.start(hello=False, timeout=2000))
    assert f["outcome"] == "outage" and "in time" in f["message"], f
    t.b.resume()
    w = t.start(timeout=900000)
    t.b.pause()
    batch, _ = w.events([{"key": "a"}])
    w.send("PING", nonce=8)
    w.expect("PONG", nonce=8)
    t.b.resume()
    assert w.outcomes(batch, 1) == ["acked"]
    w.close()
    t.b.remove()


def test_silent_broker():
    """A connection that is silent is tried after the keepalive, whatever the options say if the broker wants it sooner."""
    there = FakeBroker(connack=[(packets.SERVER_KEEP_ALIVE, 2)])
    w = Target(address=there.address).start(keepalive=600)
    until("pings", lambda: sum(kind == packets.PINGREQ for kind, *_ in there.packets) >= 2)
    acks(w, [{}])
    there.talk = None
    w.close()
    there.close()

    class Deaf(FakeBroker):
        def talk(self, c):
            packets.read_packet(c.makefile("rb"))
            c.sendall(packet(packets.CONNACK, b"\0\0\0"))
            threading.Event().wait()
    f = failed(Target(address=Deaf().address).start(keepalive=5))
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08006") and "ping" in f["message"], f


def test_full_socket():
    """A broker that does not read: the program waits for the socket, and answers PINGs."""
    listener = socket.create_server(("127.0.0.1", 0))
    go = threading.Event()

    def serve():
        c = listener.accept()[0]
        file = c.makefile("rb")
        packets.read_packet(file)
        c.sendall(packet(packets.CONNACK, b"\0\0\0"))
        go.wait()
        while (got := packets.read_packet(file)) is not None:
            c.sendall(ack(packets.Message(got[1], got[2])))
    threading.Thread(target=serve, daemon=True).start()
    w = Target(address="127.0.0.1:%d" % listener.getsockname()[1]).start(timeout=900000)
    batch, _ = w.events([{"key": str(i), "payload": b"x" * 900000, "json": False} for i in range(30)][:4])
    batches = [batch] + [w.events([{"key": f"{n}-{i}", "payload": b"x" * 900000, "json": False} for i in range(4)])[0] for n in range(5)]
    w.send("PING", nonce=9)
    w.expect("PONG", nonce=9)
    go.set()
    for b in batches:
        assert w.outcomes(b, 4) == ["acked"] * 4
    w.close()
    listener.close()


def test_refused_topic():
    """The ACL refuses a topic: the event is refused, and others go on."""
    b = Broker(acl="topic read #\ntopic write +/sync\ntopic write +/order/Good\n")
    t = Target(b)
    w = t.start()
    acks(w, [{"key": "a", "type": "Good"}, {"key": "b", "type": "Bad"}, {"key": "b", "type": "Good"}, {"key": "c", "type": "Good"}],
         ["acked", "rejected", "skipped", "acked"])
    assert w.notes[1] == ("42501", "not authorized"), w.notes
    w.close()
    w = t.start(qos=2)
    acks(w, [{"key": "a", "type": "Bad"}, {"key": "b", "type": "Good"}], ["rejected", "acked"])
    assert w.last_result["destination"] == f"{t.name}/order/Good", w.last_result
    w.close()
    assert len(t.messages()) == 3
    b.remove()


def results(w, count):
    """The outcomes that come before FAILED, and it."""
    batch = w.batch
    return w.outcomes(batch, count), failed(w)


def test_refusal_that_ends_the_connection():
    """Without a limit of queued messages mosquitto ends the connection with each message that it refuses.  The refusal counts."""
    b = Broker(acl="topic read #\ntopic write +/sync\ntopic write +/order/Good\n", conf="max_queued_messages 0")
    for qos in (1, 2):
        t = Target(b)
        w = t.start(in_flight=1, qos=qos)
        with w.in_one_piece():
            w.events([{"key": "a", "type": "Good"}, {"key": "b", "type": "Bad"}, {"key": "b", "type": "Good"}, {"key": "c", "type": "Good"}])
        out, f = results(w, 4)
        assert out[:3] == ["acked", "rejected", "skipped"] and out[3] in ("unknown", "acked"), out
        assert f["outcome"] == "outage" and f["sqlstate"] == "08006", f
    b.remove()


def test_large_message_that_is_not_announced():
    """message_size_limit is in no CONNACK; mosquitto answers with a code that PUBACK does not have."""
    b = Broker(conf="message_size_limit 1000")
    t = Target(b)
    w = t.start()
    with w.in_one_piece():
        batch, _ = w.events([{"key": "a"}, {"key": "b", "payload": b"x" * 1001, "json": False}, {"key": "c"}])
    out = w.outcomes(batch, 3)
    assert out == ["acked", "rejected", "acked"] and w.notes[1][0] == "54000", (out, w.notes)
    w.close()
    b.remove()


def test_answer_that_the_library_does_not_take():
    """No event is named then: the relay is told that one of them ends the connection."""
    there = FakeBroker(lambda m: packet(packets.PUBACK, b"\0\0"))
    w = Target(address=there.address).start()
    w.events([{}])
    f = failed(w)
    assert (f["outcome"], f["sqlstate"]) == ("outage", "ID006"), f


def test_disconnect_codes():
    """A DISCONNECT that may be about a message says so while one is in flight, and only then."""
    for code, in_flight, idle in ((0x95, "ID006", "54000"), (0x82, "ID006", "08P01"), (0x90, "ID006", "22023"), (0x99, "ID006", "22023"),
                                  (0x8B, "57P01", "57P01"), (0x8E, "55006", "55006"), (0x97, "53000", "53000"), (0x98, "57P01", "57P01"),
                                  (0x87, "28000", "28000"), (0xAA, "08006", "08006")):
        there = FakeBroker(lambda m: disconnect(code))      # noqa: B023
        w = Target(address=there.address).start()
        w.events([{}])
        f = failed(w)
        assert f["sqlstate"] == in_flight and f["outcome"] == ("rejected" if code == 0x87 else "outage"), (code, f)
        w = Target(address=there.address).start()
        there.send(disconnect(code))
        assert failed(w)["sqlstate"] == idle, code
        there.close()
    # without a DISCONNECT nobody is to blame
    there = FakeBroker(lambda m: None)
    w = Target(address=there.address).start()
    w.events([{}])
    assert failed(w)["sqlstate"] == "08006"


def test_results_before_the_end():
    """What was answered before the connection ended is not sent again."""
    there = FakeBroker(lambda m: ack(m) if m.payload == b"1" else None)
    w = Target(address=there.address).start()
    first, _ = w.events([{"key": "a", "payload": b"1"}])
    w.events([{"key": "b", "payload": b"2"}])
    assert w.outcomes(first, 1) == ["acked"]
    assert failed(w)["outcome"] == "outage"


def test_answers_that_end_the_session():
    """Codes of packet identifiers mean that the broker's session is not ours."""
    there = FakeBroker(lambda m: ack(m, 0x91))
    w = Target(address=there.address).start()
    w.events([{}])
    f = failed(w)
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08P01") and "0x91" in f["message"], f


def test_peer_that_leaves():
    """A peer that closes instead of an answer, with TLS and without, is found at once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            c = listener.accept()[0]
            c.recv(1)
            c.shutdown(socket.SHUT_WR)
    threading.Thread(target=serve, daemon=True).start()
    t = Target(address="127.0.0.1:%d" % listener.getsockname()[1])
    for options in ({}, {"tls": "on"}):
        f = t.refused(timeout=900000, **options)
        assert f["outcome"] == "outage" and ("closed" in f["message"] or "eof" in f["message"]), (options, f)


def test_no_server():
    f = Target(address=f"127.0.0.1:{free_port()}").refused()
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08006") and "refused" in f["message"], f
    f = Target(address="no-such-host.invalid").refused()
    assert f["outcome"] == "outage", f
