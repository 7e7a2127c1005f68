#!/usr/bin/python3
"""Calls every SQL function of the extension with random and hostile arguments.

Functions and their types come from the catalog, so that a new one is called
without being listed here.  Calls stand alone or inside transactions, of all
isolation levels, under savepoints, with hostile settings and as a role without
rights.  Expected is a result or an error with a SQLSTATE of errors.md, never
an internal error, a lost connection, a lock that outlives its transaction, or
memory that the session keeps.
"""
import argparse
import random
import re
import sys
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions

import sql_values

# Of the settings and modes the fuzzer chooses itself, not of the functions:
# statement_timeout, lock_timeout, a transaction that failed before.
OWN = {'57014', '25P02'}
# Faults of the extension, though errors.md names them.
NEVER = re.compile('XX')
IN_ERROR = psycopg2.extensions.TRANSACTION_STATUS_INERROR
# What a session may grow by after that many steps, which fill its caches.
WARM_UP = 100
MEMORY_GROWTH = 16 * 1024 * 1024
SETTINGS = [
    "search_path = ''", "search_path = pg_temp, public",
    "session_replication_role = replica", "DateStyle = 'SQL, DMY'",
    "IntervalStyle = iso_8601", "bytea_output = escape", "work_mem = '64kB'",
    "row_security = off", "idempotency.max_claim_locks = 0",
    "idempotency.max_claim_locks = 3", "idempotency.uncompleted_claims = keep",
    "idempotency.durable_complete = off", "idempotency.max_payload_size = '1kB'",
    "statement_timeout = '1ms'", "lock_timeout = '1ms'", "transform_null_equals = on",
    "standard_conforming_strings = on", "enable_indexscan = off", "jit_above_cost = 0",
    "TimeZone = '-167:59'", "client_encoding = LATIN1", "ROLE fuzz_plain",
]
OPTIONS = ['host', 'port', 'dbname', 'function', 'table', 'claim', 'sslmode', 'program',
           'stats_interval', 'statement_timeout', 'position_table', 'nonsense', 'user']


class Finding(Exception):
    pass


def documented(path):
    """The SQLSTATEs of the tables in errors.md."""
    with open(path) as lines:
        cells = [line.split('|')[1] for line in lines if line.startswith('|')]
    states = set(re.findall(r'\b[0-9A-Z]{5}\b', ' '.join(cells)))
    if len(states) < 20:
        raise SystemExit('errors.md was not understood')
    return {s for s in states if not NEVER.match(s)}


