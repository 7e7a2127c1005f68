"""Logins by OAUTHBEARER: a token server of the test's own, and brokers that judge its tokens.

The brokers that the tests share have Kafka's validator for tokens without a signature: it checks times, subject and scope.
signed() has brokers with Kafka's validator for signed tokens.  What the program makes of token servers that fail or lie
stands in test/sink/kafka_token_test.py.
"""
import base64
import contextlib
import json
import pathlib
import tempfile
import time

from kafka.broker import JAVA, Broker
from kafka.relay_test import Source, check
from kafka.target import Target, commits, failed, until
from tokenserver import Signer, TokenServer, base64url, grant, http, token, unsigned

SCOPE = "kafka.write"
ISSUER, AUDIENCE = "https://idp.example.org", "kafka"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


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


@contextlib.contextmanager
def signed():
    """A broker that wants tokens signed by the signer, and the signer."""
    with tempfile.TemporaryDirectory(prefix="idem-kafka-keys.") as directory:
        signer = Signer(directory)
        keys = pathlib.Path(directory) / "jwks.json"
        keys.write_text(signer.jwks())
        keys.parent.chmod(0o755)
        prefix = "listener_name_sasl_oauthbearer_sasl_"
        b = Broker(launcher=[*JAVA, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"],
                   **{prefix + "server_callback_handler_class": HANDLER, prefix + "oauthbearer_jwks_endpoint_url": keys.as_uri(),
                      prefix + "oauthbearer_expected_audience": AUDIENCE, prefix + "oauthbearer_expected_issuer": ISSUER})
        try:
            yield b, signer
        finally:
            b.remove()


def test_signed_tokens():
    """The brokers take a token that is signed, and no other: each refusal is the login's, and the next start can be good."""
    with signed() as (b, signer), tempfile.TemporaryDirectory(prefix="idem-kafka-keys.") as directory:
        t = target(b)
        stranger = Signer(directory, signer.kid)
        claims = {"iss": ISSUER, "aud": AUDIENCE, "scope": SCOPE}
        good = signer.token(**claims)
        head, _, signature = good.split(".")
        forged = json.dumps({"sub": "admin", "exp": time.time() + 3600, **claims}).encode()
        given = {
            "expired": signer.token("relay", -60, **claims),
            "signed by a stranger": stranger.token(**claims),
            "not signed": token(**claims),
            "of no algorithm": unsigned({"alg": "none", "kid": signer.kid}, **claims) + ".",
            "forged": ".".join((head, base64url(forged), signature)),
            "with a key of another name": Signer(directory, "key-2").token(**claims),
            "for somebody else": signer.token(**{**claims, "aud": "mail"}),
            "of another issuer": signer.token(**{**claims, "iss": "https://idp.example.com"}),
        }
        with TokenServer(lambda request: grant(good if wrong is None else given[wrong])) as server:
            for wrong in given:
                f = t.refused(**oauth(t, server))
                assert f["outcome"] == "rejected" and f["sqlstate"] == "28000" and "log in" in f["message"], (wrong, f)
                assert given[wrong] not in f["message"], (wrong, f)
            wrong = None
            w = t.start(**oauth(t, server))
            commits(w, w.events([{"key": str(i)} for i in range(20)])[0], 20)
            w.close()
        assert len(t.read()) == 20


SECRET = "Hush/4711+=%"
EVENTS = """INSERT INTO sent SELECT idempotency.outbox_enqueue('order', k::text, 'Counted', jsonb_build_object('n', n))
    FROM (SELECT (i - 1) % 5 AS k, {base} + (i - 1) / 5 + 1 AS n FROM generate_series(1, 50) i ORDER BY i) AS numbered"""


def traces(source, hidden):
    """Where a secret is seen: the log, what any role can ask the server, arguments and environments."""
    places = {"the log": source.log()}
    for view in ("pg_stat_activity", "idempotency.stat_relay", "pg_foreign_server", "idempotency.dead_letters"):
        places[view] = source.sql(f"SELECT v FROM {view} v")
    for view in ("pg_user_mappings", "information_schema.user_mapping_options"):
        places[view] = source.sql(f"SET ROLE stranger; SELECT v FROM {view} v")
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if "idempotency" in (process / "cmdline").read_text(errors="replace"):
                    places[f"{process}/{file}"] = (process / file).read_text(errors="replace")
    return [(place, text) for place, text in places.items() if any(h in text for h in hidden)]


def test_relay_with_tokens():
    """A relay from a server, whose secret and tokens stand nowhere, whoever is asked and whatever fails."""
    with signed() as (b, signer):
        source = Source(b)
        hidden = [SECRET, base64.b64encode(f"outbox-relay:{SECRET}".encode()).decode(), "Hush"]
        state = {"answer": None}

        def give(request):
            if request.login() != ("outbox-relay", SECRET):
                return http(401, {"error": "invalid_client", "error_description": f"not {SECRET}"})
            if state["answer"] is not None:
                return state["answer"]
            hidden.append(signer.token("outbox-relay", iss=ISSUER, aud=AUDIENCE, scope=request.form["scope"]))
            return grant(hidden[-1])

        def becomes(expected, text=""):
            until(source.state, lambda: source.sql(
                f"SELECT state = '{expected}' AND strpos(coalesce(last_error, ''), '{text}') > 0 FROM idempotency.stat_relay")
                == "t", 90)
            assert not traces(source, hidden), traces(source, hidden)

        def enqueue(base):
            source.sql(EVENTS.format(base=base))
        try:
            with TokenServer(give, cert=(b.dir / "server.crt", b.dir / "server.key")) as server:
                ca = source.copy(b.dir / "ca.crt")
                source.sql("CREATE TABLE sent (event_id uuid); CREATE ROLE stranger; GRANT pg_monitor TO stranger")
                source.sql(f"""CREATE SERVER idem FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (brokers '127.0.0.1:{b.sasl}',
                    security_protocol 'sasl_plaintext', sasl_mechanism 'OAUTHBEARER', token_url '{server.url}',
                    token_scope '{SCOPE}', token_rootcert '{ca}', timeout '5000');
                    CREATE USER MAPPING FOR CURRENT_USER SERVER idem OPTIONS (user 'outbox-relay', password '{SECRET}')""")
                source.configure(log_statement="all", log_min_messages="debug2", log_min_duration_statement="0")
                # the operator of the brokers has a login of his own
                source.shell(source.sql("SELECT idempotency.sink_setup('idem', 'orders')").replace(f":{b.sasl}", f":{b.port}"))
                b.topic("outbox.event.order", 3)
                source.sql("SELECT idempotency.relay_create('orders', 'idem', max_backoff => '1 s')")
                enqueue(0)
                until(source.state, lambda: len(b.read("outbox.event.order")) == 50)
                becomes("streaming")
                assert len(hidden) > 3, "no token was given"
                assert any("cmdline" in place for place, _ in traces(source, ["idempotency-sink-kafka"])), "no program is seen"
                # the token server is out
                state["answer"] = http(503, SECRET.encode())
                source.end_program()
                becomes("outage", "HTTP 503")
                # it refuses; then the brokers do
                state["answer"] = http(401, {"error": "invalid_client", "error_description": SECRET})
                becomes("misconfigured", "invalid_client")
                seen = {place for place, _ in traces(source, ["invalid_client"])}
                assert {"the log", "idempotency.stat_relay"} <= seen, f"the error is seen only in {seen}"
                hidden.append(signer.token("outbox-relay", -60, iss=ISSUER, aud=AUDIENCE))
                state["answer"] = grant(hidden[-1])
                becomes("misconfigured", "log in")
                enqueue(10)
                state["answer"] = None
                until(source.state, lambda: len(b.read("outbox.event.order")) == 100)
                # another secret, from a file
                source.configure(log_statement="none", log_min_duration_statement="-1")
                file = source.copy(b.dir / "secret", SECRET + "\n")
                source.sql(f"""ALTER USER MAPPING FOR CURRENT_USER SERVER idem OPTIONS (DROP password, ADD secret_file '{file}')""")
                source.configure(log_statement="all", log_min_duration_statement="0")
                enqueue(20)
                until(source.state, lambda: len(b.read("outbox.event.order")) == 150)
                becomes("streaming")
                check(b, "outbox.event.order", set(source.sql("SELECT event_id FROM sent").split()))
        finally:
            source.stop()
