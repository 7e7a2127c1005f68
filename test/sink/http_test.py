#!/usr/bin/env python3
"""The http sink and small servers of the test: the protocol, addresses, and what its services send and read.

`make test-http` has real receivers (http/).
"""
import base64
import collections
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import pathlib
import re
import socket
import sys
import tempfile
import termios
import threading
import time
import types
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import conformance
from conformance import Program
from sinklib import HERE, LateWorker, PATIENCE, codec, run_tests

BIN = pathlib.Path(os.environ.get("SINK_BINDIR", HERE.parent.parent / "src/sink/bin"))
SINK = BIN / "idempotency-sink-http"
OUTCOMES = {v: k for k, v in codec.OUTCOMES.items()}
SECRET = "hush4711/+=%quiet"
AWS = {"region": "eu-central-1", "user": "AKIDEXAMPLE", "password": SECRET}


class Server:
    """answer(request) gives (status, body, headers...); the requests are kept."""

    def __init__(self, answer=lambda r: (200, b"")):
        self.requests = []
        there = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                r = types.SimpleNamespace(path=self.path, headers=self.headers, connection=self.connection,
                                          body=self.rfile.read(int(self.headers.get("content-length", 0))))
                there.requests.append(r)
                status, body, *headers = answer(r)
                if isinstance(body, (dict, list)):
                    body = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for line in headers:
                    self.send_header(*line.split(": ", 1))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_PATCH = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def start(url, flags=codec.KEY_ORDER, **options):
    chosen = {"url": url, "allowed_addresses": "127.0.0.0/8", **options}
    return LateWorker(SINK, options={k: str(v) for k, v in chosen.items() if v is not None}, flags=flags)


def failed(w):
    """The FAILED that ends the program, whatever comes before it."""
    while True:
        got = w.recv()
        assert got, f"end of file: {w.stderr()}"
        if got[0] == "FAILED":
            break
    assert w.recv() is None and w.exit_status() == 0
    text = got[1]["message"] + w.stderr()
    assert SECRET not in text, text
    w.sock.close()
    os.close(w.stderr_r)
    return OUTCOMES[got[1]["outcome"]], got[1]["sqlstate"], got[1]["message"]


def deliver(url, events, flags=codec.KEY_ORDER, **options):
    """Outcomes of a batch, and the ids."""
    w = start(url, flags, **options)
    w.hello()
    with w.in_one_piece():
        batch, ids = w.events(events)
    out = w.outcomes(batch, len(events))
    notes = w.notes
    assert SECRET not in str(notes), notes
    w.close()
    return out, [str(i) for i in ids], notes


def refused(**options):
    f = failed(start(options.pop("url", "http://127.0.0.1/"), **options))
    assert f[0] == "rejected", f
    return f[2]


def program(directory):
    """Held against doc/sink-protocol.md: the server keeps what it took, in its order."""
    seen = {}

    def answer(r):
        if r.headers["content-type"] != "application/json":
            return 422, b"no"
        seen[r.headers["webhook-id"].replace("-", "")] = r.body.decode()
        return 200, b""

    server = Server(answer)
    p = Program(SINK, {"url": server.url + "/x", "allowed_addresses": "127.0.0.1", "concurrency": "4"},
                {"payload": b"\xff\0", "json": False}, effects=lambda: seen)
    p.server = server
    return p


def test_signature():
    keys = [b"k" * 24, b"l" * 64]
    secrets = " ".join("whsec_" + base64.b64encode(k).decode() for k in keys)
    with Server() as there:
        _, [event_id], _ = deliver(there.url, [{"payload": b'{"a": 1}'}], signing_secrets=secrets)
        [r] = there.requests
        assert r.headers["webhook-id"] == r.headers["idempotency-key"] == event_id
        assert abs(int(r.headers["webhook-timestamp"]) - time.time()) < 60
        signed = f"{event_id}.{r.headers['webhook-timestamp']}.".encode() + r.body
        assert r.headers["webhook-signature"].split() == \
            ["v1," + base64.b64encode(hmac.new(k, signed, hashlib.sha256).digest()).decode() for k in keys]


