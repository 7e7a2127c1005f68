"""Offsets and sequences: random transactions of several sessions against cursors_model.

Batches are of up to 2^30 records, and claims are near the sequence that comes next, so that sequences wrap after a few
claims.  What has to wait for a lock gives up by lock_timeout.
"""
from cursors_model import (CIRCLE, IN_USE, LARGEST, SERIALIZATION, Model, Offset, Txn, id_key, offset_key, sequence_key)
from session import PATIENCE, Session
from transactions import LEVELS, Transactions

SESSIONS = 4
CONSUMERS = ("c", "d")
PARTITIONS = 3
# name -> gapless
PRODUCERS = {"p": True, "q": True, "r": False}
COUNTS = (1, 1, 1, 2, 3, 10, 1 << 20, 1 << 29, (1 << 30) - 1, 1 << 30)
NO_WAIT = "SET LOCAL lock_timeout = '1ms'"

WRONG = (
    ("SELECT idempotency.claim_offset('', 't', 0, 0)", "22023"),
    ("SELECT idempotency.claim_offset('@x', 't', 0, 0)", "22023"),
    ("SELECT idempotency.claim_offset('c', NULL, 0, 0)", "22004"),
    ("SELECT idempotency.claim_offset('c', 't', -1, 0)", "22023"),
    ("SELECT idempotency.claim_offset('c', 't', 0, 9223372036854775807)", "22023"),
    ("SELECT idempotency.claim_offset('c', 't', 0, 5, 4)", "22023"),
    ("SELECT idempotency.resume_offset('c', 't', 0, -1)", "22023"),
    ("SELECT idempotency.claim_sequence(0, -1, 0)", "22023"),
    ("SELECT idempotency.claim_sequence(0, 0, -1)", "22023"),
    ("SELECT idempotency.claim_sequence(0, 0, 0, count => 0)", "22023"),
    ("SELECT idempotency.claim_sequence(0, 0, 0, count => 1073741825)", "22023"),
    ("SELECT idempotency.register_producer('')", "22023"),
    ("SELECT idempotency.producer_drop('nobody')", "42704"),
    ("SELECT idempotency.last_sequence(0)", "42704"),
)


def give_out_first(cluster, dbname):
    """The first number looks at the whole log."""
    cluster.rows("SELECT idempotency.register_producer('first')", dbname=dbname)


