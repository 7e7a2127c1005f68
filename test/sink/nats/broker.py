"""A nats-server on loopback, as an ordinary user, with everything in a directory of its own."""
import atexit
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from nats.client import Client
from notrun import NotRun
from sinklib import PATIENCE

TOP = pathlib.Path(__file__).resolve().parent.parent.parent.parent


def binary(release, directory):
    """A copy that an ordinary user can run: the cache may be in a closed home directory.  NATS_SERVER names another."""
    if "NATS_SERVER" in os.environ:
        return shutil.copy(os.environ["NATS_SERVER"], directory / "nats-server")
    done = subprocess.run([TOP / "test/setup/nats.sh", release], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise NotRun(f"the nats-server of {release} cannot be fetched")
    return shutil.copy(done.stdout.strip(), directory / "nats-server")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Broker:
    def __init__(self, release="forky", tls=False, port=None, **config):
        """config: of nats-server.conf, as JSON has it."""
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-nats."))
        atexit.register(self.remove)
        self.dir.chmod(0o755)
        self.proc = None
        self.server = binary(release, self.dir)
        self.port = port or free_port()
        self.address = f"localhost:{self.port}" if tls else f"127.0.0.1:{self.port}"
        self.ca = self.dir / "ca.crt" if tls else None
        if tls:
            self._certificates()
            config["tls"] = {"cert_file": f"{self.dir}/server.crt", "key_file": f"{self.dir}/server.key",
                             "ca_file": f"{self.dir}/ca.crt", "timeout": 10, **config.get("tls", {})}
        (self.dir / "conf").write_text(json.dumps({
            "listen": f"127.0.0.1:{self.port}", "jetstream": {"store_dir": f"{self.dir}/data"}, **config}))
        (self.dir / "data").mkdir()
        if os.getuid() == 0:
            for path in [self.dir, *self.dir.iterdir()]:
                shutil.chown(path, "nobody", "nogroup")
        self.start()

    def _certificates(self):
        """A CA, a server's certificate for localhost alone and a client's."""
        def openssl(*args):
            subprocess.run(["openssl", *args], check=True, cwd=self.dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for ca in ("ca", "other"):
            openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.crt",
                    "-days", "30", "-subj", f"/CN={ca}")
        for name in ("server", "client"):
            openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            (self.dir / "ext").write_text("subjectAltName=DNS:localhost\n")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                    "-out", f"{name}.crt", "-days", "30", "-extfile", "ext")

    def start(self, wait=True):
        user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        with open(self.dir / "log", "wb") as log:
            self.proc = subprocess.Popen([self.server, "-c", self.dir / "conf"], cwd=self.dir, stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log, **user)
        deadline = time.monotonic() + PATIENCE
        while wait and b"Server is ready" not in (self.dir / "log").read_bytes():
            assert self.proc.poll() is None and time.monotonic() < deadline, (self.dir / "log").read_text()[-3000:]
            time.sleep(0.05)

    def client(self, **login):
        return Client(self.port, tls=self.ca, **login)

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def empty(self):
        """Start again with nothing."""
        self.kill()
        shutil.rmtree(self.dir / "data")
        (self.dir / "data").mkdir()
        if os.getuid() == 0:
            shutil.chown(self.dir / "data", "nobody", "nogroup")
        self.start()

    def pause(self):
        self.proc.send_signal(signal.SIGSTOP)

    def resume(self):
        self.proc.send_signal(signal.SIGCONT)

    def remove(self):
        if self.proc is not None and self.proc.poll() is None:
            self.kill()
        if "KEEP" not in os.environ:
            shutil.rmtree(self.dir, ignore_errors=True)
