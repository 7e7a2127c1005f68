"""What doc/reference/leases.md promises, on top of what claims_model has from doc/reference/claim.md.

Time is two words here: a lease or a pause `lasts` for at least half an hour, or it is over by the next operation.
"""
from dataclasses import dataclass, field
from typing import NamedTuple

from claims_model import BUSY, CLAIMED, DUPLICATE, SERIALIZATION, Claim, Model, Txn, Version

EXPIRED, DEAD = "expired", "dead"
LEASED, WAITING = "leased", "waiting"
LOST, NO_LOCKS, IN_USE, FOREIGN = "ID007", "53400", "55P03", "55000"
DONE, WAITS = "done", "waits"                   # of an operation that needs a token: it succeeds, it waits for a lock
SHARE, EXCLUSIVE = "share", "exclusive"

HOUR = 3600
SLACK = HOUR / 4                                # an episode is shorter


class Lease(NamedTuple):
    """An event that is leased, waiting or dead; *_at: the moment of the call that said so, on the model's clock.

    Recovery point and state are one note, at one moment.
    """
    state: str
    token: int
    attempt: int
    lasts: bool
    left: tuple = (0, 0)        # of what lasts: between how many seconds
    lasts_at: int = 0
    point: str = None
    work: object = None
    noted_at: int = 0
    error: str = None
    fingerprint: str = None     # this, and request: of a request
    request: object = None
    redriven: bool = False      # attempts have begun that a redrive has given back


class Change(NamedTuple):
    """Of a transaction that is open.  whole: nobody else can have changed the lease meanwhile, as it has the event's lock."""
    whole: bool
    lease: Lease


class Policy(NamedTuple):
    """Of a consumer; in hours, and 0 for what is over at once.  duration None: not known to last or to be over."""
    duration: int = None
    attempts: int = 0
    shortest: int = None
    longest: int = None


def newer(one, other):
    """Of two that differ by extensions; each part that of the later call."""
    end, note = (max(one, other, key=lambda lease: getattr(lease, at)) for at in ("lasts_at", "noted_at"))
    return one._replace(lasts=end.lasts, left=end.left, lasts_at=end.lasts_at,
                        point=note.point, work=note.work, noted_at=note.noted_at)


@dataclass
class LeaseTxn(Txn):
    locks: dict = field(default_factory=dict)       # key -> SHARE or EXCLUSIVE, of what has a lease
    changes: dict = field(default_factory=dict)     # key -> Change
    asserted: dict = field(default_factory=dict)    # key -> token
    policies: dict = field(default_factory=dict)    # consumer -> Policy that it has altered
    began: dict = field(default_factory=dict)       # consumer -> Policy when the call began that has just waited for a lock
    fenced: tuple = ()                              # (key, token): effects under a lease
    discarded: frozenset = frozenset()

    UNDONE = {**Txn.UNDONE, "locks": dict, "changes": dict, "asserted": dict, "policies": dict, "fenced": tuple,
              "discarded": frozenset}


