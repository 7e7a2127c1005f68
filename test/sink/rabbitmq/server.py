"""Throw-away servers of RabbitMQ (test/setup/rabbitmq.sh), and what an independent client sees of them."""
import contextlib
import functools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from sinklib import PATIENCE, TOP, NotRun, until

SCRIPT = os.environ.get("RABBITMQ_SH") or TOP / "test/setup/rabbitmq.sh"
_shared = None
_servers = []


@functools.cache
def clients():
    """The directory with pika and rstream."""
    given = os.environ.get("SINK_CLIENTS")
    if given:
        return given
    done = subprocess.run([TOP / "test/setup/venv.sh", TOP / "test/sink/rabbitmq/requirements.txt"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise NotRun("pika cannot be fetched")
    return str(next(pathlib.Path(done.stdout.strip()).glob("lib/python3*/site-packages")))


def pika():
    """The module, of the tests' own environment."""
    if "pika" not in sys.modules:
        sys.path.append(clients())
    import logging
    import pika as module
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    return module


class Server:
    """A server in a directory of its own, which ends with the tests."""

    def __init__(self, settings="", start=True):
        if not pathlib.Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists():
            raise NotRun("there is no rabbitmq-server")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-rabbitmq."))
        subprocess.run([SCRIPT, "make", self.dir], check=True)
        ports = dict(line.split("=") for line in (self.dir / "rabbitmq.env").read_text().split())
        self.port = int(ports["RABBIT_PORT"])
        self.stream_port = int(ports["RABBIT_STREAM_PORT"])
        self.address = f"127.0.0.1:{self.port}"
        with open(self.dir / "rabbitmq.conf", "a") as conf:
            conf.write(settings)
        self.epmd_port = int(ports["RABBIT_EPMD_PORT"])
        self.count = 0
        self.epmd = self._run("epmd")
        self.proc = None
        _servers.append(self)
        if start:
            self.start()

    def _run(self, what):
        # the log is for those who look at a directory that was left behind
        log = open(self.dir / f"{what}.log", "ab")
        return subprocess.Popen([SCRIPT, what, self.dir], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def start(self, wait=True):
        self.proc = self._run("server")
        if wait:
            self.wait()

    def answers(self):
        assert self.proc.poll() is None, (self.dir / "server.log").read_text()[-3000:]
        for port in (self.port, self.stream_port):
            with contextlib.closing(socket.socket()) as s:
                if s.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        return True

    def wait(self):
        # its start takes half a minute of CPU on a machine that has much else to do
        until("the server answers", self.answers, 5 * PATIENCE)

    def is_known(self):
        """Does epmd have a node of the server's name?  Then no other one can start."""
        with socket.create_connection(("127.0.0.1", self.epmd_port), PATIENCE) as s:
            s.sendall(b"\0\1n")
            return b"name rabbit " in s.makefile("rb").read()

    def kill(self):
        if self.proc is not None:
            self.proc.kill()
            self.proc.wait()
            until("epmd has forgotten the server", lambda: not self.is_known())
        self.proc = None

    def restart(self, empty=False):
        self.kill()
        if empty:
            shutil.rmtree(self.dir / "data")
            self.ctl_file("data")
        self.start()

    def ctl_file(self, name):
        """An empty directory of the server's user."""
        (self.dir / name).mkdir()
        shutil.chown(self.dir / name, (self.dir / "home").owner(), (self.dir / "home").group())

    def ctl(self, *args, text=None):
        """rabbitmqctl, which takes a second."""
        done = subprocess.run([SCRIPT, "ctl", self.dir, *map(str, args)], input=text or "", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout

    @contextlib.contextmanager
    def stopped(self):
        self.proc.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.proc.send_signal(signal.SIGCONT)

    def remove(self):
        self.kill()
        self.epmd.kill()
        self.epmd.wait()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)

    def name(self, prefix="q"):
        self.count += 1
        return f"{prefix}{self.count}"

    @contextlib.contextmanager
    def channel(self, user="admin", password="admin", vhost="/"):
        p = pika()
        connection = p.BlockingConnection(p.ConnectionParameters(
            "127.0.0.1", self.port, vhost, p.PlainCredentials(user, password), heartbeat=0, socket_timeout=PATIENCE))
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(p.exceptions.AMQPError):
                connection.close()

    def declare(self, exchange, queue, key="#", kind="topic", queue_type="quorum", **arguments):
        """An exchange, and a queue that is bound to it."""
        arguments = {"x-" + k.replace("_", "-"): v for k, v in arguments.items()}
        with self.channel() as c:
            c.exchange_declare(exchange, kind, durable=True)
            c.queue_declare(queue, durable=True, arguments={"x-queue-type": queue_type, **arguments})
            c.queue_bind(queue, exchange, key)

    def messages(self, queue):
        """What the queue has, in its order, as (method, properties, body); it stays there."""
        out = []
        with self.channel() as c:
            while (got := c.basic_get(queue))[0] is not None:
                out.append(got)
        return out

    def drain(self, queue):
        """The same, many and fast, and taken away."""
        out = []
        with self.channel() as c:
            left = c.queue_declare(queue, passive=True).method.message_count
            while len(out) < left:
                for got in c.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE):
                    assert got[0] is not None, f"{len(out)} messages of {left}"
                    out.append(got)
                    if len(out) == left:
                        break
        return out

    def ids(self, queue):
        return [properties.message_id.replace("-", "") for _, properties, _ in self.messages(queue)]


def shared():
    """The server of the tests that need no other."""
    global _shared
    if _shared is None:
        _shared = Server()
    return _shared


def stop_servers():
    for server in _servers:
        server.remove()
