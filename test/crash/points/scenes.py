"""The workloads that pass the fault points.

A scene is one round of work, which is repeated until the armed point was reached.  Any
statement of a scene may fail or never be answered: its results are judged afterwards.
"""
import json
import os
import signal
import time
import uuid
from contextlib import closing, contextmanager

import psycopg2

import cursorscene
import requestscene
from server import wait_until

ENQUEUE = ("SELECT idempotency.outbox_enqueue(%s, %s, %s,"
           " jsonb_build_object('t', %s::bigint, 'i', %s::int) || %s::jsonb)")


class Stopped(Exception):
    """Raised when the armed point was reached, or the step is over: the scene ends."""


class Session:
    """A connection that is made again when it is lost."""

    def __init__(self, lane):
        self.lane = lane
        self.conn = None
        self.first = []             # to be run before the next statement

    def run(self, sql, *args):
        if self.conn is None or self.conn.closed:
            self.conn = wait_until("the server to answer", self.lane.source.try_connect, 60)
            self.first.insert(0, "SET lock_timeout = '5s'")
        while self.first:
            with self.conn.cursor() as cur:
                cur.execute(self.first.pop(0))
        with self.conn.cursor() as cur:
            cur.execute(sql, args or None)
            return cur.fetchall() if cur.description else []

    def close(self):
        if self.conn is not None:
            self.conn.close()
        self.conn = None

    @contextmanager
    def transaction(self, end="COMMIT", settings=(), hold=False):
        """One transaction, from BEGIN to its end; yields a dict whose "told" gets the client's knowledge.
        hold: a prepared transaction stays prepared."""
        known = {"told": "unknown"}
        if self.lane.stopping:
            raise Stopped
        self.first = ["BEGIN"] + [f"SET LOCAL {setting}" for setting in settings]
        try:
            yield known
            if end.startswith("PREPARE"):
                self.run(end)
                if hold:
                    return
                self.run("COMMIT PREPARED" + end[len("PREPARE TRANSACTION"):])
            else:
                self.run(end)
            known["told"] = "aborted" if end == "ROLLBACK" else "committed"
        except psycopg2.Error:
            self.first = []
            try:
                if self.conn is not None and not self.conn.closed:
                    self.run("ROLLBACK")
            except psycopg2.Error:
                self.close()


def produce(session, kinds, sync=True, end="COMMIT", key=None, event_type="E", extra=None, many=False,
            explicit_id=False, dedup_id=None, settings=(), hold=False):
    """One transaction of events, with a savepoint that is rolled back.  With a dedup id only the first
    event that has it is enqueued."""
    lane = session.lane
    producer = lane.ledger.producer(session, sync)
    settings = list(settings) + ([] if sync else ["synchronous_commit = off"])
    if end == "PREPARE":
        end = f"PREPARE TRANSACTION 'p{producer.token}'"
    with session.transaction(end, settings, hold) as known:
        session.run("INSERT INTO done VALUES (%s)", producer.token)
        n = 0
        key = key or f"k{producer.token % 5}"
        for kind in kinds:
            args = (kind, key, event_type if n == 0 else "E", producer.token, n, json.dumps(extra or {}))
            if dedup_id:
                event_id = str(uuid.uuid4())
                ((returned,),) = session.run(ENQUEUE[:-1] + ", event_id => %s::uuid, dedup_id => %s)::text",
                                             *args, event_id, dedup_id)
                if returned != event_id:
                    n += 1
                    continue
            elif explicit_id:
                session.run(ENQUEUE[:-1] + ", event_id => gen_random_uuid())", *args)
            else:
                session.run(ENQUEUE, *args)
            if not (event_type == "Killer" and n == 0):
                producer.events.append((kind, n, key))
            n += 1
        if many:
            session.run("SELECT count(*) FROM idempotency.outbox_enqueue_many('t',"
                        " ARRAY['m1', 'm2', 'm3'], ARRAY['E', 'E', 'E'],"
                        " ARRAY[jsonb_build_object('t', %s, 'i', %s), jsonb_build_object('t', %s, 'i', %s),"
                        " jsonb_build_object('t', %s, 'i', %s)])",
                        producer.token, n, producer.token, n + 1, producer.token, n + 2)
            producer.events += [("t", n, "m1"), ("t", n + 1, "m2"), ("t", n + 2, "m3")]
        session.run("SAVEPOINT s")
        session.run(ENQUEUE, "t", "undone", "E", producer.token, 99, "{}")
        session.run("ROLLBACK TO s")
    producer.told = known["told"]
    return producer


