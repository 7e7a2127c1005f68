"""What the tests of the sinks share: a fake worker and a throw-away server."""
import atexit
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid

from notrun import NotRun  # noqa: tests import it from here, too

HERE = pathlib.Path(__file__).resolve().parent
# Seconds after which what has to come has failed to.  Nothing that works takes so long, also on
# a loaded machine, and nothing is proved by the time that it took.
PATIENCE = float(os.environ.get("SINK_PATIENCE") or 180)
sys.path.append(str(HERE.parent / "python"))
TOP = HERE.parent.parent
from server import free_port  # noqa: E402, the servers import it from here
PYTEST_SINK = HERE / "idempotency-sink-pytest"


def until(what, condition, timeout=PATIENCE):
    """Wait for the condition; its value.  what, or what it returns, says what never came."""
    deadline = time.monotonic() + timeout
    while not (got := condition()):
        assert time.monotonic() < deadline, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)
    return got


def _load_codec():
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("sink_codec", str(PYTEST_SINK))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("sink_codec", loader))
    loader.exec_module(module)
    return module


codec = _load_codec()


def read_hex(path):
    """The bytes of a golden frame: "61 62" are two, "00*5" five."""
    out = bytearray()
    for word in path.read_text().split():
        byte, _, count = word.partition("*")
        out += bytes([int(byte, 16)]) * int(count or 1)
    return bytes(out)


OUTCOMES = {v: k for k, v in codec.OUTCOMES.items()}
SECRET = "s3cret"


def failed(w, timeout=PATIENCE, unexpected=("READY",)):
    """FAILED, behind whatever else is not unexpected; then the end.  What it says has no secret."""
    while True:
        got = w.recv(timeout)
        assert got, f"end of file instead of FAILED: {w.stderr()}"
        if got[0] == "FAILED":
            break
        assert got[0] not in unexpected, f"{got} instead of FAILED"
    assert w.recv() is None and w.exit_status() == 0, w.stderr()
    w.sock.close()
    f = got[1]
    f["outcome"] = OUTCOMES[f["outcome"]]
    assert SECRET not in f["message"], f
    return f


class Worker:
    """The worker's end of a sink program, driven step by step."""

    def __init__(self, program, options=(), relay="orders", incarnation="log-1",
                 flags=codec.WANT_POSITION, version=None, hello=True, env=None, cwd=None):
        ours, theirs = socket.socketpair()
        self.stderr_r, stderr_w = os.pipe()
        self.proc = subprocess.Popen([str(program)], stdin=theirs, stdout=stderr_w,
                                     stderr=stderr_w, env=env or {}, cwd=cwd)
        theirs.close()
        os.close(stderr_w)
        self.sock = ours
        self.buf = bytearray()
        self.batch = 0
        self.counts = {}        # batch -> its events
        self.seq = 0
        self.ready = None
        self.held = None
        self.answers = {}       # batch -> index -> its RESULT, of batches that were not asked for
        if hello:
            self.send("HELLO", version=version or codec.VERSION, flags=flags, relay=relay,
                      incarnation=incarnation, options=list(dict(options).items()))

    def send(self, name, **fields):
        """Send a frame; a SETTLE that names no range settles its whole batch."""
        if name == "SETTLE":
            fields = {"first": 0, "last": self.counts.get(fields["batch"], 1) - 1, **fields}
        self.raw(codec.encode(name, **fields))

    def raw(self, data):
        if self.held is None:
            self.sock.sendall(data)
        else:
            self.held += data

    @contextlib.contextmanager
    def in_one_piece(self):
        """What is sent meanwhile leaves at the end, all at once."""
        self.held = bytearray()
        yield
        data, self.held = self.held, None
        self.raw(data)

    def recv(self, timeout=PATIENCE):
        """The next frame as (name, fields); None on end of file."""
        deadline = time.monotonic() + timeout
        while True:
            found = codec.decode("sink", bytes(self.buf))
            if found:
                del self.buf[:found[2]]
                return found[0], found[1]
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError("no frame from the sink")
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.buf += data

    def expect(self, name, timeout=PATIENCE, **fields):
        """The next frame but CREDIT and LOG; it must have that name and fields."""
        while True:
            got = self.recv(timeout)
            if got and got[0] in ("CREDIT", "LOG") and got[0] != name:
                continue
            break
        assert got is not None, f"end of file instead of {name}: {self.stderr()}"
        assert got[0] == name, f"{got} instead of {name}"
        for field, value in fields.items():
            assert got[1][field] == value, f"{field} is {got[1][field]!r}, not {value!r}: {got}"
        return got[1]

    def hello(self, timeout=PATIENCE):
        self.ready = self.expect("READY", timeout)
        return self.ready

    def events(self, events, end=True, row_id=None, k=0, chunk=60000):
        """Send a batch of dicts; returns its number and the ids."""
        self.batch += 1
        self.counts[self.batch] = len(events)
        out = bytearray()
        ids = []
        for index, e in enumerate(events):
            self.seq += 1
            headers = e.get("headers", b"")
            payload = e.get("payload", b'{"n": %d}' % self.seq)
            data = headers + payload
            event_id = e.get("id") or uuid.uuid4()
            ids.append(event_id)
            flags = (codec.PAYLOAD_JSON if e.get("json", True) else 0) | \
                (codec.HAS_HEADERS if headers else 0) | \
                (codec.HAS_CONTENT_TYPE if e.get("content_type") else 0)
            out += codec.encode(
                "EVENT", batch=self.batch, index=index, flags=flags, event_id=event_id.bytes,
                seq=self.seq, enqueued_at=1795248000000000 + self.seq,
                committed_at=e.get("committed_at", 0), headers_len=len(headers),
                payload_len=len(payload), aggregate_type=e.get("aggregate_type", "order"),
                aggregate_id=e.get("key", "1"), event_type=e.get("type", "T"),
                content_type=e.get("content_type", ""), chunk=data[:chunk])
            for at in range(chunk, len(data), chunk):
                out += codec.encode("CHUNK", batch=self.batch, index=index, offset=at,
                                    data=data[at:at + chunk])
        if end:
            out += codec.encode("END", batch=self.batch, count=len(events),
                                row_id=self.batch if row_id is None else row_id, k=k)
        self.raw(out)
        return self.batch, ids

    def outcomes(self, batch, count, timeout=PATIENCE):
        """Outcome names of all events of a batch, by index, and the messages.  Results of other batches wait."""
        names = {v: k for k, v in codec.OUTCOMES.items()}
        while len(self.answers.setdefault(batch, {})) < count:
            r = self.expect("RESULT", timeout)
            answered = self.answers.setdefault(r["batch"], {})
            for i in range(r["first"], r["last"] + 1):
                assert i not in answered, f"second result for {i}"
                answered[i] = r
        got = self.answers.pop(batch)
        self.notes = {i: (r["sqlstate"], r["message"]) for i, r in got.items() if r["message"]}
        self.last_result = got[count - 1]
        return [names[got[i]["outcome"]] for i in range(count)]

    def stderr(self):
        out = b""
        while select.select([self.stderr_r], [], [], 0.2)[0]:
            data = os.read(self.stderr_r, 65536)
            if not data:
                break
            out += data
        return out.decode("utf-8", "replace")

    def exit_status(self, timeout=PATIENCE):
        return self.proc.wait(timeout)

    def close(self):
        """Close the socket; the program must exit with status 0."""
        self.sock.close()
        status = self.exit_status()
        assert status == 0, f"status {status}: {self.stderr()}"
        os.close(self.stderr_r)

    def kill(self):
        self.proc.kill()
        self.proc.wait()
        self.sock.close()
        os.close(self.stderr_r)


