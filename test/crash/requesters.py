"""Handlers of requests: clients that repeat them, wait, execute them in one transaction or with a lease, and die.

The effect of a request has two phases and an answer.  With a lease each phase is a transaction, which notes its
recovery point; an attempt goes on behind the phases that were committed.  Some clients use a request's key for
another request.  A request whose attempts are used up is dead; operators redrive it, or discard it (operators.py).
"""
import hashlib
import json

import psycopg2

from attempt_client import DURATIONS, PADDING, AttemptClient, interval
from request_rules import PHASES

# Names of requests that are alike when scope and key are put together.
SCOPES = (("a", "b{}"), ("ab", "{}"), ("t", "{}"), ("u", "{}"))
ASK = """SELECT result::text, status, headers::text, body, completed_at::text, token, attempt, recovery_point,
    state ->> 'p' AS noted, retry_after::text
    FROM idempotency.claim_request(%s, %s, %s, 'requests', lease => %s, wait => %s, request => %s)"""
LONGEST = 3000


def request_name(number):
    scope, key = SCOPES[number % len(SCOPES)]
    return f"{scope}|{key.format(number // len(SCOPES))}"


def parts(name):
    """The key and the scope of a request."""
    scope, key = name.split("|")
    return key, scope


def fingerprint(name, which):
    return hashlib.sha256(f"{name} {which}".encode()).digest()


class Requester(AttemptClient):
    consumer = "requests"

    def attempt(self, name):
        if self.rng.random() < 0.5:
            self.in_one(name)
        else:
            self.in_phases(name)

    # Asking.

    def which(self, name):
        """The fingerprint that the client sends: now and then another request's."""
        return fingerprint(name, "this" if self.rng.random() < 0.9 else "another")

    def claim(self, name, lease=None):
        """The answer of claim_request, and the fingerprint that was sent."""
        wait = self.rng.choice((0, 0, 0.05, 0.4))
        sent = self.which(name)
        request = json.dumps({"name": name, "padding": "x" * PADDING}) if lease else None
        answer = self.ask("request", name, ASK, (*parts(name), psycopg2.Binary(sent), lease and interval(lease), interval(wait), request),
                          print=sent.hex(), wait=wait)
        if answer["result"] == "replay":
            self.pool.done(name)
        elif answer["result"] == "dead":
            self.met_dead(name)
        return answer, sent.hex()

    def complete(self, name, token=None, status=None):
        status = status or self.rng.choice((200, 201, 404))
        body = self.rng.choice((None, b"", b"\x00", self.rng.randbytes(self.rng.randrange(LONGEST))))
        headers = self.rng.choice((None, {"Content-Type": "a/b", "Location": f"/{name}"}, {},
                                   [["Link", f"<{self.txn}>"], ["Link", "<b>"], ["ETag", "\"\u00e9\""]]))
        self.ask("complete", name, """SELECT idempotency.complete_request(%s, %s, %s, %s, %s, 'requests', %s)::text AS ok,
                     %s::jsonb::text AS headers""",
                 (*parts(name), status, dumped(headers), bytes_of(body), token, dumped(headers)),
                 token=token, status=status, body=None if body is None else body.hex())
        self.row(name, "complete", token)

    def fail(self, name, token=None):
        answer = self.ask("fail", name, "SELECT idempotency.fail_request(%s, %s, 'it failed', 'requests', %s, %s)::text AS state",
                          (*parts(name), token, self.rng.choice((None, interval(0.005)))), token=token, failed=True, park=False)
        self.gave_back(name, answer["state"], "fail", token)

    def release(self, name, token=None):
        self.ask("release", name, "SELECT idempotency.release_request(%s, %s, 'requests', %s)::text AS ok",
                 (*parts(name), token), token=token)
        if token:
            self.row(name, "release", token)

    # In one transaction.

    def in_one(self, name):
        def body():
            answer, sent = self.claim(name)
            if answer["result"] != "started":
                return
            if self.rng.random() < 0.3:
                self.pause(0.15)
            if self.rng.random() < 0.1:     # everything is as it was
                self.release(name)
                return
            self.row(name, "start", None, answer["attempt"], answer["recovery_point"], sent)
            self.handle(name, answer["recovery_point"])
        if self.transact(body) == "COMMIT" and (name, "complete", None) in self.rows:
            self.pool.done(name)

    def handle(self, name, point):
        way = self.rng.random()
        if way < 0.1:
            self.fail(name)
        elif way < 0.25:    # the effect fails, and its answer stays
            self.savepoint(lambda: self.row(name, "phase", None, None, PHASES[-1]))
            self.complete(name, status=500)
        else:
            for phase in remaining(point):
                self.row(name, "phase", None, None, phase)
            self.complete(name)

    # With a lease.

    def in_phases(self, name):
        duration, started = self.rng.choice(DURATIONS), []

        def body():
            answer, sent = self.claim(name, duration)
            if answer["result"] == "started":
                self.row(name, "lease", answer["token"], answer["attempt"], answer["recovery_point"], sent)
                started.append(answer)
        end = self.transact(body)
        if started and (end != "ROLLBACK" or self.rng.random() < 0.2):
            self.go_on(name, started[0], duration)

    def go_on(self, name, answer, duration):
        token, point = answer["token"], answer["recovery_point"]
        # This attempt does not begin.  Former ones may have; before the first one there are those from before a redrive.
        if self.rng.random() < (0.25 if answer["attempt"] == 1 else 0.1):
            self.transact(lambda: self.release(name, token))
            return
        for phase in remaining(point):
            if self.rng.random() < 0.4:
                self.pause(min(1.2, 2.5 * duration))
            if self.rng.random() < 0.15:
                return
            if self.transact(lambda phase=phase: self.advance(name, token, phase, duration)) not in ("COMMIT", "lazily"):
                return
        if self.rng.random() < 0.1:
            self.transact(lambda: self.fail(name, token))
        elif self.transact(lambda: self.complete(name, token)) == "COMMIT":
            self.pool.done(name)

    def advance(self, name, token, phase, duration):
        self.ask("advance", name, "SELECT idempotency.advance_request(%s, %s, %s, %s, 'requests', %s, %s)::text AS until",
                 (*parts(name), token, phase, json.dumps({"p": phase, "padding": "x" * PADDING}), interval(duration)), token=token)
        self.row(name, "phase", token, None, phase)
        if self.rng.random() < 0.2:
            self.pause(0.05)


def remaining(point):
    return PHASES[PHASES.index(point) + 1:] if point else PHASES


def dumped(headers):
    return None if headers is None else json.dumps(headers)


def bytes_of(body):
    return None if body is None else psycopg2.Binary(body)
