"""A lane: a pair of servers, and the steps that run on them one after another."""
import signal
import threading
import time
import traceback
from contextlib import closing

import psycopg2

import cursorscene
import requestscene
import scenes
from armed import Armed
from ledger import File, Ledger
from server import Finding, Server, is_gone, wait_until

SETTINGS = """
listen_addresses = ''
shared_buffers = 16MB
max_connections = 40
max_worker_processes = 16
max_prepared_transactions = 10
autovacuum = off
log_line_prefix = '%m [%p] %b '
idempotency.sink_timeout = '3s'
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 0
idempotency.outbox_segment_size = '8kB'
idempotency.claim_segment_size = '8kB'
"""

SOURCE_SQL = """
CREATE EXTENSION idempotency CASCADE;
CREATE EXTENSION amcheck;
CREATE TABLE done (token bigint);
CREATE TABLE effects (serial bigserial, id text, result jsonb);
CREATE TABLE forgotten (id text);
CREATE TABLE passed (serial bigint DEFAULT nextval('effects_serial_seq'), clock bigint);
CREATE TABLE reads (stream text, first bigint, next bigint);
CREATE TABLE leases (serial bigserial, id text, consumer text, what text, token bigint, attempt int, point text);
SELECT idempotency.consumer_create('brief', retention => '1 hour');
SELECT idempotency.consumer_create('once', max_attempts => 1);
CREATE SEQUENCE tries;
CREATE TABLE received (serial bigserial, token bigint, i int);
CREATE FUNCTION receive(event_type text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF event_type IN ('Retry', 'Slow') AND nextval('public.tries') % 4 <> 0 THEN
        RAISE EXCEPTION 'told to refuse';
    END IF;
    INSERT INTO public.received (token, i) VALUES ((payload->>'t')::bigint, (payload->>'i')::int);
END $$;
"""

SINKS_SQL = """
CREATE SERVER s_fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.receive');
CREATE SERVER s_pg FOREIGN DATA WRAPPER idempotency_postgres
    OPTIONS (host '{sockets}', port '5432', dbname 'postgres', function 'public.receive');
CREATE USER MAPPING FOR postgres SERVER s_pg OPTIONS (user 'postgres');
CREATE SERVER s_null FOREIGN DATA WRAPPER idempotency_null;
CREATE SERVER s_rec FOREIGN DATA WRAPPER idempotency_program
    OPTIONS (program 'pytest', file '{files}/rec', retry_type 'Retry,Slow', retry_times '1', answer 'each',
    late_type 'Late', late_ms '3000');
CREATE SERVER s_pos FOREIGN DATA WRAPPER idempotency_program
    OPTIONS (program 'pytest', file '{files}/pos', retry_type 'Retry,Slow', retry_times '1', position 'on');
CREATE SERVER s_bis FOREIGN DATA WRAPPER idempotency_program
    OPTIONS (program 'pytest', file '{files}/bis', crash_type 'Killer');
"""

# What the packer still has to do, or cannot do.
UNPACKED = """
SELECT format('%s %s of slot %s is %s, held by %s', kind, number, slot, state, held_by)
FROM idempotency.stat_claim_segments
WHERE held_by IS NOT NULL OR state NOT IN ('current', 'empty', 'searched')
UNION ALL
SELECT format('slot %s has %s runs', slot, count(*))
FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY slot HAVING count(*) >= 16
"""

# Damage in the tables of the store: a row each, or an error.  Pages of a run that was not finished may
# have no index entry, so the entries of a slot's index are not compared with its rows.
HEAP_DAMAGE = """
SELECT format('%s: %s', c.oid::regclass, v)
FROM pg_class AS c, LATERAL verify_heapam(c.oid::regclass) AS v
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^store_(segment|slot)_[0-9]+$'
"""
INDEX_DAMAGE = """
SELECT bt_index_check(i.indexrelid, c.relname ~ 'segment')
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^store_(segment|slot)_[0-9]+$'
"""

