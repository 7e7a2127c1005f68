"""From Debezium's outbox connector to a relay and back, by the commands of doc/howto/kafka-migrate.md.

Writers go on all the time.  Each event has to arrive once, in the order of its key and in one partition per key,
whichever of the two has sent it.
"""
import json
import re
import threading

from kafka.broker import Broker
from kafka.connect import Connect
from kafka.relay_test import Source, blocks, check
from kafka.target import until

TOPIC, PARTITIONS, KEYS = "outbox.event.account", 5, 30
# What only Debezium's records have.
CONTEXT = "__debezium.context.connectorName"
# The application: it locks an account, counts, and writes the events with the numbers.  Its old code cleans up, mostly.
SCHEMA = """
CREATE TABLE account (key int PRIMARY KEY, n int NOT NULL);
INSERT INTO account SELECT i, 0 FROM generate_series(0, {keys} - 1) AS i;
CREATE TABLE sent (event_id uuid PRIMARY KEY, at timestamptz NOT NULL);
CREATE TABLE stopped (who text PRIMARY KEY);
CREATE FUNCTION event(code text, key int, n int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    this uuid := gen_random_uuid();
    found_rows int;
BEGIN
    IF code = 'new' THEN
        RETURN idempotency.outbox_enqueue('account', key::text, 'Counted', jsonb_build_object('n', n), event_id => this);
    END IF;
    INSERT INTO outbox VALUES (this, 'account', key::text, 'Counted', jsonb_build_object('n', n));
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    IF code = 'counts rows' AND found_rows <> 1 THEN
        RAISE 'the INSERT reports % rows', found_rows;
    END IF;
    IF random() < 0.7 THEN
        DELETE FROM outbox WHERE id = this;
    END IF;
    RETURN this;
END $$;
CREATE PROCEDURE work(who text, code text) LANGUAGE plpgsql AS $$
DECLARE
    k int;
    m int;
BEGIN
    WHILE NOT EXISTS (SELECT FROM stopped WHERE stopped.who = work.who) LOOP
        k := floor(random() * {keys});
        FOR i IN 1 .. 1 + floor(random() * 3)::int LOOP
            UPDATE account SET n = n + 1 WHERE key = k RETURNING n INTO m;
            INSERT INTO sent VALUES (event(code, k, m), clock_timestamp());
        END LOOP;
        IF random() < 0.03 THEN
            PERFORM pg_sleep(0.5);
        END IF;
        IF random() < 0.1 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
"""
LONGEST = """SELECT round(1000 * extract(epoch FROM max(pause))) FROM (
    SELECT at - lag(at) OVER (ORDER BY at) AS pause FROM sent) AS pauses"""


class Page:
    """The commands of the page, with the addresses of the test."""

    def __init__(self, source, broker, connect):
        self.timeouts = 0
        self.source, self.names = source, {"kafka-1:9092": broker.address, "localhost:8083": connect.address}
        self.blocks = blocks("kafka-migrate.md", "migrate")

    def text(self, name):
        block = self.blocks[name][1]
        for name, real in self.names.items():
            block = block.replace(name, real)
        return block

    def run(self, name):
        """What the commands print."""
        if self.blocks[name][0] == "sh":
            return self.source.shell(self.text(name))
        return self.source.sql(self.text(name))

    def switch(self, name, text=None):
        """Run a transaction that waits for the writers' locks, again and again until it has them."""
        for _ in range(20):
            try:
                return self.source.sql(text or self.text(name))
            except Exception as e:      # noqa: psql says what it was
                assert "lock timeout" in str(e), e
                self.timeouts += 1
        raise AssertionError("the lock is never had")


class Writers:
    """Sessions that run the application."""

    def __init__(self, source):
        self.source = source
        self.running = {}
        self.failed = []

    def _work(self, who, code):
        try:
            self.source.sql(f"CALL work('{who}', '{code}')")
        except Exception as e:      # noqa: reported by stop()
            self.failed.append(str(e))

    def start(self, who, code):
        self.running[who] = threading.Thread(target=self._work, args=(who, code))
        self.running[who].start()

    def names(self, code):
        return [who for who in self.running if who.startswith(code)]

    def stop(self, *names):
        for who in names or list(self.running):
            self.source.sql(f"INSERT INTO stopped VALUES ('{who}')")
            self.running.pop(who).join(60)
        assert not self.failed, self.failed

    def end(self):
        """Whatever has happened."""
        for who in self.running:
            self.source.try_sql(f"INSERT INTO stopped VALUES ('{who}') ON CONFLICT DO NOTHING")
        for thread in self.running.values():
            thread.join(60)

    def go_on(self, n=200):
        """Until so many more events are committed."""
        start = int(self.source.sql("SELECT count(*) FROM sent"))
        until("the writers go on", lambda: self.failed or int(self.source.sql("SELECT count(*) FROM sent")) >= start + n)
        assert not self.failed, self.failed


