"""Drive the payment API of doc/howto/payments.md: twins, other payloads, kills at every step.

    drive.py COMMAND...

Starts the API several times, each behind a proxy (../harness/proxy.py), and a payment
provider that counts its charges and holds its answers back when it is told to.  The
database has schema.sql.  Prints "ok" or "NOT OK" for each check.
"""

import collections
import hashlib
import http.client
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import uuid
from http.server import ThreadingHTTPServer

import psycopg

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "harness")]

from programs import LOGS, PATIENCE, Program, as_pasted, at_every_step, check, free_port, in_parallel, wait_until  # noqa: E402
from provider import Provider  # noqa: E402

LANES = 4
TWINS = 20
LEASE = "1 s"
TENANTS = "acme", "globex"
FINAL = {200, 201, 400, 401, 402, 404, 422, 500}


class CountingProvider(Provider):
    """Counts calls and charges of each amount; holds a call before or after it has charged."""
    charged = collections.defaultdict(set)      # amount -> charges
    calls = collections.Counter()
    holds = {}                  # amount -> (when, function)
    is_down = False

    def reply(self, status, document):
        amount = self.order["amount"]
        if status == 200:
            self.charged[amount].add(document["charge"])
        if self.holds.get(amount, [None])[0] == "after":
            self.holds.pop(amount)[1]()
        super().reply(status, document)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.order = json.loads(body)
        amount = self.order["amount"]
        self.calls[amount] += 1
        if self.is_down:
            super().reply(503, {})
            return
        if self.holds.get(amount, [None])[0] == "before":
            self.holds.pop(amount)[1]()
            return              # it never got the call
        self.rfile = io.BytesIO(body)
        super().do_POST()

    def log_message(self, *args):
        pass


