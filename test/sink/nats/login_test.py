"""Logins, rights and certificates."""
import base64
import binascii
import itertools
import json
import pathlib
import subprocess
import tempfile

from nats.broker import Broker
from nats.target import SINK, Target, commits, failed
from sinklib import codec, look

PUBLISH = ["T.>", "idempotency.position.>", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.MSG.GET.>"]

TOLD = "$SYS.REQ.USER.INFO"


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
                                        user("noinfo", PUBLISH[:2]), user("nohear", PUBLISH, permissions={"publish": PUBLISH, "subscribe": ["T.>"]}), user("nowrite", ["T.>", *PUBLISH[2:]]), user("one", ["T.good", "T.Ba", *PUBLISH[1:]]),
                                        user("told", ["T.*", *PUBLISH[2:], TOLD]), user("toldone", ["T.good", *PUBLISH[1:], TOLD])]})
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
    for name in ("noread", "noinfo", "nowrite", "nohear"):
        f = t.refused(user=name, password="s3cret-of-" + name, timeout=2000)
        assert (f["outcome"], f["sqlstate"]) == ("rejected", "42501"), (name, f)
    for name, wrong in (("noread", ["position"]), ("nowrite", []), ("told", ["rights"]), ("toldone", [])):
        found, status = look(SINK, t.options(user=name, password="s3cret-of-" + name, timeout=2000, subject="T.good"))
        assert status == 0 and [what for what, (ok, *_) in found.items() if not ok] == wrong, (name, found)
        assert ("does not tell" in found["rights"][1]) == (not name.startswith("told")), (name, found)
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


def test_mapped_subject():
    """A subject that the account maps away from the stream is its event's fault, and no outage."""
    b = Broker(mappings={"T.away": "nowhere"})
    t = One(b, b.client())
    w = t.start()
    batch, _ = w.events([{"type": "away"}])
    assert w.outcomes(batch, 1) == ["acked"]
    w.expect("VERDICT", batch=batch, kind=2)
    failed(w)
    w = t.start()
    batch, _ = w.events([{"type": "here"}])
    commits(w, batch, 1)
    w.close()
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


class Key:
    """A key of NATS' decentralised logins: Ed25519, written in base32 with a checksum."""

    numbers = itertools.count()
    PREFIXES = {"O": 14 << 3, "A": 0, "U": 20 << 3}

    def __init__(self, directory, kind):
        self.path = directory / f"key{next(self.numbers)}.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", self.path], check=True)
        self.seed = self._der("-outform", "DER")[-32:]
        self.kind = self.PREFIXES[kind]
        self.public = self._written(bytes([self.kind]) + self._der("-pubout", "-outform", "DER")[-32:])

    def _der(self, *args):
        return subprocess.run(["openssl", "pkey", "-in", self.path, *args], check=True, stdout=subprocess.PIPE).stdout

    @staticmethod
    def _written(data):
        return base64.b32encode(data + binascii.crc_hqx(data, 0).to_bytes(2, "little")).decode().rstrip("=")

    def secret(self):
        return self._written(bytes([18 << 3 | self.kind >> 5, (self.kind & 31) << 3]) + self.seed)

    def sign(self, data):
        message = self.path.with_suffix(".message")
        message.write_bytes(data)
        return subprocess.run(["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", self.path, "-in", message],
                              check=True, stdout=subprocess.PIPE).stdout

    def token(self, subject, nats):
        def part(value):
            return base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).decode().rstrip("=")
        text = part({"typ": "JWT", "alg": "ed25519-nkey"}) + "." + part(
            {"jti": subject[:20], "iat": 1700000000, "iss": self.public, "sub": subject, "name": "test", "nats": {"version": 2, **nats}})
        return text + "." + part(self.sign(text.encode()))


def test_credentials():
    """A user's JWT and seed, in a file as nsc writes it."""
    with tempfile.TemporaryDirectory(prefix="idem-nats-keys.") as name:
        directory = pathlib.Path(name)
        operator, system, account, person, other = (Key(directory, kind) for kind in "OAAUU")
        unlimited = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
        b = Broker(operator=operator.token(operator.public, {"type": "operator"}), resolver="MEMORY", system_account=system.public, resolver_preload={
            system.public: operator.token(system.public, {"type": "account", "limits": unlimited}),
            account.public: operator.token(account.public, {"type": "account", "limits": {
                **unlimited, "wildcards": True, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}})})
        jwt = account.token(person.public, {"type": "user", **dict.fromkeys(("subs", "data", "payload"), -1)})
        client = b.client(jwt=jwt, sign=lambda nonce: base64.urlsafe_b64encode(person.sign(nonce)).decode().rstrip("="))
        t = One(b, client)
        for key, good in ((person, True), (other, False)):
            (directory / "creds").write_text(f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
                                             f"-----BEGIN USER NKEY SEED-----\n{key.secret()}\n------END USER NKEY SEED------\n")
            if good:
                w = t.start(credentials_file=directory / "creds", flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD)
                batch, _ = w.events([{"type": "good"}])
                commits(w, batch, 1)
                w.close()
            else:
                assert t.refused(credentials_file=directory / "creds")["sqlstate"] == "28000"
        (directory / "creds").write_text("nothing of it")
        assert t.refused(credentials_file=directory / "creds")["outcome"] in ("rejected", "outage")
        assert t.refused(credentials_file=directory / "none")["outcome"] == "rejected"
        b.remove()
