"""A cluster under Patroni on loopback: etcd, members, and the commands of the page.

A member is a Patroni, a child of this process, and the postmaster that the Patroni started,
which is nobody's child.  Both are signalled by their process ids.  Everything works inside the
work directory, so that whoever ends the processes of that directory (setup/lib.sh) ends them too.
"""
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request

from server import Finding, Server, descendants, send_signal, stat_of, wait_until

SCOPE = "shop"
PAGE = pathlib.Path(__file__).resolve().parents[2] / "doc/patroni-pgbouncer.md"


def blocks(heading):
    """The indented blocks of a section of the page, without their indentation."""
    page = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    if not section:
        raise Finding(f"{PAGE.name} has no section {heading}")
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section[1], re.M)
    return [re.sub(r"^    ", "", block, flags=re.M) for block in found]


def listen_port():
    """A port that nobody listens on, below those that the kernel gives to clients.

    Members listen again after they were killed: meanwhile no connection may have got the port.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Process:
    """A program that ends with the test."""

    def __init__(self, work, name, *command):
        self.work, self.command = work, [str(part) for part in command]
        self.log = work / f"{name}.log"
        self.child = None

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self.command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=log, start_new_session=True)

    def kill(self):
        send_signal(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def stop(self):
        if self.child and self.child.poll() is None:
            self.child.terminate()
            self.child.wait(60)


class Member(Server):
    """A server whose postmaster belongs to Patroni."""

    def __init__(self, cluster, name):
        super().__init__(name, cluster.work, cluster.bindir, host="127.0.0.1", port=listen_port())
        self.cluster = cluster
        self.rest = listen_port()
        # The witness of all members is one script, which has to find the Patroni of its member.
        pathlib.Path(f"{self.data}.rest").write_text(str(self.rest), encoding="ascii")
        conf = cluster.work / f"{name}.json"
        conf.write_text(json.dumps(self.configuration()), encoding="utf-8")
        self.patroni = Process(cluster.work, f"patroni-{name}", "patroni", conf)

    def configuration(self):
        """YAML has JSON in it."""
        return {
            "scope": SCOPE, "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}", "connect_address": f"127.0.0.1:{self.rest}"},
            "etcd3": {"host": f"127.0.0.1:{self.cluster.etcd_port}"},
            "bootstrap": {
                "dcs": {"ttl": 20, "loop_wait": 2, "retry_timeout": 5, "postgresql": {"use_pg_rewind": True}},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"]},
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data), "bin_dir": str(self.bindir),
                "pgpass": str(self.work / f"pgpass-{self.name}"),
                "authentication": {"superuser": {"username": "postgres", "password": "secret"},
                                   "replication": {"username": "replicator", "password": "secret"}},
                "parameters": {"unix_socket_directories": "", "fsync": "off", "timezone": "UTC",
                               "log_line_prefix": "%m [%p] %q%a ", **self.cluster.staged},
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]}}

    def ask(self, path):
        """The status of Patroni's answer; None if Patroni does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}/{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def kill_server(self):
        """The postmaster and all below it, sink programs too."""
        postmaster = int((self.data / "postmaster.pid").read_text(encoding="ascii").split()[0])
        if not self.owns(postmaster):
            raise Finding(f"process {postmaster} is not the postmaster of {self.name}")
        pids = [postmaster, *descendants(postmaster)]
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        wait_until(f"processes of {self.name} are gone", lambda: all(stat_of(pid)[1] in "ZX" for pid in pids))


class Cluster:
    """etcd and the members that it knows."""

    def __init__(self, work, bindir, conf, names):
        self.work, self.bindir = work, bindir
        self.staged = dict(re.findall(r"^(\S+) = '(.*)'$", conf, re.M))
        self.etcd_port, peer = listen_port(), listen_port()
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{peer}"
        self.etcd = Process(work, "etcd", "etcd", "--name", "etcd", "--data-dir", work / "etcd",
                            "--listen-client-urls", client, "--advertise-client-urls", client,
                            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                            "--initial-cluster", f"etcd={peer}")
        self.members = [Member(self, name) for name in names]

    def start(self):
        self.etcd.start()
        first = self.members[0]
        first.patroni.start()
        self.wait("one member leads", lambda: first.ask("primary") == 200)
        for member in self.members[1:]:
            member.patroni.start()
        self.wait_whole()

    def stop(self):
        for member in self.members:
            member.patroni.stop()
        self.etcd.stop()

    def operator(self, command):
        """Run a command of the page as an operator types it."""
        done = subprocess.run(["sh", "-c", command], cwd=self.work, stdin=subprocess.DEVNULL, text=True,
                              env={**os.environ, "PATRONICTL_CONFIG_FILE": str(self.work / f"{self.members[0].name}.json")},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise Finding(f"{command}: status {done.returncode}\n{done.stdout}")
        return done.stdout

    def listed(self):
        """What patronictl list shows, by the member's name."""
        return {row["Member"]: row for row in json.loads(self.operator(f"patronictl list {SCOPE} --format json"))}

    def leader(self, but=None):
        """The member that leads; None while no member does."""
        return next((m for m in self.members if m is not but and m.ask("primary") == 200), None)

    def synchronous(self):
        """The member that a failover would promote."""
        return next((m for m in self.members if m.ask("synchronous") == 200), None)

    def wait(self, what, condition):
        def said():
            tails = [f"-- {p.log.name}\n" + "".join(p.log.open(errors="replace").readlines()[-12:])
                     for p in [m.patroni for m in self.members] if p.log.exists()]
            return "\n".join([what, *tails])
        return wait_until(said, condition, pause=0.2)

    def wait_whole(self, synchronous=False):
        """Until all members are there: a leader, and the others stream from it."""
        def whole():
            leader = self.leader()
            return (leader and all(m.ask("replica") == 200 for m in self.members if m is not leader)
                    and leader.try_rows("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")[0][0]
                    == len(self.members) - 1
                    and (not synchronous or self.synchronous()
                         and leader.try_rows("SELECT count(*) FROM pg_stat_replication"
                                             " WHERE sync_state IN ('sync', 'quorum')")[0][0] > 0))
        self.wait("all members are there", whole)
