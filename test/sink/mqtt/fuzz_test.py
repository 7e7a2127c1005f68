"""Topics of any text, and a broker that answers anything: the program, built with sanitizers, ends by the rules of the protocol.

MQTT_FUZZ_SECONDS=3600 runs it for longer, FUZZ_SEED=n repeats a run; the default is 5 s and another seed each time.
"""
import contextlib
import functools
import os
import random
import socket
import struct
import subprocess
import time

from mqtt import packets
from mqtt.packets import FakeBroker, ack, packet, properties
from mqtt.target import OUTCOMES, Target
from sinklib import TOP, codec

SECONDS = float(os.environ.get("MQTT_FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32))
SANITIZED = TOP / "src/sink/build/san/idempotency-sink-mqtt"
PIECES = ["a", "/", "+", "#", "$", "\u00fc", "\u4e2d", "\U0001f600", " ", "\x01", "\x7f", "\x85", "\ufdd0", "\uffff", "\t", "$SYS", "{", "}", "x" * 200, ""]
CONNACKS = [[], [(packets.RECEIVE_MAXIMUM, 1)], [(packets.MAXIMUM_PACKET, 200)], [(packets.SERVER_KEEP_ALIVE, 1)], [(packets.REASON, "no")],
            [(packets.USER, ("a", "b"))], [(packets.RECEIVE_MAXIMUM, 65535), (packets.MAXIMUM_QOS, 1), (packets.RETAIN_AVAILABLE, 0)], [(18, "assigned")]]


def is_text(s):
    return not any(c < " " or "\x7f" <= c <= "\x9f" or "\ufdd0" <= c <= "\ufdef" or ord(c) & 0xFFFE == 0xFFFE for c in s)


def is_topic(s):
    return bool(s) and s[0] != "$" and not set("+#") & set(s) and is_text(s)


@functools.cache
def program():
    """As make check-sink builds it."""
    subprocess.run(["make", "-s", "WERROR=1", SANITIZED.relative_to(TOP)], cwd=TOP, check=True)
    return SANITIZED


def test_fuzz_topics():
    """Each event is acked or impossible, as its topic is one; and the broker got it under that topic."""
    rng = random.Random(SEED)
    there = FakeBroker()
    w = Target(address=there.address).start(program=program(), topic="{event_type}{header:h}", flags=0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        texts = ["".join(rng.choices(PIECES, k=rng.randrange(5))) for _ in range(50)]
        there.messages.clear()
        batch, _ = w.events([{"type": s, "key": str(i), "headers": b'{"h": ""}'} for i, s in enumerate(texts)])
        out = w.outcomes(batch, len(texts))
        for s, o in zip(texts, out):
            assert o == ("acked" if is_topic(s) else "impossible"), (SEED, s, o)
        assert sorted(m.topic for m in there.messages) == sorted(filter(is_topic, texts)), SEED
    w.close()
    there.close()


class Liar(FakeBroker):
    """Answers that are mutated, missing, of another kind or of another message."""

    def __init__(self, rng):
        self.rng = rng
        super().__init__(self.lie, connack=rng.choice(CONNACKS))
        if rng.random() < 0.3:
            self.code = self.mutated(packet(packets.CONNACK, bytes([0, 0]) + properties(self.connack)))

    def mutated(self, data):
        data = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            at = self.rng.randrange(len(data) + 1)
            data[at:at + self.rng.choice((0, 1))] = self.rng.choice((b"", b"\0", b"\xff", bytes([self.rng.randrange(256)])))
        return bytes(data)

    def lie(self, m):
        rng, what = self.rng, self.rng.random()
        if what < 0.5:
            return ack(m)
        if what < 0.6:
            return self.mutated(ack(m))
        if what < 0.7:
            return ack(m, rng.randrange(256))
        if what < 0.75:
            return packet(rng.randrange(16), struct.pack(">H", rng.randrange(65536)) + bytes(rng.randrange(4)), rng.randrange(16))
        if what < 0.8:
            return ack(m) + ack(m)
        if what < 0.85:
            return packets.disconnect(rng.randrange(256))
        if what < 0.9:
            return rng.randbytes(rng.randrange(1, 20))
        return None if what < 0.95 else b""


def test_fuzz_answers():
    rng = random.Random(SEED)
    program()
    end = time.monotonic() + SECONDS
    ends = {}
    while time.monotonic() < end:
        there = Liar(rng)
        w = Target(address=there.address).start(hello=False, program=program(), timeout=1000, qos=rng.choice((1, 2)), user="u", password="s3cret-s3cret")
        w.events([{"key": str(i % 5)} for i in range(20)])
        said, answered = None, set()
        while len(answered) < 20 and (got := w.recv()) is not None:
            said = got
            if got[0] == "RESULT":
                answered |= set(range(got[1]["first"], got[1]["last"] + 1))
        if len(answered) == 20 and said[0] != "FAILED":
            w.sock.shutdown(socket.SHUT_WR)
            while (got := w.recv()) is not None:
                pass
        status = w.exit_status()
        text = w.stderr()
        # without a READY the credit was not granted
        assert status == 0 or "protocol error" in text and said is None, (SEED, status, text, said)
        assert "s3cret" not in str(said) + text, SEED
        with contextlib.suppress(OSError):
            w.sock.close()
            os.close(w.stderr_r)
        there.close()
        what = OUTCOMES[said[1]["outcome"]] if said and said[0] == "FAILED" else "answered"
        ends[what] = ends.get(what, 0) + 1
    assert ends, SEED