class LateWorker(Worker):
    """A worker that may send to a program that has ended; what it said before can still be read."""

    def raw(self, data):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            super().raw(data)


def look(program, options=None, **kwargs):
    """Things that a LOOK finds, by name: (ok, problem, remedy); and the exit status."""
    w = Worker(program, hello=False, **kwargs)
    w.send("LOOK", version=codec.VERSION, flags=codec.WANT_POSITION, relay="orders", incarnation="log-1",
           options=list((options or {}).items()))
    w.send("PING", nonce=1)
    found = {}
    while (got := w.recv()) is not None:
        if got[0] == "FOUND":
            found[got[1]["what"]] = (got[1]["ok"], got[1]["problem"], got[1]["remedy"])
    status = w.exit_status()
    w.sock.close()
    return found, status


def built(program, *settings):
    """A program of this tree, built in a copy."""
    tree = pathlib.Path(tempfile.mkdtemp(prefix="idem-sink-built."))
    atexit.register(shutil.rmtree, tree, ignore_errors=True)
    subprocess.run(["bash", "-ec", '. test/setup/tree.sh; tree_copy "$0"', tree], cwd=TOP, check=True)
    subprocess.run(["make", "-s", "WERROR=1", *settings, program], cwd=tree, check=True,
                   env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")})
    return tree / program


def module_tests(package):
    """The functions test_... of all modules *_test.py of a package, by module and line."""
    for path in sorted((HERE / package).glob("*_test.py")):
        module = importlib.import_module(f"{package}.{path.stem}")
        for name, function in list(vars(module).items()):
            if name.startswith("test_"):
                yield function


def run_tests(tests):
    """Run functions, one line each; exit status for the caller."""
    failed = 0
    only = sys.argv[1:]
    for test in tests:
        name = test.__name__
        if only and name not in only:
            continue
        started = time.monotonic()
        try:
            test()
            print(f"ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except NotRun as e:
            print(f"NOT RUN  {name}: {e}", flush=True)
        except Exception as e:      # noqa: each test stands alone
            failed += 1
            import traceback
            traceback.print_exc()
            print(f"not ok {name}: {type(e).__name__}: {e}", flush=True)
    return 1 if failed else 0