def test_forms():
    event = {"payload": b'{"a": 1}', "headers": b'{"trace": "t", "n": 5, "no": null, "Host": "evil", "webhook-id": "x"}', "key": "k\u00fc"}
    with Server() as there:
        for form in ("plain", "cloudevents_binary", "cloudevents_structured", "cloudevents_batch"):
            deliver(there.url + "/in", [event], format=form, headers="X-Type: {event_type}" if "batch" not in form else "X-Type: T")
        plain, binary, structured, batch = there.requests
        for r in (plain, binary, structured):
            assert r.headers["trace"] == "t" and r.headers["n"] == "5" and "no" not in r.headers and r.headers["x-type"] == "T"
            assert "evil" not in str(r.headers) and len(r.headers.get_all("webhook-id")) == 1
        assert plain.body == binary.body == event["payload"] and plain.headers["content-type"] == "application/json"
        assert binary.headers["ce-subject"] == "k%C3%BC" and binary.headers["ce-source"] == "/idempotency/orders"
        ce = json.loads(structured.body)
        assert ce["data"] == {"a": 1} and ce["subject"] == "k\u00fc" and ce["specversion"] == "1.0", ce
        assert structured.headers["content-type"].startswith("application/cloudevents+json")
        [one] = json.loads(batch.body)
        assert one.keys() == ce.keys() and batch.headers["content-type"].startswith("application/cloudevents-batch+json")


def test_batch_is_split():
    """A batch that is refused as a whole goes again, one by one."""
    def answer(r):
        return (400, b"") if any(e["type"] == "BAD" for e in json.loads(r.body)) else (200, b"")
    with Server(answer) as there:
        events = [{"key": str(i), "type": "BAD" if i == 7 else "T"} for i in range(20)]
        out, ids, _ = deliver(there.url, events, format="cloudevents_batch", concurrency=1)
        assert [o for i, o in enumerate(out) if i != 7] == ["acked"] * 19 and out[7] == "rejected", out
        assert len(there.requests) == 21, len(there.requests)
        names = [r.headers["webhook-id"] for r in there.requests]
        assert len(set(names)) == 21 and len(set(names) - set(ids)) == 1, names


def test_headers_left_out():
    """The names that doc/reference/sinks.md says are left out, and no others."""
    page = (HERE.parent.parent / "doc/reference/sinks.md").read_text()
    names = re.findall("`([A-Za-z0-9-]+(?:\\.\\.\\.)?)`", re.search("this sink uses: (.*?), and those that", page, re.DOTALL)[1])
    sent = ["Accept-Language", "X-Real", "Forward", "Set-Cookies", "Contents"]
    with Server() as there:
        headers = {n.replace("...", "X"): "evil\n" for n in names} | {n: "good" for n in sent} | {"X-Type": "evil\n"}
        headers |= {n.replace("-", "_").swapcase(): "evil\n" for n in headers if "-" in n and n not in sent}
        out, _, _ = deliver(there.url, [{"headers": json.dumps(headers).encode()}], headers="X-Type: T")
        assert out == ["acked"] and len(names) > 20, (out, names)
        got = there.requests[0].headers
        assert "evil" not in str(got) and [got[n] for n in sent] == ["good"] * len(sent) and got["x-type"] == "T", str(got)


def test_no_field_leaves_its_place():
    with Server() as there:
        events = [{"key": k} for k in ("..", ".", "", "a/../b", "?x=1#y", "a\r\nX: y", "http://127.0.0.2/")] + \
            [{"headers": h} for h in (b'{"a\\r\\nb": "c"}', b'{"a": "b\\r\\nX: y"}', b'{"a": "b\\u0000"}', b'{"a b": "c"}')] + \
            [{"key": "last", "headers": b'{"h": "' + b"x" * 40000 + b'"}'}]
        out, _, _ = deliver(there.url + "/in/{aggregate_id}?t={event_type}", events, flags=0)
        assert out == ["impossible"] * 3 + ["acked"] * 4 + ["impossible"] * 5, out
        assert {r.path for r in there.requests} == {"/in/a%2F..%2Fb?t=T", "/in/%3Fx%3D1%23y?t=T", "/in/a%0D%0AX%3A%20y?t=T",
                                                    "/in/http%3A%2F%2F127.0.0.2%2F?t=T"}, [r.path for r in there.requests]


