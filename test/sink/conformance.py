#!/usr/bin/env python3
"""Hold a sink program against the rules of doc/sink-protocol.md, without a server.

    conformance.py [--option KEY=VALUE]... [--bad TYPE] [--transactional]
                   [--effects COMMAND] [--set-back COMMAND] PROGRAM

--effects is a shell command that prints the ids of the events in the target, one per
line, without dashes, each followed by a blank and the JSON of its payload, if you like; --set-back one that makes the target forget the last batch, effects
and position.  In options and commands {dir} is a directory that is new for each check.
Checks that need what is not given are not made; how many is said at the end.
"""
import argparse
import fcntl
import json
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback
import uuid

from sinklib import Worker, codec

REFUSED = ("retry", "rejected", "impossible")
FAILED = {v: k for k, v in codec.OUTCOMES.items()}


class Program:
    """A program under test, with a target of its own."""

    def __init__(self, path, options=None, bad=None, transactional=False, effects=None, set_back=None):
        self.path = path
        self.options = options or {}
        self.bad = bad                  # fields of an event that is refused; None: there is none
        self.transactional = transactional
        self.effects = effects          # returns id, hex, to payload in the target; payload None: not known
        self.set_back = set_back        # the target forgets the last batch

    def start(self, flags=0, ready=True, more=None, **kwargs):
        w = Worker(self.path, options={**self.options, **(more or {})}, flags=flags | codec.WANT_POSITION, **kwargs)
        if ready:
            w.hello()
        return w

    def finish(self, w, batch, count, settle=True):
        """All answers to a batch: outcomes by index."""
        outcomes = w.outcomes(batch, count)
        if settle and any(o != "acked" for o in outcomes):
            w.send("SETTLE", batch=batch)
        if self.transactional:
            w.expect("VERDICT", batch=batch, kind=codec.VERDICTS["committed"])
        return outcomes

    def commit(self, w, events, **kwargs):
        batch, ids = w.events(events, **kwargs)
        assert self.finish(w, batch, len(events)) == ["acked"] * len(events), "an event was refused"
        return {i.hex for i in ids}


def good(key="a"):
    return {"key": key}


def until_pong(w, nonce):
    """Frames that come before the PONG."""
    w.send("PING", nonce=nonce)
    names = []
    while True:
        got = w.recv()
        assert got, "end of file instead of PONG"
        if got == ("PONG", {"nonce": nonce}):
            return names
        assert got[0] != "PONG", f"another nonce: {got}"
        names.append(got[0])


def expect_failed(w, *outcomes):
    """FAILED with one of the outcomes, after whatever else; then the end, with status 0."""
    while True:
        got = w.recv()
        assert got, "end of file instead of FAILED"
        if got[0] == "FAILED":
            break
        assert got[0] != "READY" and (got[0] != "VERDICT" or got[1]["kind"] != 1), f"{got} instead of FAILED"
    assert FAILED[got[1]["outcome"]] in outcomes, f"{got} instead of {outcomes}"
    assert w.recv() is None, "a frame after FAILED"
    assert w.exit_status() == 0, "status is not 0"
    return got[1]


def check_says_ready(p):
    w = p.start(incarnation="i" * 80)
    r = w.ready
    both = codec.STORES_POSITION | codec.TRANSACTIONAL
    assert not r["has_position"], "a position in a new target"
    assert (r["capabilities"] & both == both) == p.transactional, "capabilities"
    assert r["credit_messages"] >= r["max_batch_events"] and r["credit_bytes"] >= r["max_batch_bytes"], \
        "the credit holds no batch"
    w.close()


def check_refuses_other_version(p):
    w = p.start(ready=False, hello=False)
    body = struct.pack(">IH", codec.MAGIC, 2) + b"whatever version 2 has here"
    w.raw(struct.pack(">IB", len(body) + 1, ord("H")) + body)
    expect_failed(w, "rejected")


def check_refuses_unknown_option(p):
    w = p.start(ready=False, more={"no_such_option": "s3cret"})
    f = expect_failed(w, "rejected")
    assert "no_such_option" in f["message"], "the message does not name the option"
    assert "s3cret" not in f["message"] + w.stderr(), "the value of an option is told"


def check_ends_at_end_of_file(p):
    p.start(ready=False, hello=False).close()
    w = p.start()
    w.raw(codec.encode("PING", nonce=7)[:6])
    w.close()
    w = p.start()
    w.events([good(str(i)) for i in range(200)])
    w.close()


