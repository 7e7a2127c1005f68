"""Answers of a server of the test: a golden conversation, answers in all forms, lies, and mutations.

RABBITMQ_FUZZ_SECONDS=3600 runs the mutations for longer, FUZZ_SEED=n repeats a run; the default is 5 s and another seed each time.
"""
import contextlib
import os
import random
import struct
import time
import uuid

from rabbitmq import fake
from rabbitmq.fake import Fake, ack, closed, frame, method, nack, returned
from rabbitmq.target import OUTCOMES, SINK, failed
from sinklib import LateWorker, Worker, built, codec

SECONDS = float(os.environ.get("RABBITMQ_FUZZ_SECONDS", "5"))


def start(server, hello=True, flags=0, **options):
    options = {"servers": server.address, "exchange": "E", "user": "u", "password": "s3cret-s3cret", "timeout": "1000", **options}
    w = LateWorker(SINK, options={k: v for k, v in options.items() if v is not None}, flags=flags)
    if hello:
        w.hello()
    return w


def test_golden_conversation():
    """Byte for byte what the program sends."""
    event = uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
    with Fake() as f:
        w = start(f, routing_key="{event_type}", heartbeat="7")
        batch, _ = w.events([{"id": event, "headers": b'{"a": "b"}'}])
        assert w.outcomes(batch, 1) == ["acked"]
        w.close()
    assert [(kind, channel, struct.unpack(">HH", payload[:4])) for kind, channel, payload in f.frames[:6]] == [
        (1, 0, fake.START_OK), (1, 0, fake.TUNE_OK), (1, 0, fake.OPEN), (1, 1, fake.CHANNEL_OPEN), (1, 1, fake.SELECT), (1, 1, fake.DECLARE)]
    assert b"\x12connection.blockedt\x01" in f.frames[0][2] and b"idempotency relay orders" in f.frames[0][2]
    assert b"\0u\0s3cret-s3cret" in f.frames[0][2]
    assert f.frames[1][2][4:] == struct.pack(">HIH", 2047, 131072, 7)
    # passive, durable; the type does not count
    assert f.frames[5][2][4:] == b"\0\0\x01E\x05topic\x03\0\0\0\0"
    table = b"\x01aS\0\0\0\x01b\x0eaggregate_typeS\0\0\0\x05order\x0caggregate_idS\0\0\0\x011"
    assert f.frames[6:] == [
        (1, 1, struct.pack(">HH", *fake.PUBLISH) + b"\0\0\x01E\x01T\x01"),
        (2, 1, struct.pack(">HHQH", 60, 0, 8, 0b1011_0000_1110_0000) + b"\x10application/json" + struct.pack(">I", len(table)) + table +
         b"\x02" + b"\x24" + str(event).encode() + struct.pack(">Q", 1795248000) + b"\x01T"),
        (3, 1, b'{"n": 1}')], f.frames[6:]


def test_confirms_in_all_forms():
    """One by one, backwards, several at once, with refusals and returns among them; late for a channel that was closed."""
    def answers(messages, tag):
        if tag % 10:
            return b""
        at = tag - 9
        a, b, c = messages[-10], messages[-9], messages[-3]
        # at to at + 9: returned, returned, acked twice alone, one refused, three at once, returned and acked, the rest refused
        return (ack(at + 3) + ack(at + 2) + nack(at + 4) + returned(a) + returned(b) + ack(at + 1, True) + returned(c) + ack(at + 7, True) + nack(0 if tag == 20 else tag, True))
    want = ["rejected", "rejected", "acked", "acked", "retry", "acked", "acked", "rejected", "retry", "retry"]
    with Fake(answers) as f:
        w = start(f)
        for _ in range(3):
            batch, _ = w.events([{"payload": b'"' + b"x" * 1000 + b'"'}] * 20)
            assert w.outcomes(batch, 20) == want * 2
            w.send("SETTLE", batch=batch)
        w.close()
    assert all(m["mandatory"] for m in f.messages)


