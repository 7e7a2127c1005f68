"""Logins: basic, bearer, OAuth 2.0, certificates of the client, a CA of one's own."""
import base64
import contextlib
import pathlib
import secrets
import tempfile
import time

import certificates
from receiver import Receiver, Reply
from target import LOOPBACK, SECRET, Ended, at_once, fate, once, refused, sink, start
from tokenserver import TokenServer, grant, http

URL = "http://127.0.0.1/"


def test_basic():
    for user, password in (("relay", SECRET), ("rel\u00e4y", "p:w:"), ("a b", "\u20ac")):
        got, there = once(auth="basic", user=user, password=password)
        kind, _, text = there.requests[0].header("authorization").partition(" ")
        assert got.outcome == "acked" and kind == "Basic" and base64.b64decode(text).decode() == f"{user}:{password}", text


def test_bearer():
    got, there = once(auth="bearer", token=SECRET.replace("%", ""))
    assert got.outcome == "acked" and there.requests[0].header("authorization") == "Bearer " + SECRET.replace("%", "")


def test_secret_file():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(SECRET.replace("%", "") + "\n")
        file.flush()
        for options in ({"auth": "bearer"}, {"auth": "basic", "user": "relay"}):
            got, there = once(secret_file=file.name, **options)
            assert got.outcome == "acked", got
            assert there.requests[0].header("authorization") in (
                "Bearer " + SECRET.replace("%", ""),
                "Basic " + base64.b64encode(("relay:" + SECRET.replace("%", "")).encode()).decode())


def test_tokens_that_would_be_headers():
    for token in ("a\r\nX-Admin: 1", "a\nb", "a\x00b"[:1] + "\r"):
        f = refused(url=URL, auth="bearer", token=token)
        assert f.outcome == "rejected" and "X-Admin" not in f.message, f


def test_user_in_the_url():
    """A login of the URL would be in catalogs that everybody reads: it is refused, or at least not sent."""
    with Receiver() as there:
        got = fate(url=there.url.replace("http://", f"http://user:{SECRET}@") + "/")
        assert SECRET not in got.message, got
        assert got.outcome == "rejected" or there.requests[0].header("authorization") is None, got


def test_login_without_auth():
    """A login that would not be used is an error."""
    f = refused(url=URL, user="relay", password=SECRET)
    assert f.outcome == "rejected" and "auth" in f.message, f


def oauth(server, **options):
    return {"auth": "oauth2", "token_url": server.url, "user": "client", "password": SECRET, **options}


def test_oauth2():
    with TokenServer(lambda r: grant(f"tok{len(server.requests)}")) as server, Receiver() as there:
        with sink(there, **oauth(server, token_scope="hooks.write", token_audience="https://api")) as w:
            assert {g.outcome for g in w.all([{"key": str(i)} for i in range(50)])} == {"acked"}
            w.one()
        [r] = server.requests
        assert r.login() == ("client", SECRET) and r.form["grant_type"] == "client_credentials"
        assert (r.form["scope"], r.form["audience"]) == ("hooks.write", "https://api")
        assert {r.header("authorization") for r in there.requests} == {"Bearer tok1"}


def test_oauth2_login_in_body():
    with TokenServer() as server, Receiver() as there, sink(there, **oauth(server, token_login="body")) as w:
        w.one()
        assert (server.requests[0].form["client_id"], server.requests[0].form["client_secret"]) == ("client", SECRET)
        assert "authorization" not in server.requests[0].headers


def test_oauth2_token_is_renewed():
    """Before it ends, without an event that fails."""
    with TokenServer(lambda r: grant(f"tok{len(server.requests)}", 3)) as server, Receiver() as there:
        with sink(there, **oauth(server)) as w:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                assert w.one().outcome == "acked"
                time.sleep(0.1)
        used = list(dict.fromkeys(r.header("authorization") for r in there.requests))
        assert len(used) >= 2 and used[0] == "Bearer tok1", used
        assert len(server.requests) <= 6, len(server.requests)


