"""Holders of leases: they take events, sleep, die, extend from another session, and complete.

    transaction     lease_event, or lease_events; or claim_event, which takes over what is overdue
    (pause)         often longer than the lease lasts
    outside         an effect outside of the database, whose receiver refuses tokens below one it has seen
    transactions    assert_lease and an effect; complete_event and an effect; or release_lease, which may park the event

An attempt may end after each of them.  Hearts extend the leases of all holders, each from a session of its own,
the leases that were taken over included.  An event whose attempts are used up is dead, and so is an event that was
parked.  Operators redrive dead events, and discard some of them (operators.py).
"""
import collections
import threading
import uuid

import psycopg2

from attempt_client import DURATIONS, PADDING, AttemptClient, interval

TAKEN = "result::text, token, attempt, recovery_point, state ->> 'p' AS noted"


class Outside:
    """A receiver that keeps the highest token of each event, and refuses lower ones."""

    def __init__(self):
        self.lock = threading.Lock()
        self.accepted = []      # (event, token), in order
        self.highest = {}
        self.refused = 0

    def accept(self, name, token):
        with self.lock:
            if token < self.highest.get(name, 0):
                self.refused += 1
                return False
            self.highest[name] = token
            self.accepted.append((name, token))
            return True


class Leases:
    """What the clients of leases share."""

    def __init__(self):
        self.outside = Outside()
        self.held = collections.deque(maxlen=8)     # (event, token) of the last leases