class LeaseModel(Model):
    def __init__(self, foreign_lockers=(), policies=()):
        super().__init__(foreign_lockers)
        self.leases = {}            # key -> Lease
        self.changed = {}           # key -> number of the commit that took its lease, or ended it
        self.noted = {}             # key -> number of the commit that noted a recovery point or a state
        self.policies = dict(policies)
        self.altered = {}           # consumer -> number of the commit
        self.tokens = {}            # key -> those given out, committed or not
        self.highest = 0
        self.turns = False          # a table of the log may take its turn at any time

    # Who has what.

    def policy(self, txn, consumer):
        return txn.began.get(consumer) or txn.policies.get(consumer) or self.policies.get(consumer, Policy())

    def view(self, txn, key):
        change = txn.changes.get(key)
        if change and change.whole:
            return change.lease
        return newer(self.leases[key], change.lease) if change else self.leases.get(key)

    def lock_of(self, txn, key):
        return EXCLUSIVE if super().has_lock(txn, key) else txn.locks.get(key)

    def has_lock(self, txn, key):
        return self.lock_of(txn, key) is not None

    def has_locked(self, txn, key, mode):
        """A session other than this one, or one in the queue before it."""
        modes = [self.lock_of(t, key) for t in self.others(txn)]
        modes += [w.mode for s, w in self.waits.items() if w.key == key and self.txns.get(s) is not txn]
        return EXCLUSIVE in modes or mode == EXCLUSIVE and SHARE in modes

    def lock_foreign(self, txn, key):
        if self.lock_of(txn, key) != EXCLUSIVE and self.has_locked(txn, key, EXCLUSIVE):
            return False
        return super().lock_foreign(txn, key)

    def is_busy(self, txn, key):
        return super().is_busy(txn, key) or any(key in t.locks or key in t.changes for t in self.others(txn))

    def forget(self, txn, key):
        """Whoever has the lock in share mode does not get it exclusively before one who waits for it."""
        answers = super().forget(txn, key)
        overtakes = self.lock_of(txn, key) != EXCLUSIVE and self.has_locked(txn, key, EXCLUSIVE)
        return {"55P03"} if overtakes and answers != {"55000"} else answers

    def would_lock(self, txn, key):
        return self.has_room(txn, [key])

    @staticmethod
    def has_room(txn, keys):
        mine = {k for k, c in txn.claims.items() if c.locked} | set(txn.locks)
        return set(keys) <= mine or len(mine | set(keys)) <= txn.budget

    def is_late(self, txn, key):
        """The lease, or what is remembered, changed after the transaction's snapshot."""
        latest = self.latest(key)
        return self.is_since(txn, self.changed, key) or \
            txn.isolation != "READ COMMITTED" and latest is not None and latest.since > txn.snapshot

    @staticmethod
    def is_since(txn, commits, key):
        return txn.isolation != "READ COMMITTED" and commits.get(key, 0) > txn.snapshot

    def would_wait(self, txn, key):
        """No wait ends what this transaction has done."""
        return super().would_wait(txn, key) and key not in txn.locks and key not in txn.changes

    def may_wait_or_not(self, txn, key):
        """For a lease that has to end before there is room in the budget of locks, or not."""
        return self.view(txn, key) is not None and not self.would_lock(txn, key)

    def may_have_moved(self, txn):
        return self.turns and txn.may_be_packed

    def is_used_up(self, txn, key, lease):
        most = self.policy(txn, key[0]).attempts
        return bool(most) and lease.attempt >= most

    def standing(self, txn, key):
        """What the lease alone says to a claim or a lease of others; CLAIMED if it may be taken."""
        lease = self.view(txn, key)
        if lease is None:
            return {CLAIMED}
        if lease.state == DEAD:
            return {DEAD}
        if lease.lasts:
            return {BUSY}
        return {DEAD} if self.is_used_up(txn, key, lease) else {CLAIMED}

    # Claims: what claims_model says, if no lease says otherwise.

    def claim(self, txn, key):
        own = txn.claims.get(key)
        if own and own.phase == "completed":
            return {DUPLICATE}
        if key in txn.locks or key in txn.changes:
            return self.own(txn, key)       # an asserted lease may stay uncompleted
        allowed = super().claim(txn, key)
        if CLAIMED in allowed:
            if self.is_since(txn, self.changed, key) or self.is_since(txn, self.noted, key):
                allowed = {SERIALIZATION}
            else:
                allowed = allowed - {CLAIMED} | self.standing(txn, key)
                if self.view(txn, key) and not self.would_lock(txn, key):
                    allowed = allowed - {CLAIMED} | {BUSY}
            if self.may_have_moved(txn):
                allowed = allowed | {SERIALIZATION}
        return allowed | ({BUSY} if self.is_polled(txn, key) else set())

    def judged_dead(self, txn, key):
        """It was wanted, and its attempts are used up."""
        lease = self.view(txn, key)
        if lease and lease.state != DEAD:
            self.change(txn, key, lease._replace(state=DEAD, lasts=True))

    def statuses(self, txn, key):
        statuses, lease, own = super().statuses(txn, key), self.view(txn, key), txn.claims.get(key)
        if statuses == {"completed"} or own and own.phase == "claimed":
            return statuses
        if self.is_since(txn, self.changed, key):
            return {SERIALIZATION}
        return ({lease.state} if lease else statuses) | ({SERIALIZATION} if self.may_have_moved(txn) else set())

    def known(self):
        return sorted({*self.versions, *self.leases})

    # Leasing.

    def has_done(self, txn, key):
        own = txn.claims.get(key)
        return key in txn.locks or key in txn.changes or bool(own) and own.phase in ("claimed", "completed")

    def own(self, txn, key):
        """What the lease says to a claim or a lease of the transaction that has used it."""
        return {DEAD} if self.is_dead(txn, key) else {BUSY}

    def lease(self, txn, key, passed=False, batch=False):
        """passed: what valid_until says.  batch: past the budget of locks it is busy, and no error."""
        if key[0] in self.foreign_lockers:
            return {FOREIGN}
        own = txn.claims.get(key)
        if own and own.phase == "completed":
            return {DUPLICATE}
        if self.has_done(txn, key):
            return self.own(txn, key)
        if not batch and not self.would_lock(txn, key):
            return {NO_LOCKS}
        if self.is_busy(txn, key):
            return {BUSY}
        if self.is_late(txn, key) or self.is_since(txn, self.noted, key):
            allowed = {SERIALIZATION}
        elif not (own and (own.phase == "forgotten" or own.anew)) and self.latest(key) and self.latest(key).status == "completed":
            allowed = {DUPLICATE}
        else:
            allowed = self.standing(txn, key)
        if txn.may_be_packed and self.latest(key) or self.may_have_moved(txn):
            allowed = allowed | {SERIALIZATION}
        if passed and CLAIMED in allowed:
            allowed = allowed - {CLAIMED} | {EXPIRED}       # in the place of `claimed` only
        if not self.would_lock(txn, key):
            allowed = allowed - {CLAIMED} | {BUSY}
        return allowed | ({BUSY} if self.is_polled(txn, key) else set())

    def leased(self, txn, key, token, lasts, left):
        lease = self.view(txn, key) or Lease(LEASED, 0, 0, False)
        self.tokens.setdefault(key, []).append(token)
        self.highest = max(self.highest, token)
        self.change(txn, key, lease._replace(state=LEASED, token=token, attempt=lease.attempt + 1, lasts=lasts, left=left,
                                             lasts_at=self.now()))

    def change(self, txn, key, lease):
        """By who has the event's lock, for itself alone."""
        txn.locks[key] = EXCLUSIVE
        txn.changes[key] = Change(True, lease)

    # Acting under a token.

    def act(self, txn, key, token, mode):
        """What the documents allow: DONE, WAITS, SQLSTATEs."""
        if not self.would_lock(txn, key):
            return {NO_LOCKS}
        mine = self.lock_of(txn, key)
        if self.has_locked(txn, key, mode) and mine != EXCLUSIVE and not (mine == SHARE and mode == SHARE):
            return {IN_USE} if mine else {WAITS}
        if super().is_busy(txn, key):
            return {WAITS, IN_USE}      # a claim past the budget of locks: only its row is there
        return self.rightful(txn, key, token)

    def rightful(self, txn, key, token):
        if self.is_late(txn, key):
            return {SERIALIZATION} | ({LOST} if not self.is_token(txn, key, token) else set())
        moved = {SERIALIZATION} if self.may_have_moved(txn) or txn.may_be_packed and self.latest(key) else set()
        return moved | {DONE if self.is_token(txn, key, token) else LOST}

    def is_token(self, txn, key, token):
        own, lease = txn.claims.get(key), self.view(txn, key)
        if own and own.phase in ("claimed", "completed"):
            return False            # the claim has taken the lease over
        return lease is not None and lease.state == LEASED and lease.token == token

    def extend(self, txn, key, lasts, left, point, work):
        self.share(txn, key)
        change, lease, at = txn.changes.get(key), self.view(txn, key), self.now()
        lease = lease._replace(lasts=lasts, left=left, lasts_at=at)
        if point is not None or work is not None:
            lease = lease._replace(point=point or lease.point, work=work or lease.work, noted_at=at)
        txn.changes[key] = Change(bool(change and change.whole), lease)

    def share(self, txn, key):
        txn.locks[key] = self.lock_of(txn, key) or SHARE

    def assert_lease(self, txn, key, token):
        self.share(txn, key)
        txn.asserted[key] = token

    def complete_leased(self, txn, key, result):
        self.change(txn, key, None)
        txn.claims[key] = Claim("completed", self.now(), True, result=result)

    def complete(self, txn, key, result=None):
        """Without a token: of what was claimed, or was asserted and is leased still."""
        if key not in txn.asserted or not self.is_token(txn, key, txn.asserted[key]):
            return super().complete(txn, key, result)
        answer = self.act(txn, key, txn.asserted[key], EXCLUSIVE)
        if DONE in answer:
            self.complete_leased(txn, key, result)      # an error would undo it
        return None if answer == {DONE} else answer

    def give_back(self, txn, key, error, retry, park):
        """The state that release_lease answers.  retry: of retry_after, in hours, None for the pause of the consumer."""
        lease, policy = self.view(txn, key), self.policy(txn, key[0])
        if error is not None:
            lease = lease._replace(error=error)
        if park or error is not None and self.is_used_up(txn, key, lease):
            lease = lease._replace(state=DEAD, lasts=True)
        elif error is not None:
            pause = self.pause(policy, lease.attempt) if retry is None else (retry, retry)
            lease = lease._replace(state=WAITING, lasts=pause[1] > 0, left=pause)
        else:
            lease = lease._replace(state=WAITING, attempt=lease.attempt - 1, lasts=bool(retry), left=(retry or 0,) * 2)
        nothing = error is None and not park and retry is None and lease.attempt == 0 and not lease.redriven and \
            (lease.point, lease.work, lease.error) == (None, None, None)
        self.change(txn, key, None if nothing else lease)
        txn.asserted.pop(key, None)
        return lease.state

    @staticmethod
    def pause(policy, attempt):
        whole = min(policy.longest, policy.shortest * 2 ** (attempt - 1))
        return whole / 2, whole

    # Operators.

    def is_dead(self, txn, key):
        lease, own = self.view(txn, key), txn.claims.get(key)
        return lease is not None and lease.state == DEAD and not (own and own.phase == "completed")

    def is_paused(self, txn, key):
        """It waits, and not only until now: an operator who names it ends that."""
        lease, own = self.view(txn, key), txn.claims.get(key)
        return lease is not None and lease.state == WAITING and lease.lasts and not (own and own.phase == "completed")

    def redriven(self, txn, key):
        self.change(txn, key, self.view(txn, key)._replace(state=WAITING, attempt=0, lasts=False, redriven=True))

    def discard(self, txn, key):
        self.change(txn, key, None)
        txn.claims[key] = Claim("completed", self.now(), True)
        txn.discarded |= {key}

    def import_event(self, txn, key):
        """DONE, or the error; imported() makes it so."""
        if self.is_busy(txn, key):
            return {IN_USE}
        latest = self.latest(key)
        if latest and latest.status == "completed":
            return {DONE}
        return {IN_USE} if key in self.leases else {DONE}

    # Transactions.

    def may_write(self, txn, key):
        """lease_guard."""
        own = txn.claims.get(key)
        return key not in txn.discarded and (key in txn.asserted or bool(own) and own.phase in ("claimed", "completed"))

    def apply(self, txn):
        super().apply(txn)
        for key, change in txn.changes.items():
            lease = change.lease if change.whole else newer(self.leases[key], change.lease)
            if change.whole:
                self.changed[key] = self.commits
            elif lease.noted_at > self.leases[key].noted_at:
                self.noted[key] = self.commits
            self.leases[key] = lease
            if lease is None:
                del self.leases[key]
        for key, claim in txn.claims.items():
            if claim.phase == "completed" and self.leases.pop(key, None):
                self.changed[key] = self.commits
        for consumer, policy in txn.policies.items():
            self.policies[consumer] = policy
            self.altered[consumer] = self.commits

    def remember(self, key):
        """It was imported."""
        self.commits += 1
        self.versions.setdefault(key, []).append(Version("completed", None, self.commits))