def test_closed_channel_in_flight():
    """The server closes the channel with the fifth message, and has confirmed two; the ones in flight go again, one by one."""
    seen = []

    def answers(messages, tag):
        seen.append(messages[-1]["key"])
        if messages[-1]["key"] == b"bad":
            return closed(406, "PRECONDITION_FAILED - no s3cret-s3cret")
        return ack(tag) if tag <= 2 or len(seen) > 8 else b""
    with Fake(answers) as f:
        w = start(f, routing_key="{event_type}")
        batch, _ = w.events([{"type": "bad" if i == 4 else f"k{i}"} for i in range(8)])
        assert w.outcomes(batch, 8) == ["acked"] * 4 + ["rejected"] + ["acked"] * 3
        assert w.notes[4][0] == "54000" and "s3cret" not in w.notes[4][1], w.notes
        w.send("SETTLE", batch=batch)
        batch, _ = w.events([{}] * 8)
        assert w.outcomes(batch, 8) == ["acked"] * 8
        w.close()
    assert seen[8:15] == [b"k2", b"k3", b"bad", b"k5", b"k6", b"k7", b"T"], seen


def test_settle_while_events_are_refused():
    """A SETTLE is taken while a job decides events, by a program that watches its threads."""
    program = built("src/sink/bin/idempotency-sink-rabbitmq", "SINK_COPT=-fsanitize=thread")
    with Fake(lambda messages, tag: nack(tag)) as f:
        w = Worker(program, options={"servers": f.address, "exchange": "E", "user": "u", "password": "s3cret-s3cret"}, flags=codec.KEY_ORDER)
        w.hello()
        last = None
        for n in range(6):
            batch, _ = w.events([{"key": f"{n}-{i}"} for i in range(900)])
            if last is not None:
                w.send("SETTLE", batch=last)
            assert w.outcomes(batch, 900) == ["retry"] * 900
            last = batch
        w.send("SETTLE", batch=last)
        w.close()


LIES = [
    ack(2), ack(0), nack(99), ack(1 << 63, True),                                   # messages that were not sent
    frame(fake.HEADER, 1, struct.pack(">HHQH", 60, 0, 5, 0)), frame(fake.BODY, 1, b"abc"),  # parts of a message that is not returned
    method(1, fake.RETURN, struct.pack(">H", 312) + b"\0\0\0") + ack(1),            # a return without its message
    method(1, fake.RETURN, struct.pack(">H", 312) + b"\0\0\0") + frame(fake.HEADER, 1, struct.pack(">HHQH", 60, 0, 2, 0)) + frame(fake.BODY, 1, b"abc"),
    method(1, (60, 60), b"\x01c" + struct.pack(">QB", 1, 0) + b"\x01e\x01k"),  # a delivery
    method(1, (20, 20), b"\x01"),                                                   # channel.flow
    method(0, fake.TUNE, struct.pack(">HIH", 1, 4096, 1)), method(0, (99, 99)), method(1, fake.ACK, b""), frame(9, 1, b"x"),
    frame(fake.METHOD, 1, b"\0"), frame(fake.METHOD, 1, b"\0\x3c\0\x50", end=b"X"), b"\xff" * 64, b"AMQP\0\0\x09\x01",
    closed(320, "CONNECTION_FORCED - going down", 0, fake.CLOSE), closed(541, "INTERNAL_ERROR", 0, fake.CLOSE),
    closed(501, "FRAME_ERROR - s3cret-s3cret", 0, fake.CLOSE), None,
]


def test_lies():
    """No answer that makes no sense counts as a confirm, or blames an event."""
    for lie in LIES:
        with Fake(lambda messages, tag, lie=lie: lie) as f:
            w = start(f)
            w.events([{}])
            got = failed(w)
            assert got["outcome"] == "outage", (lie, got)


def test_returned_messages_of_others():
    """A return whose id nobody knows, or that has none, blames no event."""
    other = {"exchange": b"E", "key": b"k", "body": b"", "header": struct.pack(">HHQH", 60, 0, 0, 0x80) + b"\x24" + str(uuid.uuid4()).encode()}
    bare = {**other, "header": struct.pack(">HHQH", 60, 0, 3, 0), "body": b"abc"}
    with Fake(lambda messages, tag: returned(other) + returned(bare) + ack(tag)) as f:
        w = start(f)
        batch, _ = w.events([{}] * 3)
        assert w.outcomes(batch, 3) == ["acked"] * 3
        w.close()


def test_blocked_without_a_reason():
    def answers(messages, tag):
        return method(0, fake.BLOCKED, b"\0") if tag == 1 else ack(tag)
    with Fake(answers) as f:
        w = start(f)
        w.events([{}] * 3)
        got = failed(w)
        assert got["outcome"] == "outage" and "blocks" in got["message"], got
        assert len(f.messages) == 1 or len(f.messages) == 3


