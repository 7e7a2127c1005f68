"""The rules of doc/sink-protocol.md, a test for each check of conformance.py."""
import conformance
from conformance import Program
from receiver import Receiver
from target import LOOPBACK, PATH, SINK


def _make(name, check, status):
    def test():
        bodies = {}

        def answer(r):
            if b"refuse" in r.body:
                return status
            bodies[r.id.replace("-", "")] = r.body
            return 200
        with Receiver(answer) as there:
            options = {"url": there.url + PATH, "allowed_addresses": LOOPBACK}
            check(Program(SINK, options, {"payload": b'"refuse"'}, effects=lambda: dict(bodies)))
            assert not there.overlaps or "unasked" in name, there.overlaps
    test.__name__ = f"test_{name}_{status}"
    return test


for _name, _check in conformance.CHECKS.items():
    if _name not in conformance.NEEDS_TRANSACTIONS:
        for _status in (400, 503):
            globals()[f"test_{_name}_{_status}"] = _make(_name, _check, _status)