def check_ends_after_bye(p):
    w = p.start()
    p.commit(w, [good()] * 3)
    w.send("BYE")
    while True:
        got = w.recv()
        if got is None:
            break
        assert got[0] in ("LOG", "CREDIT"), f"{got} after BYE"
    assert w.exit_status() == 0, "status is not 0"


def check_heeds_signals(p):
    w = p.start()
    w.proc.send_signal(signal.SIGINT)
    until_pong(w, 1)
    w.proc.send_signal(signal.SIGTERM)
    assert w.exit_status() == -signal.SIGTERM, "SIGTERM does not end it"


def event(batch=5, index=0, flags=0, headers_len=0, length=0, chunk=b"", kind="T"):
    return codec.encode("EVENT", batch=batch, index=index, flags=flags, event_id=uuid.uuid4().bytes, seq=1,
                        enqueued_at=0, committed_at=0, headers_len=headers_len, payload_len=length,
                        aggregate_type="t", aggregate_id="i", event_type=kind, content_type="", chunk=chunk)


def chunk(offset, data, batch=5, index=0):
    return codec.encode("CHUNK", batch=batch, index=index, offset=offset, data=data)


BROKEN = {
    "length 0": bytes(4),
    "length over the limit": b"\xff" * 16,
    "a type that is none": struct.pack(">IB", 1, ord("X")),
    "a type of sinks": codec.encode("PONG", nonce=1),
    "a second HELLO": codec.encode("HELLO", version=1, flags=0, relay="r", incarnation="", options=[]),
    "bytes left over": struct.pack(">IB", 10, ord("P")) + bytes(9),
    "a body that is too short": struct.pack(">IB", 5, ord("S")) + bytes(4),
    "an undefined flag": event(flags=8),
    "headers without their flag": event(headers_len=2, chunk=b"{}"),
    "more data than announced": event(length=1, chunk=b"xy"),
    "NUL in a string": event(kind="\0"),
    "batch 0": event(batch=0),
    "an index out of turn": event(index=1),
    "another batch before END": event() + event(batch=6),
    "an END without a batch": codec.encode("END", batch=1, count=1, row_id=0, k=0),
    "an END with another count": event() + codec.encode("END", batch=5, count=2, row_id=0, k=0),
    "a CHUNK without an event": chunk(0, b"x"),
    "a gap between CHUNKs": event(length=9, chunk=b"x") + chunk(2, b"x"),
    "a CHUNK past the end": event(length=2, chunk=b"x") + chunk(1, b"xy"),
    "an EVENT within another": event(length=9, chunk=b"x") + event(index=1),
    "a SETTLE of a batch to come": codec.encode("SETTLE", batch=9, first=0, last=0),
}


def check_dies_of_broken_frames(p):
    for what, data in BROKEN.items():
        w = p.start()
        w.raw(data)
        status = w.exit_status()
        text = w.stderr()
        assert status == 2, f"{what}: status {status} {text}"
        assert len(text.splitlines()) == 1, f"{what}: not one line: {text!r}"
        w.sock.close()


def check_answers_pings(p):
    w = p.start()
    batch, ids = w.events([good(str(i)) for i in range(50)], end=False)
    until_pong(w, 2 ** 64 - 1)
    w.send("END", batch=batch, count=50, row_id=1, k=0)
    until_pong(w, 2)
    w.close()
    w = p.start()
    w.raw(event(length=5, flags=codec.PAYLOAD_JSON, chunk=b'"12'))
    assert "RESULT" not in until_pong(w, 3), "an incomplete event was answered"
    w.close()


def check_answers_each_event_once(p):
    w = p.start()
    for n in (1, 2, 300):
        p.commit(w, [good(str(i)) for i in range(n)])
    if p.bad:
        batch, _ = w.events([good("q"), good("r"), {**p.bad, "key": "s"}, good("t"), good("u")])
        assert p.finish(w, batch, 5)[3:] == ["acked"] * 2
    first, _ = w.events([good("x")] * 2)
    second, _ = w.events([good("y")] * 3)
    seen = []
    verdicts = []
    while len(seen) < 5 or (p.transactional and len(verdicts) < 2):
        name, f = w.recv()
        if name == "RESULT":
            seen += [(f["batch"], i) for i in range(f["first"], f["last"] + 1)]
        elif name == "VERDICT":
            verdicts.append(f["batch"])
    assert sorted(seen) == [(first, 0), (first, 1), (second, 0), (second, 1), (second, 2)], seen
    assert "RESULT" not in until_pong(w, 1), "a result that nobody asked for"
    w.close()