def test_greetings():
    """What is no server of AMQP 0-9-1, or one that does not let the program in."""
    bad = [("start", b"AMQP\0\0\x09\x01"), ("start", b"HTTP/1.1 400 Bad Request\r\n\r\n"), ("start", None),
           ("start", method(0, fake.START, b"\0\x08" + fake.long(b"") + fake.long(b"PLAIN") + fake.long(b"x"))),
           ("start", method(0, fake.START, b"\0\x09" + fake.long(b"") + fake.long(b"EXTERNAL") + fake.long(b"x"))),
           ("tune", closed(403, "ACCESS_REFUSED - Login was refused: u s3cret-s3cret", 0, fake.CLOSE)), ("tune", method(1, fake.ACK, b"")),
           ("open", closed(530, "NOT_ALLOWED - vhost / not found", 0, fake.CLOSE)), ("channel", closed(504, "CHANNEL_ERROR", 0, fake.CLOSE)),
           ("channel", None), ("select", closed(540, "NOT_IMPLEMENTED")), ("declare", closed(404, "NOT_FOUND - no exchange 'E'")), ("declare", b"")]
    for name, answer in bad:
        with Fake(greeting={name: answer}) as f:
            got = failed(start(f, hello=False))
            assert got["outcome"] in ("outage", "rejected"), (name, answer, got)
            rejected = name in ("tune", "open", "declare") and answer and b"_" in answer or name == "start" and answer and (b"EXTERNAL" in answer or b"\0\x08" in answer[:20])
            assert (got["outcome"] == "rejected") == bool(rejected), (name, answer, got)


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data)) if data else 0
        data[at:at + rng.choice((0, 1))] = rng.choice((b"", b"\0", b"\xff", b"\xce", bytes([rng.randrange(256)])))
    return bytes(data)


def test_fuzz():
    """The program, which make check-sink builds with sanitizers, ends by the rules of the protocol whatever it is sent."""
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    ends = {}
    while time.monotonic() < end:
        names = rng.sample(list(fake.GREETING), rng.choice((0, 0, 0, 1)))
        greeting = {name: mutate(rng, fake.GREETING[name]) for name in names}

        def answers(messages, tag):
            out = b"".join(rng.choice((ack(tag), nack(tag), returned(messages[-1]) + ack(tag), ack(tag, True), b"", frame(8, 0, b""),
                                       closed(404, "NOT_FOUND - no exchange 'E' in vhost '/'"), closed(406, "x" * 255), rng.choice(LIES) or b"",
                                       method(0, fake.BLOCKED, b"\x05short"), method(0, fake.UNBLOCKED)))
                           for _ in range(rng.choice((1, 1, 2, 4))))
            return mutate(rng, out) if rng.random() < 0.5 else out
        with Fake(answers, greeting) as f:
            w = start(f, hello=False, flags=rng.choice((0, codec.KEY_ORDER)), exchange=rng.choice(("E", "{event_type}")))
            said = None
            try:
                while (got := w.recv()) is not None:
                    said = got
                    if got[0] == "READY":
                        w.events([{}, {"type": "a"}, {"key": "b"}])
                    if got[0] == "RESULT" and got[1]["last"] == 2:
                        break
                    assert "s3cret" not in str(got), got
                w.sock.close()
                assert w.exit_status() == 0, w.stderr()
            except Exception:
                print(f"FUZZ_SEED={seed}")
                raise
            name = said[0] if said[0] != "FAILED" else OUTCOMES[said[1]["outcome"]]
            ends[name] = ends.get(name, 0) + 1
    assert ends


def test_addresses():
    """What the option "servers" may have; nothing answers at any of it."""
    rng = random.Random(int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32)))
    for _ in range(40):
        text = "".join(rng.choice(("[", "]", ":", ",", " ", "1", "127.0.0.1", "0", "65536", "::1", "a" * 300, "\u00e9", "@", "/")) for _ in range(rng.randrange(1, 7)))
        w = LateWorker(SINK, options={"servers": text, "user": "u", "password": "p", "timeout": "1000"}, flags=0)
        with contextlib.suppress(TimeoutError):
            got = w.recv()
        assert got[0] == "FAILED", (text, got)
        w.sock.close()
        assert w.exit_status() == 0, (text, w.stderr())
