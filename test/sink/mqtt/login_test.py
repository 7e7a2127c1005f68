"""Logins and certificates."""
import pathlib
import tempfile

from brokerlib import KEY_PASSWORD
from mqtt.broker import Broker
from mqtt.target import SINK, Target, acks
from sinklib import codec, look


def test_login():
    b = Broker(users=[("relay", "s3cret-of-relay"), ("admin", "admin")])
    t = Target(b, user="admin", password="admin")
    for options in ({}, {"user": "relay", "password": "s3cret-wrong"}, {"user": "nobody", "password": "s3cret-of-relay"}):
        f = t.refused(**options)
        assert (f["outcome"], f["sqlstate"]) == ("rejected", "28000"), (options, f)
    with tempfile.NamedTemporaryFile("w", suffix=".secret") as file:
        file.write("s3cret-of-relay\nmore\n")
        file.flush()
        for secret in ({"password": "s3cret-of-relay"}, {"secret_file": file.name}):
            w = t.start(flags=codec.REQUIRE_PASSWORD, user="relay", **secret)
            acks(w, [{}])
            w.close()
    found, status = look(SINK, t.options(user="relay", password="s3cret-wrong"))
    assert status == 0 and not found["connection"][0] and "s3cret" not in str(found), found
    found, status = look(SINK, t.options(user="relay", password="s3cret-of-relay"))
    assert status == 0 and [ok for ok, *_ in found.values()] == [1] * 4 and "does not tell" in found["rights"][1], found
    assert len(t.messages()) == 2
    b.remove()


def test_tls():
    b = Broker(tls=True)
    t = Target(b)
    w = t.start(tls="on", sslrootcert=b.dir / "ca.crt")
    acks(w, [{"key": str(i), "payload": b"x" * 5000, "json": False} for i in range(500)])
    w.close()
    # the certificate is localhost's
    for servers, ca in ((f"127.0.0.1:{b.port}", b.dir / "ca.crt"), (b.address, b.dir / "other.crt"), (b.address, None)):
        f = t.refused(servers=servers, tls="on", sslrootcert=ca)
        assert f["outcome"] == "rejected" and f["sqlstate"] == "08006" and "verif" in f["message"], (servers, ca, f)
    assert t.refused()["outcome"] == "outage", "no TLS"
    plain = Target()
    assert plain.refused(tls="on", sslrootcert=b.dir / "ca.crt")["outcome"] == "outage", "a broker without TLS"
    assert len(t.messages()) == 500
    b.remove()


def test_client_certificate():
    b = Broker(tls=True)
    conf = pathlib.Path(b.dir / "conf")
    conf.write_text(conf.read_text() + "require_certificate true\n")
    b.stop()
    b.start()
    t = Target(b, reader=False)
    tls = {"tls": "on", "sslrootcert": b.dir / "ca.crt"}
    assert t.refused(**tls)["outcome"] == "outage"
    for key in ({"sslkey": b.dir / "client.key"}, {"sslkey": b.dir / "locked.key", "sslpassword": KEY_PASSWORD}):
        w = t.start(**tls, sslcert=b.dir / "client.crt", **key)
        acks(w, [{}])
        w.close()
    for password in ({}, {"sslpassword": "s3cret-wrong"}):
        f = t.refused(**tls, sslcert=b.dir / "client.crt", sslkey=b.dir / "locked.key", **password)
        assert f["outcome"] in ("rejected", "outage"), f
    b.remove()
