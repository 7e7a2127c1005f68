"""Requests: random transactions of several sessions, of claims and leases too, against requests_model.

Every operation of leases.py is done here as well, on events of the same consumers: they share the log, the tokens, the
budget of locks and the transactions.
"""
import hashlib
import json
import time
from typing import NamedTuple

from claims import Wait
from claims_model import UNCOMPLETED
from leases import CONSUMERS as LEASE_CONSUMERS, BASE, SETUP as LEASE_SETUP, WRONG as WRONG_LEASES, Leases, interval
from leases_model import DEAD, EXCLUSIVE, LEASED, SHARE
from requests_model import IN_PROGRESS, REPLAY, STARTED, RequestModel, RequestTxn, Response, is_request
from transactions import LEVELS

DAYS = 2
CONSUMERS = {**LEASE_CONSUMERS, "days": f"retention => '{DAYS} days'"}
OFTEN = ("default", "private", "quick", "quick", "quick", "foreign", "days")
# One key in two scopes, and a scope and a key that concatenate to what another two concatenate to
REQUESTS = ("a/bc", "ab/c", "a/c", "b/c")
FINGERPRINTS = (None, "01", "02", "0100")

# status, headers, length of the body; None: no body
FORMS = (
    (200, {"Content-Type": "application/json"}, 20),
    (201, [["Link", "<a>"], ["Link", "<b>"], ["link", "<a>"]], 20),
    (500, {}, 20),
    (202, None, 5000),
    (204, None, None),
    (200, None, 0),
)

ROW = """jsonb_build_array(a.result, a.token, a.attempt, a.recovery_point, a.state, a.status, a.headers, encode(a.body, 'hex'),
	extract(epoch FROM a.completed_at), extract(epoch FROM a.expires_at - a.completed_at), extract(epoch FROM a.retry_after))"""

SETUP = LEASE_SETUP + """
CREATE TABLE r.answered (consumer text, request text, body text);
CREATE FUNCTION r.request(id text, c text, f bytea = NULL, lasts interval = '1 h') RETURNS jsonb LANGUAGE sql AS $$
""" + f"SELECT {ROW} FROM idempotency.claim_request(split_part(id, '/', 2), split_part(id, '/', 1), f, c, lasts) a" + """
$$;
CREATE FUNCTION r.at_once(id text, c text, f bytea = NULL, body bytea = 'x') RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	verdict jsonb := r.request(id, c, f, NULL);
BEGIN
	IF verdict->>0 = 'started' THEN
		INSERT INTO r.answered VALUES (c, id, encode(body, 'hex'));
		PERFORM idempotency.complete_request(split_part(id, '/', 2), split_part(id, '/', 1), 200, body => body, consumer => c);
	END IF;
	RETURN verdict;
END $$;
CREATE FUNCTION r.taken_back(id text, c text, f bytea, lasts interval) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	verdict jsonb;
BEGIN
	BEGIN
		verdict := r.request(id, c, f, lasts);
		RAISE SQLSTATE 'R0001';
	EXCEPTION WHEN SQLSTATE 'R0001' THEN
		RETURN verdict;
	END;
END $$;
"""

