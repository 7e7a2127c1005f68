"""Receive webhooks into PostgreSQL, each event once.  ../../receive_test.py kills it.

The lines between the marks are those of doc/howto/webhooks.md.
"""

# >>> program
import http.server
import json
import os
import sys

import psycopg
from standardwebhooks import Webhook, WebhookVerificationError

# several secrets, separated by blanks, while one takes the place of another
HOOKS = [Webhook(secret) for secret in os.environ["WEBHOOK_SECRETS"].split()]


def verified(body, headers):
    """The event, if one of the secrets has signed it within the last five minutes."""
    for hook in HOOKS:
        try:
            hook.verify(body, headers)
            return json.loads(body)
        except WebhookVerificationError:
            pass
    return None


def handle(conn, event_id, order):
    """The status of the answer.  Claim and effect commit together."""
    with conn.transaction():
        claim, = conn.execute("SELECT idempotency.claim_event(%s::uuid, consumer => 'billing')", [event_id]).fetchone()
        if claim == "busy":
            return 503                          # another request has it right now: come again
        if claim == "claimed":
            conn.execute("INSERT INTO invoices VALUES (%s, %s, %s)", [order["order"], order["total"], event_id])
            conn.execute("SELECT idempotency.complete_event(%s::uuid, consumer => 'billing')", [event_id])
    return 204                                  # also for a duplicate: it was handled before


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"               # keeps connections
    timeout = 600
    conn = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(self.status_for(body, headers))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def status_for(self, body, headers):
        order = verified(body, headers)
        if order is None:
            return 401                          # not from us: the relay makes it a dead letter
        try:
            if self.conn is None or self.conn.closed:
                self.conn = psycopg.connect("", autocommit=True)
            return handle(self.conn, headers["webhook-id"], order)
        except (psycopg.DataError, psycopg.IntegrityError, KeyError) as e:
            self.log_error("%s", e)
            return 422                          # will never do: a dead letter, to be looked at
        except psycopg.Error as e:
            self.log_error("%s", e)
            return 503                          # the database is away: come again

    def log_request(self, code="-", size="-"):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
# <<<
