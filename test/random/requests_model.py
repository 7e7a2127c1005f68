"""What doc/reference/requests.md promises, on top of what leases_model has from doc/reference/leases.md.

The key of a request is (consumer, "scope/key").  No event has a slash in its id, so a request and an event never meet.
"""
from dataclasses import dataclass, field
from typing import NamedTuple

from claims_model import CLAIMED, NOT_HELD, SERIALIZATION
from leases_model import BUSY, DEAD, DONE, EXCLUSIVE, LEASED, NO_LOCKS, Lease, LeaseModel, LeaseTxn

STARTED, REPLAY, IN_PROGRESS, MISMATCH = "started", "replay", "in_progress", "mismatch"


class Response(NamedTuple):
    """The stored answer; body: in hexadecimal digits.  An operator's discard leaves one without anything."""
    status: int = None
    headers: object = None
    body: str = None
    fingerprint: str = None


def is_request(key):
    return "/" in key[1]


def differs(one, other):
    return one is not None and other is not None and one != other


@dataclass
class RequestTxn(LeaseTxn):
    fingerprints: dict = field(default_factory=dict)    # key -> fingerprint, of what it executes as a whole

    UNDONE = {**LeaseTxn.UNDONE, "fingerprints": dict}


class RequestModel(LeaseModel):

    def known(self):
        return [key for key in super().known() if not is_request(key)]

    # Asking.

    def ask(self, txn, key, fingerprint):
        """What claim_request may answer; started() or judged_dead() then makes it so."""
        if self.has_done(txn, key):
            return self.ask_own(txn, key, fingerprint)
        latest = self.latest(key)
        since = latest is not None and txn.isolation != "READ COMMITTED" and latest.since > txn.snapshot
        if latest and latest.status == "completed":
            if since:
                return {SERIALIZATION}
            return {self.replay(latest.result, fingerprint)} | ({SERIALIZATION} if txn.may_be_packed else set())
        if not self.would_lock(txn, key):
            return self.ask_past_budget(txn, key, fingerprint)
        if self.is_busy(txn, key):
            return self.ask_beside(txn, key, fingerprint)
        allowed = self.ask_free(txn, key, fingerprint)
        if since or latest and txn.may_be_packed or self.may_have_moved(txn):
            allowed = allowed | {SERIALIZATION}
        return allowed | (self.ask_beside(txn, key, fingerprint) if self.is_polled(txn, key) else set())

    def ask_own(self, txn, key, fingerprint):
        """What the transaction has begun or ended itself; it never waits for itself."""
        own = txn.claims.get(key)
        if own and own.phase == "completed":
            return {self.replay(own.result, fingerprint)}
        if differs(fingerprint, self.fingerprint(txn, key)):
            return {MISMATCH}
        return {DEAD if self.is_dead(txn, key) else IN_PROGRESS}

    def ask_past_budget(self, txn, key, fingerprint):
        """It is in progress as long as a lease lasts; otherwise nothing but this transaction's end would help."""
        allowed, lease = self.ask_beside(txn, key, fingerprint), self.leases.get(key)
        if self.is_since(txn, self.changed, key):
            return allowed | {NO_LOCKS}     # the transaction sees the lease that was
        if IN_PROGRESS not in allowed or lease and lease.lasts and lease.state != DEAD:
            return allowed
        return allowed - {IN_PROGRESS} | {NO_LOCKS}

    def ask_beside(self, txn, key, fingerprint):
        """Somebody else has it: by what is committed."""
        lease = self.leases.get(key)
        if self.is_since(txn, self.changed, key):
            return {IN_PROGRESS, SERIALIZATION}
        if lease is None or not differs(fingerprint, lease.fingerprint):
            return {IN_PROGRESS}
        return {MISMATCH, IN_PROGRESS} if self.may_have_moved(txn) else {MISMATCH}

    def ask_free(self, txn, key, fingerprint):
        """Nobody has it but whoever the log of leases names."""
        if self.is_since(txn, self.changed, key) or self.is_since(txn, self.noted, key):
            return {SERIALIZATION}
        lease = self.view(txn, key)
        if lease and differs(fingerprint, lease.fingerprint):
            return {MISMATCH}
        names = {CLAIMED: STARTED, BUSY: IN_PROGRESS, DEAD: DEAD}
        return {names[verdict] for verdict in self.standing(txn, key)}

    @staticmethod
    def replay(response, fingerprint):
        return MISMATCH if response and differs(fingerprint, response.fingerprint) else REPLAY

    def response(self, txn, key):
        """That a replay gives."""
        own = txn.claims.get(key)
        return (own.result if own and own.phase == "completed" else self.latest(key).result) or Response()

    def fingerprint(self, txn, key):
        """Of what is executed, or was begun."""
        own, lease = txn.claims.get(key), self.view(txn, key)
        if own and own.phase == "claimed":
            return txn.fingerprints[key]
        return lease.fingerprint if lease else None

    # Starting.

    def started(self, txn, key, fingerprint):
        """The transaction executes it as a whole."""
        if fingerprint is None:
            lease = self.view(txn, key)
            fingerprint = lease.fingerprint if lease else None
        self.took(txn, key)
        txn.fingerprints[key] = fingerprint

    def started_lease(self, txn, key, order, token):
        """order: of requests.py."""
        self.leased(txn, key, token, order.hours > 0, (order.hours, order.hours))
        lease = txn.changes[key].lease
        self.change(txn, key, lease._replace(
            fingerprint=lease.fingerprint if order.fingerprint is None else order.fingerprint,
            request=lease.request if order.request is None else order.request))

    # The ends.  Without a token: of what this transaction has started or advanced; errors are those of complete().

    def end_own(self, txn, key):
        """None, or what refuses it."""
        own = txn.claims.get(key)
        if own and own.phase == "claimed":
            return None
        if key not in txn.asserted or not self.is_token(txn, key, txn.asserted[key]):
            return NOT_HELD
        answer = self.act(txn, key, txn.asserted[key], EXCLUSIVE)
        return None if answer == {DONE} else answer

    def fail_own(self, txn, key, error, retry):
        """The state that fail_request answers."""
        own = txn.claims.pop(key, None)
        if own and own.phase == "claimed":
            # it becomes the attempt that it would have been with a lease
            lease = self.view(txn, key) or Lease(LEASED, 0, 0, False)
            self.change(txn, key, lease._replace(attempt=lease.attempt + 1, fingerprint=txn.fingerprints[key]))
        return self.give_back(txn, key, error, retry, False)

    def free_own(self, txn, key):
        own = txn.claims.get(key)
        if own and own.phase == "claimed":
            self.release(txn, key)
        else:
            self.give_back(txn, key, None, None, False)
