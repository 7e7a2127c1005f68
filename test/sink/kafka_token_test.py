#!/usr/bin/env python3
"""The kafka sink and token servers: it gets a token before it asks a broker, so most of these tests have no broker."""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from sinklib import HERE, Worker, codec, free_port, run_tests
from tokenserver import EchoingBroker, TokenServer, grant, http, token

BIN = pathlib.Path(os.environ.get("SINK_BINDIR", HERE.parent.parent / "src/sink/bin"))
SINK = BIN / "idempotency-sink-kafka"
OUTCOMES = {v: k for k, v in codec.OUTCOMES.items()}
SECRET = "hush: /+&=%3f \u00fc"
ENCODED = "hush%3A%20%2F%2B%26%3D%253f%20%C3%BC"
NO_BROKER = "could not connect to the brokers"


def shown(text):
    """The text, which has no secret."""
    for secret in (SECRET, ENCODED, "hush", token()[:40]):
        assert secret not in text, text
    return text


def start(server, flags=codec.WANT_POSITION, env=None, **options):
    """The FAILED that answers HELLO; there is no broker."""
    chosen = {"brokers": f"127.0.0.1:{free_port()}", "security_protocol": "sasl_plaintext", "sasl_mechanism": "OAUTHBEARER",
              "user": "the:client", "password": SECRET, "timeout": 3000, "token_url": server and server.url}
    chosen.update(options)
    w = Worker(SINK, options={k: str(v) for k, v in chosen.items() if v is not None}, flags=flags, env=env)
    f = w.expect("FAILED")
    assert w.recv() is None and w.exit_status() == 0
    shown(w.stderr())
    w.sock.close()
    os.close(w.stderr_r)
    shown(f["message"])
    f["outcome"] = OUTCOMES[f["outcome"]]
    return f


def is_outage(f, text=""):
    assert (f["outcome"], f["sqlstate"]) == ("outage", "08001") and text in f["message"], f


def is_refusal(f, text="", sqlstate="28000"):
    assert (f["outcome"], f["sqlstate"]) == ("rejected", sqlstate) and text in f["message"], f


