"""Kafka brokers of Maven Central on loopback, and a client that looks at them."""
import atexit
import base64
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types

from notrun import NotRun

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent.parent
sys.path += [str(TOP / "test/crash"), str(TOP / "test/python")]
from machine.clock import Clock  # noqa: E402
from server import free_port  # noqa: E402

JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
PROPERTIES = """
process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=PLAIN://127.0.0.1:{port},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAIN://127.0.0.1:{port},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL
inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
log.dirs={dir}/data
default.replication.factor={nodes}
min.insync.replicas={least}
offsets.topic.replication.factor={nodes}
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={least}
transaction.state.log.num.partitions=3
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
num.partitions=3
auto.create.topics.enable={auto_create}
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
transaction.remove.expired.transaction.cleanup.interval.ms=1000
producer.id.expiration.check.interval.ms=1000
log.cleaner.backoff.ms=500
log.retention.ms=-1
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_relay="s3cret" user_reader="s3cret" user_admin="admin";
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \\
  unsecuredLoginStringClaim_sub="admin" unsecuredValidatorRequiredScope="kafka.write";
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={top}/server.pem
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={top}/ca.crt
listener.name.tls.ssl.client.auth=required
"""


def jars():
    """The directory with the jars, fetched if need be."""
    return subprocess.check_output([TOP / "test/setup/kafka.sh"], text=True).strip()


def copy_jars(directory):
    """A directory with the jars that an ordinary user can read: the cache may be in a closed home directory.
    The caller of this program may have made one, KAFKA_JARS."""
    if "KAFKA_JARS" in os.environ:
        return pathlib.Path(os.environ["KAFKA_JARS"])
    source = jars()
    subprocess.run(["cp", "-rl", source, directory], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["cp", "-rn", source + "/.", directory], check=True)
    return directory


def free_ports(n):
    """So many different ones: a broker that is started again needs its ports again."""
    ports = set()
    while len(ports) < n:
        ports.add(free_port())
    return list(ports)


def unprivileged():
    """Arguments of Popen that give root's children to an ordinary user."""
    if os.getuid() != 0:
        return {}
    return {"user": "nobody", "group": "nogroup", "extra_groups": []}


def decoded(line):
    """A record that Probe.java prints."""
    def decode(text):
        return None if text is None else base64.b64decode(text)
    r = json.loads(line)
    for field in ("key", "value"):
        r[field] = decode(r[field])
    for field in ("string", "json"):
        r[field] = [decode(v) for v in r.get(field, ())]
    r["headers"] = [(decode(k).decode(), decode(v)) for k, v in r["headers"]]
    return r


