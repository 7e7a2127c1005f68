"""A server of the stream protocol that a test speaks for: a golden conversation, lies, and mutations.

make check-sink runs this with a program that has sanitizers.  RABBITMQ_FUZZ_SECONDS=3600 runs the mutations for longer,
FUZZ_SEED=n repeats a run; the default is 5 s and another seed each time.
"""
import contextlib
import json
import os
import random
import re
import socket
import struct
import threading
import time
import uuid

from rabbitmq.streamlib import (ANSWER, AUTHENTICATE, CLOSE, CONFIRM, CREDIT, DECLARE, DELIVER, ERROR, HANDSHAKE, HEARTBEAT, LAST, METADATA, OPEN,
                                PEER, PUBLISH, SEQUENCE, SUBSCRIBE, TUNE, UNSUBSCRIBE, UPDATE, batch, chunk, frame, message, string)
from rabbitmq.target import OUTCOMES, SINK, failed
from sinklib import Worker, codec

SECONDS = float(os.environ.get("RABBITMQ_FUZZ_SECONDS", "5"))
ID = uuid.UUID("634a77f9-ad53-4281-a536-92a75ba8376f")
OWNER = b"0123456789abcdef"


def note(**fields):
    """A message with a note."""
    text = json.dumps({"relay": "orders", "id": 1 << 32, "owner": OWNER.decode(), **fields}).encode()
    pairs = b"\xa3\x11x-opt-idempotency\xb1" + struct.pack(">I", len(text)) + text
    return b"\0\x53\x72\xd1" + struct.pack(">II", len(pairs) + 4, 2) + pairs + b"\0\x53\x75\xa0\0"


STORED = message(note(id=(7 << 32) + 1, incarnation="log-0", row_id=7, k=1))


class Fake:
    """change(key, frames): the frames that are sent in the place of the usual answer to a request of that key."""

    def __init__(self, change=lambda key, frames: frames, last=STORED, sequence=(7 << 32) + 1):
        self.change, self.sequence = change, sequence
        self.log = [last] if last else []
        self.asked = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                c = self.listener.accept()[0]
                threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        with contextlib.suppress(OSError, struct.error), c, c.makefile("rb") as file:
            while True:
                size, = struct.unpack(">I", file.read(4))
                data = file.read(size)
                self.asked.append(data)
                key, = struct.unpack_from(">H", data)
                c.sendall(b"".join(self.change(key, self.usual(key, data[4:]))))

    def usual(self, key, body):
        number = struct.unpack_from(">I", body)[0] if len(body) >= 4 else 0

        def answer(more=b""):
            return frame(key | ANSWER, more, number, 1)
        if key == PEER:
            return [answer(struct.pack(">I", 0))]
        if key == HANDSHAKE:
            return [answer(struct.pack(">I", 2) + string("EXTERNAL") + string("PLAIN"))]
        if key == AUTHENTICATE:
            return [answer(), frame(TUNE, struct.pack(">II", 1 << 20, 60))]
        if key == OPEN:
            return [answer(struct.pack(">I", 2) + string("advertised_host") + string("b") + string("advertised_port") + string("5552"))]
        if key == METADATA:
            return [frame(key | ANSWER, struct.pack(">IH", 1, 0) + string("b") + struct.pack(">II", 5552, 1) + string("s") +
                          struct.pack(">HHI", 1, 0, 0), number)]
        if key in (DECLARE, UNSUBSCRIBE):
            return [answer()]
        if key == SEQUENCE:
            return [answer(struct.pack(">Q", self.sequence))]
        if key == SUBSCRIBE:
            n = body[4]
            kind, = struct.unpack_from(">H", body, 5 + 2 + struct.unpack_from(">H", body, 5)[0])
            at = len(self.log) - 1 if kind == LAST else 0
            return [answer()] + [frame(DELIVER, struct.pack(">B", n) + chunk(i, [e])) for i, e in enumerate(self.log) if i >= at]
        if key == PUBLISH:
            publisher, _, self.sequence = struct.unpack_from(">BIQ", body)
            self.log.append(body[13:])
            return [frame(CONFIRM, struct.pack(">BIQ", publisher, 1, self.sequence))]
        return []


def start(fake, hello=True, **options):
    w = Worker(SINK, options={"servers": f"127.0.0.1:{fake.port}", "stream": "s", "user": "u", "password": "s3cret-s3cret", "timeout": "1000",
                              **options}, flags=codec.WANT_POSITION)
    if hello:
        w.hello()
    return w