class Lessee(AttemptClient):
    consumer = "leases"

    def __init__(self, *args, shared):
        super().__init__(*args)
        self.shared = shared

    def attempt(self, name):
        way = self.rng.random()
        if way < 0.1:
            self.claim(name)
            return
        names = [name]
        if way < 0.25:
            names = list(dict.fromkeys([name, *filter(None, (self.pool.pick() for _ in range(3)))]))
        for taken in self.take(names):
            self.work(*taken)

    # Taking.

    def take(self, names):
        """[(event, token, how the transaction ended, duration)] of the leases that it may have."""
        duration, taken = self.rng.choice(DURATIONS), {}

        def body():
            if self.rng.random() < 0.08:
                self.savepoint(lambda: self.lease(names, duration))
            taken.update(self.lease(names, duration))
            if self.rng.random() < 0.1:
                self.pause(0.05)
        end = self.transact(body)
        if end == "ROLLBACK" and self.rng.random() < 0.8:
            return []
        self.shared.held.extend(taken.items())
        return [(name, token, end, duration) for name, token in taken.items()]

    def lease(self, names, duration):
        """event -> token, of what is claimed."""
        taken = {}
        for name, answer in self.lease_many(names, duration) if len(names) > 1 else self.lease_one(names[0], duration):
            if answer["result"] == "claimed":
                self.row(name, "lease", answer["token"], answer["attempt"], answer["recovery_point"])
                taken[name] = answer["token"]
            elif answer["result"] == "duplicate":
                self.pool.done(name)
            elif answer["result"] == "dead":
                self.met_dead(name)
        return taken

    def lease_one(self, name, duration):
        wait = self.rng.choice((0, 0, 0, 0.03))
        yield name, self.ask("lease", name, f"""SELECT {TAKEN} FROM idempotency.lease_event(%s, %s, duration => %s,
            holder => %s, wait => %s)""", (name, self.consumer, interval(duration), self.name, interval(wait)))

    def lease_many(self, names, duration):
        many = self.ask("leases", None, f"""SELECT jsonb_agg(to_jsonb(l) ORDER BY ord) AS every FROM (SELECT ord, event_id, {TAKEN}
            FROM idempotency.lease_events(%s, %s, duration => %s, holder => %s)) l""",
                        (names, self.consumer, interval(duration), self.name))["every"]
        if [one["event_id"] for one in many] != names:
            raise AssertionError("lease_events: not one row per element, in order")
        return [(one["event_id"], one) for one in many]

    # Working.

    def work(self, name, token, end, duration):
        if self.rng.random() < 0.5:
            self.pause(min(1.2, 2.5 * duration))
        # What was committed asynchronously may be lost, and an effect outside of it is not.
        if end == "COMMIT" and self.rng.random() < 0.7:
            self.shared.outside.accept(name, token)
        if self.rng.random() < 0.2:
            self.transact(lambda: self.effect(name, token))
        way = self.rng.random()
        if way < 0.15:
            return
        if way < 0.3:
            self.transact(lambda: self.release(name, token))
        elif self.transact(lambda: self.complete(name, token)) == "COMMIT":
            self.pool.done(name)

    def assert_lease(self, name, token):
        self.ask("assert", name, "SELECT idempotency.assert_lease(%s, %s, %s)::text AS ok", (name, token, self.consumer), token=token)

    def effect(self, name, token):
        """An effect before the last one: the transaction asserts the lease."""
        if self.rng.random() < 0.1:
            self.savepoint(lambda: self.assert_lease(name, token))
        self.assert_lease(name, token)
        self.row(name, "effect", token)
        self.pause(0.05)

    def complete(self, name, token):
        """The last effect, with the completion."""
        asserted = self.rng.random() < 0.5
        if asserted:
            self.assert_lease(name, token)
            self.pause(0.05)
        self.row(name, "effect", token)
        self.ask("complete", name, "SELECT idempotency.complete_event(%s, %s, '{\"done\": true}', %s)::text AS ok",
                 (name, self.consumer, None if asserted and self.rng.random() < 0.7 else token), token=token)
        self.row(name, "complete", token)

    def release(self, name, token):
        error = self.rng.choice((None, "it failed"))
        park = self.rng.random() < 0.1
        after = None if park else self.rng.choice((None, interval(0.005)))
        answer = self.ask("release", name, "SELECT idempotency.release_lease(%s, %s, %s, %s, %s, %s)::text AS state",
                          (name, token, self.consumer, error, after, park), token=token, failed=bool(error), park=park)
        self.gave_back(name, answer["state"], "fail" if error else "release", token)

    def claim(self, name):
        """The whole work in one transaction: a claim takes over what is overdue."""
        def body():
            answer = self.ask("claim", name, "SELECT idempotency.claim_event(%s, %s)::text AS result", (name, self.consumer))
            if answer["result"] == "duplicate":
                self.pool.done(name)
            elif answer["result"] == "dead":
                self.met_dead(name)
            if answer["result"] != "claimed":
                return
            self.pause(0.02)
            if self.rng.random() < 0.3:     # a lease that was there is as it was
                self.sql("SELECT idempotency.release_event(%s, %s)", (name, self.consumer))
                return
            self.row(name, "claim")
            self.row(name, "effect")
            self.sql("SELECT idempotency.complete_event(%s, %s)", (name, self.consumer))
            self.row(name, "complete")
        if self.transact(body) == "COMMIT" and any(what == "complete" for _, what, _ in self.rows):
            self.pool.done(name)


class Heart(AttemptClient):
    """Extends leases, beside the transactions of their holders, and notes recovery points with them."""
    consumer = "leases"

    def __init__(self, *args, shared):
        super().__init__(*args)
        self.shared = shared

    def step(self):
        held = [] if self.resting.is_set() else list(self.shared.held)
        if held:
            self.beat(*self.rng.choice(held))
        self.stopping.wait(self.rng.uniform(0, 0.03))

    def beat(self, name, token):
        point = str(uuid.UUID(int=self.rng.getrandbits(128))) if self.rng.random() < 0.8 else None
        state = f'{{"p": "{point}", "padding": "{self.rng.randbytes(PADDING).hex()}"}}' if point else None
        self.ask_beat(name, token, point, state)

    def ask_beat(self, name, token, point, state):
        try:
            self.ask("extend", name, "SELECT idempotency.extend_lease(%s, %s, %s, %s, %s, %s)::text AS until",
                     (name, token, self.consumer, interval(self.rng.choice(DURATIONS)), point, state), token=token, point=point)
        except psycopg2.Error as error:
            self.after(error, False)
