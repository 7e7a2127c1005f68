"""A server that speaks AMQP 0-9-1 as far as the program needs it, and answers what a test says."""
import socket
import struct
import threading

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK, CLOSE = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41), (10, 50)
BLOCKED, UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 10), (20, 11), (20, 40), (20, 41)
DECLARE, DECLARE_OK = (40, 10), (40, 11)
PUBLISH, RETURN, ACK, NACK = (60, 40), (60, 50), (60, 80), (60, 120)
SELECT, SELECT_OK = (85, 10), (85, 11)
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8


def frame(kind, channel, payload, end=b"\xce"):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(channel, what, args=b""):
    return frame(METHOD, channel, struct.pack(">HH", *what) + args)


def short(text):
    data = text if isinstance(text, bytes) else text.encode()
    return bytes([len(data)]) + data


def long(data):
    return struct.pack(">I", len(data)) + data


def ack(tag, multiple=False, what=ACK):
    return method(1, what, struct.pack(">QB", tag, multiple))


def nack(tag, multiple=False):
    return ack(tag, multiple, NACK)


def closed(code, text, channel=1, what=CHANNEL_CLOSE):
    return method(channel, what, struct.pack(">H", code) + short(text) + struct.pack(">HH", 60, 40))


def returned(message, code=312, body=None):
    """The frames that return a message."""
    body = message["body"] if body is None else body
    args = struct.pack(">H", code) + short("NO_ROUTE") + short(message["exchange"]) + short(message["key"])
    return method(1, RETURN, args) + frame(HEADER, 1, message["header"]) + (frame(BODY, 1, body) if body else b"")


GREETING = {
    "start": method(0, START, b"\0\x09" + long(b"") + long(b"PLAIN AMQPLAIN") + long(b"en_US")),
    "tune": method(0, TUNE, struct.pack(">HIH", 2047, 131072, 60)),
    "open": method(0, OPEN_OK, short("")),
    "channel": method(1, CHANNEL_OPEN_OK, long(b"")),
    "select": method(1, SELECT_OK),
    "declare": method(1, DECLARE_OK),
}


class Fake:
    """answer(messages, tag): bytes to send behind the message with this tag.  What the program sent is in frames."""

    def __init__(self, answer=lambda messages, tag: ack(tag), greeting=None):
        self.answer = answer
        self.greeting = {**GREETING, **(greeting or {})}
        self.frames = []
        self.messages = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            with sock, sock.makefile("rb") as file:
                if file.read(8) != b"AMQP\0\0\x09\x01":
                    return
                self.tag = 0
                sock.sendall(self.greeting["start"] or b"")
                while head := file.read(7):
                    kind, channel, size = struct.unpack(">BHI", head)
                    payload = file.read(size)
                    assert file.read(1) == b"\xce"
                    self.frames.append((kind, channel, payload))
                    out = self._take(kind, payload)
                    if out is None:
                        return
                    sock.sendall(out)
        except OSError:
            pass

    def _take(self, kind, payload):
        what = struct.unpack(">HH", payload[:4]) if kind == METHOD else None
        names = {START_OK: "tune", OPEN: "open", CHANNEL_OPEN: "channel", SELECT: "select", DECLARE: "declare"}
        if what in names:
            if what == CHANNEL_OPEN:
                self.tag = 0
            return self.greeting[names[what]]
        if what == PUBLISH:
            args = payload[6:]
            n = args[0]
            self.now = {"exchange": args[1:1 + n], "key": args[2 + n:2 + n + args[1 + n]], "mandatory": args[-1] & 1,
                        "body": b"", "publish": payload}
            self.left = None
        elif kind == HEADER:
            self.left = struct.unpack(">Q", payload[4:12])[0]
            self.now["header"] = payload
        elif kind == BODY:
            self.now["body"] += payload
            self.left -= len(payload)
        else:
            return b""
        if self.left == 0:
            self.tag += 1
            self.messages.append(self.now)
            return self.answer(self.messages, self.tag)
        return b""