def test_stream_golden_conversation():
    """What the program sends, byte by byte."""
    with Fake() as there:
        w = start(there)
        assert (w.ready["has_position"], w.ready["incarnation"], w.ready["row_id"], w.ready["k"]) == (1, "log-0", 7, 1), w.ready
        number, _ = w.events([{"id": ID, "key": "A-7", "payload": b'{"a": 1}', "headers": b'{"trace": "t"}'}], row_id=8, k=2)
        assert w.outcomes(number, 1) == ["acked"]
        w.expect("VERDICT", batch=number, kind=1)
        w.close()
    got = [re.sub(rb'"owner":"[0-9a-f]{16}"', b'"owner":"' + OWNER + b'"', data) for data in there.asked]

    def request(key, number, body=b""):
        return frame(key, body, number)[4:]

    def written(text):
        pairs = b"\0\0\0\x02\xa3\x11x-opt-idempotency\xb1" + struct.pack(">I", len(text)) + text
        return b"\0\x53\x72\xd1" + struct.pack(">I", len(pairs)) + pairs

    def published(i, text, rest):
        return frame(PUBLISH, struct.pack(">BIQ", 1, 1, i) + batch(written(text) + rest))[4:]
    properties = b"\xa1\x24" + str(ID).encode() + b"\x40" * 5 + b"\xa3\x10application/json\x40\x40\x83" + struct.pack(">q", 1795248000000)
    fields = b"\xa1\x05trace\xa1\x01t\xa1\x0aevent_type\xa1\x01T\xa1\x0eaggregate_type\xa1\x05order\xa1\x0caggregate_id\xa1\x03A-7"
    event = b"\0\x53\x73\xd0" + struct.pack(">II", len(properties) + 4, 10) + properties + \
        b"\0\x53\x74\xd1" + struct.pack(">II", len(fields) + 4, 8) + fields + b'\0\x53\x75\xa0\x08{"a": 1}'
    name = string("idempotency.orders") + string("s")
    expected = [
        request(PEER, 1, struct.pack(">I", 2) + string("product") + string("idempotency-sink-rabbitmq") + string("connection_name") + string("orders")),
        request(HANDSHAKE, 2), request(AUTHENTICATE, 3, string("PLAIN") + b"\0\0\0\x10\0u\0s3cret-s3cret"),
        frame(TUNE | ANSWER, struct.pack(">II", 1 << 20, 30))[4:], request(OPEN, 4, string("/")),
        request(METADATA, 5, struct.pack(">I", 1) + string("s")), request(DECLARE, 6, b"\x01" + name),
        request(SUBSCRIBE, 7, b"\x01" + string("s") + struct.pack(">HHI", LAST, 1, 0)), request(SEQUENCE, 8, name), request(UNSUBSCRIBE, 9, b"\x01"),
        published(8 << 32, b'{"relay":"orders","id":34359738368,"owner":"' + OWNER + b'"}', b"\0\x53\x75\xa0\0"), request(SEQUENCE, 10, name),
        request(SUBSCRIBE, 11, b"\x02" + string("s") + struct.pack(">HQHI", 4, 1, 8, 0)), frame(CREDIT, b"\x02\0\x01")[4:], request(UNSUBSCRIBE, 12, b"\x02"),
        request(SEQUENCE, 13, name),
        published((8 << 32) + 1, b'{"relay":"orders","id":34359738369,"owner":"' + OWNER + b'","incarnation":"log-1","row_id":8,"k":2}', event),
        request(SEQUENCE, 14, name)]
    for i, (a, b) in enumerate(zip(got, expected)):
        assert a == b, (i, a, b)
    assert len(got) == len(expected), got[len(expected):]


def replaced(wanted, *frames, after=0):
    """A change: these frames are the answers to requests of that key, behind the first ones."""
    seen = [0]

    def change(key, usual):
        if key != wanted:
            return usual
        seen[0] += 1
        return list(frames) if seen[0] > after else usual
    return change


