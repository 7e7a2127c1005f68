#!/usr/bin/env python3
"""A receiver of webhooks that answers as the test says, and remembers what it got.

    receiver.py PORT JOURNAL [SLOWEST]      until it is killed; SLOWEST: ms that an answer takes at most

A receiver with a journal is durable: it appends a line for each request, and syncs the file
before it answers.  So what it said 2xx to is in the journal, whatever kills it.  HTTP/1.1;
HTTP/2 is in http2.py.  The answers that break rules are in misbehave.py.
"""
import asyncio
import collections
import contextlib
import json
import os
import queue
import random
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse


class Request:
    def __init__(self, method, target, headers, body, connection=0, number=0):
        self.method = method
        self.target = target
        self.headers = headers          # [(name, value)], as they came
        self.body = body
        self.connection = connection    # which connection of the receiver it came by
        self.number = number            # which request of this connection it is
        self.at = time.monotonic()
        self.version = "1.1"

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def header(self, name):
        """The value of a header that comes at most once."""
        found = self.all(name)
        assert len(found) <= 1, f"{name}: {found}"
        return found[0] if found else None

    @property
    def path(self):
        return self.target.partition("?")[0]

    @property
    def parts(self):
        """The decoded parts of the path."""
        return [urllib.parse.unquote(p) for p in self.path.split("/")[1:]]

    @property
    def id(self):
        return self.header("webhook-id")

    @property
    def key(self):
        """The last part of the path: the tests' URLs end with {aggregate_id}."""
        return self.parts[-1]

    @property
    def form(self):
        return dict(urllib.parse.parse_qsl(self.body.decode("ascii"), strict_parsing=True)) if self.body else {}

    def json(self):
        return json.loads(self.body)


class Reply:
    def __init__(self, status=200, body=b"", *headers, reason="Whatever"):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        self.status, self.body, self.headers, self.reason = status, body, headers, reason

    def bytes(self):
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        if self.status not in (204, 304):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, *self.headers]).encode("latin-1") + b"\r\n\r\n" + self.body


