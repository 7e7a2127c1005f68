"""Servers, sinks and handlers of the relays' model, and what has arrived where."""
import json
import os

TYPES = {"fn": "idempotency_function", "pg": "idempotency_postgres", "pgplain": "idempotency_postgres",
         "store": "idempotency_program", "append": "idempotency_program"}

SOURCE = """
CREATE SCHEMA r;
CREATE TABLE r.keys (key text PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE r.door (closed boolean);
INSERT INTO r.door VALUES (false);
CREATE TABLE r.effect (pos bigserial, relay text, event_id uuid);
"""

HANDLER = """
CREATE FUNCTION r.h_{name}(event_id uuid, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'D' OR event_type = 'M' AND (SELECT closed FROM r.door) THEN
		RAISE 'refused';
	END IF;
	INSERT INTO r.effect (relay, event_id) VALUES ('{name}', event_id);
END $$
"""


class World:
    """One server with two databases; the second is the target of the postgres sinks."""

    def __init__(self, cluster, work, source, target):
        self.cluster, self.work = cluster, work
        self.source, self.target = source, target
        self.files = {}         # relay -> (bytes read, ids)

    def make(self):
        os.mkdir(self.work)
        self.cluster.rows(SOURCE, dbname=self.source)
        self.cluster.rows(SOURCE, dbname=self.target)
        self.sql("CREATE SERVER setup FOREIGN DATA WRAPPER idempotency_postgres OPTIONS"
                 f" (host '127.0.0.1', port '{self.cluster.port}', dbname '{self.target}', function 'r.h')")
        self.sql("CREATE USER MAPPING FOR CURRENT_USER SERVER setup OPTIONS (user 'postgres')")
        self.at_target(self.sql("SELECT idempotency.sink_setup_sql('setup')")[0][0])

    def sql(self, text, args=None):
        return self.cluster.rows(text, args, self.source)

    def at_target(self, text, args=None):
        return self.cluster.rows(text, args, self.target)

    def file(self, name):
        return f"{self.work}/{name}.arrivals"

    def create_server(self, name, kind):
        if kind == "fn":
            self.sql(HANDLER.format(name=name))
            options = f"function 'r.h_{name}'"
        elif kind in ("pg", "pgplain"):
            self.at_target(HANDLER.format(name=name))
            options = (f"host '127.0.0.1', port '{self.cluster.port}', dbname '{self.target}', function 'r.h_{name}',"
                       f" claim '{'on' if kind == 'pg' else 'off'}'")
        else:
            options = (f"program 'pytest', file '{self.file(name)}', reject_type 'D', crash_type 'K', fault_times '1',"
                       + (" position 'on'" if kind == "store" else " answer 'each', late_type 'L', late_ms '2500'"))
        self.sql(f"CREATE SERVER s_{name} FOREIGN DATA WRAPPER {TYPES[kind]} OPTIONS ({options})")
        if kind != "fn":
            user = "user 'postgres'" if kind in ("pg", "pgplain") else ""
            self.sql(f"CREATE USER MAPPING FOR CURRENT_USER SERVER s_{name}" + (f" OPTIONS ({user})" if user else ""))

    def arrivals(self, name, kind):
        if kind == "fn":
            rows = self.sql("SELECT event_id::text FROM r.effect WHERE relay = %s ORDER BY pos", (name,))
        elif kind in ("pg", "pgplain"):
            rows = self.at_target("SELECT event_id::text FROM r.effect WHERE relay = %s ORDER BY pos", (name,))
        else:
            return self.in_file(name, kind == "store")
        return [row[0] for row in rows]

    def in_file(self, name, stores):
        at, ids = self.files.setdefault(name, (0, []))
        try:
            with open(self.file(name), "rb") as f:
                f.seek(at)
                data = f.read()
        except FileNotFoundError:
            return ids
        whole = data[:data.rfind(b"\n") + 1]
        if stores:      # events without the line of their commit behind them may be taken back
            whole = whole[:whole.find(b"\n", whole.rfind(b'"commit": ')) + 1] if b'"commit": ' in whole else b""
        for line in whole.splitlines():
            entry = self.entry(line)
            if entry.get("outcome") == "acked":
                h = entry["event"]
                ids.append(f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")
        self.files[name] = (at + len(whole), ids)
        return ids

    @staticmethod
    def entry(line):
        """One that a killed program wrote half, and the next one ended, was never answered for."""
        try:
            return json.loads(line)
        except ValueError:
            return {}

    def door(self, closed):
        self.sql("UPDATE r.door SET closed = %s", (closed,))
        self.at_target("UPDATE r.door SET closed = %s", (closed,))

    def target_away(self):
        self.cluster.rows(f"ALTER DATABASE {self.target} ALLOW_CONNECTIONS false")
        self.cluster.rows("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (self.target,))

    def target_back(self):
        self.cluster.rows(f"ALTER DATABASE {self.target} ALLOW_CONNECTIONS true")

    def status(self):
        """relay -> (state, waiting_for, lag_events, pid, sink_pid, the rest in words)"""
        rows = self.sql("SELECT relay, state, waiting_for, lag_events, pid, sink_pid, position, dead, last_error"
                        " FROM idempotency.stat_relay")
        return {row[0]: row[1:] for row in rows}

    def dead(self, name):
        return {r[0] for r in self.sql("SELECT event_id::text FROM idempotency.dead_letters WHERE relay = %s", (name,))}

    def table(self, name):
        return self.sql("SELECT oid::regclass::text FROM pg_class WHERE relname = %s AND relkind = 'r'", (name,))[0][0]

    def waiting(self, name):
        """How many of its events are parked, by state."""
        return sorted(self.sql(f"""SELECT state::text, count(*) FROM {self.table('relay_parked')} WHERE relay_id =
            (SELECT relay_id FROM {self.table('relays')} WHERE relay = %s) GROUP BY 1""", (name,)))

    def doing(self, name):
        """For a report: what is parked, and what the processes wait for."""
        rows = self.sql(f"""SELECT p::text FROM (SELECT to_jsonb(q) - 'payload' - 'headers' p FROM {self.table('relay_parked')} q
            WHERE q.relay_id = (SELECT relay_id FROM {self.table('relays')} WHERE relay = %s)) x LIMIT 30""", (name,))
        rows += self.cluster.rows("""SELECT concat_ws(' ', pid, backend_type, application_name, state, wait_event_type,
            wait_event, now() - xact_start, left(query, 60)) FROM pg_stat_activity
            WHERE backend_type LIKE 'idem%' OR application_name LIKE 'idem%'""")
        return "\n".join(row[0] for row in rows)
