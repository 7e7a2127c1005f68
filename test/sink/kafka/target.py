"""A broker that the tests share, and sinks into topics of their own."""
import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from kafka.broker import TOP, Broker
from sinklib import OUTCOMES, PATIENCE, Worker, built, codec, failed, until  # noqa: tests import until from here, too

sys.path.append(str(TOP / "test/crash/points"))
from armed import Armed  # noqa: E402

SINK = os.path.join(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"), "idempotency-sink-kafka")
_broker = None


def broker():
    """Started when it is first needed."""
    global _broker
    if _broker is None:
        _broker = Broker()
    return _broker


def stop_servers():
    if _broker is not None:
        _broker.remove()


@functools.cache
def faulty_program():
    """The program with fault points."""
    return built("src/sink/bin/idempotency-sink-kafka", "FAULT_POINTS=1")


@functools.cache
def sanitized_program():
    """The program with the sanitizers of the compiler."""
    return built("src/sink/build/san/idempotency-sink-kafka")


@functools.cache
def _begin_refused():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="idem-kafka-preloaded."))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / "begin_refused.so"
    subprocess.run([os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library,
                    TOP / "test/sink/kafka/begin_refused.c", "-ldl"], check=True)
    return library


def begin_refused(call):
    """The environment of a program that cannot begin a transaction at that call."""
    return {"LD_PRELOAD": str(_begin_refused()), "BEGIN_REFUSED": str(call)}


@contextlib.contextmanager
def faulty():
    """Fault points to arm, and the arguments of Target.start for a program that passes them."""
    with tempfile.TemporaryDirectory(prefix="idem-kafka-armed.") as directory:
        yield Armed(pathlib.Path(directory)), {"program": faulty_program(), "cwd": directory}


class Target:
    """Topics of a test, and sinks into them."""

    def __init__(self, b=None, topic=None, position=True, partitions=3, **configs):
        self.b = b or broker()
        self.topic = topic or self.b.name("events")
        self.position = self.b.name("position")
        if topic is None:
            self.b.topic(self.topic, partitions, **configs)
        if position:
            self.b.position_topic(self.position)

    def options(self, **options):
        out = {"brokers": self.b.address, "topic": self.topic, "position_topic": self.position}
        out.update(options)
        return {k: str(v) for k, v in out.items() if v is not None}

    def start(self, hello=True, flags=codec.WANT_POSITION, incarnation="log-1", relay="orders", program=SINK, cwd=None,
              env=None, **options):
        w = Worker(program, options=self.options(**options), flags=flags, incarnation=incarnation, relay=relay, cwd=cwd, env=env)
        if hello:
            w.hello()
        return w

    def refused(self, flags=codec.WANT_POSITION, **options):
        """The FAILED that answers HELLO."""
        return failed(self.start(hello=False, flags=flags, **options))

    def read(self, **kwargs):
        return self.b.read(self.topic, **kwargs)

    def values(self):
        """Each record's id header to its value."""
        return {dict(r["headers"])["id"].decode().replace("-", ""): r["value"] for r in self.read()}


def transaction(t):
    """The state of the relay's transaction, as the brokers tell it; None: they know none."""
    return dict(line.split("\t") for line in t.b.ask("transactions")).get(t.position)


def commits(w, batch, count, expected=None, timeout=PATIENCE):
    assert w.outcomes(batch, count, timeout) == (expected or ["acked"] * count), w.notes
    w.expect("VERDICT", timeout, batch=batch, kind=1)


@contextlib.contextmanager
def paused(pauser):
    pauser.pause()
    try:
        yield
    finally:
        pauser.resume()
