"""TLS, with a hiredis that has it: whose certificate it is, and what happens without."""
import functools
import pathlib
import subprocess
import tempfile

from notrun import NotRun
from redis.server import Server, until
from redis.target import SINK, TLS_SINK, Target, commits, failed

NAMES = {"good": "subjectAltName=IP:127.0.0.1,DNS:localhost", "other": "subjectAltName=DNS:redis.example.org", "client": "subjectAltName=DNS:client"}


@functools.cache
def _certificates():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="idem-redis-tls."))

    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "2")
    for name, names in NAMES.items():
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (directory / f"{name}.ext").write_text(names)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", f"{name}.ext", "-out", f"{name}.crt")
    openssl("rsa", "-in", "client.key", "-aes128", "-passout", "pass:s3cret-of-the-key", "-out", "locked.key")
    return directory


def _server(name="good", clients="no"):
    c = _certificates()
    plain = Server()
    with_tls = {"tls-port": str(plain.port), "port": "0", "tls-cert-file": c / f"{name}.crt", "tls-key-file": c / f"{name}.key",
                "tls-ca-cert-file": c / "ca.crt", "tls-auth-clients": clients}
    plain.kill()
    plain.settings.update({k: str(v) for k, v in with_tls.items()})
    plain.write_settings()
    plain.start(wait=False)
    until("the server accepts", lambda: (plain.dir / "log").read_bytes().count(b"eady to accept connections") >= 2)
    return Target(plain, tls="on", sslrootcert=c / "ca.crt")


def _needs_tls():
    if TLS_SINK is None:
        raise NotRun("no program with a hiredis that has TLS: run.sh builds one")


def test_hiredis_without_tls():
    if subprocess.run(["pkg-config", "--exists", "hiredis_ssl"], check=False).returncode == 0:
        raise NotRun("this hiredis has TLS")
    f = failed(Target().start(hello=False, program=SINK, tls="on"))
    assert f["outcome"] == "rejected" and "hiredis 1.0" in f["message"], f


def test_tls():
    _needs_tls()
    t = _server()
    for host in ("127.0.0.1", "localhost"):
        w = t.start(program=TLS_SINK, servers=f"{host}:{t.server.port}", incarnation=host)
        w.batch = w.ready["row_id"]
        commits(w, [{"payload": b'"' + b"x" * 300000 + b'"'}, {}])
        w.close()
    # whoever speaks plainly is not understood, and the other way round
    assert failed(t.start(hello=False, program=TLS_SINK, tls="off", sslrootcert=None, timeout=2000))["outcome"] == "outage"
    assert failed(Target(tls="on", timeout=2000).start(hello=False, program=TLS_SINK))["outcome"] == "outage"


def test_certificate_of_another():
    _needs_tls()
    f = failed(_server("other").start(hello=False, program=TLS_SINK))
    assert f["outcome"] == "outage" and "TLS" in f["message"], f


def test_certificate_that_nobody_knows():
    _needs_tls()
    t = _server()
    f = failed(t.start(hello=False, program=TLS_SINK, sslrootcert=None))
    assert f["outcome"] == "outage" and "TLS" in f["message"], f


def test_client_certificate():
    _needs_tls()
    c = _certificates()
    t = _server(clients="yes")
    assert failed(t.start(hello=False, program=TLS_SINK))["outcome"] == "outage"
    w = t.start(program=TLS_SINK, sslcert=c / "client.crt", sslkey=c / "client.key")
    commits(w, [{}])
    w.close()
    w = t.start(program=TLS_SINK, sslcert=c / "client.crt", sslkey=c / "locked.key", sslpassword="s3cret-of-the-key")
    w.close()
    f = failed(t.start(hello=False, program=TLS_SINK, sslcert=c / "client.crt", sslkey=c / "locked.key"))
    assert "sslkey" in f["message"], f