def consume(session, ids, how="complete", end="COMMIT", settings=(), durable=True, hold=False, consumer="worker"):
    """Claim the ids, write the effects of the ids that were claimed, complete them."""
    claims = session.lane.ledger.claims
    (claims.brief if consumer == "brief" else claims.ids).update(ids)
    duplicates = []
    claimed = []
    if end == "PREPARE":
        end = f"PREPARE TRANSACTION 'c{ids[0]}-{session.lane.ledger.new_id('g')}'"
    with session.transaction(end, settings, hold) as known:
        for name, result in session.run(
                "SELECT event_id, result::text FROM idempotency.claim_events(%s, %s)", ids, consumer):
            if result == "claimed":
                claimed.append(name)
            elif result == "duplicate":
                duplicates.append(name)
        if claimed and how in ("complete", "result"):
            for name in claimed:
                result = json.dumps({"of": name}) if how == "result" else None
                session.run("INSERT INTO effects (id, result) VALUES (%s, %s)", name, result)
                session.run("SELECT idempotency.complete_event(%s, %s, result => %s)", name, consumer, result)
        elif claimed and how == "release":
            for name in claimed:
                session.run("SELECT idempotency.release_event(%s, 'worker')", name)
        elif claimed and how == "savepoint":
            session.run("SAVEPOINT a")
            session.run("SELECT idempotency.release_event(%s, 'worker')", claimed[0])
            session.run("ROLLBACK TO a")
            session.run("INSERT INTO effects (id) SELECT unnest(%s)", claimed)
            session.run("SELECT idempotency.complete_events(%s, 'worker')", claimed)
    # A client that was told "duplicate" acknowledges, however its own transaction ends.
    claims.binding.update(duplicates)
    claims.again.update(duplicates)
    if known["told"] == "committed" and durable and how not in ("release", "keep"):
        claims.binding.update(claimed)
    return known


def forget(session, name):
    """Make the server forget a completed id, so that its next claim makes a second effect."""
    claims = session.lane.ledger.claims
    claims.ids.add(name)
    claims.binding.discard(name)
    with session.transaction():
        ((forgotten,),) = session.run("SELECT idempotency.forget_event(%s, 'worker')", name)
        if forgotten:
            session.run("INSERT INTO forgotten VALUES (%s)", name)


def producers(session):
    produce(session, ["t", "t"])
    produce(session, ["t"], many=True)
    produce(session, ["t"], sync=False)
    produce(session, ["t"], end="ROLLBACK")
    produce(session, ["t"], end="PREPARE")
    produce(session, ["t"], explicit_id=True)


def consumers(session, other):
    ledger = session.lane.ledger
    name = ledger.new_id("c")
    consume(session, [name])
    consume(other, [name])
    consume(session, [ledger.new_id("c")], how="result")
    consume(session, [ledger.new_id("c") for _ in range(6)], how="result",
            settings=["idempotency.max_claim_locks = 2"])
    consume(session, [ledger.new_id("c")], how="savepoint")
    name = ledger.new_id("c")
    consume(session, [name], end="ROLLBACK")
    consume(session, [name], how="release")
    consume(session, [name], how="keep", settings=["idempotency.uncompleted_claims = keep"])
    consume(other, [name])
    consume(session, [ledger.new_id("c")], end="PREPARE")
    name = ledger.new_id("c")
    consume(session, [name], settings=["synchronous_commit = off", "idempotency.durable_complete = off"],
            durable=False)
    consume(other, [name])


