"""Mutated answers into the program, which was built with the sanitizers of the compiler.

FUZZ_SECONDS=3600 runs it for longer, FUZZ_SEED=n repeats a run; the default is 30 s and another seed
each time.  The answers of the services, and those of token servers, are mutated, too.
"""
import os
import random
import time

import misbehave
from clouds import PubSub
from misbehave import head, raw
from receiver import Receiver
from target import Ended, at_once, sanitized_program, sink, start
from tokenserver import TokenServer, grant

SECONDS = float(os.environ.get("FUZZ_SECONDS", "30"))
LOGIN = {"user": "AKIAIOSFODNN7EXAMPLE", "password": "secret", "region": "eu-central-1"}
ENTRY = (b'{"Id":"%d","MessageId":"m","Code":"x","SenderFault":true,"Message":"because \\u20ac \\ud83d\\ude00",'
         b'"EventId":"e","ErrorCode":null}')
MEMBER = b"<member><Id>%d</Id><Code>c</Code><SenderFault>true</SenderFault><Message>m &lt;</Message></member>"
BODIES = [
    b"", b"delivered", b"\xe2\x82\xac" * 400, bytes(range(256)) * 4,
    b'{"Successful":[' + b",".join(ENTRY % i for i in range(10)) + b'],"Failed":[' + ENTRY % 3 + b"]}",
    b'{"FailedEntryCount":1,"Entries":[' + b",".join(ENTRY % i for i in range(10)) + b"]}",
    b'{"messageIds":["1","2","3"]}', b'{"__type":"com.amazonaws.sqs#RequestThrottled","message":"later"}',
    b"<PublishBatchResponse><PublishBatchResult><Successful>" + b"".join(MEMBER % i for i in range(10)) + b"</Successful><Failed>"
    + MEMBER % 2 + b"</Failed></PublishBatchResult></PublishBatchResponse>",
    b'{"error":{"code":400,"message":"because","status":"INVALID_ARGUMENT"}}',
    b'{"access_token":"abc","token_type":"Bearer","expires_in":3600}', b"[" * 5000, b'{"a":' * 3000, b'"' + b"\\u0000" * 500 + b'"',
]
HEADERS = [b"Retry-After: 1", b"Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", b"Retry-After: 99999999999999999999", b"Retry-After: -1",
           b"Content-Type: application/json; charset=\xff", b"Location: http://127.0.0.1/", b"Set-Cookie: a=b", b"Content-Encoding: gzip",
           b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"Trailer: X", b"X: " + b"y" * 3000, b"Date: \x00",
           b"WWW-Authenticate: Basic realm=\"x\"", b"Transfer-Encoding: gzip, chunked", b" folded: line"]
STATUSES = [200, 200, 200, 201, 204, 301, 400, 401, 403, 404, 408, 410, 413, 425, 429, 500, 503, 599, 999, 100, 101, 0, 99999]


