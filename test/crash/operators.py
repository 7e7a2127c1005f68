"""Operators: they redrive dead events and requests, by name or all at once, and discard some."""
import time

from attempt_client import AttemptClient
from requesters import parts


class Operator(AttemptClient):
    consumer = "leases"

    def step(self):
        dead = [] if self.resting.is_set() else self.pool.some_dead()
        if dead:
            self.operate(dead)
        self.pause(0.1)

    def operate(self, dead):
        way = self.rng.random()
        names = self.rng.sample(dead, min(len(dead), self.rng.choice((1, 1, 1, 2))))
        if way < 0.2:
            scope = self.rng.choice((None, self.named(names[0])[1]))
            end = self.transact(lambda: self.redrive_all(scope))
        else:
            end = self.transact(lambda: [self.decide("discard" if way < 0.4 else "redrive", name) for name in names])
        if end == "COMMIT":
            for name, what, _ in self.rows:
                self.pool.alive(name)
                if what == "discard":
                    self.pool.done(name)

    # How the functions and the view name what this program has one name for.

    def named(self, name):
        """The id, or the key, and the scope."""
        return name, None

    def name_of(self, scope, event_id):
        return event_id if scope is None else f"{scope}|{event_id}"

    def decide(self, what, name):
        key, scope = self.named(name)
        answer = self.ask(what, name, f"SELECT idempotency.consumer_{what}(%s, ARRAY[%s], %s) AS n", (self.consumer, key, scope))
        if answer["n"]:
            self.row(name, what)
            self.pause(0.03)
        else:
            self.pool.alive(name)

    def redrive_all(self, scope):
        """All dead ones, or those of a scope.  The call does not say which ones it has redriven.  They are among those that have
        been waiting since a moment before the call.  If others are among these as well, the numbers differ: the call is
        rolled back."""
        self.sql("SAVEPOINT s")
        since, = self.sql("SELECT clock_timestamp()")[0]
        asked = time.monotonic()
        n = self.ask("redrive all", None, "SELECT idempotency.consumer_redrive(%s, scope => %s) AS n", (self.consumer, scope))["n"]
        rows = self.sql("""SELECT scope, event_id FROM idempotency.leases
            WHERE consumer = %s AND state = 'waiting' AND attempt = 0 AND since >= %s""", (self.consumer, since))
        if len(rows) != n:
            self.sql("ROLLBACK TO s")
            return
        for name in (self.name_of(*row) for row in rows):
            self.ledger.write("told", call="redrive", name=name, txn=self.txn, asked=asked, snapshot=self.snapshot,
                              answer={"n": 1, "all": True}, error=None)
            self.row(name, "redrive")


class RequestOperator(Operator):
    consumer = "requests"

    def named(self, name):
        return parts(name)