# What a socket may not be connected to, and the ranges that would allow it.
INSIDE = {
    "127.0.0.1": "127.0.0.0/8", "127.9.8.7": "127.0.0.0/8", "0.0.0.0": "0.0.0.0", "2130706433": "127.0.0.1", "0x7f.1": "127.0.0.1",
    "[::1]": "::1", "[::]": "::", "[::ffff:127.0.0.1]": "127.0.0.1", "[::127.0.0.1]": "127.0.0.1", "[64:ff9b::127.0.0.1]": "127.0.0.1",
    "[2002:7f00:1::]": "127.0.0.1", "localhost": "127.0.0.1, ::1", "10.0.0.1": "", "172.16.0.1": "", "172.31.255.255": "",
    "192.168.1.1": "", "169.254.169.254": "", "100.64.0.1": "", "198.18.0.1": "", "224.0.0.1": "", "255.255.255.255": "",
    "[fe80::1]": "", "[fc00::1]": "", "[fd12::1]": "", "[ff02::1]": "", "[2001:db8::1]": "", "[2001::1]": "", "[fec0::1]": "",
    "[::ffff:10.0.0.1]": "", "[64:ff9b::a00:1]": "", "[2002:a00:1::]": "", "192.0.2.1": "", "203.0.113.1": "",
}


def test_addresses():
    for host, ranges in INSIDE.items():
        for scheme in ("http", "https"):
            w = start(f"{scheme}://{host}:9/", allowed_addresses=None, connect_timeout=2000)
            w.hello()
            w.events([{}])
            outcome, state, message = failed(w)
            # a machine without IPv6 has no such addresses
            if outcome == "outage" and host.startswith("[") and "resolve" in message:
                continue
            assert (outcome, state) == ("rejected", "42501"), (host, outcome, message)
        if ranges.startswith("127"):
            w = start(f"http://{host}:9/", allowed_addresses=ranges, connect_timeout=1000)
            w.hello()
            w.events([{}])
            assert failed(w)[0] == "outage", host


def test_urls():
    for url in ("http://203.0.113.1:x@127.0.0.1/", "http://a@127.0.0.1/", "http://:p@127.0.0.1/", "ftp://127.0.0.1/", "file:///etc/passwd",
                "//127.0.0.1/", "http:///x", "http://a{aggregate_id}/", "http://127.0.0.1/#x", "http://127.0.0.1\\@x/", "http://[::1/",
                "http://127.0.0.1:99999/", "http://127.0.0.1/ x"):
        assert "option \"url\"" in refused(url=url), url


def test_no_login_without_tls():
    with Server() as there, Server(lambda r: (200, {"access_token": "t", "expires_in": 60})) as tokens:
        for o in ({"auth": "bearer", "token": SECRET}, {"auth": "basic", "user": "u", "password": SECRET},
                  {"headers": "X-Key: {token}", "token": SECRET},
                  {"auth": "oauth2", "user": "u", "password": SECRET, "token_url": tokens.url}):
            w = start(there.url, allowed_addresses="10.0.0.0/8", **o)
            w.hello()
            w.events([{}])
            f = failed(w)
            assert f[:2] in (("rejected", "42501"), ("rejected", "28000")) and "may not be sent to without TLS" in f[2], f
        assert not there.requests and not tokens.requests


def test_hidden_echo():
    """A receiver that repeats what it got: no secret is in a message."""
    whole = base64.b64encode(f"u:{SECRET}".encode()).decode()
    for o in ({"auth": "bearer", "token": SECRET}, {"auth": "basic", "user": "u", "password": SECRET},
              {"headers": "X-Key: {token}", "token": SECRET}):
        with Server(lambda r: (400, str(r.headers).encode())) as there:
            out, _, notes = deliver(there.url, [{}], **o)
            assert out == ["rejected"] and "not shown" in notes[0][1] and whole not in notes[0][1], notes


def test_logged_messages_have_no_payload():
    """The server logs why a program ends; what a receiver repeats of an event is not in it."""
    for said, shown in ((b"gone", "gone"), (b"no: %s", "not shown"), (b"x" * 150 + b"%s", "not shown"), (b"y" * 5000, "yyy")):
        with Server(lambda r, s=said: (410, s % r.body if b"%s" in s else s)) as there:
            w = start(there.url)
            w.hello()
            w.events([{"payload": b'{"card": "4111 1111 1111 1111", "name": "Ada"}'}])
            f = failed(w)
            assert f[0] == "halted" and shown in f[2] and "4111" not in f[2] and len(f[2]) < 500, f


