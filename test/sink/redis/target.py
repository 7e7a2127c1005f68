"""Sinks into keys of their own, and a proxy that holds what goes between them and the server."""
import contextlib
import functools
import os
import pathlib
import socket
import threading

from redis.server import shared, stop_servers  # noqa: tests.py has it from here
from sinklib import OUTCOMES, Worker, codec, failed as failed_of_any  # noqa: tests import some from here

TOP = pathlib.Path(__file__).resolve().parents[3]
SINK = os.path.join(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"), "idempotency-sink-redis")
# The program with a hiredis that has TLS; run.sh builds it.
TLS_SINK = os.environ.get("REDIS_TLS_SINK")
failed = functools.partial(failed_of_any, unexpected=("READY", "VERDICT"))


class Target:
    """Keys of a test, and sinks into them."""

    def __init__(self, server=None, **options):
        self.server = server or shared()
        self.stream = self.server.name("stream")
        self.position = self.server.name("position")
        self.more = options

    def options(self, **options):
        out = {"servers": self.server.address, "stream": self.stream, "position_key": self.position, **self.more, **options}
        return {k: str(v) for k, v in out.items() if v is not None}

    def start(self, hello=True, flags=codec.WANT_POSITION, incarnation="log-1", relay="orders", program=SINK, **options):
        w = Worker(program, options=self.options(**options), flags=flags, incarnation=incarnation, relay=relay)
        if hello:
            w.hello()
        return w

    def refused(self, flags=codec.WANT_POSITION, **options):
        """The FAILED that answers HELLO."""
        return failed(self.start(hello=False, flags=flags, **options))

    def ids(self):
        return self.server.ids(self.stream)

    def stored(self):
        """The position as the server has it."""
        got = self.server.ask("HGETALL", self.position)
        return {k.decode(): v.decode() for k, v in zip(got[::2], got[1::2])}


def commits(w, events, expected=None, **kwargs):
    """Send a batch; its ids in hexadecimal digits."""
    batch, ids = w.events(events, **kwargs)
    assert w.outcomes(batch, len(events)) == (expected or ["acked"] * len(events)), w.notes
    if expected and set(expected) != {"acked"}:
        w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    return [i.hex for i in ids]


class Proxy:
    """Stands between sink and server.  It holds requests that have a word in them, or answers to such requests."""

    def __init__(self, server):
        self.server = server
        self.requests = bytearray()     # all that the sink has sent
        self.word = None
        self.holds_answers = False
        self.held = threading.Event()   # something is being held
        self.release = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.pairs = []
        threading.Thread(target=self.accept, daemon=True).start()

    def hold(self, word, answers=False):
        self.word, self.holds_answers = word, answers
        self.held.clear()
        self.release.clear()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                ours = self.listener.accept()[0]
                theirs = socket.create_connection(("127.0.0.1", self.server.port))
                state = {"hold": False}
                self.pairs.append((ours, theirs))
                threading.Thread(target=self.pump, args=(ours, theirs, state, True), daemon=True).start()
                threading.Thread(target=self.pump, args=(theirs, ours, state, False), daemon=True).start()

    def pump(self, source, sink, state, requests):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if requests:
                    self.requests += data
                if requests and self.word is not None and self.word in data:
                    self.word = None
                    if self.holds_answers:
                        state["hold"] = True
                    else:
                        self.held.set()
                        self.release.wait()
                elif not requests and state["hold"]:
                    self.held.set()
                    self.release.wait()
                sink.sendall(data)
        if not requests or not self.held.is_set():
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def cut(self):
        """End the connections towards the sink; what is held can still reach the server."""
        # a new connection may come at once, and stays
        pairs, self.pairs = self.pairs, []
        for ours, _ in pairs:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.release.set()
        self.listener.close()
        self.cut()