WRONG = WRONG_LEASES + tuple((f"SELECT idempotency.{call}", state) for call, state in (
    ("claim_request('', 'a')", "22023"),
    ("claim_request('c', '')", "22023"),
    ("claim_request('c', NULL)", "22004"),
    ("claim_request(repeat('x', 1025), 'a')", "22023"),
    ("claim_request('c', repeat('x', 256))", "22023"),
    ("claim_request('c', 'a', fingerprint => '')", "22023"),
    ("claim_request('c', 'a', fingerprint => decode(repeat('00', 256), 'hex'))", "22023"),
    ("claim_request('c', 'a', consumer => '@request/default')", "22023"),
    ("claim_request('c', 'a', lease => '0')", "22023"),
    ("claim_request('c', 'a', lease => '367 days')", "22023"),
    ("claim_request('c', 'a', wait => '-1 s')", "22023"),
    ("claim_request('c', 'a', request => '{}')", "22023"),
    ("claim_request('c', 'a', lease => '1 h', request => to_jsonb(repeat('x', 1048577)))", "54000"),
    ("advance_request('c', 'a', NULL, 'half')", "22004"),
    ("advance_request('c', 'a', 1, '')", "22023"),
    ("advance_request('c', 'a', 1, NULL)", "22004"),
    ("advance_request('c', 'a', 1, 'half', lease => '-1 s')", "22023"),
    ("advance_request('c', 'a', 1, 'half', state => to_jsonb(repeat('x', 1048577)))", "54000"),
    ("complete_request('c', 'a', NULL)", "22004"),
    ("complete_request('c', 'a', 99)", "22023"),
    ("complete_request('c', 'a', 600)", "22023"),
    ("complete_request('c', 'a', 200, '1')", "22023"),
    ("complete_request('c', 'a', 200, '{\"A\": \"x\\r\\nB: y\"}')", "22023"),
    ("complete_request('c', 'a', 200, '[[\"A\"]]')", "22023"),
    ("complete_request('c', 'a', 200, body => decode(repeat('00', 1048577), 'hex'))", "54000"),
    ("fail_request('c', 'a', NULL)", "22004"),
    ("fail_request('c', 'a', '')", "22023"),
    ("fail_request('c', 'a', 'e', retry_after => '-1 s')", "22023"),
    ("release_request('c', '')", "22023"),
    ("release_request(NULL, 'a')", "22004"),
))


class Order(NamedTuple):
    """hours: of the lease; None: the transaction is the whole execution."""
    fingerprint: str
    hours: int
    request: object = None


def split(request):
    """(key, scope), in the order of the arguments."""
    scope, key = request.split("/")
    return key, scope


def hours_of(hours):
    return None if hours is None else interval(hours)


