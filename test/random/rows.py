"""Rows that nobody could have written, in every table of the extension, and everything that reads them.

A dump that was edited, or a role that may write all data, brings any row that the types of its columns allow.  The
tables' constraints refuse most such rows; the database "loose" has none of these constraints, so the rows reach the
library.  In each round some rows are changed copies of rows that are there, or made up.  Then every view and
function has to end with a result, or with an error that says what is wrong: no crash, no internal error, nothing that
goes on for long.  XX001 has to name a table of the extension and has to say what to do, and must not be the answer
for events whose rows are sound.

Most rounds are rolled back; some commit in a copy of the database, whose workers then meet the rows.
"""
import random
import re
import time

import psycopg2

from server import Finding, wait_until

TABLES = "idempotency_data"
PAYLOAD = """'{"a": [1, null, "x"]}'"""

# What is there before: something of every kind.  {n} is a number, since all stands in one text column.
STATE = [
    "SELECT idempotency.consumer_create('c1', max_attempts => 1, min_backoff => '1 h', max_backoff => '1 h')",
    "SELECT idempotency.consumer_create('c2', retention => '1 h', keep_ids => true)",
    "SELECT idempotency.claim_event('e' || n), idempotency.complete_event('e' || n, result => '{\"r\": 1}')"
    "  FROM generate_series(1, 4) n",
    "SELECT idempotency.claim_event('e' || n, 'c2'), idempotency.complete_event('e' || n, 'c2')"
    "  FROM generate_series(1, 40) n",
    "SELECT idempotency.claim_event('p' || n), idempotency.complete_event('p' || n) FROM generate_series(1, 400) n",
    "SET idempotency.uncompleted_claims = keep",
    "SELECT idempotency.claim_event('k1')",
    "SELECT idempotency.forget_event('e2')",
    "RESET ALL",
    "SELECT idempotency.claims_maintain()",
    "SELECT idempotency.claim_event('e' || n), idempotency.complete_event('e' || n, result => '[1]')"
    "  FROM generate_series(5, 8) n",
    "SELECT idempotency.forget_event('e5')",
    "SELECT idempotency.claim_event('e5'), idempotency.complete_event('e5')",
    "SELECT idempotency.outbox_enqueue('t', 'a' || n, 'made', " + PAYLOAD + ", dedup_id => 'd' || n)"
    "  FROM generate_series(1, 3) n",
    "SELECT idempotency.outbox_enqueue_bytes('t', 'b', 'made', '\\x00ff', 'x/y', '{\"h\": \"1\"}')",
    "SELECT idempotency.lease_event('l' || n, c, '1 h') FROM generate_series(1, 3) n, unnest('{default,c1}'::text[]) c",
    "SELECT idempotency.extend_lease('l1', (SELECT token FROM idempotency.leases WHERE event_id = 'l1'"
    "  AND consumer = 'default'), duration => '2 h', recovery_point => 'half', state => '{}')",
    "SELECT idempotency.release_lease('l2', (SELECT token FROM idempotency.leases WHERE event_id = 'l2'"
    "  AND consumer = c), c, error => 'no') FROM unnest('{default,c1}'::text[]) c",
    "SELECT idempotency.claim_request('r' || n, 's', '\\x0102', lease => '1 h', request => '{\"q\": 1}')"
    "  FROM generate_series(1, 3) n",
    "SELECT idempotency.advance_request('r1', 's', (SELECT token FROM idempotency.requests WHERE key = 'r1'), 'p1')",
    "SELECT idempotency.complete_request('r2', 's', 200, '{\"h\": \"v\"}', 'body', token =>"
    "  (SELECT token FROM idempotency.requests WHERE key = 'r2'))",
    "SELECT idempotency.claim_offset('default', 't', n, 5) FROM generate_series(0, 2) n",
    "SELECT idempotency.register_producer('prod' || n) FROM generate_series(1, 2) n",
    "SELECT idempotency.claim_sequence(producer_id, epoch::int, n, 't', n) FROM idempotency.producers,"
    "  generate_series(0, 2) n WHERE producer = 'prod1'",
    "CREATE SERVER sink FOREIGN DATA WRAPPER idempotency_null",
    "CREATE FUNCTION handle(aggregate_id text) RETURNS void LANGUAGE plpgsql AS"
    "  $$BEGIN IF aggregate_id IN ('a2', 'b') THEN RAISE 'no'; END IF; END$$",
]
RELAYS = [
    "CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle')",
    "SELECT idempotency.relay_create('sunk', 'sink', aggregate_types => '{t,u}')",
    "SELECT idempotency.relay_create('called', 'fn', max_attempts => 1)",
]
EVENTS = [f"{kind}{n}" for kind in "elpk" for n in (1, 2, 3, 5)]
CONSUMERS = ["default", "c1", "c2"]
# Everything that reads; a call is (statement, arguments).
READ = """idempotency.claim_event(%(e)s, %(c)s)
idempotency.event_status(%(e)s, %(c)s)
idempotency.event_result(%(e)s, %(c)s)
idempotency.forget_event(%(e)s, %(c)s)
idempotency.claim_events(array[%(e)s, 'e1', 'new'], %(c)s)
idempotency.claims_import(%(c)s, array[%(e)s, 'e3'])
idempotency.lease_event(%(e)s, %(c)s)
idempotency.lease_events(array[%(e)s, 'l1', 'l2', 'new'], %(c)s)
idempotency.extend_lease(%(e)s, %(token)s, %(c)s)
idempotency.extend_lease(%(e)s, %(token)s, %(c)s, '1 h', 'point', '{}')
idempotency.assert_lease(%(e)s, %(token)s, %(c)s)
idempotency.release_lease(%(e)s, %(token)s, %(c)s)
idempotency.complete_event(%(e)s, %(c)s, token => %(token)s)
idempotency.consumer_redrive(%(c)s)
idempotency.consumer_redrive(%(c)s, array[%(e)s])
idempotency.consumer_redrive(%(c)s, scope => 's')
idempotency.consumer_discard(%(c)s)
idempotency_data.consumer_check_leases(%(c)s)
idempotency.consumer_alter(%(c)s, max_attempts => 3)
idempotency.consumer_drop(%(c)s)
idempotency.resume_offset(%(c)s, 't', %(n)s)
idempotency.claim_offset(%(c)s, 't', %(n)s, 5)
idempotency.claim_offset(%(c)s, 't', %(n)s, 5, generation => 3)
idempotency.reset_offset(%(c)s, 't', %(n)s, 7)
idempotency.register_producer('prod1')
idempotency.register_producer('prod2', true)
idempotency.register_producer('new')
idempotency.claim_sequence(%(producer)s, %(n)s, 3, 't')
idempotency.last_sequence(%(producer)s, 't')
idempotency.producer_drop('prod1')
idempotency.claim_request(%(key)s, 's', '\\x0102')
idempotency.claim_request(%(key)s, 's', '\\x0103', %(c)s, lease => '1 h')
idempotency.advance_request(%(key)s, 's', %(token)s, 'p2')
idempotency.complete_request(%(key)s, 's', 200, token => %(token)s)
idempotency.fail_request(%(key)s, 's', 'why', token => %(token)s)
idempotency.release_request(%(key)s, 's', token => %(token)s)
idempotency.outbox_enqueue('t', 'a1', 'made', '{}', dedup_id => 'd1')
idempotency.outbox_enqueue('t', 'a1', 'made', '{}', dedup_id => 'd2', dedup_window => '1 h')
idempotency.outbox_enqueue('u', 'a1', 'made', '{}')
idempotency.outbox_segments()
idempotency_data.outbox_generation()
idempotency_data.outbox_last_seq()
idempotency.outbox_mend_seq()
idempotency_data.relay_status()
idempotency_data.relay_lag()
idempotency.relay_alter(%(r)s, max_attempts => 3)
idempotency.relay_pause(%(r)s)
idempotency.relay_resume(%(r)s)
idempotency.relay_replay(%(r)s, now() - interval '1 h')
idempotency.relay_replay(%(r)s, event_id => %(event)s)
idempotency.relay_redrive(%(r)s)
idempotency.relay_discard(%(r)s)
idempotency.relay_adopt(%(r)s)
idempotency.relay_drop(%(r)s)
idempotency.relay_create('new', 'sink')
idempotency.sink_setup_sql('sink')""".split("\n")
# SQLSTATEs that are no finding are all but these; XX001 is judged by its text.
NEVER = re.compile("XX000|XX002|58|57P|53[12]|54|08|0A000")
NUMBERS = [0, 1, -1, 2, 3, 5, 127, 255, 32767, -32768, 65536, 2**31 - 1, -2**31, 2**32, 2**40, 2**62, 2**63 - 1, -2**63]
SNAPSHOTS = ["1:1:", "10:20:10,14,15", "3:9223372036854775807:", "1:9223372036854775807:5,6,7,9223372036854775806"]
TIMES = ["infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 00:00:00+00", "2000-01-01 00:00:00+00",
         "2099-01-01 00:00:00+00", "now"]
