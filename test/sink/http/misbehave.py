"""Answers that no receiver should give.  Each is a coroutine function of connection and request, for Receiver's answer."""
import asyncio

from receiver import Reply

BODY = b"x" * 100


def after(seconds, status=200):
    """The answer comes late."""
    async def answer(c, r):
        await asyncio.sleep(seconds)
        await c.send(Reply(status).bytes())
    return answer


def raw(*pieces, end=None, pause=0):
    """Send the pieces; then go on, "hang", "close" or "reset"."""
    async def answer(c, r):
        for piece in pieces:
            await c.send(piece)
            await asyncio.sleep(pause)
        if end == "hang":
            await c.hang()
        elif end == "close":
            c.close()
        elif end == "reset":
            # what was sent is read before the RST comes, most times
            await asyncio.sleep(0.02)
            c.reset()
    return answer


def head(status=200, *headers):
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *headers]).encode("latin-1") + b"\r\n\r\n"


def trickle(status=200, pause=0.2):
    """A byte at a time: there is progress, and no end in time."""
    return raw(*(bytes([b]) for b in head(status, *(f"X-{i}: {'x' * 50}" for i in range(20)), "Content-Length: 0")), pause=pause)


def endless(piece, status=200, *headers):
    """A body or a head that never ends."""
    async def answer(c, r):
        c.closing = True
        c.receiver.sent = 0
        await c.send("\r\n".join([f"HTTP/1.1 {status} Whatever", *headers]).encode() + b"\r\n")
        while True:
            await c.send(piece)
            c.receiver.sent += len(piece)
    return answer


CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"


def endless_body(status=200):
    return endless(CHUNK, status, "Transfer-Encoding: chunked", "")


def endless_headers(status=200):
    return endless(b"".join(b"X-%d: %s\r\n" % (i, b"x" * 1000) for i in range(60)), status)


def long_header(size, status=200):
    return raw(head(status, "X-Long: " + "x" * size, "Content-Length: 0"))


def wrong_length(says, body=BODY, status=200):
    """Content-Length says something else than what comes; then the connection ends."""
    return raw(head(status, f"Content-Length: {says}") + body, end="close")


def too_much(status=200):
    """Content-Length is less than what comes, on a connection that goes on."""
    return raw(head(status, "Content-Length: 5") + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 3)


def continues(times, status=200, code=100):
    """Interim answers before the last."""
    return raw(*[head(code)] * times, Reply(status).bytes())


def closed_behind(status=200):
    """The connection ends behind an answer that promised to keep it."""
    return raw(head(status, "Content-Length: 0", "Connection: keep-alive", "Keep-Alive: timeout=600"), end="close")


def closed_under(first=1):
    """Each connection takes so many requests, and ends under the next one."""
    async def answer(c, r):
        if r.number >= first:
            c.reset()
        else:
            await c.send(Reply(200).bytes())
    return answer


# What a client must not take for a delivery: name -> answer.  libcurl alone takes some of it
# for one: the end of the connection is the end of the headers to it.
TAKEN_BY_CURL = {"closes in the headers", "closes behind the status line", "closes behind the length",
                 "a header begins with a bare CR", "closes in the headers behind an interim answer"}
BROKEN = {
    "hangs": raw(end="hang"),
    "hangs in the status line": raw(b"HTTP/1.1 20", end="hang"),
    "hangs in the headers": raw(b"HTTP/1.1 200 OK\r\nContent-Le", end="hang"),
    "hangs in the body": raw(head(200, "Content-Length: 1000") + BODY, end="hang"),
    "hangs in a chunk": raw(head(200, "Transfer-Encoding: chunked") + b"3e8\r\n" + BODY, end="hang"),
    "closes": raw(end="close"),
    "closes in the status line": raw(b"HTTP/1.1 20", end="close"),
    "resets": raw(end="reset"),
    "closes in the headers": raw(b"HTTP/1.1 200 OK\r\nContent-Le", end="close"),
    "closes behind the status line": raw(b"HTTP/1.1 200 OK\r\n", end="close"),
    "closes behind the length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", end="close"),
    "a header begins with a bare CR": raw(b"HTTP/1.1 200 OK\r\n\rX: y\r\nContent-Length: 9\r\n\r\n", end="close"),
    "refuses and closes in the headers": raw(b"HTTP/1.1 400 No\r\nContent-Le", end="close"),
    "closes in the headers behind an interim answer": raw(head(100) + b"HTTP/1.1 200 OK\r\nX: y", end="close"),
    # no body is to come, and yet the answer is not whole
    "hangs in the headers of 204": raw(b"HTTP/1.1 204 OK\r\nX: y\r\n", end="hang"),
    "hangs behind the length of nothing": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", end="hang"),
    "resets in the headers": raw(b"HTTP/1.1 200 OK\r\nContent-Le", end="reset"),
    "resets in the body": raw(head(200, "Content-Length: 1000") + BODY, end="reset"),
    "closes before the length": wrong_length(1000),
    "closes in a chunk": raw(head(200, "Transfer-Encoding: chunked") + b"3e8\r\n" + BODY, end="close"),
    "wrong chunk": raw(head(200, "Transfer-Encoding: chunked") + b"no number\r\n" + BODY, end="close"),
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n" * 4, end="close"),
    "HTTP/0.9": raw(b"<html>delivered</html>\r\n", end="close"),
    "no number of a length": raw(head(200, "Content-Length: many") + BODY, end="close"),
    "a negative length": raw(head(200, "Content-Length: -1") + BODY, end="close"),
    "a great length": raw(head(200, "Content-Length: 99999999999999999999999") + BODY, end="hang"),
    "no status": raw(b"HTTP/1.1 \r\n\r\n", end="close"),
    "no number of a status": raw(b"HTTP/1.1 2OO OK\r\nContent-Length: 0\r\n\r\n", end="close"),
    "another version": raw(b"HTTP/7.3 200 OK\r\nContent-Length: 0\r\n\r\n", end="close"),
    "a byte at a time": trickle(),
    "a long header": long_header(400000),
    "endless headers": endless_headers(),
    "interim answers only": raw(*[head(103)] * 50, end="hang"),
    "NUL in a header": raw(b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 0\r\n\r\n", end="close"),
}
