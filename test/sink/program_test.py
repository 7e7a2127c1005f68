#!/usr/bin/env python3
"""Drive the null sink and the test sink, and so the framework of the programs."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid

from sinklib import HERE, PATIENCE, PYTEST_SINK, Worker, codec, look, run_tests

BIN = pathlib.Path(os.environ.get("SINK_BINDIR", HERE.parent.parent / "src/sink/bin"))
NULL = BIN / "idempotency-sink-null"


def null(**kwargs):
    w = Worker(NULL, **kwargs)
    w.hello()
    return w


def broken(w, text):
    """The program must end with status 2 and say why."""
    status = w.exit_status()
    err = w.stderr()
    assert status == 2, f"status {status}: {err}"
    assert text in err, f"{text!r} not in {err!r}"
    w.sock.close()


def test_null_acks():
    w = null()
    for count in (1, 2, 1000):
        batch, _ = w.events([{} for _ in range(count)])
        assert w.outcomes(batch, count) == ["acked"] * count
    w.close()


def test_null_looks():
    assert look(NULL) == ({"options": (1, "", "")}, 0)
    found, status = look(NULL, {"stats_interval": "-1"})
    ok, problem, remedy = found["options"]
    assert status == 0 and not ok and "stats_interval" in problem and "ALTER SERVER" in remedy, found


def test_nothing_comes_behind_a_look():
    w = Worker(NULL, hello=False)
    with w.in_one_piece():
        w.send("LOOK", version=codec.VERSION, flags=0, relay="r", incarnation="", options=[])
        w.events([{}])
    broken(w, "behind a LOOK")


def test_look_is_unknown_to_others():
    assert look(PYTEST_SINK) == ({}, 2)
    assert look(HERE / "idempotency-sink-sqlite") == ({}, 2)


def test_null_acks_before_end():
    w = null()
    batch, _ = w.events([{}, {}], end=False)
    assert w.outcomes(batch, 2) == ["acked"] * 2
    w.send("END", batch=batch, count=2, row_id=0, k=0)
    batch, _ = w.events([{}])
    assert w.outcomes(batch, 1) == ["acked"]
    w.close()


def test_null_chunks():
    w = null()
    batch, _ = w.events([{"payload": b"x" * 1000000, "json": False, "headers": b"{}"}, {}])
    assert w.outcomes(batch, 2) == ["acked"] * 2
    w.close()


def test_incomplete_event_is_not_acked():
    w = null()
    w.raw(codec.encode("EVENT", batch=1, index=0, flags=0, event_id=bytes(16), seq=1,
                       enqueued_at=0, committed_at=0, headers_len=0, payload_len=5,
                       aggregate_type="", aggregate_id="", event_type="", content_type="",
                       chunk=b"1234"))
    w.send("PING", nonce=1)
    w.expect("PONG", nonce=1)
    w.send("CHUNK", batch=1, index=0, offset=4, data=b"5")
    assert w.outcomes(1, 1) == ["acked"]
    w.close()


def test_bytes_one_by_one():
    w = null()
    data = codec.encode("PING", nonce=7) + codec.encode(
        "EVENT", batch=1, index=0, flags=0, event_id=bytes(16), seq=1, enqueued_at=0,
        committed_at=0, headers_len=0, payload_len=1, aggregate_type="t", aggregate_id="i",
        event_type="e", content_type="", chunk=b"x")
    for byte in data:
        w.raw(bytes([byte]))
    w.expect("PONG", nonce=7)
    assert w.outcomes(1, 1) == ["acked"]
    w.close()


def test_credit_comes_back():
    w = null()
    sent = got = 0
    for _ in range(6):
        events = [{"payload": b"x" * 60000, "json": False} for _ in range(100)]
        batch, _ = w.events(events)
        sent += len(events)
        left = len(events)
        while left:
            name, f = w.recv()
            if name == "CREDIT":
                got += f["messages"]
            elif name == "RESULT":
                left -= f["last"] - f["first"] + 1
    assert got > 0 and got <= sent, got
    w.close()


def test_bye():
    w = Worker(NULL, options={"stats_interval": "3600000"})
    w.hello()
    now = int(time.time() * 1e6)
    batch, _ = w.events([{"committed_at": now}] * 3)
    w.send("BYE")
    assert w.outcomes(batch, 3) == ["acked"] * 3
    while True:
        name, f = w.recv()
        if name == "LOG":
            break
    assert "events=3" in f["message"] and "samples=3" in f["message"], f
    assert w.recv() is None
    assert w.exit_status() == 0


def test_stats_interval():
    w = Worker(NULL, options={"stats_interval": "50"})
    w.hello()
    w.events([{}])
    while w.recv()[0] != "LOG":
        pass
    w.close()


def test_eof_before_hello():
    w = Worker(NULL, hello=False)
    w.close()


def test_eof_in_a_frame():
    w = null()
    w.raw(codec.encode("PING", nonce=7)[:6])
    w.close()


def test_eof_with_results_unread():
    w = null()
    w.events([{} for _ in range(5000)])
    w.close()


def test_sigint_is_ignored_and_sigterm_ends():
    w = null()
    w.proc.send_signal(signal.SIGINT)
    w.send("PING", nonce=1)
    w.expect("PONG", nonce=1)
    w.proc.send_signal(signal.SIGTERM)
    assert w.exit_status() == -signal.SIGTERM
    w.sock.close()


def test_other_version():
    # version 2 cannot be encoded by our codec with another layout; magic and
    # version stay in place, the rest may be anything
    w = Worker(NULL, hello=False)
    body = struct.pack(">IH", codec.MAGIC, 2) + b"whatever version 2 has here"
    w.raw(struct.pack(">IB", len(body) + 1, ord("H")) + body)
    f = w.expect("FAILED", outcome=codec.OUTCOMES["rejected"], sqlstate="0A000")
    assert "version 2" in f["message"], f
    assert w.recv() is None
    assert w.exit_status() == 0


def test_unknown_option():
    w = Worker(NULL, options={"nonsense": "s3cret"})
    f = w.expect("FAILED", outcome=codec.OUTCOMES["rejected"], sqlstate="HV00D")
    assert "nonsense" in f["message"] and "stats_interval" in f["message"], f
    assert "s3cret" not in f["message"] + w.stderr()
    assert w.exit_status() == 0


def test_bad_option_value():
    w = Worker(NULL, options={"stats_interval": "often"})
    f = w.expect("FAILED", outcome=codec.OUTCOMES["rejected"], sqlstate="HV024")
    assert "must be an integer" in f["message"] and "often" not in f["message"], f


def test_not_started_by_a_worker():
    done = subprocess.run([NULL], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2 and b"stream socket" in done.stderr, done


def test_broken_frames():
    for data, text in (
            (b"GET / HTTP/1.1\r\n\r\n", "invalid frame length"),
            (codec.encode("PONG", nonce=1), "unknown frame type"),
            (codec.encode("HELLO", version=1, flags=0, relay="r", incarnation="", options=[]),
             "second HELLO"),
            (codec.encode("END", batch=1, count=1, row_id=0, k=0), "END does not match"),
            (codec.encode("CHUNK", batch=1, index=0, offset=0, data=b"x"), "CHUNK does not"),
            (codec.encode("SETTLE", batch=9, first=0, last=0), "SETTLE of events to come"),
            (codec.encode("BYE") + codec.encode("BYE"), "frame after BYE")):
        w = null()
        w.raw(data)
        broken(w, text)


def test_frame_before_hello():
    w = Worker(NULL, hello=False)
    w.send("PING", nonce=1)
    broken(w, "first frame is no HELLO")


def test_events_out_of_turn():
    def event(batch, index, length=0, chunk=b""):
        return codec.encode("EVENT", batch=batch, index=index, flags=0, event_id=bytes(16),
                            seq=1, enqueued_at=0, committed_at=0, headers_len=0,
                            payload_len=length, aggregate_type="", aggregate_id="",
                            event_type="", content_type="", chunk=chunk)
    end = codec.encode("END", batch=5, count=1, row_id=0, k=0)
    for data, text in (
            (event(5, 1), "index out of turn"),
            (event(5, 0) + event(6, 1), "another batch before END"),
            (event(5, 0) + end + event(5, 0), "did not rise"),
            (event(0, 0), "number is 0"),
            (event(5, 0, 9, b"x") + event(5, 1), "incomplete"),
            (event(5, 0, 2, b"x") + codec.encode("CHUNK", batch=5, index=0, offset=1, data=b"xy"),
             "passes the end"),
            (event(5, 0, 9, b"x") + codec.encode("CHUNK", batch=5, index=0, offset=2, data=b"x"),
             "does not continue")):
        w = null()
        w.raw(data)
        broken(w, text)


def test_event_before_ready_has_no_credit():
    w = Worker(NULL, hello=False)
    w.raw(codec.encode("HELLO", version=1, flags=0, relay="r", incarnation="", options=[]) +
          codec.encode("EVENT", batch=1, index=0, flags=0, event_id=bytes(16), seq=1,
                       enqueued_at=0, committed_at=0, headers_len=0, payload_len=0,
                       aggregate_type="", aggregate_id="", event_type="", content_type="",
                       chunk=b""))
    broken(w, "without credit")


def pytest_sink(directory, flags=0, **options):
    log = pathlib.Path(directory) / "log"
    w = Worker(PYTEST_SINK, options={"file": str(log), **options}, flags=flags)
    w.hello()
    return w, lambda: [json.loads(x) for x in log.read_text().splitlines()]


def test_pytest_sink_records():
    with tempfile.TemporaryDirectory() as d:
        w, log = pytest_sink(d)
        batch, ids = w.events([{"payload": b'{"a": 1}', "headers": b'{"h": 2}', "key": "k"},
                               {"payload": b"\0\xff" * 100000, "json": False,
                                "content_type": "image/x"}])
        assert w.outcomes(batch, 2) == ["acked"] * 2
        events = [x for x in log() if "event" in x]
        assert [x["event"] for x in events] == [i.hex for i in ids]
        assert events[0]["payload"] == '{"a": 1}' and events[0]["headers"] == '{"h": 2}'
        assert events[1]["payload_hex"] == "00ff" * 100000
        assert events[1]["content_type"] == "image/x" and events[1]["headers"] is None
        w.close()


def test_pytest_sink_key_order():
    with tempfile.TemporaryDirectory() as d:
        w, _ = pytest_sink(d, flags=codec.KEY_ORDER, reject_type="BAD")
        batch, _ = w.events([{"key": "a"}, {"key": "b", "type": "BAD"}, {"key": "b"}, {"key": "a"}])
        assert w.outcomes(batch, 4) == ["acked", "rejected", "skipped", "acked"]
        # before its SETTLE in the stream, b stays blocked
        batch, _ = w.events([{"key": "b"}])
        assert w.outcomes(batch, 1) == ["skipped"]
        w.send("SETTLE", batch=batch)
        batch, _ = w.events([{"key": "b"}])
        assert w.outcomes(batch, 1) == ["acked"]
        w.close()


def test_pytest_sink_position():
    with tempfile.TemporaryDirectory() as d:
        w, log = pytest_sink(d, position="on", reject_type="BAD")
        assert w.ready["has_position"] == 0
        batch, _ = w.events([{}, {}], row_id=11, k=3)
        assert w.outcomes(batch, 2) == ["acked"] * 2
        w.expect("VERDICT", batch=batch, kind=1)
        batch, _ = w.events([{}, {"type": "BAD"}], row_id=12)
        assert w.outcomes(batch, 2) == ["acked", "rejected"]
        assert not any(x.get("row_id") == 12 for x in log())
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
        w.events([{}], end=False)
        w.kill()
        w, log = pytest_sink(d, position="on")
        assert (w.ready["row_id"], w.ready["k"], w.ready["incarnation"]) == (12, 0, "log-1")
        assert len([x for x in log() if x.get("outcome") == "acked"]) == 3
        w.close()


def test_pytest_sink_commits_whole():
    """A kill in the middle of the write of a commit: the next program takes its events back."""
    for tail in (b'{"at": 1', b'{"commit": 2, "incarn', b""):
        with tempfile.TemporaryDirectory() as d:
            w, log = pytest_sink(d, position="on")
            batch, _ = w.events([{}, {}])
            w.outcomes(batch, 2)
            w.expect("VERDICT", batch=batch, kind=1)
            w.close()
            path = pathlib.Path(d) / "log"
            whole = path.read_bytes()
            event = next(line for line in whole.splitlines() if b'"outcome": "acked"' in line)
            path.write_bytes(whole + (event + b"\n") * 3 + tail)
            w, log = pytest_sink(d, position="on")
            assert sum(e.get("outcome") == "acked" for e in log()) == 2, log()
            w.close()


def test_pytest_sink_misbehaves():
    with tempfile.TemporaryDirectory() as d:
        w, _ = pytest_sink(d, crash_type="X")
        w.events([{"type": "X"}])
        assert w.exit_status() == -signal.SIGKILL
        w, _ = pytest_sink(d, hang_type="X")
        w.events([{"type": "X"}])
        w.send("PING", nonce=1)
        try:
            w.recv(0.5)
            raise AssertionError("a hanging sink answered")
        except TimeoutError:
            w.kill()
        w, _ = pytest_sink(d, mute_type="X")
        batch, _ = w.events([{"type": "X"}])
        w.send("PING", nonce=1)
        w.expect("PONG", nonce=1)
        w.close()
        w, _ = pytest_sink(d, failed_type="X")
        w.events([{"type": "X"}])
        w.expect("FAILED", outcome=codec.OUTCOMES["outage"])


def test_pytest_sink_retry_times():
    with tempfile.TemporaryDirectory() as d:
        w, _ = pytest_sink(d, retry_type="R", retry_times="2")
        event = {"type": "R", "id": uuid.uuid4()}
        for expected in ("retry", "retry", "acked"):
            batch, _ = w.events([event])
            assert w.outcomes(batch, 1) == [expected]
        w.close()


if __name__ == "__main__":
    sys.exit(run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")]))
