"""What a request looks like: method, path, headers and body, of each form."""
import base64
import datetime
import json
import urllib.parse
import uuid

from fetched import library
from receiver import Receiver
from target import once, sink

# What header names and values, keys and types may have in them.
ODD = "a b/c?d=e&f#g%h\u00fc;\u20ac+\"'{}[]\\^`|<>"
ID = uuid.UUID("10111213-1415-4617-9819-1a1b1c1d1e1f")
EVENT = {"id": ID, "aggregate_type": "order", "key": "42", "type": "OrderCreated", "payload": b'{"total": 99}'}


def sent(event=EVENT, **options):
    """The request of an event that is acked."""
    got, there = once(event=event, **options)
    assert got.outcome == "acked", got
    [r] = there.requests
    return r


def not_sent(event, **options):
    got, there = once(event=event, **options)
    assert got.outcome == "impossible" and not there.requests, (got, there.ids())
    return got


def test_plain():
    r = sent()
    assert r.method == "POST" and r.target == "/in/order/42" and r.body == EVENT["payload"]
    assert r.header("content-type") == "application/json", r.headers
    assert r.header("host").startswith("127.0.0.1:"), r.headers
    assert r.header("accept-encoding") is None and r.header("cookie") is None and r.header("authorization") is None
    assert r.header("content-length") == str(len(r.body))


def test_ids_are_on_every_message():
    for options in ({}, {"format": "cloudevents_binary"}, {"format": "cloudevents_structured"},
                    {"signing_secrets": "whsec_" + base64.b64encode(b"k" * 24).decode()}):
        r = sent(**options)
        assert r.header("webhook-id") == r.header("idempotency-key") == str(ID), (options, r.headers)
        assert (r.header("webhook-signature") is None) == ("signing_secrets" not in options)


def test_ids_are_the_same_at_each_repeat():
    with Receiver(lambda r: 503 if r.attempt < 3 else 200) as there, sink(there) as w:
        got = [w.one(**EVENT).outcome for _ in range(3)]
        assert got == ["retry", "retry", "acked"] and there.ids() == [str(ID)] * 3


def test_payloads():
    for payload, json_ in ((b"null", True), (b'""', True), (b"", False), (bytes(range(256)), False), (b"[1, 2]", True)):
        r = sent({**EVENT, "payload": payload, "json": json_})
        assert r.body == payload, (payload, r.body)
        assert (r.header("content-type") or "").startswith("application/json") == json_, r.headers


def test_content_types():
    assert sent({**EVENT, "payload": b"<a/>", "json": False, "content_type": "application/xml"}).header("content-type") == \
        "application/xml"
    assert sent({**EVENT, "payload": b"x", "json": False}).header("content-type") in (None, "application/octet-stream")
    assert sent(content_type="application/vnd.shop+json").header("content-type") == "application/vnd.shop+json"
    # a content type that would be two headers
    not_sent({**EVENT, "payload": b"x", "json": False, "content_type": "text/plain\r\nX-Admin: 1"})


def test_headers_of_the_event():
    headers = {"X-Trace": "00-abc", "tenant": "acme", "number": 7, "flag": True, "nothing": None, "list": [1]}
    r = sent({**EVENT, "headers": json.dumps(headers).encode()})
    assert (r.header("x-trace"), r.header("tenant"), r.header("number"), r.header("flag")) == ("00-abc", "acme", "7", "true")
    assert r.header("nothing") in (None, ""), r.headers


def test_headers_of_the_event_do_not_forge():
    """No header of an event replaces one that the sink makes, ends a line, or changes how the body is framed."""
    own = ("webhook-id", "Webhook-Signature", "webhook-timestamp", "Idempotency-Key", "Content-Length", "Transfer-Encoding", "Host",
           "Authorization", "Connection", "Expect", "Content-Type", "Cookie", "Te", "Upgrade", "Proxy-Authorization", "Trailer",
           "webhook_id", "Content_Length", "Content-Encoding", "Range", "If-Match", "Set-Cookie", "X-HTTP-Method-Override")
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    with Receiver() as there, sink(there, signing_secrets=secret, auth="bearer", token="tok") as w:
        for name in own:
            there.forget()
            got = w.one(**{**EVENT, "headers": json.dumps({name: "forged"}).encode()})
            assert got.outcome in ("acked", "impossible", "rejected"), (name, got)
            for r in there.requests:
                found = r.all(name)
                if name in ("Cookie", "Content-Type") and found == ["forged"]:
                    continue
                assert "forged" not in found, (name, found)
                assert r.id == str(ID) and r.body == EVENT["payload"] and r.header("authorization") == "Bearer tok"


