"""Servers of our own that keep the documented rules of Google Pub/Sub and of Azure Service Bus.

No endpoint of Google or Microsoft was ever asked; a rule is here because their reference says so.
"""
import base64
import hashlib
import hmac
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.parse

from receiver import Receiver, Reply
from tokenserver import Signer, TokenServer, grant, http

JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SCOPES = {"https://www.googleapis.com/auth/pubsub", "https://www.googleapis.com/auth/cloud-platform"}


def refuse(status, code, text):
    """Google's form of an error."""
    return Reply(status, {"error": {"code": status, "message": text, "status": code}}, "Content-Type: application/json")


class Wrong(Exception):
    """A rule that the request breaks."""


def need(condition, text):
    if not condition:
        raise Wrong(text)


def unpad(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class PubSub:
    """Topics, and the token server of their service account.

    Rules: projects.topics.publish, quotas and limits, ordering, and "Using OAuth 2.0 for Server to Server Applications".
    """

    def __init__(self, project="shop-1", topic="orders"):
        self.holder = tempfile.TemporaryDirectory(prefix="idem-http-google.")
        self.dir = pathlib.Path(self.holder.name)
        self.signer = Signer(self.dir, "key-1")
        self.public = self.dir / "public.pem"
        subprocess.run(["openssl", "rsa", "-in", self.signer.key, "-pubout", "-out", self.public], check=True, stderr=subprocess.DEVNULL)
        self.path = f"/v1/projects/{project}/topics/{topic}:publish"
        self.email = f"relay@{project}.iam.gserviceaccount.com"
        self.messages = []
        self.given = []             # tokens
        self.why = None             # why the last request was refused
        self.hook = None            # an answer instead of the ordinary one
        self.life = 3600
        self.tokens = TokenServer(self.token)
        self.receiver = Receiver(self.publish)
        self.url = self.receiver.url + f"/v1/projects/{project}/topics/{topic}"

    def account(self, **changes):
        """The file that Google gives for a service account."""
        return json.dumps({"type": "service_account", "project_id": "shop-1", "private_key_id": "key-1",
                           "private_key": self.signer.key.read_text(), "client_email": self.email, "client_id": "1",
                           "token_uri": self.tokens.url, **changes})

    def token(self, r):
        try:
            need(r.form.get("grant_type") == JWT_GRANT, "grant_type")
            head, claims, signature = r.form["assertion"].split(".")
            header, c = json.loads(unpad(head)), json.loads(unpad(claims))
            need(header["alg"] == "RS256" and header.get("typ", "JWT") == "JWT", f"header {header}")
            need(header.get("kid") in (None, "key-1"), "kid")
            need(c["iss"] == self.email, f"iss {c['iss']}")
            need(c["aud"] == self.tokens.url, f"aud {c['aud']}")
            need(set(c["scope"].split()) <= SCOPES and c["scope"], f"scope {c['scope']}")
            now = time.time()
            need(now - 300 < c["iat"] < now + 60 and c["iat"] < c["exp"] <= c["iat"] + 3600, "iat, exp")
            (self.dir / "signature").write_bytes(unpad(signature))
            done = subprocess.run(["openssl", "dgst", "-sha256", "-verify", self.public, "-signature", self.dir / "signature"],
                                  input=f"{head}.{claims}".encode(), capture_output=True)
            need(done.returncode == 0, "signature")
        except (Wrong, KeyError, ValueError) as e:
            self.why = f"token: {e}"
            return http(400, {"error": "invalid_grant", "error_description": "Invalid JWT"})
        self.given.append(f"ya29.{len(self.given)}")
        return grant(self.given[-1], self.life)

    def publish(self, r):
        if self.hook and (said := self.hook(r)) is not None:
            return said
        try:
            kind, _, token = (r.header("authorization") or "").partition(" ")
            if kind != "Bearer" or token not in self.given[-1:]:
                self.why = "token"
                return refuse(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
            need(r.method == "POST", r.method)
            if r.path != self.path:
                self.why = r.path
                return refuse(404, "NOT_FOUND", f"Resource not found (resource={r.path}).")
            need((r.header("content-type") or "").startswith("application/json"), "content type")
            need(len(r.body) <= 10_000_000, "10 MB")
            body = r.json()
            need(set(body) == {"messages"} and 1 <= len(body["messages"]) <= 1000, "messages")
            for m in body["messages"]:
                self.check(m)
        except (Wrong, ValueError, KeyError, TypeError) as e:
            self.why = str(e)
            return refuse(400, "INVALID_ARGUMENT", f"Invalid: {e}")
        ids = [str(len(self.messages) + i + 1) for i in range(len(body["messages"]))]
        self.messages += body["messages"]
        return Reply(200, {"messageIds": ids}, "Content-Type: application/json")

    @staticmethod
    def check(m):
        need(set(m) <= {"data", "attributes", "orderingKey"}, f"fields {set(m)}")
        need(m.get("data") or m.get("attributes"), "neither data nor attributes")
        base64.b64decode(m.get("data", ""), validate=True)
        attributes = m.get("attributes", {})
        need(len(attributes) <= 100, "100 attributes")
        for name, value in attributes.items():
            need(isinstance(value, str), f"attribute {name} is no string")
            need(0 < len(name.encode()) <= 256 and not name.startswith("goog"), f"attribute {name}")
            need(len(value.encode()) <= 1024, f"value of {name}")
        need(len(m.get("orderingKey", "").encode()) <= 1024, "orderingKey")

    def stop(self):
        self.receiver.stop()
        self.tokens.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class ServiceBus:
    """A queue with a shared access policy.

    Rules: "Send Message", "Send Message Batch", "Service Bus access control with Shared Access Signatures", quotas.
    """

    def __init__(self, queue="orders", sessions=True, tls=None):
        self.queue, self.sessions = queue, sessions
        self.policy, self.key = "relay", base64.b64encode(b"k" * 32).decode()
        self.messages = []          # (body, properties, user properties)
        self.why = None
        self.hook = None
        self.receiver = Receiver(self.send, tls=tls)
        self.url = f"{self.receiver.url}/{queue}"

    def login(self, r):
        text = r.header("authorization") or ""
        need(text.startswith("SharedAccessSignature "), "no SharedAccessSignature")
        fields = dict(part.split("=", 1) for part in text[len("SharedAccessSignature "):].split("&"))
        need(set(fields) == {"sr", "sig", "se", "skn"}, f"fields {set(fields)}")
        need(fields["skn"] == self.policy, "skn")
        need(int(fields["se"]) > time.time(), "expired")
        made = hmac.new(self.key.encode(), f"{fields['sr']}\n{fields['se']}".encode(), hashlib.sha256).digest()
        need(urllib.parse.unquote(fields["sig"]) == base64.b64encode(made).decode(), "sig")
        # the signed resource is the entity or something above it, without regard to scheme, port and case
        resource = urllib.parse.urlsplit(urllib.parse.unquote(fields["sr"]))
        need((resource.hostname or "") == "127.0.0.1", f"sr {fields['sr']}")
        need(f"{r.path}/".lower().startswith(resource.path.lower().rstrip("/") + "/"), f"sr {fields['sr']}")

    def send(self, r):
        if self.hook and (said := self.hook(r)) is not None:
            return said
        try:
            self.login(r)
        except (Wrong, ValueError) as e:
            self.why = f"login: {e}"
            return Reply(401, b"<Error><Code>401</Code><Detail>InvalidSignature: The token has an invalid signature.</Detail></Error>")
        try:
            need(r.method == "POST", r.method)
            if r.path != f"/{self.queue}/messages":
                self.why = r.path
                return Reply(404, b"<Error><Code>404</Code></Error>")
            need(len(r.body) <= 256 * 1024, "256 kB")
            if r.header("content-type") == "application/vnd.microsoft.servicebus.json":
                need(r.header("brokerproperties") is None, "BrokerProperties of a batch are in its body")
                found = [(m["Body"], m.get("BrokerProperties", {}), m.get("UserProperties", {})) for m in r.json()]
            else:
                properties = json.loads(r.header("brokerproperties") or "{}")
                known = {"host", "content-length", "content-type", "authorization", "brokerproperties", "user-agent", "accept", "expect"}
                found = [(r.body, properties, {k: v for k, v in r.headers if k.lower() not in known})]
            for _, properties, _ in found:
                self.check(properties)
        except (Wrong, ValueError, KeyError, TypeError) as e:
            self.why = str(e)
            return Reply(400, f"<Error><Code>400</Code><Detail>{e}</Detail></Error>".encode())
        self.messages += found
        return Reply(201, b"")

    def check(self, p):
        need(re.fullmatch(r".{1,128}", p.get("MessageId", "")), f"MessageId {p.get('MessageId')}")
        need(len(p.get("SessionId", "")) <= 128, "SessionId is longer than 128 characters")
        need(not self.sessions or p.get("SessionId"), "the queue needs a SessionId")

    def stop(self):
        self.receiver.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
