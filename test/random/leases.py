"""Leases: random transactions of several sessions, of claims too, against leases_model.

Every operation of claims.py is done here as well, on the same events.  What needs a token and has to wait for a lock
leaves its session waiting, or gives up by lock_timeout; no two sessions are left to wait for each other.
"""
import time

import psycopg2

from claims import SESSIONS, SETUP as CLAIMS_SETUP, WRONG as WRONG_CLAIMS, Claims, Wait
from claims_model import BUSY, CLAIMED, DUPLICATE, SERIALIZATION
from leases_model import (DEAD, DONE, EXCLUSIVE, EXPIRED, HOUR, IN_USE, LEASED, LOST, NO_LOCKS, SHARE, SLACK, WAITS, LeaseModel, LeaseTxn,
                          Policy)
from session import Answer
from transactions import LEVELS

# consumer -> arguments of consumer_create, None for one that is not registered; and how often it is chosen
CONSUMERS = {
    "default": None,
    "plain": None,
    "private": "private_locks => true",
    "quick": "lease_duration => '1 h'",
    "foreign": "foreign_lockers => true",
}
OFTEN = ("default", "plain", "private", "private", "private", "quick", "quick", "quick", "foreign")
IDS = ("a", "b", "c")
BASE = {
    "private": Policy(duration=1, attempts=3, shortest=1, longest=3),
    "quick": Policy(duration=1, attempts=2, shortest=0, longest=0),
}

ROW = """jsonb_build_array(l.result, l.token, l.attempt, extract(epoch FROM l.lease_until - clock_timestamp()),
	l.recovery_point, l.state, l.event_result, extract(epoch FROM l.retry_after), l.last_error)"""

SETUP = CLAIMS_SETUP + """
CREATE TABLE r.fenced (consumer text, event_id text, token bigint);
CREATE FUNCTION r.lease(id text, c text) RETURNS jsonb LANGUAGE sql AS $$
""" + f"SELECT {ROW} FROM idempotency.lease_event(id, c, duration => '1 h') l" + """
$$;
""" + "".join(f"""
CREATE TABLE r.guarded_{c} (event_id text);
CREATE TRIGGER fence BEFORE INSERT ON r.guarded_{c} FOR EACH ROW
	EXECUTE FUNCTION idempotency.lease_guard('{c}', 'event_id');
""" for c in CONSUMERS)

WRONG = WRONG_CLAIMS + (
    ("SELECT idempotency.lease_event('')", "22023"),
    ("SELECT idempotency.lease_event(NULL::text)", "22004"),
    ("SELECT idempotency.lease_event('a', consumer => '@relay/x')", "22023"),
    ("SELECT idempotency.lease_event('a', duration => '0')", "22023"),
    ("SELECT idempotency.lease_event('a', duration => '367 days')", "22023"),
    ("SELECT idempotency.lease_event('a', holder => '')", "22023"),
    ("SELECT idempotency.lease_event('a', holder => repeat('x', 256))", "22023"),
    ("SELECT idempotency.lease_event('a', wait => '-1 s')", "22023"),
    ("SELECT idempotency.lease_events('{{a},{b}}')", "2202E"),
    ("SELECT idempotency.lease_events(NULL)", "22004"),
    ("SELECT idempotency.extend_lease('a', NULL)", "22004"),
    ("SELECT idempotency.extend_lease('a', 1, duration => '-1 s')", "22023"),
    ("SELECT idempotency.extend_lease('a', 1, recovery_point => '')", "22023"),
    ("SELECT idempotency.extend_lease('a', 1, recovery_point => repeat('x', 256))", "22023"),
    ("SELECT idempotency.extend_lease('a', 1, state => to_jsonb(repeat('x', 1048577)))", "54000"),
    ("SELECT idempotency.assert_lease('a', NULL)", "22004"),
    ("SELECT idempotency.release_lease('a', NULL)", "22004"),
    ("SELECT idempotency.release_lease('a', 1, retry_after => '-1 s')", "22023"),
    ("SELECT idempotency.release_lease('a', 1, retry_after => '367 days')", "22023"),
    ("SELECT idempotency.release_lease('a', 1, retry_after => '1 s', park => true)", "22023"),
    ("SELECT idempotency.consumer_redrive('quick', scope => '')", "22023"),
    ("SELECT idempotency.consumer_discard('quick', scope => repeat('x', 256))", "22023"),
    ("SELECT idempotency.consumer_redrive(NULL)", "22004"),
    ("SELECT idempotency.consumer_alter('quick', max_attempts => -1)", "22023"),
    ("SELECT idempotency.consumer_alter('quick', lease_duration => '0')", "22023"),
    ("SELECT idempotency.consumer_alter('quick', min_backoff => '2 h', max_backoff => '1 h')", "22023"),
)


