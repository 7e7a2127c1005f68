"""A small client of NATS, written from the protocol's documents: it shares nothing with the library that the program uses."""
import base64
import itertools
import json
import socket
import ssl
import time

from sinklib import PATIENCE


class ApiError(Exception):
    """An error of JetStream's API; code is its err_code."""

    def __init__(self, error):
        super().__init__(error.get("description"))
        self.code = error.get("err_code")


def parse_headers(data):
    """The headers of a message, in their order, and its status ("" if it has none)."""
    first, *lines = data.decode(errors="surrogateescape").rstrip("\r\n").split("\r\n")
    return [tuple(line.split(":", 1)) for line in lines if line], first[len("NATS/1.0"):].strip()


class Message:
    def __init__(self, subject, reply, headers, data, status=""):
        self.subject, self.reply, self.data, self.status = subject, reply, data, status
        self.headers = [(k, v.strip()) for k, v in headers]

    def header(self, name):
        return dict(self.headers).get(name)


class Client:
    """One connection; requests are made one after the other."""

    numbers = itertools.count()

    def __init__(self, port, tls=None, sign=None, **login):
        """sign: signs the server's nonce for a login by JWT."""
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.file = self.sock.makefile("rb")
        self.info = json.loads(self.file.readline().split(b" ", 1)[1])
        if tls is not None:
            self.sock = ssl.create_default_context(cafile=tls).wrap_socket(self.sock, server_hostname="localhost")
            self.file = self.sock.makefile("rb")
        if sign is not None:
            login["sig"] = sign(self.info["nonce"].encode())
        self.write("CONNECT " + json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True,
                                            "lang": "test", "version": "1", **login}) + "\r\nPING\r\n")
        while (line := self.line()) != b"PONG":
            assert not line.startswith(b"-ERR"), line
        self.pushed = []        # messages that came while an answer was waited for
        self.inbox = f"_INBOX.test.{next(self.numbers)}.{time.time_ns()}"
        self.write(f"SUB {self.inbox}.* 1\r\n")

    def write(self, data):
        self.sock.sendall(data.encode() if isinstance(data, str) else data)

    def line(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        return line.rstrip(b"\r\n")

    def publish(self, subject, data=b"", headers=(), reply=""):
        if not headers:
            self.write(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")
            return
        head = b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers) + b"\r\n"
        self.write(f"HPUB {subject} {reply} {len(head)} {len(head) + len(data)}\r\n".encode() + head + data + b"\r\n")

    def receive(self):
        """The next message."""
        while True:
            line = self.line()
            if line == b"PING":
                self.write("PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())
            elif line.startswith((b"MSG ", b"HMSG ")):
                kind, subject, _, *rest = line.decode().split(" ")
                sizes = [int(n) for n in (rest[-2:] if kind == "HMSG" else rest[-1:])]
                data = self.file.read(sizes[-1] + 2)[:-2]
                reply = rest[0] if len(rest) > len(sizes) else ""
                headers, status = parse_headers(data[:sizes[0]]) if kind == "HMSG" else ([], "")
                return Message(subject, reply, headers, data[sizes[0]:] if kind == "HMSG" else data, status)

    def request(self, subject, data=b"", headers=()):
        reply = f"{self.inbox}.{next(self.numbers)}"
        self.publish(subject, data, headers, reply)
        while (got := self.receive()).subject != reply:
            self.pushed.append(got)
        assert not got.status, f"{subject}: {got.status}"
        return got

    def api(self, what, request=None):
        """Ask JetStream's API."""
        got = json.loads(self.request(f"$JS.API.{what}", json.dumps(request).encode() if request is not None else b"").data)
        if "error" in got:
            raise ApiError(got["error"])
        return got

    def store(self, subject, data=b"", headers=()):
        """Publish into a stream; its answer."""
        got = json.loads(self.request(subject, data, headers).data)
        if "error" in got:
            raise ApiError(got["error"])
        return got

    def stream(self, name, **config):
        """Make a stream, or change it."""
        made = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file", "num_replicas": 1,
                "max_msgs": -1, "max_bytes": -1, "discard": "old", **config}
        try:
            return self.api(f"STREAM.CREATE.{name}", made)
        except ApiError:
            return self.api(f"STREAM.UPDATE.{name}", made)

    def messages(self, stream, subject=">"):
        """All messages of the stream, in its order."""
        got, seq = [], 1
        while True:
            try:
                m = self.api(f"STREAM.MSG.GET.{stream}", {"seq": seq, "next_by_subj": subject})["message"]
            except ApiError as e:
                if e.code != 10037:
                    raise
                return got
            headers, _ = parse_headers(base64.b64decode(m.get("hdrs", ""))) if m.get("hdrs") else ([], "")
            got.append(Message(m["subject"], "", headers, base64.b64decode(m.get("data", ""))))
            seq = m["seq"] + 1

    def close(self):
        self.file.close()
        self.sock.close()
