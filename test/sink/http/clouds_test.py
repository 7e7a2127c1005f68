"""Google Pub/Sub and Azure Service Bus, at servers of our own that keep their documented rules (clouds.py)."""
import base64
import contextlib
import json
import tempfile

import certificates
from clouds import PubSub, ServiceBus, refuse
from receiver import Reply
from sinklib import codec
from target import SECRET, Ended, fate, start

KEYS = 7


@contextlib.contextmanager
def pubsub(there, **options):
    flags = options.pop("flags", codec.KEY_ORDER)
    w = start({"service": "pubsub", "url": there.url, "service_account": there.account(), **options}, flags=flags)
    try:
        yield w
    finally:
        w.kill()


@contextlib.contextmanager
def servicebus(there, **options):
    flags = options.pop("flags", codec.KEY_ORDER)
    w = start({"service": "servicebus", "url": there.url, "user": there.policy, "password": there.key, **options}, flags=flags)
    try:
        yield w
    finally:
        w.kill()


def events(count):
    return [{"key": f"k{i % KEYS}", "payload": b'{"n": %d}' % i} for i in range(count)]


def acked(w, some, why=lambda: None):
    got = w.all(some)
    assert {g.outcome for g in got} == {"acked"}, ([g for g in got if g.outcome != "acked"][:2], why())
    return [str(i) for i in w.ids]


def in_order(pairs):
    last = {}
    for key, n in pairs:
        assert n > last.get(key, -1), (key, n, last[key])
        last[key] = n


ODD = "\u20ac <a b=\"c\">&amp; + % \u00fc ' \\ \U0001f600"


def test_pubsub():
    with PubSub() as there, pubsub(there) as w:
        ids = acked(w, events(100), lambda: there.why)
        assert sorted(m["attributes"]["event_id"] for m in there.messages) == sorted(ids)
        assert len({m["orderingKey"] for m in there.messages}) == KEYS
        in_order((m["orderingKey"], json.loads(base64.b64decode(m["data"]))["n"]) for m in there.messages)
        assert len(there.given) == 1, there.given
        # a request has one key only: all or none of it is published, so its order is kept
        for r in there.receiver.requests:
            assert len({m["orderingKey"] for m in r.json()["messages"]}) == 1
        acked(w, [{"key": ODD, "type": "A/b c", "payload": json.dumps({"t": ODD}).encode()}], lambda: there.why)
        m = there.messages[-1]
        assert json.loads(base64.b64decode(m["data"])) == {"t": ODD} and m["attributes"]["aggregate_id"] == ODD, m
        acked(w, [{"payload": bytes(range(256)), "json": False}, {"key": "", "type": "", "payload": b"", "json": False},
                  {"headers": json.dumps({"x": ODD}).encode()}], lambda: there.why)
        assert base64.b64decode(there.messages[101]["data"]) == bytes(range(256))


def test_pubsub_limits():
    """What Pub/Sub takes as no attribute, or as no ordering key, refuses at most its own event."""
    with PubSub() as there, pubsub(there) as w:
        got = w.all([{"key": "k" * 2000}, {"key": "k" * 1999 + "x"}, {"key": "a", "headers": b'{"googX": "1"}'},
                     {"key": "b", "headers": json.dumps({"x" * 300: "1"}).encode()}, {"key": "c"},
                     {"key": "d", "headers": json.dumps({f"x{i}": "1" for i in range(200)}).encode()}])
        assert got[4].outcome == "acked" and {g.outcome for g in got} <= {"acked", "rejected"}, got
        keys = [m["orderingKey"] for m in there.messages]
        assert len(set(keys)) == len(keys), "two keys share an ordering key"


def test_pubsub_without_order():
    with PubSub() as there, pubsub(there, flags=0) as w:
        acked(w, events(100), lambda: there.why)
        assert all("orderingKey" not in m for m in there.messages) and len(there.receiver.requests) < 100


def test_pubsub_tokens():
    """A token is renewed before it ends, and after the service no longer takes it."""
    with PubSub() as there, pubsub(there) as w:
        acked(w, events(5), lambda: there.why)
        there.given.append("another")
        left, outcomes = [{"key": "a"}], []
        for _ in range(5):
            try:
                got = w.all(left)
            except Ended as ended:
                # it is the relay that tries again
                assert ended.outcome in ("outage", "rejected"), ended
                break
            outcomes += [g.outcome for g in got]
            if outcomes[-1] == "acked":
                break
        assert "rejected" not in outcomes, outcomes
    with PubSub() as there:
        got = fate(service="pubsub", url=there.url, service_account=there.account(client_email="other@example.com"))
        assert isinstance(got, Ended) and got.outcome == "rejected" and "PRIVATE KEY" not in got.message, got
        assert there.why and not there.messages


def test_pubsub_accounts_that_are_none():
    with PubSub() as there:
        whole = json.loads(there.account())
        for wrong in ("", "{}", "[]", "null", "not JSON", json.dumps({**whole, "private_key": SECRET}),
                      json.dumps({**whole, "private_key": "-----BEGIN PRIVATE KEY-----\n" + SECRET + "\n-----END PRIVATE KEY-----\n"}),
                      json.dumps({**whole, "token_uri": "file:///etc/passwd"}), json.dumps({**whole, "client_email": None}),
                      json.dumps({**whole, "token_uri": "ftp://127.0.0.1/"})):
            got = fate(service="pubsub", url=there.url, service_account=wrong)
            assert isinstance(got, Ended) and got.outcome == "rejected" and SECRET not in got.message, (wrong, got)
            assert not there.messages


