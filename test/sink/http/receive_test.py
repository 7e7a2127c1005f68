"""The receivers of doc/howto/webhooks.md: they verify and claim, are killed, and get a new secret by the page's steps."""
import base64
import contextlib
import datetime
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid

import misbehave
from fetched import TOP, fetched, library
from receiver import Receiver
from relay_test import RELAY, answers, source
from target import free_port, until

HERE = pathlib.Path(__file__).resolve().parent / "receive"
PAGE = (TOP / "doc/howto/webhooks.md").read_text()
OLD, NEW = re.search(r"'(whsec_\S+) (whsec_\S+)'", PAGE).groups()
SCHEMA = "".join(re.findall(r"-- >>> \w+\n(.*?)-- <<<", (HERE / "schema.sql").read_text(), re.S))


class Program:
    """A receiver of the page, with a database of the server."""

    def __init__(self, language, s, secrets=OLD, **env):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=f"idem-http-{language}."))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/shop/{{aggregate_type}}"
        there = fetched("receivers")
        shutil.copytree(HERE / language, self.dir, dirs_exist_ok=True)
        if language == "python":
            os.symlink(fetched("receiver"), self.dir / "venv")
        elif language == "node":
            os.symlink(there / "node/node_modules", self.dir / "node_modules")
        else:
            build = {**os.environ, "GOPATH": str(there / "go"), "GOCACHE": str(there / "go-cache"), "GOTOOLCHAIN": "local",
                     "GOFLAGS": "-modcacherw -buildvcs=false", "GOPROXY": "off"}
            subprocess.run(["go", "build", "-o", "receiver", "."], cwd=self.dir, env=build, check=True)
        other = re.compile(r"  # (?:or )?(?!%s)[A-Z]" % language.capitalize())
        self.block = "".join(line for line in (HERE / "start.sh").read_text().splitlines(True) if not other.search(line))
        self.env = {**os.environ, "PGPORT": str(s.server.port), **env}
        self.proc = None
        self.start(secrets)

    def start(self, secrets):
        """By the commands of the page."""
        self.stop()
        block = self.block
        for there, here in {OLD: f"'{secrets}'", "8000": str(self.port), "PGHOST=localhost": "PGHOST=127.0.0.1",
                            "PGDATABASE=billing": "PGDATABASE=postgres"}.items():
            assert there in block, f"the page has no {there}"
            block = block.replace(there, here)
        with open(self.dir / "log", "ab") as log:
            self.proc = subprocess.Popen(["bash", "-c", block], cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         env=self.env, start_new_session=True)
        until(self.log, self.listens)

    def log(self):
        return (self.dir / "log").read_text()[-2000:]

    def listens(self):
        assert self.proc.poll() is None, self.log()
        with contextlib.suppress(OSError):
            return self.post(b"{}") == 401
        return False

    def post(self, body, **headers):
        """The status of a request that need not be from a relay."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/shop/order", body,
                                         {k.replace("_", "-"): v for k, v in headers.items()})
        try:
            return urllib.request.urlopen(request, timeout=10).status
        except urllib.error.HTTPError as e:
            return e.code

    def stop(self):
        if self.proc:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.proc.pid, signal.SIGKILL)
            self.proc.wait()
            self.proc = None

    def remove(self):
        self.stop()
        if "KEEP" not in os.environ:
            shutil.rmtree(self.dir, ignore_errors=True)


@contextlib.contextmanager
def shop(language, schema=SCHEMA, relay=RELAY + ", max_attempts => 1000", **env):
    """A server, a receiver, and a relay between the two."""
    with source() as s:
        s.sql(schema + """CREATE TABLE orders (event_id uuid);
            CREATE ROLE billing LOGIN; GRANT SELECT, INSERT ON invoices TO billing;
            SELECT idempotency.grant_role('consumer', 'billing')""")
        program = Program(language, s, **env)
        try:
            s.serve(program.url, "hooks", f"signing_secrets '{OLD}'", relay, timeout="3000")
            yield s, program
        finally:
            program.remove()


def enqueue(s, count):
    """Events that commit with a row of orders each, which remains if the answer to COMMIT is lost."""
    return s.sql(f"""INSERT INTO orders SELECT idempotency.outbox_enqueue('order', i::text, 'OrderCreated',
            jsonb_build_object('order', i::text, 'total', 99.90))
        FROM generate_series(1, {count}) i RETURNING event_id""").split()


def has_all(s, ids):
    """Each event has one invoice, and no other invoice is there."""
    until(lambda: s.relay("*", "hooks"), lambda: s.sql("SELECT count(DISTINCT event_id) FROM invoices") == str(len(ids)))
    assert s.sql("SELECT count(*) FROM invoices") == str(len(ids)), "an effect was made twice"
    assert set(s.sql("SELECT event_id FROM invoices").split()) == set(ids)


def signed(body, event_id, secret, at=None):
    """Headers by the reference library."""
    at = at or datetime.datetime.now(datetime.timezone.utc)
    return {"webhook_id": event_id, "webhook_timestamp": str(int(at.timestamp())),
            "webhook_signature": library("standardwebhooks").Webhook(secret).sign(event_id, at, body.decode())}


def refuses(program):
    """What is not signed, signed by another, changed, or old."""
    body, event_id = b'{"order": "1", "total": 1}', str(uuid.uuid4())
    good = signed(body, event_id, OLD)
    old = signed(body, event_id, OLD, datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=10))
    other = signed(body, event_id, "whsec_" + base64.b64encode(b"x" * 24).decode())
    assert program.post(body) == 401 and program.post(body + b" ", **good) == 401 and program.post(body, **old) == 401
    assert program.post(body, **other) == 401 and program.post(body, **{**good, "webhook_id": str(uuid.uuid4())}) == 401
    assert program.post(body, **good) == 204 and program.post(body, **good) == 204, "a duplicate"
    return event_id


def kill_some(s, program, stop, seed):
    """Kill the receiver, the relay's program and the worker in turn."""
    rng, killed = random.Random(seed), 0
    while not stop.wait(0.2 + rng.random() * 0.3):
        with contextlib.suppress(Exception):
            what = killed % 3
            if what == 0:
                program.start(OLD)
            else:
                os.kill(int(s.relay("sink_pid" if what == 1 else "pid", "hooks")), signal.SIGKILL)
            killed += 1
    return killed