def test_oauth2_token_that_is_no_longer_good():
    """The receiver takes a token no more: the next event, or the next program, has a new one."""
    with TokenServer(lambda r: grant(f"tok{len(server.requests)}")) as server:
        with Receiver(lambda r: 401 if r.header("authorization") == "Bearer tok1" and len(there.requests) > 1 else 200) as there:
            with sink(there, **oauth(server)) as w:
                assert w.one(key="a").outcome == "acked"
                outcomes = []
                with contextlib.suppress(Ended):
                    for i in range(3):
                        outcomes.append(w.one(key=f"b{i}").outcome)
                assert "acked" in outcomes or not outcomes or outcomes[-1] == "outage", outcomes


def test_oauth2_outage():
    with TokenServer(lambda r: http(503, b"")) as server, Receiver() as there:
        got = fate(url=there.url + "/", **oauth(server))
        assert got.outcome == "outage" and not there.requests, got


def test_oauth2_refusal():
    with TokenServer(lambda r: http(401, {"error": "invalid_client", "error_description": SECRET})) as server, Receiver() as there:
        got = fate(url=there.url + "/", **oauth(server))
        assert got.outcome == "rejected" and got.sqlstate == "28000" and SECRET not in got.message and not there.requests, got


def test_oauth2_lies():
    """A token that would be a header more, no token, a redirect, an endless answer, nothing at all."""
    def endless(r):
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"10000\r\n" + b" " * 65536 + b"\r\n"
    answers = [lambda r: grant("a\r\nX-Admin: 1"), lambda r: grant("a b"), lambda r: http(200, {"token_type": "Bearer"}),
               lambda r: http(200, b"<html>"), lambda r: http(302, b"", "Location: http://127.0.0.1/"), endless, lambda r: None]

    def check(answer):
        with TokenServer(answer) as server, Receiver() as there:
            got = fate(url=there.url + "/", **oauth(server))
            assert got.outcome in ("rejected", "outage") and not there.requests, got
    at_once(check, [[a] for a in answers])


def test_server_certificates():
    ca = certificates.authority()
    stranger = certificates.Authority("stranger")
    expired = ca.expired()
    time.sleep(1.1)
    good = {"sslrootcert": ca.root}
    cases = [
        (ca.issue("server"), good, "acked"),
        (ca.issue("server"), {}, "outage"),
        (ca.issue("other", "subjectAltName=DNS:example.com\n"), good, "outage"),
        (ca.issue("unnamed", "basicConstraints=CA:FALSE\n"), good, "outage"),
        (ca.issue("client only", NAMES + "extendedKeyUsage=clientAuth\n"), good, "outage"),
        (expired, good, "outage"), (ca.self_signed(), good, "outage"), (stranger.issue("server"), good, "outage"),
        (stranger.issue("server"), {"sslrootcert": stranger.root}, "acked"),
    ]

    def check(cert, options, outcome):
        got, there = once(tls=certificates.server(cert), **options)
        assert got.outcome == outcome and bool(there.requests) == (outcome == "acked"), (cert, options, got)
    at_once(check, cases)


NAMES = certificates.NAMES


