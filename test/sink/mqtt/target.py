"""A broker that the tests share, and sinks into topics of their own."""
import itertools
import os

from mqtt.broker import TOP, Broker
from sinklib import OUTCOMES, SECRET, LateWorker, codec, failed, until  # noqa: tests import some from here

SINK = os.path.join(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"), "idempotency-sink-mqtt")
_shared = []
_names = itertools.count(1)


def broker():
    """Started when it is first needed."""
    if not _shared:
        _shared.append(Broker())
    return _shared[0]


def stop_servers():
    for b in _shared:
        b.remove()


class Target:
    """Topics of a test, a reader of them, and sinks."""

    def __init__(self, b=None, address=None, reader=True, **login):
        self.name = f"T{next(_names)}"
        self.b = None if address else b or broker()
        self.address = address or self.b.address
        self.login = login
        self.reader = self.read() if reader and self.b else None

    def read(self):
        return self.b.client(client_id=f"reader-{self.name}", **self.login).subscribe(f"{self.name}/#")

    def options(self, **options):
        out = {"servers": self.address, "topic": f"{self.name}/{{aggregate_type}}/{{event_type}}", "client_id": f"{self.name}-{{relay}}"}
        out.update(options)
        return {k: str(v) for k, v in out.items() if v is not None}

    def start(self, hello=True, flags=codec.WANT_POSITION | codec.KEY_ORDER, relay="orders", program=SINK, **options):
        w = LateWorker(program, options=self.options(**options), flags=flags, relay=relay)
        if hello:
            w.hello()
        return w

    def refused(self, flags=codec.WANT_POSITION, **options):
        """The FAILED that answers HELLO."""
        return failed(self.start(hello=False, flags=flags, **options))

    def messages(self):
        return self.reader.messages(f"{self.name}/sync")

    def values(self):
        """Each event's id to its payload."""
        return {m.header("Event-Id").replace("-", ""): m.payload for m in self.messages()}


def acks(w, events, expected=None):
    """Send a batch; its outcomes, and its ids."""
    batch, ids = w.events(events)
    out = w.outcomes(batch, len(events))
    assert out == (expected or ["acked"] * len(events)), (out, w.notes)
    if expected:
        w.send("SETTLE", batch=batch)
    return [str(i) for i in ids]
