"""Signatures of Standard Webhooks, checked by the reference libraries of PyPI and npm."""
import base64
import json
import pathlib
import subprocess
import tempfile
import time
import uuid

from fetched import fetched, library
from receiver import Receiver
from target import SECRET, refused, sink

HERE = pathlib.Path(__file__).resolve().parent


def secret(seed, size=24):
    return "whsec_" + base64.b64encode(bytes((seed * 31 + i * 7) % 256 for i in range(size))).decode()


FIRST, SECOND = secret(1), secret(2, 32)
BODIES = [b'{"total": 99}', b"null", b'"\xc3\xbc\xe2\x82\xac \\u0000"', b'{"a":   1,\n"b": 2}', b'"' + b"x" * 100000 + b'"']


def requests(count=1, **options):
    with Receiver() as there, sink(there, **options) as w:
        for _ in range(count):
            got = w.all([{"key": str(i), "payload": b} for i, b in enumerate(BODIES)])
            assert {g.outcome for g in got} == {"acked"}, got
        return there.requests


def python_takes(r, key):
    webhooks = library("standardwebhooks")
    try:
        webhooks.Webhook(key).verify(r.body, dict(r.headers))
        return True
    except webhooks.WebhookVerificationError:
        return False


def node_takes(cases):
    """A list of bool for (request, secret)."""
    given = [{"headers": dict(r.headers), "body": base64.b64encode(r.body).decode(), "secret": key} for r, key in cases]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(given, file)
        file.flush()
        done = subprocess.run(["node", HERE / "verify.js", fetched("node"), file.name], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_reference_libraries_take_it():
    for r in (found := requests(signing_secrets=FIRST)):
        assert r.header("webhook-signature").startswith("v1,") and " " not in r.header("webhook-signature")
        assert abs(int(r.header("webhook-timestamp")) - time.time()) < 10
        assert python_takes(r, FIRST) and not python_takes(r, SECOND)
    assert node_takes([(r, key) for r in found for key in (FIRST, SECOND)]) == [True, False] * len(found)


def test_rotation():
    """While both secrets are set, receivers with either of them take each message."""
    found = requests(signing_secrets=f"{FIRST} {SECOND}")
    for r in found:
        assert len(r.header("webhook-signature").split(" ")) == 2
        assert python_takes(r, FIRST) and python_takes(r, SECOND) and not python_takes(r, secret(3))
    assert node_takes([(r, key) for r in found for key in (FIRST, SECOND, secret(3))]) == [True, True, False] * len(found)


def test_many_secrets():
    keys = [secret(i) for i in range(5)]
    for r in requests(signing_secrets=" ".join(keys)):
        assert all(python_takes(r, key) for key in keys)


def test_changed_message_is_refused():
    for r in requests(signing_secrets=FIRST):
        r.body += b" "
        assert not python_takes(r, FIRST)


def test_time_is_that_of_the_try():
    """A repeat is signed anew, so that a receiver takes it long after the first try."""
    with Receiver(lambda r: 503 if r.attempt == 1 else 200) as there, sink(there, signing_secrets=FIRST) as w:
        event = {"id": uuid.uuid4(), "key": "1"}
        assert w.one(**event).outcome == "retry"
        time.sleep(1.1)
        assert w.one(**event).outcome == "acked"
        first, second = there.requests
        assert first.id == second.id and int(second.header("webhook-timestamp")) > int(first.header("webhook-timestamp"))
        assert python_takes(second, FIRST)


def test_all_forms_are_signed():
    for form in ("cloudevents_binary", "cloudevents_structured"):
        for r in requests(signing_secrets=FIRST, format=form):
            assert python_takes(r, FIRST), (form, r.headers)


def test_secret_file_of_signatures():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(f"{FIRST} {SECOND}\n")
        file.flush()
        for r in requests(signing_secrets_file=file.name):
            assert python_takes(r, FIRST) and python_takes(r, SECOND)


def test_secrets_that_are_refused():
    """No message tells what was wrong with which characters."""
    for bad in ("whsec_", "whsec_!" + SECRET, "whsec_" + base64.b64encode(b"short").decode(), f"{FIRST} whsec_{SECRET}", SECRET):
        f = refused(url="http://127.0.0.1/", signing_secrets=bad)
        assert f.outcome == "rejected" and SECRET not in f.message and FIRST not in f.message, f
