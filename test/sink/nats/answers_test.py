"""Answers that no server should give, from a server of the test: a golden conversation, lies, and mutations."""
import base64
import json
import os
import random
import re
import time
import uuid

from nats.fake import HOLD, OPTIONS, POSITION, Fake, usual
from nats.target import SINK, failed, sanitized_program
from sinklib import PATIENCE, Worker, codec, until

ID = uuid.UUID("634a77f9-ad53-4281-a536-92a75ba8376f")


def start(fake, program=SINK, hello=True, **options):
    w = Worker(program, options={"servers": fake.address, **OPTIONS, **{k: str(v) for k, v in options.items()}}, flags=codec.WANT_POSITION)
    if hello:
        w.hello()
    return w


def test_golden_conversation():
    """What the program sends, word by word."""
    with Fake() as there:
        w = start(there)
        assert (w.ready["has_position"], w.ready["incarnation"], w.ready["row_id"], w.ready["k"]) == (1, "log-0", 7, 1), w.ready
        batch, _ = w.events([{"id": ID, "key": "A-7", "type": "T", "payload": b'{"a": 1}', "headers": b'{"trace": "t"}'}], row_id=8, k=2)
        assert w.outcomes(batch, 1) == ["acked"]
        w.expect("VERDICT", batch=batch, kind=1)
        w.close()
    first, event, last = there.messages
    fixed = {"Nats-Expected-Stream": "S", "Nats-Rollup": "sub", "Nats-TTL": "never"}
    assert first == ("idempotency.position.orders", {**fixed, "Nats-Expected-Last-Subject-Sequence": "9"},
                     b'{"relay":"orders","epoch":5,"incarnation":"log-0","row_id":7,"k":1}'), first
    number = event[1].pop("Nats-Batch-Id")
    assert re.fullmatch("[0-9a-f]{32}", number) and event == ("S.T", {
        "trace": "t", "Content-Type": "application/json", "Event-Id": str(ID), "Event-Type": "T", "Aggregate-Type": "order",
        "Aggregate-Id": "A-7", "Nats-Batch-Sequence": "1"}, b'{"a": 1}'), event
    assert last == ("idempotency.position.orders", {
        **fixed, "Nats-Expected-Last-Subject-Sequence": "10", "Nats-Batch-Id": number, "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"},
        b'{"relay":"orders","epoch":5,"incarnation":"log-1","row_id":8,"k":2}'), last


def test_answers_that_are_none():
    """An answer that does not say that the batch is stored is none that says so."""
    for lie in (b"", b"{}", b"[]", b"null", b"OK", b'{"stream":"S"}', b'{"stream":"S","seq":0}', b'{"seq":"x"}', b'{"stream":"S","seq":11}', b'{"stream":"S","seq":11,"count":1}', b'{"error":{}}',
                b'{"error":{"code":503,"err_code":10077,"description":"s3cret-password is full"},"seq":10}'):
        with Fake(lambda kind, subject, headers, data: lie if "Nats-Batch-Commit" in headers else usual(kind, subject, headers, data)) as there:
            w = start(there, user="u", password="s3cret-password")
            w.events([{"type": "T"}], row_id=8)
            assert failed(w)["outcome"] == "outage", lie


def test_refusals():
    """A refusal that no event explains is aborted, so that the relay looks for the event; the start's is its own."""
    no = json.dumps({"error": {"code": 400, "err_code": 10999, "description": "no"}}).encode()
    with Fake(lambda kind, subject, headers, data: no if "Nats-Batch-Commit" in headers else usual(kind, subject, headers, data)) as there:
        w = start(there)
        batch, _ = w.events([{"type": "T"}], row_id=8)
        assert w.outcomes(batch, 1) == ["acked"]
        w.expect("VERDICT", batch=batch, kind=codec.VERDICTS["aborted"])
        assert failed(w)["outcome"] == "outage"
    with Fake(lambda kind, *rest: no if kind == "publish" else usual(kind, *rest)) as there:
        assert failed(start(there, hello=False))["outcome"] == "rejected"
    with Fake(headers=False) as there:
        assert failed(start(there, hello=False))["outcome"] == "rejected"


def mutated(draw, data):
    data = bytearray(data)
    for _ in range(draw.choice((0, 1, 1, 3))):
        at = draw.randrange(len(data) + 1)
        what = draw.randrange(4)
        if what == 0:
            del data[at:at + draw.randrange(1, 20)]
        elif what == 1:
            data[at:at] = draw.choice((b'"', b"{", b"}", b"[", b"\\u0000", b"\0", b"\xff", b"9" * 30, b"-", b'\\', b"," * 5))
        elif what == 2 and at < len(data):
            data[at] = draw.randrange(256)
        else:
            data[at:at] = data[:at]
    return bytes(data)


def test_mutated_answers():
    """The program, with the sanitizers, ends as the protocol has it, whatever the answers are."""
    seed = int(os.environ.get("SEED") or time.time_ns() % 1000000)
    draw = random.Random(seed)
    error = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 9"}}
    seconds = float(os.environ.get("FUZZ_SECONDS") or 10)
    until = time.monotonic() + seconds
    runs = ready = 0

    def answer(kind, *rest):
        base = json.dumps(error).encode() if kind == "publish" and draw.random() < 0.3 else usual(kind, *rest)
        if kind == "get" and draw.random() < 0.5:
            record = mutated(draw, json.dumps(POSITION).encode())
            return json.dumps({"message": {"subject": "p", "seq": 9, "data": base64.b64encode(record).decode()}}).encode()
        return mutated(draw, base) if draw.random() < 0.4 else base

    while runs == 0 or time.monotonic() < until:
        runs += 1
        with Fake(answer) as there:
            w = start(there, program=sanitized_program(), hello=False, timeout=1000)
            name = None
            while name not in ("READY", "FAILED"):
                got = w.recv(PATIENCE)
                assert got, (seed, runs, w.stderr())
                name = got[0]
            if name == "READY":
                ready += 1
                w.ready = got[1]
                try:
                    w.events([{"type": "T", "key": str(i)} for i in range(3)], row_id=8)
                    w.sock.shutdown(1)
                except OSError:
                    pass
            while w.recv(PATIENCE) is not None:
                pass
            status = w.exit_status()
            assert status == 0 and "Sanitizer" not in w.stderr(), (seed, runs, status, w.stderr())
            w.sock.close()
    print(f"# seed {seed}: {runs} runs, {ready} READY")


