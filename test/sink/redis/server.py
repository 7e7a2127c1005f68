"""Throw-away servers of Redis or Valkey, and a client of their protocol."""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

from sinklib import PATIENCE, NotRun, free_port, until
_shared = None
_servers = []


class Refused(Exception):
    """An error of the server."""


class Client:
    """A connection, in a hundred lines less than a library."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.file = self.sock.makefile("rb")

    def send(self, *args):
        out = b"*%d\r\n" % len(args)
        for arg in args:
            data = arg if isinstance(arg, bytes) else str(arg).encode()
            out += b"$%d\r\n%s\r\n" % (len(data), data)
        self.sock.sendall(out)

    def recv(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest.decode()
        if rest == b"-1":
            return None
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2]
        return [self.recv() for _ in range(int(rest))]

    def __call__(self, *args):
        self.send(*args)
        return self.recv()

    def close(self):
        self.file.close()
        self.sock.close()


class Server:
    """A server in a directory of its own, which ends with the tests."""

    def __init__(self, **settings):
        self.program = shutil.which(os.environ.get("REDIS_SERVER", "redis-server"))
        if self.program is None:
            raise NotRun("there is no redis-server")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-redis."))
        self.port = free_port()
        if "cluster-enabled" in settings:
            settings["cluster-port"] = str(free_port())
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction",
                         "repl-diskless-sync-delay": "0", **settings}
        self.proc = None
        self.count = 0
        _servers.append(self)
        self.write_settings()
        self.start()

    def write_settings(self):
        """What CONFIG REWRITE writes stays until the next call."""
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self.dir, **self.settings}
        (self.dir / "server.conf").write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))

    def start(self, wait=True):
        args = [self.program, self.dir / "server.conf"]
        # the log is for those who look at a directory that was left behind
        self.proc = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=open(self.dir / "log", "ab"),
                                     stderr=subprocess.STDOUT, env={"PATH": os.environ["PATH"], "LC_ALL": "C"})
        if wait:
            until("the server answers", self.answers)

    def answers(self):
        assert self.proc.poll() is None, (self.dir / "log").read_text()
        try:
            self.ask("PING")
        except (OSError, Refused):
            return False
        return True

    def ask(self, *args):
        c = Client(self.port)
        try:
            return c(*args)
        finally:
            c.close()

    def kill(self):
        if self.proc is not None:
            self.proc.kill()
            self.proc.wait()
        self.proc = None

    def restart(self, empty=False):
        self.kill()
        if empty:
            shutil.rmtree(self.dir / "appendonlydir", ignore_errors=True)
        self.start()

    @contextlib.contextmanager
    def stopped(self):
        self.proc.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.proc.send_signal(signal.SIGCONT)

    def name(self, prefix="s"):
        self.count += 1
        return f"{prefix}{self.count}"

    def entries(self, stream):
        """Each entry as a dict, with its id as _id."""
        return [{"_id": entry[0].decode(), **{k.decode(): v for k, v in zip(entry[1][::2], entry[1][1::2])}}
                for entry in self.ask("XRANGE", stream, "-", "+")]

    def ids(self, *streams):
        """The ids of the events, in the order of each stream."""
        return [e["event_id"].decode().replace("-", "") for s in streams for e in self.entries(s) if "event_id" in e]


def shared():
    """The server of the tests that need no other."""
    global _shared
    if _shared is None:
        _shared = Server()
    return _shared


def stop_servers():
    for server in _servers:
        server.kill()
        shutil.rmtree(server.dir, ignore_errors=True)
