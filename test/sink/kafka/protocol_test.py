"""The rules of doc/sink-protocol.md, a test for each check of conformance.py and each way to refuse."""
import conformance
from conformance import Program
from kafka.target import SINK, Target

LARGE = {"payload": b'"' + b"x" * 950000 + b'"'}
WAYS = {
    # librdkafka refuses the event
    "local": (True, {}, {"max_message_bytes": 900000}),
    # the broker refuses the request that the event is in
    "broker": (True, {"max_message_bytes": 900000}, {}),
    "at_least_once": (False, {"max_message_bytes": 900000}, {"delivery": "at_least_once"}),
}


def _make(way, name, check):
    def test():
        transactional, configs, options = WAYS[way]
        t = Target(**configs)
        t.position = t.position + ".{relay}"
        for relay in ("orders", "another"):
            t.b.position_topic(t.position.format(relay=relay))
        check(Program(SINK, t.options(**options), LARGE, transactional, t.values))
    test.__name__ = f"test_{way}_{name}"
    return test


for _way in WAYS:
    for _name, _check in conformance.CHECKS.items():
        needs_position = any(word in _name for word in (
            "position", "verdict", "settle", "unfinished", "fences", "leaves_refused", "shared"))
        if _name == "notices_a_set_back_target" or (needs_position and not WAYS[_way][0]):
            continue
        globals()[f"test_{_way}_{_name}"] = _make(_way, _name, _check)
