"""A payment provider to try doc/howto/payments.md with: provider.py PORT

It honours idempotency keys and keeps its charges in memory.  The lines between the
marks are those of the page; drive.py imports them.
"""

# >>> provider
import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Provider(BaseHTTPRequestHandler):
    charges, lock = {}, threading.Lock()        # one charge per key

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if order["card"] == "declined":
            self.reply(402, {"error": "declined"})
            return
        with self.lock:
            charge = self.charges.setdefault(self.headers["Idempotency-Key"], f"ch_{uuid.uuid4().hex}")
        self.reply(200, {"charge": charge})

    def reply(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Provider).serve_forever()
# <<<
