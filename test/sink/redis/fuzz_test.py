"""A server that answers anything: the program, which make check-sink builds with sanitizers, ends by the rules of the protocol.

REDIS_FUZZ_SECONDS=3600 runs it for longer, FUZZ_SEED=n repeats a run; the default is 5 s and another seed each time.
"""
import contextlib
import os
import random
import socket
import threading
import time

from redis.target import OUTCOMES, Target
from sinklib import codec

SECONDS = float(os.environ.get("REDIS_FUZZ_SECONDS", "5"))
SHA = b"$40\r\n" + b"a" * 40 + b"\r\n"
HELLO = b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n"
LOOK = b"*8\r\n$2\r\nok\r\n" + SHA + b"$1\r\n7\r\n$3\r\nlog\r\n$6\r\norders\r\n$5\r\nlog-0\r\n$2\r\n12\r\n$1\r\n0\r\n"
OK = b"*2\r\n$2\r\nok\r\n$0\r\n\r\n"
NO_WAITAOF = b"-ERR unknown command 'WAITAOF', with args beginning with: '1' '0' \r\n"
GOOD = [HELLO, LOOK, OK, NO_WAITAOF, OK, OK, OK, OK]
OTHERS = [
    b"*1\r\n$6\r\nfenced\r\n", b"*1\r\n$4\r\nback\r\n", b"*1\r\n$5\r\nraced\r\n", b"*2\r\n$5\r\nwrong\r\n:0\r\n", b"*2\r\n$5\r\nwrong\r\n:99999999999\r\n",
    b"*3\r\n$6\r\nundone\r\n$9\r\nERR what?\r\n:1\r\n", b"*3\r\n$6\r\nundone\r\n$-1\r\n:-5\r\n", b"*1\r\n$6\r\nundone\r\n", b"*2\r\n$5\r\nstuck\r\n$3\r\nOOM\r\n",
    b"*2\r\n$6\r\ndenied\r\n$8\r\nREADONLY\r\n", b"-MOVED 7 127.0.0.1:1\r\n", b"-MOVED 7 :1\r\n", b"-MOVED \r\n", b"-MOVED 7 [::1]:1\r\n",
    b"-MOVED 7 " + b"x" * 400 + b":1\r\n", b"-ASK 7 127.0.0.1:1\r\n", b"-NOSCRIPT No\r\n", b"-LOADING\r\n", b"-READONLY\r\n", b"-" + b"e" * 3000 + b"\r\n",
    b"-\xff\xfe\r\n", b"*-1\r\n", b"$-1\r\n", b":1\r\n", b"+OK\r\n", b"*0\r\n", b"*3\r\n*1\r\n*0\r\n:1\r\n$-1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n", b"*99999999\r\n",
    b"*2\r\n:1\r\n:0\r\n", b"*8\r\n" + SHA * 8, b"*8\r\n$2\r\nok\r\n" + (b"$2000\r\n" + b"x" * 2000 + b"\r\n") * 7,
]


class Liar:
    """Answers each request with the next answer, and is silent or ends behind the last one."""

    def __init__(self, rng):
        self.rng = rng
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def answers(self):
        rng = self.rng
        out = list(GOOD)
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            out[rng.randrange(len(out))] = rng.choice(OTHERS)
        if rng.random() < 0.5:
            at = rng.randrange(len(out))
            data = bytearray(out[at])
            for _ in range(rng.choice((1, 1, 2, 5))):
                where = rng.randrange(len(data)) if data else 0
                data[where:where + rng.choice((0, 1))] = rng.choice((b"", b"\0", b"\r\n", b"9", b"-", b"*", b"$", bytes([rng.randrange(256)])))
            out[at] = bytes(data)
        return out

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                c = self.listener.accept()[0]
                with contextlib.suppress(OSError):
                    for answer in self.answers():
                        if not c.recv(1 << 20):
                            break
                        c.sendall(answer)
                c.close()


def test_fuzz():
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    ends = {}
    while time.monotonic() < end:
        liar = Liar(rng)
        t = Target(timeout=1000, servers=liar.address, delivery=rng.choice(("exactly_once", "at_least_once")),
                   stream=rng.choice(("s", "s.{event_type}")), user="u", password="s3cret-s3cret")
        w = t.start(hello=False, incarnation="log")
        said = None
        try:
            while (got := w.recv()) is not None:
                said = got
                if got[0] == "READY":
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        w.events([{}, {"type": "a"}])
                        w.send("SETTLE", batch=w.batch)
                if got[0] == "VERDICT" or got[0] == "RESULT" and t.more["delivery"] == "at_least_once":
                    break
                assert "s3cret" not in str(got), got
            w.sock.close()
            assert w.exit_status() == 0, w.stderr()
        except Exception:
            print(f"FUZZ_SEED={seed}")
            raise
        name = said[0] if said[0] != "FAILED" else OUTCOMES[said[1]["outcome"]]
        ends[name] = ends.get(name, 0) + 1
        liar.listener.close()
    assert codec.OUTCOMES and len(ends) >= 3 or SECONDS < 2, (seed, ends)


def test_addresses():
    """What the option "servers" and MOVED may have; nothing answers at any of it."""
    rng = random.Random(int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32)))
    for _ in range(40):
        text = "".join(rng.choice(("[", "]", ":", ",", " ", "1", "127.0.0.1", "0", "65536", "::1", "a" * 300, "é")) for _ in range(rng.randrange(1, 7)))
        w = Target(timeout=1000, servers=text).start(hello=False)
        got = w.recv()
        assert got[0] == "FAILED", (text, got)
        w.sock.close()
        assert w.exit_status() == 0, (text, w.stderr())
