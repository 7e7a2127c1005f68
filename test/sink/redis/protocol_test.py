"""The rules of doc/sink-protocol.md, a test for each check of conformance.py and each way to refuse."""
import conformance
from conformance import Program
from redis.target import SINK, Target

WAYS = {
    # the program refuses the event by itself
    "local": (True, {"payload": b'"' + b"x" * 950000 + b'"'}, {"max_event_bytes": "900000"}),
    # the server says that the event's key is no stream
    "server": (True, {"type": "wrong"}, {"stream": "T{event_type}"}),
    "at_least_once": (False, {"type": "wrong"}, {"stream": "T{event_type}", "delivery": "at_least_once"}),
}


def _make(way, name, check):
    def test():
        transactional, bad, options = WAYS[way]
        t = Target()
        t.position += ".{relay}"
        options = dict(options)
        streams = [t.stream]
        if "stream" in options:
            options["stream"] = t.stream + ".{event_type}"
            streams = [t.stream + ".T", t.stream + ".other"]
            t.server.ask("SET", t.stream + ".wrong", "a string")

        def effects():
            return {e["event_id"].decode().replace("-", ""): e["payload"]
                    for stream in streams for e in t.server.entries(stream)}

        def set_back():
            before = int(t.server.ask("HGET", t.position.replace("{relay}", "{orders}"), "row_id"))
            t.server.ask("HSET", t.position.replace("{relay}", "{orders}"), "row_id", before - 1)
            last = t.server.ask("XREVRANGE", streams[0], "+", "-", "COUNT", "1")
            t.server.ask("XDEL", streams[0], last[0][0])

        check(Program(SINK, t.options(**options), bad, transactional, effects, set_back))
    test.__name__ = f"test_{way}_{name}"
    return test


for _way in WAYS:
    for _name, _check in conformance.CHECKS.items():
        needs_position = any(word in _name for word in (
            "position", "verdict", "settle", "unfinished", "fences", "leaves_refused", "shared", "set_back"))
        if not (needs_position and not WAYS[_way][0]):
            globals()[f"test_{_way}_{_name}"] = _make(_way, _name, _check)
