"""The rules of doc/sink-protocol.md, a test for each check of conformance.py and each delivery."""
import conformance
from conformance import Program
from nats.target import SINK, Target

LARGE = {"payload": b'"' + b"x" * 950000 + b'"'}


def _make(exactly, name, check):
    def test():
        t = Target(max_msg_size=900000)
        check(Program(SINK, t.options(**({} if exactly else {"delivery": "at_least_once"})), LARGE, exactly, t.values))
    test.__name__ = f"test_{'once' if exactly else 'at_least_once'}_{name}"
    return test


for _exactly in (True, False):
    for _name, _check in conformance.CHECKS.items():
        needs_position = any(word in _name for word in (
            "position", "verdict", "settle", "unfinished", "fences", "leaves_refused", "shared", "set_back"))
        if _name == "notices_a_set_back_target" or (needs_position and not _exactly):
            continue
        _test = _make(_exactly, _name, _check)
        globals()[_test.__name__] = _test
