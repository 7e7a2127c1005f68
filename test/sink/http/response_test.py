"""What is read of an answer, and what of it is kept with the event."""
import asyncio

import misbehave
from misbehave import head, raw
from receiver import Receiver, Reply
from target import Ended, at_once, once, sink


def test_first_kilobyte_is_kept():
    text = "the reason is: " + "".join(f"{i:05} " for i in range(1000))
    for status, outcome in ((400, "rejected"), (503, "retry")):
        got, _ = once(Reply(status, text.encode()))
        assert got.outcome == outcome, got
        if outcome == "rejected":
            assert "the reason is: 00000 00001" in got.message and "00150 " in got.message, got.message
        # the frame carries 1024 bytes at most
        assert len(got.message.encode()) <= 1024, len(got.message.encode())


def test_text_is_made_fit():
    """One line of valid UTF-8 without control characters, cut between characters."""
    bodies = [bytes(range(256)) * 5, b"a\r\nb\0c\x1b[31md", "\u20ac".encode() * 1000, b"\xff\xfe" * 600, b"x" + "\U0001f600".encode() * 400,
              b"\xe2\x82", b"", b"\n" * 2000, "\u202e\u2066evil".encode()]
    for body in bodies:
        got, _ = once(Reply(422, body))
        assert got.outcome == "rejected" and "422" in got.message, got
        assert all(c.isprintable() or ord(c) > 0x7f for c in got.message), repr(got.message)
        assert "\n" not in got.message and "\0" not in got.message and len(got.message.encode()) <= 1024


def test_body_of_a_chunked_answer():
    got, _ = once(lambda r: raw(head(400, "Transfer-Encoding: chunked") + b"4\r\nthis\r\n6\r\n one i\r\n9\r\ns refused\r\n0\r\n\r\n"))
    assert got.outcome == "rejected" and "this one is refused" in got.message, got


def test_long_answers_are_read_in_part():
    """An answer over the cap: the status counts, and the rest is not read."""
    def check(status, outcome):
        with Receiver(lambda r: misbehave.endless_body(status)) as there, sink(there, timeout=5000, max_response_bytes=65536) as w:
            try:
                got = w.one()
            except Ended as ended:
                got = ended
            assert got.outcome in outcome, (status, got)
            assert there.sent < 8 << 20, there.sent
            w.is_awake()
    at_once(check, [(200, ("acked", "retry", "unknown")), (400, ("rejected",)), (503, ("retry",))])


class Early(Receiver):
    """Answers the head of a request, and never reads the body."""

    async def talk(self, c):
        await c.reader.readuntil(b"\r\n\r\n")
        await c.send(self.answer)
        await asyncio.Event().wait()


def test_answer_before_the_body_was_read():
    """It counts when it is whole, though libcurl goes on sending the body until the timeout."""
    large = b'"' + b"x" * (24 << 20) + b'"'

    def check(answer, outcome):
        with Early(answer) as there, sink(there, timeout=2000, connect_timeout=2000) as w:
            got = w.one(payload=large)
            assert got.outcome == outcome, (answer, got)
    for answer, outcome in ((head(204), "acked"), (head(200, "Content-Length: 2") + b"ok", "acked"),
                            (head(200, "Content-Length: 3") + b"ok", "retry"), (head(200), "retry")):
        check(answer, outcome)


def test_cap_is_kept():
    body = b"r" * 60000
    got, _ = once(Reply(200, body), max_response_bytes=65536)
    assert got.outcome == "acked", got
    got, _ = once(Reply(400, b"reason " + b"r" * 5000000), max_response_bytes=1024)
    assert got.outcome == "rejected" and "reason" in got.message, got


def memory(pid):
    """MB that the program has had at most; 0 if it has ended."""
    for line in open(f"/proc/{pid}/status", encoding="ascii"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0


def test_memory_is_bounded():
    """Long answers on all connections at once, again and again."""
    with Receiver(Reply(400, b"x" * (4 << 20))) as there, sink(there, concurrency=32) as w:
        for i in range(4):
            w.all([{"key": f"{i}.{k}"} for k in range(32)])
        assert memory(w.proc.pid) < 120, memory(w.proc.pid)


def test_endless_headers():
    def check(answer):
        with Receiver(lambda r: answer) as there, sink(there, timeout=3000) as w:
            try:
                got = w.one()
            except Ended as ended:
                got = ended
            assert got.outcome != "acked", got
            assert memory(w.proc.pid) < 120
    at_once(check, [[misbehave.endless_headers(s)] for s in (200, 400, 503)] + [[misbehave.long_header(3 << 20)]])


def test_compressed_answers():
    """Nobody asked for one; what comes is not unpacked."""
    import gzip
    got, there = once(Reply(400, gzip.compress(b"x" * 50000000), "Content-Encoding: gzip"))
    assert got.outcome == "rejected" and there.requests[0].header("accept-encoding") is None, got
