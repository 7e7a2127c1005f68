"""A nats-server on loopback, as an ordinary user, with everything in a directory of its own."""
import json
import os
import shutil
import subprocess

import brokerlib
from nats.client import Client
from sinklib import TOP, NotRun, free_port  # noqa: tests import free_port from here, too


def binary(release, directory):
    """A copy that an ordinary user can run: the cache may be in a closed home directory.  NATS_SERVER names another."""
    if "NATS_SERVER" in os.environ:
        return shutil.copy(os.environ["NATS_SERVER"], directory / "nats-server")
    done = subprocess.run([TOP / "test/setup/nats.sh", release], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise NotRun(f"the nats-server of {release} cannot be fetched")
    return shutil.copy(done.stdout.strip(), directory / "nats-server")


class Broker(brokerlib.Broker):
    def __init__(self, release="forky", tls=False, port=None, **config):
        """config: of nats-server.conf, as JSON has it."""
        self.release, self.config = release, config
        super().__init__(tls, port)

    def configure(self):
        self.server = binary(self.release, self.dir)
        if self.ca:
            self.config["tls"] = {"cert_file": f"{self.dir}/server.crt", "key_file": f"{self.dir}/server.key",
                                  "ca_file": f"{self.dir}/ca.crt", "timeout": 10, **self.config.get("tls", {})}
        (self.dir / "conf").write_text(json.dumps({
            "listen": f"127.0.0.1:{self.port}", "jetstream": {"store_dir": f"{self.dir}/data"}, **self.config}))

    def command(self):
        return [self.server, "-c", self.dir / "conf"]

    def client(self, **login):
        return Client(self.port, tls=self.ca, **login)
