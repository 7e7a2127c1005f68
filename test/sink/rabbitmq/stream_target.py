"""Streams of a test, and sinks into them."""
import contextlib
import json

from rabbitmq.server import shared, until
from rabbitmq.streamlib import Client, Refused, message
from rabbitmq.target import SINK, failed
from sinklib import PATIENCE, Worker, codec


class StreamTarget:
    """A stream, and sinks that publish to it."""

    def __init__(self, server=None, template="", relays=("orders",), create=True, **options):
        self.server = server or shared()
        name = self.server.name("stream") + template
        self.stream = name.replace("{relay}", "orders")
        self.more = {"stream": name, **options}
        if create:
            with self.client() as c:
                for stream in sorted({name.replace("{relay}", relay) for relay in relays}):
                    c.create(stream)

    def client(self, **kwargs):
        return Client(self.server.stream_port, **kwargs)

    def options(self, **options):
        out = {"servers": f"127.0.0.1:{self.server.stream_port}", "user": "admin", "password": "admin",
               **self.more, **options}
        return {k: str(v) for k, v in out.items() if v is not None}

    def wait(self):
        """Until the server, which has begun, has the stream."""
        def there():
            with contextlib.suppress(Refused, OSError), self.client() as c:
                return c.available(self.stream)
            return False
        until("the stream is available", there)

    def settle(self):
        """
        End the server, and start it.  A server of 3.10 that is killed in the second in which a stream is made does not
        have the stream again.
        """
        self.server.proc.terminate()
        self.server.proc.wait(PATIENCE)
        self.server.start()
        self.wait()

    def restart(self):
        self.server.restart()
        self.wait()

    def start(self, hello=True, flags=codec.WANT_POSITION, incarnation="log-1", relay="orders", program=SINK, **options):
        w = Worker(program, options=self.options(**options), flags=flags, incarnation=incarnation, relay=relay)
        if hello:
            w.hello()
            # as the worker does, which has no two batches of one position
            w.batch = max(w.batch, w.ready["row_id"])
        return w

    def refused(self, flags=codec.WANT_POSITION, **options):
        """The FAILED that answers HELLO."""
        return failed(self.start(hello=False, flags=flags, **options))

    def messages(self):
        """All messages, decoded."""
        with self.client() as c:
            return c.messages(self.stream)

    def ids(self):
        """The ids of the events, in the order of the stream, in hexadecimal digits."""
        return [m["properties"][0].replace("-", "") for m in self.messages() if "properties" in m]

    def effects(self):
        """Payloads by the events' ids."""
        return {m["properties"][0].replace("-", ""): m["data"] for m in self.messages() if "properties" in m}

    def sequence(self, relay="orders"):
        with self.client() as c:
            return c.sequence(f"idempotency.{relay}", self.stream)

    def fences(self):
        return sum("row_id" not in json.loads(m["annotations"]["x-opt-idempotency"]) for m in self.messages() if "annotations" in m)

    def copy_without(self, n):
        """Make the stream anew, with all entries but the last n batches."""
        with self.client() as c:
            entries = c.entries(self.stream)
            batches = [i for i, e in enumerate(entries) if b'"row_id"' in e]
            c.delete(self.stream)
            c.create(self.stream)
            c.declare(self.stream)
            kept = entries[:batches[-n]]
            if kept:
                c.publish(*enumerate(kept))

    def publish_foreign(self, count=1, name=""):
        with self.client() as c:
            c.declare(self.stream, name)
            c.publish(*((i + 1, message(b"\0\x53\x75\xa0\x07foreign")) for i in range(count)))


__all__ = ["SINK", "StreamTarget"]
