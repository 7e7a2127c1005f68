"""Claims: random transactions of several sessions against claims_model.

One operation at a time.  A claim with `wait` of a busy event leaves its session waiting; it is asked for its
answer when the model says that there is one, and looked at after each operation, since it must not answer before.
"""
import json
from typing import Callable, NamedTuple

from claims_model import BUSY, CLAIMED, FORGOTTEN, NOTHING, SERIALIZATION, Cursor, Model, Txn, UNCOMPLETED, Version
from episodes import Mismatch
from server import wait_until
from session import PATIENCE, Session
from transactions import LEVELS, Transactions

SESSIONS = 4
IDS = ("a", "b", "c", "d", "e")
# consumer -> arguments of consumer_create, None for one that is not registered
CONSUMERS = {"default": None, "plain": None, "private": "private_locks => true", "foreign": "foreign_lockers => true"}

SETUP = """
CREATE SCHEMA r;
CREATE TABLE r.effect (consumer text, event_id text);
CREATE FUNCTION r.whole(id text, c text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict text := idempotency.claim_event(id, c);
BEGIN
	IF verdict = 'claimed' THEN
		INSERT INTO r.effect VALUES (c, id);
		PERFORM idempotency.complete_event(id, c);
	END IF;
	RETURN verdict;
END $$;
CREATE FUNCTION r.undone(id text, c text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict text;
BEGIN
	BEGIN
		verdict := idempotency.claim_event(id, c);
		RAISE SQLSTATE 'R0001';
	EXCEPTION WHEN SQLSTATE 'R0001' THEN
		RETURN verdict;
	END;
END $$;
"""

WRONG = (
    ("SELECT idempotency.claim_event('')", "22023"),
    ("SELECT idempotency.claim_event('a', '@relay/x')", "22023"),
    ("SELECT idempotency.claim_event(NULL::text)", "22004"),
    ("SELECT idempotency.claim_event(repeat('x', 1025))", "22023"),
    ("SELECT idempotency.consumer_alter('nobody', retention => '1 h')", "42704"),
    ("SELECT idempotency.claim_event('a', wait => '-1 s')", "22023"),
    ("SELECT idempotency.complete_events('{a,b}', results => '{1}')", "22023"),
    ("SELECT idempotency.claim_events('{{a},{b}}')", "2202E"),
)


class Wait(NamedTuple):
    """A session that was left without an answer.  mode: of the lock that it waits for, None if it asks again and again."""
    key: tuple
    silent: str                 # in allowed() as long as there may be no answer
    allowed: Callable
    settle: Callable            # is given the answer, and what is allowed by then
    mode: str = None


def create_consumers(cluster, dbname, consumers=CONSUMERS):
    for consumer, how in consumers.items():
        if how:
            cluster.rows(f"SELECT idempotency.consumer_create('{consumer}', {how})", dbname=dbname)


