"""Every fault point of the program: whatever ends or holds it there, nothing is lost and nothing is doubled.

The points are those of test/crash/points.sh --list.  At each of them the program is

    killed      its successor finds a position that agrees with the records
    failed      the same, and the program says outage
    held        a twin takes over and delivers everything; then the program goes on, and has no effect

A point without a scene of its own is passed by the scene plain; a point that its scene does not pass fails.
"""
import subprocess

from kafka.broker import TOP
from kafka.journal import LARGEST, Journal
from kafka.target import OUTCOMES, Target, faulty


class Scene:
    """What makes a program pass a point: a journal, of which a predecessor has delivered the first batch."""

    once = True
    configs = {}
    options = {}

    def __init__(self):
        self.j = Journal(Target(**self.configs), **self.options)
        self.j.add()
        self.deliver()
        self.fill()

    def deliver(self):
        w = self.j.start()
        self.j.feed(w)
        assert self.j.follow(w) == "done"
        w.close()

    def fill(self):
        self.j.add(3)

    def drive(self, w, stop=None):
        """Until the program ends, or stop() holds."""
        if w.ready is None:
            end = self.j.greet(w, stop)
            if end != "ready":
                return end
            self.j.feed(w)
        return self.j.follow(w, stop)


class Plain(Scene):
    pass


class Refused(Scene):
    """The brokers refuse an event, so its transaction is done again."""

    configs = {"max_message_bytes": LARGEST}

    def fill(self):
        self.j.add()
        self.j.add(large=True)
        self.j.add()


class Overtaken(Scene):
    """A twin has taken over before the program begins its transaction."""

    def drive(self, w, stop=None):
        if w.ready is None:
            end = self.j.greet(w, stop)
            assert end == "ready", end
            self.j.start().close()
            self.j.feed(w)
        return self.j.follow(w, stop)


class AtLeastOnce(Scene):
    once = False
    options = {"delivery": "at_least_once"}


SCENES = {
    "kafka-before-settle": Refused,
    "kafka-aborted": Refused,
    "kafka-producer-opened": Refused,
    "kafka-producer-replaced": Refused,
    "kafka-judge-fence": Overtaken,
    "kafka-unanswered": AtLeastOnce,
}
POINTS = [line.split()[0] for line in
          subprocess.check_output([TOP / "test/crash/points.sh", "--list"], text=True).splitlines()
          if " src/sink/kafka/" in line]


def end_at(scene, point, action):
    """The program is killed, or fails, at the point."""
    j = scene.j
    with faulty() as (armed, program):
        armed.arm(point, action)
        w = j.launch(**program)
        end = scene.drive(w)
        if end == "done" and armed.is_hit(point):
            end = j.farewell(w)         # the point is behind the last verdict
        assert armed.is_hit(point), f"the program does not pass {point}: {end}"
        if action == "kill":
            assert end == "end", end
        else:
            assert end not in ("done", "end") and OUTCOMES[end["outcome"]] == "outage" and point in end["message"], end
        j.reap(w)


def hold_at(scene, point):
    """The program is held at the point until a twin has delivered everything."""
    j = scene.j
    with faulty() as (armed, program):
        armed.arm(point, "stall")
        w = j.launch(**program)
        end = scene.drive(w, lambda: armed.is_hit(point))
        assert end == "stopped", f"the program does not pass {point}: {end}"
        twin = j.start()
        if scene.once:
            j.judge(j.position(twin))
        j.feed(twin)
        assert j.follow(twin) == "done"
        armed.release(point)
        end = scene.drive(w)
        # "done": it took over from the twin in turn, or had committed everything before
        assert end == "done" or (end != "end" and OUTCOMES[end["outcome"]] in ("fenced", "outage")), end
        for each in (w, twin):
            each.sock.close()
            each.proc.wait(60)


def _make(point):
    scene = SCENES.get(point, Plain)

    def judge(s):
        if s.once:
            s.j.add()
            s.j.finish()
        else:
            w = s.j.start()
            s.j.feed(w)
            assert s.j.follow(w) == "done"
            w.close()
            s.j.judge(len(s.j.batches), exactly=False)

    def test():
        for action in ("kill", "error", "stall"):
            try:
                s = scene()
                if action == "stall":
                    hold_at(s, point)
                else:
                    end_at(s, point, action)
                judge(s)
            except Exception as e:
                raise AssertionError(f"{action}: {e}") from e
    test.__name__ = "test_point_" + point.removeprefix("kafka-").replace("-", "_")
    return test


assert set(SCENES) <= set(POINTS), set(SCENES) - set(POINTS)
for _point in POINTS:
    _test = _make(_point)
    globals()[_test.__name__] = _test
