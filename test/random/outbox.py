"""The outbox: random transactions that enqueue, and readers, against outbox_model.

Readers go through differences of snapshots in batches of random sizes, go back to places they have marked, and
read what they have read again.  Housekeeping closes and empties segments of a few rows below them, and indexes
are built anew beside open transactions.
"""
import json
import random
import uuid

import psycopg2

from outbox_model import Cursor, Event, Model, Snapshot, Txn
from server import wait_until
from session import PATIENCE, Session
from transactions import LEVELS, SERIALIZATION, Transactions

WRITERS = 4
READERS = 2
LOCKED = "55P03"

FUNCTIONS = """
CREATE SCHEMA t;
CREATE EXTENSION amcheck;
CREATE FUNCTION t.snapshot() RETURNS pg_snapshot LANGUAGE c AS 'idempotency_test', 'idem_test_snapshot_fn';
CREATE FUNCTION t.read(done pg_snapshot, cur pg_snapshot, k bigint, max int, OUT seq bigint, OUT xid xid8,
	OUT event_id uuid, OUT aggregate_type text, OUT aggregate_id text, OUT event_type text, OUT payload jsonb,
	OUT payload_bytes bytea, OUT headers jsonb) RETURNS SETOF record LANGUAGE c AS 'idempotency_test', 'idem_test_read_fn';
CREATE FUNCTION t.find(id uuid, OUT found bool, OUT fetched bool, OUT seq bigint)
	LANGUAGE c AS 'idempotency_test', 'idem_test_find_fn';
CREATE FUNCTION t.maintain(done pg_snapshot[]) RETURNS int LANGUAGE c AS 'idempotency_test', 'idem_test_maintain_fn';
"""


def create_functions(cluster, dbname):
    """Those of the tests' module, which drive the reader; and the first event.

    The first one locks all segments, and may meet REINDEX CONCURRENTLY in a circle (src/outbox/number.c).
    """
    cluster.rows(FUNCTIONS, dbname=dbname)
    cluster.rows("SELECT idempotency.outbox_enqueue('j', 'first', 'E', '1')", dbname=dbname)


class Reader:
    """A position: what is done, the difference under way with the events given out of it, and a place to go back to."""

    def __init__(self, start):
        self.done, self.cur, self.given, self.k = start, None, 0, 0
        self.mark = start


