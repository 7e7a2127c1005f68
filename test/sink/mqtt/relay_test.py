"""A relay from PostgreSQL, with what sink_setup and doc/howto/mqtt-relay.md say and no more, read with another project's client."""
import re

from mqtt.broker import TOP, Broker, free_port
from mqtt.reader import Reader
from sinklib import until
from source import Source

STATE = "SELECT state FROM idempotency.stat_relay"
PAGE = (TOP / "doc/howto/mqtt-relay.md").read_text()


def test_relay():
    port = free_port()
    source = Source()
    broker = reader = None
    server, _, relay, _ = re.findall("```sql\n(.*?)```", PAGE, re.DOTALL)
    try:
        source.sql(server.replace("broker-1:1883", f"127.0.0.1:{port}"))
        text = source.sql("SELECT idempotency.sink_setup('plant')")
        assert text.strip() == re.search("```text\n(.*?)```", PAGE, re.DOTALL)[1].strip(), text
        conf, acl = text.split("# The file that acl_file names:\n")
        broker = Broker(port=port, users=[("relay", "secret"), ("reader", "read")], acl=acl + "\nuser reader\ntopic read #\n",
                        conf=conf.replace("persistence true\n", ""))
        reader = Reader(port, "shop/#", user="reader", password="read")
        source.sql("SELECT idempotency.relay_create('orders', 'plant', ordering => 'key', min_backoff => '50 ms', max_backoff => '200 ms')")
        source.sql(relay.split(";\n", 1)[1])
        until(lambda: f"the event of the page: {source.state()}", lambda: reader.messages())
        topic, fields, payload = reader.messages()[0]
        assert topic == "shop/order/OrderCreated" and payload == b'{"total": 99}' and fields["Aggregate-Id"] == "42", (topic, fields, payload)

        def enqueue(n, first=1, kind="Moved"):
            source.sql(f"SELECT count(idempotency.outbox_enqueue('item', (i % 7)::text, '{kind}', to_jsonb(i))) FROM generate_series({first}, {n}) AS i")

        def moved():
            return [(fields["Aggregate-Id"], int(payload)) for topic, fields, payload in reader.messages() if topic == "shop/item/Moved"]

        def arrived(n):
            until(lambda: f"{n} arrived: {source.state()}", lambda: len({i for _, i in moved()}) == n)
            for key in "0123456":
                of_key = list(dict.fromkeys(i for k, i in moved() if k == key))
                assert of_key == sorted(of_key), key
        enqueue(3000)
        arrived(3000)
        found = source.sql("SELECT string_agg(what, ',') FROM idempotency.relay_check('orders') WHERE NOT ok")
        assert found == "", found
        assert source.sql(STATE) == "streaming"
        # an event that makes no topic is a dead letter; the others go on
        enqueue(1, kind="a#")
        until(lambda: f"refused: {source.state()}", lambda: source.sql("SELECT count(*) FROM idempotency.dead_letters") == "1")
        enqueue(3001, 3001)
        arrived(3001)
        broker.stop()
        enqueue(3002, 3002)
        until(lambda: f"outage: {source.state()}", lambda: source.sql(STATE) == "outage")
        broker.start()
        arrived(3002)
        # what is in flight when the broker ends arrives, too
        enqueue(9000, 3003)
        broker.stop()
        broker.start()
        arrived(9000)
        # nothing is compared with a broker that comes back empty
        until(lambda: f"nothing under way: {source.state()}", lambda: source.sql("SELECT lag_events FROM idempotency.stat_relay") == "0")
        reader.close()
        broker.empty()
        reader = Reader(port, "shop/#", user="reader", password="read")
        enqueue(9001, 9001)
        until(lambda: f"goes on: {source.state()}", lambda: 9001 in {i for _, i in moved()})
    finally:
        source.stop()
        if reader:
            reader.close()
        if broker:
            broker.remove()
