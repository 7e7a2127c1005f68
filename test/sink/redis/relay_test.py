"""A relay from PostgreSQL with the rights that sink_setup prints: what an operator sees when Redis is changed behind it."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from redis.server import Client, Server as Redis, until
from redis.target import TOP
from server import Server

BINDIR = subprocess.check_output([os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip()
SERVER_SH = TOP / "test/setup/server.sh"
PAGE = TOP / "doc/howto/redis-relay.md"


class Source:
    """A server with the extension, as the how-to has it."""

    def __init__(self, redis):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-redis-source."))
        self.dir.chmod(0o755)
        subprocess.run([SERVER_SH, "start", self.dir], check=True, stdout=subprocess.DEVNULL)
        env = dict(line.split("=", 1) for line in (self.dir / "server.env").read_text().splitlines())
        self.server = Server("redis", self.dir, BINDIR, data=f"{self.dir}/data", port=env["IDEM_PORT"])
        self.sql = self.server.psql
        blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
        redis.ask("ACL", "SETUSER", "relay", ">secret")
        self.sql(blocks[0].replace("redis-1:6379,redis-2:6379", redis.address))
        self.said = self.shell(self.sql("SELECT idempotency.sink_setup('cache', 'orders')"))
        redis.ask("ACL", "SETUSER", "default", "-@all", "+ping")
        self.sql(blocks[2].replace("ordering =>", "min_backoff => '50 ms', max_backoff => '200 ms', ordering =>"))

    def shell(self, text):
        done = subprocess.run(["sh"], input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def enqueue(self, n):
        self.sql(f"SELECT idempotency.outbox_enqueue('order', 'k' || i % 7, 'Counted', '{{}}') FROM generate_series(1, {n}) i")

    def state(self):
        return self.sql("SELECT state FROM idempotency.stat_relay")

    def wait_state(self, state):
        until(f"{state}: {self.sql('SELECT state, last_error FROM idempotency.stat_relay')}", lambda: self.state() == state)

    def stop(self):
        subprocess.run([SERVER_SH, "stop", self.dir], check=True, stdout=subprocess.DEVNULL)


class Admin:
    """A user of the server who may do anything, once the default user may not."""

    def __init__(self, redis):
        self.redis = redis
        redis.ask("ACL", "SETUSER", "admin", "on", ">admin", "~*", "+@all")

    def __call__(self, *args):
        c = Client(self.redis.port)
        try:
            c("AUTH", "admin", "admin")
            return c(*args)
        finally:
            c.close()


def test_relay():
    assert shutil.which("redis-cli"), "redis-cli is missing"
    redis = Redis()
    admin = Admin(redis)
    source = Source(redis)
    length = lambda: admin("XLEN", "shop.{orders}.order")   # noqa: E731
    lag = "SELECT lag_events FROM idempotency.stat_relay"
    try:
        # sink_setup's commands are taken, all but the one that older servers do not know
        assert [line for line in source.said.split("\n") if line and line != "OK" and "waitaof" not in line] == [], source.said
        assert admin("CONFIG", "GET", "appendfsync")[1] == b"always"
        source.enqueue(1000)
        until(source.state, lambda: length() == 1001)
        # what is in the log of the server has neither password nor payload
        assert "secret" not in (source.dir / "log/server.log").read_text(errors="replace")

        # somebody else takes over
        admin("HINCRBY", "idempotency.position.{orders}", "epoch", "1")
        source.enqueue(1)
        source.wait_state("fenced")
        source.sql("SELECT idempotency.relay_resume('orders')")
        until(source.state, lambda: length() == 1002)

        # streams and position are gone
        admin("FLUSHALL")
        source.enqueue(1)
        source.wait_state("diverged")
        assert length() == 0
        source.sql("SELECT idempotency.relay_adopt('orders')")
        until(source.state, lambda: length() > 0 and source.sql(lag) == "0")

        # no server, and then one that has everything
        redis.kill()
        source.enqueue(1)
        source.wait_state("outage")
        redis.start(wait=False)
        until(source.state, lambda: source.sql(lag) == "0")

        # a server that starts empty, while the relay is idle
        redis.kill()
        shutil.rmtree(redis.dir / "appendonlydir")
        redis.start(wait=False)
        until("it answers", redis.answers)
        source.enqueue(1)
        source.wait_state("diverged")
    finally:
        source.stop()
