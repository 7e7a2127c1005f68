"""The receivers of these tests, by curl: what they say is what they were told to say."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import certificates
import http2
import misbehave
from misbehave import raw
from receiver import Receiver, Reply, read_journal
from target import at_once, free_port, until

HERE = pathlib.Path(__file__).resolve().parent
URLS = "/in/order/{}"


def curl(url, *args, timeout=20):
    """(exit status, what it wrote)"""
    done = subprocess.run(["curl", "-sS", "--noproxy", "*", "-m", "2", "-w", "%{http_code}", *args, url], capture_output=True,
                          text=True, timeout=timeout, check=False)
    return done.returncode, done.stdout


def test_receiver_remembers():
    with tempfile.NamedTemporaryFile() as file, \
            Receiver(lambda r: Reply(503, b"busy", "Retry-After: 7") if r.attempt == 1 else 204, file.name) as there:
        for expected in ("busy503", "204"):
            assert curl(there.url + "/in/order/a%2Fb", "-d", '{"n": 1}', "-H", "webhook-id: x") == (0, expected)
        [first, second] = list(read_journal(file.name))
        assert (first["id"], first["key"], first["attempt"], second["attempt"], first["body"]) == ("x", "a/b", 1, 2, '{"n": 1}')
        [r, _] = there.requests
        assert r.method == "POST" and r.parts == ["in", "order", "a/b"] and r.json() == {"n": 1}
        assert there.overlaps == [] and there.most == 1 and there.connections == 2


def test_journal_survives_kills():
    """What was answered is in the file, and a line that a kill cut off harms no other."""
    with tempfile.TemporaryDirectory(prefix="idem-http.") as directory:
        journal, port = pathlib.Path(directory) / "journal", free_port()
        answered = 0
        for i in range(3):
            p = subprocess.Popen([sys.executable, "-B", HERE / "receiver.py", str(port), journal])
            until("the receiver answers", lambda: curl(f"http://127.0.0.1:{port}/up", "-d", "")[0] == 0)
            for _ in range(20):
                answered += curl(f"http://127.0.0.1:{port}/in/order/{i}", "-d", "x", "-H", f"webhook-id: {answered}") == (0, "200")
            p.kill()
            p.wait()
            with open(journal, "ab") as f:
                f.write(b'{"id": "cut')
        found = [e["id"] for e in read_journal(journal) if e["id"] != "?"]
        assert found == [str(i) for i in range(60)] and answered == 60, found


def test_receiver_misbehaves():
    """curl takes none of the broken answers for one, in two seconds, but those that libcurl takes."""
    def check(name, answer):
        with Receiver(lambda r: answer) as there:
            status, said = curl(there.url + "/in/order/1", "-d", "x", "-o", "/dev/null")
            assert status != 0 or not said.startswith("2"), f"{name}: {status} {said}"
    at_once(check, [case for case in misbehave.BROKEN.items() if case[0] not in misbehave.TAKEN_BY_CURL])
    for answer, status, said in ((misbehave.too_much(), 0, "HTTP/200"), (misbehave.continues(3), 0, "200"),
                                 (misbehave.after(0.2, 202), 0, "202"), (raw(Reply(599, b"a").bytes(), end="close"), 0, "a599")):
        with Receiver(lambda r, a=answer: a) as there:
            assert curl(there.url + "/in/order/1", "-d", "x") == (status, said), answer
    with Receiver(lambda r: misbehave.endless_body()) as there:
        assert curl(there.url + "/in/order/1", "-d", "x", "-o", "/dev/null")[0] == 28
        assert there.sent > 1 << 20


def test_certificates():
    ca = certificates.authority()
    time.sleep(1)
    for cert, status in ((ca.issue("server"), 0), (ca.issue("other", "subjectAltName=DNS:example.com\n"), 60),
                         (ca.expired(), 60), (ca.self_signed(), 60), (certificates.Authority("stranger").issue("server"), 60)):
        time.sleep(1.1 if "expired" in str(cert[0]) else 0)
        with Receiver(tls=certificates.server(cert)) as there:
            assert curl(there.url + "/", "-d", "", "--cacert", ca.root)[0] == status, cert
    with Receiver(tls=certificates.server(ca.issue("server"), ca.root)) as there:
        cert, key = ca.issue("client")
        assert curl(there.url + "/", "-d", "", "--cacert", ca.root)[0] != 0
        assert curl(there.url + "/", "-d", "", "--cacert", ca.root, "--cert", cert, "--key", key) == (0, "200")


def test_http2_receiver():
    ca = certificates.authority()
    tls = certificates.server(ca.issue("server"), alpn=("h2",))
    for answer, status in ((200, 0), (http2.Reset(), 92), (http2.GoAway(below=True), 16), (http2.Begin(http2.CANCEL), 92),
                           (http2.Mute(), 28)):
        with http2.Receiver2(answer if isinstance(answer, int) else lambda r, a=answer: a, tls=tls) as there:
            got, said = curl(there.url + "/in/order/1", "-d", "x", "--cacert", ca.root, "-H", "webhook-id: 1", "-o", "/dev/null",
                             "-w", "%{http_code} %{http_version}")
            assert got == status or (status == 16 and got != 0), f"{vars(answer) if status else answer}: {got} {said}"
            if status == 0:
                assert said == "200 2" and there.ids() == ["1"]


def test_node_and_python_libraries_are_there():
    from fetched import fetched
    assert (fetched("node") / "node_modules/standardwebhooks").is_dir()
    assert re.match(r"\d", json.loads((fetched("node") / "node_modules/standardwebhooks/package.json").read_text())["version"])