class ProviderServer(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Its client was killed."""


class Database:
    """A superuser's look."""

    def __init__(self):
        self.lock = threading.Lock()
        self.conn = psycopg.connect(autocommit=True, user="postgres")

    def value(self, query, *args):
        return self.row(query, *args)[0]

    def row(self, query, *args):
        with self.lock:
            return self.conn.execute(query, args).fetchone()

    def run(self, query, *args):
        with self.lock:
            self.conn.execute(query, args)


# A client

def post(port, path, key, document, tenant="acme"):
    """One request: status, headers, body; status 0 if there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer token of {tenant}", "Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    body = document if isinstance(document, (str, bytes)) else json.dumps(document)
    try:
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    except (OSError, http.client.HTTPException):
        return 0, {}, b""
    finally:
        connection.close()


def insist(lane, path, key, document, tenant="acme"):
    """A client that repeats its request until it has an answer."""
    seen = []

    def answered():
        reply = post(lane.port, path, key, document, tenant)
        seen.append(reply[0])
        if reply[0] == 0:
            lane.revive()
        elif reply[0] in (409, 503) and not reply[1].get("Retry-After", "").isdigit():
            raise AssertionError(f"{reply} has no Retry-After")
        return reply if reply[0] in FINAL else None
    return wait_until(f"{path} {key} is answered, after {seen}", answered)


def new_key():
    return str(uuid.uuid4())


# What must hold of a payment or a transfer of one amount

class Amounts:
    """Each case has an amount of its own, by which its effects are found."""

    def __init__(self):
        self.last, self.lock = 1000, threading.Lock()

    def next(self):
        with self.lock:
            self.last += 1
            return self.last


class Payments:
    path = "/payments"

    def __init__(self, database):
        self.database = database

    def document(self, amount):
        return {"card": "4242", "amount": amount}

    def problems(self, amount, replies):
        """What is wrong with the effects of an amount that was asked for with one key."""
        row = self.database.row(
            "SELECT count(*), max(status), max(charge), max(id::text) FROM payments WHERE amount = %s", amount)
        events = self.database.value(
            "SELECT count(*) FROM idempotency.outbox_events WHERE payload->>'amount' = %s", str(amount))
        charges = CountingProvider.charged[amount]
        body = json.loads(replies[0][2])
        if len(charges) != 1 or row[:3] != (1, "paid", *charges) or events != 1:
            return f"charges {charges}, rows {row}, events {events}"
        if body != {"payment": row[3], "charge": row[2]}:
            return f"the answer is {body}, the row is {row}"
        return unlike(replies)


class Transfers:
    path = "/transfers"

    def __init__(self, database):
        self.database = database

    def document(self, amount):
        """The account is this case's own: other cases would wait for its row."""
        name = f"account {amount}"
        self.database.run("INSERT INTO accounts VALUES ('acme', %s, 1000000), ('acme', %s, 0), "
                          "('globex', %s, 1000000), ('globex', %s, 0) ON CONFLICT DO NOTHING",
                          name, f"to {name}", name, f"to {name}")
        return {"from": name, "to": f"to {name}", "amount": amount}

    def problems(self, amount, replies):
        name = f"account {amount}"
        rows = self.database.value("SELECT count(*) FROM transfers WHERE amount = %s", amount)
        balances = self.database.row(
            "SELECT (SELECT balance FROM accounts WHERE tenant = 'acme' AND name = %s), "
            "(SELECT balance FROM accounts WHERE tenant = 'acme' AND name = %s)", name, f"to {name}")
        if rows != 1 or balances != (1000000 - amount, amount):
            return f"rows {rows}, balances {balances}"
        return unlike(replies)


def unlike(replies):
    """Are they one answer, given once as new, or never if that reply was lost, and else as a replay?"""
    news = [r for r in replies if "Idempotent-Replayed" not in r[1]]
    same = {(r[0], r[1].get("Location"), r[1]["Content-Type"], r[2]) for r in replies}
    if len(same) != 1 or len(news) > 1 or replies[0][0] != 201:
        return f"answers {same}, {len(news)} of them new"
    return ""


# Cases

class Cases:
    def __init__(self, lanes, database):
        self.lanes, self.database, self.amounts = lanes, database, Amounts()
        self.kinds = Payments(database), Transfers(database)

    def post(self, path, key, document, tenant="acme"):
        return post(self.lanes[0].port, path, key, document, tenant)

    def insist(self, path, key, document, tenant="acme"):
        return insist(self.lanes[0], path, key, document, tenant)

    def twins(self):
        for kind in self.kinds:
            amount, key = self.amounts.next(), new_key()
            document = kind.document(amount)
            together = threading.Barrier(TWINS)

            def one(n):
                together.wait()
                return insist(self.lanes[n % 2], kind.path, key, document)
            replies = in_parallel(one, range(TWINS))
            problem = kind.problems(amount, replies)
            news = sum("Idempotent-Replayed" not in r[1] for r in replies)
            check(f"{kind.path}: {TWINS} requests at once with one key have one effect and one answer",
                  not problem and news <= 1, problem or f"{news} new answers")

    def other_payload(self):
        for kind in self.kinds:
            amount, key = self.amounts.next(), new_key()
            document = kind.document(amount)
            first = self.insist(kind.path, key, document)
            shuffled = json.dumps(dict(reversed(document.items())), indent=3)
            again = self.insist(kind.path, key, shuffled)
            other = self.insist(kind.path, key, {**document, "amount": amount + 1_000_000})
            check(f"{kind.path}: the same JSON in other words is a repeat, another payload is 422",
                  again[0] == 201 and other[0] == 422 and not kind.problems(amount, [first, again]),
                  (first, again, other))
        other = self.insist(self.kinds[0].path, key, self.kinds[0].document(amount))
        check("the same key for another path is 422", other[0] == 422, other)

    def other_tenant(self):
        for kind in self.kinds:
            amount, key = self.amounts.next(), new_key()
            document = kind.document(amount)
            first, other = (self.insist(kind.path, key, document, tenant) for tenant in TENANTS)
            check(f"{kind.path}: the same key of another tenant is another request",
                  first[0] == other[0] == 201 and first[2] != other[2] and
                  "Idempotent-Replayed" not in other[1], (first, other))

    def refused(self):
        kind, amount, key = self.kinds[0], self.amounts.next(), new_key()
        good = kind.document(amount)
        statuses = [self.post(kind.path, k, d, t)[0] for k, d, t in [
            (None, good, "acme"), ("", good, "acme"), ("k" * 256, good, "acme"), ("schl\xfcssel", good, "acme"),
            (key, good, "nobody"),
            (key, "{", "acme"), (key, "[]", "acme"), (key, {"amount": amount}, "acme"),
            (key, {"card": "4242", "amount": "1"}, "acme"), (key, {"card": "4242", "amount": -1}, "acme"),
            (key, b'{"card": "\xff", "amount": 1}', "acme"),
            (key, '{"card": "\\u0000", "amount": 1}', "acme")]]
        reply = self.insist(kind.path, key, good)
        check("what is not valid gets 400 or 401, and its key stays free",
              statuses == [400] * 4 + [401] + [400] * 7 and not kind.problems(amount, [reply]), (statuses, reply))

    def stored_failures(self):
        amount, key = self.amounts.next(), new_key()
        document = {"card": "declined", "amount": amount}
        replies = [self.insist("/payments", key, document) for _ in range(2)]
        check("a declined card is a final answer", [r[0] for r in replies] == [402, 402] and
              "Idempotent-Replayed" in replies[1][1] and CountingProvider.calls[amount] == 1 and
              self.database.value("SELECT status FROM payments WHERE amount = %s", amount) == "declined", replies)

        amount, key = self.amounts.next(), new_key()
        document = {**self.kinds[1].document(amount), "amount": 2_000_000 + amount}
        poor = self.insist("/transfers", key, document)
        self.database.run("UPDATE accounts SET balance = 9000000 WHERE name = %s", document["from"])
        replies = [poor] + [self.insist("/transfers", k, document) for k in (key, new_key())]
        check("a transfer that fails is undone, and its failure is stored",
              [r[0] for r in replies] == [402, 402, 201] and poor[2] == replies[1][2], replies)

        amount, key = self.amounts.next(), new_key()
        document = self.kinds[1].document(amount)
        self.database.run(f"""
            CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'broken' USING ERRCODE = 'XX000'; END $$;
            CREATE TRIGGER broken BEFORE UPDATE ON accounts FOR EACH ROW
                WHEN (new.name = 'to account {amount}') EXECUTE FUNCTION broken()""")
        broken = self.insist("/transfers", key, document)
        self.database.run("DROP TRIGGER broken ON accounts")
        again = self.insist("/transfers", key, document)
        check("an unexpected failure is a 500 that is stored",
              broken[0] == again[0] == 500 and broken[2] == again[2] and "Idempotent-Replayed" in again[1] and
              self.database.value("SELECT count(*) FROM transfers WHERE amount = %s", amount) == 0, (broken, again))

    def provider_down(self):
        kind, amount, key = self.kinds[0], self.amounts.next(), new_key()
        paused, long_key = self.amounts.next(), new_key()
        CountingProvider.is_down = True
        first = self.post(kind.path, key, kind.document(amount))
        self.database.run("SELECT idempotency.consumer_alter('payments', min_backoff => '4 h', max_backoff => '4 h')")
        second = self.post(kind.path, long_key, kind.document(paused))
        self.database.run("SELECT idempotency.consumer_alter('payments', min_backoff => '1 s', max_backoff => '5 min')")
        CountingProvider.is_down = False
        reply = self.insist(kind.path, key, kind.document(amount))
        pause = self.post(kind.path, long_key, kind.document(paused))
        check("a provider that is down: 503, then 409 for the pause, then the payment",
              first[0] == second[0] == 503 and not kind.problems(amount, [reply]) and pause[0] == 409 and
              3600 < int(pause[1]["Retry-After"]) <= 4 * 3600, (first, second, pause, reply))

    def dead(self):
        kind, amount, key = self.kinds[0], self.amounts.next(), new_key()
        other, given_up = self.amounts.next(), new_key()
        self.database.run("SELECT idempotency.consumer_alter('payments', max_attempts => 1)")
        CountingProvider.is_down = True
        first = [self.post(kind.path, k, kind.document(a))[0] for k, a in ((key, amount), (given_up, other))]
        CountingProvider.is_down = False
        second = self.post(kind.path, key, kind.document(amount))[0]
        self.database.run("SELECT idempotency.consumer_alter('payments', max_attempts => 20)")
        decided = [self.database.value(f"SELECT idempotency.consumer_{what}('payments', %s, 'acme')", [k])
                   for what, k in (("redrive", key), ("discard", given_up))]
        third = self.insist(kind.path, given_up, kind.document(other))[0]
        reply = self.insist(kind.path, key, kind.document(amount))
        check("a request whose attempts are used up is 500 until an operator redrives it, and for ever if discarded",
              (first, second, decided, third) == ([503, 503], 500, [1, 1], 500) and
              not kind.problems(amount, [reply]), (first, second, decided, third, reply))

    # Kills

    def at_step(self, kind, lane, step, when, act):
        """What comes of act(lane) at a step of a request: (phase, problem); None if the step never came."""
        amount, key = self.amounts.next(), new_key()
        document = kind.document(amount)
        lane.restart()
        lane.proxy.arm(step, when, lambda: act(lane))
        reply = insist(lane, kind.path, key, document)
        acted, steps = lane.proxy.acted.is_set(), lane.proxy.steps[:step + 1]
        lane.proxy.disarm()
        again = insist(lane, kind.path, key, document)
        problem = kind.problems(amount, [reply, again])
        if not acted:
            return None
        return phase_of(kind.path, steps, when), f"{when} step {step}, {steps[-1]}: {problem}" if problem else ""

    def count_steps(self, kind, lane):
        """How many steps a request has that nobody stops."""
        lane.restart()
        document = kind.document(self.amounts.next())
        lane.proxy.arm()
        insist(lane, kind.path, new_key(), document)
        steps = len(lane.proxy.steps)
        lane.proxy.disarm()
        return steps

    def at_each_step(self, how, act):
        """Before each step of a request, and after the last one."""
        for kind in self.kinds:
            results = at_every_step(self.lanes, lambda lane, step: self.at_step(kind, lane, step, "before", act))
            steps = self.count_steps(kind, self.lanes[0])
            results.append(self.at_step(kind, self.lanes[0], steps - 1, "after", act) or ("", "no last step"))
            for phase in PHASES[kind.path]:
                problems = [problem for p, problem in results if p == phase]
                check(f"{kind.path}: {how} {phase}: one effect, and the same bytes to all",
                      problems and not any(problems), "\n".join(filter(None, problems)) or "it never was there")

    def provider_kills(self):
        kind = self.kinds[0]
        for when, name in ("before", "it never arrives"), ("after", "it has charged"):
            lane, amount, key = self.lanes[0], self.amounts.next(), new_key()
            lane.revive()
            CountingProvider.holds[amount] = when, lane.kill
            reply = insist(lane, kind.path, key, kind.document(amount))
            problem = kind.problems(amount, [reply]) or ("" if CountingProvider.calls[amount] == 2 else "one call")
            check(f"killed during the call to the provider, and {name}: one charge", not problem, problem)

    def complete_abandoned(self, command):
        kind, lane = self.kinds[0], self.lanes[0]
        amount, key = self.amounts.next(), new_key()
        lane.revive()
        CountingProvider.holds[amount] = "after", lane.kill
        first = post(lane.port, kind.path, key, kind.document(amount))
        wait_until("the lease is over", lambda: self.database.value(
            "SELECT count(*) FROM idempotency.requests WHERE key = %s AND due", key))
        completers = [Program(command[:-1] + ["complete"], "pay", f"completer {n}.log", PROVIDER=os.environ["PROVIDER"],
                              LEASE=LEASE) for n in range(2)]
        try:
            completers[0].proxy.arm(3, "before", completers[0].kill)
            completers[0].start()
            completers[0].wait()
            completers[0].proxy.disarm()
            for completer in completers:
                completer.revive()
            wait_until("the payment is made", lambda: self.database.value(
                "SELECT count(*) FROM payments WHERE amount = %s AND status = 'paid'", amount))
            reply = insist(lane, kind.path, key, kind.document(amount))
            check("a client that never comes back: one of two completers finishes its request",
                  first[0] == 0 and not kind.problems(amount, [reply]) and "Idempotent-Replayed" in reply[1],
                  (first, reply, kind.problems(amount, [reply])))
        finally:
            for completer in completers:
                completer.stop()


def run_it(language, database):
    """The commands of the page, in a folder with the programs; curl is run again, as the page says."""
    folder = LOGS / "pasted"
    folder.mkdir()
    for file in {HERE / "provider.py", *pathlib.Path.cwd().iterdir()}:
        (folder / file.name).symlink_to(file)
    block = as_pasted((HERE / "start.sh").read_text(), language, {
        "8001": free_port(), "8000": free_port(), "PGHOST=localhost ": "", " PGDATABASE=app": "",
        "Bearer secret": "Bearer token of acme", "curl -i": f"curl -is --retry {PATIENCE:.0f} --retry-delay 1 --retry-connrefused"})
    curl = block.rstrip().splitlines()[-2]
    with open(LOGS / "pasted.log", "w", encoding="utf-8") as log:
        shell = subprocess.Popen(["bash", "-c", block], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True)
        try:
            shell.wait(2 * PATIENCE)
            first = (LOGS / "pasted.log").read_text(encoding="utf-8")
            again = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=False).stdout
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    rows = database.value("SELECT count(*) FROM payments WHERE amount = 5 AND status = 'paid'")
    check("as pasted: a payment is made once, and its repeat is a replay", rows == 1 and "\nHTTP/1.1 201" in "\n" + first and
          "HTTP/1.1 201" in again and "Idempotent-Replayed: true" in again, f"{rows} rows\n{first}\n{again}")