def test_pubsub_account_of_a_file():
    with PubSub() as there, tempfile.NamedTemporaryFile("w") as file:
        # the file that Google gives has several lines
        file.write(json.dumps(json.loads(there.account()), indent=2) + "\n")
        file.flush()
        with pubsub(there, service_account=None, service_account_file=file.name) as w:
            acked(w, events(3), lambda: there.why)


def test_pubsub_refusals():
    for status, outcomes, ends in ((400, {"rejected"}, False), (429, {"retry"}, False), (500, {"retry"}, False), (503, {"retry"}, False),
                                   (403, {"rejected"}, True), (404, {"rejected"}, True)):
        with PubSub() as there, pubsub(there) as w:
            there.hook = lambda r, status=status: refuse(status, "WHATEVER", "because")
            try:
                got = w.all([{"key": str(i)} for i in range(3)])
                assert not ends and {g.outcome for g in got} == outcomes, (status, got)
            except Ended as ended:
                assert ends and {ended.outcome} == outcomes, (status, ended)


def test_pubsub_answers_that_are_none():
    for body in (b"", b"{}", b"[]", b'{"messageIds": []}', b'{"messageIds": null}', b"<html>", b'{"messageIds": ["1", "2", "3"]}', b"\xff"):
        with PubSub() as there, pubsub(there) as w:
            there.hook = lambda r, body=body: Reply(200, body)
            got = w.all([{"key": "a"}])
            assert {g.outcome for g in got} <= {"retry", "unknown"}, (body, got)


def test_pubsub_one_bad_event():
    """A request that is refused for one of its events is split."""
    def hook(r):
        return refuse(400, "INVALID_ARGUMENT", "bad") if any(b"bad" in base64.b64decode(m["data"]) for m in r.json()["messages"]) else None
    with PubSub() as there, pubsub(there, flags=0) as w:
        there.hook = hook
        got = w.all([{"key": str(i), "payload": b'"bad"' if i == 4 else b'"good"'} for i in range(10)])
        outcomes = [g.outcome for g in got]
        assert outcomes[4] == "rejected" and set(outcomes) <= {"acked", "retry", "rejected"}, outcomes
        assert outcomes.count("rejected") == 1, outcomes


def test_pubsub_large_messages():
    with PubSub() as there, pubsub(there, flags=0) as w:
        acked(w, [{"key": str(i), "payload": b'"' + b"x" * 1000000 + b'"'} for i in range(15)], lambda: there.why)
        assert len(there.messages) == 15


def test_servicebus():
    with ServiceBus() as there, servicebus(there) as w:
        ids = acked(w, events(100), lambda: there.why)
        assert sorted(p["MessageId"] for _, p, _ in there.messages) == sorted(ids)
        assert len({p["SessionId"] for _, p, _ in there.messages}) == KEYS
        in_order((p["SessionId"], json.loads(body)["n"]) for body, p, _ in there.messages)
        for r in there.receiver.requests:
            assert len({m["BrokerProperties"]["SessionId"] for m in r.json()}) == 1
        acked(w, [{"key": ODD, "type": "A/b c", "payload": json.dumps({"t": ODD}).encode()}, {"key": "k" * 2000}, {"key": "k" * 1999 + "x"},
                  {"key": "", "type": ""}, {"payload": bytes(range(256)), "json": False, "key": "bytes"}], lambda: there.why)
        body, p, user = next(m for m in there.messages if m[2].get("aggregate_id") == ODD)
        assert json.loads(body) == {"t": ODD} and user["event_type"] == "A/b c", (p, user)
        assert len({p["SessionId"] for _, p, _ in there.messages}) == KEYS + 5
        assert base64.b64decode(next(b for b, p, u in there.messages if u.get("aggregate_id") == "bytes")) == bytes(range(256))


def test_servicebus_without_sessions():
    with ServiceBus(sessions=False) as there, servicebus(there, flags=0) as w:
        acked(w, events(100), lambda: there.why)
        assert all("SessionId" not in p for _, p, _ in there.messages) and len(there.receiver.requests) < 100


def test_servicebus_by_tls():
    ca = certificates.authority()
    with ServiceBus(tls=certificates.server(ca.issue("server"))) as there, servicebus(there, sslrootcert=ca.root) as w:
        acked(w, events(10), lambda: there.why)


def test_servicebus_logins():
    with ServiceBus() as there:
        good = {"service": "servicebus", "url": there.url, "user": there.policy, "password": there.key}
        for wrong in ({"password": SECRET}, {"user": "other"}):
            got = fate(**{**good, **wrong})
            assert isinstance(got, Ended) and got.outcome == "rejected" and SECRET not in got.message, got
            assert there.why.startswith("login"), there.why
        assert not there.messages
        got = fate(**{**good, "url": there.url + "x"})
        assert isinstance(got, Ended) and got.outcome == "rejected", got


def test_servicebus_refusals():
    for status, outcomes, ends in ((400, {"rejected"}, False), (403, {"retry", "rejected"}, None), (410, {"rejected"}, True),
                                   (500, {"retry"}, False), (503, {"retry"}, False), (429, {"retry"}, False)):
        with ServiceBus() as there, servicebus(there) as w:
            there.hook = lambda r, status=status: Reply(status, b"<Error><Detail>because</Detail></Error>")
            try:
                got = w.all([{"key": str(i)} for i in range(3)])
                assert not ends and {g.outcome for g in got} <= outcomes, (status, got)
            except Ended as ended:
                assert ends is not False and ended.outcome in outcomes, (status, ended)


def test_servicebus_large_messages():
    with ServiceBus(sessions=False) as there, servicebus(there, flags=0) as w:
        acked(w, [{"key": str(i), "payload": b'"' + b"x" * 100000 + b'"'} for i in range(10)], lambda: there.why)
