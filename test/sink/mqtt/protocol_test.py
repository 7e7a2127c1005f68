"""The rules of doc/sink-protocol.md, a test for each check of conformance.py."""
import conformance
from conformance import Program
from mqtt.target import SINK, Target

BAD = {"type": "no/topic+"}


def _make(name, check):
    def test():
        t = Target()
        check(Program(SINK, t.options(), BAD, False, t.values))
    test.__name__ = f"test_{name}"
    return test


for _name, _check in conformance.CHECKS.items():
    if any(word in _name for word in ("position", "verdict", "settle", "unfinished", "fences", "leaves_refused", "shared", "set_back")):
        continue
    _test = _make(_name, _check)
    globals()[_test.__name__] = _test