class Cursors(Transactions):
    def __init__(self, cluster, dbname):
        self.cluster, self.dbname = cluster, dbname
        self.open_control()
        self.forget_transactions("cursors%")
        self.sql("TRUNCATE idempotency_data.cursor_log_0, idempotency_data.cursor_log_1, idempotency_data.cursor_log_2")
        self.model = Model()
        self.sessions = [Session(cluster, dbname, f"cursors {i}") for i in range(SESSIONS)]
        self.names = 0
        self.transactions = 0
        self.trace = []

    def open_control(self):
        self.control = self.cluster.connect(self.dbname)
        self.sql(f"SET statement_timeout = '{PATIENCE}s'")

    # Choosing.

    def choose(self, rng):
        chance = rng.random()
        if chance < 0.0005:
            return (-1, "restart", rng.choice(("fast", "immediate")))
        if chance < 0.001:
            return (-1, "turn")
        if chance < 0.01:
            return (-1, "look")
        s = rng.randrange(SESSIONS)
        if rng.random() < 0.002:
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
        if chance < 0.5:
            return (s, "auto", *self.choose_call(rng, Txn("READ COMMITTED")))
        return (s, "begin", rng.choice(LEVELS), rng.random() < 0.02, rng.choice((64, 64, 64, 64, 0, 1, 2, 3)))

    def choose_inside(self, rng, s, txn):
        ways = [("call", 30), ("portal", 2), ("savepoint", 6), ("commit", 8), ("rollback", 2), ("prepare", 2), ("wrong", 1)]
        if txn.savepoints:
            ways += [("rollback_to", 5), ("release_savepoint", 3)]
        way = rng.choices([w for w, _ in ways], [n for _, n in ways])[0]
        if way == "call":
            return (s, *self.choose_call(rng, txn))
        if way == "portal":
            return (s, way, self.choose_offset(rng, txn), self.choose_offset(rng, txn))
        if way == "wrong":
            return (s, way, rng.choice(WRONG))
        return self.choose_of_any(rng, s, txn, way, "cursors")

    def choose_call(self, rng, txn):
        way = rng.choices(("claim_offset", "claim_sequence", "resume", "register", "last", "reset", "drop"), (30, 45, 8, 6, 3, 2, 1))[0]
        if way == "claim_offset":
            return (way, *self.choose_offset(rng, txn))
        if way == "claim_sequence":
            return (way, *self.choose_sequence(rng, txn))
        if way == "resume":
            return (way, rng.choice(CONSUMERS), rng.randrange(PARTITIONS), self.choose_generation(rng))
        if way == "reset":
            return (way, rng.choice(CONSUMERS), rng.randrange(PARTITIONS), rng.choice((None, rng.randrange(50))))
        if way == "register":
            name = rng.choice(sorted(PRODUCERS))
            return (way, name, PRODUCERS[name] if rng.random() < 0.97 else not PRODUCERS[name])
        if way == "last":
            return (way, self.choose_id(rng), rng.randrange(PARTITIONS))
        return (way, rng.choice(sorted(PRODUCERS)))

    @staticmethod
    def choose_generation(rng):
        return rng.choice((None, None, 1, 2, 3, rng.randrange(12)))

    def choose_offset(self, rng, txn):
        consumer, partition = rng.choice(CONSUMERS), rng.randrange(PARTITIONS)
        position = (self.model.get(txn, offset_key(consumer, partition)) or Offset()).position or 0
        first = min(max(0, position + rng.choice((0, 0, 0, 0, 1, -1, 5, -5))), LARGEST - 1)
        following = rng.choice((None, min(first + rng.choice((0, 1, 1, 4, 10)), LARGEST)))
        if rng.random() < 0.002:
            first, following = LARGEST - 1, None
        return consumer, partition, first, following, self.choose_generation(rng)

    def choose_id(self, rng):
        """One that is registered, or perhaps one that was, by its place among all; None: none is."""
        ids = self.model.ids
        live = [i for i, n in enumerate(ids) if id_key(n) in self.model.state]
        if live and rng.random() < 0.95:
            return rng.choice(live)
        return rng.randrange(len(ids)) if ids else None

    def choose_sequence(self, rng, txn):
        """(id's place, back, partition, ahead, count): back and ahead of what the model has then."""
        return (self.choose_id(rng), rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 2, -1)), rng.randrange(PARTITIONS),
                rng.choice(("next", "next", "next", "next", "again", "again", "part", "straddle", "far", "zero", 1, -1, -3, 1 << 30, -(1 << 30))),
                rng.choice(COUNTS))

    def makes_sense(self, op):
        s, way = op[:2]
        if s < 0:
            return True
        txn = self.model.txns.get(s)
        if way == "auto":
            return txn is None
        if (known := self.ends_make_sense(txn, op)) is not None:
            return known
        return not txn.failed

    # Doing.

    def judge(self, txn, answer, errors=()):
        """True if there are rows to look at.  Serializable transactions may fail for reasons that are not ours."""
        if answer.state is None and not answer.lost:
            return True
        spurious = answer.state == SERIALIZATION and txn.isolation == "SERIALIZABLE"
        if answer.lost or answer.state not in errors and not spurious:
            self.wrong(sorted(map(str, errors)) or "success", answer)
        self.model.fail(txn)
        return False

    def call(self, s, txn, sql, args, allowed):
        """Do it; the row if there is one that is allowed, else None."""
        if IN_USE in allowed and s in self.model.txns:
            self.run(s, NO_WAIT)
        answer = self.run(s, sql, args)
        if not self.judge(txn, answer, {a for a in allowed if isinstance(a, str)}):
            return None
        row = answer.rows[0]
        return row

    def check(self, allowed, got):
        if got not in allowed:
            self.wrong(allowed, got)

    def do_claim_offset(self, s, txn, consumer, partition, first, following, generation):
        allowed, act = self.model.claim_offset(txn, offset_key(consumer, partition), first, following, generation)
        row = self.call(s, txn, "SELECT result::text, new_from FROM idempotency.claim_offset(%s, 't', %s, %s, %s, %s)",
                        (consumer, partition, first, following, generation), allowed)
        if row:
            self.check(allowed, row)
            if act:
                act()

    def do_resume(self, s, txn, consumer, partition, generation):
        allowed, act = self.model.resume(txn, offset_key(consumer, partition), generation)
        row = self.call(s, txn, "SELECT result::text, next_offset FROM idempotency.resume_offset(%s, 't', %s, %s, '0')",
                        (consumer, partition, generation), allowed)
        if row:
            self.check(allowed, row)
            if act:
                act()

    def do_reset(self, s, txn, consumer, partition, position):
        allowed, act = self.model.reset(txn, offset_key(consumer, partition), position)
        if IN_USE in allowed and s not in self.model.txns:
            return      # nobody would end the wait
        row = self.call(s, txn, "SELECT idempotency.reset_offset(%s, 't', %s, %s)", (consumer, partition, position), allowed)
        if row:
            self.check(allowed, row[0])
            act()

    def do_register(self, s, txn, name, gapless):
        allowed = self.model.register(txn, name, gapless)
        if IN_USE in allowed and s not in self.model.txns:
            return
        row = self.call(s, txn, "SELECT * FROM idempotency.register_producer(%s, %s)", (name, gapless), allowed)
        if row and (allowed != {None} or not self.model.registered(txn, name, gapless, *row)):
            self.wrong(allowed, row)

    def do_drop(self, s, txn, name):
        allowed = self.model.drop(txn, name)
        if IN_USE in allowed and s not in self.model.txns:
            return
        if self.call(s, txn, "SELECT idempotency.producer_drop(%s)", (name,), allowed):
            self.check(allowed, None)
            self.model.dropped(txn, name)

    def id_at(self, place):
        return 0 if place is None or place >= len(self.model.ids) else self.model.ids[place]

    def do_last(self, s, txn, place, partition):
        producer_id = self.id_at(place)
        allowed = self.model.last_sequence(txn, producer_id, partition)
        row = self.call(s, txn, "SELECT idempotency.last_sequence(%s, 't', %s)", (producer_id, partition), allowed)
        if row:
            self.check(allowed, row[0])

    def do_claim_sequence(self, s, txn, place, back, partition, ahead, count):
        producer_id = self.id_at(place)
        producer = self.model.get(txn, id_key(producer_id))
        epoch = max(0, producer.epoch - back) if producer else 0
        sequence = self.sequence(producer, self.model.get(txn, sequence_key(producer_id, partition)), epoch, ahead, count)
        allowed, act = self.model.claim_sequence(txn, producer_id, epoch, sequence, partition, count)
        row = self.call(s, txn, "SELECT result::text, record_number, expected FROM idempotency.claim_sequence(%s, %s, %s, 't', %s, %s)",
                        (producer_id, epoch, sequence, partition, count), allowed)
        if row:
            self.check(allowed, row)
            if act:
                act()

    @staticmethod
    def sequence(producer, stored, epoch, ahead, count):
        """A sequence near the next one."""
        following = stored.last + 1 if stored and (stored.epoch == epoch or not producer or not producer.gapless) else 0
        if ahead == "zero":
            return 0
        by = {"next": 0, "again": -count, "part": -count - 2, "straddle": -(count // 2) - 1, "far": CIRCLE // 2 + 5}.get(ahead, ahead)
        if producer and producer.gapless:
            return (following + by) % CIRCLE
        return max(0, following + by)

    def do_portal(self, s, txn, first, second):
        """What a cursor has claimed before a savepoint stays, although its next row fails in the savepoint."""
        allowed, act = self.model.claim_offset(txn, offset_key(*first[:2]), *first[2:])
        self.names += 1
        name = f"c{self.names}"
        values = ", ".join("(%s, %s, %s, %s::bigint, %s::bigint, %s)" for _ in range(2))
        sql = f"""DECLARE {name} CURSOR FOR SELECT c.result::text, c.new_from, 1 / (2 - v.n) FROM (VALUES {values})
            AS v (consumer, partition, first, following, generation, n), LATERAL idempotency.claim_offset(v.consumer, 't', v.partition, v.first, v.following, v.generation) AS c"""
        if not self.judge(txn, self.run(s, sql, (*first, 1, *second, 2))):
            return
        answer = self.run(s, f"FETCH {name}")
        if not self.judge(txn, answer, {a for a in allowed if isinstance(a, str)}):
            return
        self.check(allowed, answer.rows[0][:2])
        if act:
            act()
        self.do_savepoint(s, txn, name)
        answer = self.run(s, f"FETCH {name}")
        if answer.state is None:
            self.wrong("an error", answer)
        self.model.fail(txn)
        self.do_rollback_to(s, txn, name)

    def do_wrong(self, s, txn, wrong):
        sql, state = wrong
        self.judge(txn, self.run(s, sql), {"25006"} if txn.read_only else {state, "53400", IN_USE})

    def do_auto(self, s, _txn, way, *args):
        self.transactions += 1
        txn = Txn("READ COMMITTED")
        getattr(self, "do_" + way)(s, txn, *args)
        if not txn.failed:
            self.model.commit(txn)

    def do_begin(self, s, _txn, isolation, read_only, budget):
        self.transactions += 1
        txn = self.model.txns[s] = Txn(isolation, read_only, budget)
        self.judge(txn, self.run(s, f"BEGIN ISOLATION LEVEL {isolation}{' READ ONLY' if read_only else ''};"
                                 f" SET LOCAL idempotency.max_claim_locks = {budget}"))

    def do_rollback(self, s, txn):
        self.judge(txn, self.run(s, "ROLLBACK"))
        del self.model.txns[s]

    def do_commit(self, s, txn, gid=None):
        failed = txn.failed
        fine = self.judge(txn, self.run(s, f"PREPARE TRANSACTION '{gid}'" if gid else "COMMIT"))
        del self.model.txns[s]
        if failed or not fine:
            return
        if gid:
            self.model.prepared[gid] = txn
        else:
            self.model.commit(txn)

    do_prepare = do_commit

    def do_commit_prepared(self, s, _txn, gid):
        self.judge(Txn(""), self.run(s, f"COMMIT PREPARED '{gid}'"))
        self.model.commit(self.model.prepared.pop(gid))

    def reopen(self, s):
        self.sessions[s].close()
        self.sessions[s].open()
        self.model.txns.pop(s, None)

    def do_restart(self, _s, _txn, mode):
        self.control.close()
        self.cluster.restart(mode)
        self.open_control()
        for i in range(SESSIONS):
            self.reopen(i)

    def do_turn(self, _s, _txn):
        """The log becomes long with what nobody needs; its worker may come at any time."""
        self.model.turns = True
        (number,), = self.sql("SELECT last_value FROM idempotency_data.lease_number")
        self.sql("""INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, owner, role)
            SELECT %s + n, md5('garbage')::uuid, 's', 'n', now(), 'garbage', repeat(md5(n::text), 50) FROM generate_series(1, 3000) AS n""", (number,))

    def do_look(self, _s, _txn):
        cursors = self.sql("""SELECT consumer, producer, partition, next_offset, generation, last_sequence, epoch, records
            FROM idempotency.cursors""")
        if sorted(cursors, key=repr) != self.model.cursors():
            self.wrong(self.model.cursors(), cursors)
        producers = self.sql("SELECT producer, producer_id, epoch, gapless FROM idempotency.producers")
        if sorted(producers) != self.model.producers():
            self.wrong(self.model.producers(), producers)

    # The end: everybody commits, the views are as the model says, and no lock is left.

    def finish(self):
        self.trace.append("end")
        for s in sorted(self.model.txns):
            self.do_commit(s, self.model.txns[s])
        for gid in sorted(self.model.prepared):
            self.do_commit_prepared(0, None, gid)
        self.do_look(-1, None)
        locks = self.sql("""SELECT count(*) FROM pg_locks LEFT JOIN pg_stat_activity AS a USING (pid) WHERE locktype = 'advisory'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND backend_type IS NOT DISTINCT FROM CASE WHEN pid IS NOT NULL THEN 'client backend' END""")
        if locks != [(0,)]:
            self.wrong("no lock", locks)
        for s in self.sessions:
            s.close()
        self.control.close()