INTERVALS = ["0", "-1 s", "1 us", "178000000 years", "-178000000 years", "1 mon -30 days", "2562047788 h", "1 h"]
TEXTS = ["", "x", "@x", "@", "default", "c1", "c2", "e1", "e2", "l1", "r1", "s", "t", "prod1", "ä", "y" * 300, "ä" * 700,
         "z" * 20000, "22012", "XX", "sunk", "called"]
DOCUMENTS = ["null", "{}", "[]", '"s"', "1e400", '{"status": "x", "headers": [1], "body": 7}', '{"a":' * 40 + "1" + "}" * 40]
ARRAYS = ["{}", "{NULL}", "{t,NULL}", "{{t,u},{v,w}}", "[5:6]={t,u}", '{""}']
SMALL = {"smallint": 2**15, "integer": 2**31, "oid": 2**32}


class Rows:
    def __init__(self, server, rng):
        self.server, self.rng = server, rng
        self.conn = None
        self.trace = []
        self.rounds = self.refused = self.errors = 0

    # The server

    def connect(self, name):
        self.conn = psycopg2.connect(host=self.server.host, port=self.server.port, user="postgres", dbname=name)
        self.conn.autocommit = True
        self.ask("SET statement_timeout = '10 s'")
        self.ask("SET client_min_messages = error")
        self.ask("SET idempotency.max_wait = '1 s'")

    def ask(self, sql, args=None):
        with self.conn.cursor() as c:
            c.execute(sql, args)
            return c.fetchall() if c.description else []

    def fill(self, name):
        self.server.rows(f"CREATE DATABASE {name}")
        self.connect(name)
        self.ask("CREATE EXTENSION idempotency CASCADE")
        for sql in STATE:
            self.ask(sql)
        self.conn.close()

    def loosen(self, name):
        """Drop what keeps rows out, but for keys; what fires for rows of a dump goes in some rounds only."""
        self.connect(name)
        for sql, in self.ask(
                "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint"
                " WHERE contype IN ('c', 'n') AND connamespace = %s::regnamespace AND conparentid = 0"
                " UNION ALL SELECT format('ALTER TABLE %%s ALTER %%I DROP NOT NULL', attrelid::regclass, attname)"
                " FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid WHERE attnotnull AND attnum > 0"
                " AND relkind = 'r' AND attidentity = '' AND relnamespace = %s::regnamespace AND NOT EXISTS (SELECT FROM"
                " pg_index i WHERE i.indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))".replace(
                    "'ALTER TABLE %s DROP CONSTRAINT %I'", "'ALTER TABLE %%s DROP CONSTRAINT %%I'"), (TABLES, TABLES)):
            self.ask(sql)
        self.conn.close()

    # The rows

    def learn(self):
        """Tables with their columns, and rows that are there."""
        self.tables = {}
        for table, column, kind in self.ask(
                "SELECT attrelid::regclass::text, quote_ident(attname), format_type(atttypid, atttypmod)"
                " FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relkind = 'r' AND attnum > 0"
                " AND NOT attisdropped AND relnamespace = %s::regnamespace ORDER BY attrelid, attnum", (TABLES,)):
            self.tables.setdefault(table, []).append((column, kind))
        self.labels = dict(self.ask("SELECT enumtypid::regtype::text, array_agg(enumlabel::text)"
                                    " FROM pg_enum GROUP BY 1"))
        self.samples = {}
        for table, columns in self.tables.items():
            cells = ", ".join(f"{column}::text" for column, _ in columns)
            self.samples[table] = self.ask(f"SELECT {cells} FROM {table}")
        self.kinds = {}
        for table in self.tables:
            self.kinds.setdefault(re.sub(r"_\d+$", "", table), []).append(table)
        self.events = [row[0] for row in self.ask("SELECT event_id::text FROM idempotency.outbox_events")]
        self.tokens = [row[0] for row in self.ask("SELECT token FROM idempotency.leases")] + [1]
        self.producers = [row[0] for row in self.ask("SELECT producer_id FROM idempotency.producers")] + [1]

    def value(self, kind):
        rng = self.rng
        if kind in self.labels:
            return rng.choice(self.labels[kind])
        if kind in ("bigint", "xid8"):
            return str(rng.choice(NUMBERS) % (2**64 if kind == "xid8" else 2**65))
        if kind in SMALL:
            n = rng.choice(NUMBERS) % SMALL[kind]
            return str(n if kind == "oid" or rng.random() < .7 else -n - 1)
        if kind == '"char"':
            return rng.choice("scepmlwdfkonpxrt?") if rng.random() < .9 else ""
        if kind == "bytea":
            length = rng.choice([0, 1, 2, 15, 16, 32, 64, 100, 1000, 7900])
            return "\\x" + rng.randbytes(length).hex()
        if kind == "uuid":
            return rng.choice(["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"])
        choices = {"timestamp with time zone": TIMES, "interval": INTERVALS, "text": TEXTS, "jsonb": DOCUMENTS,
                   "text[]": ARRAYS, "pg_snapshot": SNAPSHOTS, "boolean": ["true", "false"]}
        return rng.choice(choices[kind])

    def damage(self, kind, old):
        """Bytes like those that are there."""
        data = bytearray.fromhex(old[2:])
        if not data:
            return old
        way = self.rng.randrange(4)
        if way == 0:
            return "\\x" + data[:self.rng.randrange(len(data))].hex()
        for _ in range(self.rng.choice([1, 1, 2, 8])):
            data[self.rng.randrange(min(len(data), self.rng.choice([16, 80, len(data)])))] = self.rng.choice([0, 1, 127, 128, 255])
        return "\\x" + data.hex()

    def row(self, family):
        """A table and a row for it."""
        table = self.rng.choice(self.kinds[family])
        columns = self.tables[table]
        there = [row for one in self.kinds[family] for row in self.samples[one]]
        if there and self.rng.random() < .9:
            row = list(self.rng.choice(there))
            for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
                i = self.rng.randrange(len(row))
                if columns[i][1] == "bytea" and row[i] and self.rng.random() < .8:
                    row[i] = self.damage(columns[i][1], row[i])
                else:
                    row[i] = None if self.rng.random() < .3 else self.value(columns[i][1])
            if family.endswith("_log"):     # it counts if it is newer
                row[0] = row[0] if row[0] is None or self.rng.random() < .3 else str(int(row[0]) % 2**61 + 1000)
        else:
            row = [None if self.rng.random() < .2 else self.value(kind) for _, kind in columns]
        return table, row

    def insert(self, table, row, keep_triggers):
        columns = self.tables[table]
        names = ", ".join(name for name, _ in columns)
        places = ", ".join(f"%s::{kind}" for _, kind in columns)
        if not keep_triggers:
            self.ask(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        try:
            self.ask(f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({places})", row)
        finally:
            if not keep_triggers and not self.conn.closed and self.conn.info.transaction_status != 3:
                self.ask(f"ALTER TABLE {table} ENABLE TRIGGER ALL")

    # What reads them

    def calls(self):
        args = {"e": self.rng.choice(EVENTS), "c": self.rng.choice(CONSUMERS), "n": self.rng.randrange(3),
                "token": self.rng.choice(self.tokens), "producer": self.rng.choice(self.producers),
                "key": self.rng.choice(["r1", "r2", "r3"]), "r": self.rng.choice(["sunk", "called"]),
                "event": self.rng.choice(self.events)}
        views = [(f"SELECT count(v::text) FROM {v} v", None) for v in self.views]
        functions = [(f"SELECT * FROM {f}", args) for f in READ]
        self.rng.shuffle(functions)
        return views + functions[:len(functions) // 2]

    def judge(self, sql, args, error):
        self.errors += 1
        text = str(error).strip()
        told = f"{sql} {args}: {error.pgcode} {text}"
        if error.pgcode is None or self.conn.closed:
            raise Finding(f"the server ended: {told}")
        if NEVER.match(error.pgcode) or error.pgcode == "57014":
            raise Finding(told)
        if error.pgcode == "XX001" and (f"{TABLES}." not in text or "HINT" not in text):
            raise Finding(f"names no table of the extension, or no way out: {told}")

    def attempt(self, sql, args):
        self.trace.append(f"{sql} {args}" if args else sql)
        try:
            with self.conn.cursor() as c:
                c.execute(sql, args)        # the driver cannot read all of these times
        except psycopg2.Error as error:
            self.judge(sql, args, error)
            return False
        return True

    def read_all(self, savepoints):
        for sql, args in self.calls():
            if savepoints:
                self.ask("SAVEPOINT s")
            if not self.attempt(sql, args) and savepoints:
                self.ask("ROLLBACK TO s")
            if savepoints:
                self.ask("ROLLBACK TO s")

    def bring(self, savepoints):
        """Some rows; how many got in."""
        family = self.rng.choice(sorted(self.kinds))
        got = 0
        for _ in range(self.rng.choice([1, 1, 2, 4])):
            table, row = self.row(family)
            shown = [cell if cell is None or len(cell) < 100 else cell[:100] + "..." for cell in row]
            keeps = self.rng.random() < .3
            self.trace.append(f"{table} {'' if keeps else '(triggers off) '}{dict(zip([n for n, _ in self.tables[table]], shown))}")
            if savepoints:
                self.ask("SAVEPOINT i")
            try:
                self.insert(table, row, keeps)
                got += 1
            except psycopg2.Error as error:
                self.refused += 1
                if error.pgcode != "54000":     # larger than a page: the server's own limit
                    self.judge("the row", None, error)
                if savepoints:
                    self.ask("ROLLBACK TO i")
        return got

    # Rounds

    def rolled_back(self, seed):
        self.rng.seed(seed)
        self.trace = []
        self.ask("BEGIN")
        if self.bring(True):
            self.read_all(True)
        self.ask("ROLLBACK")

    def committed(self, seed, template):
        """In a copy: the workers meet the rows, and the server goes on."""
        self.rng.seed(seed)
        self.trace = []
        name = "rows_copy"
        self.conn.close()       # it may be in the template
        copy_database(self.server, name, template)
        self.connect(name)
        for sql in RELAYS:
            try:
                self.ask(sql)
            except psycopg2.errors.SequenceGeneratorLimitExceeded:
                # A row of an earlier round led the sequence there; what the hint says mends it.
                self.ask("SELECT pg_catalog.setval('idempotency_data.relay_id_seq', COALESCE(pg_catalog.max(relay_id), 1))"
                         " FROM idempotency_data.relays")
                self.ask(sql)
        wait_until("relays that run", lambda: self.ask("SELECT count(*) FROM idempotency.stat_relay WHERE sent > 0")[0][0] == 2)
        self.learn()
        for _ in range(3):
            self.bring(False)
        self.attempt("SELECT idempotency.claims_maintain()", None)
        self.attempt("SELECT idempotency.relay_alter('sunk', batch_events => 50)", None)
        sent = self.ask("SELECT max(sent) FROM idempotency.stat_relay WHERE relay = 'sunk'")[0][0] or 0
        if self.attempt("SELECT idempotency.outbox_enqueue('u', 'after', 'made', '{}')", None):
            wait_until("a relay that went on or says why not", lambda: self.ask(
                "SELECT count(*) FROM idempotency.stat_relay WHERE relay = 'sunk' AND (sent > %s OR state <> 'streaming'"
                " OR last_error IS NOT NULL)", (sent,))[0][0] > 0)
        self.read_all(False)
        self.attempt("SELECT idempotency.claims_maintain()", None)
        self.conn.close()
        self.server.rows(f"DROP DATABASE {name} WITH (FORCE)")

    def find_views(self):
        self.views = [v for v, in self.ask(
            "SELECT c.oid::regclass::text FROM pg_class c WHERE relkind = 'v'"
            " AND relnamespace = 'idempotency'::regnamespace ORDER BY 1")]


def copy_database(server, name, template):
    """CREATE DATABASE waits for five seconds for others to leave, which is little on a slow machine."""
    there = []

    def done():
        try:
            server.rows(f"CREATE DATABASE {name} TEMPLATE {template}")
        except psycopg2.errors.ObjectInUse:
            there[:] = server.rows(f"SELECT pid, backend_type, state, query FROM pg_stat_activity WHERE datname = '{template}'")
            return False
        return True
    wait_until(lambda: f"a copy of {template}, where {there} are", done)


def run(server, rounds, seed):
    """True if every round ended well."""
    began = time.monotonic()
    rows = Rows(server, random.Random(seed))
    rows.fill("rows_sound")
    copy_database(server, "rows_loose", "rows_sound")
    rows.loosen("rows_loose")
    try:
        for n in range(rounds):
            if n % 100 == 99:
                at = "committed"
                for template in ("rows_loose",):
                    rows.committed(seed + n, template)
                continue
            if n % 100 == 0:
                if n:
                    rows.conn.close()
                rows.connect("rows_loose" if n % 400 < 300 else "rows_sound")
                rows.find_views()
                rows.learn()
            at = "rolled back"
            rows.rolled_back(seed + n)
    except (Finding, psycopg2.Error) as found:
        again = f"SEED={seed + n} TRANSACTIONS=1" if at == "rolled back" else f"SEED={seed} TRANSACTIONS={25 * (n + 1)}"
        print(f"NOT OK rows: {at}: {found}\n{again} ONLY=rows repeats it", flush=True)
        print("".join(f"    {line}\n" for line in rows.trace if line.startswith(TABLES)), flush=True)
        return False
    print(f"ok     rows: {rounds} rounds, {rows.refused} rows refused, {rows.errors} errors, first seed {seed}, "
          f"{time.monotonic() - began:.0f} s")
    return True