def own_mounts():
    """Give this process mounts of its own, which go when it and its children end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() != 0 or libc.unshare(0x00020000) != 0:       # CLONE_NEWNS
        raise NotRun("the machine does not let the test mount anything")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


class Node:
    """A controller and broker, with everything in a directory of its own."""

    def __init__(self, broker, number):
        self.broker = broker
        self.id = number
        self.dir = broker.dir / f"node{number}"
        self.dir.mkdir()
        self.port, self.sasl, self.tls, self.controller = free_ports(4)
        self.proc = None

    def configure(self, text):
        b = self.broker
        voters = ",".join(f"{n.id}@127.0.0.1:{n.controller}" for n in b.nodes)
        (self.dir / "server.properties").write_text(text.format(
            id=self.id, voters=voters, port=self.port, sasl=self.sasl, tls=self.tls, controller=self.controller,
            dir=self.dir, top=b.dir, nodes=len(b.nodes), least=(len(b.nodes) + 1) // 2,
            auto_create=str(b.auto_create).lower()))

    def format(self):
        self.broker.java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self.dir / "server.properties",
                         "--add-scram", "SCRAM-SHA-256=[name=relay,password=s3cret]",
                         "--add-scram", "SCRAM-SHA-512=[name=relay,password=s3cret]")

    def start(self, wait=True):
        with open(self.dir / "log", "ab") as log:
            self.proc = subprocess.Popen(
                [*self.broker.launcher, "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self.broker.jars}/*",
                 "kafka.Kafka", self.dir / "server.properties"],
                cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.broker.env, **unprivileged())
        if wait:
            self.await_port()

    def await_port(self, timeout=180):
        deadline = time.monotonic() + timeout
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.proc.poll() is None, (self.dir / "log").read_text()[-3000:]
                assert time.monotonic() < deadline, "the broker does not start"
                time.sleep(0.1)

    def is_up(self):
        return self.proc is not None and self.proc.poll() is None

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def pause(self):
        self.proc.send_signal(signal.SIGSTOP)

    def resume(self):
        self.proc.send_signal(signal.SIGCONT)


class Broker:
    """A cluster of one or more nodes; what concerns one node is done to the first."""

    def __init__(self, auto_create=False, nodes=1, disk=None, clock=False, launcher=JAVA, **properties):
        """disk: the size of a disk of its own for the logs of the first node, in MB.

        clock: the nodes have a wall clock of their own, which self.clock sets.
        launcher: the command of the nodes; the default starts soon.
        """
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-kafka."))
        self.auto_create = auto_create
        self.launcher = launcher
        self.probe = None
        self.number = 0
        self.nodes = []
        self.disk = None
        self.env = None
        atexit.register(self.remove)
        self.jars = copy_jars(self.dir / "jars")
        self.nodes += [Node(self, i + 1) for i in range(nodes)]
        self.port, self.sasl, self.tls = self.nodes[0].port, self.nodes[0].sasl, self.nodes[0].tls
        self.address = ",".join(f"127.0.0.1:{n.port}" for n in self.nodes)
        self._certificates()
        if clock:
            self.clock = Clock(types.SimpleNamespace(work=self.dir), "wall")
            self.env = {**os.environ, **self.clock.env}
        text = PROPERTIES + "".join(f"{k.replace('_', '.')}={v}\n" for k, v in properties.items())
        for node in self.nodes:
            node.configure(text)
        if disk:
            self._mount(disk)
        if os.getuid() == 0:
            for path in [self.dir, *self.dir.rglob("*")]:
                shutil.chown(path, "nobody", "nogroup")
        for node in self.nodes:
            node.format()
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.await_port()

    def _mount(self, size):
        own_mounts()
        path = self.nodes[0].dir / "data"
        path.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", path],
                          stderr=subprocess.DEVNULL).returncode != 0:
            raise NotRun("the machine does not let the test mount a small disk")
        self.disk = path

    def _certificates(self):
        """A CA, a server's certificate and a client's."""
        def openssl(*args):
            subprocess.run(["openssl", *args], check=True, cwd=self.dir, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
                "-days", "30", "-subj", "/CN=test CA")
        for name in ("server", "client"):
            openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                    "-subj", f"/CN={name}")
            (self.dir / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                    "-out", f"{name}.crt", "-days", "30", "-extfile", "ext")
        (self.dir / "server.pem").write_text((self.dir / "server.key").read_text() +
                                             (self.dir / "server.crt").read_text())

    def java(self, *args):
        out = subprocess.run([*JAVA, "-cp", f"{self.jars}/*", *map(str, args)], cwd=self.dir, text=True,
                             capture_output=True, **unprivileged())
        assert out.returncode == 0, out.stdout + out.stderr
        return out.stdout

    def start(self, wait=True):
        self.nodes[0].start(wait)

    @property
    def proc(self):
        return self.nodes[0].proc

    def kill(self):
        self.nodes[0].kill()

    def pause(self):
        self.nodes[0].pause()

    def resume(self):
        self.nodes[0].resume()

    def node(self, number):
        return self.nodes[number - 1]

    def leader(self, topic):
        return self.node(int(self.ask("leader", topic)[0]))

    def remove(self):
        if self.probe is not None:
            self.probe.kill()
            self.probe.wait()
            self.probe = None
        for node in self.nodes:
            if node.is_up():
                node.kill()
        if self.disk:
            subprocess.run(["umount", "-l", self.disk], stderr=subprocess.DEVNULL)
        if "KEEP" not in os.environ:
            shutil.rmtree(self.dir, ignore_errors=True)

    def ask(self, *words):
        """Run a command of Probe.java; the lines of its answer."""
        return list(self.lines(*words))

    def lines(self, *words):
        """The same, one by one: all are to be taken before the next command."""
        if self.probe is None:
            self.probe = subprocess.Popen(
                [*JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{self.jars}/*",
                 HERE / "Probe.java", self.address],
                cwd=self.dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.probe.stdin.write("\t".join(map(str, words)) + "\n")
        self.probe.stdin.flush()
        while True:
            line = self.probe.stdout.readline()
            assert line, "the probe has ended"
            line = line.rstrip("\n")
            if line == "ok":
                return
            assert not line.startswith("error "), line
            yield line

    def topic(self, name, partitions=3, **configs):
        self.ask("create", name, partitions, *(f"{k.replace('_', '.')}={v}" for k, v in configs.items()))
        return name

    def position_topic(self, name):
        return self.topic(name, 1, cleanup_policy="compact")

    def read(self, *topics, isolation="read_committed"):
        """All records, each a dict with bytes in it."""
        return list(map(decoded, self.ask("read", isolation, *topics)))

    def records(self, *topics, isolation="read_committed"):
        """The same without the views of Connect's converters; many records need little memory."""
        return map(decoded, self.lines("records", isolation, *topics))

    def name(self, prefix="t"):
        """A name that is new at this broker."""
        self.number += 1
        return f"{prefix}{self.number}"