def test_order_at_least_once():
    """The server refuses an event and would take the next one of its key: that one is not sent."""
    no = json.dumps({"error": {"code": 400, "err_code": 10054, "description": "message size exceeds maximum allowed"}}).encode()
    with Fake(lambda kind, subject, headers, data: no if data == b"1" else usual(kind, subject, headers, data)) as there:
        w = Worker(SINK, options={"servers": there.address, **OPTIONS, "delivery": "at_least_once"}, flags=codec.KEY_ORDER)
        w.hello()
        batch, _ = w.events([{"key": k, "type": "T", "payload": b"%d" % i} for i, k in enumerate("bababc")])
        assert w.outcomes(batch, 6) == ["acked", "rejected", "acked", "skipped", "acked", "acked"], w.notes
        w.close()
        assert [data for _, _, data in there.messages] == [b"0", b"1", b"5", b"2", b"4"], there.messages
        assert all(h["Nats-Msg-Id"] and h["Nats-Expected-Stream"] == "S" for _, h, _ in there.messages)


def test_key_refused_in_the_middle():
    """Messages of many batches are in flight; behind one that is refused none of its key is sent, until its SETTLE."""
    no = json.dumps({"error": {"code": 400, "err_code": 10054, "description": "message size exceeds maximum allowed"}}).encode()
    with Fake(lambda kind, subject, headers, data: HOLD if kind == "publish" else usual(kind, subject, headers, data)) as there:
        w = Worker(SINK, options={"servers": there.address, **OPTIONS, "delivery": "at_least_once"}, flags=codec.KEY_ORDER)
        w.hello()
        one, two, three = (w.events([{"key": k[0], "type": "T", "payload": k.encode()} for k in keys])[0]
                           for keys in (("a0", "b0"), ("a1", "c0", "a2"), ("b1", "a3", "d0")))
        until("other keys of later batches are sent", lambda: sorted(there.held) == [b"a0", b"b0", b"c0", b"d0"])
        there.release(b"c0")
        there.release(b"a0")
        until("the next of the key is sent at once", lambda: b"a1" in there.held)
        assert b"b1" not in there.held, "an answer counts for its own event"
        there.release(b"b0")
        assert w.outcomes(one, 2) == ["acked", "acked"], w.notes
        until("the next of the other key, too", lambda: b"b1" in there.held)
        there.release(b"a1", no)
        assert w.outcomes(two, 3) == ["rejected", "acked", "skipped"], w.notes
        there.release(b"d0")
        there.release(b"b1")
        assert w.outcomes(three, 3) == ["acked", "skipped", "acked"], w.notes
        w.send("SETTLE", batch=two, first=0, last=2)
        four, _ = w.events([{"key": "a", "type": "T", "payload": b"a4"}])
        assert w.outcomes(four, 1) == ["skipped"], w.notes
        for batch, last in ((three, 2), (four, 0)):
            w.send("SETTLE", batch=batch, first=0, last=last)
        five, _ = w.events([{"key": "a", "type": "T", "payload": b"a5"}])
        until("the key goes on", lambda: b"a5" in there.held)
        there.release(b"a5")
        assert w.outcomes(five, 1) == ["acked"], w.notes
        w.close()
        assert [data for _, _, data in there.messages if data[:1] == b"a"] == [b"a0", b"a1", b"a5"], there.messages


def test_refusal_before_an_outage():
    """What the server refused is told, also if it then takes nothing any more."""
    def answer(kind, subject, headers, data):
        if kind != "publish":
            return usual(kind, subject, headers, data)
        return {b"0": HOLD, b"1": json.dumps({"error": {"code": 400, "err_code": 10999, "description": "no"}}).encode()}.get(
            data, json.dumps({"error": {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}}).encode())
    with Fake(answer) as there:
        w = Worker(SINK, options={"servers": there.address, **OPTIONS, "delivery": "at_least_once"}, flags=codec.KEY_ORDER)
        w.hello()
        batch, _ = w.events([{"key": str(i), "type": "T", "payload": b"%d" % i} for i in range(3)])
        assert w.outcomes(batch, 3) == ["unknown", "rejected", "unknown"], w.notes
        assert failed(w)["outcome"] == "outage"


def test_nothing_is_sent_before_the_settle():
    """The server drops a batch that is silent for ten seconds, and a position must not pass what is recorded nowhere."""
    with Fake() as there:
        w = start(there)
        there.messages.clear()
        batch, _ = w.events([{"key": "a", "type": "T"}, {"key": "b", "type": "a b"}], row_id=8)
        assert w.outcomes(batch, 2) == ["acked", "impossible"]
        for nonce in range(500):        # time enough for a program that would not wait
            w.send("PING", nonce=nonce)
            w.expect("PONG", nonce=nonce)
        assert not there.messages, there.messages
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        w.close()
        assert len(there.messages) == 2
