"""TLS: whose certificate it is, and what happens without."""
import functools
import pathlib
import tempfile

from brokerlib import KEY_PASSWORD, certificates
from rabbitmq.server import Server
from rabbitmq.target import Target, acked
from sinklib import free_port


@functools.cache
def _certificates():
    return certificates(pathlib.Path(tempfile.mkdtemp(prefix="idem-rabbitmq-tls.")), good="DNS:localhost", client="DNS:client")


def _server(name="good", clients=False):
    """A server that also listens with TLS; the port stands in .tls_port."""
    c = _certificates()
    port = free_port()
    server = Server(f"listeners.ssl.local = 127.0.0.1:{port}\nssl_options.cacertfile = {c}/ca.crt\n"
                    f"ssl_options.certfile = {c}/{name}.crt\nssl_options.keyfile = {c}/{name}.key\n"
                    f"ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = {str(clients).lower()}\n")
    return Target(server, servers=f"localhost:{port}", tls="on", sslrootcert=c / "ca.crt"), port


def test_tls():
    t, port = _server()
    w = t.start()
    for _ in range(3):
        acked(w, [{"payload": b'"' + b"x" * 3000000 + b'"'}, {}, {"payload": b'"' + b"x" * 300000 + b'"'}])
    for _ in range(3):
        acked(w, [{}] * 300)
    w.close()
    assert len(t.ids()) == 909
    # the name in the certificate is another one; the authority is none of the system's
    f = t.refused(servers=f"127.0.0.1:{port}")
    assert f["outcome"] == "rejected" and f["sqlstate"] == "28000" and "hostname" in f["message"], f
    f = t.refused(sslrootcert=None)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "28000" and "sslrootcert" in f["message"], f
    f = t.refused(sslrootcert=__file__)
    assert f["outcome"] == "rejected" and "sslrootcert" in f["message"], f
    # whoever speaks plainly is not understood, and the other way round
    assert t.refused(tls="off", sslrootcert=None, timeout=2000)["outcome"] == "outage"
    assert t.refused(servers=t.server.address, timeout=2000)["outcome"] == "outage"


def test_client_certificate():
    c = _certificates()
    t, _ = _server(clients=True)
    assert t.refused(timeout=3000)["outcome"] == "outage"
    w = t.start(sslcert=c / "client.crt", sslkey=c / "client.key")
    acked(w, [{}])
    w.close()
    w = t.start(sslcert=c / "client.crt", sslkey=c / "locked.key", sslpassword=KEY_PASSWORD)
    w.close()
    for more in ({}, {"sslpassword": "s3cret"}):
        f = t.refused(sslcert=c / "client.crt", sslkey=c / "locked.key", **more)
        assert f["outcome"] == "rejected" and "sslpassword" in f["message"], f
