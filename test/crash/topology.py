"""Two servers and what runs between them.

A   business tables, the outbox, relays:
    fn, fnb   functions of A: effects in A          exactly one
    pgfn      postgres sink, a function of B        exactly one, by the stored position alone
    pgtab     postgres sink, a table of B           exactly one
    prog      a program that appends to a file      at least one
B   the arrivals; consumers claim them and make effects in B

Aggregate types: "j" with jsonb payloads, "y" with bytes, "k" enqueued under the
lock of the aggregate.  No arrival or effect table has a unique key that would
hide a double, but the table that pgtab fills, as it must.
"""
import json
import os
import pathlib
import shutil

from cluster import Cluster, wait_until

KEYS = 16

# Segments turn over all the time; what commits asynchronously stays unflushed for long.
CONF = """
wal_writer_delay = 2s
wal_writer_flush_after = 64MB
idempotency.outbox_retention = 0
idempotency.outbox_segment_size = '1MB'
idempotency.outbox_rotation_interval = 0
idempotency.sink_directory = '{sinks}'
"""

SCHEMA_A = """
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA app;
CREATE TABLE app.business (txn text, events int, amount bigint);
CREATE TABLE app.keys (key text PRIMARY KEY, n bigint NOT NULL);
INSERT INTO app.keys SELECT i::text, 0 FROM generate_series(1, {keys}) i;
CREATE TABLE app.effect (pos bigserial, relay text, event_id uuid, key text, payload jsonb,
	at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION app.on_json(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.effect (relay, event_id, key, payload) VALUES ('fn', event_id, aggregate_id, payload) $$;
CREATE FUNCTION app.on_bytes(event_id uuid, aggregate_id text, payload bytea) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.effect (relay, event_id, key, payload)
		VALUES ('fnb', event_id, aggregate_id, pg_catalog.convert_from(payload, 'UTF8')::jsonb) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_json');
CREATE SERVER fnb FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_bytes');
CREATE SERVER pgfn FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '127.0.0.1', port '{port_b}', dbname 'postgres', function 'app.arrive', claim 'off');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgfn OPTIONS (user 'postgres');
CREATE SERVER pgtab FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '127.0.0.1', port '{port_b}', dbname 'postgres', "table" 'app.tab');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgtab OPTIONS (user 'postgres');
CREATE SERVER prog FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'pytest', file '{file}');
"""

SCHEMA_B = """
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA app;
CREATE TABLE app.inbox (pos bigserial PRIMARY KEY, event_id uuid, key text, payload jsonb,
	at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION app.arrive(event_id uuid, aggregate_id text, payload jsonb, payload_bytes bytea) RETURNS void
	LANGUAGE sql AS $$ INSERT INTO app.inbox (event_id, key, payload) VALUES (event_id, aggregate_id,
		coalesce(payload, pg_catalog.convert_from(payload_bytes, 'UTF8')::jsonb)) $$;
CREATE TABLE app.tab (pos bigserial, event_id uuid UNIQUE, aggregate_id text, payload jsonb,
	at timestamptz DEFAULT clock_timestamp());
CREATE TABLE app.effect (pos bigserial, event_id text, txn text);
"""

# relay -> (aggregate types, more arguments)
BATCH = 100
RELAYS = {
    "fn": ("{j,k}", "batch_events => 200"),
    "fnb": ("{y}", "batch_events => 50"),
    "pgfn": ("{}", "batch_events => 200"),
    "pgtab": ("{k}", "batch_events => 50"),
    "prog": ("{}", f"batch_events => {BATCH}"),
}
TYPES = {"fn": "jk", "fnb": "y", "pgfn": "jky", "pgtab": "k", "prog": "jky"}
# What a relay to a program may have sent and not yet settled: 8 batches.
WINDOW = 8 * BATCH


