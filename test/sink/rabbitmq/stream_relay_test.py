"""A relay from PostgreSQL into a stream, with what sink_setup prints: what an operator sees when RabbitMQ is changed behind it."""
import pathlib
import re
import subprocess
import tempfile

from rabbitmq.relay_test import BINDIR, PAGE, SERVER_SH, Source
from rabbitmq.server import SCRIPT, Server as Rabbit, until
from rabbitmq.stream_target import StreamTarget
from rabbitmq.streamlib import message
from rabbitmq.streamread import read
from server import Server


class StreamSource(Source):
    """A server with the extension, as the section of the how-to has it."""

    def __init__(self, rabbit):
        self.rabbit = rabbit
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="idem-rabbitmq-source."))
        self.dir.chmod(0o755)
        subprocess.run([SERVER_SH, "start", self.dir], check=True, stdout=subprocess.DEVNULL)
        env = dict(line.split("=", 1) for line in (self.dir / "server.env").read_text().splitlines())
        self.server = Server("rabbitmq", self.dir, BINDIR, data=f"{self.dir}/data", port=env["IDEM_PORT"])
        self.sql = self.server.psql
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

        # the source is an older copy: the stream has a batch that it knows nothing of
        source.sql("SELECT idempotency.relay_adopt('parcels')")
        until(source.state, lambda: source.lag() == "0" and t.ids())
        source.sql("SELECT idempotency.relay_pause('parcels')")
        source.wait_state("paused")
        w = t.start(relay="parcels", incarnation="another log/1")
        w.events([{}], row_id=1 << 40)
        w.expect("RESULT")
        w.expect("VERDICT", kind=1)
        w.close()
        source.sql("SELECT idempotency.relay_resume('parcels')")
        source.enqueue(1)
        source.wait_state("diverged")
    finally:
        source.stop()
