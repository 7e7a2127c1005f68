"""A server that speaks NATS as far as the program needs it, and answers what a test says."""
import base64
import json
import socket
import threading

from nats.client import parse_headers

STREAM = {"config": {"name": "S", "subjects": ["S.>", "idempotency.position.>"], "retention": "limits", "storage": "file",
                     "max_msg_size": -1, "max_age": 0, "allow_atomic": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True}}
POSITION = {"relay": "orders", "epoch": 4, "incarnation": "log-0", "row_id": 7, "k": 1}
OPTIONS = {"stream": "S", "subject": "S.{event_type}"}


def usual(kind, subject, headers, data):
    """The answers of a server on which a predecessor has delivered."""
    if kind == "info":
        return json.dumps(STREAM).encode()
    if kind == "get":
        return json.dumps({"message": {"subject": subject, "seq": 9, "time": "2026-11-29T00:00:00Z",
                                       "data": base64.b64encode(json.dumps(POSITION).encode()).decode()}}).encode()
    return json.dumps({"stream": "S", "seq": 10, "batch": headers.get("Nats-Batch-Id", ""), "count": int(headers.get("Nats-Batch-Sequence", 0))}).encode()


HOLD = object()


class Fake:
    """answer(kind, subject, headers, data): bytes, None for no answer, HOLD for one that the test gives later.

    kind: info, get, publish.  The messages are kept.
    """

    def __init__(self, answer=usual, **info):
        self.answer = answer
        self.info = {"server_id": "F", "version": "2.15.1", "headers": True, "max_payload": 1048576, "proto": 1, **info}
        self.messages = []
        self.held = {}      # data of a message to the function that answers it
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
        subs = []
        try:
            with sock, sock.makefile("rb") as file:
                sock.sendall(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
                while line := file.readline():
                    words = line.decode().split()
                    if words[0] == "PING":
                        sock.sendall(b"PONG\r\n")
                    elif words[0] == "SUB":
                        subs.append((words[1].rstrip("*>"), words[-1]))
                    elif words[0] in ("PUB", "HPUB"):
                        sock.sendall(self._publish(words, file.read(int(words[-1]) + 2)[:-2], subs, sock))
        except OSError:
            pass

    def _publish(self, words, data, subs, sock):
        sized = 2 if words[0] == "HPUB" else 1
        subject, reply = words[1], words[2] if len(words) > 2 + sized else None
        head = int(words[-2]) if sized == 2 else 0
        headers = {k: v.strip() for k, v in parse_headers(data[:head])[0]} if head else {}
        kind = "info" if ".STREAM.INFO." in subject else "get" if ".MSG.GET." in subject else "publish"
        if kind == "publish":
            self.messages.append((subject, headers, data[head:]))
        got = self.answer(kind, subject, headers, data[head:]) if reply else None
        for prefix, sid in subs if got is not None else ():
            if reply.startswith(prefix):
                def written(text, sid=sid):
                    return f"MSG {reply} {sid} {len(text)}\r\n".encode() + text + b"\r\n"
                if got is not HOLD:
                    return written(got)
                self.held[data[head:]] = lambda text: sock.sendall(written(text))
        return b""

    def release(self, data, text=b'{"stream":"S","seq":10}'):
        self.held.pop(data)(text)
