"""The rules of doc/sink-protocol.md, a test for each check of conformance.py and each way to refuse."""
import conformance
from conformance import Program
from rabbitmq.target import SINK, Target

WAYS = {
    "local": ({"type": "t" * 256}, {}),                                     # the program refuses the event by itself
    "returned": ({"type": "nowhere"}, {"routing_key": "{event_type}"}),     # no queue takes it
    "closed": ({"type": "nowhere"}, {"exchange": "{event_type}"}),          # the server closes the channel
}


def _make(way, name, check):
    def test():
        bad, options = WAYS[way]
        t = Target(declare=False)
        t.server.declare(t.exchange, t.queue, key="#" if way == "local" else "T", kind="topic")
        if way == "closed":
            # each type that the checks send has an exchange
            with t.server.channel() as c:
                for kind in ("T", "other"):
                    c.exchange_declare(kind, "fanout", durable=True)
                    c.queue_bind(t.queue, kind, "")

        def effects():
            return {p.message_id.replace("-", ""): body for _, p, body in t.messages()}

        check(Program(SINK, t.options(**options), bad, False, effects))
    test.__name__ = f"test_{way}_{name}"
    return test


for _way in WAYS:
    for _name, _check in conformance.CHECKS.items():
        if not any(word in _name for word in (
                "position", "verdict", "settle", "unfinished", "fences", "leaves_refused", "shared", "set_back")):
            globals()[f"test_{_way}_{_name}"] = _make(_way, _name, _check)