def test_old_versions_of_tls():
    import ssl
    ca = certificates.authority()
    context = certificates.server(ca.issue("server"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    got, there = once(tls=context, sslrootcert=ca.root)
    assert got.outcome == "outage" and not there.requests, got


def test_client_certificate():
    ca = certificates.authority()
    cert, key = ca.issue("client")
    tls = certificates.server(ca.issue("server"), ca.root)
    with Receiver(tls=tls) as there, sink(there, sslrootcert=ca.root, sslcert=cert, sslkey=key) as w:
        assert {g.outcome for g in w.all([{"key": str(i)} for i in range(20)])} == {"acked"}
    with Receiver(tls=tls) as there:
        got = fate(url=there.url + "/", sslrootcert=ca.root)
        assert got.outcome in ("outage", "retry", "unknown") and not there.requests, got


def test_key_with_a_password():
    ca = certificates.authority()
    cert, key = ca.issue("locked")
    certificates.openssl(ca.dir, "rsa", "-aes256", "-in", key, "-out", "locked2.key", "-passout", f"pass:{SECRET}")
    tls = certificates.server(ca.issue("server"), ca.root)
    with Receiver(tls=tls) as there, sink(there, sslrootcert=ca.root, sslcert=cert, sslkey=ca.dir / "locked2.key",
                                          sslpassword=SECRET) as w:
        assert w.one().outcome == "acked"
    with Receiver(tls=tls) as there:
        got = fate(url=there.url + "/", sslrootcert=ca.root, sslcert=cert, sslkey=ca.dir / "locked2.key", sslpassword="wrong")
        assert got.outcome != "acked" and not there.requests and "wrong" not in got.message, got


def test_files_that_are_not_there():
    for name in ("sslrootcert", "sslcert", "secret_file", "signing_secrets_file"):
        options = {name: "/nowhere/" + name}
        if name == "sslcert":
            options["sslkey"] = "/nowhere/key"
        if name == "secret_file":
            options.update(auth="bearer")
        with Receiver(tls=certificates.server(certificates.authority().issue("server"))) as there:
            got = fate(url=there.url + "/", allowed_addresses=LOOPBACK, **options)
            assert got.outcome == "rejected" and not there.requests, (name, got)


def test_files_that_are_none():
    path = pathlib.Path(__file__)
    for name in ("sslrootcert", "sslcert"):
        options = {name: path, **({"sslkey": path} if name == "sslcert" else {})}
        with Receiver(tls=certificates.server(certificates.authority().issue("server"))) as there:
            got = fate(url=there.url + "/", **options)
            assert got.outcome == "rejected" and not there.requests, (name, got)


def test_login_stays_with_its_server():
    """A redirect to another server gets neither event nor login."""
    with Receiver() as other:
        got, there = once(Reply(307, b"", f"Location: {other.url}/"), auth="basic", user="u", password=SECRET)
        assert got.outcome == "rejected" and len(there.requests) == 1 and not other.connections, got


def test_what_a_receiver_repeats():
    """A receiver that sends all that it was sent back: no message has a secret, in whatever form."""
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    password = SECRET.replace("%", "")
    basic = base64.b64encode(f"relay:{password}".encode()).decode()
    for status in (400, 410, 503, 302):
        for options, hidden in (
                ({"auth": "basic", "user": "relay", "password": password, "signing_secrets": secret}, (password, basic)),
                ({"auth": "bearer", "token": password}, (password,))):
            # each alone: an answer with one form of a secret may be hidden for another one
            for what in (*hidden, "header"):
                def echo(r, what=what, status=status):
                    text = r.header("authorization") if what == "header" else what
                    return Reply(status, f"was: {text}".encode(), f"X-Echo: {text}", f"Location: http://127.0.0.1/?{text}", reason=text)
                got, there = once(echo, **options)
                assert there.requests[0].header("authorization"), there.requests[0].headers
                for h in (*hidden, secret, secret[len("whsec_"):]):
                    assert h not in got.message, (status, what, got)


def test_token_that_was_replaced_is_hidden():
    """A receiver refuses the token and repeats it: the message has neither this token nor the next one."""
    def echo(r):
        return Reply(200 if len(there.requests) == 1 else 401, f"you said {r.header('authorization')}".encode())
    given = []
    with TokenServer(lambda r: grant(given.append(secrets.token_hex(16)) or given[-1])) as server, Receiver(echo) as there:
        w = start({"url": there.url + "/", **oauth(server)}, hello=False)
        try:
            w.hello_or_ended()
            w.one(key="taken")
            for i in range(5):
                for got in w.all([{"key": f"{i}.{k}"} for k in range(4)]):
                    assert not any(token in got.message for token in given), got
        except Ended as ended:
            assert not any(token in ended.message for token in given), ended
        finally:
            w.kill()
        assert there.requests
