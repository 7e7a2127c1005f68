"""A token server of OAuth 2.0 that answers as the test says, and a broker that refuses every login."""
import base64
import contextlib
import json
import pathlib
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse


def base64url(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unsigned(header, subject="relay", life=3600, **claims):
    """Header and claims of an access token; the claims are as of now."""
    now = time.time()
    return ".".join(base64url(json.dumps(p).encode()) for p in (header, {"sub": subject, "iat": now, "exp": now + life, **claims}))


def token(subject="relay", life=3600, **claims):
    """An access token that is not signed, as Kafka's default validator takes it."""
    return unsigned({"alg": "none"}, subject, life, **claims) + "."


class Signer:
    """Signs access tokens by RS256, with a key of its own in a directory."""

    def __init__(self, directory, kid="key-1"):
        self.kid = kid
        self.key = pathlib.Path(directory) / f"{kid}.pem"
        self._openssl("genrsa", "-out", self.key, "2048")

    @staticmethod
    def _openssl(*args, **kwargs):
        return subprocess.run(["openssl", *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **kwargs).stdout

    def sign(self, text):
        return f"{text}.{base64url(self._openssl('dgst', '-sha256', '-sign', self.key, input=text.encode()))}"

    def token(self, *args, **claims):
        return self.sign(unsigned({"alg": "RS256", "kid": self.kid}, *args, **claims))

    def jwks(self):
        """The document by which brokers know the key."""
        modulus = self._openssl("rsa", "-in", self.key, "-noout", "-modulus").decode().strip().partition("=")[2]
        return json.dumps({"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.kid, "e": "AQAB",
                                     "n": base64url(bytes.fromhex(modulus))}]})


def http(status, body=b"", *headers):
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def grant(value=None, life=3600):
    return http(200, {"access_token": value or token(life=life), "token_type": "Bearer", "expires_in": life})


class Request:
    def __init__(self, head, body):
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = lines[0].split(" ")
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self.body = body
        self.form = dict(urllib.parse.parse_qsl(body.decode("ascii"), strict_parsing=True)) if body else {}

    def login(self):
        """User and password of the header."""
        kind, _, text = self.headers["authorization"].partition(" ")
        assert kind == "Basic", kind
        return tuple(urllib.parse.unquote(part) for part in base64.b64decode(text).decode("ascii").split(":"))


class TokenServer:
    """answer(request) gives bytes, or yields them, or None to say nothing until the client hangs up."""

    def __init__(self, answer=lambda request: grant(), cert=None, host="127.0.0.1"):
        self.answer = answer
        self.requests = []
        self.times = []
        self.context = None
        if cert:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*cert)
        self.sock = socket.create_server((host, 0))
        self.port = self.sock.getsockname()[1]
        self.url = f"http{'s' if cert else ''}://{host}:{self.port}/token"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client):
        with contextlib.suppress(OSError), client:
            client.settimeout(60)
            if self.context:
                client = self.context.wrap_socket(client, server_side=True)
            data = b""
            while b"\r\n\r\n" not in data:
                more = client.recv(65536)
                if not more:
                    return
                data += more
            head, _, body = data.partition(b"\r\n\r\n")
            request = Request(head, b"")
            while len(body) < int(request.headers.get("content-length", 0)):
                body += client.recv(65536)
            request = Request(head, body) if body else request
            self.times.append(time.monotonic())
            self.requests.append(request)
            said = self.answer(request)
            if said is None:
                client.recv(1)
            elif isinstance(said, bytes):
                client.sendall(said)
            else:
                for piece in said:
                    client.sendall(piece)

    def stop(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class EchoingBroker:
    """Speaks the protocol of Kafka up to the login, which it refuses with the text that refusal(login) gives."""

    APIS = ((3, 0, 1), (17, 0, 1), (18, 0, 0), (36, 0, 0))

    def __init__(self, mechanism, refusal):
        self.mechanism = mechanism
        self.refusal = refusal
        self.logins = []
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client):
        def read(n):
            data = b""
            while len(data) < n:
                more = client.recv(n - len(data))
                if not more:
                    raise ConnectionError
                data += more
            return data

        with contextlib.suppress(OSError), client:
            while True:
                [size] = struct.unpack("!i", read(4))
                request = read(size)
                api, version, correlation, name = struct.unpack("!hhih", request[:10])
                answer = struct.pack("!i", correlation) + self._answer(api, version, request[10 + max(name, 0):])
                client.sendall(struct.pack("!i", len(answer)) + answer)

    def _answer(self, api, version, body):
        def string(text):
            return struct.pack("!h", len(text)) + text
        if api == 18:       # ApiVersions
            return struct.pack("!hi", 35 if version else 0, len(self.APIS)) + \
                b"".join(struct.pack("!hhh", *each) for each in self.APIS)
        if api == 17:       # SaslHandshake
            return struct.pack("!hi", 0, 1) + string(self.mechanism.encode())
        assert api == 36, api       # SaslAuthenticate
        login = body[4:]
        self.logins.append(login)
        return struct.pack("!h", 58) + string(self.refusal(login)) + struct.pack("!i", 0)

    def stop(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
