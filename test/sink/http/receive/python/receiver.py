"""Receive webhooks into PostgreSQL, each event once.  ../../receive_test.py kills it.

The lines between the marks are those of doc/howto/webhooks.md.
"""

# >>> program
import http.server
import json
import os
import sys
import urllib.request

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
    """The status of the answer, and Retry-After.  Claim and effect commit together."""
    with conn.transaction():
        claim, = conn.execute("SELECT idempotency.claim_event(%s::uuid, consumer => 'billing')", [event_id]).fetchone()
        if claim == "busy":
            return 503, None                    # another request has it right now: come again
        if claim == "claimed":
            conn.execute("INSERT INTO invoices VALUES (%s, %s, %s)", [order["order"], order["total"], event_id])
            conn.execute("SELECT idempotency.complete_event(%s::uuid, consumer => 'billing')", [event_id])
    return 204, None                            # also for a duplicate: it was handled before


def send_sms(conn, event_id, sms):
    """The same for an effect that cannot be rolled back: lease, send, complete, each committed."""
    result, token, pause = conn.execute(
        "SELECT result, token, ceil(extract(epoch FROM retry_after))::int FROM idempotency.lease_event(%s::uuid, 'sms')",
        [event_id]).fetchone()
    if result == "busy":
        return 503, pause                       # somebody has it, or died with it: come again when the lease is over
    if result == "dead":
        return 422, None                        # an operator decides
    if result == "claimed":
        urllib.request.urlopen(urllib.request.Request(os.environ["SMS_URL"], json.dumps(sms).encode(),
                                                      {"Idempotency-Key": event_id}), timeout=10).close()
        conn.execute("SELECT idempotency.complete_event(%s::uuid, 'sms', token => %s)", [event_id, token])
    return 204, None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"               # keeps connections
    timeout = 600
    conn = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, pause = self.status_for(body, headers)
        self.send_response(status)
        if pause is not None:
            self.send_header("Retry-After", str(pause))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def status_for(self, body, headers):
        event = verified(body, headers)
        if event is None:
            return 401, None                    # not from us: the relay makes it a dead letter
        try:
            if self.conn is None or self.conn.closed:
                self.conn = psycopg.connect("", autocommit=True)
            make = send_sms if self.path.endswith("/sms") else handle
            return make(self.conn, headers["webhook-id"], event)
        except (psycopg.DataError, psycopg.IntegrityError, KeyError) as e:
            self.log_error("%s", e)
            return 422, None                    # will never do: a dead letter, to be looked at
        except (psycopg.Error, OSError) as e:
            self.log_error("%s", e)
            return 503, None                    # the database, or the sender of SMS, is away: come again

    def log_request(self, code="-", size="-"):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
# <<<
