"""TLS, with a hiredis that has it: whose certificate it is, and what happens without."""
import functools
import pathlib
import subprocess
import tempfile

from brokerlib import KEY_PASSWORD, certificates
from notrun import NotRun
from redis.server import Server, until
from redis.target import SINK, TLS_SINK, Target, commits, failed


@functools.cache
def _certificates():
    return certificates(pathlib.Path(tempfile.mkdtemp(prefix="idem-redis-tls.")), good="IP:127.0.0.1,DNS:localhost", wrong="DNS:redis.example.org", client="DNS:client")


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
    f = failed(_server("wrong").start(hello=False, program=TLS_SINK))
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
    w = t.start(program=TLS_SINK, sslcert=c / "client.crt", sslkey=c / "locked.key", sslpassword=KEY_PASSWORD)
    w.close()
    f = failed(t.start(hello=False, program=TLS_SINK, sslcert=c / "client.crt", sslkey=c / "locked.key"))
    assert "sslkey" in f["message"], f
