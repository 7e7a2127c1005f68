"""What the episodes of claims, of cursors and of the outbox have in common: sessions with transactions, one operation at a time.

An episode has `control`, a connection; `sessions`; `model`, with `txns`, `prepared` and the moves of savepoints;
`judge(txn, answer, ...)`, which says whether an answer is the model's; and a method `do_WAY(session, txn, ...)` for
each operation.
"""
from episodes import Mismatch
from server import wait_until

LEVELS = ("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
SERIALIZATION = "40001"
SNAPSHOTLESS = ("begin", "savepoint", "rollback_to", "release_savepoint", "commit", "rollback", "prepare", "close")


class Transactions:

    def sql(self, text, args=None, conn=None):
        with (conn or self.control).cursor() as c:
            c.execute(text, args)
            return c.fetchall() if c.description else []

    def forget_transactions(self, application="%"):
        """Nobody is there, nothing prepared, nothing remembered."""
        for (gid,) in self.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            self.sql("ROLLBACK PREPARED %s", (gid,))
        self.sql("""SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
            AND application_name LIKE %s""", (application,))
        (tables,), = self.sql("SELECT string_agg(oid::regclass::text, ', ') FROM pg_class"
                              r" WHERE relnamespace = 'idempotency_data'::regnamespace AND relname LIKE 'store\_%' AND relkind = 'r'")
        self.sql(f"TRUNCATE {tables}")

    # Choosing what any transaction may do.

    def choose_prepared(self, rng, s):
        return (s, rng.choice(("commit_prepared", "commit_prepared", "rollback_prepared")),
                rng.choice(sorted(self.model.prepared)))

    @staticmethod
    def choose_failed(rng, s, txn):
        if txn.savepoints and rng.random() < 0.6:
            return (s, "rollback_to", rng.choice(txn.savepoints).name)
        return (s, rng.choice(("rollback", "commit")))

    def choose_of_any(self, rng, s, txn, way, gid):
        """What every transaction can do, in its model's words."""
        if way in ("fetch", "close"):
            return (s, way, rng.choice(sorted(txn.cursors)))
        if way == "savepoint":
            return (s, way, f"s{rng.randrange(3)}")
        if way in ("rollback_to", "release_savepoint"):
            return (s, way, rng.choice(txn.savepoints).name)
        if way == "prepare":
            self.names += 1
            return (s, way, f"{gid}-{self.names}")
        return (s, way)

    def ends_make_sense(self, txn, op):
        """The same when others were left out, of what ends; None for the rest."""
        way = op[1]
        if way in ("commit_prepared", "rollback_prepared"):
            return txn is None and op[2] in self.model.prepared
        if way == "begin":
            return txn is None
        if way == "kill":
            return True
        if way == "cancel" or txn is None:
            return False
        if way in ("rollback_to", "release_savepoint"):
            return self.ends_savepoint(txn, op)
        if way in ("rollback", "commit"):
            return True
        return None

    @staticmethod
    def ends_savepoint(txn, op):
        """May it, when others were left out?"""
        return any(p.name == op[2] for p in txn.savepoints) and (op[1] == "rollback_to" or not txn.failed)

    # Doing it.

    def apply(self, op):
        s, way = op[:2]
        txn = self.model.txns.get(s)
        if txn and txn.isolation != "READ COMMITTED" and txn.snapshot is None and way not in SNAPSHOTLESS:
            txn.snapshot = self.model.commits
        self.trace.append(f"{op!r}")
        getattr(self, "do_" + way)(s, txn, *op[2:])

    def say(self, text):
        self.trace[-1] += f" -> {text!s:.300}"

    def wrong(self, expected, answer):
        raise Mismatch(f"{self.trace[-1]}: expected {expected}, got {answer}")

    def run(self, s, sql, args=None):
        answer = self.sessions[s].run(sql, args)
        self.say(answer)
        return answer

    def do_savepoint(self, s, txn, name):
        if self.judge(txn, self.run(s, f"SAVEPOINT {name}")):
            self.model.savepoint(txn, name)

    def do_rollback_to(self, s, txn, name):
        if self.judge(txn, self.run(s, f"ROLLBACK TO {name}")):
            self.model.rollback_to(txn, name)

    def do_release_savepoint(self, s, txn, name):
        if self.judge(txn, self.run(s, f"RELEASE {name}")):
            self.model.release_savepoint(txn, name)

    def do_rollback_prepared(self, s, txn, gid):
        answer = self.run(s, f"ROLLBACK PREPARED '{gid}'")
        if answer.state is not None or answer.lost:
            self.wrong("success", answer)
        del self.model.prepared[gid]

    def do_kill(self, s, txn):
        # the function's own timeout looks ten times a second
        pid = self.sessions[s].pid
        self.sql("SELECT pg_terminate_backend(%s)", (pid,))
        wait_until(f"session {s} has ended", lambda: not self.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)))
        self.reopen(s)