def check_puts_chunks_together(p):
    w = p.start()
    big = b'{"x": "%s"}' % (b"y" * 300000)
    ids = p.commit(w, [{"payload": big, "headers": b'{"h": "1234567890"}'}, good()], chunk=7777)
    ids |= p.commit(w, [{"payload": b'{"x": "y"}', "headers": b'{"h": 1}'}], chunk=3)
    if p.effects:
        effects = p.effects()
        assert ids == set(effects), "an event is missing in the target"
        for payload in effects.values():
            assert payload is None or json.loads(payload).keys() <= {"x", "n"}, "parts are out of order"
    w.close()


def check_reads_bytes_one_by_one(p):
    w = p.start()
    data = codec.encode("PING", nonce=7) + event(batch=1, length=1, flags=codec.PAYLOAD_JSON, chunk=b"1") + \
        codec.encode("END", batch=1, count=1, row_id=1, k=0)
    for byte in data:
        w.raw(bytes([byte]))
        # until the program has read it
        while struct.unpack("i", fcntl.ioctl(w.sock, termios.TIOCOUTQ, bytes(4)))[0] > 0:
            time.sleep(0.001)
    w.expect("PONG", nonce=7)
    w.batch = 1
    assert p.finish(w, 1, 1) == ["acked"]
    w.close()