def test_files_of_options():
    """A file that is not there, or is none of the kind, is no outage: waiting does not help."""
    with Server(lambda r: 200) as there:
        url = there.url.replace("http:", "https:")
        for o, text in (({"sslrootcert": "/nonexistent/ca"}, 'could not open sslrootcert "/nonexistent/ca"'),
                        ({"token_rootcert": "/nonexistent/ca"}, "could not open token_rootcert"),
                        ({"sslcert": "/nonexistent/c", "sslkey": __file__}, "could not open sslcert"),
                        ({"sslcert": __file__, "sslkey": "/nonexistent/k"}, "could not open sslkey")):
            f = failed(start(url, **o))
            assert f[:2] == ("rejected", "58030") and text in f[2], (o, f)
        for o, text in (({"sslrootcert": __file__}, "sslrootcert"), ({"sslcert": __file__, "sslkey": __file__}, "sslkey")):
            w = start(url, **o)
            w.hello()
            w.events([{}])
            f = failed(w)
            assert f[:2] == ("rejected", "58030") and f'"{text}"' in f[2], (o, f)
        assert not there.requests


def test_options_that_do_not_fit():
    for o in ({"auth": "basic"}, {"auth": "bearer"}, {"auth": "oauth2", "user": "u", "password": "p"}, {"user": "u", "password": "p"},
              {"token": "t"}, {"headers": "X: {token}"}, {"sslcert": "/x"}, {"service": "sqs", "user": "a", "password": "b"},
              {"service": "sqs", **AWS, "method": "PUT"}, {"service": "sns", **AWS}, {"service": "pubsub"}, {"service": "servicebus"},
              {"service": "sqs", **AWS, "auth": "bearer", "token": "t"}, {"service": "sqs", **AWS, "format": "cloudevents_binary"},
              {"session_token": "x"}, {"service_account": "{}"}, {"auth": "basic", "user": "a:b", "password": "c"},
              {"format": "cloudevents_batch", "headers": "X: {id}"}, {"auth": "bearer", "token": "a\nb"},
              {"service": "pubsub", "url": "http://127.0.0.1/v1/projects/p/topics/t", "service_account": '{"client_email": "a"}'}):
        refused(**o)


def test_one_of_a_key():
    """Never two of a key at once; the other keys do not wait for it."""
    inside = collections.Counter()
    most = collections.Counter()

    def answer(r):
        key = r.path
        inside[key] += 1
        most[key] = max(most[key], inside[key])
        most["all"] = max(most["all"], sum(inside.values()))
        time.sleep(0.02)
        inside[key] -= 1
        return 200, b""
    with Server(answer) as there:
        out, _, _ = deliver(there.url + "/{aggregate_id}", [{"key": str(i % 4)} for i in range(40)])
        assert set(out) == {"acked"} and {most[f"/{i}"] for i in range(4)} == {1} and most["all"] > 1, most


def test_keys_that_hang_take_half_of_the_places():
    """Those that got no answer come again beside the others, not before all of them."""
    hung = [{"key": f"hangs{i}"} for i in range(8)]
    others = [{"key": f"k{i}"} for i in range(30)]
    for flags in (codec.KEY_ORDER, 0):
        hangs = threading.Event()

        def answer(r):
            if r.path.startswith("/hangs"):
                hangs.wait(PATIENCE)
            return 200, b""
        with Server(answer) as there:
            w = start(there.url + "/{aggregate_id}", flags=flags, concurrency=4, timeout=1000)
            w.hello()
            # without an order of keys it is the event that is known
            again = [dict(e, id=uuid.uuid4()) for e in hung]
            batch, _ = w.events(again)
            assert w.outcomes(batch, 8) == ["retry"] * 8, w.notes
            w.send("SETTLE", batch=batch)
            before = len(there.requests)
            batch, _ = w.events(again + others)
            while len(there.requests) < before + 4:
                time.sleep(0.01)
            first = [r.path for r in there.requests[before:before + 4]]
            # in what order they come is the kernel's; else the first four would hang
            assert sum(path.startswith("/hangs") for path in first) <= 2, first
            assert w.outcomes(batch, 38) == ["retry"] * 8 + ["acked"] * 30, w.notes
            w.send("SETTLE", batch=batch)
            hangs.set()
            batch, _ = w.events(again)
            assert w.outcomes(batch, 8) == ["acked"] * 8, w.notes
            w.close()