def at_once(check, cases):
    """Check all cases at the same time; each takes a second or more, and next to no work."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda case: check(*case), cases))


def test_request():
    scope = "kafka.write api://a/b?c=d&e +\u00fc%41"
    with TokenServer() as server:
        is_outage(start(server, token_scope=scope, token_audience="https://kafka/&x"), NO_BROKER)
        [r] = server.requests
        assert r.method == "POST" and r.path == "/token", (r.method, r.path)
        assert r.form == {"grant_type": "client_credentials", "scope": scope, "audience": "https://kafka/&x"}, r.body
        assert r.login() == ("the:client", SECRET), r.login()
        assert r.headers["content-type"] == "application/x-www-form-urlencoded", r.headers


def test_login_in_body():
    with TokenServer() as server:
        is_outage(start(server, token_login="body"), NO_BROKER)
        [r] = server.requests
        assert r.form == {"grant_type": "client_credentials", "client_id": "the:client", "client_secret": SECRET}, r.body
        assert "authorization" not in r.headers, r.headers


def test_secret_file():
    with TokenServer() as server, tempfile.NamedTemporaryFile("w") as file:
        file.write(SECRET + "\n")
        file.flush()
        is_outage(start(server, password=None, secret_file=file.name), NO_BROKER)
        assert server.requests[0].login() == ("the:client", SECRET)


def test_environment_is_not_used():
    proxy = f"http://127.0.0.1:{free_port()}"
    with TokenServer() as server:
        is_outage(start(server, env={"http_proxy": proxy, "ALL_PROXY": proxy}), NO_BROKER)
        assert len(server.requests) == 1


def test_tokens_that_are_taken():
    def check(answer):
        with TokenServer(lambda request: http(200, answer)) as server:
            is_outage(start(server), NO_BROKER)
    at_once(check, [[answer] for answer in (
                   {"access_token": "a"}, {"access_token": "a.b-c_d~e+f/g==", "token_type": "bearer", "expires_in": "3599"},
                   {"x": {"access_token": "\n"}, "access_token": token(), "expires_in": 59.5, "y": [{"}": "]"}]},
                   {"access_token": "b" * 32768, "expires_in": 10 ** 30})])


def test_refusals():
    """The code of a refusal is named if RFC 6749 has it; no other word of the answer is."""
    words = {"error_description": f"{SECRET} is wrong", "access_token": token()}
    for status, error, said in ((400, "invalid_scope", "HTTP 400, invalid_scope"), (401, "invalid_client", "HTTP 401, invalid_client"),
                                (401, SECRET, "HTTP 401"), (403, None, "HTTP 403"), (404, "x" * 9999, "HTTP 404")):
        with TokenServer(lambda request, s=status, e=error: http(s, {"error": e, **words})) as server:
            f = start(server)
            is_refusal(f, said)
            assert f["message"].endswith(said) and f"http://127.0.0.1:{server.port}" in f["message"], f
            assert len(server.requests) == 1
    with TokenServer(lambda request: http(401, f"<p>{SECRET}".encode())) as server:
        is_refusal(start(server), "HTTP 401")


def test_outages():
    def check(answer, said):
        with TokenServer(lambda request: answer) as server:
            f = start(server)
            is_outage(f, said)
            assert f"token server http://127.0.0.1:{server.port}: " in f["message"], f
    at_once(check, [(http(status, {"error": "invalid_client", "why": SECRET}), f"HTTP {status}")
                    for status in (500, 502, 503, 504, 429, 408)] + [(b"", ""), (grant()[:-9], "")])
    is_outage(start(None, token_url=f"http://127.0.0.1:{free_port()}/"), "refused")


def drip(request):
    """An answer that never ends, and is never silent."""
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    while True:
        yield b" "
        time.sleep(0.05)


def drip_headers(request):
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X: y\r\n"
        time.sleep(0.05)


def test_slow_servers():
    """A request ends in its time, whatever the server does."""
    def check(answer, timeout, requests):
        with TokenServer(answer) as server:
            is_outage(start(server, timeout=timeout), "Timeout")
            assert len(server.requests) >= requests, len(server.requests)
    # a request has a limit of its own, and another one follows
    at_once(check, ((lambda request: None, 1000, 0), (drip, 2000, 0), (drip_headers, 2000, 0), (lambda request: None, 9000, 2)))


def test_server_comes_back():
    answers = [http(503), b"", b"HTTP/1.1 403 No\r\nContent-Le", b"HTTP/1.1 200 OK\r\n", grant()]
    with TokenServer(lambda request: answers.pop(0)) as server:
        is_outage(start(server, timeout=12000), NO_BROKER)
        assert not answers


def flood(head, piece):
    def answer(request):
        yield head
        while True:
            yield piece
    return answer


def test_hostile_answers():
    """None of them is taken, shown, followed, or kept in memory."""
    gzip = b"\x1f\x8b\x08\x00" + bytes(60)
    answers = {
        "not a JSON object": (http(200), http(200, b"[]"), http(200, b'"x"'), http(200, f"{SECRET}".encode()), http(200, b"{"),
                              http(200, b"\x00" * 999), http(200, gzip, "Content-Encoding: gzip"), http(200, b" {} x")),
        "no access_token": (http(200, {}), http(200, {"access_token": ""}), http(200, {"access_token": 5}), http(200, b'{"access_token"}'),
                            http(200, {"access_token": None, "x": SECRET}), http(200, b"{" * 60000 + b"}")),
        "access_token of its answer is not valid": [http(200, {"access_token": t}) for t in (
            "a\x01auth=x", "a\r\nb", "a b", "=", "\x00", "a\x00b", "\u00fc", "\ud800", "b" * 32769, "a==b", '"')] + [
            http(200, rb'{"access_token": "\u00"}'), http(200, rb'{"access_token": "\ud800\u"}')],
        "token_type": (http(200, {"access_token": "a", "token_type": "mac"}), http(200, {"access_token": "a", "token_type": SECRET})),
        "expires_in": [http(200, {"access_token": "a", "expires_in": e}) for e in (0, -1, "x", "", "0", 1e-9, SECRET) if e != ""],
        "redirect": [http(s, b"", f"Location: {where}") for s, where in (
            (301, "file:///etc/passwd"), (302, f"http://127.0.0.1:1/{SECRET}"), (307, "/token"), (308, "gopher://127.0.0.1/"))],
        "HTTP 204": (http(204),),
        "too large": (http(200, b"{" + b" " * 99999 + b"}"), flood(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 1000),
                      flood(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n"), flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
    }
    for said, each in answers.items():
        for answer in each:
            with TokenServer(answer if callable(answer) else lambda request, answer=answer: answer) as server:
                f = start(server, timeout=9000)
                assert f["outcome"] == "rejected" and said in f["message"], (said, f)
                assert len(server.requests) == 1, "the program asked again"
    for answer in (f"{SECRET}\r\n\r\n".encode(), b"\x00" * 100, b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"):
        with TokenServer(lambda request, answer=answer: answer) as server:
            f = start(server)
            assert f["outcome"] in ("rejected", "outage") and "token server" in f["message"], f


def test_urls():
    bad = {"must be a URL": ("ftp://127.0.0.1/", "file:///etc/passwd", "127.0.0.1", "https://", f"https://{SECRET}/", "https://a b/"),
           "must not have a user": ("https://me@host/", "https://me:hush@host/"),
           "unless the token server": ("http://example.org/", "http://127.0.0.1.example.org/", "http://192.0.2.1/")}
    for said, urls in bad.items():
        for url in urls:
            is_refusal(start(None, token_url=url), said, "HV024")
    with TokenServer() as server:
        is_outage(start(server, token_url=f"http://localhost:{server.port}/"), NO_BROKER)
        is_refusal(start(server, flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD), "must begin with https://", "HV024")
        assert len(server.requests) == 1


def test_options():
    is_refusal(start(None), "token_url", "HV00B")
    with TokenServer() as server:
        is_refusal(start(server, sasl_mechanism="PLAIN"), "token_url", "HV00B")
        is_refusal(start(server, password=None), "password", "HV00B")
        for extensions in ("x", "auth=x", "a1=x", "=x", ",", f"a={SECRET}"):
            is_refusal(start(server, sasl_extensions=extensions), "sasl_extensions", "HV024")
        is_refusal(start(server, token_rootcert=__file__, token_url=server.url.replace("http", "https")), "token_rootcert")
        is_outage(start(server, token_url=server.url.replace("http", "https")))
        assert server.requests == []


def test_files_of_options():
    """A file that is not there is no outage."""
    for option in ("sslrootcert", "token_rootcert", "sslcert"):
        f = start(None, sasl_mechanism="PLAIN", security_protocol="sasl_ssl", **{option: "/nonexistent/file"})
        is_refusal(f, f'could not open {option} "/nonexistent/file"', "58030")


def make_certificate(directory, name):
    """A certificate for the name, by an authority of its own."""
    cert, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "30",
                    "-subj", "/CN=test", "-addext", f"subjectAltName={name}"], check=True, stderr=subprocess.DEVNULL)
    return cert, key


def test_certificates():
    with tempfile.TemporaryDirectory() as directory:
        good = make_certificate(pathlib.Path(directory), "IP:127.0.0.1")
        other = make_certificate(pathlib.Path(directory), "DNS:elsewhere")
        with TokenServer(cert=good) as server:
            is_refusal(start(server), "certificate is not trusted")
            is_refusal(start(server, token_rootcert=other[0]), "certificate is not trusted")
            assert server.requests == []
            is_outage(start(server, token_rootcert=good[0], flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD), NO_BROKER)
            assert server.requests[0].login() == ("the:client", SECRET)
        with TokenServer(cert=other) as server:
            is_refusal(start(server, token_rootcert=other[0]), "certificate is not trusted")
            assert server.requests == []


def test_broker_that_repeats_the_login():
    """What a broker says of a refused login is shown, unless it has the password or the token in it."""
    value = "tokenA.tokenB.tokenC"
    with TokenServer(lambda request: grant(value)) as server:
        def check(mechanism, part):
            oauth = mechanism == "OAUTHBEARER"
            with EchoingBroker(mechanism, lambda got: f"bad login {part or ''}!".encode()) as broker:
                f = start(server if oauth else None, brokers=broker.address, sasl_mechanism=mechanism, timeout=5000,
                          sasl_extensions="logicalCluster=lkc-1,pool=a=b" if oauth else None)
                is_refusal(f, "is not shown" if part else "bad login")
                assert (not part or part not in f["message"]) and broker.address in f["message"], f
                assert (value if oauth else SECRET).encode() in broker.logins[0], broker.logins
                if oauth:
                    assert b"\x01logicalCluster=lkc-1\x01pool=a=b\x01\x01" in broker.logins[0], broker.logins
        at_once(check, (("OAUTHBEARER", value), ("OAUTHBEARER", value[3:18]), ("OAUTHBEARER", None),
                        ("PLAIN", SECRET), ("PLAIN", SECRET[1:14]), ("PLAIN", None)))


if __name__ == "__main__":
    sys.exit(run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")]))
