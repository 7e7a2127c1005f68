"""Debian's mosquitto on loopback, as an ordinary user, with everything in a directory of its own."""
import atexit
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from mqtt.packets import Client
from sinklib import PATIENCE

TOP = pathlib.Path(__file__).resolve().parent.parent.parent.parent
MOSQUITTO = next((p for p in ("/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto") if os.path.exists(p)), "mosquitto")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Broker:
    def __init__(self, tls=False, port=None, acl=None, users=(), conf=""):
        """acl: the file of that option; users: (name, password)."""
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-mqtt."))
        atexit.register(self.remove)
        self.dir.chmod(0o755)
        self.proc = None
        self.port = port or free_port()
        self.address = f"localhost:{self.port}" if tls else f"127.0.0.1:{self.port}"
        self.ca = self.dir / "ca.crt" if tls else None
        (self.dir / "data").mkdir()
        lines = [f"listener {self.port} 127.0.0.1", f"persistence true\npersistence_location {self.dir}/data/", conf]
        if "max_queued_messages" not in conf:
            lines.append("max_queued_messages 1000000\nmax_inflight_messages 1000")
        if users:
            (self.dir / "passwords").write_text("".join(f"{name}:{password}\n" for name, password in users))
            subprocess.run(["mosquitto_passwd", "-U", self.dir / "passwords"], check=True)
            lines.append(f"password_file {self.dir}/passwords")
        lines.append(f"allow_anonymous {'false' if users else 'true'}")
        if acl is not None:
            (self.dir / "acl").write_text(acl)
            lines.append(f"acl_file {self.dir}/acl")
        if tls:
            self._certificates()
            lines.append(f"cafile {self.dir}/ca.crt\ncertfile {self.dir}/server.crt\nkeyfile {self.dir}/server.key")
        (self.dir / "conf").write_text("\n".join(lines) + "\n")
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
        openssl("rsa", "-aes128", "-passout", "pass:s3cret-key", "-in", "client.key", "-out", "locked.key")

    def start(self, wait=True):
        user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        with open(self.dir / "log", "ab") as log:
            self.proc = subprocess.Popen([MOSQUITTO, "-c", self.dir / "conf"], cwd=self.dir, stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log, **user)
        deadline = time.monotonic() + PATIENCE
        while wait and not self.listens():
            assert self.proc.poll() is None and time.monotonic() < deadline, (self.dir / "log").read_text()[-3000:]
            time.sleep(0.05)

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def client(self, **login):
        return Client(self.port, tls=self.ca, **login)

    def stop(self):
        """Mosquitto stores what it has when it is asked to end, and not when it is killed."""
        self.proc.terminate()
        self.proc.wait(PATIENCE)

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def empty(self):
        """Start again with nothing."""
        self.kill()
        for path in (self.dir / "data").iterdir():
            path.unlink()
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
