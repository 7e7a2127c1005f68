"""A relay from PostgreSQL: every event once and in the order of its key, whatever is killed."""
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import source as plain
from kafka.broker import JAVA, TOP, Broker, jars
from sinklib import until

EVENTS = 10000
KEYS = 50
TOOLS = {"kafka-topics": "TopicCommand", "kafka-acls": "AclCommand", "kafka-console-consumer": "consumer.ConsoleConsumer"}
# Some transactions are rolled back.
SCHEMA = """
CREATE TABLE counter (key int PRIMARY KEY, n int NOT NULL);
INSERT INTO counter SELECT i, 0 FROM generate_series(0, {keys} - 1) AS i;
CREATE TABLE sent (event_id uuid PRIMARY KEY);
CREATE PROCEDURE write(events int) LANGUAGE plpgsql AS $$
DECLARE
    made int := 0;
    k int;
    m int;
BEGIN
    WHILE made < events LOOP
        FOR i IN 1 .. 20 LOOP
            k := (made + i) % {keys};
            UPDATE counter SET n = n + 1 WHERE key = k RETURNING n INTO m;
            INSERT INTO sent VALUES (idempotency.outbox_enqueue('order', k::text, 'Counted', jsonb_build_object('n', m)));
        END LOOP;
        IF made % 200 = 180 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
        made := made + 20;
    END LOOP;
END $$;
"""


