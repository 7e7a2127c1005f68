"""The rules of doc/sink-protocol.md for streams, a test for each check of conformance.py and each delivery."""
import conformance
from conformance import Program
from rabbitmq.stream_target import SINK, StreamTarget

LARGE = {"payload": b'"' + b"x" * 330000 + b'"'}
WAYS = {
    # the program refuses the event by itself
    "stream_once": (True, LARGE, {"max_event_bytes": "320000"}),
    "stream_least": (False, LARGE, {"delivery": "at_least_once", "max_event_bytes": "320000"}),
}


def _make(way, name, check):
    def test():
        transactional, bad, options = WAYS[way]
        t = StreamTarget(template=".{relay}", relays=("orders", "another"))
        check(Program(SINK, t.options(**options), bad, transactional, t.effects, lambda: t.copy_without(1)))
    test.__name__ = f"test_{way}_{name}"
    return test


for _way in WAYS:
    for _name, _check in conformance.CHECKS.items():
        needs_position = any(word in _name for word in (
            "position", "verdict", "settle", "unfinished", "fences", "leaves_refused", "shared", "set_back"))
        if not (needs_position and not WAYS[_way][0]):
            globals()[f"test_{_way}_{_name}"] = _make(_way, _name, _check)