def base(lane):
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        producers(session)
        consumers(session, other)
        lane.settle(2)


def packing(lane):
    """Each turn fills a segment, has it packed, and the segment of the turn before emptied.  After 16
    turns runs are merged, and their slot is emptied in the next turn.  Ids that are packed already
    are forgotten and claimed again; a claim that was kept is completed when it is packed.  For two
    turns a prepared transaction holds its segment open, and keeps others from being emptied."""
    ledger = lane.ledger
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        names, kept = [], []
        for i in range(24):
            names.append([ledger.new_id("c") for _ in range(3)])
            consume(session, names[i], how="result" if i % 2 else "complete")
            kept.append(ledger.new_id("c"))
            consume(session, [kept[i]], how="keep", settings=["idempotency.uncompleted_claims = keep"])
            if i >= 2:
                consume(other, [kept[i - 2]], how="result")
                forget(other, names[i - 2][0])
                consume(session, names[i - 2])
                consume(session, [ledger.new_id("c")], end="ROLLBACK")
            if i == 2:
                consume(other, [ledger.new_id("c")], end="PREPARE", hold=True)
            if i == 4:
                lane.finish_prepared()
            session.run("SELECT idempotency.claims_maintain()")
            if lane.stopping or lane.hit():
                return


def keys(lane):
    """An id is tried and rolled back until its places are tidied.  The keys of the segments are lost, and made anew."""
    ledger = lane.ledger
    with closing(Session(lane)) as session:
        for _ in range(20):
            consume(session, [ledger.new_id("c") for _ in range(3)])
            tried = ledger.new_id("c")
            for _ in range(7):
                consume(session, [tried], end="ROLLBACK")
            consume(session, [tried], how="result")
            session.run("SET allow_system_table_mods = on")
            for number in range(8):
                session.run(f"ALTER SEQUENCE idempotency_data.store_keys_{number} RESTART")
            session.run("RESET allow_system_table_mods")
            if lane.stopping or lane.hit():
                return


def pass_time(session, seconds):
    """The store's time is set forward, as pg_upgrade sets it.  What the packer notes just then may undo it.
    The clock of the note is set back, so that the packer has something to note."""
    session.run("INSERT INTO passed (clock) VALUES (%s)", seconds)
    session.run("SELECT setval('idempotency_data.store_clock', last_value + (%s::bigint << 32) - 60)"
                " FROM idempotency_data.store_clock", seconds)


def expiring(lane):
    """Segments with ids of two classes are packed.  A slice ends, whose runs of two levels are merged into
    one slot; an hour passes, and the slot is emptied.  Ids that have expired are claimed again."""
    ledger = lane.ledger
    with closing(Session(lane)) as session:
        names = []
        for i in range(20):
            names.append(ledger.new_id("b"))
            consume(session, [names[i]], consumer="brief")
            consume(session, [ledger.new_id("c")], how="result")
            consume(session, names[-3:], consumer="brief")
            if i == 18:
                # runs of the next slice; a new note of the time
                pass_time(session, 601)
            session.run("SELECT idempotency.claims_maintain()")
            if lane.stopping or lane.hit():
                return
        for _ in range(2):
            pass_time(session, 4300)
            for _ in range(3):
                session.run("SELECT idempotency.claims_maintain()")
                if lane.stopping or lane.hit():
                    return
            consume(session, names[:10], consumer="brief")
            consume(session, names[:10], consumer="brief")