def interval(hours):
    return f"{hours} h" if hours else "1 ms"


def alteration(policy):
    """The arguments of consumer_alter."""
    return (f"lease_duration => '{interval(policy.duration)}', max_attempts => {policy.attempts},"
            f" min_backoff => '{interval(policy.shortest)}', max_backoff => '{interval(policy.longest)}'")


class Leases(Claims):
    CONSUMERS, IDS, SETUP, WRONG = CONSUMERS, IDS, SETUP, WRONG
    new_txn = LeaseTxn

    def __init__(self, cluster, dbname):
        super().__init__(cluster, dbname)
        self.alone = False          # the operation is a transaction of its own
        self.fenced = []            # committed
        self.before = 0             # the highest token before the operation
        self.woken = False          # a session that has waited is looked at

    @staticmethod
    def new_model(foreign_lockers):
        return LeaseModel(foreign_lockers, BASE)

    def clean(self):
        super().clean()
        self.sql("TRUNCATE idempotency_data.lease_log_0, idempotency_data.lease_log_1, idempotency_data.lease_log_2")
        for consumer, policy in BASE.items():
            self.sql(f"SELECT idempotency.consumer_alter('{consumer}', {alteration(policy)})")

    # Choosing.

    def choose(self, rng):
        chance = rng.random()
        if chance < 0.0003:
            return (-1, "turn")
        if chance < 0.004:
            return (-1, "import", rng.choice(OFTEN[:-1]), tuple(rng.choice(self.IDS) for _ in range(rng.randint(1, 2))))
        return super().choose(rng)

    def choose_idle(self, rng, s):
        chance = rng.random()
        if chance < 0.5:
            return (s, "auto", *self.choose_lease(rng, None, ALONE)[1:])
        if chance < 0.6:
            return super().choose_idle(rng, s)
        local = {}
        if rng.random() < 0.15:
            local["budget"] = rng.choice((0, 1, 2))
        if rng.random() < 0.05:
            local["keep"] = True
        return (s, "begin", rng.choice(LEVELS), rng.random() < 0.02, tuple(sorted(local.items())))

    def choose_inside(self, rng, s, txn):
        if rng.random() < 0.45:
            op = super().choose_inside(rng, s, txn)
            return (*op[:5], "lease", op[6]) if op[1] == "declare" and rng.random() < 0.5 else op
        return (s, *self.choose_lease(rng, txn, INSIDE)[1:])

    def choose_lease(self, rng, txn, ways):
        """(None, way, ...), of what has to do with leases."""
        way = rng.choices([w for w, _ in ways], [n for _, n in ways])[0]
        consumer, event_id = rng.choice(OFTEN), rng.choice(self.IDS)
        if way in NEED_TOKEN:
            consumer, event_id = self.choose_leased(rng, txn, consumer, event_id)
        which = rng.choices(("current", "former", "other", "none"), (85, 10, 3, 2))[0]
        patient = rng.random() < 0.5
        if way == "lease":
            wait = "1 h" if txn and rng.random() < 0.1 and not self.is_awaited((consumer, event_id)) else \
                "5 ms" if rng.random() < 0.05 else None
            valid = rng.choice(("infinity", "-infinity")) if rng.random() < 0.06 else None
            return (None, way, consumer, event_id, rng.choice((1, 1, 0, 0, None)), wait, valid)
        if way == "leases":
            return (None, way, consumer, tuple(rng.choice(self.IDS) for _ in range(rng.randint(1, 4))), rng.choice((1, 0)))
        if way == "extend":
            return (None, way, consumer, event_id, which, rng.choice((1, 1, 0, None)),
                    rng.choice((None, None, "half", "most")), rng.choice((None, None, {"n": rng.randrange(10)})), patient)
        if way == "assert":
            return (None, way, consumer, event_id, which, patient)
        if way == "complete":
            return (None, way, consumer, event_id, rng.choice((None, rng.randrange(100))))
        if way == "finish":
            return (None, way, consumer, event_id, which, rng.choice((None, rng.randrange(100))), patient)
        if way == "give_back":
            error = rng.choice((None, None, "first", "second"))
            park = rng.random() < 0.1
            retry = None if park else rng.choices((None, 0, 1), (6, 3, 1))[0]
            return (None, way, consumer, event_id, which, error, retry, park, patient)
        if way in ("redrive", "discard"):
            return (None, way, consumer, None if rng.random() < 0.3 else
                    tuple(rng.choice(self.IDS) for _ in range(rng.randint(1, 3))))
        if way == "alter":
            backoff = rng.choice(((0, 0), (0, 0), (1, 1), (1, 3), (2, 3)))
            return (None, way, rng.choice(sorted(BASE)), Policy(rng.choice((1, 1, 0)), rng.randrange(4), *backoff))
        return (None, way, consumer, event_id)

    def choose_leased(self, rng, txn, consumer, event_id):
        """Rather one that is leased, and rather one that this transaction has asserted."""
        asserted = sorted(k for k in txn.asserted if self.is_event(k)) if txn else ()
        if asserted and rng.random() < 0.5:
            return rng.choice(asserted)
        leased = sorted(k for k, lease in self.model.leases.items() if lease.state == LEASED and self.is_event(k))
        return rng.choice(leased) if leased and rng.random() < 0.8 else (consumer, event_id)

    def makes_sense(self, op):
        s, way = op[:2]
        if s >= 0 and way == "auto":
            return s not in self.waiting and self.model.txns.get(s) is None
        if way == "lease" and op[5] == "1 h" and self.is_awaited((op[2], op[3])):
            return False
        return super().makes_sense(op)

    # Transactions.

    def apply(self, op):
        self.before = self.model.highest
        super().apply(op)

    def look(self, s):
        self.woken = True
        super().look(s)
        self.woken = False

    def do_auto(self, s, _txn, way, *args):
        """An operation that is a transaction of its own."""
        self.transactions += 1
        settings = self.settings[s]
        txn = self.model.begin(s, self.new_txn("READ COMMITTED", False, settings["keep"], settings["budget"]))
        self.alone = True
        getattr(self, "do_" + way)(s, txn, *args)
        self.alone = False
        self.model.end(s)
        if not txn.failed:
            self.committed(txn)

    def committed(self, txn):
        super().committed(txn)
        for key, token in txn.fenced:
            if any(k == key and t > token for k, t in self.fenced):
                self.wrong("no effect under a token after a higher one", (key, token))
            self.fenced.append((key, token))

    def has_effect(self, txn, key):
        return key not in txn.discarded

    # Claims.

    def take(self, txn, key, verdict, allowed):
        super().take(txn, key, verdict, allowed)
        if verdict == DEAD:
            self.model.judged_dead(txn, key)

    def complete_all(self, txn, consumer, events):
        failures = set()
        for event_id, result in events:
            error = self.model.complete(txn, (consumer, event_id), result)
            failures |= {error} if isinstance(error, str) else error or {DONE}
            if error and DONE not in failures:
                break
        return failures

    # Leasing.

    def lasts(self, txn, consumer, hours):
        """(SQL, hours) of a duration; NULL where the consumer's is known to last, or to be over."""
        known = self.model.policy(txn, consumer).duration
        if hours is None and known is not None:
            return "NULL", known
        return f"'{interval(hours or 0)}'", hours or 0

    def do_lease(self, s, txn, consumer, event_id, hours, wait, valid):
        key = (consumer, event_id)
        duration, hours = self.lasts(txn, consumer, hours)

        def allowed():
            return {"25006", "55000"} if txn.read_only else self.model.lease(txn, key, valid == "-infinity")

        def settle(answer, allowed):
            if self.judge(txn, answer, allowed):
                self.lease(txn, key, answer.rows[0][0], allowed, hours)
        patient = wait == "1 h" and allowed() == {BUSY} and not self.model.has_done(txn, key) and self.model.would_lock(txn, key)
        if wait == "1 h" and not patient:
            wait = "5 ms"
        sql = f"SELECT {ROW} FROM idempotency.lease_event(%s, %s, duration => {duration}, holder => %s" + \
            (f", wait => '{wait}'" if wait else "") + (f", valid_until => '{valid}'" if valid else "") + ") l"
        args = (event_id, consumer, f"session {s}")
        if patient:
            self.leave(s, Wait(key, BUSY, allowed, settle), sql, args)
        else:
            settle(self.run(s, sql, args), allowed())

    def lease(self, txn, key, row, allowed, hours):
        """It is the row that the model has for its verdict; then the model goes on by it."""
        verdict, token, attempt, left, point, work, result, retry, error = row
        if verdict not in allowed:
            self.wrong(f"{key}: {sorted(allowed)}", row)
        lease, nothing = self.model.view(txn, key), {}
        if verdict == CLAIMED:
            self.check_token(key, token, row)
            if not self.is_left(left, (hours, hours)):
                self.wrong(f"an end of the lease in {hours} h", row)
            nothing = {"token": token, "attempt": lease.attempt + 1 if lease else 1, "left": left}
            if lease:
                nothing.update(point=lease.point, work=lease.work, error=lease.error)
        elif verdict == DUPLICATE:
            own = txn.claims.get(key)
            nothing = {"result": own.result if own and own.phase == "completed" else self.model.latest(key).result}
        elif verdict == BUSY:
            self.check_pause(txn, key, lease, row, retry)
            nothing = {"retry": retry}
        elif verdict == DEAD:
            nothing = {"attempt": lease.attempt, "error": lease.error}
        expected = [verdict] + [nothing.get(n) for n in
                                ("token", "attempt", "left", "point", "work", "result", "retry", "error")]
        if row != expected:
            self.wrong(expected, row)
        if verdict == CLAIMED:
            self.model.leased(txn, key, token, hours > 0, (hours, hours))
            self.pass_time(hours)
        elif verdict == DEAD:
            self.model.judged_dead(txn, key)

    def check_token(self, key, token, row):
        """Sessions that one operation has woken take their tokens in any order."""
        least = max([self.before, *self.model.tokens.get(key, ())]) if self.woken else self.model.highest
        if token <= least:
            self.wrong(f"a token above {least}", row)

    def check_pause(self, txn, key, lease, row, retry):
        """NULL if it is somebody's, or beyond the budget of locks; else the time that is left."""
        none = self.model.is_busy(txn, key) or self.model.has_done(txn, key) or not self.model.would_lock(txn, key) or \
            self.model.is_polled(txn, key)
        lasts = lease is not None and lease.lasts and not self.model.has_done(txn, key)
        if retry is None and not none or retry is not None and not (lasts and self.is_left(retry, lease.left)):
            self.wrong(f"a pause of {lease.left if lasts else None} h", row)

    @staticmethod
    def is_left(seconds, hours):
        low, high = hours
        return (low * HOUR - SLACK if low else -SLACK) < seconds <= (high * HOUR if high else 0.001)

    @staticmethod
    def pass_time(hours=0):
        """What lasts for a millisecond, and not for hours, is over for the next operation."""
        end = time.time() + 0.002
        while not hours and time.time() < end:
            time.sleep(0.0005)

    def do_leases(self, s, txn, consumer, ids, hours):
        """The budget of locks goes to the ids in the order of their bytes; of repeats the first may be leased."""
        duration, hours = self.lasts(txn, consumer, hours)
        answer = self.run(s, f"SELECT ord, event_id, {ROW} FROM idempotency.lease_events(%s, %s,"
                          f" duration => {duration}) l ORDER BY ord", (list(ids), consumer))
        if txn.read_only:
            self.judge(txn, answer, {"25006", "55000"})
            return
        failures = set()
        for event_id in sorted(set(ids)):
            allowed = self.model.lease(txn, (consumer, event_id), batch=True)
            failures |= {a for a in allowed if len(a) == len(SERIALIZATION)}
            if answer.state is None:
                for row in [row for n, _, row in answer.rows if ids[n - 1] == event_id]:
                    self.lease(txn, (consumer, event_id), row, self.model.lease(txn, (consumer, event_id), batch=True), hours)
        if not self.judge(txn, answer, failures | {DONE}):
            return
        if [(n, e) for n, e, _ in answer.rows] != list(enumerate(ids, 1)):
            self.wrong("a row for each element, in order", answer)

    def fetchable(self, txn, cursor, key):
        return self.model.lease(txn, key) if cursor.verb == "lease" else super().fetchable(txn, cursor, key)

    def fetched(self, txn, cursor, key, verdict, allowed):
        if cursor.verb == "lease":
            self.lease(txn, key, verdict, allowed, 1)
        else:
            super().fetched(txn, cursor, key, verdict, allowed)

    # Acting under a token.

    def token(self, txn, key, which):
        lease, known = self.model.view(txn, key), self.model.tokens
        current = lease.token if lease and lease.state == LEASED else None
        if which == "current":
            return current or (known[key][-1] if known.get(key) else 1)
        if which == "former":
            return next((t for t in reversed(known.get(key, ())) if t != current), 1)
        if which == "other":
            return max((t for k, ts in known.items() if k != key for t in ts), default=1)
        return 1

    def act(self, s, txn, key, token, mode, patient, sql, args, settle):
        """settle: with the row of an answer that is no error."""
        def allowed():
            return {"25006"} if txn.read_only else self.model.act(txn, key, token, mode)

        def judged(answer, allowed):
            if self.judge(txn, answer, allowed - {WAITS}):
                settle(answer.rows[0][0])
        began = self.model.policy(txn, key[0])

        def judged_late(answer, allowed):
            txn.began = {key[0]: began}
            judged(answer, allowed)
            txn.began = {}
        now = allowed()
        if WAITS not in now:
            judged(self.run(s, sql, args), now)
        elif now == {WAITS} and patient and self.may_wait(txn, key):
            self.leave(s, Wait(key, WAITS, allowed, judged_late, mode), sql, args)
        else:
            judged(self.run_briefly(s, sql, args), now | {IN_USE})

    def run_briefly(self, s, sql, args=None):
        """It waits for a lock, if it waits, and gives up; an error takes the setting back."""
        self.run(s, "SET lock_timeout = '5 ms'")
        answer = self.run(s, sql, args)
        if answer.state is None or self.alone:
            self.sessions[s].run("RESET lock_timeout")
        return answer

    def may_wait(self, txn, key):
        """Nobody in the way waits, too."""
        return not self.alone and not self.is_awaited(key) and \
            not any(self.model.lock_of(self.model.txns[s], key) for s in self.waiting)

    def do_extend(self, s, txn, consumer, event_id, which, hours, point, work, patient):
        key = (consumer, event_id)
        duration, hours = self.lasts(txn, consumer, hours)

        def settle(left):
            if not self.is_left(left, (hours, hours)):
                self.wrong(f"an end of the lease in {hours} h", left)
            self.model.extend(txn, key, hours > 0, (hours, hours), point, work)
            self.pass_time(hours)
        token = self.token(txn, key, which)
        self.act(s, txn, key, token, SHARE, patient,
                 f"SELECT extract(epoch FROM idempotency.extend_lease(%s, %s, %s, duration => {duration}, recovery_point => %s,"
                 " state => %s::jsonb) - clock_timestamp())::float8",
                 (event_id, token, consumer, point, None if work is None else str(work).replace("'", '"')), settle)

    def do_assert(self, s, txn, consumer, event_id, which, patient):
        key = (consumer, event_id)
        token = self.token(txn, key, which)
        self.act(s, txn, key, token, SHARE, patient, "SELECT idempotency.assert_lease(%s, %s, %s)", (event_id, token, consumer),
                 lambda _: self.model.assert_lease(txn, key, token))

    def do_finish(self, s, txn, consumer, event_id, which, result, patient):
        """Complete with a token; an effect comes with it."""
        key = (consumer, event_id)
        token = self.token(txn, key, which)

        def settle(_):
            self.model.complete_leased(txn, key, result)
            txn.fenced += ((key, token),)
        self.act(s, txn, key, token, EXCLUSIVE, patient,
                 "WITH e AS (INSERT INTO r.effect VALUES (%s, %s)), f AS (INSERT INTO r.fenced VALUES (%s, %s, %s) RETURNING *)"
                 " SELECT idempotency.complete_event(event_id, consumer, result => %s::jsonb, token => token) FROM f",
                 (consumer, event_id, consumer, event_id, token, None if result is None else str(result)), settle)

    def do_give_back(self, s, txn, consumer, event_id, which, error, retry, park, patient):
        key = (consumer, event_id)
        if error is not None and retry is None and self.model.policy(txn, consumer).shortest is None and not park:
            retry = 0               # the default pauses are as long as a slow machine may take
        token = self.token(txn, key, which)

        def settle(state):
            expected = self.model.give_back(txn, key, error, retry, park)
            if state != expected:
                self.wrong(expected, state)
            self.pass_time()
        self.act(s, txn, key, token, EXCLUSIVE, patient,
                 "SELECT idempotency.release_lease(%s, %s, %s, error => %s, retry_after => %s::interval, park => %s)",
                 (event_id, token, consumer, error, None if retry is None else interval(retry), park), settle)

    def do_foreign(self, s, txn, consumer, event_id):
        if self.model.is_polled(txn, (consumer, event_id)):
            self.do_nothing(s, txn)
        else:
            super().do_foreign(s, txn, consumer, event_id)

    def do_nothing(self, s, txn):
        """But what each operation does: it takes the transaction's snapshot."""
        self.judge(txn, self.run(s, "SELECT 1"))

    def do_fenced(self, s, txn, consumer, event_id):
        """An effect under the lease that this transaction has asserted, if it has."""
        key = (consumer, event_id)
        if key not in txn.asserted:
            self.do_nothing(s, txn)
            return
        token = txn.asserted[key]
        answer = self.run(s, "INSERT INTO r.fenced VALUES (%s, %s, %s)", (consumer, event_id, token))
        if self.judge(txn, answer, {"25006"} if txn.read_only else None):
            txn.fenced += ((key, token),)

    def do_guarded(self, s, txn, consumer, event_id):
        answer = self.run(s, f"INSERT INTO r.guarded_{consumer} VALUES (%s)", (event_id,))
        key = consumer, event_id
        if self.judge(txn, answer, "25006" if txn.read_only else None if self.model.may_write(txn, key) else LOST) and \
                key in txn.claims:
            txn.claims[key] = txn.claims[key]._replace(written=True)

    # Operators.

    def do_redrive(self, s, txn, consumer, ids, scope=None):
        self.decide(s, txn, "consumer_redrive", self.model.redriven, self.keys_of(consumer, ids, scope), (consumer, ids, scope))

    def do_discard(self, s, txn, consumer, ids, scope=None):
        self.decide(s, txn, "consumer_discard", self.model.discard, self.keys_of(consumer, ids, scope), (consumer, ids, scope))

    def keys_of(self, consumer, ids, _scope):
        """The events that an operator decides on, or all that may be dead."""
        return [(consumer, i) for i in sorted(set(ids or self.IDS))]

    def decide(self, s, txn, function, apply, keys, named):
        consumer, ids, scope = named
        args = (consumer, ids and list(ids), scope)
        named_ones = bool(ids) and function == "consumer_redrive"
        dead = [k for k in keys if self.model.is_dead(txn, k) or (named_ones and self.model.is_paused(txn, k))]
        free = [k for k in dead if not self.model.is_busy(txn, k)]
        late = any(self.model.is_late(txn, k) for k in keys)
        others = any(self.model.is_busy(txn, k) or self.model.is_polled(txn, k) or self.model.has_locked(txn, k, EXCLUSIVE)
                     for k in keys)
        sql = f"SELECT idempotency.{function}(%s, %s, %s)"
        if txn.read_only:
            self.judge(txn, self.run(s, sql, args), "25006")
            return
        allowed = {DONE}
        if not self.model.has_room(txn, keys if ids else free):
            if not ids:
                self.decide_in_part(s, txn, sql, args, free)
                return
            allowed.add(NO_LOCKS)
        if late or self.model.may_have_moved(txn):
            allowed.add(SERIALIZATION)
        if others and ids:
            allowed.add(IN_USE)
        answer = self.run_briefly(s, sql, args) if others else self.run(s, sql, args)
        if not self.judge(txn, answer, allowed):
            return
        if answer.rows[0][0] != len(free):
            self.wrong(len(free), answer)
        for key in free:
            apply(txn, key)

    def decide_in_part(self, s, txn, sql, args, free):
        """As many as there are locks left for; nobody knows which, so it is undone."""
        self.run(s, "BEGIN" if self.alone else "SAVEPOINT undone")
        answer = self.run(s, sql, args)
        for end in ("ROLLBACK",) if self.alone else ("ROLLBACK TO undone", "RELEASE undone"):
            self.run(s, end)
        left = sum(self.model.has_room(txn, free[:n + 1]) for n in range(len(free)))
        if answer.state not in (None, SERIALIZATION) or answer.state is None and answer.rows[0][0] != left:
            self.wrong(left, answer)

    def do_alter(self, s, txn, consumer, policy):
        policy = Policy(*policy)
        if self.change(s, txn, consumer, f"SELECT idempotency.consumer_alter('{consumer}', {alteration(policy)})", DONE):
            txn.policies[consumer] = policy

    def change(self, s, txn, consumer, sql, outcome):
        """A consumer, of which one transaction at a time may change the row; True if it was done."""
        others = [t for t in self.model.others(txn) if consumer in t.policies]
        late = txn.isolation != "READ COMMITTED" and self.model.altered.get(consumer, 0) > (txn.snapshot or 0)
        allowed = {"25006"} if txn.read_only else {IN_USE} if others else {outcome, SERIALIZATION} if late else {outcome}
        answer = self.run_briefly(s, sql) if others else self.run(s, sql)
        return self.judge(txn, answer, allowed)

    def do_wrong(self, s, txn, n):
        sql, state = self.WRONG[n]
        if "consumer_alter('quick'" in sql:
            self.change(s, txn, "quick", sql, state)
        else:
            super().do_wrong(s, txn, n)

    def do_import(self, _s, _txn, consumer, ids):
        nobody = self.new_txn("READ COMMITTED")
        allowed = set.union(*(self.model.import_event(nobody, (consumer, i)) for i in ids))
        answer = self.run_control("SELECT idempotency.claims_import(%s, %s)", (consumer, list(ids)))
        new = [i for i in sorted(set(ids)) if (v := self.model.latest((consumer, i))) is None or v.status != "completed"]
        if allowed != {DONE}:
            allowed -= {DONE}
        if (answer.state or DONE) not in allowed or answer.state is None and answer.rows[0][0] != len(new):
            self.wrong((sorted(allowed), len(new)), answer)
        if answer.state is None:
            for event_id in new:
                self.model.remember((consumer, event_id))

    def run_control(self, sql, args):
        try:
            answer = Answer(self.sql(sql, args))
        except psycopg2.Error as error:
            answer = Answer(state=error.pgcode, text=str(error).split("\n", maxsplit=1)[0])
        self.say(answer)
        return answer

    # The log's own work.

    def do_turn(self, _s, _txn):
        """So many rows that the tables of the log take turns, at some time."""
        self.model.turns = True
        self.sql("""DO $$
DECLARE
	held bigint;
BEGIN
	FOR i IN 1 .. 3 LOOP
		SELECT token INTO held FROM idempotency.lease_event('filler', 'filler');
		FOR j IN 1 .. 5000 LOOP
			PERFORM idempotency.extend_lease('filler', held, 'filler', recovery_point => repeat('x', 200));
		END LOOP;
		PERFORM idempotency.release_lease('filler', held, 'filler');
		COMMIT;
	END LOOP;
END $$""")

    # The end.

    def compare_remembered(self):
        super().compare_remembered()
        self.compare_view()
        self.compare_leases()
        self.compare("effects under leases", sorted(self.sql("SELECT consumer, event_id, token FROM r.fenced")),
                     sorted((*key, token) for key, token in self.fenced))

    def compare_view(self):
        rows = self.sql("SELECT consumer, concat(scope || '/', event_id), state::text, attempt, recovery_point, last_error, state <> 'dead' AND due,"
                        " CASE state WHEN 'leased' THEN token END FROM idempotency.leases WHERE consumer <> 'filler'")
        self.compare("leases", sorted(rows, key=lambda row: row[:2]), sorted(
            ((*key, lease.state, lease.attempt, lease.point, lease.error, lease.state != DEAD and not lease.lasts,
              lease.token if lease.state == LEASED else None) for key, lease in self.model.leases.items()),
            key=lambda row: row[:2]))

    def compare_leases(self):
        """Each event is leased once more, to be given back at once."""
        for key in [(c, i) for c in self.CONSUMERS for i in self.IDS if c != "foreign"]:
            nobody = self.new_txn("READ COMMITTED")
            self.trace.append(f"at the end, {key}")
            self.control.autocommit = False
            row = self.sql("SELECT r.lease(%s, %s)", (key[1], key[0]))[0][0]
            self.control.rollback()
            self.control.autocommit = True
            self.lease(nobody, key, row, self.model.lease(nobody, key), 1)


NEED_TOKEN = ("extend", "assert", "finish", "give_back", "fenced", "complete")
ALONE = (("lease", 30), ("leases", 6), ("extend", 16), ("finish", 6), ("give_back", 14), ("redrive", 4), ("discard", 2),
         ("alter", 2), ("assert", 1), ("guarded", 1))
INSIDE = (("lease", 18), ("leases", 4), ("extend", 14), ("assert", 16), ("finish", 8), ("give_back", 10), ("fenced", 6),
          ("complete", 4), ("guarded", 5), ("redrive", 4), ("discard", 2), ("alter", 1))
