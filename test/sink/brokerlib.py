"""What the brokers of the tests share: a server on loopback, as an ordinary user, with everything in a directory of its own."""
import atexit
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

from sinklib import PATIENCE, free_port, until


KEY_PASSWORD = "s3cret-of-the-key"


def certificates(directory, **names):
    """Two authorities, ca and other; certificates of ca with these names for them; client's key, if there is one, locked as well.

    Any user may read the files.
    """
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    directory.chmod(0o755)
    for ca in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.crt", "-days", "30", "-subj", f"/CN={ca}")
    for name, names_of in names.items():
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (directory / f"{name}.ext").write_text(f"subjectAltName={names_of}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
                "-extfile", f"{name}.ext", "-out", f"{name}.crt")
    if "client" in names:
        openssl("rsa", "-in", "client.key", "-aes128", "-passout", f"pass:{KEY_PASSWORD}", "-out", "locked.key")
    for path in directory.glob("*.key"):
        path.chmod(0o644)
    return directory


class Broker:
    """A subclass prepares its files in configure, and says in command what runs."""

    def __init__(self, tls=False, port=None):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-broker."))
        atexit.register(self.remove)
        self.dir.chmod(0o755)
        self.proc = None
        self.port = port or free_port()
        self.address = f"localhost:{self.port}" if tls else f"127.0.0.1:{self.port}"
        self.ca = self.dir / "ca.crt" if tls else None
        (self.dir / "data").mkdir()
        if tls:
            certificates(self.dir, server="DNS:localhost", client="DNS:client")
        self.configure()
        self._own(self.dir, *self.dir.iterdir())
        self.start()

    def configure(self):
        raise NotImplementedError

    def command(self):
        raise NotImplementedError

    def _own(self, *paths):
        """The server, which is not root, may write there."""
        if os.getuid() == 0:
            for path in paths:
                shutil.chown(path, "nobody", "nogroup")

    def start(self, wait=True):
        user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        with open(self.dir / "log", "ab") as log:
            self.proc = subprocess.Popen(self.command(), cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **user)
        if wait:
            until("the broker listens", self.listens)

    def listens(self):
        assert self.proc.poll() is None, (self.dir / "log").read_text()[-3000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), PATIENCE).close()
            return True
        except OSError:
            return False

    def stop(self):
        """Ask it to end."""
        self.proc.terminate()
        self.proc.wait(PATIENCE)

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def empty(self):
        """Start again with nothing."""
        self.kill()
        shutil.rmtree(self.dir / "data")
        (self.dir / "data").mkdir()
        self._own(self.dir / "data")
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
