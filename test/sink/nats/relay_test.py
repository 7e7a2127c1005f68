"""A relay from PostgreSQL, with what sink_setup prints and no more."""
import json
import re

from nats.broker import Broker, free_port
from nats.target import Target
from sinklib import until
from source import Source, restored_source

STATE = "SELECT state FROM idempotency.stat_relay"


def test_relay():
    """The request and the rights that sink_setup prints are enough; a server that comes back empty makes the relay diverged."""
    port = free_port()
    source = Source()
    broker = None
    try:
        source.sql(f"""CREATE SERVER stock FOREIGN DATA WRAPPER idempotency_nats
            OPTIONS (servers '127.0.0.1:{port}', stream 'STOCK', subject 'stock.{{aggregate_type}}.{{event_type}}');
            CREATE USER MAPPING FOR CURRENT_USER SERVER stock OPTIONS (user 'relay', password 'secret')""")
        text = source.sql("SELECT idempotency.sink_setup('stock', 'orders')")
        stream = json.loads(re.search(r"^ +'(\{.*\})'$", text, re.M)[1])
        rights = json.loads("[" + re.search(r"publish: \[ (.*?) \]", text)[1] + "]")
        broker = Broker(port=port, authorization={"users": [
            {"user": "admin", "password": "admin"},
            {"user": "relay", "password": "secret", "permissions": {"publish": rights, "subscribe": ["_INBOX.>"]}}]})

        def admin():
            return broker.client(user="admin", **{"pass": "admin"})
        admin().stream(**stream)
        source.sql("SELECT idempotency.relay_create('orders', 'stock', min_backoff => '50 ms', max_backoff => '200 ms')")

        def enqueue(n):
            source.sql(f"SELECT count(idempotency.outbox_enqueue('item', (i % 7)::text, 'Moved', to_jsonb(i))) FROM generate_series(1, {n}) AS i")
        enqueue(3000)
        until(lambda: f"delivered: {source.state()}", lambda: source.sql("SELECT lag_events FROM idempotency.stat_relay") == "0")
        messages = admin().messages("STOCK", "stock.>")
        assert len(messages) == 3000 and {m.subject for m in messages} == {"stock.item.Moved"}
        for key in "0123456":
            of_key = [int(m.data) for m in messages if m.header("Aggregate-Id") == key]
            assert of_key == sorted(of_key) and len(of_key) > 400
        broker.kill()
        enqueue(1)
        until(lambda: f"outage: {source.state()}", lambda: source.sql(STATE) == "outage")
        broker.start()
        until(lambda: f"delivered: {source.state()}", lambda: source.sql("SELECT lag_events FROM idempotency.stat_relay") == "0")
        assert len(admin().messages("STOCK", "stock.>")) == 3001
        broker.empty()
        enqueue(1)
        until(lambda: f"misconfigured: {source.state()}", lambda: source.sql(STATE) == "misconfigured")
        admin().stream(**stream)
        until(lambda: f"diverged: {source.state()}", lambda: source.sql(STATE) == "diverged")
        assert not admin().messages("STOCK", "stock.>")
    finally:
        source.stop()
        if broker:
            broker.remove()


def test_restored_source():
    t = Target()

    def make_relay(source):
        source.sql(f"""CREATE SERVER stock FOREIGN DATA WRAPPER idempotency_nats
            OPTIONS (servers '{t.b.address}', stream '{t.name}', subject '{t.name}.{{event_type}}', position_subject '{t.position}');
            CREATE USER MAPPING FOR CURRENT_USER SERVER stock;
            SELECT idempotency.relay_create('orders', 'stock', min_backoff => '50 ms', max_backoff => '200 ms')""")
    restored_source(make_relay, lambda: len(t.events()))
