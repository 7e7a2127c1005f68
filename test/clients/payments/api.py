"""The payment API of doc/howto/payments.md, which shows the lines between the marks.

    api.py PORT         serve on 127.0.0.1
    api.py complete     finish requests whose clients have gone, for ever

drive.py runs it.  PROVIDER is the URL of the payment provider; LEASE and WAIT are intervals.
"""

# >>> claim
import hashlib
import json
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

LEASE = os.environ.get("LEASE", "30 s")     # longer than a call to the provider may take


class Request(NamedTuple):
    tenant: str                             # who is logged in, never what the client says
    key: str
    method: str
    path: str
    body: str


class Answer(NamedTuple):
    status: int
    headers: dict
    body: bytes


def answer(status, document, **headers):
    return Answer(status, {"Content-Type": "application/json", **headers}, json.dumps(document).encode())


CLAIM = """
    SELECT c.result, c.token, c.recovery_point, c.state, c.status, c.headers, c.body,
           ceil(extract(epoch FROM c.retry_after))::int AS retry_after
    FROM jsonb_build_object('method', %(method)s::text, 'path', %(path)s::text, 'body', %(body)s::jsonb) AS r (request),
         idempotency.claim_request(%(key)s, %(tenant)s, idempotency.canonical_hash(r.request), 'payments',
             lease => %(lease)s::interval, wait => %(wait)s::interval,
             request => CASE WHEN %(lease)s::interval IS NOT NULL THEN r.request END) AS c"""


def claim_request(conn, request, lease=None, wait="0"):
    with conn.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
        return cursor.execute(CLAIM, {**request._asdict(), "lease": lease, "wait": wait}).fetchone()


def complete_request(conn, request, final, token=None):
    conn.execute(
        "SELECT idempotency.complete_request(%s, %s, %s, %s, %s, consumer => 'payments', token => %s)",
        [request.key, request.tenant, final.status, Jsonb(final.headers), final.body, token])


def answer_to_repeat(claim):
    """What a request gets that is not executed now."""
    match claim.result:
        case "replay" if claim.status:
            return Answer(claim.status, {**claim.headers, "Idempotent-Replayed": "true"}, claim.body)
        case "in_progress":
            return answer(409, {"error": "this request is being executed"},
                          **{"Retry-After": str(max(claim.retry_after or 0, 1))})
        case "mismatch":
            return answer(422, {"error": "this key was used for another request"})
        case _:                             # dead, or discarded by an operator
            return answer(500, {"error": "this request has failed too often, and needs attention"})
# <<<


# >>> transfer
def transfer(pool, request):
    """Move money between two accounts of the tenant: a handler in one transaction."""
    order = json.loads(request.body)
    with pool.connection() as conn, conn.transaction():
        claim = claim_request(conn, request, wait=os.environ.get("WAIT", "2 s"))
        if claim.result != "started":
            return answer_to_repeat(claim)
        try:
            with conn.transaction():        # a savepoint: what fails in here is undone, the claim is not
                final = move_money(conn, request.tenant, order)
        except psycopg.errors.CheckViolation:
            final = answer(402, {"error": "insufficient funds"})
        except psycopg.errors.ForeignKeyViolation:
            final = answer(404, {"error": "no such account"})
        except psycopg.OperationalError:
            raise                           # a retry may help: undo everything, store nothing
        except Exception:
            logging.exception("transfer failed")
            final = answer(500, {"error": "internal error"})
        complete_request(conn, request, final)
    return final                            # committed


def move_money(conn, tenant, order):
    row = conn.execute(
        "INSERT INTO transfers (tenant, source, target, amount) VALUES (%s, %s, %s, %s) RETURNING id",
        [tenant, order["from"], order["to"], order["amount"]]).fetchone()
    # in one order, so that two transfers cannot wait for each other
    for name, amount in sorted([(order["from"], -order["amount"]), (order["to"], order["amount"])]):
        conn.execute("UPDATE accounts SET balance = balance + %s WHERE tenant = %s AND name = %s",
                     [amount, tenant, name])
    return answer(201, {"transfer": row[0]}, Location=f"/transfers/{row[0]}")
# <<<


# >>> payment
def pay(pool, request):
    """Charge a card: a handler with phases, because the payment provider is not in this database."""
    order = json.loads(request.body)
    with pool.connection() as conn, conn.transaction():
        claim = claim_request(conn, request, lease=LEASE)
    if claim.result != "started":
        return answer_to_repeat(claim)
    point, state = claim.recovery_point, claim.state

    if point is None:
        state = {"payment": str(uuid.uuid4())}
        with phase(pool, request, claim.token, "recorded", state) as conn:
            conn.execute("INSERT INTO payments (id, tenant, amount) VALUES (%s, %s, %s)",
                         [state["payment"], request.tenant, order["amount"]])
        point = "recorded"
    if point == "recorded":
        try:
            charge = charge_card(state["payment"], order)
        except Exception as error:          # no answer, or none that says what happened
            return try_later(pool, request, claim.token, error)
        state |= {"charge": charge}
        with phase(pool, request, claim.token, "charged", state) as conn:
            conn.execute("UPDATE payments SET charge = %s WHERE id = %s", [charge, state["payment"]])

    if state["charge"] is None:
        status, final = "declined", answer(402, {"error": "the card was declined"})
    else:
        status, final = "paid", answer(201, {"payment": state["payment"], "charge": state["charge"]},
                                       Location=f"/payments/{state['payment']}")
    with pool.connection() as conn, conn.transaction():
        conn.execute("UPDATE payments SET status = %s WHERE id = %s", [status, state["payment"]])
        conn.execute("SELECT idempotency.outbox_enqueue('payment', %s, 'PaymentEnded', %s)",
                     [state["payment"], Jsonb({"status": status, "amount": order["amount"]})])
        complete_request(conn, request, final, claim.token)
    return final