def test_headers_of_the_event_that_are_none():
    """A name or value that no header can have refuses the event, or leaves the header out; it never becomes another one."""
    for name, value in (("X-A", "a\r\nX-Admin: 1"), ("X-A", "a\nX-Admin: 1"), ("X-A", "a\rX-Admin: 1"), ("X-A\r\nX-Admin", "1"),
                        ("X A", "1"), ("X-A: X-Admin", "1"), ("", "1"), (":path", "/admin"), ("X-\u00fc", "1"), ("X-A", "\x01"),
                        ("X-A", "a\x7f"), ("X-A", "\r\n\r\nPOST /admin HTTP/1.1\r\nHost: a\r\n\r\n"), ("X-A;", "1"), ("X-A", " ")):
        got, there = once(event={**EVENT, "headers": json.dumps({name: value}).encode()})
        assert got.outcome in ("acked", "impossible", "rejected"), (name, value, got)
        for r in there.requests:
            assert r.target == "/in/order/42" and r.body == EVENT["payload"], r.target
            assert r.header("x-admin") is None and all("\r" not in v and "\n" not in v for _, v in r.headers), r.headers
        assert len(there.requests) <= 1


def test_headers_in_other_alphabets():
    got, there = once(event={**EVENT, "headers": json.dumps({"X-Name": "M\u00fcller"}, ensure_ascii=False).encode()})
    assert got.outcome in ("acked", "impossible", "rejected"), got
    for r in there.requests:
        assert (r.header("x-name") or "").encode("latin-1") in (b"", "M\u00fcller".encode()), r.headers


def test_path_template():
    url = "/v1/{aggregate_type}/{aggregate_id}/{event_type}/{id}/{header:tenant}?type={event_type}&id={aggregate_id}"
    with Receiver() as there, sink(there, url=there.url + url) as w:
        event = {**EVENT, "aggregate_type": ODD, "key": "../../admin", "type": "a/b\u00fc", "headers": b'{"tenant": "\\u20ac/x"}'}
        assert w.one(**event).outcome == "acked"
        [r] = there.requests
        assert r.parts == ["v1", ODD, "../../admin", "a/b\u00fc", str(ID), "\u20ac/x"], r.target
        assert dict(urllib.parse.parse_qsl(r.target.partition("?")[2])) == {"type": "a/b\u00fc", "id": "../../admin"}
        assert all(c.isascii() and c not in " <>\"{}|\\^`" for c in r.target), r.target


def test_path_template_dots():
    """A part of dots only would climb: neither libcurl nor the receiver may take it for a directory."""
    for key in ("..", ".", "%2e%2e", "...."):
        with Receiver() as there, sink(there, url=there.url + "/in/{aggregate_id}/end") as w:
            got = w.one(key=key)
            assert got.outcome in ("acked", "impossible", "rejected"), (key, got)
            for r in there.requests:
                assert len(r.parts) == 3 and r.parts[0] == "in" and r.parts[2] == "end", (key, r.target)


def test_path_template_line_ends():
    for key in ("a\r\nX-Admin: 1", "a b HTTP/1.1\r\n", "a\nb", "\r", "a\tb", "\x01"):
        with Receiver() as there, sink(there) as w:
            got = w.one(key=key)
            assert got.outcome in ("acked", "impossible", "rejected"), (key, got)
            for r in there.requests:
                assert r.key == key and r.header("x-admin") is None, (key, r.target)


def test_path_template_of_a_header_that_is_not_there():
    with Receiver() as there, sink(there, url=there.url + "/in/{header:tenant}") as w:
        got = w.one(**EVENT)
        assert got.outcome == "impossible" and "tenant" in got.message and not there.requests, got


def test_host_is_no_template():
    """What an event says changes the path at most: never scheme, host or port."""
    with Receiver() as there, Receiver() as other:
        for key in (f"@127.0.0.1:{other.port}/", f"//127.0.0.1:{other.port}/", f"\\\\127.0.0.1:{other.port}", "#", "?x"):
            for url in ("/{aggregate_id}", "/x{aggregate_id}"):
                with sink(there, url=there.url + url) as w:
                    assert w.one(key=key).outcome in ("acked", "impossible", "rejected")
        assert not other.requests and len(there.requests) == 10


def test_header_template():
    r = sent(headers="X-Key: {aggregate_type}.{aggregate_id}\nX-Type: {event_type}; v=1\nX-Id: {id}")
    assert (r.header("x-key"), r.header("x-type"), r.header("x-id")) == ("order.42", "OrderCreated; v=1", str(ID))