class Mutator:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def answer(self):
        """The bytes of an answer, and how it ends."""
        rng = self.rng
        body = self.mutate(rng.choice(BODIES)) if rng.random() < 0.7 else rng.choice(BODIES)
        headers = rng.sample(HEADERS, rng.choice((0, 0, 1, 1, 2, 4)))
        if rng.random() < 0.3:
            headers.append(b"Transfer-Encoding: chunked")
            at = rng.randrange(len(body) + 1)
            body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:at], body[at:]) if p) + b"0\r\n\r\n"
        else:
            headers.append(b"Content-Length: %d" % (len(body) + rng.choice((0,) * 12 + (-1, 1, 100))))
        data = b"HTTP/1.1 %d Whatever\r\n" % rng.choice(STATUSES) + b"\r\n".join(headers) + b"\r\n\r\n" + body
        if rng.random() < 0.3:
            data = self.mutate(data)
        return data, rng.choice((None, None, "close", "close", "reset"))

    def mutate(self, data):
        rng, out = self.rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(out) + 1)
            end = min(at + rng.choice((1, 1, 2, 8, 64)), len(out))
            kind = rng.randrange(6)
            if kind == 0:
                out[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
            elif kind == 1:
                del out[at:end]
            elif kind == 2:
                out[at:at] = out[at:end] * rng.choice((1, 3, 50))
            elif kind == 3:
                del out[at:]
            elif kind == 4:
                out[at:at] = rng.choice((b"\0", b"\r\n", b"\xff", b'"', b"\\", b"\\u", b"<", b"</", b"]", b"}", b"4294967296", b"-1"))
            else:
                out[at:end] = rng.choice(BODIES)[:300]
        return bytes(out)


def clean(w, seed):
    """The program is well, or has ended as a program may."""
    text = w.stderr()
    if w.proc.poll() is not None:
        w.kill()        # closes its descriptors
    assert "Sanitizer" not in text and "runtime error" not in text, f"FUZZ_SEED={seed}: {text}"


def fuzz(seed, seconds, **options):
    """How many answers were sent in that time."""
    mutator, answered, starts = Mutator(seed), 0, 0
    sanitized_program()
    end = time.monotonic() + seconds

    def answer(r):
        data, how = mutator.answer()
        return raw(data, end=how)
    with Receiver(answer) as there:
        given = {"url": there.url + "/x", "timeout": 400, "connect_timeout": 400, "concurrency": 8, **options}
        given["url"] = there.url + given.pop("path", "/x")
        while time.monotonic() < end:
            w = start(given, hello=False, program=sanitized_program())
            starts += 1
            try:
                w.hello_or_ended()
                while time.monotonic() < end:
                    answered += len(w.all([{"key": str(i), "payload": b'{"n": 1}'} for i in range(40)]))
                w.close()
            except Ended as ended:
                assert ended.outcome in ("outage", "rejected", "halted"), ended
                assert w.recv() is None and w.exit_status() == 0, f"FUZZ_SEED={seed}: {w.stderr()}"
            except AssertionError:
                clean(w, seed)
                raise
            else:
                continue
            clean(w, seed)
    print(f"# FUZZ_SEED={seed}: {len(there.requests)} answers, {answered} events, {starts} programs")
    return len(there.requests)


def new_seed():
    return os.environ.get("FUZZ_SEED") or str(random.randrange(1 << 32))


def test_folded_first_header():
    """libcurl before 8.1.0 reads freed memory at such an answer, if its handle was used before: no handle is used twice."""
    folded = raw(b"HTTP/1.1 200 OK\r\n folded: line\r\nContent-Length: 0\r\n\r\n")
    plain = raw(head(200, "Content-Length: 0", "X-Some: header"))
    with Receiver(lambda r: folded if r.number % 2 else plain) as there, \
            sink(there, concurrency=1, timeout=1000, program=sanitized_program()) as w:
        try:
            for i in range(20):
                w.one(key=str(i))
        except Ended as ended:
            assert w.exit_status() == 0, ended
        clean(w, "folded")


def test_fuzz_services():
    seed = new_seed()
    ways = [{}, {"format": "cloudevents_batch"}, {"service": "sqs", "path": "/0/orders", **LOGIN},
            {"service": "sns", "path": "/arn:aws:sns:eu-central-1:0:orders", **LOGIN}, {"service": "eventbridge", "path": "/shop", **LOGIN},
            {"service": "servicebus", "path": "/orders", "user": "relay", "password": "key"}]
    for way in ways:
        assert fuzz(f"{seed}/{way.get('service') or way.get('format', 'plain')}", SECONDS / (len(ways) + 2), **way) > 0, way


def test_fuzz_pubsub():
    seed = new_seed()
    mutator = Mutator(f"{seed}/pubsub")
    sanitized_program()
    with PubSub() as there:
        there.hook = lambda r: raw(*mutator.answer()[:1], end="close")
        given = {"service": "pubsub", "url": there.url, "service_account": there.account(), "timeout": 400}
        end = time.monotonic() + SECONDS / 8
        while time.monotonic() < end:
            w = start(given, hello=False, program=sanitized_program())
            try:
                w.hello_or_ended()
                while time.monotonic() < end:
                    w.all([{"key": str(i)} for i in range(40)])
                w.close()
            except Ended:
                assert w.recv() is None and w.exit_status() == 0, f"FUZZ_SEED={seed}: {w.stderr()}"
                clean(w, seed)
        assert there.receiver.requests, "nothing was published"
        print(f"# FUZZ_SEED={seed}: {len(there.receiver.requests)} answers")


def test_fuzz_tokens():
    """The answers of a token server are mutated."""
    seed = new_seed()
    mutator = Mutator(f"{seed}/tokens")
    rng = mutator.rng

    def answer(r):
        return mutator.answer()[0] if rng.random() < 0.7 else mutator.mutate(grant("tok"))
    sanitized_program()
    end, programs = time.monotonic() + SECONDS / 8, 0
    with TokenServer(answer) as tokens, Receiver() as there:
        while time.monotonic() < end:
            w = start({"url": there.url + "/x", "auth": "oauth2", "token_url": tokens.url, "user": "u", "password": "p", "timeout": 500,
                       "connect_timeout": 500}, hello=False, program=sanitized_program())
            programs += 1
            try:
                w.hello_or_ended()
                w.one()
                w.close()
            except Ended:
                assert w.recv() is None and w.exit_status() == 0, f"FUZZ_SEED={seed}: {w.stderr()}"
                clean(w, seed)
    print(f"# FUZZ_SEED={seed}: {programs} programs")


def test_sanitized_program_misbehaving_receivers():
    """The broken answers of the other tests, at the sanitizers."""
    def check(name, answer):
        with Receiver(lambda r: answer) as there, sink(there, timeout=700, program=sanitized_program()) as w:
            try:
                w.one()
            except Ended:
                w.exit_status()
            clean(w, name)
    at_once(check, [*misbehave.BROKEN.items(), ("endless", misbehave.endless_body()),
                    ("early", raw(head(100) * 3 + head(200, "Content-Length: 0")))])