class Source(plain.Source):
    """A server with the extension, and a relay into the broker."""

    def __init__(self, broker):
        super().__init__()
        self.broker = broker

    def try_sql(self, text):
        """None while the server recovers."""
        try:
            return self.sql(text)
        except Exception:       # noqa: whatever the server's crash raises
            return None

    def shell(self, text):
        """Run commands with the broker's own tools; what they print."""
        tools = self.dir / "tools"
        if not tools.exists():
            tools.mkdir()
            for name, main in TOOLS.items():
                (tools / f"{name}.sh").write_text("#!/bin/sh\nexec " + " ".join(JAVA) +
                                                  f" -cp '{jars()}/*' org.apache.kafka.tools.{main} \"$@\"\n")
                (tools / f"{name}.sh").chmod(0o755)
        done = subprocess.run(["sh", "-e"], input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
        assert done.returncode == 0, done.stdout
        return done.stdout

    def copy(self, path, text=None):
        """A file that the server's user alone can read, with the text or with what is in the file of that path."""
        there = self.dir / "data" / path.name
        there.write_text(path.read_text() if text is None else text)
        shutil.chown(there, *(getattr((self.dir / "data").stat(), f"st_{which}") for which in ("uid", "gid")))
        there.chmod(0o600)
        return there

    def log(self):
        return (self.dir / "log/server.log").read_text(errors="replace")

    def end_program(self):
        pid = self.sql("SELECT sink_pid FROM idempotency.stat_relay")
        os.kill(int(pid), signal.SIGKILL)


def check(broker, topic, expected):
    """Lost 0, doubled 0, and the order of each key kept."""
    records = broker.read(topic)
    got = [dict(r["headers"])["id"].decode() for r in records]
    assert len(got) == len(set(got)), f"doubled: {len(got) - len(set(got))}"
    assert set(got) == expected, f"lost {len(expected - set(got))}, not sent {len(set(got) - expected)}"
    last = {}
    for r in sorted(records, key=lambda r: (r["partition"], r["offset"])):
        n = int(r["value"].split(b":")[1].strip(b" }"))
        assert n == last.get(r["key"], 0) + 1, f"key {r['key']}: {n} behind {last.get(r['key'])}"
        last[r["key"]] = n


def crash(source, broker, stop):
    """Kill the program, the relay's worker and the broker in turn, until told to stop."""
    killed = {"program": 0, "worker": 0, "broker": 0}
    turn = 0
    while not stop.is_set() or min(killed.values()) < 2:
        turn += 1
        what = ("program", "program", "broker", "program", "worker")[turn % 5]
        time.sleep(0.3)
        if what == "broker":
            broker.kill()
            time.sleep(0.2)
            broker.start()
        else:
            column = "sink_pid" if what == "program" else "pid"
            pid = source.try_sql(f"SELECT {column} FROM idempotency.stat_relay WHERE relay = 'orders'")
            if not pid:
                continue
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        killed[what] += 1
    return killed


def shop(source, broker, relay="orders", **options):
    """A server with a mapping, what sink_setup prints, and a relay."""
    said = "".join(f", {name} '{value}'" for name, value in options.items())
    source.sql(f"""CREATE SERVER shop FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (brokers '{broker.address}'{said});
        CREATE USER MAPPING FOR CURRENT_USER SERVER shop""")
    source.shell(source.sql(f"SELECT idempotency.sink_setup('shop', '{relay}')"))
    source.sql(f"SELECT idempotency.relay_create('{relay}', 'shop', max_backoff => '1 s')")


def count(source, n):
    """Event number n of 40 keys."""
    source.sql("INSERT INTO sent SELECT idempotency.outbox_enqueue('order', k::text, 'Counted', jsonb_build_object('n', {}))"
               " FROM generate_series(1, 40) k".format(n))


def blocks(page, kind):
    """The blocks of a page that a comment <!-- kind: NAME --> marks, with their languages."""
    return {name: (language, text) for name, language, text in re.findall(
        rf"^<!-- {kind}: (\w+) -->\n```(\w+)\n(.*?)^```$", (TOP / "doc/howto" / page).read_text(), re.M | re.S)}


def test_more_partitions():
    """By the commands of doc/howto/kafka-relay.md: keys move at once, and a reader that was at the end sees them in order."""
    page = {name: text for name, (_, text) in blocks("kafka-relay.md", "partitions").items()}
    b = Broker()
    source = Source(b)
    try:
        source.sql("CREATE TABLE sent (event_id uuid)")
        b.topic("outbox.event.order", 2)
        shop(source, b)
        count(source, 1)
        until(source.state, lambda: len(b.read("outbox.event.order")) == 40)
        source.sql(page["pause"])
        until(source.state, lambda: source.sql("SELECT sink_pid IS NULL FROM idempotency.stat_relay") == "t")
        count(source, 2)
        source.shell(page["alter"].replace("kafka-1:9093,kafka-2:9093", b.address))
        source.sql(page["resume"])
        count(source, 3)
        until(source.state, lambda: len(b.read("outbox.event.order")) == 120)
        chosen = {r["key"]: {} for r in b.read("outbox.event.order")}
        for r in sorted(b.read("outbox.event.order"), key=lambda r: r["offset"]):
            chosen[r["key"]].setdefault(r["partition"], []).append(r["value"])
        for key, partitions in chosen.items():
            before, after = (int(*b.ask("partition", key.decode(), n)) for n in (2, 12))
            values = [b'{"n": %d}' % n for n in (1, 2, 3)]
            assert partitions == ({before: values} if before == after else {before: values[:1], after: values[1:]}), partitions
        assert any(len(p) == 2 for p in chosen.values())
    finally:
        source.stop()
        b.remove()


def test_two_databases():
    """Relays of one name.  With one position topic both stop, and lose nothing when that is mended."""
    b = Broker()
    sources = []

    def arrive(n):
        for source, name in zip(sources, ("shop", "store"), strict=True):
            until(source.state, lambda: len(b.read(f"{name}.order")) == n)         # noqa: B023
            check(b, f"{name}.order", set(source.sql("SELECT event_id FROM sent").split()))
    try:
        for name in ("shop", "store"):
            sources.append(Source(b))
            sources[-1].sql("CREATE TABLE sent (event_id uuid)")
            b.topic(f"{name}.order", 3)
            shop(sources[-1], b, topic=f"{name}.{{aggregate_type}}")
            count(sources[-1], 1)
            until(sources[0].state, lambda: len(b.read("shop.order")) == 40)
        first, second = sources
        until(second.state, lambda: second.sql("SELECT state FROM idempotency.stat_relay") == "diverged")
        count(first, 2)
        until(first.state, lambda: first.sql("SELECT state FROM idempotency.stat_relay") == "fenced")
        assert not b.read("store.order")
        second.sql("ALTER SERVER shop OPTIONS (ADD position_topic 'store.position.{relay}')")
        second.shell(second.sql("SELECT idempotency.sink_setup('shop', 'orders')"))
        for source in sources:
            source.sql("SELECT idempotency.relay_resume('orders')")
        count(second, 2)
        arrive(80)
    finally:
        for source in sources:
            source.stop()
        b.remove()


def test_operator_is_told():
    """The operator's query names the relay from the broker's end to its return, and neither before nor after.  A look is late
    if it began two seconds after the relay had noted the failure, or after the operator's patience with an answer."""
    page = (TOP / "doc/howto/operate.md").read_text()
    query = re.search(r"^## Look$.*?^```sql\n(.*?);\n```$", page, re.M | re.S).group(1)
    b = Broker()
    source = Source(b)
    broken_at = "infinity"
    reasons = set()

    def look():
        """Is the relay named?"""
        named, late, reason = source.sql(f"""WITH q AS MATERIALIZED ({query})
            SELECT q.relay IS NOT NULL, q.relay IS NULL AND (
                s.last_error_at > '{broken_at}' AND statement_timestamp() > s.last_error_at + interval '2 s'
                OR s.waiting_for = 'answer' AND statement_timestamp() > s.waiting_since + interval '7 s'), s.state
            FROM idempotency.stat_relay s LEFT JOIN q USING (relay)""").split("|")
        assert late != "t", source.state()
        if named == "t":
            reasons.add(reason)
        return named == "t"

    def is_delivered():
        return source.sql("SELECT sent > 0 AND lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay") == "t"

    try:
        b.topic("outbox.event.order", 3)
        shop(source, b, timeout=8000)
        event = "SELECT idempotency.outbox_enqueue('order', 'k', 'E', '1')"
        source.sql(event)
        until(source.state, is_delivered)
        assert not look(), source.state()
        broken_at = source.sql("SELECT clock_timestamp()")
        b.kill()
        source.sql(event)
        until(source.state, look)
        until(source.state, lambda: source.sql("SELECT state FROM idempotency.stat_relay") == "outage")
        reasons.clear()
        for _ in range(10):
            time.sleep(1)
            assert look(), source.state()
        assert reasons == {"outage"}, reasons
        broken_at = "infinity"
        b.start()
        until(source.state, lambda: not look())
        until(source.state, is_delivered)
        assert not look(), source.state()
    finally:
        source.stop()
        b.remove()


def test_relay_survives_kills():
    b = Broker()
    source = Source(b)
    try:
        source.sql(SCHEMA.format(keys=KEYS))
        source.sql(f"CREATE SERVER shop FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (brokers '{b.address}',"
                   " timeout '5000', transaction_timeout '5000')")
        source.sql("CREATE USER MAPPING FOR CURRENT_USER SERVER shop")
        source.shell(source.sql("SELECT idempotency.sink_setup('shop', 'orders')"))
        described = b.ask("describe", "idempotency.position.orders")
        assert "cleanup.policy=compact" in described and "partitions=1" in described, described
        b.topic("outbox.event.order", 3)
        source.sql("SELECT idempotency.relay_create('orders', 'shop', batch_events => 100, min_backoff => '50 ms',"
                   " max_backoff => '1 s')")
        stop = threading.Event()
        done = {}
        killer = threading.Thread(target=lambda: done.update(crash(source, b, stop)))
        killer.start()
        made = 0
        while made < EVENTS:
            # a worker's death takes the server down; what was committed before stays
            source.try_sql(f"CALL write({EVENTS // 50})")
            made = int(source.try_sql("SELECT count(*) FROM sent") or 0)
        stop.set()
        killer.join()
        until("the server is up", lambda: source.try_sql("SELECT 1"))
        until(source.state, lambda: source.try_sql(
            "SELECT lag_events = 0 AND position IS NOT NULL FROM idempotency.stat_relay") == "t", 180)
        expected = set(source.sql("SELECT event_id FROM sent").split())
        assert len(expected) >= EVENTS
        until("the last transaction has ended", lambda: len(b.read("outbox.event.order")) >= len(expected))
        check(b, "outbox.event.order", expected)
        print(f"# {len(expected)} events; killed {done}")
    finally:
        source.stop()
        b.remove()