def lease(session, name, consumer="leaser", duration="1 day", end="COMMIT", hold=False):
    """Lease an event; the token that was given out, or None."""
    leases = session.lane.ledger.leases
    leases.ids.add((name, consumer))
    token = None
    if end == "PREPARE":
        end = f"PREPARE TRANSACTION 'l{name}-{session.lane.ledger.new_id('g')}'"
    with session.transaction(end, hold=hold):
        ((result, token, attempt),) = session.run(
            "SELECT result::text, token, attempt FROM idempotency.lease_event(%s, %s, duration => %s)",
            name, consumer, duration)
        if result == "claimed":
            leases.given.append((name, token))
            note(session, name, consumer, "lease", token, attempt)
        if result == "dead":
            note(session, name, consumer, "dead", None, attempt)
    return token


def note(session, name, consumer, what, token=None, attempt=None, point=None):
    """The transaction writes down what it does to the lease, and commits both or neither."""
    session.run("INSERT INTO leases (id, consumer, what, token, attempt, point) VALUES (%s, %s, %s, %s, %s, %s)",
                name, consumer, what, token, attempt, point)


def beat(session, name, token, n=300, point=None, consumer="leaser"):
    """Extend a lease n times in a transaction; with a recovery point, once more."""
    if token is None:
        return
    with session.transaction():
        session.run("SELECT count(idempotency.extend_lease(%s, %s, %s, duration => '1 day'))"
                    " FROM generate_series(1, %s)", name, token, consumer, n)
        if point:
            session.run("SELECT idempotency.extend_lease(%s, %s, %s, duration => '1 day', recovery_point => %s)",
                        name, token, consumer, point)
            note(session, name, consumer, "extend", token, point=point)


def end_lease(session, name, token, how, consumer="leaser"):
    """Complete the event with its effect, or release the lease after a failure."""
    if token is None:
        return
    with session.transaction():
        if how == "complete":
            session.run("SELECT idempotency.complete_event(%s, %s, token => %s)", name, consumer, token)
            session.run("INSERT INTO effects (id) VALUES (%s)", name)
        else:
            session.run("SELECT idempotency.release_lease(%s, %s, %s, error => 'x', retry_after => '0')",
                        name, token, consumer)
        note(session, name, consumer, how)


def leasing(lane):
    """Events are leased, extended, released, parked, redriven and completed; heartbeats make the log long,
    and its tables take turns.  For some turns a prepared transaction keeps the former table.  Tokens have to
    be found safe again, as after a restore."""
    ledger = lane.ledger
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        for i in range(8):
            name = ledger.new_id("l")
            token = lease(session, name)
            beat(session, name, token, point=f"half {i}")
            if i % 4 == 0:
                end_lease(session, name, token, "complete")
            elif i % 4 == 1:
                end_lease(session, name, token, "release")
                beat(other, name, lease(other, name), point="more")
            elif i % 4 == 2:
                lease(other, ledger.new_id("l"), end="ROLLBACK")
                lease(other, ledger.new_id("l"), end="PREPARE", hold=i == 2)
            else:
                name = ledger.new_id("l")
                lease(session, name, consumer="once", duration="1 microsecond")
                lease(other, name, consumer="once")
                with session.transaction():
                    ((n,),) = session.run("SELECT idempotency.consumer_redrive('once', %s)", [name])
                    if n:
                        note(session, name, "once", "redriven", attempt=0)
                session.run("SELECT setval('idempotency_data.lease_number', last_value) FROM idempotency_data.lease_number")
            if i == 6:
                lane.finish_prepared()
            shorten(lane, session, 0.3)
            if lane.stopping or lane.hit():
                return


LENGTH_OF_LOG = """SELECT sum(pg_relation_size(c.oid)) / 8192 FROM pg_class AS c
    WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^lease_log_[0-9]$'"""


def shorten(lane, session, seconds):
    """Write to the log, which starts the process that shortens it, until the log is short."""
    name = lane.ledger.new_id("l")
    token = lease(session, name)

    def is_short():
        beat(session, name, token, 50)
        lane.soon("the process", lambda: False, 0.1)
        ((blocks,),) = session.run(LENGTH_OF_LOG)
        return blocks <= 6
    short = lane.soon("a short log", is_short, seconds)
    end_lease(session, name, token, "complete")
    return short