def make_response(form, number):
    """Another body for each number."""
    status, headers, length = FORMS[form]
    if length is None:
        return Response(status, headers)
    digits = "".join(hashlib.sha256(f"{number} {i}".encode()).hexdigest() for i in range(length // 32 + 1))
    return Response(status, headers, "00" + digits[:2 * length - 2] if length else "")


class Requests(Leases):
    CONSUMERS, SETUP, WRONG = CONSUMERS, SETUP, WRONG
    LEFT_ALONE = 0.95
    new_txn = RequestTxn

    def __init__(self, cluster, dbname):
        super().__init__(cluster, dbname)
        self.answered = {}          # key -> body of the committed answer
        self.discarded = {}         # requests that an operator has ended without an answer: when, at the latest
        self.moments = {}           # key -> completed_at, as the first replay said it

    @staticmethod
    def new_model(foreign_lockers):
        return RequestModel(foreign_lockers, BASE)

    @staticmethod
    def is_event(key):
        return not is_request(key)

    # Choosing.

    def choose_idle(self, rng, s):
        chance = rng.random()
        if chance < 0.3:
            return (s, "auto", *self.choose_request(rng, None, ALONE)[1:])
        if chance < 0.6:
            local = (("budget", rng.randrange(3)),) if rng.random() < 0.1 else ()
            return (s, "begin", rng.choice(LEVELS), rng.random() < 0.02, local)
        return super().choose_idle(rng, s)

    def choose_inside(self, rng, s, txn):
        chance = rng.random()
        if chance < 0.65:
            return (s, *self.choose_request(rng, txn, INSIDE)[1:])
        if chance < 0.75:
            return super().choose_inside(rng, s, txn)
        pending = any(is_request(key) for key in txn.pending())
        ways = [("savepoint", 10), ("commit", 2 if pending else 8), ("rollback", 2), ("prepare", 3), ("declare", 3), ("wrong", 2)]
        ways += [("rollback_to", 8), ("release_savepoint", 4)] if txn.savepoints else []
        ways += [("fetch", 20), ("close", 1)] if txn.cursors else []
        way = rng.choices([w for w, _ in ways], [n for _, n in ways])[0]
        if way == "declare":
            self.names += 1
            ids = tuple(rng.choice(REQUESTS) for _ in range(rng.randint(1, 4)))
            bad = rng.randint(1, len(ids)) if rng.random() < 0.6 else 0
            return (s, way, f"c{self.names}", rng.choice(OFTEN), ids, rng.choice(("request", "at_once")), bad)
        if way == "wrong":
            return (s, way, rng.randrange(len(WRONG_LEASES), len(WRONG)))
        return self.choose_of_any(rng, s, txn, way, "requests")

    def choose_request(self, rng, txn, ways):
        """(None, way, consumer, request, ...), of what has to do with requests."""
        own = sorted(k for k in [*txn.pending(), *txn.asserted] if is_request(k)) if txn else []
        free = sorted(k for k, lease in self.model.leases.items()
                      if lease.state == LEASED and is_request(k) and not self.model.is_busy(txn, k))
        begun = own or free
        way = rng.choices([w for w, _ in ways], [n if begun or w not in BEGUN else n / 8 for w, n in ways])[0]
        if way in ("redrive", "discard"):
            return (None, way, *self.choose_dead(rng))
        consumer, request = self.choose_open(rng, txn)
        fingerprint = rng.choice(FINGERPRINTS + (None, "01"))
        number, patient = rng.randrange(10 ** 6), rng.random() < 0.5
        if way == "request":
            wait = "1 h" if txn and rng.random() < 0.35 and not self.is_awaited((consumer, request)) else \
                "5 ms" if rng.random() < 0.03 else None
            hours = rng.choice((1, 0) if txn is None else (1, 0, None, None))
            work = rng.choice((None, number % 10)) if hours is not None else None
            return (None, way, consumer, request, fingerprint, hours, wait, work)
        if way == "at_once":
            return (None, way, consumer, request, fingerprint, number)
        if way == "taken_back":
            return (None, way, consumer, request, fingerprint, rng.choice((None, 0, 1)))
        if way == "advance":
            own = [k for k in own if k in txn.asserted]
        consumer, request = self.choose_begun(rng, own, free) or (consumer, request)
        which = rng.choices(("current", "former", "other", "none"), (85, 9, 4, 2))[0]
        if way == "advance":
            return (None, way, consumer, request, which, rng.choice(("half", "most")), rng.choice((None, {"n": number % 10})),
                    rng.choice((1, 0, 0, None)), patient)
        if (consumer, request) in own and rng.random() < 0.9 or rng.random() < 0.03:
            which = None            # without a token
        if way == "answer":
            return (None, way, consumer, request, which, rng.randrange(len(FORMS)), number, patient)
        if way == "failure":
            retry = rng.choices((None, 0, 1), (6, 5, 1))[0]
            return (None, way, consumer, request, which, rng.choice(("first", "second")), retry, patient)
        return (None, way, consumer, request, which, patient)

    def choose_open(self, rng, txn):
        """Rather one that somebody has begun."""
        begun = {k for k in self.model.leases if is_request(k)}
        for other in self.model.others(txn):
            begun |= {k for k in [*other.claims, *other.locks] if is_request(k)}
        return rng.choice(sorted(begun)) if begun and rng.random() < 0.4 else (rng.choice(OFTEN), rng.choice(REQUESTS))

    def choose_dead(self, rng):
        """(consumer, keys or None, scope or None) of requests that are dead, or of any."""
        dead = sorted(k for k, lease in self.model.leases.items() if lease.state == DEAD and is_request(k))
        consumer, request = rng.choice(dead) if dead and rng.random() < 0.7 else (rng.choice(OFTEN), rng.choice(REQUESTS))
        key, scope = split(request)
        keys = None if rng.random() < 0.3 else (key,) if rng.random() < 0.7 else (key, rng.choice(("bc", "c")))
        return consumer, keys, scope if keys or rng.random() < 0.7 else None

    def choose_begun(self, rng, own, free):
        """Rather one that this transaction has without a token, that is leased, or that is waited for; or None."""
        awaited = sorted(wait.key for wait in self.waiting.values() if is_request(wait.key))
        if awaited and rng.random() < 0.2:
            return rng.choice(awaited)
        if own and rng.random() < 0.7:
            return rng.choice(own)
        return rng.choice(free) if free and rng.random() < 0.85 else None

    def makes_sense(self, op):
        if op[1] == "request" and op[6] == "1 h" and self.is_awaited((op[2], op[3])):
            return False
        return super().makes_sense(op)

    # Transactions.

    def has_effect(self, txn, key):
        return not is_request(key) and super().has_effect(txn, key)

    def committed(self, txn):
        super().committed(txn)
        for key, claim in txn.claims.items():
            if is_request(key) and claim.phase == "completed":
                if key in self.answered or key in self.discarded:
                    self.wrong("one answer", key)
                if claim.result:
                    self.answered[key] = claim.result.body
                else:
                    self.discarded[key] = time.time()

    # Asking.

    def allowed_to(self, txn, key, order):
        if txn.read_only:
            return {"25006"}
        allowed = self.model.ask(txn, key, order.fingerprint)
        if self.alone and order.hours is None and not txn.keep and STARTED in allowed:
            allowed = allowed - {STARTED} | {UNCOMPLETED}
        return allowed

    def do_request(self, s, txn, consumer, request, fingerprint, hours, wait, work):
        key, order = (consumer, request), Order(fingerprint, hours, work)

        def allowed():
            return self.allowed_to(txn, key, order)

        def settle(answer, allowed):
            if self.judge(txn, answer, allowed):
                self.asked(txn, key, answer.rows[0][0], allowed, order)
                self.pass_time(1 if hours is None else hours)
        patient = wait == "1 h" and allowed() == {IN_PROGRESS} and self.model.would_lock(txn, key) and \
            not self.model.has_done(txn, key)
        if wait == "1 h" and not patient:
            wait = "5 ms"
        sql = f"SELECT {ROW} FROM idempotency.claim_request(%s, %s, decode(%s, 'hex'), %s, %s, %s, %s::jsonb) a"
        args = (*split(request), fingerprint, consumer, hours_of(hours), wait or "0", None if work is None else str(work))
        if patient:
            self.leave(s, Wait(key, IN_PROGRESS, allowed, settle), sql, args)
        else:
            settle(self.run(s, sql, args), allowed())

    def asked(self, txn, key, row, allowed, order):
        """It is the row that the model has for its verdict; then the model goes on by it."""
        self.compare_row(txn, key, row, allowed, order)
        if row[0] == STARTED and order.hours is None:
            self.model.started(txn, key, order.fingerprint)
        elif row[0] == STARTED:
            self.model.started_lease(txn, key, order, row[1])
        elif row[0] == DEAD:
            self.model.judged_dead(txn, key)

    def compare_row(self, txn, key, row, allowed, order):
        verdict, token, completed_at, retry = row[0], row[1], row[8], row[10]
        if verdict not in allowed:
            self.wrong(f"{key}: {sorted(allowed)}", row)
        lease, known = self.model.view(txn, key), {}
        if verdict == STARTED:
            if order.hours is not None:
                self.check_token(key, token, row)
                known = {"token": token}
            known["attempt"] = lease.attempt + 1 if lease else 1
            if lease:
                known.update(point=lease.point, work=lease.work)
        elif verdict == REPLAY:
            known = self.model.response(txn, key)._asdict()
            known.update(completed_at=self.check_moment(txn, key, completed_at, row),
                         expires=DAYS * 86400 if key[0] == "days" else None)
        elif verdict == IN_PROGRESS:
            self.check_pause(txn, key, lease, row, retry)
            known = {"retry": retry}
        elif verdict == DEAD:
            known = {"attempt": lease.attempt}
        expected = [verdict] + [known.get(n) for n in ("token", "attempt", "point", "work", "status", "headers", "body",
                                                       "completed_at", "expires", "retry")]
        if row != expected:
            self.wrong(expected, row)

    def check_moment(self, txn, key, moment, row):
        """A replay always tells the same, and returns it.  What was discarded has a range of times when it is packed."""
        if moment is None:
            self.wrong("when it was completed", row)
        if key in self.discarded and moment > self.discarded[key]:
            self.wrong(f"completed before {self.discarded[key]}", row)
        if key in txn.claims or key in self.discarded:
            return moment
        return self.moments.setdefault(key, moment)

    def do_at_once(self, s, txn, consumer, request, fingerprint, number):
        """Claim, effect and answer in one statement."""
        key, order = (consumer, request), Order(fingerprint, None)
        allowed = {"25006"} if txn.read_only else self.model.ask(txn, key, fingerprint)
        response = make_response(0, number)._replace(status=200, headers=None)
        answer = self.run(s, "SELECT r.at_once(%s, %s, decode(%s, 'hex'), decode(%s, 'hex'))",
                          (request, consumer, fingerprint, response.body))
        if self.judge(txn, answer, allowed):
            self.asked_at_once(txn, key, answer.rows[0][0], allowed, order, response)

    def asked_at_once(self, txn, key, row, allowed, order, response):
        self.asked(txn, key, row, allowed, order)
        if row[0] == STARTED:
            self.model.complete(txn, key, response._replace(fingerprint=self.model.fingerprint(txn, key)))

    def do_taken_back(self, s, txn, consumer, request, fingerprint, hours):
        """In a block that is rolled back: the verdict is as ever, and nothing stays."""
        key, order = (consumer, request), Order(fingerprint, hours)
        allowed = {"25006"} if txn.read_only else self.model.ask(txn, key, fingerprint)
        answer = self.run(s, "SELECT r.taken_back(%s, %s, decode(%s, 'hex'), %s)",
                          (request, consumer, fingerprint, hours_of(hours)))
        if self.judge(txn, answer, allowed):
            self.compare_row(txn, key, answer.rows[0][0], allowed, order)

    def fetchable(self, txn, cursor, key):
        return self.model.ask(txn, key, None) if is_request(key) else super().fetchable(txn, cursor, key)

    def fetched(self, txn, cursor, key, verdict, allowed):
        if cursor.verb == "request":
            self.asked(txn, key, verdict, allowed, Order(None, 1))
        elif cursor.verb == "at_once":
            self.asked_at_once(txn, key, verdict, allowed, Order(None, None), Response(200, None, b"x".hex()))
        else:
            super().fetched(txn, cursor, key, verdict, allowed)

    # Acting on what was started.

    def do_advance(self, s, txn, consumer, request, which, point, work, hours, patient):
        """A phase: an effect comes with it."""
        key = (consumer, request)
        lasts, hours = self.lasts(txn, consumer, hours)
        token = self.token(txn, key, which)

        def settle(left):
            if not self.is_left(left, (hours, hours)):
                self.wrong(f"an end of the lease in {hours} h", left)
            self.model.extend(txn, key, hours > 0, (hours, hours), point, work)
            self.model.assert_lease(txn, key, token)
            txn.fenced += ((key, token),)
            self.pass_time(hours)
        self.act(s, txn, key, token, SHARE, patient,
                 "WITH f AS (INSERT INTO r.fenced VALUES (%s, %s, %s) RETURNING *)"
                 " SELECT extract(epoch FROM idempotency.advance_request(%s, %s, token, %s, consumer, %s::jsonb,"
                 f" {lasts}) - clock_timestamp())::float8 FROM f",
                 (consumer, request, token, *split(request), point, None if work is None else json.dumps(work)), settle)

    def do_answer(self, s, txn, consumer, request, which, form, number, patient):
        """The answer; an effect comes with it."""
        key = (consumer, request)
        response = make_response(form, number)
        sql = ("WITH e AS (INSERT INTO r.answered VALUES (%s, %s, %s) RETURNING *)"
               " SELECT idempotency.complete_request(%s, %s, %s, %s::jsonb, decode(e.body, 'hex'), consumer, %s) FROM e")
        args = (consumer, request, response.body, *split(request), response.status,
                None if response.headers is None else json.dumps(response.headers))

        def stored():
            return response._replace(fingerprint=self.model.fingerprint(txn, key))
        if which is None:
            error = "25006" if txn.read_only else self.model.complete(txn, key, stored())
            self.judge(txn, self.run(s, sql, (*args, None)), error)
            return
        token = self.token(txn, key, which)

        def settle(_):
            self.model.complete_leased(txn, key, stored())
            txn.fenced += ((key, token),)
        self.act(s, txn, key, token, EXCLUSIVE, patient,
                 "WITH f AS (INSERT INTO r.fenced VALUES (%s, %s, %s))," + sql[4:],
                 (consumer, request, token, *args, token), settle)

    def do_failure(self, s, txn, consumer, request, which, error, retry, patient):
        key = (consumer, request)
        if retry is None and self.model.policy(txn, consumer).shortest is None:
            retry = 0               # the default pauses are as long as a slow machine may take
        self.end(s, txn, key, which, patient, "SELECT idempotency.fail_request(%s, %s, %s, %s, retry_after => %s, token => %s)",
                 (*split(request), error, consumer, hours_of(retry)),
                 lambda: self.model.fail_own(txn, key, error, retry),
                 lambda: self.model.give_back(txn, key, error, retry, False))

    def do_free(self, s, txn, consumer, request, which, patient):
        def give_back():
            self.model.give_back(txn, (consumer, request), None, None, False)
            return ""
        self.end(s, txn, (consumer, request), which, patient, "SELECT idempotency.release_request(%s, %s, %s, %s)",
                 (*split(request), consumer), lambda: self.model.free_own(txn, (consumer, request)) or "", give_back)

    def end(self, s, txn, key, which, patient, sql, args, end_own, end):
        """end_own, end: make it so in the model, and return what the call answers."""
        def settle(expected, got):
            if got != expected:
                self.wrong(expected, got)
            self.pass_time()
        if which is not None:
            token = self.token(txn, key, which)
            self.act(s, txn, key, token, EXCLUSIVE, patient, sql, (*args, token), lambda state: settle(end(), state))
            return
        error = "25006" if txn.read_only else self.model.end_own(txn, key)
        answer = self.run(s, sql, (*args, None))
        if self.judge(txn, answer, error) and not answer.lost:
            settle(end_own(), answer.rows[0][0])

    # Operators.

    def keys_of(self, consumer, ids, scope):
        if scope is None:
            requests = () if ids else REQUESTS
            return super().keys_of(consumer, ids, scope) + [(consumer, r) for r in requests]
        requests = (f"{scope}/{i}" for i in sorted(set(ids))) if ids else REQUESTS
        return [(consumer, r) for r in requests if split(r)[1] == scope]

    # The end.

    def compare_status(self, when):
        super().compare_status(when)
        self.trace.append("")
        for key in [(c, r) for c in sorted(set(OFTEN)) for r in REQUESTS]:
            for fingerprint in FINGERPRINTS[:3]:
                self.ask_once_more(key, Order(fingerprint, 1), when)

    def ask_once_more(self, key, order, when):
        nobody = self.new_txn("READ COMMITTED")
        self.trace[-1] = f"at the end, {when}, {key}, {order.fingerprint}"
        self.control.autocommit = False
        row = self.sql("SELECT r.request(%s, %s, decode(%s, 'hex'))", (key[1], key[0], order.fingerprint))[0][0]
        self.control.rollback()
        self.control.autocommit = True
        self.asked(nobody, key, row, self.model.ask(nobody, key, order.fingerprint), order)

    def compare_view(self):
        super().compare_view()
        rows = self.sql("SELECT consumer, scope || '/' || key, state::text, attempt, recovery_point, last_error, request"
                        " FROM idempotency.requests")
        self.compare("requests", sorted(rows, key=lambda row: row[:2]), sorted(
            ((*key, lease.state, lease.attempt, lease.point, lease.error, lease.request)
             for key, lease in self.model.leases.items() if is_request(key)), key=lambda row: row[:2]))

    def compare_remembered(self):
        super().compare_remembered()
        self.compare("answers", sorted(self.sql("SELECT consumer, request, body FROM r.answered"), key=str),
                     sorted(((*key, body) for key, body in self.answered.items()), key=str))


BEGUN = ("advance", "answer", "failure", "free")
ALONE = (("request", 30), ("at_once", 4), ("advance", 20), ("answer", 6), ("failure", 10), ("free", 6), ("redrive", 3),
         ("discard", 2))
INSIDE = (("request", 30), ("at_once", 3), ("taken_back", 4), ("advance", 18), ("answer", 12), ("failure", 12), ("free", 8),
          ("redrive", 2), ("discard", 1))
