"""A proxy in front of PostgreSQL that does something to its client at a chosen step.

A step is what a client sends up to a message after which it waits for the server:
Query or Sync.  Steps are counted over the connections of one application name, from
arm() on.  At the chosen step the proxy calls the given function:

    before    the server does not get the step
    after     the server has answered, the client does not get the answer

and then closes the connection, or goes on if the function returns True.  So a
program is killed, cut off or frozen at each point of its transactions, whatever
its language is.
"""

import socket
import struct
import threading

READY = ord("Z")
ENDS_STEP = b"QS"


def receive(sock, n):
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def read_message(sock):
    """A message of either side, with its type and length."""
    head = receive(sock, 5)
    return head + receive(sock, struct.unpack("!I", head[1:])[0] - 4)


def text_of(message):
    """The SQL of Query and Parse, else nothing."""
    if message[:1] == b"Q":
        return message[5:-1].decode()
    if message[:1] == b"P":
        return message[5:].split(b"\0")[1].decode()
    return ""


class Proxy:
    """server: the path of the socket of PostgreSQL."""

    def __init__(self, server, application=None):
        self.server, self.application = server, application
        self.lock = threading.Lock()
        self.disarm()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, step=None, when="before", act=None):
        """Count from now on; act at this step, if it comes."""
        with self.lock:
            self.steps, self.step, self.when, self.act, self.counts = [], step, when, act, True
            self.acted = threading.Event()

    def disarm(self):
        with self.lock:
            self.steps, self.step, self.when, self.act, self.counts = [], None, "before", None, False
            self.acted = threading.Event()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=[client], daemon=True).start()

    def serve(self, client):
        """One connection, until either side ends it."""
        server = socket.socket(socket.AF_UNIX)
        try:
            length = receive(client, 4)
            startup = receive(client, struct.unpack("!I", length)[0] - 4)
            server.connect(self.server)
            server.sendall(length + startup)
            # a request to cancel comes this way as well, and has no words
            words = startup[4:].decode("latin-1").split("\0")
            counted = self.application in (None, dict(zip(words[::2], words[1::2])).get("application_name"))
            held = threading.Event()
            threading.Thread(target=self.answers, args=[server, client, held], daemon=True).start()
            self.requests(client, server, held, counted)
        except (EOFError, OSError):
            pass
        finally:
            close(server)
            close(client)

    def requests(self, client, server, held, counted):
        step = b""
        texts = []
        while True:
            message = read_message(client)
            step += message
            texts.append(text_of(message))
            if message[:1] not in [bytes([c]) for c in ENDS_STEP]:
                if message[:1] == b"X":
                    return
                continue
            if not self.forward(server, step, held, counted and self.count(" ".join(texts))):
                return
            step, texts = b"", []

    def count(self, text):
        """What to do at this step: "before", "after" or nothing."""
        with self.lock:
            if not self.counts:
                return None
            self.steps.append(text.strip())
            return self.when if len(self.steps) - 1 == self.step else None

    def forward(self, server, step, held, when):
        """False if the connection is to be closed."""
        if when == "before" and not self.do():
            return False
        if when == "after":
            held.answered = threading.Event()
            held.go_on = threading.Event()
            held.keep = False
            held.set()
        server.sendall(step)
        if when == "after":
            held.answered.wait()
            held.keep = self.do()
            held.go_on.set()
            return held.keep
        return True

    def do(self):
        act, acted = self.act, self.acted
        keep = act()
        acted.set()
        return keep

    @staticmethod
    def answers(server, client, held):
        """Pass on what the server says; hold back the answer to a step that is held."""
        pending = b""
        try:
            while True:
                message = read_message(server)
                if not held.is_set():
                    client.sendall(message)
                    continue
                pending += message
                if message[0] == READY:
                    held.answered.set()
                    held.go_on.wait()
                    held.clear()
                    if not held.keep:
                        return
                    client.sendall(pending)
                    pending = b""
        except (EOFError, OSError):
            if held.is_set():
                held.answered.set()
        finally:
            close(server)
            close(client)


def close(sock):
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