class Outbox(Transactions):
    def __init__(self, cluster, dbname):
        self.cluster, self.dbname = cluster, dbname
        self.open_control()
        self.clean()
        self.model = Model()
        self.sessions = [Session(cluster, dbname, f"outbox {i}") for i in range(WRITERS)]
        self.builder = Session(cluster, dbname, "outbox reindex")
        self.building = False
        start = self.snapshot()
        self.readers = [Reader(start) for _ in range(READERS)]
        self.undone = []        # ids of events that no reader may find
        self.names = 0
        self.transactions = 0
        self.trace = []

    def open_control(self):
        self.control = self.cluster.connect(self.dbname)
        self.sql(f"SET statement_timeout = '{PATIENCE}s'")
        self.reading = [self.cluster.connect(self.dbname) for _ in range(READERS)]

    def clean(self):
        self.forget_transactions("outbox%")
        self.drop_invalid()
        self.sql("SELECT t.maintain(ARRAY[t.snapshot()]) FROM generate_series(1, 3)")

    def drop_invalid(self):
        for (index,) in self.sql("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"):
            self.sql(f"DROP INDEX {index}")

    # Choosing.

    def choose(self, rng):
        chance = rng.random()
        if chance < 0.0005:
            return (-1, "restart", rng.choice(("fast", "immediate")))
        if chance < 0.12:
            return (-1, "read", rng.randrange(READERS), rng.choice((1, 2, 3, 10, 100, 1000)), rng.random() < 0.3)
        if chance < 0.15:
            return (-1, "maintain")
        if chance < 0.16:
            return (-1, rng.choice(("mark", "rewind")), rng.randrange(READERS))
        if chance < 0.18:
            return (-1, "find", rng.randrange(1 << 30))
        if chance < 0.185:
            return (-1, "vacuum", rng.randrange(8))
        if chance < 0.195:
            return (-1, "reindex", rng.randrange(8)) if not self.building else (-1, "built", rng.random() < 0.2)
        s = rng.randrange(WRITERS)
        if rng.random() < 0.003:
            return (s, "kill")
        txn = self.model.txns.get(s)
        if txn is None:
            if self.model.prepared and rng.random() < 0.2:
                return self.choose_prepared(rng, s)
            return (s, "begin", rng.choice(LEVELS), rng.random() < 0.02)
        if txn.failed:
            return self.choose_failed(rng, s, txn)
        return self.choose_inside(rng, s, txn)

    def choose_inside(self, rng, s, txn):
        # The first session's transactions stay open for long.
        end = 0.1 if s == 0 else 1
        ways = [("enqueue", 20), ("many", 5), ("cursor_many", 1), ("dedup", 6), ("dedup_many", 3), ("savepoint", 7), ("commit", 10 * end),
                ("rollback", 2 * end), ("prepare", 3 * end), ("declare", 3), ("wrong", 1)]
        if txn.savepoints:
            ways += [("rollback_to", 6), ("release_savepoint", 5)]
        if txn.cursors:
            ways += [("fetch", 16)]
        way = rng.choices([w for w, _ in ways], [n for _, n in ways])[0]
        if way == "enqueue":
            return (s, way, rng.choice("jjy"), rng.randrange(1 << 30), rng.choice((0, 0, 0, 300, 9000)), self.own_id(rng, 0.3))
        if way == "dedup":
            return (s, way, rng.randrange(1 << 30), self.dedup_id(rng))
        if way == "dedup_many":
            return (s, way, rng.randrange(1 << 30), tuple(rng.choice((None, self.dedup_id(rng))) for _ in range(rng.randint(0, 8))))
        if way in ("many", "cursor_many"):
            rows = rng.randint(0, 12) if rng.random() < 0.95 else rng.randint(13, 400)
            return (s, way, rng.randrange(1 << 30), tuple(self.own_id(rng, 0.1 if rows <= 12 else 1 / rows) for _ in range(rows)))
        if way == "declare":
            self.names += 1
            rows = rng.randint(1, 5)
            return (s, way, f"c{self.names}", rows, rng.randint(1, rows) if rng.random() < 0.6 else 0)
        return self.choose_of_any(rng, s, txn, way, "outbox")

    @staticmethod
    def own_id(rng, chance):
        """One of few, so that they meet, or one of very many; None: made by the server."""
        if rng.random() >= chance:
            return None
        return str(uuid.UUID(int=rng.randrange(12) if rng.random() < 0.4 else rng.getrandbits(120)))

    @staticmethod
    def dedup_id(rng):
        return f"d{rng.randrange(12) if rng.random() < 0.6 else rng.randrange(1 << 30)}"

    def makes_sense(self, op):
        s, way = op[:2]
        if s < 0:
            return way not in ("reindex", "built") or self.building == (way == "built")
        txn = self.model.txns.get(s)
        if (known := self.ends_make_sense(txn, op)) is not None:
            return known
        return not txn.failed and (way != "fetch" or op[2] in txn.cursors)

    # Doing.

    def judge(self, txn, answer, errors=(), packed=False):
        """True if there are rows to look at.  Serializable transactions may fail for reasons that are not ours.

        packed: what the call finds may have been packed since the transaction took its snapshot, and be too new for it.
        """
        errors = {errors} if isinstance(errors, str) else errors
        if answer.state is None and not answer.lost and not errors:
            return True
        spurious = answer.state == SERIALIZATION and (packed or txn.isolation == "SERIALIZABLE")
        if answer.lost or answer.state is None or answer.state not in errors and not spurious:
            self.wrong(sorted(errors) or "success", answer)
        self.model.fail(txn)
        return False

    def do_begin(self, s, txn, isolation, read_only):
        self.transactions += 1
        self.model.txns[s] = Txn(isolation, read_only)
        self.judge(self.model.txns[s],
                   self.run(s, f"BEGIN ISOLATION LEVEL {isolation}{' READ ONLY' if read_only else ''}"))

    def do_rollback_to(self, s, txn, name):
        before = txn.events
        super().do_rollback_to(s, txn, name)
        self.undone += [e.row[0] for e in before if e not in txn.events][:1]

    def do_rollback(self, s, txn):
        self.judge(txn, self.run(s, "ROLLBACK"))
        self.undone += [e.row[0] for e in txn.events[:1]]
        del self.model.txns[s]

    def do_commit(self, s, txn, gid=None):
        sql = f"PREPARE TRANSACTION '{gid}'" if gid else "COMMIT"
        failed = txn.failed
        fine = self.judge(txn, self.run(s, sql))
        del self.model.txns[s]
        if failed or not fine:
            return
        if gid:
            self.model.prepared[gid] = txn
        else:
            self.model.commit(txn)

    do_prepare = do_commit

    def do_commit_prepared(self, s, txn, gid):
        self.judge(Txn(""), self.run(s, f"COMMIT PREPARED '{gid}'"))
        self.model.commit(self.model.prepared.pop(gid))

    # Enqueueing.

    def refused(self, s, txn, ids):
        """The SQLSTATEs that are right.  Where another transaction's id is in the way there is no use in waiting."""
        states = {"25006"} if txn.read_only else self.model.refuses(txn, [i for i in ids if i])
        if LOCKED in states:
            self.run(s, "SET LOCAL lock_timeout = '1ms'")
        return states

    def add(self, txn, event_id, own, *row):
        txn.events.append(Event(self.model.now(), (event_id, *row)))
        if own:
            txn.ids |= {own}

    def do_enqueue(self, s, txn, kind, n, padding, own):
        error = self.refused(s, txn, [own])
        headers = {"h": n} if n % 3 == 0 else None
        if kind == "y":
            data = f"{n}".encode() + random.Random(n).randbytes(padding)
            answer = self.run(s, "SELECT idempotency.outbox_enqueue_bytes('y', %s, 'E', %s, headers => %s, event_id => %s)::text",
                              (f"k{n % 7}", psycopg2.Binary(data), headers and json.dumps(headers), own))
            row = ("y", f"k{n % 7}", "E", None, data, headers)
        else:
            payload = {"n": n, "p": random.Random(n).randbytes(padding // 2).hex()}
            answer = self.run(s, "SELECT idempotency.outbox_enqueue('j', %s, 'E', %s, headers => %s, event_id => %s)::text",
                              (f"k{n % 7}", json.dumps(payload), headers and json.dumps(headers), own))
            row = ("j", f"k{n % 7}", "E", payload, None, headers)
        if self.judge(txn, answer, error):
            if own and answer.rows[0][0] != own:
                self.wrong(own, answer)
            self.add(txn, answer.rows[0][0], own, *row)

    MANY = """SELECT outbox_enqueue_many::text FROM idempotency.outbox_enqueue_many('m', %s, %s, %s::jsonb[],
        event_ids => %s::uuid[])"""

    def many_arguments(self, n, ids):
        keys = [f"m{(n + i) % 5}" for i in range(len(ids))]
        return keys, ["T"] * len(ids), [json.dumps(n + i) for i in range(len(ids))], list(ids)

    def do_many(self, s, txn, n, ids):
        error = self.refused(s, txn, ids)
        answer = self.run(s, self.MANY, self.many_arguments(n, ids))
        if not self.judge(txn, answer, error):
            return
        given = [r[0] for r in answer.rows]
        if len(given) != len(ids) or any(own and own != got for own, got in zip(ids, given)):
            self.wrong(ids, given)
        for i, (own, got) in enumerate(zip(ids, given)):
            self.add(txn, got, own, "m", f"m{(n + i) % 5}", "T", n + i, None, None)

    def do_cursor_many(self, s, txn, n, ids):
        """Only the first row is fetched, and all are enqueued."""
        ids = tuple(i or str(uuid.UUID(int=(n << 64) + at + 1000)) for at, i in enumerate(ids))
        self.names += 1
        name = f"m{self.names}"
        if not self.judge(txn, self.run(s, f"DECLARE {name} CURSOR FOR {self.MANY}", self.many_arguments(n, ids))):
            return
        error = self.refused(s, txn, ids)
        if not self.judge(txn, self.run(s, f"FETCH 1 FROM {name}"), error):
            return
        for i, own in enumerate(ids):
            self.add(txn, own, own, "m", f"m{(n + i) % 5}", "T", n + i, None, None)

    def unanswered(self, s, txn, dedup_ids):
        """The SQLSTATEs that are right; as for ids there is no use in waiting."""
        states = {"25006"} if txn.read_only else self.model.dedup_errors(txn, dedup_ids)
        if LOCKED in states:
            self.run(s, "SET LOCAL lock_timeout = '1ms'")
        return states

    def may_be_packed(self, txn, dedup_ids):
        """Segments of this server are small, so the packer may come at any time."""
        return txn.isolation != "READ COMMITTED" and not self.model.dedups.keys().isdisjoint(dedup_ids)

    def add_first(self, txn, dedup_id, got, *row):
        """Judge the id that an event with a dedup id got, and add the event unless it is a repeat."""
        first = dedup_id and self.model.first_event(txn, dedup_id)
        if first and got != first:
            self.wrong(first, got)
        if first:
            return
        if any(got == e.row[0] for e in txn.events):
            self.wrong("a new event id", got)
        if dedup_id:
            txn.dedups[dedup_id] = got
        self.add(txn, got, None, *row)

    def do_dedup(self, s, txn, n, dedup_id):
        error = self.unanswered(s, txn, [dedup_id])
        answer = self.run(s, """SELECT idempotency.outbox_enqueue('d', %s, 'E', %s, dedup_id => %s, dedup_window => '1 day')::text""",
                          (f"k{n % 7}", json.dumps(n), dedup_id))
        if self.judge(txn, answer, error, self.may_be_packed(txn, [dedup_id])):
            self.add_first(txn, dedup_id, answer.rows[0][0], "d", f"k{n % 7}", "E", n, None, None)

    def do_dedup_many(self, s, txn, n, dedup_ids):
        error = self.unanswered(s, txn, dedup_ids)
        keys, types, payloads, _ = self.many_arguments(n, dedup_ids)
        answer = self.run(s, """SELECT outbox_enqueue_many::text FROM idempotency.outbox_enqueue_many('d', %s, %s, %s::jsonb[],
            dedup_ids => %s::text[], dedup_window => '100 years')""", (keys, types, payloads, list(dedup_ids)))
        if not self.judge(txn, answer, error, self.may_be_packed(txn, dedup_ids)):
            return
        if len(answer.rows) != len(dedup_ids):
            self.wrong(f"{len(dedup_ids)} ids", answer)
        for i, (dedup_id, (got,)) in enumerate(zip(dedup_ids, answer.rows)):
            self.add_first(txn, dedup_id, got, "d", keys[i], "T", n + i, None, None)

    def do_declare(self, s, txn, name, rows, bad):
        answer = self.run(s, f"""DECLARE {name} CURSOR FOR
            SELECT idempotency.outbox_enqueue('c', n::text, 'E', to_jsonb(n))::text, 1 / (n <> %s)::int
            FROM generate_series(1, %s) n""", (bad, rows))
        if self.judge(txn, answer):
            txn.cursors[name] = Cursor(rows, bad, self.model.now())

    def do_fetch(self, s, txn, name):
        cursor = txn.cursors[name]
        answer = self.run(s, f"FETCH 1 FROM {name}")
        if cursor.broken:
            self.judge(txn, answer, "55000")
        elif cursor.at == cursor.rows:
            self.judge(txn, answer)
        else:
            cursor.at += 1
            error = "25006" if txn.read_only else "22012" if cursor.at == cursor.bad else ()
            if self.judge(txn, answer, error):
                self.add(txn, answer.rows[0][0], None, "c", str(cursor.at), "E", cursor.at, None, None)
            else:
                cursor.broken = True

    def do_wrong(self, s, txn):
        answer = self.run(s, "SELECT idempotency.outbox_enqueue('', 'a', 'E', '1')")
        if answer.state == "25006" and txn.read_only:
            self.model.fail(txn)
        else:
            self.judge(txn, answer, "22023")

    # Reading.

    def snapshot(self):
        return Snapshot(self.sql("SELECT t.snapshot()::text")[0][0], self.model.commits)

    def do_read(self, s, txn, r, limit, again):
        """The next batch; again: read it twice, the second time with the other reader's session."""
        reader = self.readers[r]
        if reader.cur is None:
            reader.cur, reader.given, reader.k = self.snapshot(), 0, 0
        expected = self.model.difference(reader.done, reader.cur)[reader.given:reader.given + limit]
        for conn in self.reading[r:r + 1] + (self.reading[r - 1:r] or self.reading[-1:] if again else []):
            rows = self.sql("""SELECT seq, event_id::text, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
                headers FROM t.read(%s, %s, %s, %s)""", (reader.done.text, reader.cur.text, reader.k, limit), conn)
            self.say(len(rows))
            got = [(*row[1:6], None if row[6] is None else bytes(row[6]), row[7]) for row in rows]
            if got != [e.row for e in expected]:
                self.wrong(f"{len(expected)} events, {[e.row[0] for e in expected]}", [g[0] for g in got])
            seqs = [row[0] for row in rows]
            if seqs != sorted(set(seqs)) or seqs and seqs[0] <= reader.k:
                self.wrong(f"numbers that rise from {reader.k}", seqs)
        reader.given += len(rows)
        if rows:
            reader.k = seqs[-1]
        if len(rows) < limit:
            reader.done, reader.cur = reader.cur, None

    def do_mark(self, s, txn, r):
        self.readers[r].mark = self.readers[r].done

    def do_rewind(self, s, txn, r):
        """A replay: from a place that was kept, everything since comes again."""
        self.readers[r].done, self.readers[r].cur = self.readers[r].mark, None

    def do_find(self, s, txn, n):
        """One event that some reader still needs is there; one of an aborted transaction is not."""
        floor = min((p for r in self.readers for p in (r.done, r.mark)), key=lambda p: p.commits)
        needed = self.model.difference(floor, Snapshot("", self.model.commits))
        if needed:
            event = needed[n % len(needed)]
            found = self.sql("SELECT found, fetched FROM t.find(%s)", (event.row[0],))[0]
            if found != (True, True):
                self.wrong(f"event {event.row[0]} found", found)
        for event_id in self.undone[-1:]:
            if not any(event_id == e.row[0] for e in needed) and event_id not in self.model.ids:
                found = self.sql("SELECT found FROM t.find(%s)", (event_id,))[0][0]
                if found:
                    self.wrong(f"event {event_id}, of an aborted transaction, not found", found)
        del self.undone[:-1]

    # Housekeeping and others.

    def do_maintain(self, s, txn):
        places = [p.text for r in self.readers for p in (r.done, r.mark)]
        self.say(self.sql("SELECT t.maintain(%s::pg_snapshot[])", (places,)))

    def do_vacuum(self, s, txn, n):
        self.sql(f"VACUUM (SKIP_LOCKED) {self.segment(n)}")

    def segment(self, n):
        return self.sql("SELECT oid::regclass::text FROM pg_class WHERE relname = %s", (f"outbox_segment_{n}",))[0][0]

    def do_reindex(self, s, txn, n):
        """It waits for the transactions that write to the segment: its session is asked for an answer later."""
        self.builder.send(f"REINDEX TABLE CONCURRENTLY {self.segment(n)}")
        self.builder.answer(0)
        self.building = True

    def do_built(self, s, txn, cancel):
        def cancelled():
            self.sql("SELECT pg_cancel_backend(%s)", (self.builder.pid,))
            return self.builder.answer(0.05)
        answer = wait_until("REINDEX is cancelled", cancelled) if cancel else self.builder.answer(0)
        self.say(answer)
        if answer:
            self.building = False
            if answer.lost or answer.state not in (None, "57014"):
                self.wrong("an index", answer)

    def reopen(self, s):
        self.sessions[s].close()
        self.sessions[s].open()
        self.model.txns.pop(s, None)

    def do_restart(self, s, txn, mode):
        # A relay's position is on disk before it counts, and with it the xids before the snapshots' ends:
        # after a crash the server gives those numbers to nobody else.
        self.sql("COMMENT ON SCHEMA t IS 'positions are on disk'")
        for conn in [self.control, *self.reading]:
            conn.close()
        self.builder.close()
        self.cluster.restart(mode)
        self.open_control()
        for i in range(WRITERS):
            self.reopen(i)
        self.builder.open()
        self.building = False

    # The end: everybody commits, and the readers read all.

    def finish(self):
        self.trace.append("end")
        for s in sorted(self.model.txns):
            self.do_commit(s, self.model.txns[s])
        for gid in sorted(self.model.prepared):
            self.do_commit_prepared(0, None, gid)
        if self.building:
            wait_until("REINDEX ends when nobody writes", lambda: self.builder.answer(1))
        self.sql("SELECT bt_index_parent_check(indexrelid, true) FROM pg_index WHERE indisvalid AND indrelid::regclass::text ~ 'outbox_segment'")
        for r, reader in enumerate(self.readers):
            self.do_maintain(-1, None)
            for again in (False, True):
                if again:
                    self.do_rewind(-1, None, r)
                target = self.model.commits
                while reader.done.commits < target or reader.cur:
                    self.do_read(-1, None, r, 500, False)
        self.drop_invalid()
        for s in [*self.sessions, self.builder]:
            s.close()
        for conn in [self.control, *self.reading]:
            conn.close()
