"""Debian's mosquitto on loopback, as an ordinary user, with everything in a directory of its own.

It stores what it has when it is asked to end, and not when it is killed.
"""
import os
import subprocess

import brokerlib
from mqtt.packets import Client
from sinklib import TOP, free_port  # noqa: tests import them from here, too

MOSQUITTO = next((p for p in ("/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto") if os.path.exists(p)), "mosquitto")


class Broker(brokerlib.Broker):
    def __init__(self, tls=False, port=None, acl=None, users=(), conf=""):
        """acl: the file of that option; users: (name, password)."""
        self.acl, self.users, self.conf = acl, users, conf
        super().__init__(tls, port)

    def configure(self):
        lines = [f"listener {self.port} 127.0.0.1", f"persistence true\npersistence_location {self.dir}/data/", self.conf]
        if "max_queued_messages" not in self.conf:
            lines.append("max_queued_messages 1000000\nmax_inflight_messages 1000")
        if self.users:
            (self.dir / "passwords").write_text("".join(f"{name}:{password}\n" for name, password in self.users))
            subprocess.run(["mosquitto_passwd", "-U", self.dir / "passwords"], check=True)
            lines.append(f"password_file {self.dir}/passwords")
        lines.append(f"allow_anonymous {'false' if self.users else 'true'}")
        if self.acl is not None:
            (self.dir / "acl").write_text(self.acl)
            lines.append(f"acl_file {self.dir}/acl")
        if self.ca:
            lines.append(f"cafile {self.dir}/ca.crt\ncertfile {self.dir}/server.crt\nkeyfile {self.dir}/server.key")
        (self.dir / "conf").write_text("\n".join(lines) + "\n")

    def command(self):
        return [MOSQUITTO, "-c", self.dir / "conf"]

    def client(self, **login):
        return Client(self.port, tls=self.ca, **login)
