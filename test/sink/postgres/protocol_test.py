"""The rules of doc/sink-protocol.md, one test for each check of conformance.py."""
import conformance
from conformance import Program
from postgres.target import POSITION, SINK, TARGET, Target


def program():
    t = Target(sql=POSITION + TARGET + "ALTER TABLE app.inbox DROP payload_bytes;")

    def set_back(sql=""):
        t.psql("DELETE FROM app.inbox WHERE received_at = (SELECT max(received_at) FROM app.inbox);"
               "UPDATE idempotency_sink_position SET row_id = 1;" + sql)

    return Program(SINK, t.options(function=None, table="app.inbox", omit_columns="payload_bytes"), {"payload": b"\xff\0", "json": False}, True,
                   lambda: dict(line.split("|", 1) for line in t.psql(
                       "SELECT replace(event_id::text, '-', ''), payload FROM app.inbox").splitlines()), set_back)


def _make(name, check):
    def test():
        check(program())
    test.__name__ = "test_" + name
    return test


for _name, _check in conformance.CHECKS.items():
    globals()["test_" + _name] = _make(_name, _check)


def test_notices_a_target_set_back_before_hello():
    """The stored epoch is lower than the program's: nobody has taken over."""
    p = program()
    back = p.set_back
    p.set_back = lambda: back("UPDATE idempotency_sink_position SET epoch = epoch - 1")
    conformance.check_notices_a_set_back_target(p)