@contextmanager
def phase(pool, request, token, point, state):
    """A transaction that commits the rows of a phase together with its recovery point."""
    with pool.connection() as conn, conn.transaction():
        conn.execute(
            "SELECT idempotency.advance_request(%s, %s, %s, %s, 'payments', %s, lease => %s::interval)",
            [request.key, request.tenant, token, point, Jsonb(state), LEASE])
        yield conn


def charge_card(payment, order):
    """The provider's id of the charge, None if the card was declined.  The payment's id is the provider's key."""
    call = urllib.request.Request(
        os.environ["PROVIDER"], json.dumps({"amount": order["amount"], "card": order["card"]}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": payment})
    try:
        with urllib.request.urlopen(call, timeout=10) as reply:
            return json.load(reply)["charge"]
    except urllib.error.HTTPError as error:
        if error.code == 402:
            return None
        raise


def try_later(pool, request, token, error):
    """Neither charged nor declined, or nobody knows: a repeat asks the provider again."""
    with pool.connection() as conn, conn.transaction():
        conn.execute("SELECT idempotency.fail_request(%s, %s, %s, 'payments', token => %s)",
                     [request.key, request.tenant, str(error), token])
    return answer(503, {"error": "the payment provider does not answer"}, **{"Retry-After": "1"})
# <<<


# >>> http
ROUTES = {
    "/transfers": (transfer, {"from": str, "to": str, "amount": int}),
    "/payments": (pay, {"card": str, "amount": int}),
}


def respond(pool, token, method, path, key, body):
    """The answer to an HTTP request."""
    if path not in ROUTES or method != "POST":
        return answer(404, {"error": "not found"})
    handler, fields = ROUTES[path]
    if not re.fullmatch(r"[!-~]{1,255}", key or ""):
        return answer(400, {"error": "Idempotency-Key must have 1 to 255 visible characters of ASCII"})
    if not is_valid(body, fields):
        return answer(400, {"error": f"the body must be a JSON object with {', '.join(fields)}"})
    try:
        tenant = tenant_of(pool, token)
        if tenant is None:
            return answer(401, {"error": "unauthorized"}, **{"WWW-Authenticate": "Bearer"})
        return handler(pool, Request(tenant, key, method, path, body.decode()))
    except psycopg.OperationalError:        # connection lost, 40001, deadlock, no connection free ...
        logging.exception("not now")
        return answer(503, {"error": "try again"}, **{"Retry-After": "1"})
    except psycopg.DataError:               # JSON that jsonb does not take, such as "\u0000"
        return answer(400, {"error": "the body is not valid"})
    except psycopg.Error as error:
        if error.sqlstate == "ID007":       # this execution was too slow, another one has gone on
            return answer(409, {"error": "this request is being executed"}, **{"Retry-After": "1"})
        logging.exception("%s failed", path)
        return answer(500, {"error": "internal error"})


def is_valid(body, fields):
    """A request that is not valid never begins: it stores nothing, and its key stays free."""
    try:
        document = json.loads(body.decode())
    except ValueError:
        return False
    return isinstance(document, dict) and all(type(document.get(name)) is kind for name, kind in fields.items()) \
        and 0 < document["amount"] < 2 ** 53


def tenant_of(pool, token):
    """Stands for your authentication."""
    with pool.connection() as conn:
        row = conn.execute("SELECT name FROM tenants WHERE token_hash = %s",
                           [hashlib.sha256(token.encode()).digest()]).fetchone()
    return row and row[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        result = respond(self.server.pool, self.headers.get("Authorization", "").removeprefix("Bearer "),
                         self.command, self.path, self.headers.get("Idempotency-Key"), body)
        self.send_response(result.status)
        for name, value in result.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(result.body)))
        self.end_headers()
        self.wfile.write(result.body)
# <<<

    def log_message(self, *args):
        """Quiet: the test counts what it gets."""


# >>> complete
DUE = "SELECT scope, key, request FROM idempotency.requests WHERE consumer = 'payments' AND due LIMIT 100"


def complete_abandoned(pool):
    """Do what the repeats would do of clients that sent none.  Any number of processes may run it."""
    with pool.connection() as conn:
        due = conn.execute(DUE).fetchall()
    for tenant, key, request in due:
        handler, _ = ROUTES[request["path"]]
        try:
            result = handler(pool, Request(tenant, key, request["method"], request["path"], json.dumps(request["body"])))
            logging.warning("completed: %s", result.status)
        except psycopg.Error:
            logging.exception("a request of %s stays", tenant)
# <<<


# >>> main
def main():
    # autocommit: a transaction is where conn.transaction() is
    with ConnectionPool("", min_size=2, max_size=10, kwargs={"autocommit": True}) as pool:
        if sys.argv[1] == "complete":
            while True:
                complete_abandoned(pool)
                time.sleep(1)
        server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
        server.pool = pool
        server.serve_forever()


if __name__ == "__main__":
    main()
# <<<
