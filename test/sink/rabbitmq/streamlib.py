"""A client of RabbitMQ's stream protocol for the tests, and AMQP 1.0 messages taken apart."""
import socket
import struct

CODES = {1: "ok", 2: "no stream", 5: "exists", 6: "not available", 8: "login refused", 12: "no vhost", 16: "no right", 18: "no publisher"}
(DECLARE, PUBLISH, CONFIRM, ERROR, SEQUENCE, DELETE_PUBLISHER, SUBSCRIBE, DELIVER, CREDIT, STORE_OFFSET, _, UNSUBSCRIBE, CREATE, DELETE, METADATA,
 UPDATE, PEER, HANDSHAKE, AUTHENTICATE, TUNE, OPEN, CLOSE, HEARTBEAT) = range(1, 24)
ANSWER = 0x8000
FIRST, LAST, OFFSET = 1, 2, 4


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">H", len(data)) + data


def frame(key, body=b"", correlation=None, code=None):
    head = struct.pack(">HH", key, 1)
    if correlation is not None:
        head += struct.pack(">I", correlation)
    if code is not None:
        head += struct.pack(">H", code)
    return struct.pack(">I", len(head) + len(body)) + head + body


class Refused(Exception):
    """A code of the server that is not ok."""


class Client:
    """A connection that blocks."""

    def __init__(self, port, user="admin", password="admin", timeout=60):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.file = self.sock.makefile("rb")
        self.correlation = 0
        self.confirmed = set()
        self.chunks = []
        self.end = 0
        self.ask(PEER, struct.pack(">I", 0))
        self.ask(HANDSHAKE)
        self.ask(AUTHENTICATE, string("PLAIN") + struct.pack(">I", len(user) + len(password) + 2) + f"\0{user}\0{password}".encode())
        self.sock.sendall(frame(TUNE | ANSWER, struct.pack(">II", 1 << 20, 0)))
        self.ask(OPEN, string("/"))

    def recv(self):
        head = self.file.read(4)
        if len(head) < 4:
            raise ConnectionError("the server has closed the connection")
        data = self.file.read(struct.unpack(">I", head)[0])
        return struct.unpack_from(">H", data)[0], data[4:]

    def take(self):
        """A frame that is no answer, or the answer."""
        key, body = self.recv()
        if key == DELIVER:
            self.chunks.append(body)
        elif key == CONFIRM:
            n, = struct.unpack_from(">I", body, 1)
            self.confirmed.update(struct.unpack_from(f">{n}Q", body, 5))
        elif key == ERROR:
            raise Refused(CODES.get(struct.unpack_from(">H", body, 13)[0]))
        return key, body

    def ask(self, key, body=b""):
        self.correlation += 1
        self.sock.sendall(frame(key, body, self.correlation))
        while True:
            got, answer = self.take()
            if got == key | ANSWER:
                break
        if key == METADATA:
            return answer[4:]
        code, = struct.unpack_from(">H", answer, 4)
        if code != 1:
            raise Refused(CODES.get(code, code))
        return answer[6:]

    def create(self, stream, **arguments):
        pairs = [string(k.replace("_", "-")) + string(v) for k, v in arguments.items()]
        self.ask(CREATE, string(stream) + struct.pack(">I", len(pairs)) + b"".join(pairs))

    def delete(self, stream):
        self.ask(DELETE, string(stream))

    def sequence(self, name, stream):
        return struct.unpack(">Q", self.ask(SEQUENCE, string(name) + string(stream)))[0]

    def available(self, stream):
        """Is there a leader?  Other requests would make a server of 3.10 close the connection, and soon all."""
        answer = self.ask(METADATA, struct.pack(">I", 1) + string(stream))
        return string(stream) + b"\0\1" in answer

    def declare(self, stream, name="", number=7):
        self.ask(DECLARE, struct.pack(">B", number) + string(name) + string(stream))

    def publish(self, *entries, number=7, wait=True):
        """Entries are (publishing id, bytes behind it): see message() and batch()."""
        self.confirmed.difference_update(i for i, _ in entries)
        self.sock.sendall(frame(PUBLISH, struct.pack(">BI", number, len(entries)) + b"".join(struct.pack(">Q", i) + e for i, e in entries)))
        while wait and not {i for i, _ in entries} <= self.confirmed:
            self.take()

    def chunks_from(self, stream, offset_type=FIRST, offset=0):
        """The chunks from there to the last one that can be read now, as (offset, type, entries); self.end is behind it."""
        tail = self._subscribe(stream, 200, LAST, 0)
        if not tail:
            return []
        self.end = tail[-1][0] + tail[-1][1]
        out = []
        for first, _, kind, entries in self._subscribe(stream, 201, offset_type, offset, self.end):
            out.append((first, kind, entries))
        return out

    def _subscribe(self, stream, number, offset_type, offset, until=None):
        self.chunks = []
        spec = struct.pack(">H", offset_type) + (struct.pack(">Q", offset) if offset_type == OFFSET else b"")
        self.ask(SUBSCRIBE, struct.pack(">B", number) + string(stream) + spec + struct.pack(">HI", 1, 0))
        # an answer behind the subscription's: the first chunk has come, if there is one
        self.ask(SEQUENCE, string("nobody") + string(stream))
        out = []
        while True:
            while self.chunks:
                out.append(read_chunk(self.chunks.pop(0)[1:]))
            if until is None or not out or out[-1][0] + out[-1][1] >= until:
                break
            self.sock.sendall(frame(CREDIT, struct.pack(">BH", number, 1)))
            while not self.chunks:
                self.take()
        self.ask(UNSUBSCRIBE, struct.pack(">B", number))
        return out

    def entries(self, stream):
        """The entries of the stream, as bytes."""
        return [e for _, kind, entries in self.chunks_from(stream) if kind == 0 for e in entries]

    def messages(self, stream):
        return [m for e in self.entries(stream) for m in messages_of(e)]

    def close(self):
        self.file.close()
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def message(data):
    """An entry of one message."""
    return struct.pack(">I", len(data)) + data


