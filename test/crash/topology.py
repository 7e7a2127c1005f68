"""Two servers and the relays between them.

A   business tables, the outbox, relays:
    fn, fnb   functions of A: effects in A          exactly once
    pgfn      postgres sink, a function of B        exactly once, by the stored position alone
    pgtab     postgres sink, a table of B           exactly once
    prog      a program that appends to a file      at least once
    fnq, pgq, storeq, progq   the same kinds, and a program that stores positions, with batches of a few events
              and little credit, which single events fill: they take one aggregate type only
B   the arrivals; consumers claim them and make effects in B

Aggregate types: "j" with jsonb payloads, "y" with bytes, "k" enqueued under the lock of the
aggregate, "q" for relays with small batches.  A unique key would hide a double arrival.  So no
arrival or effect table has a unique key, except the table that pgtab fills, which needs one.
"""
import itertools
import json
import pathlib
import shutil
import signal

from server import Server, wait_until

KEYS = 16
PREPARED = 100

# Segments of the outbox rotate, and those of claims are packed, all the time; asynchronous commits stay unflushed for long.
CONF = """
max_prepared_transactions = {prepared}
track_commit_timestamp = on
wal_writer_delay = 2s
wal_writer_flush_after = 64MB
idempotency.outbox_retention = 0
idempotency.outbox_segment_size = '1MB'
idempotency.outbox_rotation_interval = 0
idempotency.claim_segment_size = '{claims}'
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
CREATE INDEX ON app.effect (at);
CREATE FUNCTION app.on_json(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.effect (relay, event_id, key, payload) VALUES ('fn', event_id, aggregate_id, payload) $$;
CREATE FUNCTION app.on_bytes(event_id uuid, aggregate_id text, payload bytea) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.effect (relay, event_id, key, payload)
		VALUES ('fnb', event_id, aggregate_id, pg_catalog.convert_from(payload, 'UTF8')::jsonb) $$;
CREATE FUNCTION app.on_small(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.effect (relay, event_id, key, payload) VALUES ('fnq', event_id, aggregate_id, payload) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_json');
CREATE SERVER fnb FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_bytes');
CREATE SERVER pgfn FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '127.0.0.1', port '{port_b}', dbname 'postgres', function 'app.arrive', claim 'off');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgfn OPTIONS (user 'postgres');
CREATE SERVER pgtab FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '127.0.0.1', port '{port_b}', dbname 'postgres', "table" 'app.tab',
		omit_columns 'seq,aggregate_type,event_type,content_type,payload_bytes,headers,enqueued_at');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgtab OPTIONS (user 'postgres');
CREATE SERVER prog FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'pytest', file '{work}/prog.arrivals');
CREATE SERVER fnq FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_small');
CREATE SERVER pgq FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '127.0.0.1', port '{port_b}', dbname 'postgres', function 'app.arrive_small', claim 'off');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgq OPTIONS (user 'postgres');
CREATE SERVER storeq FOREIGN DATA WRAPPER idempotency_program
	OPTIONS (program 'pytest', file '{work}/storeq.arrivals', position 'on', credit_messages '8', max_batch_events '8');
CREATE SERVER progq FOREIGN DATA WRAPPER idempotency_program
	OPTIONS (program 'pytest', file '{work}/progq.arrivals', credit_messages '6', max_batch_events '3');
"""