def importing(lane):
    """Ids are remembered whose effect is made by the same transaction, and claimed afterwards.  If one of
    them was claimed by others before, the transaction is rolled back."""
    ledger = lane.ledger
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        for end in ("COMMIT", "ROLLBACK", "COMMIT"):
            names = [ledger.new_id("i") for _ in range(300)]
            ledger.claims.ids.update(names)
            with session.transaction(end) as known:
                session.run("INSERT INTO effects (id) SELECT unnest(%s)", names)
                ((imported,),) = session.run("SELECT idempotency.claims_import('worker', %s)", names)
                if imported < len(names):
                    session.run("ROLLBACK")
                    raise psycopg2.IntegrityError("claimed meanwhile")
            if known["told"] == "committed":
                ledger.claims.binding.update(names)
            consume(other, names)
            session.run("SELECT idempotency.claims_maintain()")
            if lane.stopping or lane.hit():
                return


def repeats(lane):
    """Events with a dedup id that is free, used by this transaction, by another one that commits, rolls
    back, or is prepared and waited for."""
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        name = lane.ledger.new_id("d")
        produce(session, ["t"], dedup_id=name, end="ROLLBACK")
        produce(session, ["t", "t"], dedup_id=name, sync=False)
        produce(other, ["t"], dedup_id=name)
        name = lane.ledger.new_id("d")
        produce(session, ["t"], dedup_id=name, end="PREPARE", hold=True)
        produce(other, ["t"], dedup_id=name, settings=["lock_timeout = '100ms'"])
        lane.finish_prepared()
        produce(other, ["t"], dedup_id=name)
        lane.settle(2)


def big(lane):
    with closing(Session(lane)) as session:
        produce(session, ["big"], extra={"x": "y" * 700000})
        lane.settle(2)


def retry(lane):
    with closing(Session(lane)) as session:
        produce(session, ["t", "t", "t"], event_type="Retry")
        lane.settle(2)


def waiting(lane, n=1):
    """Events that come while an earlier one of their key is parked."""
    key = lane.ledger.new_id("key")
    with closing(Session(lane)) as session:
        produce(session, ["t"], event_type="Slow", key=key)
        lane.soon("an event to be parked", lambda: session.run(
            "SELECT 1 FROM idempotency_data.relay_parked WHERE aggregate_id = %s", key))
        produce(session, ["t"] * n, key=key)
        lane.settle(2)


def blocked(lane):
    """Behind a hundred copies, events of the key wait in the outbox."""
    waiting(lane, 110)


def late(lane):
    """An event that has its answer late, while later ones are accepted."""
    key = lane.ledger.new_id("key")
    with closing(Session(lane)) as session:
        def parked():
            time.sleep(0.1)     # ten a second
            produce(session, ["t"])
            return session.run("SELECT 1 FROM idempotency_data.relay_parked WHERE state = 'in_flight'")

        produce(session, ["t"], event_type="Late", key=key)
        lane.soon("an event to be late", parked, 5)
        produce(session, ["t"], key=key)
        lane.soon("its answer", lambda: not session.run(
            "SELECT 1 FROM idempotency_data.relay_parked WHERE aggregate_id = %s", key))
        lane.settle(2)


def killer(lane):
    """An event that kills its sink program, among other events."""
    key = lane.ledger.new_id("key")
    with closing(Session(lane)) as session:
        produce(session, ["kill", "kill", "kill"], event_type="Killer", key=key)
        lane.soon("the others to arrive", lambda: not lane.ledger_missing("bis"), 5)


def restart_workers(lane):
    with closing(Session(lane)) as session:
        produce(session, ["t"])
        session.run("SELECT pg_terminate_backend(pid) FROM idempotency.stat_relay WHERE relay IN ('fn', 'rec')")
        produce(session, ["t"])
        lane.settle(2)