def batch(*messages):
    """An entry of several."""
    data = b"".join(struct.pack(">I", len(m)) + m for m in messages)
    return struct.pack(">BHII", 0x80, len(messages), len(data), len(data)) + data


def chunk(offset, entries, records=None, kind=0):
    """A chunk, as a server sends it."""
    data = b"".join(entries)
    return struct.pack(">BBHIqQQIIIB3x", 0x50, kind, len(entries), records if records is not None else len(entries), 0, 1, offset, 0,
                       len(data), 0, 0) + data


def read_chunk(data):
    """A chunk as (offset, records, type, entries)."""
    magic, kind, n, records = struct.unpack_from(">BBHI", data)
    assert magic == 0x50, data[:48]
    offset, = struct.unpack_from(">Q", data, 24)
    size, = struct.unpack_from(">I", data, 36)
    data = data[48:48 + size]
    entries = []
    at = 0
    while kind == 0 and len(entries) < n:
        if data[at] & 0x80:
            length = 11 + struct.unpack_from(">I", data, at + 7)[0]
        else:
            length = 4 + struct.unpack_from(">I", data, at)[0]
        entries.append(data[at:at + length])
        at += length
    return offset, records, kind, entries


def messages_of(entry):
    """The messages of an entry, decoded."""
    if not entry[0] & 0x80:
        return [decode(entry[4:])]
    out = []
    at = 11
    while at < len(entry):
        size, = struct.unpack_from(">I", entry, at)
        out.append(decode(entry[at + 4:at + 4 + size]))
        at += 4 + size
    assert len(out) == struct.unpack_from(">H", entry, 1)[0]
    return out


def value(data, at):
    """A value of AMQP 1.0 and where the next one is."""
    kind = data[at]
    at += 1
    if kind == 0x40:
        return None, at
    if kind in (0x41, 0x42):
        return kind == 0x41, at
    if kind == 0x83:
        return struct.unpack_from(">q", data, at)[0], at + 8
    if kind in (0xA0, 0xA1, 0xA3):
        end = at + 1 + data[at]
        got = data[at + 1:end]
        return (got if kind == 0xA0 else got.decode()), end
    if kind in (0xB0, 0xB1, 0xB3):
        end = at + 4 + struct.unpack_from(">I", data, at)[0]
        got = data[at + 4:end]
        return (got if kind == 0xB0 else got.decode()), end
    if kind == 0xC0:
        out = []
        end = at + 1 + data[at]
        at, count = at + 2, data[at + 1]
        for _ in range(count):
            got, at = value(data, at)
            out.append(got)
        return out, end
    assert kind in (0xD0, 0xD1), hex(kind)
    size, count = struct.unpack_from(">II", data, at)
    end = at + 4 + size
    at += 8
    out = []
    for _ in range(count):
        got, at = value(data, at)
        out.append(got)
    assert at == end
    return (out if kind == 0xD0 else dict(zip(out[::2], out[1::2]))), end


def decode(data):
    """A message as a dict of its sections."""
    out = {}
    at = 0
    while at < len(data):
        if data[at:at + 2] != b"\0\x53":
            return {"raw": data}
        section = {0x72: "annotations", 0x73: "properties", 0x74: "application", 0x75: "data"}[data[at + 2]]
        out[section], at = value(data, at + 3)
    return out
