"""Every fault point of the program: whatever ends or holds it there, nothing is lost and nothing is doubled.

The points are those of test/crash/points.sh --list.  At each of them the program is

    killed      its successor finds a position that agrees with the messages
    held        a twin takes over and delivers everything; then the program goes on, and has no effect
"""
import pathlib
import subprocess
import sys
import tempfile
import time
import uuid

from nats.target import OUTCOMES, Target, faulty_program
from sinklib import PATIENCE, TOP

sys.path.append(str(TOP / "test/crash/points"))
from armed import Armed  # noqa: E402

AT_LEAST_ONCE = ("nats-answers-come",)
POINTS = [line.split()[0] for line in
          subprocess.check_output([TOP / "test/crash/points.sh", "--list"], text=True).splitlines()
          if " src/sink/nats/" in line]


class Scene:
    """Batches, of which a predecessor has delivered the first; the second has an event that is refused."""

    def __init__(self, once):
        self.once = once
        self.passed = 0     # batches that are done for sure, without a position
        self.t = Target()
        self.options = {} if once else {"delivery": "at_least_once"}
        self.batches = [[{"id": uuid.uuid4(), "key": str(i % 3), "payload": b"%d" % (10 * n + i)} for i in range(7)] for n in range(4)]
        self.batches[1][3]["type"] = "a b"
        w = self.launch()
        self.greet(w)
        assert self.drive(w, 0, 1) == "done"
        w.close()
        self.passed = 1

    def launch(self, **more):
        return self.t.start(hello=False, **self.options, **more)

    def greet(self, w, stop=None):
        """The first batch to be sent, or what happened instead of READY."""
        got = self.next(w, stop)
        if isinstance(got, str) or got[0] == "FAILED":
            return got
        w.ready = got[1]
        return (w.ready["row_id"] if w.ready["has_position"] else 0) if self.once else self.passed

    @staticmethod
    def next(w, stop):
        deadline = time.monotonic() + PATIENCE
        while True:
            if stop and stop():
                return "stopped"
            try:
                got = w.recv(0.05)
            except TimeoutError:
                assert time.monotonic() < deadline, "no answer"
                continue
            if got is None:
                return "end"
            if got[0] not in ("LOG", "CREDIT"):
                return got

    def drive(self, w, first, last, stop=None):
        """Deliver the batches; "done", "end", "stopped" or FAILED."""
        self.open = getattr(w, "open", None)
        if self.open is None:
            w.open, w.results = {}, {}
            for n in range(first, last):
                w.open[n - first + 1] = self.batches[n]
                try:
                    w.events(self.batches[n], row_id=n + 1)
                except (BrokenPipeError, ConnectionResetError):
                    break
        while w.open:
            got = self.next(w, stop)
            if isinstance(got, str) or got[0] == "FAILED":
                return got
            name, f = got
            events = w.open[f["batch"]]
            if name == "VERDICT":
                assert f["kind"] == 1, f
                del w.open[f["batch"]]
                continue
            for i in range(f["first"], f["last"] + 1):
                w.results[f["batch"], i] = OUTCOMES[f["outcome"]]
                assert OUTCOMES[f["outcome"]] == ("impossible" if events[i].get("type") == "a b" else "acked"), f
            if all((f["batch"], i) in w.results for i in range(len(events))):
                if any("type" in e for e in events):
                    try:
                        w.send("SETTLE", batch=f["batch"])
                    except (BrokenPipeError, ConnectionResetError):
                        pass
                if not self.once:
                    del w.open[f["batch"]]
        return "done"

    def judge(self, first):
        """The messages are those of the batches before the first that is to be sent, or of some more at least once."""
        values = self.t.values()        # a repeat fails
        wanted = [{e["id"].hex: e["payload"] for e in b if "type" not in e} for b in self.batches]
        expected = {k: v for b in wanted[:first] for k, v in b.items()}
        if self.once:
            assert values == expected, (first, len(values), len(expected))
        else:
            assert expected.items() <= values.items()

    def finish(self):
        """A successor delivers the rest."""
        w = self.launch()
        first = self.greet(w)
        self.judge(first)
        assert self.drive(w, first, len(self.batches)) == "done"
        w.close()
        self.judge(len(self.batches))


def _make(point):
    def test():
        for action in ("kill", "stall"):
            s = Scene(point not in AT_LEAST_ONCE)
            with tempfile.TemporaryDirectory(prefix="idem-nats-armed.") as directory:
                armed = Armed(pathlib.Path(directory))
                armed.arm(point, action)
                w = s.launch(program=faulty_program(), cwd=directory)
                stop = (lambda: armed.is_hit(point)) if action == "stall" else None
                end = first = s.greet(w, stop)
                if isinstance(first, int):
                    end = s.drive(w, first, len(s.batches), stop)
                if end == "done" and stop is None:
                    end = s.next(w, None)       # the point is behind the last verdict
                assert armed.is_hit(point) and end == ("end" if action == "kill" else "stopped"), (action, end, w.stderr())
                if action == "stall":
                    s.finish()
                    armed.disarm(point)
                    end = s.greet(w) if w.ready is None else s.drive(w, 0, 0)
                    assert end in ("done", len(s.batches), s.passed) or OUTCOMES[end[1]["outcome"]] in ("fenced", "outage"), end
                    s.judge(len(s.batches))
                else:
                    s.finish()
                w.sock.close()
                w.proc.wait(60)
    test.__name__ = "test_point_" + point.removeprefix("nats-").replace("-", "_")
    return test


for _point in POINTS:
    _test = _make(_point)
    globals()[_test.__name__] = _test