RELAY = """SELECT idempotency.relay_create(%s, 's_' || %s, %s::text[], max_attempts => %s,
    min_backoff => '100 ms', max_backoff => '100 ms')"""

RELAYS = {"fn": ("t",), "pg": ("t", "big"), "null": ("t", "big"), "rec": ("t",), "pos": ("t",),
          "bis": ("kill",)}

# Sink programs pass the points of these kinds; processes of the server do not.
OUTSIDE = ("sink", "child")
HIT_SECONDS = 30
QUIET_SECONDS = 30


def copy_of(template, directory):
    """A server with points to arm; its data directory begins as a copy."""
    directory.mkdir(parents=True)
    server = Server(directory.name, directory, template.bindir, port=5432)
    server.sock.mkdir()
    server.copy_from(template.data)
    server.configure(f"unix_socket_directories = '{server.sock}'")
    server.points = Armed(server.data)
    return server


class Lane:
    def __init__(self, directory, template, verbose):
        self.verbose = verbose
        self.source = copy_of(template, directory / "source")
        self.target = copy_of(template, directory / "target")
        self.ledger = Ledger(self.source, self.target,
                             {r: File(self.source.work / r) for r in ("rec", "pos", "bis")})
        self.point = None
        self.stopping = False
        self.dead = []              # (server, process, is it a sink program) that the step killed

    def start(self):
        self.source.start()
        self.target.start()
        for server in (self.source, self.target):
            server.try_rows(SOURCE_SQL)
        self.source.try_rows(SINKS_SQL.format(sockets=self.target.sock, files=self.source.work))
        ((setup,),) = self.source.try_rows("SELECT idempotency.sink_setup_sql('s_pg')")
        self.target.try_rows(setup)
        for relay, types in RELAYS.items():
            self.source.try_rows(RELAY, (relay, relay, list(types), 1 if relay == "bis" else 1000000))
        self.wait_streaming(60)

    def stop(self):
        problems = []
        for server in (self.source, self.target):
            if server.process:
                problems += self.end(server)
            problems += server.deaths()
        return problems

    def end(self, server):
        try:
            server.stop()
        except Finding as e:
            server.kill()
            return [str(e)]
        status = server.process.returncode
        return [f"{server.name}: the server ended with status {status}"] if status else []

    def wait_streaming(self, seconds):
        """Wait until each relay is streaming; what they show is in the finding if one is not."""
        rows = {}

        def streaming():
            rows.clear()
            rows.update((relay, (state, error)) for relay, state, error in
                        self.source.try_rows("SELECT relay, state, last_error FROM idempotency.stat_relay"))
            return all(relay in rows and rows[relay][0] == "streaming" for relay in RELAYS)
        wait_until(lambda: f"the relays to stream: {rows}", streaming, seconds)

    # Functions for the scenes

    def hit(self):
        return self.source.points.is_hit(self.point)

    def soon(self, what, condition, seconds=3):
        """Wait until the condition holds, the point is reached or the time is over; the result is not judged."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopping and not self.hit():
            if condition():
                return True
            time.sleep(0.005)
        return False

    def settle(self, seconds):
        """Wait until this round's events have arrived at their sinks."""
        self.soon("events to arrive", lambda: not self.missing(), seconds)

    def missing(self):
        """The events that have not come, of the transactions that are known to have committed."""
        first = self.first
        for p in self.ledger.producers:
            if p.told == "committed":
                self.ledger.committed.add(p.token)
        return self.ledger.missing(first)

    def ledger_missing(self, relay):
        return self.missing().get(relay)

    def tolerate(self, session, sql):
        try:
            session.run(sql)
        except psycopg2.Error:
            pass

    def reset(self, setting):
        """What a scene set for all by ALTER SYSTEM."""
        self.source.try_rows(f"ALTER SYSTEM RESET {setting}")
        self.source.try_rows("SELECT pg_reload_conf()")

    def no_standby_after_hit(self):
        """Release the claim that waits, once the point was reached or will not be reached."""
        def watch():
            self.soon("the point", lambda: False, 3)
            self.reset("synchronous_standby_names")
        threading.Thread(target=watch, daemon=True).start()

    def killed(self, server, pid, program=False):
        if pid:
            self.dead.append((server, pid, program))

    # The parts of a step

    def play(self, scene):
        """Run rounds of the scene until the point was reached."""
        while not self.stopping:
            try:
                scene(self)
            except scenes.Stopped:
                return
            except (psycopg2.Error, Finding) as e:
                self.note(f"round failed: {e}")
            except Exception:
                self.note(traceback.format_exc())
                return
            if self.hit():
                return

    def note(self, text):
        if self.verbose:
            print(f"# {self.point}: {text}".rstrip(), flush=True)

    def step(self, point, kind, action):
        """The problems, as lines; no lines if everything is right."""
        self.point = point
        self.stopping = False
        self.dead = []
        self.first = self.ledger.begin_step()
        scene = scenes.scene_of(point)
        self.source.points.arm(point, action)
        thread = threading.Thread(target=self.play, args=(scene,), daemon=True)
        thread.start()
        problems = []
        try:
            wait_until("the point to be reached", self.hit, HIT_SECONDS)
            reached = True
        except Finding:
            reached = False
            problems.append(f"never reached by scene \"{scene.__name__}\"")
        try:
            if reached and action == "stall":
                self.contend()
                if scene in scenes.PACKING:
                    problems += self.contend_for_store()
                if scene is scenes.changing:
                    problems += self.contend_for_consumer()
                if scene is scenes.leasing and self.point not in scenes.LEASES_WAIT:
                    problems += self.contend_for_leases()
                if kind in OUTSIDE:
                    self.outlast(point)
            if reached and action == "kill":
                self.killed(self.source, self.source.points.hit_by(point), kind in OUTSIDE)
        except Finding as e:
            problems.append(str(e))
        self.stopping = True
        self.source.points.disarm(point)
        thread.join(60)
        if thread.is_alive():
            problems.append("a session hangs")
        return problems + self.judge(scene) + self.deaths()

    def outlast(self, point):
        """Wait until the worker has killed a program that hangs; the program is not released before."""
        pid = self.source.points.hit_by(point)
        wait_until(f"the worker to kill a program that hangs (process {pid})", lambda: pid and is_gone(pid))

    def deaths(self):
        """The processes that died, without those that the step itself killed."""
        problems = []
        for server, pid, _ in self.dead:
            try:
                wait_until(f"process {pid} to be gone", lambda p=pid: is_gone(p))
                # A server that answers has logged every process that it reaped before.
                server.wait_ready()
            except Finding as e:
                problems.append(str(e))
        for server in (self.source, self.target):
            server.signals = {signal.SIGKILL for of, _, program in self.dead if of is server and not program}
            problems += server.deaths()
        return problems

    def contend(self):
        """Let other sessions work while a process stalls at the point."""
        session, other = scenes.Session(self), scenes.Session(self)
        stalled = sorted(self.ledger.claims.ids)[-3:]
        try:
            scenes.produce(session, ["t", "t"])
            if stalled and self.point not in scenes.CLAIMS_WAIT:
                scenes.consume(other, stalled)
            scenes.produce(session, ["t"], sync=False)
        finally:
            session.close()
            other.close()

    def contend_for_store(self):
        """While a packer stalls, claims go on; while a claim stalls, the packer does."""
        stalled = self.source.points.hit_by(self.point)
        packers = self.source.pids("backend_type = 'idempotency packer'")
        with closing(scenes.Session(self)) as session:
            if stalled not in packers:
                for _ in range(3):
                    scenes.consume(session, [self.ledger.new_id("c")])
                    self.tolerate(session, "SET statement_timeout = '5s'")
                    self.tolerate(session, "SELECT idempotency.claims_maintain()")
                    self.tolerate(session, "RESET statement_timeout")
                return []
            # The packer has its lock on a slot for the moment in which it empties it: claims wait.
            waits = self.point in ("store-segment-cut", "store-expired-cut")
            told = [scenes.consume(session, [self.ledger.new_id("c") for _ in range(40)])["told"]
                    for _ in range(1 if waits else 5)]
        if not waits and told != ["committed"] * 5:
            return [f"while the packer stalls, claims end as {told}"]
        return []

    def contend_for_consumer(self):
        """While a change of the consumer's locks stalls, its events are claimed."""
        with closing(scenes.Session(self)) as session:
            told = scenes.consume(session, [self.ledger.new_id("c") for _ in range(3)])["told"]
        return [] if told == "committed" else [f"while a change of the locks stalls, claims end as {told}"]

    def contend_for_leases(self):
        """While a process stalls, other events are leased, extended and completed."""
        with closing(scenes.Session(self)) as session:
            name = self.ledger.new_id("l")
            token = scenes.lease(session, name)
            scenes.beat(session, name, token, point="beside")
            scenes.end_lease(session, name, token, "complete")
        expected = self.ledger.expected_leases().get((name, "leaser"), ["nothing"])
        if expected[0] != "complete":
            return [f"while a process stalls, a lease ends as {expected[0]}"]
        return []

    def judge_leases(self):
        with closing(scenes.Session(self)) as session:
            problems = self.ledger.judge_leases(session)
            if not scenes.shorten(self, session, QUIET_SECONDS):
                problems.append("the log of leases stays long")
        return problems + self.ledger.judge_tokens()

    def finish_prepared(self):
        for (gid,) in self.source.try_rows("SELECT gid FROM pg_prepared_xacts"):
            self.source.try_rows(f"COMMIT PREPARED '{gid}'")

    def last_try(self):
        """Claim every id of the step, until the verdict is duplicate."""
        session = scenes.Session(self)
        claims = self.ledger.claims
        try:
            for consumer, ids in (("worker", claims.ids), ("brief", claims.brief)):
                def all_done(consumer=consumer, ids=frozenset(ids)):
                    scenes.consume(session, sorted(ids), consumer=consumer)
                    return ids <= (claims.again if consumer == "brief" else claims.binding)
                claims.again.clear()
                wait_until("the claims", all_done)
        finally:
            session.close()

    def judge_store(self):
        """Wait until all is packed; then the store is not damaged, and has every event of this lane."""
        left = []

        def packed():
            self.source.try_rows("SELECT idempotency.claims_maintain()")
            left[:] = [row[0] for row in self.source.try_rows(UNPACKED)]
            return not left
        wait_until(lambda: f"all to be packed: {left}", packed, QUIET_SECONDS)
        return self.damage() + self.ledger.judge_memory()

    def damage(self):
        """What amcheck says of the store, as lines."""
        try:
            self.source.try_rows(INDEX_DAMAGE)
            return [row[0] for row in self.source.try_rows(HEAP_DAMAGE)]
        except psycopg2.Error as e:
            return [str(e)]

    def judge(self, scene):
        self.stopping = False
        problems = []
        try:
            self.source.wait_ready()
            self.target.wait_ready()
            self.finish_prepared()
            problems += self.ledger.resolve()
            problems += self.ledger.judge_claims(final=False)
            if self.ledger.claims.ids:
                self.last_try()
                problems += self.ledger.judge_claims(final=True)
            problems += requestscene.judge(self)
            problems += cursorscene.judge(self)
            if scene in scenes.PACKING:
                problems += self.judge_store()
            if scene is scenes.leasing:
                problems += self.judge_leases()

            # One more round of events, which shows that everything runs again.
            session = scenes.Session(self)
            scenes.produce(session, ["t", "kill", "big"])
            session.close()
            problems += self.ledger.resolve()
            wait_until("all events to arrive", lambda: not self.ledger.missing(self.first), QUIET_SECONDS)
            self.wait_streaming(QUIET_SECONDS)
        except Finding as e:
            problems.append(str(e))
        return problems + self.ledger.judge_events(self.first)