class Topology:
    def __init__(self, work, bindir, extension_conf, sinks):
        self.work = pathlib.Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.file = self.work / "prog.arrivals"
        directory = self.work / "sinks"
        shutil.copytree(sinks, directory)
        self.a = Cluster("a", work, bindir, extension_conf, CONF.format(sinks=directory))
        self.b = Cluster("b", work, bindir, extension_conf, CONF.format(sinks=directory))
        self.clusters = [self.a, self.b]

    def make(self):
        for cluster in self.clusters:
            cluster.make()
            cluster.start()
        self.b.rows(SCHEMA_B)
        self.a.rows(SCHEMA_A.format(keys=KEYS, port_b=self.b.port, file=self.file))
        self.b.rows(self.a.rows("SELECT idempotency.sink_setup_sql('pgfn')")[0][0])
        for relay, (types, more) in RELAYS.items():
            self.a.rows(f"""SELECT idempotency.relay_create('{relay}', '{relay}', '{types}',
                min_backoff => '20 ms', max_backoff => '500 ms', {more}, max_attempts => 1000)""")
        self.wait_whole()

    # Is everything back to work?

    def relays(self):
        """relay -> (state, pid, sink_pid)."""
        rows = self.a.rows("SELECT relay, state, pid, sink_pid FROM idempotency.stat_relay")
        return {r[0]: r[1:] for r in rows if r[0] in RELAYS}

    def relays_or_none(self):
        try:
            return self.relays()
        except Exception:  # the server restarts
            return {}

    def is_whole(self):
        if not all(c.accepts() for c in self.clusters):
            return False
        now = self.relays_or_none()
        return len(now) == len(RELAYS) and all(state == "streaming" for state, _, _ in now.values())

    def wait_whole(self, seconds=120):
        try:
            wait_until("all servers answer and all relays stream", self.is_whole, seconds)
        except Exception as error:
            error.args = (f"{error}\nrelays: {self.describe()}",)
            raise

    def describe(self):
        try:
            return "\n".join(str(r) for r in self.a.rows(
                "SELECT relay, state, waiting_for, position, lag_events, dead, last_error FROM idempotency.stat_relay"))
        except Exception as error:
            return f"server a does not answer: {error}"

    # What arrived, from the receivers' own tables and file.  (id, key, payload), in order.

    def arrivals(self, relay):
        if relay == "prog":
            yield from self.program_arrivals()
            return
        cluster, sql = {
            "fn": (self.a, "SELECT event_id, key, payload::text FROM app.effect WHERE relay = 'fn' ORDER BY pos"),
            "fnb": (self.a, "SELECT event_id, key, payload::text FROM app.effect WHERE relay = 'fnb' ORDER BY pos"),
            "pgfn": (self.b, "SELECT event_id, key, payload::text FROM app.inbox ORDER BY pos"),
            "pgtab": (self.b, "SELECT event_id, aggregate_id, payload::text FROM app.tab ORDER BY pos"),
        }[relay]
        for event, key, payload in cluster.rows(sql):
            yield event, key, json.loads(payload)

    def program_arrivals(self):
        for entry in self.program_log():
            if entry.get("outcome") == "acked":
                text = entry["payload"] if "payload" in entry else bytes.fromhex(entry["payload_hex"]).decode()
                yield dashed(entry["event"]), entry["aggregate_id"], json.loads(text)

    def program_log(self):
        """The program's lines; one that was cut off by a kill is no line."""
        if not self.file.exists():
            return
        with open(self.file, encoding="utf-8") as f:
            for line in f:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue

    def consumer_effects(self):
        """(event id, transaction), in order."""
        return self.b.rows("SELECT event_id, txn FROM app.effect ORDER BY pos")

    def arrived(self):
        """relay -> number of different events, for waiting."""
        found = {}
        found.update(self.a.rows("SELECT relay, count(DISTINCT event_id) FROM app.effect GROUP BY 1"))
        found["pgfn"] = self.b.rows("SELECT count(DISTINCT event_id) FROM app.inbox")[0][0]
        found["pgtab"] = self.b.rows("SELECT count(*) FROM app.tab")[0][0]
        found["prog"] = len({e["event"] for e in self.program_log() if e.get("outcome") == "acked"})
        return found

    def remove(self):
        for cluster in self.clusters:
            cluster.remove()
        shutil.rmtree(self.work, ignore_errors=True)

    def end(self):
        """Leave no process, but the directories, for somebody to look at."""
        for cluster in self.clusters:
            if cluster.process and cluster.process.poll() is None:
                try:
                    cluster.stop("immediate", 20)
                except Exception:
                    cluster.kill9()


def dashed(hexadecimal):
    h = hexadecimal
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def processes_of(parents):
    """pid -> (parent, name) of all processes below the given ones."""
    every = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                    stat = f.read()
            except OSError:
                continue
            name = stat[stat.index("(") + 1:stat.rindex(")")]
            every[int(entry)] = (int(stat[stat.rindex(")") + 2:].split()[1]), name)
    found = {p: every[p] for p in parents if p in every}
    grown = True
    while grown:
        new = {p: v for p, v in every.items() if v[0] in found and p not in found}
        found.update(new)
        grown = bool(new)
    return found