class Claims(Transactions):
    CONSUMERS, IDS, SETUP, WRONG = CONSUMERS, IDS, SETUP, WRONG
    LEFT_ALONE = 0.7                # of sessions that wait: how often nothing is done to them
    new_model, new_txn = Model, Txn

    def __init__(self, cluster, dbname):
        self.cluster, self.dbname = cluster, dbname
        self.control = cluster.connect(dbname)
        self.clean()
        self.model = self.new_model(["foreign"])
        self.sessions = [Session(cluster, dbname, f"session {i}") for i in range(SESSIONS)]
        self.settings = [{"keep": False, "budget": 64} for _ in self.sessions]
        self.waiting = self.model.waits     # session -> Wait
        self.effects = []           # committed
        self.standing = set()       # events whose effect was not forgotten since
        self.names = 0
        self.transactions = 0
        self.trace = []

    # The start: nothing remembered, nobody there.

    def clean(self):
        self.forget_transactions()
        self.sql("DROP SCHEMA IF EXISTS r CASCADE")
        self.sql(self.SETUP)

    # Choosing the next operation, by what the model says is going on.

    def choose(self, rng):
        if rng.random() < 0.0005:
            return (-1, "restart", rng.choice(("fast", "immediate")))
        if rng.random() < 0.02:
            return (-1, "maintain")
        if rng.random() < 0.004:
            return (-1, "fill", rng.choice((1, 60, 600)))
        if rng.random() < 0.002:
            return (-1, "rebuild", rng.randrange(10000))
        s = rng.randrange(SESSIONS)
        if s in self.waiting:
            if rng.random() < self.LEFT_ALONE:
                return self.choose(rng)
            return (s, rng.choice(("cancel", "cancel", "kill")))
        if rng.random() < 0.004:
            return (s, "kill")
        txn = self.model.txns.get(s)
        if txn is None:
            return self.choose_idle(rng, s)
        if txn.failed:
            return self.choose_failed(rng, s, txn)
        return self.choose_inside(rng, s, txn)

    def choose_idle(self, rng, s):
        chance = rng.random()
        if self.model.prepared and chance < 0.2:
            return self.choose_prepared(rng, s)
        if chance < 0.3:
            return (s, "set", rng.choice((("budget", -1), ("budget", 0), ("budget", 1), ("budget", 2), ("budget", 3),
                                          ("keep", True), ("keep", False), ("keep", False))))
        if chance < 0.36:
            return (s, "single", rng.choice(sorted(self.CONSUMERS)), rng.choice(self.IDS))
        if chance < 0.38:
            return (s, "ask", rng.choice(sorted(self.CONSUMERS)), rng.choice(self.IDS))
        local = {}
        if rng.random() < 0.3:
            local["budget"] = rng.choice((0, 1, 2))
        if rng.random() < 0.2:
            local["keep"] = True
        return (s, "begin", rng.choice(LEVELS), rng.random() < 0.02, tuple(sorted(local.items())))

    def choose_inside(self, rng, s, txn):
        consumer, ids = rng.choice(sorted(self.CONSUMERS)), tuple(rng.choice(self.IDS) for _ in range(rng.randint(1, 4)))
        pending = [key for key in txn.pending() if self.is_event(key)]
        ways = [("claim", 20), ("claims", 6), ("savepoint", 8), ("commit", 6), ("rollback", 2), ("prepare", 3),
                ("declare", 3), ("wrong", 1), ("result", 4), ("foreign", 3), ("undone", 2), ("whole", 4), ("forget", 4)]
        if pending:
            ways += [("complete", 24), ("release", 12), ("completes", 4)]
        else:
            ways += [("complete", 1), ("release", 1), ("commit", 8)]
        if txn.savepoints:
            ways += [("rollback_to", 8), ("release_savepoint", 6)]
        if txn.cursors:
            ways += [("fetch", 20), ("close", 1)]
        way = rng.choices([w for w, _ in ways], [n for _, n in ways])[0]
        if way == "claim":
            wait = "1 h" if rng.random() < 0.2 else "5 ms" if rng.random() < 0.1 else None
            if wait == "1 h" and self.is_awaited((consumer, ids[0])):
                wait = None         # of two that wait for one event either may have it
            return (s, way, consumer, ids[0], wait)
        if way in ("claims",):
            return (s, way, consumer, ids)
        if way in ("complete", "release"):
            key = rng.choice(pending) if pending and rng.random() < 0.95 else (consumer, ids[0])
            result = rng.randrange(100) if way == "complete" and rng.random() < 0.4 else None
            return (s, way, *key, result)
        if way == "completes":
            consumer = rng.choice(pending)[0]
            mine = tuple(k[1] for k in pending if k[0] == consumer) + (ids[:1] if rng.random() < 0.1 else ())
            return (s, way, consumer, mine, rng.random() < 0.5)
        if way == "declare":
            self.names += 1
            bad = rng.randint(1, len(ids)) if rng.random() < 0.6 else 0
            return (s, way, f"c{self.names}", consumer, ids, rng.choice(("claim_event", "whole")), bad)
        if way == "wrong":
            return (s, way, rng.randrange(len(self.WRONG)))
        if way in ("result", "foreign", "undone", "whole", "forget"):
            return (s, way, consumer, ids[0])
        return self.choose_of_any(rng, s, txn, way, "claims")

    def makes_sense(self, op):
        """When others were left out."""
        s, way = op[:2]
        if s < 0:
            return True
        if s in self.waiting:
            return way in ("cancel", "kill")
        txn = self.model.txns.get(s)
        if way in ("set", "single", "ask"):
            return txn is None
        if (known := self.ends_make_sense(txn, op)) is not None:
            return known
        if way in ("fetch", "close"):
            return op[2] in txn.cursors and not txn.failed
        if way == "claim" and op[4] == "1 h" and self.is_awaited((op[2], op[3])):
            return False
        return not txn.failed

    @staticmethod
    def is_event(_key):
        """Not a request."""
        return True

    def is_awaited(self, key):
        return any(wait.key == key for wait in self.waiting.values())

    # Doing it.

    def apply(self, op):
        super().apply(op)
        # whoever has an answer first: an error of it may be what another one waits for
        while ready := [s for s in sorted(self.waiting) if self.waiting[s].silent not in self.waiting[s].allowed()]:
            self.look(ready[0])
        for other in sorted(self.waiting):
            self.look(other)

    def judge(self, txn, answer, allowed=None):
        """True if there are rows to look at.  allowed: a SQLSTATE, a set of verdicts and SQLSTATEs, None for no error.

        An error undoes what the model says it undoes.  Serializable transactions may fail anywhere, for reasons that
        are no claim's.
        """
        allowed = {allowed} if isinstance(allowed, str) else allowed or {"success"}
        if answer.state is None and not answer.lost and any(len(a) != len(SERIALIZATION) for a in allowed):
            return True
        spurious = answer.state == SERIALIZATION and txn and txn.isolation == "SERIALIZABLE"
        if answer.state not in allowed and not spurious:
            self.wrong(sorted(allowed), answer)
        self.model.fail(txn)
        return False

    # Transactions.

    def do_begin(self, s, txn, isolation, read_only, local):
        settings = dict(self.settings[s])
        settings.update(local)
        self.transactions += 1
        self.model.begin(s, self.new_txn(isolation, read_only, settings["keep"], settings["budget"]))
        self.run(s, f"BEGIN ISOLATION LEVEL {isolation}{' READ ONLY' if read_only else ''}")
        for name, value in local:
            self.run(s, self.setting(name, value, "SET LOCAL"))

    @staticmethod
    def setting(name, value, how="SET"):
        if name == "budget":
            return f"{how} idempotency.max_claim_locks = {value}"
        return f"{how} idempotency.uncompleted_claims = {'keep' if value else 'error'}"

    def do_set(self, s, txn, setting):
        name, value = setting
        self.settings[s][name] = 64 if value == -1 else value
        self.run(s, self.setting(name, value))

    def do_rollback(self, s, txn):
        self.judge(txn, self.run(s, "ROLLBACK"))
        self.model.end(s)

    def do_commit(self, s, txn):
        self.finish_with(s, txn, "COMMIT")

    def do_prepare(self, s, txn, gid):
        self.finish_with(s, txn, f"PREPARE TRANSACTION '{gid}'", gid)

    def finish_with(self, s, txn, sql, gid=None):
        may = txn.failed or self.model.may_commit(txn)
        fine = self.judge(txn, self.run(s, sql), None if may else UNCOMPLETED)
        self.model.end(s)
        if txn.failed or not fine:
            return
        if gid:
            self.model.prepared[gid] = txn
        else:
            self.committed(txn)

    def committed(self, txn):
        self.model.apply(txn)
        for key, claim in txn.claims.items():
            if claim.phase == "forgotten" or claim.anew:
                self.standing.discard(key)
            if claim.phase == "completed" and self.has_effect(txn, key):
                if key in self.standing:
                    raise Mismatch(f"a second committed effect of {key}")
                self.standing.add(key)
                self.effects.append(key)

    @staticmethod
    def has_effect(_txn, _key):
        return True

    def do_commit_prepared(self, s, txn, gid):
        self.judge(self.new_txn(""), self.run(s, f"COMMIT PREPARED '{gid}'"))
        self.committed(self.model.prepared.pop(gid))

    # Claiming.

    def take(self, txn, key, verdict, allowed):
        if verdict not in allowed:
            self.wrong(f"{key}: {sorted(allowed)}", verdict)
        if verdict == CLAIMED:
            self.model.took(txn, key)

    def do_claim(self, s, txn, consumer, event_id, wait):
        key = (consumer, event_id)
        allowed = {"25006"} if txn.read_only else self.model.claim(txn, key)
        if wait == "1 h" and (len(allowed) > 1 or self.model.may_wait_or_not(txn, key)):
            wait = None             # it may wait or not
        sql = "SELECT idempotency.claim_event(%s, %s" + (f", wait => '{wait}')" if wait else ")")
        if wait == "1 h" and BUSY in allowed and self.model.would_wait(txn, key):
            self.leave(s, Wait(key, BUSY, lambda: self.model.claim(txn, key),
                               lambda answer, allowed: self.claimed(txn, key, answer, allowed)), sql, (event_id, consumer))
            return
        self.claimed(txn, key, self.run(s, sql, (event_id, consumer)), allowed)

    def claimed(self, txn, key, answer, allowed):
        if self.judge(txn, answer, allowed):
            self.take(txn, key, answer.rows[0][0], allowed)

    # Sessions that wait.

    def leave(self, s, wait, sql, args):
        self.sessions[s].send(sql, args)
        self.waiting[s] = wait
        wait_until(f"session {s} waits", lambda: self.has_begun(s))

    def has_begun(self, s):
        """It has its snapshot and has tried once: from here on it polls, or waits for a lock.  Or it has answered.

        As long as it has not read its statement, it is idle.
        """
        return self.sessions[s].has_answer() or \
            self.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event_type = %s",
                     (self.sessions[s].pid, "Lock" if self.waiting[s].mode else "Extension"))

    def look(self, s):
        """At a session that waits: has it what it waits for, and is silent otherwise?"""
        wait = self.waiting[s]
        allowed = wait.allowed()
        patient = wait.silent not in allowed
        answer = self.sessions[s].answer(PATIENCE if patient else 0)
        if answer is None:
            if patient:
                self.wrong(f"session {s}, which waits for {wait.key}: {sorted(allowed)}", "silence")
            return
        self.say(f"session {s} waited: {answer}")
        if allowed == {wait.silent}:
            self.wrong(f"session {s} goes on waiting for {wait.key}", answer)
        del self.waiting[s]
        wait.settle(answer, allowed)

    def do_claims(self, s, txn, consumer, ids):
        if txn.read_only:
            self.judge(txn, self.run(s, "SELECT * FROM idempotency.claim_events(%s, %s)", (list(ids), consumer)), "25006")
            return
        answer = self.run(s, "SELECT ord, event_id, result FROM idempotency.claim_events(%s, %s) ORDER BY ord",
                          (list(ids), consumer))
        self.claimed_many(txn, consumer, ids, answer)

    def claimed_many(self, txn, consumer, ids, answer):
        """The budget of locks goes to the ids in the order of their bytes."""
        before, verdicts, late = dict(txn.claims), {}, False
        for event_id in sorted(set(ids)):
            allowed = self.model.claim(txn, (consumer, event_id))
            late = late or SERIALIZATION in allowed
            if answer.state is None:
                got = [v for o, _, v in answer.rows if ids[o - 1] == event_id]
                self.take(txn, (consumer, event_id), got[0], allowed)
                verdicts[event_id] = got[0]
        if answer.state is not None:
            txn.claims = before
            self.judge(txn, answer, {SERIALIZATION} if late else None)
            return
        expected, seen = [], set()
        for i, event_id in enumerate(ids):
            verdict = verdicts[event_id]
            if event_id in seen and verdict == CLAIMED:
                verdict = "duplicate"
            seen.add(event_id)
            expected.append((i + 1, event_id, verdict))
        if answer.rows != expected:
            self.wrong(expected, answer)

    def do_complete(self, s, txn, consumer, event_id, result):
        error = "25006" if txn.read_only else self.model.complete(txn, (consumer, event_id), result)
        answer = self.run(s, "WITH e AS (INSERT INTO r.effect VALUES (%s, %s) RETURNING consumer, event_id)"
                          " SELECT idempotency.complete_event(event_id, consumer, result => %s) FROM e",
                          (consumer, event_id, None if result is None else json.dumps(result)))
        self.judge(txn, answer, error)

    def do_completes(self, s, txn, consumer, ids, with_results):
        results = [i if with_results and i % 2 else None for i in range(len(ids))]
        error = self.complete_all(txn, consumer, sorted(zip(ids, results), key=lambda pair: pair[0]))
        answer = self.run(s, "WITH e AS (INSERT INTO r.effect SELECT %s, id FROM unnest(%s) id RETURNING 1)"
                          " SELECT idempotency.complete_events(%s, %s, results => %s::jsonb[]) FROM (SELECT count(*) FROM e) x",
                          (consumer, list(ids), list(ids), consumer,
                           [None if r is None else json.dumps(r) for r in results] if with_results else None))
        self.judge(txn, answer, error)

    def complete_all(self, txn, consumer, events):
        error = None
        for event_id, result in events:
            error = error or self.model.complete(txn, (consumer, event_id), result)
        return error

    def do_release(self, s, txn, consumer, event_id, result):
        error = "25006" if txn.read_only else self.model.release(txn, (consumer, event_id))
        self.judge(txn, self.run(s, "SELECT idempotency.release_event(%s, %s)", (event_id, consumer)), error)

    def whole(self, txn, key, verdict, allowed):
        self.take(txn, key, verdict, allowed)
        if verdict == CLAIMED:
            self.model.complete(txn, key)

    def do_whole(self, s, txn, consumer, event_id):
        allowed = {"25006"} if txn.read_only else self.model.claim(txn, (consumer, event_id))
        answer = self.run(s, "SELECT r.whole(%s, %s)", (event_id, consumer))
        if self.judge(txn, answer, allowed):
            self.whole(txn, (consumer, event_id), answer.rows[0][0], allowed)

    def do_single(self, s, txn, consumer, event_id):
        """Claim, effect and completion in a transaction of one statement."""
        self.transactions += 1
        settings = self.settings[s]
        txn = self.model.begin(s, self.new_txn("READ COMMITTED", False, settings["keep"], settings["budget"]))
        self.do_whole(s, txn, consumer, event_id)
        self.model.end(s)
        if not txn.failed:
            self.committed(txn)

    def do_forget(self, s, txn, consumer, event_id):
        key = (consumer, event_id)
        allowed = {"25006"} if txn.read_only else self.model.forget(txn, key)
        answer = self.run(s, "SELECT idempotency.forget_event(%s, %s)", (event_id, consumer))
        if not self.judge(txn, answer, allowed):
            return
        told = FORGOTTEN if answer.rows[0][0] else NOTHING
        if told not in allowed:
            self.wrong(sorted(allowed), answer)
        if told == FORGOTTEN:
            self.model.forgot(txn, key)

    def do_ask(self, s, txn, consumer, event_id):
        """Outside of any transaction of the session."""
        txn = self.new_txn("READ COMMITTED")
        self.do_result(s, txn, consumer, event_id)

    def do_undone(self, s, txn, consumer, event_id):
        """In a block that is rolled back: the verdict is as ever, and nothing stays."""
        allowed = {"25006"} if txn.read_only else self.model.claim(txn, (consumer, event_id))
        answer = self.run(s, "SELECT r.undone(%s, %s)", (event_id, consumer))
        if self.judge(txn, answer, allowed) and answer.rows[0][0] not in allowed:
            self.wrong(sorted(allowed), answer)

    # Cursors.

    def do_declare(self, s, txn, name, consumer, ids, verb, bad):
        schema = "idempotency" if verb == "claim_event" else "r"
        answer = self.run(s, f"DECLARE {name} CURSOR FOR SELECT {schema}.{verb}(id, %s), 1 / (n <> %s)::int"
                          " FROM unnest(%s) WITH ORDINALITY t(id, n)", (consumer, bad, list(ids)))
        if self.judge(txn, answer):
            txn.cursors[name] = Cursor(consumer, ids, verb, bad, self.model.now())

    def do_fetch(self, s, txn, name):
        cursor = txn.cursors[name]
        answer = self.run(s, f"FETCH 1 FROM {name}")
        if cursor.broken:
            self.judge(txn, answer, "55000")
            return
        if cursor.at >= len(cursor.ids):
            if self.judge(txn, answer) and answer.rows:
                self.wrong("no row", answer)
            return
        key = (cursor.consumer, cursor.ids[cursor.at])
        cursor.at += 1
        allowed = {"25006"} if txn.read_only else self.fetchable(txn, cursor, key)
        if cursor.at == cursor.bad and not txn.read_only:
            errors = {a for a in allowed if len(a) == len(SERIALIZATION)}
            allowed = errors | ({"22012"} if allowed != errors else set())
        if not self.judge(txn, answer, allowed):
            cursor.broken = True
        else:
            self.fetched(txn, cursor, key, answer.rows[0][0], allowed)

    def fetchable(self, txn, _cursor, key):
        return self.model.claim(txn, key)

    def fetched(self, txn, cursor, key, verdict, allowed):
        (self.whole if cursor.verb == "whole" else self.take)(txn, key, verdict, allowed)

    def do_close(self, s, txn, name):
        if self.judge(txn, self.run(s, f"CLOSE {name}")):
            del txn.cursors[name]

    # Others.

    def do_result(self, s, txn, consumer, event_id):
        answer = self.run(s, "SELECT idempotency.event_result(%s, %s), (idempotency.event_status(%s, %s)).status",
                          (event_id, consumer, event_id, consumer))
        allowed = self.model.statuses(txn, (consumer, event_id))
        if not self.judge(txn, answer, allowed):
            return
        own, seen = txn.claims.get((consumer, event_id)), self.model.remembered(txn, (consumer, event_id))
        expected = own.result if own and own.phase == "completed" else \
            None if own and own.phase == "claimed" or not seen else seen.result
        if answer.rows[0][0] != expected:
            self.wrong(expected, answer)
        if answer.rows[0][1] not in allowed:
            self.wrong(sorted(allowed), answer)

    def do_foreign(self, s, txn, consumer, event_id):
        """A client that knows the lock's key only; of private locks it is another lock, and excludes nobody."""
        held = ("private, published", event_id) if consumer == "private" else (consumer, event_id)
        answer = self.run(s, "SELECT pg_try_advisory_xact_lock(idempotency.lock_key(%s, %s))", (event_id, consumer))
        if self.judge(txn, answer) and answer.rows[0][0] != self.model.lock_foreign(txn, held):
            self.wrong(not answer.rows[0][0], answer)

    def do_wrong(self, s, txn, n):
        sql, state = self.WRONG[n]
        self.judge(txn, self.run(s, sql), {state, "25006"} if txn.read_only else state)

    def do_cancel(self, s, txn):
        """Again as long as there is no answer: one that comes before the statement cancels nothing."""
        def cancelled():
            self.sql("SELECT pg_cancel_backend(%s)", (self.sessions[s].pid,))
            return self.sessions[s].answer(0.05)
        answer = wait_until("a claim that waits is cancelled", cancelled)
        self.say(answer)
        del self.waiting[s]
        if answer.state != "57014":
            self.wrong("57014", answer)
        self.model.fail(txn)

    def reopen(self, s):
        self.sessions[s].close()
        self.sessions[s].open()
        self.settings[s] = {"keep": False, "budget": 64}
        self.model.txns.pop(s, None)
        self.waiting.pop(s, None)

    def do_restart(self, s, txn, mode):
        self.control.close()
        self.cluster.restart(mode)
        self.control = self.cluster.connect(self.dbname)
        for i in range(SESSIONS):
            self.reopen(i)

    # The store's own work: it changes no answer, but for the snapshots of others.

    def do_maintain(self, _s, _txn):
        """Close, pack, merge and empty what can be."""
        self.say(self.sql("SELECT idempotency.claims_maintain()"))

    def do_fill(self, _s, _txn, n):
        """Other events, so that segments get full."""
        self.names += 1
        self.sql(f"SELECT count(r.whole('filler-' || {self.names} || '-' || i, 'filler')) FROM generate_series(1, {n}) i")

    def do_rebuild(self, _s, _txn, n):
        """The rows of a slot come to stand elsewhere."""
        self.sql(f"VACUUM FULL idempotency_data.store_slot_{n % 32}")

    # The end: everybody goes home, and what is remembered is the model's.

    def finish(self):
        self.trace.append("end")
        for s in sorted(self.waiting):
            self.do_kill(s, None)
        for s in list(self.model.txns):
            self.do_rollback(s, self.model.txns[s])
        for gid in sorted(self.model.prepared):
            self.do_commit_prepared(0, None, gid)
        self.compare_remembered()
        effects = self.sql("SELECT consumer, event_id FROM r.effect WHERE consumer <> 'filler'")
        self.compare("committed effects", sorted(effects), sorted(self.effects))
        for _ in range(2):
            self.do_maintain(-1, None)
        self.compare_status("packed")
        # But for those of the process that keeps the log of leases, and of the packer.
        self.compare("advisory locks", self.sql(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid NOT IN (18764, 18768) AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"), [(0,)])
        for s in self.sessions:
            s.close()
        self.control.close()

    def compare_status(self, when):
        nobody = self.new_txn("READ COMMITTED")
        keys = self.model.known()
        self.compare(f"event_status and event_result, {when}", dict(
            (key, self.sql("SELECT (idempotency.event_status(%s, %s)).status::text, idempotency.event_result(%s, %s)",
                           (key[1], key[0], key[1], key[0]))[0]) for key in keys),
            {key: (*self.model.statuses(nobody, key), (self.model.latest(key) or Version("unknown")).result) for key in keys})

    def compare_remembered(self):
        self.compare_status("now")
        expected = {key: (self.model.latest(key).status, self.model.latest(key).result) for key in self.model.versions}
        rows = self.sql("SELECT consumer, event_id, status::text, result FROM idempotency.processed_events"
                        " WHERE consumer <> 'filler'")
        open_events = dict(((c, e), (status, result)) for c, e, status, result in rows)
        self.compare("processed_events", open_events, {key: expected.get(key) for key in open_events})
        self.compare("rows of processed_events", len(rows), len(open_events))

    @staticmethod
    def compare(what, got, expected):
        if got != expected:
            if isinstance(got, dict):
                keys = [k for k in set(got) | set(expected) if got.get(k) != expected.get(k)]
                got, expected = {k: got.get(k) for k in keys}, {k: expected.get(k) for k in keys}
            raise Mismatch(f"{what}: expected {expected}, got {got}")