class Fuzzer:
    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        self.allowed = documented(options.errors) | OWN
        self.conn = self.connect()
        self.seen = {}
        self.last = []
        self.query('CREATE EXTENSION idempotency CASCADE', own=True)
        self.query('CREATE ROLE fuzz_plain', own=True)
        self.schema = self.one("SELECT extnamespace::regnamespace::text FROM pg_extension"
                               " WHERE extname = 'idempotency'")
        self.labels = dict(self.rows("SELECT t.oid::regtype::text, array_agg(e.enumlabel::text)"
                                     " FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid GROUP BY 1"))
        self.wrappers = [name for name, in self.rows(
            "SELECT fdwname::text FROM pg_foreign_data_wrapper WHERE starts_with(fdwname, 'idempotency')")]
        # The procedure claims_backfill is left out: it runs a condition in SQL, which may
        # raise any error.
        self.functions = self.rows(
            "SELECT p.oid::regproc::text, p.oid::regprocedure::text,"
            " array(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t), p.pronargdefaults"
            " FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass"
            " JOIN pg_extension e ON e.oid = d.refobjid AND d.deptype = 'e'"
            " WHERE e.extname = 'idempotency' AND p.prorettype <> 'trigger'::regtype"
            " AND p.prokind = 'f' ORDER BY 2")
        self.views = [v for v, in self.rows(
            "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_depend d ON d.objid = c.oid"
            " JOIN pg_extension e ON e.oid = d.refobjid AND d.deptype = 'e'"
            " WHERE e.extname = 'idempotency' AND c.relkind = 'v' ORDER BY 1")]

    def connect(self):
        conn = psycopg2.connect(host=self.options.host, port=self.options.port,
                                user='postgres', dbname='postgres')
        conn.autocommit = True
        with conn.cursor() as c:
            c.execute("SET statement_timeout = '5s'; SET client_min_messages = error")
        return conn

    def rows(self, sql, args=()):
        with self.conn.cursor() as c:
            c.execute(sql, args)
            return c.fetchall() if c.description else []

    def one(self, sql, args=()):
        """A question of ours: its time limit is for what is tested."""
        while True:
            try:
                return self.rows(sql, args)[0][0]
            except psycopg2.errors.QueryCanceled:
                pass

    def remember(self, sql, args):
        short = tuple(a if a is None or len(a) < 80 else a[:60] + '...(%d)' % len(a) for a in args)
        self.last = self.last[-19:] + [(sql, short)]

    def query(self, sql, args=(), own=False):
        """Run it; True if it succeeded.  An error must be a documented one.

        The result arrives, but is not converted: under some DateStyle and
        TimeZone settings the driver cannot read a timestamp, which is no
        finding about us.
        """
        self.remember(sql, args)
        try:
            with self.conn.cursor() as c:
                c.execute(sql, args)
            return True
        except psycopg2.Error as e:
            state = e.pgcode
            if state is None or self.conn.closed:
                raise Finding('the connection was lost: %s' % e)
            if own or NEVER.match(state) or state not in self.allowed:
                raise Finding('SQLSTATE %s: %s' % (state, e))
            self.seen[state] = self.seen.get(state, 0) + 1
            return False
        except (UnicodeError, ValueError):
            return False        # the driver cannot send it in this encoding

    def castable(self, values, types):
        """Do the values reach the function at all?"""
        casts = ', '.join('%s::' + t for t in types)
        try:
            self.rows('SELECT 1 FROM (SELECT %s) x' % casts, values)
            return True
        except (psycopg2.Error, UnicodeError, ValueError):
            if self.conn.closed:
                raise Finding('the connection was lost by a cast')
            return False

    def call(self):
        name, _, types, defaults = self.rng.choice(self.functions)
        # the last ones are often of features that are not built: not always given
        types = types[:len(types) - self.rng.choice([0, defaults, self.rng.randrange(defaults + 1)])]
        values = [sql_values.make(self.rng, t, self.labels) for t in types]
        in_transaction = self.conn.info.transaction_status != 0
        if types and not in_transaction and not self.castable(values, types):
            return
        args = ', '.join('%s::' + t for t in types)
        form = self.rng.choice(['SELECT %s(%s)', 'SELECT * FROM %s(%s)',
                                'SELECT (SELECT %s(%s) LIMIT 1) FROM generate_series(1, 2)'])
        if in_transaction:
            if not self.query('SAVEPOINT fuzz'):
                return
            # a cast that fails is not the function's doing
            if types and not self.castable(values, types):
                self.query('ROLLBACK TO fuzz')
                return
        if not self.query(form % (name, args), values) and in_transaction:
            self.query('ROLLBACK TO fuzz')

    def server(self):
        name = 's%d' % self.rng.randrange(4)
        wanted = self.rng.sample(OPTIONS, self.rng.randrange(4))
        values = [sql_values.text(self.rng) or 'x' for _ in wanted]
        with self.conn.cursor() as c:
            try:
                options = ', '.join('%s %s' % (o, c.mogrify('%s', (v[:3000],)).decode('utf8', 'ignore'))
                                    for o, v in zip(wanted, values))
            except (UnicodeError, ValueError):
                return
        if options.find("E'") >= 0:
            return
        self.allowed_here(['42710', '42704', '42601', '57014'], 'CREATE SERVER %s FOREIGN DATA WRAPPER %s%s' % (
            name, self.rng.choice(self.wrappers), ' OPTIONS (%s)' % options if options else ''))
        if self.rng.random() < 0.3:
            self.allowed_here(['42704'], 'DROP SERVER %s' % name)

    def allowed_here(self, states, sql):
        before = self.allowed
        self.allowed = before | set(states)
        try:
            return self.query(sql.replace('%', '%%'))
        finally:
            self.allowed = before

    def transaction(self):
        mode = self.rng.choice(['READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE',
                                'READ COMMITTED, READ ONLY', 'SERIALIZABLE, READ ONLY, DEFERRABLE'])
        self.query('BEGIN ISOLATION LEVEL ' + mode, own=True)
        for _ in range(self.rng.randrange(3)):
            self.query('SET LOCAL ' + self.rng.choice(SETTINGS))
        for _ in range(self.rng.randrange(1, 6)):
            if self.conn.info.transaction_status == IN_ERROR:
                break
            self.call()
        self.query(self.rng.choice(['COMMIT', 'COMMIT', 'ROLLBACK']))
        if self.conn.info.transaction_status != 0:
            self.query('ROLLBACK', own=True)
        held = self.one("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
                        " AND locktype = 'advisory'")
        if held != 0:
            raise Finding('%d advisory locks outlived their transaction' % held)

    def memory(self):
        return self.one("SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts"
                        " WHERE name NOT IN ('CacheMemoryContext', 'MessageContext')"
                        " AND coalesce(parent, '') <> 'CacheMemoryContext'")

    def run(self):
        end = time.monotonic() + self.options.seconds
        steps = 0
        start = None
        while steps < 2 * WARM_UP or time.monotonic() < end:
            step = self.rng.random()
            if step < 0.5:
                self.call()
            elif step < 0.9:
                self.transaction()
            elif step < 0.95:
                self.server()
            else:
                self.query('SELECT * FROM ' + self.rng.choice(self.views))
            steps += 1
            if steps == WARM_UP:
                start = self.memory()
        grown = self.memory() - start
        print('%d steps over %d functions; session grew by %d bytes; errors: %s' % (
            steps, len(self.functions), grown,
            ', '.join('%s %d' % (k, v) for k, v in sorted(self.seen.items()))))
        if grown > MEMORY_GROWTH:
            raise Finding('the session keeps %d bytes' % grown)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--host', required=True)
    parser.add_argument('--port', required=True)
    parser.add_argument('--errors', required=True)
    parser.add_argument('--seconds', type=int, default=60)
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(2 ** 31))
    options = parser.parse_args()
    print('seed %d' % options.seed, flush=True)
    fuzzer = Fuzzer(options)
    try:
        fuzzer.run()
    except Finding as finding:
        for sql, args in fuzzer.last:
            print('    %s %r' % (sql, args))
        print('FOUND: %s' % finding)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