def test_header_template_line_ends():
    for key in ("a\r\nX-Admin: 1", "a\nX-Admin: 1", "a\rb"):
        got = not_sent({**EVENT, "key": key}, headers="X-Key: {aggregate_id}")
        assert "X-Admin" not in got.message or "\n" not in got.message, got


def test_methods():
    for method in ("POST", "PUT", "PATCH"):
        r = sent(method=method)
        assert r.method == method and r.body == EVENT["payload"]


HEADERS = {"Comment": "a%b\u00fc\"c\""}


def cloud_event(r, body=None):
    """As an SDK reads it."""
    http = library("cloudevents.http")
    return http.from_http(dict(r.headers), body if body is not None else r.body)


def check_attributes(e, source="/idempotency/orders"):
    assert (e["specversion"], e["id"], e["source"], e["type"], e["subject"]) == \
        ("1.0", str(ID), source, "OrderCreated", "42"), e
    # the worker's end of these tests says when it was enqueued
    assert datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")).year == 2026, e["time"]
    assert e.get("partitionkey", "42") == "42", e


def test_cloudevents_binary():
    r = sent(format="cloudevents_binary")
    e = cloud_event(r)
    check_attributes(e)
    assert e.data == {"total": 99} and r.body == EVENT["payload"]
    assert r.header("content-type") == "application/json"
    r = sent({**EVENT, "payload": b"\x00\xff", "json": False, "content_type": "image/png"}, format="cloudevents_binary")
    assert r.body == b"\x00\xff" and r.header("content-type") == "image/png" and r.header("ce-id") == str(ID)


def test_cloudevents_binary_encodes():
    """Values of the binary form are percent-encoded, by section 3.1.3.2 of the HTTP binding."""
    odd = "Euro \u20ac \U0001f600 100% \"q\""
    r = sent({**EVENT, "key": odd}, format="cloudevents_binary")
    value = r.header("ce-subject")
    assert all(0x20 < ord(c) < 0x7f for c in value) and "\"" not in value, value
    assert urllib.parse.unquote(value) == odd, value


def test_cloudevents_structured():
    r = sent(format="cloudevents_structured", source="/shop/{aggregate_type}")
    assert r.header("content-type").startswith("application/cloudevents+json")
    check_attributes(cloud_event(r), "/shop/order")
    assert r.json()["data"] == {"total": 99} and "data_base64" not in r.json()
    r = sent({**EVENT, "payload": b"\x00\xff", "json": False, "content_type": "image/png", "key": ODD},
             format="cloudevents_structured")
    assert base64.b64decode(r.json()["data_base64"]) == b"\x00\xff" and r.json()["datacontenttype"] == "image/png"
    assert r.json()["subject"] == ODD


def test_cloudevents_batch():
    with Receiver() as there, sink(there, url=there.url + "/batch", format="cloudevents_batch", batch_events=10) as w:
        got = w.all([{"key": str(i % 7), "payload": b'{"n": %d}' % i} for i in range(60)])
        assert {g.outcome for g in got} == {"acked"}, got
        bodies = [r.json() for r in there.requests]
        assert all(r.header("content-type").startswith("application/cloudevents-batch+json") for r in there.requests)
        assert max(map(len, bodies)) <= 10 and len(bodies) >= 6, list(map(len, bodies))
        assert min(map(len, bodies)) >= 1 and len(bodies) < 60, "no request had several events"
        events = [e for body in bodies for e in body]
        assert sorted(e["id"] for e in events) == sorted(str(i) for i in w.ids)
        order = {}
        for e in events:
            order.setdefault(e["subject"], []).append(e["data"]["n"])
        assert all(numbers == sorted(numbers) for numbers in order.values()), order


def test_cloudevents_batch_is_refused_as_a_whole():
    """A status counts for all events of the request; none is acked."""
    for status, outcome in ((503, "retry"), (400, "rejected")):
        with Receiver(status) as there, sink(there, url=there.url + "/batch", format="cloudevents_batch") as w:
            got = w.all([{"key": str(i)} for i in range(5)])
            assert {g.outcome for g in got} == {outcome}, got


def test_batch_of_a_refused_event_is_split():
    """One event that the receiver refuses takes no other with it."""
    def answer(r):
        return 400 if any(e["data"].get("bad") for e in r.json()) else 200
    with Receiver(answer) as there, sink(there, url=there.url + "/batch", format="cloudevents_batch", batch_events=8) as w:
        good = {"payload": b'{"good": 1}'}
        got = w.all([{"key": str(i), **(good if i != 5 else {"payload": b'{"bad": 1}'})} for i in range(8)])
        outcomes = [g.outcome for g in got]
        assert outcomes[5] == "rejected" and set(outcomes) <= {"acked", "rejected", "retry"}, outcomes
