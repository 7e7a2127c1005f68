"""Every fault point of the program: whatever ends or holds it there, nothing is lost, and keys keep their order.

The points are those of test/crash/points.sh --list.  At each of them the program is

    killed      its successor delivers what has no answer
    failed      the same, and the program says outage
    held        it goes on when it is let go, and delivers everything
"""
import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import uuid

from receiver import Receiver
from sinklib import codec
from target import LOOPBACK, OUTCOMES, PATH, TOP, Sink, until

sys.path.append(str(TOP / "test/crash/points"))
from armed import Armed  # noqa: E402

POINTS = [line.split()[0] for line in
          subprocess.check_output([TOP / "test/crash/points.sh", "--list"], text=True).splitlines()
          if " src/sink/http/" in line]
# Passed only by a program that gives up.
GIVES_UP = {"http-failing"}


@functools.cache
def faulty_program():
    """The program with fault points, built in a copy of the tree."""
    tree = pathlib.Path(tempfile.mkdtemp(prefix="idem-http-built."))
    atexit.register(shutil.rmtree, tree, ignore_errors=True)
    subprocess.run(["bash", "-ec", '. test/setup/tree.sh; tree_copy "$0"', tree], cwd=TOP, check=True)
    program = "src/sink/bin/idempotency-sink-http"
    subprocess.run(["make", "-s", "WERROR=1", "FAULT_POINTS=1", program], cwd=tree, check=True,
                   env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")})
    return tree / program


def start(there, cwd, **options):
    chosen = {"url": there.url + PATH, "allowed_addresses": LOOPBACK, "concurrency": "4", **options}
    return Sink(faulty_program(), options=chosen, flags=codec.KEY_ORDER, cwd=cwd)


def feed(w, events):
    """Send the batch; the indexes that are acked, and how it ended: done, failed, or end."""
    acked = set()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        w.events(events)
    while len(acked) < len(events):
        got = w.recv()
        if got is None:
            return acked, "end"
        if got[0] == "FAILED":
            return acked, got[1]
        if got[0] == "RESULT" and OUTCOMES[got[1]["outcome"]] == "acked":
            acked |= set(range(got[1]["first"], got[1]["last"] + 1))
    return acked, "done"


def judge(there, ids, acked):
    seen = {}
    for at, r in enumerate(there.requests):
        seen.setdefault(r.header("webhook-id"), at)
    missing = [i for i in ids if i not in seen]
    assert not missing, f"lost: {missing}"
    for key in range(7):
        of_key = [seen[i] for i in ids[key::7]]
        assert of_key == sorted(of_key), f"key {key} is out of order"
    assert all(ids[i] in seen for i in acked)


def run(point, action):
    ids = [uuid.uuid4() for _ in range(70)]
    events = [{"key": str(i % 7), "id": e} for i, e in enumerate(ids)]
    with tempfile.TemporaryDirectory(prefix="idem-http-armed.") as d, Receiver() as there:
        armed = Armed(pathlib.Path(d))
        armed.arm(point, action)
        w = start(there, d, **({"auth": "basic"} if point in GIVES_UP else {}))
        acked, end = set(), "end"
        if action == "stall":
            if point not in GIVES_UP and point != "http-ready":
                w.expect("READY")
                w.events(events)
            until("the point is reached", lambda: armed.is_hit(point))
            armed.release(point)
            if point == "http-ready":
                w.expect("READY")
                w.events(events)
            while len(acked) < len(events) and (got := w.recv()) and got[0] != "FAILED":
                if got[0] == "RESULT":
                    acked |= set(range(got[1]["first"], got[1]["last"] + 1))
        else:
            got = w.recv()
            if got and got[0] == "READY":
                acked, end = feed(w, events)
            elif got:
                end = got[1]
        assert action == "stall" or armed.is_hit(point), f"the program does not pass {point}: {end}"
        if action == "kill":
            assert end == "end", end
        elif action == "error":
            assert end not in ("end", "done") and OUTCOMES[end["outcome"]] == "outage" and point in end["message"], end
        w.sock.close()
        w.proc.wait(60)
        if point in GIVES_UP or len(acked) < len(events):
            w = start(there, d)
            assert w.recv()[0] == "READY"
            acked, end = feed(w, events)
            assert end == "done", end
            w.close()
        judge(there, [str(i) for i in ids], acked)


def _make(point):
    def test():
        for action in ("kill", "error", "stall"):
            try:
                run(point, action)
            except Exception as e:
                raise AssertionError(f"{action}: {type(e).__name__} {e}") from e
    test.__name__ = "test_point_" + point.removeprefix("http-").replace("-", "_")
    return test


for _point in POINTS:
    _test = _make(_point)
    globals()[_test.__name__] = _test
