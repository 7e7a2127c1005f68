"""Packets of MQTT 5, a client and a broker that does what a test wants: they share nothing with the library that the program uses."""
import contextlib
import socket
import ssl
import struct
import threading

from sinklib import PATIENCE

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, _, _, PINGREQ, PINGRESP, DISCONNECT = range(1, 15)
# Properties: how their value is written.
FORMAT, EXPIRY, CONTENT_TYPE, SESSION_EXPIRY, SERVER_KEEP_ALIVE, REASON, RECEIVE_MAXIMUM, MAXIMUM_QOS, RETAIN_AVAILABLE, USER, MAXIMUM_PACKET = \
    1, 2, 3, 17, 19, 31, 33, 36, 37, 38, 39
KINDS = {FORMAT: "B", EXPIRY: "I", CONTENT_TYPE: "s", SESSION_EXPIRY: "I", SERVER_KEEP_ALIVE: "H", REASON: "s", RECEIVE_MAXIMUM: "H", MAXIMUM_QOS: "B",
         RETAIN_AVAILABLE: "B", USER: "p", MAXIMUM_PACKET: "I", 11: "v", 18: "s", 22: "s", 34: "H", 35: "H", 40: "B", 41: "B", 42: "B"}


def varint(n):
    out = bytearray()
    while True:
        n, low = n >> 7, n & 127
        out.append(low | (128 if n else 0))
        if not n:
            return bytes(out)


def text(s):
    data = s.encode() if isinstance(s, str) else s
    return struct.pack(">H", len(data)) + data


def properties(pairs=()):
    out = b""
    for key, value in pairs:
        kind = KINDS[key]
        out += bytes([key]) + (text(value) if kind == "s" else text(value[0]) + text(value[1]) if kind == "p" else struct.pack(">" + kind, value))
    return varint(len(out)) + out


def packet(kind, body, flags=0):
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


