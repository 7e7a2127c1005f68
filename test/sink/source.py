"""A throw-away PostgreSQL server with the extension, from which a relay of a test goes; its base backup."""
import os
import pathlib
import subprocess
import tempfile

from server import Server
from sinklib import TOP, until

BINDIR = subprocess.check_output([os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip()
SERVER_SH = TOP / "test/setup/server.sh"


class Source:
    """The server, and what most tests ask of its one relay."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-source."))
        self.dir.chmod(0o755)
        self.manage("start")
        env = dict(line.split("=", 1) for line in (self.dir / "server.env").read_text().splitlines())
        self.server = Server("source", self.dir, BINDIR, data=self.dir / "data", port=env["IDEM_PORT"])
        self.sql = self.server.psql

    def manage(self, command):
        subprocess.run([SERVER_SH, command, self.dir], check=True, stdout=subprocess.DEVNULL)

    def enqueue(self, n, kind="Counted"):
        self.sql(f"SELECT idempotency.outbox_enqueue('order', 'k' || i % 7, '{kind}', '{{}}') FROM generate_series(1, {n}) i")

    def state(self):
        return self.sql("SELECT state, waiting_for, last_error, lag_events FROM idempotency.stat_relay")

    def lag(self):
        return self.sql("SELECT lag_events + retrying FROM idempotency.stat_relay")

    def wait_state(self, state):
        """last_error in this state."""
        until(lambda: f"{state}: {self.state()}", lambda: self.sql("SELECT state FROM idempotency.stat_relay") == state)
        return self.sql("SELECT last_error FROM idempotency.stat_relay")

    def delivers(self, n):
        """Enqueue so many events, and wait until the relay has delivered all that there are."""
        self.enqueue(n)
        until(lambda: f"delivered: {self.state()}", lambda: self.lag() == "0")

    def configure(self, **settings):
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        self.sql("SELECT pg_reload_conf()")

    def restore(self):
        """Put the base backup that manage("backup") took in the place of the server."""
        self.manage("restore")

    def stop(self):
        self.manage("stop")


def restored_source(make_relay, messages):
    """A source that is restored from a base backup to a time before events that the target has: its relay must see it, send nothing,
    and go on when it is told to.

    make_relay makes the source's one relay; messages counts the events that the target has.
    """
    source = Source()
    try:
        # the restored server is the publisher that it was
        source.configure(**{"idempotency.publish_as": "shop"})
        make_relay(source)
        source.delivers(10)
        source.manage("backup")
        source.delivers(5)
        assert messages() == 15, messages()
        source.restore()
        source.enqueue(1)
        source.wait_state("diverged")
        assert messages() == 15, messages()
        source.sql("SELECT idempotency.relay_adopt('orders')")
        source.delivers(1)
        # the two that were enqueued behind the restore
        assert messages() == 17, messages()
    finally:
        source.stop()