def restart_sinks(lane):
    with closing(Session(lane)) as session:
        produce(session, ["t"])
        for (pid,) in session.run("SELECT sink_pid FROM idempotency.stat_relay WHERE sink_pid > 0"
                                  " AND relay IN ('pg', 'null', 'pos')"):
            if lane.hit():
                break               # it may be the one that stands there
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        produce(session, ["t"])
        lane.settle(2)


def confirm(lane):
    """The first commit of a relay at a sink that stores positions."""
    session = Session(lane)
    name = lane.ledger.new_id("new").replace("-", "_")
    try:
        for sql in (f"CREATE SERVER {name} FOREIGN DATA WRAPPER idempotency_program"
                    f" OPTIONS (program 'pytest', file '{lane.source.work / name}', position 'on')",
                    f"SELECT idempotency.relay_create('{name}', '{name}', ARRAY['{name}'])",
                    f"SELECT idempotency.outbox_enqueue('{name}', 'k', 'E', '1')"):
            if lane.stopping:
                raise Stopped
            lane.tolerate(session, sql)
        lane.soon("its first commit", lambda: lane.hit(), 10)
    except psycopg2.Error:
        pass
    finally:
        lane.tolerate(session, f"DROP SERVER IF EXISTS {name} CASCADE")
        session.close()


def ddl(lane):
    """A sink is created and renamed, its relay gets an owner, both are dropped; commands that need the workers away."""
    name = lane.ledger.new_id("ddl").replace("-", "_")
    other = name + "_renamed"
    with closing(Session(lane)) as session:
        for sql in (f"CREATE SERVER {name} FOREIGN DATA WRAPPER idempotency_null",
                    f"SELECT idempotency.relay_create('{name}', '{name}', ARRAY['none'])",
                    f"SELECT idempotency.relay_create('{name}_2', '{name}', ARRAY['none'])",
                    f"ALTER SERVER {name} RENAME TO {other}",
                    f"""DO $$ BEGIN EXECUTE (SELECT 'ALTER FOREIGN TABLE idempotency_data.relay_' || relay_id
                        || ' OWNER TO CURRENT_USER' FROM idempotency_data.relays WHERE relay = '{name}'); END $$""",
                    f"SELECT idempotency.relay_drop('{name}_2')",
                    f"DROP SERVER {other} CASCADE",
                    "ALTER DATABASE template1 SET TABLESPACE pg_default"):
            if lane.stopping:
                raise Stopped
            lane.tolerate(session, sql)
        with session.transaction(f"PREPARE TRANSACTION '{name}'"):
            session.run("GRANT USAGE ON FOREIGN SERVER s_null TO PUBLIC")


def drop_stopped(lane):
    """A relay is dropped while its program does not react."""
    session = Session(lane)
    name = lane.ledger.new_id("run").replace("-", "_")
    try:
        lane.tolerate(session, f"CREATE SERVER {name} FOREIGN DATA WRAPPER idempotency_null")
        lane.tolerate(session, f"SELECT idempotency.relay_create('{name}', '{name}', ARRAY['none'])")
        lane.soon("its program", lambda: session.run(
            "SELECT 1 FROM idempotency.stat_relay WHERE relay = %s AND state = 'streaming'", name))
        for (pid,) in session.run("SELECT sink_pid FROM idempotency.stat_relay WHERE relay = %s", name):
            os.kill(pid, signal.SIGSTOP)
        lane.tolerate(session, f"DROP SERVER {name} CASCADE")
        lane.soon("it to be killed", lambda: lane.hit(), 10)
    except (psycopg2.Error, ProcessLookupError):
        pass
    finally:
        session.close()


def tick(lane):
    """So many numbers are given out that the log is cut."""
    with closing(Session(lane)) as session:
        session.run("SELECT setval('idempotency_data.outbox_seq', last_value + 150000) FROM idempotency_data.outbox_seq")
        session.run("SELECT idempotency.outbox_mend_seq()")
        produce(session, ["t"])
        lane.settle(2)


