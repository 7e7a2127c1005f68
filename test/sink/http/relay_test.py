"""A relay from PostgreSQL to a receiver: delivery, redelivery, a halt, outage and recovery, and where secrets are not."""
import base64
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import certificates
import misbehave
from receiver import Receiver, Reply
from server import Server
from sign_test import FIRST, python_takes
from sinklib import PATIENCE
from target import PATH, SECRET, TOP, until
from tokenserver import TokenServer, grant, http

BINDIR = subprocess.check_output([os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip()
SERVER_SH = TOP / "test/setup/server.sh"
RELAY = "min_backoff => '50 ms', max_backoff => '500 ms'"


class Source:
    """A server with the extension."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-http-source."))
        self.dir.chmod(0o755)
        self.made = 0
        subprocess.run([SERVER_SH, "start", self.dir], check=True, stdout=subprocess.DEVNULL)
        env = dict(line.split("=", 1) for line in (self.dir / "server.env").read_text().splitlines())
        self.server = Server("http", self.dir, BINDIR, data=f"{self.dir}/data", port=env["IDEM_PORT"])

    def sql(self, text):
        return self.server.psql(text)

    def serve(self, url, name="shop", mapping="", relay=RELAY, **options):
        """A server, its mapping and a relay of its name."""
        given = {"url": url, "allowed_addresses": "127.0.0.0/8", **options}
        self.sql(f"""CREATE SERVER {name} FOREIGN DATA WRAPPER idempotency_http
            OPTIONS ({", ".join(f"{k} '{v}'" for k, v in given.items())});
            CREATE USER MAPPING FOR CURRENT_USER SERVER {name} {f"OPTIONS ({mapping})" if mapping else ""};
            SELECT idempotency.relay_create('{name}', '{name}', {relay})""")

    def enqueue(self, count, keys=10):
        """The ids of so many events, committed together; those of a key are counted."""
        first, self.made = self.made + 1, self.made + count
        return self.sql(f"""SELECT idempotency.outbox_enqueue('order', (i % {keys})::text, 'Counted', jsonb_build_object('n', i))
            FROM generate_series({first}, {self.made}) i""").split()

    def relay(self, columns, name="shop"):
        return self.sql(f"SELECT {columns} FROM idempotency.stat_relay WHERE relay = '{name}'")

    def becomes(self, state, text="", name="shop", timeout=PATIENCE):
        until(lambda: self.relay("state, waiting_for, last_error", name), lambda: self.relay(
            f"state = '{state}' AND strpos(coalesce(last_error, ''), '{text}') > 0", name) == "t", timeout)

    def copy(self, name, text):
        """A file that the server's user alone can read."""
        there = self.dir / "data" / name
        there.write_text(text)
        shutil.chown(there, *(getattr((self.dir / "data").stat(), f"st_{which}") for which in ("uid", "gid")))
        there.chmod(0o600)
        return there

    def configure(self, **settings):
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        self.sql("SELECT pg_reload_conf()")

    def log(self):
        return (self.dir / "log/server.log").read_text(errors="replace")

    def end_program(self):
        os.kill(int(self.relay("sink_pid")), signal.SIGKILL)

    def stop(self):
        subprocess.run([SERVER_SH, "stop", self.dir], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def source():
    s = Source()
    try:
        yield s
    finally:
        s.stop()


def in_order(requests):
    """The first arrivals of each key are in the order in which they were enqueued."""
    last, seen = {}, set()
    for r in requests:
        if r.id in seen:
            continue
        seen.add(r.id)
        assert r.json()["n"] > last.get(r.key, 0), (r.key, r.json(), last.get(r.key))
        last[r.key] = r.json()["n"]


def arrives(there, ids, timeout=PATIENCE):
    until(lambda: f"{len(set(ids) - set(there.ids()))} of {len(ids)} are missing", lambda: set(ids) <= set(there.ids()), timeout)


def test_relay_delivers():
    with source() as s, Receiver() as there:
        s.serve(there.url + PATH, mapping=f"signing_secrets '{FIRST}'")
        ids = s.enqueue(2000)
        arrives(there, ids)
        assert sorted(there.ids()) == sorted(ids) and not there.overlaps
        in_order(there.requests)
        assert all(python_takes(r, FIRST) for r in there.requests[::100])
        # the last answers are on their way to the worker
        until(lambda: s.relay("*"), lambda: s.relay("state, retried, dead, lag_events") == "streaming|0|0|0")


def test_relay_redelivers():
    """What the receiver does not take now comes again; what it refuses becomes a dead letter, with its reason."""
    def answer(r):
        if r.json()["n"] % 7 == 0 and r.attempt < 3:
            return Reply(503, b"busy", "Retry-After: 0")
        if r.json()["n"] == 50:
            return Reply(422, b"no such customer: " + b"x" * 3000)
        return 200
    with source() as s, Receiver(answer) as there:
        s.serve(there.url + PATH, relay=RELAY + ", max_attempts => 4")
        ids = s.enqueue(100)
        until(lambda: s.relay("*"), lambda: s.relay("dead") == "1" and set(ids) <= set(there.ids()))
        reason = s.sql("SELECT d FROM idempotency.dead_letters d")
        assert "422" in reason and "no such customer" in reason, reason
        in_order(there.requests)
        assert not there.overlaps


def test_retry_after_is_kept():
    """Not before the time that the receiver says, and not much later."""
    def answer(r):
        return Reply(429, b"", "Retry-After: 3") if r.attempt == 1 and r.key == "1" else 200
    with source() as s, Receiver(answer) as there:
        s.serve(there.url + PATH)
        ids = s.enqueue(10)
        arrives(there, ids)
        until(lambda: s.relay("*"), lambda: [r.key for r in there.requests].count("1") == 2)
        first, second = [r.at for r in there.requests if r.key == "1"]
        assert 2.9 < second - first < 6, second - first


def test_attempts_are_requests():
    """A receiver that closes after reading counts exactly the attempts of the relay; max_attempts bounds those that count."""
    def answer(r):
        return misbehave.raw(end="close") if r.json()["n"] == 1 else 200
    with source() as s, Receiver(answer) as there:
        # a path with {aggregate_id} is no destination of its own: nothing else could pass there
        s.serve(there.url + PATH, relay=RELAY + ", max_attempts => 3")
        ids = s.enqueue(1, keys=1)

        def is_dead():
            # the others keep connections open, and pass
            s.sql("""SELECT idempotency.outbox_enqueue('order', 'other ' || i, 'Counted', '{"n": 2}') FROM generate_series(1, 8) i""")
            return s.relay("dead") == "1"
        until(lambda: s.relay("*"), is_dead)
        assert s.sql("SELECT attempts FROM idempotency.dead_letters") == "3"
        got = there.ids().count(ids[0])
        assert 3 <= got == 1 + int(s.relay("retried")), (got, s.relay("*"))


def test_gone_halts_the_relay():
    """410: the relay stops with the reason, until it is resumed; nothing is lost."""
    gone = [True]
    with source() as s, Receiver(lambda r: Reply(410, b"this hook was deleted") if gone[0] and r.json()["n"] == 30 else 200) as there:
        s.serve(there.url + PATH)
        ids = s.enqueue(60)
        s.becomes("halted", "410")
        assert "this hook was deleted" in s.relay("last_error"), s.relay("last_error")
        seen = len(there.requests)
        time.sleep(2)
        assert len(there.requests) == seen, "the relay sends although it is halted"
        assert s.sql("SELECT count(*) FROM idempotency.dead_letters") == "0"
        gone[0] = False
        s.sql("SELECT idempotency.relay_resume('shop')")
        arrives(there, ids)
        s.becomes("streaming")
        in_order(there.requests)


def test_outage_and_recovery():
    with source() as s:
        with Receiver() as there:
            port = there.port
            s.serve(there.url + PATH)
            ids = s.enqueue(100)
            arrives(there, ids)
        more = s.enqueue(100)
        s.becomes("outage")
        assert s.sql("SELECT count(*) FROM idempotency.dead_letters") == "0"
        with Receiver(port=port) as there:
            arrives(there, more)
            s.becomes("streaming")
            assert s.relay("dead") == "0"
            in_order(there.requests)


def test_outage_in_the_middle():
    """The receiver ends and comes again and again; no event is lost, none is blamed."""
    with source() as s, tempfile.NamedTemporaryFile() as file:
        there = Receiver(journal=file.name)
        port = there.port
        try:
            s.serve(there.url + PATH, relay=RELAY + ", max_attempts => 100")
            ids, got = [], set()
            for _ in range(4):
                ids += s.enqueue(500)
                time.sleep(0.15)
                got |= set(there.ids())
                there.stop()
                time.sleep(0.3)
                there = Receiver(journal=file.name, port=port)
            until(lambda: s.relay("*"), lambda: set(ids) <= got | set(there.ids()))
            assert s.sql("SELECT count(*) FROM idempotency.dead_letters") == "0"
        finally:
            there.stop()


def test_slow_sink_holds_no_other():
    with source() as s, Receiver(lambda r: misbehave.after(2 * PATIENCE)) as slow, Receiver() as quick:
        s.serve(slow.url + PATH, "slow")
        s.serve(quick.url + PATH, "shop")
        ids = s.enqueue(500)
        arrives(quick, ids)
        assert slow.most <= 16


def test_owner_without_rights():
    """Who is no superuser changes url and concurrency, and neither files nor addresses."""
    with source() as s, Receiver() as there:
        s.sql("""CREATE ROLE shopkeeper LOGIN; GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_http TO shopkeeper""")

        def may(statement):
            try:
                s.sql("SET ROLE shopkeeper; " + statement)
                return True
            except Exception as e:      # noqa: psql's error is text
                assert "superuser" in str(e), e
                return False
        wrapper = "CREATE SERVER mine FOREIGN DATA WRAPPER idempotency_http OPTIONS (url '{}'{})"
        for name, value in (("allowed_addresses", "127.0.0.0/8"), ("sslrootcert", "/etc/passwd"), ("token_rootcert", "/etc/passwd")):
            assert not may(wrapper.format(there.url, f", {name} '{value}'")), name
        assert may(wrapper.format(there.url, ", concurrency '3'"))
        for name, value in (("sslcert", "/x"), ("sslkey", "/x"), ("secret_file", "/etc/passwd"), ("signing_secrets_file", "/etc/passwd"),
                            ("service_account_file", "/etc/passwd")):
            assert not may(f"CREATE USER MAPPING FOR shopkeeper SERVER mine OPTIONS ({name} '{value}')"), name
        assert may("CREATE USER MAPPING FOR shopkeeper SERVER mine OPTIONS (signing_secrets 'whsec_a2tra2tra2tra2tra2tra2tra2trazAx')")


def test_inside_is_refused():
    """Without allowed_addresses a relay connects to no address of this machine, and says so."""
    with source() as s, Receiver() as there:
        s.serve(there.url + PATH, allowed_addresses="10.0.0.0/8")
        s.enqueue(1)
        until(lambda: s.relay("*"), lambda: "address" in s.relay("coalesce(last_error, '')"))
        assert not there.connections
        s.becomes("misconfigured", "allowed_addresses")


def traces(s, hidden):
    """Where a secret is seen: the log, what any role can ask the server, arguments and environments."""
    places = {"the log": s.log()}
    for view in ("pg_stat_activity", "idempotency.stat_relay", "pg_foreign_server", "idempotency.dead_letters"):
        places[view] = s.sql(f"SELECT v FROM {view} v")
    for view in ("pg_user_mappings", "information_schema.user_mapping_options"):
        places[view] = s.sql(f"SET ROLE stranger; SELECT v FROM {view} v")
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if "idempotency" in (process / "cmdline").read_text(errors="replace"):
                    places[f"{process}/{file}"] = (process / file).read_text(errors="replace")
    return [(place, h, text[max(text.index(h) - 100, 0):text.index(h) + 100]) for place, text in places.items() for h in hidden if h in text]


def test_secrets_stand_nowhere():
    """Whatever fails, and whatever the receiver repeats: no secret is in a log, a view, an argument or a dead letter."""
    signing = FIRST
    basic = base64.b64encode(f"relay:{SECRET}".encode()).decode()
    echoes = [200]

    def echo(r):
        """The receiver repeats what it was sent."""
        heard = "\n".join(f"{k}: {v}" for k, v in r.headers).encode()
        return Reply(echoes[0], heard, *([f"Location: http://x/?{base64.b64encode(heard).decode()[:200]}"] if echoes[0] == 302 else []))
    ca = certificates.authority()
    with source() as s, Receiver(echo, tls=certificates.server(ca.issue("server"))) as there, \
            TokenServer(lambda r: grant(f"Token.{SECRET[:8]}.{len(tokens.requests)}")) as tokens:
        s.sql("CREATE ROLE stranger; GRANT pg_monitor TO stranger")
        root = s.copy("root.crt", ca.root.read_text())
        ways = {
            "basic": (f"user 'relay', password '{SECRET}', signing_secrets '{signing}'", {}),
            "bearer": (f"token '{SECRET.replace('%', '')}'", {}),
            "oauth2": (f"user 'relay', password '{SECRET}'", {"token_url": tokens.url}),
        }
        for way, (mapping, options) in ways.items():
            s.serve(there.url + PATH, way, mapping, RELAY + ", max_attempts => 1", auth=way, sslrootcert=root, **options)
        s.configure(log_min_messages="debug2", log_statement="all")
        hidden = [SECRET, SECRET.replace("%", ""), basic, signing, signing[len("whsec_"):], "Token."]
        for status in (200, 400, 503, 302, 401):
            echoes[0] = status
            seen = len(there.requests)
            s.enqueue(3)
            until("all relays have tried", lambda: len(there.requests) >= seen + 3 * (2 if status != 200 else 3) - 3)
            time.sleep(1)
            found = traces(s, hidden)
            assert not found, (status, found)
        assert any("cmdline" in place for place, *_ in traces(s, ["idempotency-sink-http"])), "no program is seen"
        # the token server refuses, and repeats the secret
        tokens.answer = lambda r: http(401, {"error": "invalid_client", "error_description": SECRET})
        for way in ways:
            with contextlib.suppress(ValueError, ProcessLookupError):
                os.kill(int(s.relay("sink_pid", way) or 0) or 1 << 30, signal.SIGKILL)
        # a relay without events does not start its program
        s.enqueue(1)
        s.becomes("misconfigured", "invalid_client", "oauth2")
        found = traces(s, hidden)
        assert not found, found


def answers(s):
    try:
        return s.sql("SELECT 1") == "1"
    except Exception:       # noqa: the server starts
        return False


def test_relay_survives_kills():
    """Program, worker and receiver are killed in turn: lost 0, keys in order; ../kills.sh does it for long."""
    with source() as s, tempfile.TemporaryDirectory(prefix="idem-http.") as directory:
        journal = pathlib.Path(directory) / "journal"
        there = Receiver(journal=journal)
        try:
            s.serve(there.url + PATH, relay=RELAY + ", max_attempts => 1000")
            stop, killed, ids = threading.Event(), [], []

            def kill():
                while not stop.wait(0.3):
                    with contextlib.suppress(Exception):
                        pid = int(s.relay(("sink_pid", "sink_pid", "pid")[len(killed) % 3]))
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
            killer = threading.Thread(target=kill)
            killer.start()
            end = time.monotonic() + 8
            while time.monotonic() < end or len(killed) < 6:
                with contextlib.suppress(Exception):
                    ids += s.enqueue(100)
            stop.set()
            killer.join()
            until("the server is up", lambda: answers(s))
            until(lambda: f"{len(set(ids) - set(there.ids()))} of {len(ids)} are missing", lambda: set(ids) <= set(there.ids()))
            in_order(there.requests)
            print(f"# {len(ids)} events, {len(killed)} kills, {len(there.requests) - len(set(there.ids()))} repeats")
        finally:
            there.stop()
