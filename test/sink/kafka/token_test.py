"""Logins by OAUTHBEARER: a token server of the test's own, and brokers that judge its tokens.

The brokers' validator is Kafka's own for tokens without a signature: it checks their times, subject and scope.  What the
program makes of token servers that fail or lie stands in test/sink/kafka_token_test.py.
"""
import time

from kafka.broker import Broker
from kafka.target import Target, commits, failed, until
from tokenserver import TokenServer, grant, http, token

SCOPE = "kafka.write"


class Giver(TokenServer):
    """Gives tokens with that life in s, or answers as self.broken says; skew: the tokens end so much earlier than told."""

    def __init__(self, life=3600, **kwargs):
        self.life = life
        self.skew = 0
        self.broken = None
        super().__init__(self.give, **kwargs)

    def give(self, request):
        if self.broken is not None:
            return self.broken
        if request.login() != ("relay", "s3cret"):
            return http(401, {"error": "invalid_client", "error_description": "s3cret"})
        return grant(token(life=self.life - self.skew, scope=request.form.get("scope", "").split(), name="s3cret"), self.life)


def target(b=None):
    t = Target(b)
    allow(t)
    return t


def allow(t):
    for kind, name, *rights in (("TOPIC", t.topic, "WRITE", "DESCRIBE"), ("TRANSACTIONAL_ID", t.position, "WRITE", "DESCRIBE"),
                                ("TOPIC", t.position, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")):
        t.b.ask("allow", "relay", kind, name, "LITERAL", *rights)


def oauth(t, server, **more):
    out = dict(brokers=f"127.0.0.1:{t.b.sasl}", security_protocol="sasl_plaintext", sasl_mechanism="OAUTHBEARER", user="relay",
               password="s3cret", token_url=server.url, token_scope=SCOPE)
    return {**out, **more}


def test_exactly_once_with_tokens():
    """Producer and readers log in with one token."""
    t = target()
    with Giver() as server:
        w = t.start(**oauth(t, server))
        for n in range(3):
            batch, _ = w.events([{"key": str(i)} for i in range(20)])
            commits(w, batch, 20)
        w.close()
        assert len(server.requests) == 1, len(server.requests)
        w = t.start(**oauth(t, server), incarnation="log-2")
        assert w.ready["row_id"] == 3
        w.close()
    assert len(t.read()) == 60


def test_tls_to_the_token_server():
    t = target()
    d = t.b.dir
    with Giver(cert=(d / "server.crt", d / "server.key")) as server:
        t.start(**oauth(t, server, token_rootcert=d / "ca.crt")).close()
        f = t.refused(**oauth(t, server))
        assert f["outcome"] == "rejected" and "certificate" in f["message"], f


def test_refused_tokens():
    """By the token server, or by the brokers."""
    t = target()
    with Giver() as server:
        f = t.refused(**oauth(t, server, password="wrong-s3cret"))
        assert f["outcome"] == "rejected" and f["sqlstate"] == "28000" and "invalid_client" in f["message"], f
        f = t.refused(**oauth(t, server, token_scope="kafka.read"))
        assert f["outcome"] == "rejected" and f["sqlstate"] == "28000" and "could not log in to the brokers" in f["message"], f
        server.skew = server.life + 60
        f = t.refused(**oauth(t, server))
        assert f["outcome"] == "rejected" and f["sqlstate"] == "28000", f


def test_token_server_down_at_start():
    t = target()
    with Giver() as server:
        server.broken = http(503)
        f = t.refused(**oauth(t, server, timeout=3000))
        assert f["outcome"] == "outage" and "HTTP 503" in f["message"], f
        server.broken = None
        t.start(**oauth(t, server)).close()


def test_tokens_replaced_under_way():
    """Nothing is lost or doubled while tokens come and go, and while the brokers end sessions."""
    b = Broker(connections_max_reauth_ms=3000)
    try:
        t = target(b)
        sent = 0
        with Giver(life=12) as server:
            w = t.start(**oauth(t, server))
            deadline = time.monotonic() + 120
            while len(server.requests) < 3:
                assert time.monotonic() < deadline, f"{len(server.requests)} tokens"
                commits(w, w.events([{"key": str(i)} for i in range(5)])[0], 5)
                sent += 5
            w.close()
        assert len(t.values()) == sent and len(t.read()) == sent
    finally:
        b.remove()


def test_token_replaced_while_idle():
    t = target()
    with Giver(life=10) as server:
        w = t.start(**oauth(t, server))
        until("the next token is asked for", lambda: len(server.requests) >= 2)
        commits(w, w.events([{}])[0], 1)
        w.close()


def test_token_server_down_under_way():
    """Nothing is felt before the token ends; after it the brokers hang up, and the relay is in outage until the server is back."""
    b = Broker(connections_max_reauth_ms=60000)
    try:
        t = target(b)
        with Giver(life=10) as server:
            options = oauth(t, server, timeout=5000)
            w = t.start(**options)
            server.broken = http(500, b"s3cret")
            batch, first = w.events([{}])
            commits(w, batch, 1)
            until("the token has ended", lambda: len(server.requests) >= 2 and time.monotonic() > server.times[0] + 10.5)
            batch, second = w.events([{}])
            f = failed(w)
            assert f["outcome"] == "outage", f
            f = t.refused(**options)
            assert f["outcome"] == "outage" and "HTTP 500" in f["message"], f
            server.broken = None
            w = t.start(**options, incarnation="log-2")
            assert w.ready["row_id"] in (1, 2)
            if w.ready["row_id"] == 1:
                commits(w, w.events([{"id": second[0]}], row_id=2)[0], 1)
            w.close()
        assert sorted(t.values()) == sorted(i.hex for i in first + second) and len(t.read()) == 2
    finally:
        b.remove()


def test_secret_withdrawn_under_way():
    """The token is used while it lives; the next start is refused."""
    t = target()
    with Giver(life=10) as server:
        w = t.start(**oauth(t, server))
        server.broken = http(401, {"error": "invalid_client"})
        until("the next token is asked for", lambda: len(server.requests) >= 2)
        commits(w, w.events([{}])[0], 1)
        w.close()
        f = t.refused(**oauth(t, server))
        assert f["outcome"] == "rejected" and "invalid_client" in f["message"], f