PHASES = {
    "/payments": ["before the claim's commit", "after the claim's commit", "after the provider's call",
                  "after the charge is noted", "before the answer's commit",
                  "after the answer's commit, before the reply"],
    "/transfers": ["before the commit", "after the commit, before the reply"],
}


def phase_of(path, steps, when):
    """Where a request was stopped, by the steps that it had come to."""
    *done, last = [text.lower().startswith("commit") for text in steps]
    if when == "after":
        return PHASES[path][-1]
    if path == "/transfers":
        return PHASES[path][0]
    # the third transaction begins when the provider has answered
    return PHASES[path][4 if last and sum(done) == 3 else sum(done)]


def main():
    command = sys.argv[1:]
    provider = ProviderServer(("127.0.0.1", 0), CountingProvider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    os.environ["PROVIDER"] = f"http://127.0.0.1:{provider.server_address[1]}/charges"
    database = Database()
    for tenant in TENANTS:
        database.run("INSERT INTO tenants VALUES (%s, %s)", tenant,
                     hashlib.sha256(f"token of {tenant}".encode()).digest())
    lanes = [Program(command, "pay", f"api {n}.log", PROVIDER=os.environ["PROVIDER"], LEASE=LEASE)
             for n in range(LANES)]
    try:
        in_parallel(lambda lane: lane.start(), lanes)
        run_it("Python" if command[-2].endswith(".py") else "Go", database)
        cases = Cases(lanes, database)
        cases.twins()
        cases.other_payload()
        cases.other_tenant()
        cases.refused()
        cases.stored_failures()
        cases.provider_down()
        cases.at_each_step("killed", lambda lane: lane.kill())
        cases.at_each_step("connection lost", lambda lane: None)
        cases.provider_kills()
        cases.complete_abandoned(command)
        cases.dead()
    finally:
        for lane in lanes:
            lane.stop()


main()