class Migration:
    """Broker, Connect with Debezium, a server with the application."""

    def __init__(self, code="old", autocreate="all_tables"):
        """code: None for no writers."""
        self.b = self.c = self.s = self.w = None
        try:
            self.b = Broker()
            self.c = Connect(self.b)
            self.s = Source(self.b)
            self.page = Page(self.s, self.b, self.c)
            self.page.run("table")
            self.s.sql(SCHEMA.format(keys=KEYS))
            self.b.topic(TOPIC, PARTITIONS)
            if autocreate == "disabled":
                self.s.sql("CREATE PUBLICATION dbz_publication FOR TABLE outbox")
            self.connect("outbox", publication_autocreate_mode=autocreate)
            self.w = Writers(self.s)
            for i in range(3 if code else 0):
                self.w.start(f"old {i}", code)
        except BaseException:
            self.remove()
            raise

    def connect(self, name, **config):
        """A connector, set as its documentation has it."""
        self.c.start(
            name, connector_class="io.debezium.connector.postgresql.PostgresConnector", plugin_name="pgoutput",
            database_hostname="127.0.0.1", database_port=self.s.server.port, database_user="postgres",
            database_password="none", database_dbname="postgres", topic_prefix=name, table_include_list="public.outbox",
            snapshot_mode="no_data", transforms="outbox",
            transforms_outbox_type="io.debezium.transforms.outbox.EventRouter",
            transforms_outbox_table_fields_additional_placement="trace:header", **config)
        until("Debezium reads", lambda: self.s.sql("SELECT bool_and(active) FROM pg_replication_slots") == "t")

    def remove(self):
        if self.w:
            self.w.end()
        for each, end in ((self.c, "remove"), (self.s, "stop"), (self.b, "remove")):
            if each:
                getattr(each, end)()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            print(self.c.tail())
        self.remove()

    def prepare(self):
        self.page.run("server")
        self.s.shell(self.s.sql("SELECT idempotency.sink_setup('shop', 'orders')"))
        self.page.run("topic")
        self.page.run("prepare")

    def records(self):
        return self.b.read(TOPIC)

    def by_debezium(self):
        return sum(CONTEXT in dict(r["headers"]) for r in self.records())

    def by_relay(self):
        return sum(CONTEXT not in dict(r["headers"]) for r in self.records())

    def until_more(self, count, n=100):
        """Until Debezium, or the relay, has sent more events."""
        start = count()
        until(f"{n} more {count.__name__}", lambda: count() >= start + n)

    def end_debezium(self, switch):
        """Step 3."""
        assert "{}" in self.page.run("end")
        for _ in range(20):
            lsn = json.loads(self.page.run("stop"))["offsets"][0]["offset"]["lsn"]
            if lsn >= switch:
                return
            self.page.run("debezium")
        raise AssertionError(f"Debezium stays at {lsn}, before {switch}")

    def until_relay_is_done(self):
        until(self.s.state, lambda: self.s.sql(
            "SELECT lag_events = 0 AND waiting_for = 'events' FROM idempotency.stat_relay") == "t", 120)

    def judge(self):
        """Stop the writers; each event once, in order, in the partition of its key."""
        self.w.stop()
        expected = set(self.s.sql("SELECT event_id FROM sent").split())
        until("the last event has arrived", lambda: len(self.records()) >= len(expected))
        check(self.b, TOPIC, expected)
        partitions = {}
        for r in self.records():
            partitions.setdefault(r["key"].decode(), set()).add(str(r["partition"]))
        for key, chosen in partitions.items():
            assert chosen == set(self.b.ask("partition", key, PARTITIONS)), (key, chosen)
        print(f"# {len(expected)} events, {self.by_debezium()} by Debezium; "
              f"longest time without a new event {self.s.sql(LONGEST)} ms")


def there(m, text=None):
    """Steps 2 to 4, with writers of both kinds."""
    switch = int(m.page.switch("switch", text))
    m.w.start(f"new {switch}", "new")
    m.w.go_on()
    m.end_debezium(switch)
    m.page.run("resume")
    m.until_more(m.by_relay)


def back(m, text=None):
    m.w.stop(*m.w.names("new"))
    m.page.switch("back", text)
    m.w.go_on()
    m.until_relay_is_done()
    m.page.run("debezium")
    m.until_more(m.by_debezium)