def standby(lane):
    """A duplicate whose completion no standby has confirmed."""
    session, other = Session(lane), Session(lane)
    name = lane.ledger.new_id("c")
    try:
        consume(session, [name], settings=["idempotency.durable_complete = off"])
        session.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        session.run("SELECT pg_reload_conf()")
        lane.soon("the setting", lambda: session.run(
            "SELECT 1 FROM pg_settings WHERE name = 'synchronous_standby_names' AND setting = 'nobody'"))
        lane.no_standby_after_hit()
        consume(other, [name], settings=["synchronous_commit = local"])
    except psycopg2.Error:
        pass
    finally:
        lane.reset("synchronous_standby_names")
        session.close()
        other.close()


def witness(lane):
    """For a while a publish witness is asked whether the server may publish."""
    session = Session(lane)
    try:
        session.run("ALTER SYSTEM SET idempotency.publish_witness = '/bin/true'")
        session.run("SELECT pg_reload_conf()")
        produce(session, ["t"])
        lane.soon("the question", lane.hit, 10)
    except psycopg2.Error:
        pass
    finally:
        lane.reset("idempotency.publish_witness")
        session.close()


def turns(lane):
    """Programs take turns: one that has more to send gives way to those that wait."""
    session = Session(lane)
    target = lane.target.connect(autocommit=False)
    try:
        session.run("ALTER SYSTEM SET idempotency.max_sink_programs = 1")
        session.run("SELECT pg_reload_conf()")
        with target.cursor() as cur:
            cur.execute("LOCK TABLE received IN SHARE MODE")
            # All programs end with their worker, and start again for the event.
            session.run("SELECT pg_terminate_backend(pid) FROM idempotency.stat_relay WHERE relay = 'pg'")
            produce(session, ["t"])
            lane.soon("a sink to wait for the lock", lambda: lane.target.rows(
                "SELECT 1 FROM pg_locks WHERE relation = 'received'::regclass AND NOT granted"))
        lane.soon("its slice to end", lambda: False, 1.3)
        produce(session, ["t"])
        target.rollback()
        lane.soon("its program to be given up", lambda: False)
    except psycopg2.Error:
        pass
    finally:
        lane.reset("idempotency.max_sink_programs")
        target.close()
        session.close()


def rest(lane):
    """A function relay without events gives its worker back, and gets one for the next event."""
    session = Session(lane)
    try:
        session.run("ALTER SYSTEM SET idempotency.sink_idle_timeout = '50ms'")
        session.run("SELECT pg_reload_conf()")
        produce(session, ["t"])
        lane.settle(2)
        lane.soon("the relay to rest", lambda: session.run(
            "SELECT 1 FROM idempotency.stat_relay WHERE relay = 'fn' AND state = 'idle'"))
        produce(session, ["t"])
        lane.settle(2)
    except psycopg2.Error:
        pass
    finally:
        lane.reset("idempotency.sink_idle_timeout")
        session.close()


def lost(lane):
    """The target dies in the commit of a batch, and the sink has to find out whether the batch committed."""
    session = Session(lane)
    try:
        lane.target.points.arm("claim-commit", "kill")
        produce(session, ["t"])
        lane.settle(5)
    finally:
        lane.killed(lane.target, lane.target.points.hit_by("claim-commit"))
        lane.target.points.disarm("claim-commit")
        session.close()


def crash(lane):
    """The server goes down while the function relay has events in progress."""
    session = Session(lane)
    try:
        ((pid,),) = session.run("SELECT pid FROM idempotency.stat_relay WHERE relay = 'fn' AND pid > 0")
        for _ in range(3):
            produce(session, ["t", "t", "t", "t"])
        os.kill(pid, signal.SIGKILL)
        lane.killed(lane.source, pid)
        lane.settle(5)
    except (psycopg2.Error, ProcessLookupError, ValueError):
        pass
    finally:
        session.close()