def keeps_order(there, out, events, take):
    """What arrived, by key, in order; repeats aside."""
    by_key = collections.defaultdict(list)
    for r in there.requests:
        for key, n in take(r):
            by_key[key].append(n)
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), (key, numbers)
    return by_key


def sqs_answer(bad=(), flaw=None):
    def answer(r):
        entries = json.loads(r.body)["Entries"]
        ok = [{"Id": e["Id"], "MessageId": "m"} for e in entries if json.loads(e["MessageBody"])["n"] not in bad]
        no = [{"Id": e["Id"], "Code": "InvalidMessageContents", "Message": "bad", "SenderFault": True} for e in entries
              if json.loads(e["MessageBody"])["n"] in bad]
        said = {"Successful": ok, "Failed": no}
        return 200, flaw(said) if flaw else said
    return answer


def test_sqs():
    events = [{"key": str(i % 15), "payload": b'{"n": %d}' % i} for i in range(60)]
    with Server(sqs_answer(bad={7})) as there:
        out, ids, notes = deliver(there.url + "/1/q.fifo", events, service="sqs", session_token="s" * 40, **AWS)
        held = [i for i in range(60) if i % 15 == 7]
        assert [i for i, o in enumerate(out) if o != "acked"] == held and out[7] == "rejected", out
        assert [out[i] for i in held[1:]] == ["skipped"] * 3 and "InvalidMessageContents: bad" in notes[7][1]
        for r in there.requests:
            assert r.path == "/" and r.headers["x-amz-target"] == "AmazonSQS.SendMessageBatch"
            assert r.headers["content-type"] == "application/x-amz-json-1.0"
            assert r.headers["x-amz-security-token"] == "s" * 40
            signed = re.search("SignedHeaders=([^,]*)", r.headers["authorization"])[1].split(";")
            assert {"host", "x-amz-target", "content-type", "x-amz-security-token"} <= set(signed)
            assert all(name in r.headers for name in signed), "a header that was signed and not sent"
            entries = json.loads(r.body)["Entries"]
            assert len(entries) <= 10 and len({e["MessageGroupId"] for e in entries}) == len(entries)
            assert json.loads(r.body)["QueueUrl"] == there.url + "/1/q.fifo"
        keeps_order(there, out, events, lambda r: [(e["MessageGroupId"], json.loads(e["MessageBody"])["n"])
                                                   for e in json.loads(r.body)["Entries"]])
        assert {e["MessageDeduplicationId"] for r in there.requests for e in json.loads(r.body)["Entries"]} <= set(ids)


