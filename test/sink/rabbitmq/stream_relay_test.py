"""A relay from PostgreSQL into a stream, with what sink_setup prints: what an operator sees when RabbitMQ is changed behind it."""
import re
import subprocess

from rabbitmq.relay_test import PAGE
from rabbitmq.server import SCRIPT, Server as Rabbit, shared
from rabbitmq.stream_target import StreamTarget
from rabbitmq.streamlib import message
from rabbitmq.streamread import read
from sinklib import until
from source import Source, restored_source


class StreamSource(Source):
    """A server with the extension, as the section of the how-to has it."""

    def __init__(self, rabbit):
        super().__init__()
        self.rabbit = rabbit
        section = PAGE.read_text().split("## A stream\n")[1]
        blocks = re.findall(r"^```sql\n(.*?)^```$", section, re.M | re.S)
        self.sql(blocks[0].replace("rabbit-1:5552,rabbit-2:5552", f"127.0.0.1:{rabbit.stream_port}").replace("stream 'shop", "timeout '3000', stream 'shop"))
        rabbit.ctl("add_user", "relay", "secret")
        self.set_up()
        self.sql(blocks[2].replace("ordering =>", "min_backoff => '50 ms', max_backoff => '200 ms', ordering =>"))

    def set_up(self):
        """Run what sink_setup prints, but for the plugin, which the server has."""
        said = self.sql("SELECT idempotency.sink_setup('streams', 'parcels')")
        said = said.replace("rabbitmq-plugins", "true rabbitmq-plugins").replace("rabbitmqctl", f"{SCRIPT} ctl {self.rabbit.dir}")
        done = subprocess.run(["sh"], input=said, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout


def test_stream_relay():
    rabbit = Rabbit()
    source = StreamSource(rabbit)
    t = StreamTarget(rabbit, create=False)
    t.stream = t.more["stream"] = "shop.parcels"
    try:
        t.wait()
        source.enqueue(1000)
        until(source.state, lambda: source.lag() == "0")
        # an independent client sees each event once, in the order of its key
        events = [m for m in read(rabbit.stream_port, t.stream) if m.properties is not None]
        assert len(events) == 1000 == len({m.properties.message_id for m in events})
        assert "secret" not in (source.dir / "log/server.log").read_text(errors="replace")
        fences = t.fences()
        found = source.sql("SELECT DISTINCT ok FROM idempotency.relay_check('parcels')")
        assert "f" not in found.split(), source.sql("SELECT * FROM idempotency.relay_check('parcels')")
        assert t.fences() == fences, "relay_check has written"

        # somebody else takes over
        with t.client() as c:
            c.declare(t.stream, "idempotency.parcels")
            c.publish((1 << 62, message(b"\0\x53\x75\xa0\0")))
        source.enqueue(1)
        source.wait_state("fenced")
        source.sql("SELECT idempotency.relay_resume('parcels')")
        until(source.state, lambda: len(t.ids()) == 1001)

        # no server, and then one that has everything
        rabbit.kill()
        source.enqueue(1)
        source.wait_state("outage")
        rabbit.start()
        t.wait()
        until(source.state, lambda: source.lag() == "0")
        assert len(t.ids()) == 1002

        # the stream is made anew
        with t.client() as c:
            c.delete(t.stream)
        source.enqueue(1)
        assert "does not exist" in source.wait_state("misconfigured")
        source.set_up()
        source.wait_state("diverged")
        assert t.ids() == []
        source.sql("SELECT idempotency.relay_adopt('parcels')")
        until(source.state, lambda: source.lag() == "0" and t.ids())

        # the server loses all, while the relay is idle
        rabbit.restart(empty=True)
        rabbit.ctl("add_user", "relay", "secret")
        source.set_up()
        source.enqueue(1)
        source.wait_state("diverged")
    finally:
        source.stop()


def test_restored_source():
    rabbit = shared()
    t = StreamTarget(rabbit)

    def make_relay(source):
        source.sql(f"""CREATE SERVER streams FOREIGN DATA WRAPPER idempotency_rabbitmq
            OPTIONS (servers '127.0.0.1:{rabbit.stream_port}', stream '{t.stream}');
            CREATE USER MAPPING FOR CURRENT_USER SERVER streams OPTIONS (user 'admin', password 'admin');
            SELECT idempotency.relay_create('orders', 'streams', min_backoff => '50 ms', max_backoff => '200 ms')""")
    restored_source(make_relay, lambda: len(t.ids()))