class Journal:
    """A file of JSON lines.  A thread writes what waits, syncs once, and says so to all who wait."""

    def __init__(self, path):
        self.file = open(path, "ab", buffering=0)
        # a kill may have cut the last line off
        if os.path.getsize(path) and not self.ends_whole(path):
            self.file.write(b"\n")
        self.waiting = queue.Queue()
        threading.Thread(target=self._write, daemon=True).start()

    @staticmethod
    def ends_whole(path):
        with open(path, "rb") as f:
            f.seek(-1, os.SEEK_END)
            return f.read(1) == b"\n"

    async def append(self, **entry):
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self.waiting.put((json.dumps(entry).encode() + b"\n", loop, done))
        await done

    def _write(self):
        while True:
            taken = [self.waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    taken.append(self.waiting.get_nowait())
            self.file.write(b"".join(line for line, _, _ in taken))
            os.fsync(self.file.fileno())
            for _, loop, done in taken:
                loop.call_soon_threadsafe(done.set_result, None)


def read_journal(path):
    """The entries.  A line that a kill cut off does not count."""
    with open(path, "rb") as f:
        for line in f:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


class Connection:
    """A client's connection, for answers that are more than a Reply."""

    def __init__(self, receiver, reader, writer, number):
        self.receiver, self.reader, self.writer, self.number = receiver, reader, writer, number
        self.requests = 0
        self.closing = False

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def hang(self):
        """Say nothing until the client hangs up."""
        self.closing = True
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass

    def reset(self):
        """RST instead of FIN."""
        self.closing = True
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self):
        self.closing = True
        self.writer.close()

    async def request(self):
        """The next request; None at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return None
        lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, version = lines[0].split(" ")
        assert version == "HTTP/1.1", version
        headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines[1:])]
        r = Request(method, target, headers, b"", self.number, self.requests)
        if (r.header("expect") or "").lower() == "100-continue" and self.receiver.continues:
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if r.header("transfer-encoding"):
            r.body = await self._chunks()
        else:
            r.body = await self.reader.readexactly(int(r.header("content-length") or 0))
        self.requests += 1
        return r

    async def _chunks(self):
        body = b""
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            piece = await self.reader.readexactly(size + 2)
            if size == 0:
                return body
            body += piece[:-2]


class Receiver:
    """answer(request) gives a status, a Reply, bytes, or a coroutine function of connection and request."""

    def __init__(self, answer=200, journal=None, tls=None, host="127.0.0.1", port=0, continues=True):
        """tls: an ssl.SSLContext."""
        self.answer = answer
        self.journal = Journal(journal) if journal else None
        self.continues = continues
        self.requests = []
        self.attempts = collections.Counter()
        self.busy = collections.Counter()   # key -> its requests without an answer
        self.overlaps = []                  # keys that had two
        self.most = 0                       # requests without an answer, at most
        self.connections = 0
        self.reached = []                   # the address of each connection at this end
        self.open = 0                       # connections whose socket is open
        self.tls = tls
        self.tasks = set()
        self.loop = asyncio.new_event_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.sock = socket.create_server((host, port), family=family, backlog=512)
        self.port = self.sock.getsockname()[1]
        self.host = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if tls else ''}://{self.host}:{self.port}"
        self.thread = threading.Thread(target=self._run, daemon=True)
        ready = threading.Event()
        self.loop.call_soon(ready.set)
        self.thread.start()
        assert ready.wait(30)

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._listen())
        self.loop.run_forever()

    async def _listen(self):
        self.server = await asyncio.start_server(self._client, sock=self.sock, ssl=self.tls, limit=1 << 20)

    async def _client(self, reader, writer):
        self.connections += 1
        self.reached.append(writer.get_extra_info("sockname")[0])
        self.open += 1
        self.tasks.add(asyncio.current_task())
        c = Connection(self, reader, writer, self.connections)
        try:
            await self.talk(c)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            self.tasks.discard(asyncio.current_task())
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()
            # close() leaves the socket to the loop's next turn
            self.loop.call_soon(self._ended)

    def _ended(self):
        self.open -= 1

    async def talk(self, c):
        while not c.closing:
            r = await c.request()
            if r is None:
                return
            with self.in_flight(r):
                await self.note(r)
                await self.say(c, r)

    @contextlib.contextmanager
    def in_flight(self, r):
        key = r.key
        self.requests.append(r)
        self.busy[key] += 1
        if self.busy[key] > 1:
            self.overlaps.append(key)
        self.most = max(self.most, sum(self.busy.values()))
        try:
            yield
        finally:
            self.busy[key] -= 1
            if not self.busy[key]:
                del self.busy[key]

    async def note(self, r):
        name = r.id or "?"
        self.attempts[name] += 1
        r.attempt = self.attempts[name]
        if self.journal:
            await self.journal.append(id=name, key=r.key, path=r.path, at=time.time(), attempt=r.attempt,
                                      body=r.body.decode("utf-8", "replace"))

    async def say(self, c, r):
        said = self.answer(r) if callable(self.answer) else self.answer
        if callable(said):
            await said(c, r)
            return
        if isinstance(said, int):
            said = Reply(said)
        if isinstance(said, Reply):
            said = said.bytes()
        await c.send(said)

    def ids(self):
        return [r.id for r in self.requests]

    def forget(self):
        self.requests.clear()
        self.overlaps.clear()
        self.most = 0

    def stop(self):
        """Close everything: the next connection is refused."""
        def end():
            self.server.close()
            for task in self.tasks:
                task.cancel()
            self.loop.call_later(0.05, self.loop.stop)
        if self.loop.is_running():
            self.loop.call_soon_threadsafe(end)
            self.thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def main():
    port, journal, *slowest = sys.argv[1:]
    most = float(slowest[0]) / 1000 if slowest else 0

    async def soon(c, r):
        await asyncio.sleep(random.random() * most)
        await c.send(Reply(200).bytes())
    Receiver(lambda r: soon, journal=journal, port=int(port))
    threading.Event().wait()


if __name__ == "__main__":
    main()