def test_sqs_lies():
    """An answer acknowledges what it names, once, and nothing else."""
    flaws = {
        "nothing": lambda s: {}, "no JSON": lambda s: b"<html>", "a foreign id": lambda s: {"Successful": [{"Id": "99"}, {"Id": "-1"}, {"Id": "x"}]},
        "an array": lambda s: [1], "twice": lambda s: {"Successful": s["Successful"][:1] * 5}, "numbers": lambda s: {"Successful": [{"Id": 0}]},
        "cut": lambda s: json.dumps(s).encode()[:40], "deep": lambda s: b"[" * 5000 + b"{" * 5000, "both": lambda s: {
            "Successful": s["Successful"], "Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]}}
    for name, flaw in flaws.items():
        with Server(sqs_answer(flaw=flaw)) as there:
            events = [{"key": str(i), "payload": b'{"n": %d}' % i} for i in range(5)]
            out, _, _ = deliver(there.url + "/1/q", events, service="sqs", concurrency=1, batch_events=5, **AWS)
            sent = json.loads(there.requests[0].body)["Entries"]
            assert len(there.requests) == 1 and len(sent) == 5
            wanted = {"twice": 1, "both": 4}.get(name, 0)
            assert out.count("acked") == wanted and set(out) <= {"acked", "retry"}, (name, out)


def test_aws_errors():
    for status, code, outcome in ((400, "com.amazonaws.sqs#QueueDoesNotExist", "rejected FAILED"), (403, "SignatureDoesNotMatch", "rejected FAILED"),
                                  (400, "ThrottlingException", "retry"), (400, "x#RequestThrottled", "retry"), (503, "", "retry"),
                                  (400, "InvalidParameterValue", "rejected"), (403, "", "rejected FAILED")):
        with Server(lambda r, s=status, c=code: (s, {"__type": c, "message": "m"})) as there:
            w = start(there.url + "/1/q", service="sqs", **AWS)
            w.hello()
            batch, _ = w.events([{}])
            if outcome.endswith("FAILED"):
                f = failed(w)
                assert f[0] == "rejected" and str(status) in f[2], f
            else:
                assert w.outcomes(batch, 1) == [outcome], (status, code)
                w.close()


def test_sns():
    def answer(r):
        form = dict(urllib.parse.parse_qsl(r.body.decode(), strict_parsing=True))
        ids = [v for k, v in form.items() if k.endswith(".Id")]
        ok = "".join(f"<member><Id>{i}</Id><MessageId>m</MessageId></member>" for i in ids[1:])
        no = f"<member><Id>{ids[0]}</Id><Code>InvalidParameter</Code><Message>&lt;bad&gt;</Message><SenderFault>true</SenderFault></member>"
        return 200, f"<PublishBatchResponse><PublishBatchResult><Failed>{no}</Failed><Successful>{ok}</Successful></PublishBatchResult>" \
            "</PublishBatchResponse>".encode()
    arn = "arn:aws:sns:eu-central-1:1:t.fifo"
    with Server(answer) as there:
        events = [{"key": str(i), "payload": b'{"n": "a b+c&d=%% \xc3\xbc"}'} for i in range(10)]
        out, ids, notes = deliver(f"{there.url}/{arn}", events, service="sns", concurrency=1, **AWS)
        assert out.count("rejected") == len(there.requests) and "InvalidParameter" in str(notes), out
        [form, *_] = [dict(urllib.parse.parse_qsl(r.body.decode())) for r in there.requests]
        assert form["TopicArn"] == arn and form["Action"] == "PublishBatch" and there.requests[0].path == "/"
        assert form["PublishBatchRequestEntries.member.1.Message"] == '{"n": "a b+c&d=%% \u00fc"}'
        assert form["PublishBatchRequestEntries.member.1.MessageDeduplicationId"] in ids
        assert form["PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.StringValue"] in ids


def test_eventbridge():
    def answer(r):
        entries = json.loads(r.body)["Entries"]
        return 200, {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "ThrottlingException", "ErrorMessage": "m"}] +
                     [{"EventId": "e"} for _ in entries[1:]]}
    with Server(answer) as there:
        out, ids, _ = deliver(there.url + "/bus", [{"key": str(i)} for i in range(10)] + [{"payload": b"[1]", "key": "x"}],
                              service="eventbridge", concurrency=1, **AWS)
        assert out[-1] == "impossible" and out[:-1].count("retry") == len(there.requests), out
        e = json.loads(there.requests[0].body)["Entries"][0]
        assert e["EventBusName"] == "bus" and e["Resources"][0].split(":")[2] in ids and json.loads(e["Detail"]), e


def test_pubsub_order():
    def answer(r):
        messages = json.loads(r.body)["messages"]
        assert len({m["orderingKey"] for m in messages}) == 1
        if any(base64.b64decode(m["data"]) == b'"BAD"' for m in messages):
            return 400, b"{}"
        return 200, {"messageIds": ["1"] * len(messages)}
    with Server(answer) as there:
        events = [{"key": str(i % 3), "payload": b'"BAD"' if i == 10 else b"%d" % i} for i in range(60)]
        out, _, _ = deliver(there.url + "/v1/projects/p/topics/t", events, service="pubsub")
        held = [i for i in range(60) if i % 3 == 1 and i >= 10]
        assert out[10] == "rejected" and [i for i, o in enumerate(out) if o != "acked"] == held, out
        assert {out[i] for i in held[1:]} <= {"skipped", "unknown"}
        assert there.requests[0].path == "/v1/projects/p/topics/t:publish" and len(there.requests) < 40


def test_servicebus_signature():
    key = base64.b64encode(b"k" * 32).decode()
    with Server(lambda r: (201, b"")) as there:
        events = [{"key": str(i % 2)} for i in range(20)]
        out, ids, _ = deliver(there.url + "/orders", events, service="servicebus", user="relay", password=key)
        assert out == ["acked"] * 20
        r = there.requests[0]
        f = dict(p.split("=", 1) for p in r.headers["authorization"].removeprefix("SharedAccessSignature ").split("&"))
        made = base64.b64encode(hmac.new(key.encode(), f"{f['sr']}\n{f['se']}".encode(), hashlib.sha256).digest()).decode()
        assert urllib.parse.unquote(f["sig"]) == made and urllib.parse.unquote(f["sr"]) == there.url + "/orders" and f["skn"] == "relay"
        messages = [m for r in there.requests for m in json.loads(r.body)]
        assert sorted(m["BrokerProperties"]["MessageId"] for m in messages) == sorted(ids)
        for r in there.requests:
            assert len({m["BrokerProperties"]["SessionId"] for m in json.loads(r.body)}) == 1 and r.path == "/orders/messages"


