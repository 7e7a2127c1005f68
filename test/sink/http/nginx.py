"""nginx in a temporary directory, as the ordinary receiver: HTTP/1.1, and HTTP/2 over TLS."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import certificates
from target import free_port, until

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
# The log has a line for each request: what a test compares.
CONF = """
{user}
worker_processes 1;
pid {dir}/pid;
error_log {dir}/error.log warn;
daemon off;
events {{ worker_connections 1024; }}
http {{
    log_format events '$status $request_method $uri $http_webhook_id $server_protocol $connection $request_length';
    access_log {dir}/access.log events;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    keepalive_requests {requests};
    client_max_body_size 1m;
    server {{
        listen 127.0.0.1:{port};
        listen 127.0.0.1:{tls} ssl http2;
        ssl_certificate {cert};
        ssl_certificate_key {key};
        # answers before it has read the body
        location /early/ {{ return 204; }}
        # reads it
        location /in/ {{ proxy_pass http://127.0.0.1:{port}/behind/; }}
        location /behind/ {{ access_log off; return 204; }}
        location /limited/ {{ limit_except GET {{ deny all; }} }}
        location /full/ {{ return 503 "busy"; }}
    }}
}}
"""


class Nginx:
    def __init__(self, requests=1000):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-http-nginx."))
        self.dir.chmod(0o755)
        self.port, self.tls_port = free_port(), free_port()
        cert, key = certificates.authority().issue("server")
        (self.dir / "nginx.conf").write_text(CONF.format(
            dir=self.dir, port=self.port, tls=self.tls_port, cert=cert, key=key, requests=requests,
            user="user nobody nogroup;" if os.getuid() == 0 else ""))
        self.url = f"http://127.0.0.1:{self.port}"
        self.tls_url = f"https://127.0.0.1:{self.tls_port}"
        self.proc = None
        self.start()

    def start(self):
        self.proc = subprocess.Popen([NGINX, "-p", self.dir, "-e", self.dir / "error.log", "-c", self.dir / "nginx.conf"],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("nginx has started", (self.dir / "pid").exists)
        time.sleep(0.1)

    def reload(self):
        """New workers take over; the old ones end when their requests have."""
        self.proc.send_signal(1)

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.terminate()
            self.proc.wait()
        self.proc = None

    def log(self):
        """Each request as a list of words."""
        return [line.split(" ") for line in (self.dir / "access.log").read_text().splitlines()]

    def remove(self):
        self.stop()
        if "KEEP" not in os.environ:
            shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()
