"""A receiver, and sink programs that send to it."""
import atexit
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from receiver import Receiver
from sinklib import PATIENCE, LateWorker, codec, free_port, until  # noqa: tests import them from here, too

TOP = pathlib.Path(__file__).resolve().parents[3]
SINK = os.path.join(os.environ.get("SINK_BINDIR", TOP / "src/sink/bin"), "idempotency-sink-http")
OUTCOMES = {v: k for k, v in codec.OUTCOMES.items()}
SECRET = "Hush/4711+=%"
LOOPBACK = "127.0.0.0/8, ::1"
PATH = "/in/{aggregate_type}/{aggregate_id}"


@functools.cache
def sanitized_program():
    """The program with the sanitizers of the compiler, built in a copy of the tree."""
    tree = pathlib.Path(tempfile.mkdtemp(prefix="idem-http-built."))
    atexit.register(shutil.rmtree, tree, ignore_errors=True)
    subprocess.run(["bash", "-ec", '. test/setup/tree.sh; tree_copy "$0"', tree], cwd=TOP, check=True)
    program = "src/sink/build/san/idempotency-sink-http"
    subprocess.run(["make", "-s", "WERROR=1", program], cwd=tree, check=True,
                   env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")})
    return tree / program


class Result:
    def __init__(self, fields):
        self.outcome = OUTCOMES[fields["outcome"]]
        self.sqlstate, self.retry_after, self.message = fields["sqlstate"], fields["retry_after"], fields["message"]
        self.at = time.monotonic()

    def __repr__(self):
        return f"{self.outcome} {self.sqlstate} {self.retry_after} ms: {self.message[:300]}"


class Ended(Exception):
    """FAILED came instead of results; .fields, .outcome, .message"""

    def __init__(self, fields):
        super().__init__(f"{OUTCOMES[fields['outcome']]} {fields['sqlstate']}: {fields['message']}")
        self.fields, self.outcome, self.message, self.sqlstate = \
            fields, OUTCOMES[fields["outcome"]], fields["message"], fields["sqlstate"]


class Sink(LateWorker):
    """A program with results that have all their fields, and answers to what it is asked meanwhile."""

    def results(self, batch, count, timeout=PATIENCE, settle=True):
        """A Result for each event of the batch; Ended if the program gives up.  Results of other batches wait."""
        out = self.answers.setdefault(batch, {})
        while len(out) < count:
            name, f = self.next(timeout)
            if name == "FAILED":
                raise Ended(f)
            assert name == "RESULT", f"{name} {f}"
            answered = self.answers.setdefault(f["batch"], {})
            for i in range(f["first"], f["last"] + 1):
                assert i not in answered, f"second result for {i}"
                answered[i] = Result(f)
        del self.answers[batch]
        if settle and any(r.outcome != "acked" for r in out.values()):
            self.send("SETTLE", batch=batch)
        return [out[i] for i in range(count)]

    def next(self, timeout=PATIENCE):
        while True:
            got = self.recv(timeout)
            assert got, f"end of file instead of a result: {self.stderr()}"
            if got[0] not in ("CREDIT", "LOG", "PONG"):
                return got

    def hello_or_ended(self, timeout=PATIENCE):
        name, fields = self.next(timeout)
        if name == "FAILED":
            raise Ended(fields)
        assert name == "READY", name
        self.ready = fields

    def one(self, timeout=PATIENCE, **event):
        """The Result of one event."""
        batch, _ = self.events([event])
        return self.results(batch, 1, timeout)[0]

    def all(self, events, timeout=PATIENCE):
        batch, self.ids = self.events(events)
        return self.results(batch, len(events), timeout)

    def is_awake(self):
        """It answers a PING, before the results of what is under way."""
        self.send("PING", nonce=4711)
        while (got := self.recv()) and got[0] != "PONG":
            assert got[0] in ("CREDIT", "LOG"), f"{got} before PONG"
        assert got, f"end of file instead of PONG: {self.stderr()}"

    def failed(self, timeout=PATIENCE):
        """The FAILED that answers HELLO, or that ends what was sent."""
        while True:
            got = self.recv(timeout)
            assert got, f"end of file instead of FAILED: {self.stderr()}"
            if got[0] == "FAILED":
                break
            assert got[0] != "READY", f"READY instead of FAILED: {got}"
        assert self.recv() is None and self.exit_status() == 0
        text = self.stderr()
        assert SECRET not in text + got[1]["message"], (text, got)
        self.sock.close()
        os.close(self.stderr_r)
        return Ended(got[1])


def start(options, hello=True, flags=codec.KEY_ORDER, program=SINK, env=None, relay="orders"):
    options = {"allowed_addresses": LOOPBACK, **options}
    w = Sink(program, options={k: str(v) for k, v in options.items() if v is not None}, flags=flags, env=env, relay=relay)
    if hello:
        w.hello()
    return w


@contextlib.contextmanager
def sink(receiver, **options):
    """A program that sends to the receiver; it is killed at the end, whatever it does."""
    kwargs = {k: options.pop(k) for k in ("hello", "flags", "program", "env", "relay") if k in options}
    w = start({"url": receiver.url + PATH, **options}, **kwargs)
    try:
        yield w
    finally:
        if w.proc.poll() is None:
            w.kill()


def fate(event=None, timeout=PATIENCE, **options):
    """Result, or the Ended at HELLO or instead of a result, of one event to wherever the options say."""
    w = start(options, hello=False)
    try:
        w.hello_or_ended(timeout)
        return w.one(timeout, **(event or {}))
    except Ended as ended:
        return ended
    finally:
        w.kill()


def refused(**options):
    """The FAILED that answers HELLO with these options."""
    kwargs = {k: options.pop(k) for k in ("flags", "program", "env", "relay") if k in options}
    return start(options, hello=False, **kwargs).failed()


def once(answer=200, event=None, receiver=Receiver, tls=None, timeout=PATIENCE, **options):
    """(Result or Ended, receiver) of one event at a receiver of its own."""
    with receiver(answer, tls=tls) as there, sink(there, **options) as w:
        try:
            got = w.one(timeout, **(event or {}))
        except Ended as ended:
            got = ended
        return got, there


def at_once(check, cases, workers=8):
    """Check all cases at the same time: each waits most of its time."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda case: check(*case), cases))