def test_servicebus_refusals():
    for status, said, outcome in ((403, b"<Detail>The message quota is exceeded: QuotaExceeded</Detail>", "retry"), (403, b"too large", "rejected"),
                                  (400, b"", "rejected"), (500, b"", "retry")):
        with Server(lambda r, a=(status, said): a) as there:
            out, _, _ = deliver(there.url + "/q", [{}], service="servicebus", user="relay", password="k" * 20)
            assert out == [outcome], (status, said, out)


def events_of(r):
    """The places of the events in a request of any service, from their payloads."""
    text = urllib.parse.unquote_plus(r.body.decode())
    text += "".join(base64.b64decode(data).decode() for data in re.findall('"data":"([A-Za-z0-9+/=]+)"', r.body.decode()))
    return [int(n) for n in re.findall(r'\\*"n\\*": (\d+)', text)]


def test_requests_are_bounded():
    """An event that would make a request larger than its service takes is in the next request, and only there."""
    def answer(r):
        n = len(events_of(r))
        if b"PublishBatch" in r.body:
            return 200, b"<Successful>" + b"".join(b"<member><Id>%d</Id></member>" % i for i in range(n)) + b"</Successful>"
        return 200, {"Successful": [{"Id": str(i)} for i in range(n)], "Entries": [{"EventId": "e"}] * n, "messageIds": ["1"] * n}

    # bytes of an event; events of which a request has room
    for path, size, room, options in (("/1/q", 60000, 4, {"service": "sqs", **AWS}), ("/bus", 60000, 4, {"service": "eventbridge", **AWS}),
                                      ("/arn:aws:sns:eu-central-1:1:t", 60000, 4, {"service": "sns", **AWS}),
                                      ("/q", 60000, 3, {"service": "servicebus", "user": "relay", "password": "k" * 20}),
                                      ("/v1/projects/p/topics/t", 1000000, 6, {"service": "pubsub"}),
                                      ("", 300000, 3, {"format": "cloudevents_batch"})):
        with Server(answer) as there:
            events = [{"key": str(i), "payload": b'{"n": %d, "x": "%s"}' % (i, b"x" * size)} for i in range(10)]
            out, _, _ = deliver(there.url + path, events, flags=0, concurrency=1, **options)
            assert out == ["acked"] * 10, (path, out)
            sent = [events_of(r) for r in there.requests]
            assert sum(sent, []) == list(range(10)) and max(map(len, sent)) == room, (path, sent)


