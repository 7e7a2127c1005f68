"""Exchanges and queues of a test, and sinks into them."""
import functools
import os

from rabbitmq.server import TOP, shared, stop_servers  # noqa: tests.py has it from here
from sinklib import OUTCOMES, Worker, failed as failed_of_any  # noqa: tests import some from here

SINK = os.path.join(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"), "idempotency-sink-rabbitmq")
failed = functools.partial(failed_of_any, unexpected=("READY", "VERDICT"))


class Target:
    """An exchange with a queue, and sinks that publish to it."""

    def __init__(self, server=None, declare=True, **options):
        self.server = server or shared()
        self.exchange = self.server.name("exchange")
        self.queue = self.server.name("queue")
        self.more = options
        if declare:
            self.server.declare(self.exchange, self.queue)

    def options(self, **options):
        out = {"servers": self.server.address, "exchange": self.exchange, "user": "admin", "password": "admin",
               **self.more, **options}
        return {k: str(v) for k, v in out.items() if v is not None}

    def start(self, hello=True, flags=0, incarnation="log-1", relay="orders", program=SINK, **options):
        w = Worker(program, options=self.options(**options), flags=flags, incarnation=incarnation, relay=relay)
        if hello:
            w.hello()
        return w

    def refused(self, flags=0, **options):
        """The FAILED that answers HELLO."""
        return failed(self.start(hello=False, flags=flags, **options))

    def messages(self):
        return self.server.messages(self.queue)

    def ids(self):
        return self.server.ids(self.queue)


def acked(w, events, expected=None, **kwargs):
    """Send a batch; its ids in hexadecimal digits."""
    batch, ids = w.events(events, **kwargs)
    assert w.outcomes(batch, len(events)) == (expected or ["acked"] * len(events)), w.notes
    if expected and set(expected) != {"acked"}:
        w.send("SETTLE", batch=batch)
    return [i.hex for i in ids]