class Body:
    """Reads the fields of a packet."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        assert self.at + n <= len(self.data), "packet too short"
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, kind):
        return struct.unpack(">" + kind, self.take(struct.calcsize(kind)))[0]

    def varint(self):
        n = shift = 0
        while True:
            byte = self.number("B")
            n |= (byte & 127) << shift
            if byte < 128:
                return n
            shift += 7

    def text(self):
        return self.take(self.number("H")).decode()

    def properties(self):
        end = self.varint() + self.at
        out = []
        while self.at < end:
            key = self.varint()
            kind = KINDS[key]
            out.append((key, self.text() if kind == "s" else (self.text(), self.text()) if kind == "p" else
                        self.varint() if kind == "v" else self.number(kind)))
        return out

    def rest(self):
        return self.take(len(self.data) - self.at)


class Message:
    def __init__(self, flags, body):
        self.qos, self.retain, self.dup = flags >> 1 & 3, bool(flags & 1), bool(flags & 8)
        b = Body(body)
        self.topic = b.text()
        self.mid = b.number("H") if self.qos else 0
        self.properties = b.properties()
        self.payload = b.rest()
        self.user = [v for k, v in self.properties if k == USER]

    def property(self, key):
        return dict(self.properties).get(key)

    def header(self, name):
        return dict(self.user).get(name)


def read_packet(file):
    """(kind, flags, body); None at the end."""
    head = file.read(1)
    if not head:
        return None
    n = shift = 0
    while True:
        byte = file.read(1)
        if not byte:
            return None
        n |= (byte[0] & 127) << shift
        if byte[0] < 128:
            break
        shift += 7
    body = file.read(n)
    return (head[0] >> 4, head[0] & 15, body) if len(body) == n else None


def connect_packet(client_id, user=None, password=None, expiry=0, keepalive=0):
    flags = (0 if expiry else 2) | (0x80 if user else 0) | (0x40 if password else 0)
    return packet(CONNECT, text("MQTT") + bytes([5, flags]) + struct.pack(">H", keepalive) +
                  properties([(SESSION_EXPIRY, expiry)] if expiry else []) + text(client_id) + (text(user) if user else b"") +
                  (text(password) if password else b""))


class Client:
    """One connection.  refused: the reason code of a connection that the broker did not take."""

    def __init__(self, port, client_id="reader", tls=None, expect=0, **login):
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        if tls is not None:
            self.sock = ssl.create_default_context(cafile=tls).wrap_socket(self.sock, server_hostname="localhost")
        self.file = self.sock.makefile("rb")
        self.got = []
        self.syncs = 0
        self.sock.sendall(connect_packet(client_id, **login))
        kind, _, body = read_packet(self.file)
        assert kind == CONNACK and body[1] == expect, (kind, body)

    def subscribe(self, pattern, qos=1):
        self.sock.sendall(packet(SUBSCRIBE, struct.pack(">H", 1) + properties() + text(pattern) + bytes([qos]), 2))
        while True:
            got = read_packet(self.file)
            assert got, "the broker closed the connection"
            if got[0] == SUBACK:
                assert got[2][-1] <= 2, got
                return self
            self.take(got)

    def take(self, got):
        kind, flags, body = got
        if kind == PUBLISH:
            m = Message(flags, body)
            if m.qos == 1:
                self.sock.sendall(packet(PUBACK, struct.pack(">H", m.mid)))
            elif m.qos == 2:
                self.sock.sendall(packet(PUBREC, struct.pack(">H", m.mid)))
            self.got.append(m)
        elif kind == PUBREL:
            self.sock.sendall(packet(PUBCOMP, body[:2]))

    def publish(self, topic, payload=b"", retain=False):
        self.sock.sendall(packet(PUBLISH, text(topic) + properties() + payload, int(retain)))

    def messages(self, sync):
        """All messages so far.  sync: a topic that the client hears, and nobody else writes to."""
        self.syncs += 1
        mine = b"%d" % self.syncs
        self.publish(sync, mine)
        while not (self.got and self.got[-1].topic == sync and self.got[-1].payload == mine):
            got = read_packet(self.file)
            assert got, "the broker closed the connection"
            self.take(got)
        return [m for m in self.got if m.topic != sync]

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.sendall(packet(DISCONNECT, b""))
        self.file.close()
        self.sock.close()


class FakeBroker:
    """Takes connections one after the other.  answer(message) gives the packets that answer a PUBLISH, None: it ends the connection."""

    def __init__(self, answer=lambda m: ack(m), connack=(), code=0):
        self.answer, self.connack, self.code = answer, connack, code
        self.connects, self.messages, self.packets = [], [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.connections = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                c = self.listener.accept()[0]
                self.connections.append(c)
                threading.Thread(target=self.talk, args=(c,), daemon=True).start()

    def talk(self, c):
        file = c.makefile("rb")
        with contextlib.suppress(OSError):
            while (got := read_packet(file)) is not None:
                self.packets.append(got)
                kind, flags, body = got
                out = b""
                if kind == CONNECT:
                    self.connects.append(body)
                    out = self.code if isinstance(self.code, bytes) else packet(CONNACK, bytes([0, self.code]) + properties(self.connack))
                elif kind == PUBLISH:
                    self.messages.append(Message(flags, body))
                    out = self.answer(self.messages[-1])
                elif kind == PUBREL:
                    out = packet(PUBCOMP, body[:2])
                elif kind == PINGREQ:
                    out = packet(PINGRESP, b"")
                if out is None:
                    break
                c.sendall(out)
        file.close()
        c.close()

    def send(self, data):
        """To the connection that came last."""
        self.connections[-1].sendall(data)

    def close(self):
        self.listener.close()
        for c in self.connections:
            with contextlib.suppress(OSError):
                c.shutdown(socket.SHUT_RDWR)


def ack(m, code=0):
    """What answers a message."""
    return packet(PUBACK if m.qos == 1 else PUBREC, struct.pack(">H", m.mid) + (bytes([code, 0]) if code else b""))


def disconnect(code):
    return packet(DISCONNECT, bytes([code, 0]))