SCHEMA_B = """
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA app;
CREATE TABLE app.inbox (pos bigserial PRIMARY KEY, event_id uuid, key text, payload jsonb,
	at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON app.inbox (at);
CREATE FUNCTION app.arrive(event_id uuid, aggregate_id text, payload jsonb, payload_bytes bytea) RETURNS void
	LANGUAGE sql AS $$ INSERT INTO app.inbox (event_id, key, payload) VALUES (event_id, aggregate_id,
		coalesce(payload, pg_catalog.convert_from(payload_bytes, 'UTF8')::jsonb)) $$;
CREATE TABLE app.small (pos bigserial, event_id uuid, key text, payload jsonb,
	at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON app.small (at);
CREATE FUNCTION app.arrive_small(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.small (event_id, key, payload) VALUES (event_id, aggregate_id, payload) $$;
CREATE TABLE app.tab (pos bigserial, event_id uuid UNIQUE, aggregate_id text, payload jsonb,
	at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON app.tab (at);
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
    "fnq": ("{q}", "batch_events => 1"),
    "pgq": ("{q}", "batch_events => 2"),
    "progq": ("{q}", "batch_events => 3"),
    "storeq": ("{q}", "batch_events => 8"),
}
TYPES = {"fn": "jk", "fnb": "y", "pgfn": "jkyq", "pgtab": "k", "prog": "jkyq",
         "fnq": "q", "pgq": "q", "progq": "q", "storeq": "q"}
# Relays whose sinks neither store positions nor claim.
REPEATING = {"prog", "progq"}
# relay -> the place of its arrivals: server, table, column of the key; a relay to a program has a file.
TABLES = {
    "fn": ("a", "app.effect WHERE relay = 'fn'", "key"),
    "fnb": ("a", "app.effect WHERE relay = 'fnb'", "key"),
    "fnq": ("a", "app.effect WHERE relay = 'fnq'", "key"),
    "pgfn": ("b", "app.inbox WHERE true", "key"),
    "pgtab": ("b", "app.tab WHERE true", "aggregate_id"),
    "pgq": ("b", "app.small WHERE true", "key"),
}
# The batches that a relay to a program may have sent and not yet settled: 8.
WINDOW = 8 * BATCH


class Lines:
    """A program's file of JSON lines; each line is parsed once.  A line that a kill cut off does not count."""

    def __init__(self, path):
        self.path, self.entries, self.offset = path, [], 0

    def read(self):
        if self.path.exists():
            with open(self.path, "rb") as f:
                f.seek(self.offset)
                for line in f:
                    if not line.endswith(b"\n"):
                        break
                    self.offset += len(line)
                    try:
                        self.entries.append(json.loads(line))
                    except ValueError:
                        pass
        return self.entries