def test_stream_lies():
    """Nothing that the server says of itself or wrongly counts as a confirm."""
    sequences = (0, 7 << 32, (8 << 32) - 1, 1 << 63, (1 << 64) - 1)
    for sequence in sequences:
        for after in (2, 3):    # the question in front of the batch, and behind it
            with Fake(replaced(SEQUENCE, after=after)) as there:
                there.change = lambda key, usual, n=[0], s=sequence, a=after: (
                    n.__setitem__(0, n[0] + (key == SEQUENCE)) or
                    ([usual[0][:-8] + struct.pack(">Q", s)] if key == SEQUENCE and n[0] > a else usual))
                w = start(there)
                w.events([{}], row_id=8)
                f = failed(w)
                assert f["outcome"] == ("fenced" if sequence > 8 << 32 else "outage"), (sequence, after, f)
    for lie in ([], [frame(CONFIRM, struct.pack(">BIQ", 1, 1, 5))], [frame(CONFIRM, struct.pack(">BIQ", 1, 0, 0))],
                [frame(ERROR, struct.pack(">BIQH", 1, 1, 5, 6))], [frame(HEARTBEAT)], [frame(CLOSE, struct.pack(">IH", 9, 1) + string("s3cret-s3cret bye"))],
                [frame(UPDATE, struct.pack(">H", 6) + string("s"))], [frame(99)], [b"\0\0\0\0"], [b"\xff" * 9]):
        with Fake(replaced(PUBLISH, *lie, after=1)) as there:
            w = start(there)
            w.events([{}], row_id=8)
            f = failed(w)
            assert f["outcome"] in ("outage", "rejected"), (lie, f)


def test_stream_notes():
    """What is in the stream and no note of this relay is none; what is another relay's is left alone."""
    for entry in (b"\0\0\0\0", message(b"\0\x53\x72"), message(note(incarnation="x")), message(note(id="x", incarnation="i", row_id=1, k=1)),
                  message(b"\0\x53\x75\xa0\x03abc"), batch(), struct.pack(">BHII", 0x90, 5, 99, 3) + b"abc", message(note(incarnation="i" * 2000, row_id=1, k=1))):
        with Fake(last=entry, sequence=0) as there:
            w = start(there, hello=False)
            got = w.recv()
            while got[0] == "LOG":
                got = w.recv()
            assert got[0] in ("READY", "FAILED") and not (got[0] == "READY" and got[1]["has_position"]), (entry, got)
            w.kill()
    with Fake(last=message(note(relay="stock", incarnation="i", row_id=1, k=1)), sequence=0) as there:
        assert failed(start(there, hello=False))["outcome"] == "rejected"
        assert not any(struct.unpack_from(">H", data)[0] == PUBLISH for data in there.asked)
    # a fence of a program of the same id in the place of ours
    with Fake() as there:
        there.change = lambda key, usual: (there.log.__setitem__(-1, message(note(id=there.sequence))) or usual) if key == PUBLISH else usual
        f = failed(start(there, hello=False))
        assert f["outcome"] == "outage" and "other instances" in f["message"], f


def mutated(rng):
    """A change: a few bytes of a few answers."""
    rate = rng.choice((0.02, 0.1, 0.3))

    def change(key, usual):
        out = []
        for data in usual:
            if rng.random() < rate:
                data = bytearray(data)
                for _ in range(rng.choice((1, 1, 2, 8))):
                    where = rng.randrange(len(data))
                    data[where:where + rng.choice((0, 1, 1, 4))] = rng.choice((b"", b"\0", b"\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", bytes([rng.randrange(256)])))
                data = bytes(data)
                if rng.random() < 0.7 and len(data) > 4:
                    data = struct.pack(">I", len(data) - 4) + data[4:]
            out.append(data)
        if rng.random() < rate / 4:
            out.insert(0, rng.choice((frame(HEARTBEAT), frame(CREDIT | ANSWER, struct.pack(">HB", 4, 1)), frame(DELIVER, b"\x01" + chunk(0, [STORED])),
                                      frame(CONFIRM, struct.pack(">BIQ", 1, 1 << 31, 3)), frame(DELIVER, b"\x02" + chunk(1 << 63, [], 1 << 31)))))
        return out
    return change


def test_stream_fuzz():
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    ends = {}
    while time.monotonic() < end:
        with Fake(mutated(rng), last=rng.choice((STORED, None))) as there:
            if not there.log:
                there.sequence = 0
            w = start(there, hello=False, delivery=rng.choice(("exactly_once", "at_least_once")))
            said = None
            try:
                while (got := w.recv()) is not None:
                    said = got
                    assert "s3cret" not in str(got), got
                    if got[0] == "READY":
                        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                            w.events([{}, {"type": "a"}], row_id=got[1]["row_id"] // 2 + 9)
                    if got[0] in ("VERDICT", "RESULT"):
                        break
                w.sock.close()
                assert w.exit_status() == 0, w.stderr()
            except Exception:
                print(f"FUZZ_SEED={seed}")
                raise
            name = said[0] if said[0] != "FAILED" else OUTCOMES[said[1]["outcome"]]
            ends[name] = ends.get(name, 0) + 1
    assert len(ends) >= 2 or SECONDS < 2, (seed, ends)