def requests(lane):
    """Requests, in one transaction and with a lease, that end in each way."""
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        try:
            requestscene.work(session, other)
        except psycopg2.Error:
            pass


def changing(lane):
    """The locks of the consumer change, and some changes are rolled back or prepared.  Beside each change
    events are claimed, and claimed again after it."""
    ledger = lane.ledger
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        lane.tolerate(session, "SELECT idempotency.consumer_create('worker')")
        for end in ("COMMIT", "ROLLBACK", "PREPARE", "COMMIT"):
            names = [ledger.new_id("c") for _ in range(3)]
            consume(other, names[:1])
            if end == "PREPARE":
                end = f"PREPARE TRANSACTION '{ledger.new_id('g')}'"
            with session.transaction(end):
                session.run("SELECT idempotency.consumer_alter('worker', private_locks => NOT private_locks)"
                            " FROM idempotency.claim_consumers WHERE consumer = 'worker'")
                consume(other, names[:2])
            consume(session, names)
            consume(other, names)
            if lane.stopping or lane.hit():
                return


def cursors(lane):
    """Partitions are read and written; some claims are rolled back, prepared and repeated."""
    with closing(Session(lane)) as session, closing(Session(lane)) as other:
        for _ in range(3):
            try:
                cursorscene.work(session, other)
            except psycopg2.Error:
                pass
            if lane.stopping or lane.hit():
                return


# The points that the scene "base" does not pass, and their scenes.
SCENES = {
    "claim-kept": base,
    "ddl-": ddl, "relay-create": ddl, "relay-dropped": ddl, "launcher-registry-read": ddl,
    "sink-reap": drop_stopped, "relay-confirmed": confirm,
    "launcher-": restart_workers, "worker-": restart_workers,
    "pool-": rest, "worker-gives-way": rest, "relay-resting": rest, "rest-": rest,
    "worker-woken": base, "worker-tick": tick,
    "worker-maintain": base, "worker-emptying": base,
    "sink-": restart_sinks, "relay-hello": restart_sinks, "relay-ready": restart_sinks,
    "relay-end-of-file": restart_sinks, "relay-parked-resolved": restart_sinks, "relay-named-noted": confirm,
    "program-started": restart_sinks, "program-ready": restart_sinks,
    "postgres-hello": restart_sinks, "postgres-connected": restart_sinks,
    "postgres-position-taken": restart_sinks,
    "postgres-careful": retry, "postgres-settle": retry, "postgres-ask-fate": lost,
    "relay-late-": late, "relay-parked-waiting": waiting, "relay-parked-written": retry, "relay-settle-sent": retry,
    "relay-key-blocked": blocked, "relay-refill": blocked,
    "relay-repeats": retry, "relay-unparked": retry, "function-parked": retry, "function-unparked": retry,
    "relay-bisect": killer, "relay-suspect-parked": killer,
    "relay-half-written": big, "relay-yielded": turns,
    "witness-": witness,
    "request-": requests, "consumer-": changing,
    "offset-": cursors, "sequence-": cursors, "producer-": cursors,
    "store-": packing, "store-keys-": keys, "claim-forgotten": packing, "dedup-": repeats,
    "store-time-noted": expiring, "store-class-copied": expiring, "store-slice-merged": expiring,
    "store-expired-": expiring, "claim-import-": importing,
    "lease-": leasing, "keyed-": leasing,
    "durable-wait": standby, "function-announced": crash,
}

# At these points a process has a lock that other sessions need for a lease.
LEASES_WAIT = ("keyed-emptied", "lease-number-written", "lease-identity-written")

# At these points a process makes the keys of a segment; claims that ask for them wait.
CLAIMS_WAIT = ("store-keys-filling", "store-keys-block")

# After these scenes everything has to be packed.
PACKING = (packing, expiring, importing)


def scene_of(point):
    """The scene for a point: the longest matching beginning of the name decides."""
    found = max((p for p in SCENES if point.startswith(p)), key=len, default=None)
    return SCENES[found] if found else base