class Topology:
    def __init__(self, work, bindir, extension_conf, sinks, claims):
        """claims: the size of a segment of the store of claims."""
        self.work = pathlib.Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.files = {relay: Lines(self.work / f"{relay}.arrivals") for relay in RELAYS if relay not in TABLES}
        directory = self.work / "sinks"
        shutil.copytree(sinks, directory)
        self.settings = pathlib.Path(extension_conf).read_text() + \
            CONF.format(sinks=directory, prepared=PREPARED, claims=claims)
        self.a, self.b = (Server(name, work, bindir, host=self.work / "sock") for name in "ab")
        self.clusters = [self.a, self.b]

    def make(self):
        for cluster in self.clusters:
            cluster.signals.add(signal.SIGKILL)
            cluster.make(self.settings)
            cluster.start()
        self.b.rows(SCHEMA_B)
        self.a.rows(SCHEMA_A.format(keys=KEYS, port_b=self.b.port, work=self.work))
        self.b.rows(self.a.rows("SELECT idempotency.sink_setup_sql('pgfn')")[0][0])
        for relay, (types, more) in RELAYS.items():
            self.a.rows(f"""SELECT idempotency.relay_create('{relay}', '{relay}', '{types}',
                min_backoff => '20 ms', max_backoff => '500 ms', {more}, max_attempts => 1000)""")
        self.wait_whole()

    # Does everything work again?

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
        if not all(c.answers() for c in self.clusters):
            return False
        now = self.relays_or_none()
        return len(now) == len(RELAYS) and all(state in ("streaming", "idle") for state, _, _ in now.values())

    def wait_whole(self, seconds=120):
        try:
            wait_until("all servers answer and all relays stream", self.is_whole, seconds)
        except Exception as error:
            error.args = (f"{error}\nrelays: {self.a.relays()}",)
            raise

    # The stores of claims.

    def pack(self):
        """Wait until all that can be packed is, and nothing is left of what was."""
        left = []

        def packed(cluster):
            cluster.rows("SELECT idempotency.claims_maintain()")
            left[:] = cluster.rows("""SELECT kind, number, slot, state, held_by FROM idempotency.stat_claim_segments
                WHERE state NOT IN ('current', 'empty', 'searched')""")
            return not left
        for cluster in self.clusters:
            wait_until(lambda: f"the claims of {cluster.name} are packed: {left}", lambda: packed(cluster), 60, 0.1)

    def runs(self):
        """server -> number of runs, their highest level, their entries."""
        return {cluster.name: cluster.rows("""SELECT count(*), coalesce(max(level), -1), coalesce(sum(entries), 0)::bigint
            FROM idempotency.stat_claim_segments WHERE kind = 'run'""")[0] for cluster in self.clusters}

    # The arrivals, from the receivers' own tables and file: (id, key, payload), in order.

    def arrivals(self, relay):
        if relay in self.files:
            yield from self.program_arrivals(relay)
            return
        server, table, key = TABLES[relay]
        for event, key, payload in self.cluster(server).rows(
                f"SELECT event_id, {key}, payload::text FROM {table} ORDER BY pos"):
            yield event, key, json.loads(payload)

    def cluster(self, name):
        return {"a": self.a, "b": self.b}[name]

    def program_arrivals(self, relay):
        for entry in self.program_acks(relay):
            text = entry["payload"] if "payload" in entry else bytes.fromhex(entry["payload_hex"]).decode()
            yield dashed(entry["event"]), entry["aggregate_id"], json.loads(text)

    def program_acks(self, relay, first=0):
        """The events of a program, from a line on; if it stores positions, only the events before a position."""
        lines = itertools.islice(self.files[relay].read(), first, None)
        if relay in REPEATING:
            yield from (e for e in lines if e.get("outcome") == "acked")
            return
        pending = []
        for entry in lines:
            if entry.get("outcome") == "acked":
                pending.append(entry)
            elif "commit" in entry:
                yield from pending
            if "commit" in entry or "hello" in entry:
                pending = []

    def program_log(self):
        return self.files["prog"].read()

    def times_sql(self, relay):
        """The arrivals in a table between two times, each with the time when the receiver's transaction committed."""
        _, table, _ = TABLES[relay]
        return f"""SELECT event_id::text, extract(epoch FROM coalesce(pg_xact_commit_timestamp(xmin), at))::float8
            FROM {table} AND at BETWEEN to_timestamp(%s) AND to_timestamp(%s)"""

    def first_arrivals(self, relay, begin, end):
        """event -> time, for the events that came in that time and not before."""
        if relay in TABLES:
            return dict(self.cluster(TABLES[relay][0]).rows(self.times_sql(relay), (begin, end)))
        first = {}
        for entry in self.program_acks(relay):
            first.setdefault(dashed(entry["event"]), entry["at"])
        return {event: at for event, at in first.items() if begin <= at <= end}

    def consumer_effects(self):
        """(event id, transaction), in order."""
        return self.b.rows("SELECT event_id, txn FROM app.effect ORDER BY pos")

    def arrived(self):
        """relay -> number of different events, for waiting."""
        found = {relay: 0 for relay in RELAYS}
        found.update(self.a.rows("SELECT relay, count(DISTINCT event_id) FROM app.effect GROUP BY 1"))
        for relay, table in (("pgfn", "inbox"), ("pgtab", "tab"), ("pgq", "small")):
            found[relay] = self.b.rows(f"SELECT count(DISTINCT event_id) FROM app.{table}")[0][0]
        for relay in self.files:
            found[relay] = len({e["event"] for e in self.program_acks(relay)})
        return found

    def remove(self):
        for cluster in self.clusters:
            cluster.remove()
        shutil.rmtree(self.work, ignore_errors=True)

    def end(self):
        """End all processes; the directories stay, to be examined."""
        for cluster in self.clusters:
            cluster.kill()


def dashed(hexadecimal):
    h = hexadecimal
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