def rotate(s, program, ids):
    """The page's steps under load: no message is refused."""
    steps = {name: text for name, text in re.findall(r"^<!-- rotation (\w+) -->\n```sql\n(.*?)^```$", PAGE, re.M | re.S)}
    assert set(steps) == {"both", "new"}

    def go_on():
        ids.extend(enqueue(s, 50))
        has_all(s, ids)
    s.sql(steps["both"])
    go_on()
    program.start(NEW)
    go_on()
    s.sql(steps["new"])
    go_on()
    assert s.relay("dead", "hooks") == "0" and s.sql("SELECT count(*) FROM idempotency.dead_letters") == "0"
    assert s.relay("retried", "hooks") == s.retried, "a message was refused"


def receive(language):
    with shop(language) as (s, program):
        by_hand = refuses(program)
        ids = enqueue(s, 500) + [by_hand]
        has_all(s, ids)
        # what will never do is refused for good, what may pass is not
        assert program.post(b'{"order": "1", "total": "many"}', **signed(b'{"order": "1", "total": "many"}', str(uuid.uuid4()), OLD)) == 422
        stop, killed = threading.Event(), []
        killer = threading.Thread(target=lambda: killed.append(kill_some(s, program, stop, language)))
        killer.start()
        end = time.monotonic() + 8
        while time.monotonic() < end:
            with contextlib.suppress(Exception):
                enqueue(s, 40)
        stop.set()
        killer.join()
        until("the server is up", lambda: answers(s))
        ids = s.sql("SELECT event_id FROM orders").split() + [by_hand]
        if program.proc is None or program.proc.poll() is not None:
            program.start(OLD)
        has_all(s, ids)
        s.retried = s.relay("retried", "hooks")
        rotate(s, program, ids)
        print(f"# {language}: {len(ids)} events, {killed[0]} kills")


