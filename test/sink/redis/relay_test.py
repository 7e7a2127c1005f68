"""A relay from PostgreSQL with the rights that sink_setup prints: what an operator sees when Redis is changed behind it."""
import re
import shutil
import subprocess

import source
from redis.server import Client, Server as Redis
from redis.target import Target
from sinklib import TOP, until

PAGE = TOP / "doc/howto/redis-relay.md"


class Source(source.Source):
    """A server with the extension, as the how-to has it."""

    def __init__(self, redis):
        super().__init__()
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


def test_restored_source():
    t = Target()

    def make_relay(source):
        source.sql(f"""CREATE SERVER cache FOREIGN DATA WRAPPER idempotency_redis
            OPTIONS (servers '{t.server.address}', stream '{t.stream}', position_key '{t.position}');
            CREATE USER MAPPING FOR CURRENT_USER SERVER cache;
            SELECT idempotency.relay_create('orders', 'cache', min_backoff => '50 ms', max_backoff => '200 ms')""")
    source.restored_source(make_relay, lambda: len(t.ids()))