def test_migrate():
    """There, back again, and there; then the old outbox goes.  A long transaction is in the way of the first switch."""
    with Migration() as m:
        m.until_more(m.by_debezium)
        m.prepare()
        m.s.sql(f"INSERT INTO account VALUES ({KEYS}, 0)")
        long = threading.Thread(target=m.s.sql, args=(f"""BEGIN; INSERT INTO sent VALUES (event('old', {KEYS}, 1), now());
            SELECT pg_sleep(4); COMMIT""",))
        long.start()
        until("the long transaction has inserted", lambda: m.s.sql(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%(4)%')") == "t")
        there(m)
        long.join()
        assert m.page.timeouts > 0
        back(m)
        m.s.sql("SELECT idempotency.relay_pause('orders')")
        there(m)
        m.w.stop(*m.w.names("old"))
        m.page.run("clean")
        m.page.run("drop")
        m.w.go_on()
        m.judge()
        assert m.s.sql("SELECT count(*) FROM pg_replication_slots") == "0"


def test_migrate_writers_that_count_rows():
    with Migration("counts rows", "disabled") as m:
        m.until_more(m.by_debezium)
        m.prepare()
        rows = re.sub("^CREATE TRIGGER.*\n", m.page.text("rows"), m.page.text("switch"), flags=re.M)
        there(m, rows)
        back(m, m.page.text("back").replace("COMMIT", "ALTER PUBLICATION dbz_publication ADD TABLE outbox;\nCOMMIT"))
        m.judge()


def test_relay_resumed_too_early():
    """The order of a key breaks if the relay does not wait for Debezium, and the test sees that."""
    with Migration() as m:
        m.until_more(m.by_debezium)
        m.prepare()
        m.c.ask("connectors/outbox/stop", "PUT")
        m.w.go_on()
        m.page.switch("switch")
        m.page.run("resume")
        m.until_more(m.by_relay)
        m.page.run("debezium")
        m.until_more(m.by_debezium)
        try:
            m.judge()
        except AssertionError as e:
            assert "behind" in str(e), e
        else:
            raise AssertionError("the broken order is not seen")


# (key, payload, trace)
FORMS = (
    ("A-7", r'{"total": 99.50, "b": [1, null, true], "a": {"é": "\u00e9\n\t\\ 😀"}}', "t"),
    ("é 😀/\x7f\u2028", '"text"', "é\n"),
    ("A\"7\\", "1E+3", None),
    ("\b\t\n\f\r\x01\x1f", "[]", ""),
    ("x", '{"n": 123456789012345678901234567890.10, "big": 1e40}', "1"),
    (" ", "true", "null"),
    ("x", "{}", "{}"),
    ("none", None, "t"),
)


def literal(text):
    return "NULL" if text is None else "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def test_debezium_writes_the_same():
    """Key, value, headers and partition of the same event by Debezium and by a relay, with string keys and with JSON keys."""
    with Migration(None) as m:
        for topic in ("json.account", "json.debezium_end"):
            m.b.topic(topic, PARTITIONS)
        m.connect("json", slot_name="json", transforms_outbox_route_topic_replacement="json.${routedByValue}",
                  key_converter="org.apache.kafka.connect.json.JsonConverter", key_converter_schemas_enable="false")
        m.prepare()
        m.s.sql(f"""CREATE SERVER json FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (
            brokers '{m.b.address}', topic 'json.{{aggregate_type}}', key_format 'json');
            CREATE USER MAPPING FOR CURRENT_USER SERVER json;
            BEGIN;
            SELECT idempotency.relay_create('json', 'json', start_at => 'latest'), idempotency.relay_pause('json');
            COMMIT""")
        m.s.shell(m.s.sql("SELECT idempotency.sink_setup('json')"))
        rows = ", ".join("(gen_random_uuid(), 'account', {}, 'Counted', {}, {})".format(*map(literal, form)) for form in FORMS)
        m.s.sql(f"INSERT INTO outbox VALUES {rows}")
        m.end_debezium(int(m.page.switch("switch")))
        m.s.sql(f"INSERT INTO outbox VALUES {rows}")
        m.page.run("resume")
        m.s.sql("SELECT idempotency.relay_resume('json')")
        for topic in (TOPIC, "json.account"):
            until("all have arrived", lambda: len(m.b.read(topic)) == 2 * len(FORMS))     # noqa: B023
            forms = {True: [], False: []}
            for r in m.b.read(topic):
                headers = dict(r["headers"])
                by_debezium = CONTEXT in headers
                assert len(headers.pop("id")) == 36 and (by_debezium or headers.pop("type") == b"Counted"), headers
                headers = {k: v for k, v in headers.items() if not k.startswith("__debezium")}
                forms[by_debezium].append((r["partition"], r["key"], r["value"], headers))
            assert forms[True] == forms[False], "\n".join(f"{a}\n{b}" for a, b in zip(*forms.values(), strict=True))
            assert topic == TOPIC or any(k == b'"A\\"7\\\\"' for _, k, _, _ in forms[False]), forms
