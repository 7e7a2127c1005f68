"""Logins, rights and certificates."""
from nats.broker import Broker
from nats.target import Target, commits, failed
from sinklib import codec

PUBLISH = ["T.>", "idempotency.position.>", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.MSG.GET.>"]


class One(Target):
    """A stream with a name that rights can be given for."""

    def __init__(self, b, client):
        super().__init__(b, client, subjects=["T.>", "idempotency.position.>"])

    def options(self, **options):
        return super().options(**{"subject": "T.{event_type}", "position_subject": "idempotency.position.{relay}", **options})


def user(name, publish, **more):
    return {"user": name, "password": "s3cret-of-" + name, "permissions": {"publish": publish, "subscribe": ["_INBOX.>"]}, **more}


def test_login_and_rights():
    b = Broker(authorization={"users": [{"user": "admin", "password": "admin"}, user("relay", PUBLISH), user("noread", PUBLISH[:3]),
                                        user("noinfo", PUBLISH[:2]), user("nowrite", ["T.>", *PUBLISH[2:]]), user("one", ["T.good", "T.Ba", *PUBLISH[1:]])]})
    t = One(b, b.client(user="admin", **{"pass": "admin"}))
    login = {"user": "relay", "password": "s3cret-of-relay"}
    for options in ({}, {"user": "relay", "password": "s3cret-wrong"}, {"token": "s3cret-token"}):
        f = t.refused(**options)
        assert (f["outcome"], f["sqlstate"]) == ("rejected", "28000"), (options, f)
    assert t.refused(flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD)["sqlstate"] == "28000"
    w = t.start(flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD, **login)
    batch, _ = w.events([{"type": "good"}])
    commits(w, batch, 1)
    w.close()
    for name in ("noread", "noinfo", "nowrite"):
        f = t.refused(user=name, password="s3cret-of-" + name, timeout=2000)
        assert (f["outcome"], f["sqlstate"]) == ("rejected", "42501"), (name, f)
    w = t.start(user="one", password="s3cret-of-one")
    batch, _ = w.events([{"key": "a", "type": "good"}, {"key": "b", "type": "Bad"}, {"key": "c", "type": "Ba"}])
    assert w.outcomes(batch, 3) == ["acked", "rejected", "acked"] and w.notes[1][0] == "42501", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()
    assert len(t.events()) == 3
    w = t.start(user="one", password="s3cret-of-one", delivery="at_least_once", flags=codec.KEY_ORDER)
    batch, _ = w.events([{"key": "a", "type": "Bad"}, {"key": "b", "type": "good"}, {"key": "a", "type": "good"}, {"key": "c", "type": "Bad.too"}])
    assert w.outcomes(batch, 4) == ["rejected", "acked", "skipped", "rejected"] and w.notes[0][0] == "42501", w.notes
    w.close()
    assert len(t.events()) == 4
    b.remove()


def test_token_and_secret_file():
    b = Broker(authorization={"token": "s3cret-token"})
    t = One(b, b.client(auth_token="s3cret-token"))
    (b.dir / "secret").write_text("s3cret-token\n")
    for options in ({"token": "s3cret-token"}, {"secret_file": b.dir / "secret"}):
        t.start(**options).close()
    assert t.refused()["sqlstate"] == "28000"
    b.remove()


def test_certificates():
    """The server's certificate has to be trusted and to fit the host; the server may ask for the client's."""
    b = Broker(tls={"verify": False})
    t = One(b, b.client())
    good = {"tls": "on", "sslrootcert": b.ca}
    t.start(**good).close()
    for options in ({"tls": "on"}, {"tls": "on", "sslrootcert": b.dir / "other.crt"}, {**good, "servers": f"127.0.0.1:{b.port}"}):
        f = failed(t.start(hello=False, **options))
        assert f["outcome"] == "rejected", (options, f)
    t.start(**{**good, "servers": f"127.0.0.1:{b.port}", "tls_host": "localhost"}).close()
    b.remove()