def first_says(answer):
    """A server that sends that to its first request and closes the connection, and 200 to the others; its URL and connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    got = b""
                    while not got.endswith(b"{}"):
                        got += client.recv(65536)
                    seen.append(got)
                    client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" if seen[1:] else answer)
    threading.Thread(target=serve, daemon=True).start()
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}", seen


def test_answer_ends_in_its_headers():
    """The end of the connection is not the end of the headers, whatever the status says."""
    broken = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 299 \r\nX", b"HTTP/1.1 204 OK\r\nX: y\r\n",
              b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", b"HTTP/1.1 404 No\r\nContent-Le", b"HTTP/1.1 410 Gone\r\nX: y",
              b"HTTP/1.1 200 OK\r\n\rX: y\r\nContent-Length: 9", b"HTTP/1.1 200 OK\r\n\r\r\n", b"HTTP/1.1 200 OK\r\n\r",
              b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: y", b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\n"]
    for answer in broken:
        listener, url, seen = first_says(answer)
        with listener:
            w = start(url)
            w.hello()
            for expected in ("retry", "acked"):
                batch, _ = w.events([{"payload": b"{}"}])
                assert w.outcomes(batch, 1) == [expected], (answer, expected, w.notes)
                w.send("SETTLE", batch=batch)
            assert len(seen) == 2
            w.close()
    # HTTP/2: the HEADERS frame, :status 200, with neither END_HEADERS nor END_STREAM; with END_STREAM; with END_HEADERS
    for flags in (0, 1, 4):
        listener, url, seen = first_says(b"\0\0\0\4\0\0\0\0\0" + b"\0\0\1\1%c\0\0\0\1\x88" % flags)
        with listener:
            assert deliver(url, [{"payload": b"{}"}], http_version=2, timeout=2000)[0] == ["retry"], flags
    # whole, though the body ends with the connection
    for answer in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 204 OK\n\n", b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 201 OK\r\n\r\n"):
        listener, url, seen = first_says(answer)
        with listener:
            assert deliver(url, [{"payload": b"{}"}])[0] == ["acked"], answer


def test_one_attempt_is_one_request():
    """A kept connection ends when the request was read: no other request follows by itself, with a body or without."""
    def answer(r):
        if r.path == "/bad":
            r.connection.shutdown(socket.SHUT_RDWR)
        return 200, b""
    with Server(answer) as there:
        w = start(there.url + "/{aggregate_id}", concurrency=1)
        w.hello()
        for body in (b"", b"{}"):
            for key, outcome in (("good", "acked"), ("bad", "retry")):
                there.requests.clear()
                batch, _ = w.events([{"key": key, "payload": body}])
                assert w.outcomes(batch, 1) == [outcome] and len(there.requests) == 1, (key, body, w.notes, len(there.requests))
            assert "connection ended" in str(w.notes), w.notes
            w.send("SETTLE", batch=batch)
        w.close()


def test_unasked_answers():
    """A second answer to a request is not the answer to the next one, if it was there before the connection is used again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        w = start(f"http://127.0.0.1:{listener.getsockname()[1]}", concurrency=1)
        w.hello()
        kept = []                       # nobody reads what comes by these
        listener.settimeout(PATIENCE)
        for status in (200, 503, 200, 400):
            batch, _ = w.events([{"payload": b"{}"}])
            client, _ = listener.accept()
            kept.append(client)
            got = b""
            while not got.endswith(b"{}"):
                got += client.recv(65536)
            client.sendall(b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % status)
            assert w.outcomes(batch, 1) == [{200: "acked", 503: "retry", 400: "rejected"}[status]], (status, w.notes)
            w.send("SETTLE", batch=batch)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            while int.from_bytes(fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
                time.sleep(0.001)       # the program's side has it
        w.close()
    # without one a connection is used again
    with socket.create_server(("127.0.0.1", 0)) as listener:
        w = start(f"http://127.0.0.1:{listener.getsockname()[1]}", concurrency=1)
        w.hello()
        client = None
        for _ in range(3):
            batch, _ = w.events([{"payload": b"{}"}])
            client = client or listener.accept()[0]
            got = b""
            while not got.endswith(b"{}"):
                got += client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            assert w.outcomes(batch, 1) == ["acked"], w.notes
            w.send("SETTLE", batch=batch)
        w.close()


def test_outage_repeats_little():
    """What is acked before an outage is not sent again: its batch gets its answers first."""
    there = Server(lambda r: time.sleep(0.03) or (200, b""))
    w = start(there.url, concurrency=1)
    w.hello()
    batch, _ = w.events([{"key": str(i)} for i in range(50)], end=False)
    while len(there.requests) < 10:
        time.sleep(0.01)
    there.http.shutdown()
    there.http.server_close()
    for c in there.requests:
        # some have ended already
        with contextlib.suppress(OSError):
            c.connection.shutdown(socket.SHUT_RDWR)
    w.raw(codec.encode("END", batch=batch, count=50, row_id=1, k=0))
    out = []
    while (got := w.recv()) and got[0] != "FAILED":
        if got[0] == "RESULT":
            out.append(OUTCOMES[got[1]["outcome"]])
    assert got and OUTCOMES[got[1]["outcome"]] == "outage" and len(out) == 50 and out.count("acked") >= 9, (got, out)


def test_ends_blocks_one_by_one():
    with tempfile.TemporaryDirectory() as d:
        conformance.check_ends_blocks_one_by_one(program(d))


def main():
    only = [t for t in sys.argv[1:]]
    failures = 0 if only else conformance.run(program, "http ", ("ends_blocks_one_by_one",))
    tests = [f for n, f in sorted(globals().items()) if n.startswith("test_")]
    return 1 if run_tests(tests) or failures else 0


if __name__ == "__main__":
    sys.exit(main())