LEASE = 8


def story(language):
    """The receiver dies while it holds the lease.  The SMS is sent when that is over, by nobody's hand, and other events go on."""
    schema = SCHEMA.replace("'1 min'", f"'{LEASE} s'")
    assert schema != SCHEMA
    with Receiver(lambda r: 200 if there.attempts["?"] > 1 else misbehave.raw(end="hang")) as there, \
            shop(language, schema, "max_attempts => 1, retry_for => '1 ms'", SMS_URL=f"{there.url}/send") as (s, program):
        sms, = s.sql(re.search(r"^SELECT idempotency.outbox_enqueue\('sms'.*?;", PAGE, re.M | re.S)[0]).split()
        until(program.log, lambda: len(there.requests) == 1)
        program.start(OLD)
        orders = enqueue(s, 20)
        has_all(s, orders)
        until(lambda: s.relay("*", "hooks"), lambda: s.relay("retrying = 1 AND last_error LIKE 'HTTP 503%'", "hooks") == "t")
        assert len(there.requests) == 1 and s.relay("dead", "hooks") == "0"
        until(lambda: s.relay("*", "hooks"), lambda: s.sql(f"SELECT status FROM idempotency.event_status('{sms}'::uuid, 'sms')") == "completed")
        first, second = there.requests
        assert [r.header("idempotency-key") for r in there.requests] == [sms, sms] and second.json()["to"] == "+4915100000"
        assert LEASE - 0.5 <= second.at - first.at, second.at - first.at
        until(lambda: s.relay("*", "hooks"), lambda: s.relay("retrying = 0 AND lag_events = 0 AND dead = 0", "hooks") == "t")
        # what came before the end of the lease was told when to come again
        assert int(s.relay("retried", "hooks")) <= 4, s.relay("*", "hooks")


def test_story_in_python():
    story("python")


def test_story_in_node():
    story("node")


def test_story_in_go():
    story("go")


def test_receiver_in_python():
    receive("python")


def test_receiver_in_node():
    receive("node")


def test_receiver_in_go():
    receive("go")


def test_page_shows_the_request():
    """But for what any client sends: line by line, with a signature that is good at its time."""
    shown, = re.findall(r"^```http\n(.*?)^```$", PAGE, re.M | re.S)
    head, _, body = shown.rstrip("\n").partition("\n\n")
    with source() as s, socket.create_server(("127.0.0.1", 0)) as listener:
        s.serve(f"http://127.0.0.1:{listener.getsockname()[1]}/shop/{{aggregate_type}}", "hooks", f"signing_secrets '{OLD}'")
        s.sql(re.search(r"^SELECT idempotency.outbox_enqueue.*?;", PAGE, re.M | re.S)[0])
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            lines = [line.decode().rstrip() for line in iter(stream.readline, b"\r\n")]
            length = next(int(line.split()[1]) for line in lines if line.startswith("Content-Length"))
            sent = stream.read(length).decode()
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    def drawn(line):
        """Without what differs from event to event."""
        return re.sub(r"^([\w-]+:) ([0-9a-f-]{36}|\d{10}|v1,\S{44})$", r"\1", line)
    lines = [drawn(line) for line in lines if not line.startswith(("Host:", "User-Agent:", "Accept:", "Content-Length:"))]
    assert lines == [drawn(line) for line in head.splitlines()], lines
    assert sent == body, sent
    headers = dict(line.split(": ") for line in head.splitlines()[1:])
    at = datetime.datetime.fromtimestamp(int(headers["webhook-timestamp"]), datetime.timezone.utc)
    assert signed(body.encode(), headers["webhook-id"], OLD, at)["webhook_signature"] == headers["webhook-signature"]


def test_page_has_the_receivers():
    """doc/howto/webhooks.md has the lines of the programs."""
    done = subprocess.run(["python3", "-B", TOP / "test/clients/page.py", TOP / "doc/howto/webhooks.md", HERE],
                          capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) >= 4 and all(line.startswith("ok ") for line in lines), done.stdout + done.stderr