def check_gives_credit_back(p):
    w = p.start()
    left = [w.ready["credit_messages"], w.ready["credit_bytes"]]
    limits = [w.ready["max_batch_events"] or 100, w.ready["max_batch_bytes"] or 1 << 20]
    size = max(100, min(60000, limits[1] // 8, left[1] // 32))
    to_send = 5 * w.ready["credit_bytes"] // 2
    payload = b'{"x": "%s"}' % (b"y" * size)
    while to_send > 0:
        n = min(limits[0], 50, max(1, limits[1] // (size + 200)))
        while left[0] < n or left[1] < n * (size + 200):
            name, f = w.recv()      # TimeoutError: the stream stands still
            if name == "CREDIT":
                left = [left[0] + f["messages"], left[1] + f["bytes"]]
            else:
                assert name in ("RESULT", "VERDICT", "LOG"), (name, f)
        _, _ = w.events([{"payload": payload, "key": str(i)} for i in range(n)])
        used = n * (len(event(length=0)) + len(payload) + 20)
        left = [left[0] - n, left[1] - used]
        to_send -= used
    w.close()


def check_keeps_key_order(p):
    w = p.start(codec.KEY_ORDER)
    batch, _ = w.events([good("a"), {**p.bad, "key": "b"}, good("b"), good("c")])
    out = p.finish(w, batch, 4)
    # the second event of b may have been in flight when the first one was refused
    assert out[0] == out[3] == "acked" and out[1] in REFUSED and out[2] in ("skipped", "unknown"), out
    p.commit(w, [good("b"), good("a")])
    w.close()


def check_extends_the_block(p):
    w = p.start(codec.KEY_ORDER)
    one, _ = w.events([{**p.bad, "key": "a"}])
    two, _ = w.events([good("a"), good("b")])
    assert w.outcomes(one, 1)[0] in REFUSED
    w.send("SETTLE", batch=one)
    verdict = p.transactional and (lambda n: w.expect("VERDICT", batch=n, kind=1)) or (lambda n: None)
    verdict(one)
    # the second batch may have been in flight; unless it is taken back, its event may have an effect then
    held = ["skipped"] if p.transactional else ["skipped", "unknown"]
    out = w.outcomes(two, 2)
    assert out[0] in held and out[1] == "acked", f"what stands before the SETTLE is blocked: {out}"
    # settled is one, but not two: the event that was held back in it blocks the key
    three, _ = w.events([good("a")])
    w.send("SETTLE", batch=two)
    verdict(two)
    assert w.outcomes(three, 1) == ["skipped"], "an event that was held back extends the block"
    w.send("SETTLE", batch=three)
    verdict(three)
    p.commit(w, [good("a")])
    w.close()


def check_ends_blocks_one_by_one(p):
    """A SETTLE of a range ends the blocks of the keys whose last event it names.  A program that
    stores positions gets one SETTLE for a batch."""
    if p.transactional:
        return
    w = p.start(codec.KEY_ORDER)
    one, _ = w.events([{**p.bad, "key": "a"}, good("b"), good("a")])
    out = w.outcomes(one, 3)
    assert out[0] in REFUSED and out[1] == "acked" and out[2] in ("skipped", "unknown"), out
    w.send("SETTLE", batch=one, first=0, last=1)
    two, _ = w.events([good("a"), good("b")])
    assert w.outcomes(two, 2) == ["skipped", "acked"], "the last event of a is not settled"
    w.send("SETTLE", batch=one, first=2, last=2)
    three, _ = w.events([good("a"), {**p.bad, "key": "c"}])
    out = w.outcomes(three, 2)
    assert out[0] == "skipped" and out[1] in REFUSED, "an event was held back behind it"
    w.send("SETTLE", batch=two, first=0, last=0)
    w.send("SETTLE", batch=three, first=0, last=0)
    four, _ = w.events([good("a"), good("b"), good("c")])
    assert w.outcomes(four, 3) == ["acked", "acked", "skipped"], "the block of a has ended, and that of c has not"
    w.send("SETTLE", batch=three, first=1, last=1)
    w.send("SETTLE", batch=four, first=2, last=2)
    five, _ = w.events([good("c")])
    assert w.outcomes(five, 1) == ["acked"]
    w.close()


def check_covers_what_is_in_flight(p):
    w = p.start(codec.KEY_ORDER)
    with w.in_one_piece():
        one, ids = w.events([good("a")] * 3 + [{**p.bad, "key": "a"}] + [good("a"), good("b")] * 40)
        two, more = w.events([good("a")] * 30 + [good("b")])
    out = p.finish(w, one, 84)
    late = out[4::2]
    assert out[:3] == ["acked"] * 3 and out[3] in REFUSED and out[5::2] == ["acked"] * 40, out
    out += p.finish(w, two, 31)
    late += out[84:-1]
    assert set(late) <= {"skipped", "unknown"} and out[-1] == "acked", "an event behind a refused one was acked"
    if p.effects:
        assert set(p.effects()) == {i.hex for i, o in zip(ids + more, out) if o == "acked"}, \
            "an event behind a refused one has an effect"
    w.close()


def check_orders_no_keys_unasked(p):
    w = p.start()
    batch, _ = w.events([{**p.bad, "key": "a"}, good("a")])
    assert p.finish(w, batch, 2)[1] == "acked", "an event was held back"
    w.close()


def check_stores_the_position(p):
    w = p.start(incarnation="log-1/" + "f" * 74)
    p.commit(w, [good()], row_id=2 ** 63 - 1, k=2 ** 63 - 2)
    w.close()
    w = p.start(incarnation="log-2")
    r = w.ready
    assert (r["has_position"], r["incarnation"], r["row_id"], r["k"]) == \
        (1, "log-1/" + "f" * 74, 2 ** 63 - 1, 2 ** 63 - 2), r
    p.commit(w, [good()], row_id=5, k=6)
    p.commit(w, [good()], row_id=5, k=7)
    w.kill()
    w = p.start(relay="another")
    assert not w.ready["has_position"], "the position of another relay"
    w.close()
    w = p.start()
    assert (w.ready["incarnation"], w.ready["row_id"], w.ready["k"]) == ("log-2", 5, 7), w.ready
    w.close()


def check_sends_verdicts_after_results(p):
    w = p.start()
    batches = [w.events([good(str(i)), good("k")], row_id=1, k=i)[0] for i in range(4)]
    results = {b: 0 for b in batches}
    verdicts = []
    while len(verdicts) < 4:
        name, f = w.recv()
        if name == "RESULT":
            results[f["batch"]] += f["last"] - f["first"] + 1
        elif name == "VERDICT":
            assert results[f["batch"]] == 2, "a verdict before the results"
            verdicts.append(f["batch"])
    assert verdicts == batches, "verdicts out of order"
    w.close()


def check_never_waits_for_another_batch(p):
    w = p.start()
    with w.in_one_piece():
        one, _ = w.events([good("a"), good("b")])
        w.events([good("c")], end=False)
    assert p.finish(w, one, 2) == ["acked"] * 2
    w.close()


def check_does_shared_batches_again(p):
    """Batches that are there at once: refused events change nothing of the order of the answers."""
    w = p.start(codec.KEY_ORDER)
    contents = [[good("a"), good("b")], [good("c")], [good("d"), {**p.bad, "key": "b"}, good("b")],
                [good("b"), good("f")], [good("g")]]
    with w.in_one_piece():
        sent = [w.events(events, row_id=1, k=n) for n, events in enumerate(contents)]
    names = {v: k for k, v in codec.OUTCOMES.items()}
    answers = {batch: [None] * len(events) for (batch, _), events in zip(sent, contents)}
    left = list(answers)
    settled = 0
    while left:
        name, f = w.recv()
        if name == "RESULT":
            for i in range(f["first"], f["last"] + 1):
                assert answers[f["batch"]][i] is None, "a second result"
                answers[f["batch"]][i] = names[f["outcome"]]
        elif name == "VERDICT":
            refused = answers[left[0]] != ["acked"] * len(answers[left[0]])
            assert f["batch"] == left[0] and None not in answers[left[0]], "a verdict out of turn"
            assert f["kind"] == 1 and (not refused or settled == left[0]), "committed before its SETTLE"
            del left[0]
        if left and settled < left[0] and None not in answers[left[0]] and \
                answers[left[0]] != ["acked"] * len(answers[left[0]]):
            settled = left[0]
            w.send("SETTLE", batch=settled)
    outcomes = list(answers.values())
    assert outcomes[2][1] in REFUSED, outcomes
    outcomes[2][1] = "refused"
    assert outcomes == [["acked"] * 2, ["acked"], ["acked", "refused", "skipped"], ["skipped", "acked"], ["acked"]], \
        outcomes
    if p.effects:
        acked = {i.hex for (_, ids), out in zip(sent, outcomes) for i, o in zip(ids, out) if o == "acked"}
        assert set(p.effects()) == acked, "the target has other events than those acked"
    w.kill()
    w = p.start()
    assert (w.ready["row_id"], w.ready["k"]) == (1, 4), "the position is not the last batch's"
    w.close()


def check_stores_position_and_effects_together(p):
    """A kill at any time: the effects are those of the batches up to the stored position."""
    batches = []
    k = 0
    for _ in range(12):
        w = p.start()
        with w.in_one_piece():
            batches[k:] = [w.events([good(str(i)), good("k")], row_id=1, k=k + i + 1)[1] for i in range(8)]
        time.sleep(random.uniform(0, 0.03))
        w.kill()
        w = p.start()
        assert k <= w.ready["k"] <= k + 8, "a position that was never sent"
        k = w.ready["k"]
        w.close()
        assert set(p.effects()) == {i.hex for ids in batches[:k] for i in ids}, "position and effects differ"


def check_waits_for_settle(p):
    w = p.start()
    batch, _ = w.events([good(), {**p.bad, "key": "b"}], row_id=7)
    w.outcomes(batch, 2)
    assert "VERDICT" not in until_pong(w, 1), "committed before its SETTLE"
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()


def check_forgets_unfinished_batches(p):
    w = p.start()
    kept = p.commit(w, [good()], row_id=3)
    w.events([good()], end=False)
    until_pong(w, 1)
    w.kill()
    w = p.start()
    assert w.ready["row_id"] == 3, "a batch without END moved the position"
    batch, _ = w.events([good(), {**p.bad, "key": "b"}], row_id=4)
    w.outcomes(batch, 2)
    w.kill()
    w = p.start()
    assert w.ready["row_id"] == 3, "a batch without SETTLE moved the position"
    if p.effects:
        assert set(p.effects()) == kept, "an effect of an unfinished batch"
    w.close()


def check_leaves_refused_events_out(p):
    w = p.start(codec.KEY_ORDER)
    batch, ids = w.events([good("a"), {**p.bad, "key": "b"}, good("b"), good("c")])
    p.finish(w, batch, 4)
    assert set(p.effects()) == {ids[0].hex, ids[3].hex}, "the target has other events than those acked"
    w.close()


def check_fences_predecessors(p):
    old = p.start()
    kept = p.commit(old, [good()], row_id=1)
    new = p.start()
    assert new.ready["row_id"] == 1
    old.events([good()], row_id=2)
    expect_failed(old, "fenced")
    kept |= p.commit(new, [good()], row_id=3)
    if p.effects:
        assert set(p.effects()) == kept, "an effect of the older program"
    new.close()


def check_looks_and_changes_nothing(p):
    w = p.start()
    kept = p.commit(w, [good()], row_id=1)
    looker = Worker(p.path, options=p.options, hello=False)
    looker.send("LOOK", version=codec.VERSION, flags=codec.WANT_POSITION, relay="orders", incarnation="log-1",
                options=list(p.options.items()))
    found = []
    while (got := looker.recv()) is not None:
        assert got[0] in ("FOUND", "LOG"), f"{got} after LOOK"
        found += [got[1]] if got[0] == "FOUND" else []
    status = looker.exit_status()
    assert (status == 0 and found) or (status == 2 and not found), f"status {status}: {looker.stderr()}"
    assert all(f["ok"] for f in found), f"found in a sound target: {found}"
    kept |= p.commit(w, [good()], row_id=2)
    w.close()
    if p.effects:
        assert set(p.effects()) == kept, "an effect of the look"
    if p.transactional:
        w = p.start()
        assert w.ready["row_id"] == 2, "another position"
        w.close()


def check_notices_a_set_back_target(p):
    w = p.start()
    p.commit(w, [good()], row_id=1)
    p.commit(w, [good()], row_id=2)
    p.set_back()
    before = p.effects() if p.effects else None
    w.events([good()], row_id=3)
    expect_failed(w, "outage")
    w = p.start()
    assert w.ready["row_id"] != 2, "the target was not set back"
    assert before is None or p.effects() == before, "the batch was applied"
    w.close()


NEEDS_BAD = ("keeps_key_order", "extends_the_block", "ends_blocks_one_by_one", "covers_what_is_in_flight", "orders_no_keys_unasked",
             "does_shared_batches_again", "waits_for_settle", "forgets_unfinished_batches", "leaves_refused_events_out")
NEEDS_TRANSACTIONS = ("stores_the_position", "sends_verdicts_after_results", "does_shared_batches_again",
                      "stores_position_and_effects_together", "waits_for_settle", "forgets_unfinished_batches",
                      "leaves_refused_events_out", "fences_predecessors", "notices_a_set_back_target")
NEEDS_SINGLE_EVENTS = ("ends_blocks_one_by_one",)    # a transaction is settled as a whole
NEEDS_EFFECTS = ("leaves_refused_events_out", "stores_position_and_effects_together")
CHECKS = {name[len("check_"):]: f for name, f in globals().items() if name.startswith("check_")}


def possible(p):
    """The names of the checks that can be made."""
    for name in CHECKS:
        if not ((name in NEEDS_BAD and p.bad is None) or (name in NEEDS_TRANSACTIONS and not p.transactional) or
                (name in NEEDS_SINGLE_EVENTS and p.transactional) or (name in NEEDS_EFFECTS and p.effects is None) or
                (name == "notices_a_set_back_target" and p.set_back is None)):
            yield name


def run(make, title="", leave_out=()):
    """Check programs that make(directory) returns; the number of checks that failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="idem-conform.") as d:
        names = [n for n in possible(make(d)) if n not in leave_out]
    for name in names:
        with tempfile.TemporaryDirectory(prefix="idem-conform.") as d:
            started = time.monotonic()
            try:
                CHECKS[name](make(d))
                print(f"ok {title}{name} ({time.monotonic() - started:.1f} s)", flush=True)
            except Exception as e:      # noqa: each check stands alone
                failed += 1
                traceback.print_exc()
                print(f"not ok {title}{name}: {type(e).__name__}: {e}", flush=True)
    return failed


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    a.add_argument("--bad", metavar="TYPE")
    a.add_argument("--refuses-nothing", action="store_true")
    a.add_argument("--transactional", action="store_true")
    a.add_argument("--effects", metavar="COMMAND")
    a.add_argument("--set-back", metavar="COMMAND")
    a.add_argument("program")
    args = a.parse_args()

    def make(d):
        def command(text):
            return lambda: {line.partition(" ")[0]: line.partition(" ")[2] or None for line in
                            subprocess.check_output(text.replace("{dir}", d), shell=True, text=True).splitlines()}
        bad = {"type": args.bad} if args.bad else {"payload": b"\xff\0", "json": False}
        if args.refuses_nothing:
            bad = None
        return Program(pathlib.Path(args.program).resolve(),
                       dict(o.replace("{dir}", d).split("=", 1) for o in args.option), bad, args.transactional,
                       args.effects and command(args.effects), args.set_back and command(args.set_back))

    left_out = len(CHECKS) - len(list(possible(make(""))))
    failed = run(make)
    if left_out:
        print(f"{left_out} checks were not made, for want of what they need")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
