"""A relay from PostgreSQL with what sink_setup prints: what an operator sees when RabbitMQ is changed behind it."""
import re
import subprocess

import source
from rabbitmq.server import SCRIPT, Server as Rabbit
from sinklib import TOP, until

PAGE = TOP / "doc/howto/rabbitmq-relay.md"


class Source(source.Source):
    """A server with the extension, as the how-to has it."""

    def __init__(self, rabbit):
        super().__init__()
        blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
        self.sql(blocks[0].replace("rabbit-1:5672,rabbit-2:5672", rabbit.address).replace("exchange 'shop'", "exchange 'shop', timeout '3000'"))
        rabbit.ctl("add_user", "relay", "secret")
        said = self.sql("SELECT idempotency.sink_setup('rabbit', 'orders')")
        done = subprocess.run(["sh"], input=said.replace("rabbitmqctl", f"{SCRIPT} ctl {rabbit.dir}"), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        until("the definitions are there", lambda: "shop" in rabbit.ctl("list_bindings"))
        self.sql(blocks[2].replace("ordering =>", "min_backoff => '50 ms', max_backoff => '200 ms', ordering =>"))


def test_relay():
    rabbit = Rabbit()
    source = Source(rabbit)

    def ids():
        return len(set(rabbit.ids("orders")))

    try:
        method, properties, body = until(source.state, lambda: rabbit.messages("orders"))[0]
        assert (method.routing_key, properties.type, body) == ("order.OrderCreated", "OrderCreated", b'{"total": 99}')
        source.enqueue(1000)
        until(source.state, lambda: source.lag() == "0")
        assert ids() == 1001
        # what is in the log of the server has neither password nor payload
        assert "secret" not in (source.dir / "log/server.log").read_text(errors="replace")
        # relay_check looks, and sends nothing
        found = source.sql("SELECT DISTINCT ok FROM idempotency.relay_check('orders')")
        assert "f" not in found.split(), source.sql("SELECT * FROM idempotency.relay_check('orders')")

        # the server is short of disk: an outage with its reason, and then everything arrives
        rabbit.ctl("set_disk_free_limit", 10 ** 15)
        source.enqueue(300)
        assert "disk" in source.wait_state("outage")
        rabbit.ctl("set_disk_free_limit", "1MB")
        until(source.state, lambda: source.lag() == "0")
        assert ids() == 1301

        # nobody wants the events for a while: they are refused, and wait
        with rabbit.channel() as c:
            c.queue_unbind("orders", "shop", "#")
        source.enqueue(1)
        until(source.state, lambda: "no queue is bound" in source.sql("SELECT last_error FROM idempotency.stat_relay"))
        with rabbit.channel() as c:
            c.queue_bind("orders", "shop", "#")
        until(source.state, lambda: source.lag() == "0")
        assert ids() == 1302

        # a right is taken away, and given back
        rabbit.ctl("set_permissions", "relay", "^$", "^$", "^$")
        # a channel at work remembers the rights that it has asked for
        rabbit.ctl("close_all_connections", "rights were taken away")
        source.enqueue(1)
        assert "access to exchange 'shop'" in source.wait_state("misconfigured")
        rabbit.ctl("set_permissions", "relay", "^$", "^shop$", "^$")
        until(source.state, lambda: source.lag() == "0")

        # no server, and then one that has everything
        rabbit.kill()
        source.enqueue(1)
        source.wait_state("outage")
        rabbit.start(wait=False)
        until(source.state, lambda: source.lag() == "0")
        rabbit.wait()
        assert ids() == 1304

        # a server that starts empty: nothing is there that the relay needs
        rabbit.restart(empty=True)
        source.enqueue(1)
        assert "ACCESS_REFUSED" in source.wait_state("misconfigured")
    finally:
        source.stop()
