"""Certificates of the tests: a CA of their own, a server's, a client's, and wrong ones."""
import functools
import pathlib
import ssl
import subprocess
import tempfile

NAMES = "subjectAltName=IP:127.0.0.1,IP:0:0:0:0:0:0:0:1,DNS:localhost\n"


def openssl(directory, *args):
    subprocess.run(["openssl", *map(str, args)], check=True, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Authority:
    def __init__(self, name="ca"):
        self.holder = tempfile.TemporaryDirectory(prefix="idem-http-ca.")
        self.dir = pathlib.Path(self.holder.name)
        self.dir.chmod(0o755)
        self.root = self.dir / "ca.crt"
        openssl(self.dir, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
                "-days", "30", "-subj", f"/CN=test {name}")
        self.crl = None

    @functools.cache
    def issue(self, name, names=NAMES, days=30):
        """(certificate, key) as files."""
        openssl(self.dir, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")
        (self.dir / f"{name}.ext").write_text(names)
        openssl(self.dir, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.crt", "-days", days, "-extfile", f"{name}.ext")
        return self.dir / f"{name}.crt", self.dir / f"{name}.key"

    @functools.cache
    def expired(self):
        """It ended in the second in which it was made."""
        return self.issue("expired", days=0)

    @functools.cache
    def self_signed(self):
        openssl(self.dir, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "self.key", "-out", "self.crt",
                "-days", "30", "-subj", "/CN=localhost", "-addext", NAMES.strip())
        return self.dir / "self.crt", self.dir / "self.key"


def server(cert, client_ca=None, alpn=("http/1.1",)):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cert)
    context.set_alpn_protocols(list(alpn))
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@functools.cache
def authority():
    """The CA that the tests share."""
    return Authority()
