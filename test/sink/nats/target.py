"""A server that the tests share, and sinks into streams of their own."""
import functools
import itertools
import json
import os

from nats.broker import TOP, Broker
from nats.client import ApiError
from sinklib import OUTCOMES, PATIENCE, Worker, built, codec, failed, until  # noqa: tests import some from here

SINK = os.path.join(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"), "idempotency-sink-nats")
_brokers = {}
_names = itertools.count(1)


def broker(release="forky"):
    """Started when it is first needed."""
    if release not in _brokers:
        _brokers[release] = Broker(release)
    return _brokers[release]


def stop_servers():
    for b in _brokers.values():
        b.remove()


class Target:
    """A stream of a test, and sinks into it."""

    def __init__(self, b=None, client=None, **config):
        self.b = b or broker()
        self.client = client or self.b.client()
        self.name = f"T{next(_names)}"
        self.position = f"idempotency.position.{self.name}.orders"
        self.config = {"subjects": [f"{self.name}.>", f"idempotency.position.{self.name}.>"], "allow_atomic": True,
                       "allow_rollup_hdrs": True, "allow_msg_ttl": True, **config}
        self.make()

    def make(self, **config):
        self.config.update(config)
        made = {k: v for k, v in self.config.items() if v is not None}
        return self.client.stream(self.name, **made)

    def options(self, **options):
        out = {"servers": self.b.address, "stream": self.name, "subject": f"{self.name}.{{aggregate_type}}.{{event_type}}",
               "position_subject": f"idempotency.position.{self.name}.{{relay}}"}
        out.update(options)
        return {k: str(v) for k, v in out.items() if v is not None}

    def start(self, hello=True, flags=codec.WANT_POSITION, incarnation="log-1", relay="orders", program=SINK, cwd=None, **options):
        w = Worker(program, options=self.options(**options), flags=flags, incarnation=incarnation, relay=relay, cwd=cwd)
        if hello:
            w.hello()
        return w

    def refused(self, flags=codec.WANT_POSITION, **options):
        """The FAILED that answers HELLO."""
        return failed(self.start(hello=False, flags=flags, **options))

    def events(self):
        """The messages but for positions."""
        return [m for m in self.client.messages(self.name) if not m.subject.startswith("idempotency.position.")]

    def values(self):
        """Each event's id to its payload; a repeat fails."""
        got = [(m.header("Event-Id").replace("-", ""), m.data) for m in self.events()]
        assert len(dict(got)) == len(got), "doubled"
        return dict(got)

    def stored(self):
        """The last position, or None."""
        try:
            found = self.client.messages(self.name, self.position)
        except ApiError:
            return None
        return json.loads(found[-1].data) if found else None


def commits(w, batch, count, expected=None, timeout=PATIENCE):
    assert w.outcomes(batch, count, timeout) == (expected or ["acked"] * count), w.notes
    w.expect("VERDICT", timeout, batch=batch, kind=1)


@functools.cache
def faulty_program():
    """The program with fault points."""
    return built("src/sink/bin/idempotency-sink-nats", "FAULT_POINTS=1")


@functools.cache
def sanitized_program():
    """The program with the sanitizers of the compiler."""
    return built("src/sink/build/san/idempotency-sink-nats")
