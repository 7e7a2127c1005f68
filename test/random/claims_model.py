"""What doc/reference/claim.md promises about claims, as a few dictionaries.

A key is (consumer, event id).  Nothing here knows how the server does it: no locks table, no rows, only who has
an event, since when, and how transactions and savepoints take that back.
"""
from dataclasses import dataclass, field, replace
from typing import NamedTuple

CLAIMED, DUPLICATE, BUSY = "claimed", "duplicate", "busy"
SERIALIZATION, UNCOMPLETED, NOT_HELD = "40001", "ID001", "ID002"
FORGOTTEN, NOTHING = "forgotten", "nothing"      # what forget_event did


class Version(NamedTuple):
    """What is remembered of an event; since: the number of the commit that made it so."""
    status: str                 # completed, processing, unknown: it was forgotten
    result: object = None
    since: int = 0


class Claim(NamedTuple):
    """A transaction's claim.  locked: it keeps its advisory lock; hold: others find it busy to the end, for a row of its."""
    phase: str                  # claimed, completed, released, forgotten
    at: int                     # the moment of the claim, on the model's clock
    locked: bool
    hold: bool = False
    result: object = None
    past: bool = False          # claimed past the budget of locks
    anew: bool = False          # after this transaction had forgotten the event
    lock_at: int = 0            # the moment when the transaction took the lock that it keeps
    written: bool = False       # lease_guard has let the transaction write, since it has the claim


@dataclass
class Cursor:
    """claims one event per row; the row `bad`, counted from 1, raises after its claim."""
    consumer: str
    ids: tuple
    verb: str
    bad: int
    made: int
    at: int = 0
    broken: bool = False


@dataclass
class Savepoint:
    name: str
    at: int
    done: dict                  # what the transaction had done by then


@dataclass
class Txn:
    isolation: str
    read_only: bool = False
    keep: bool = False
    budget: int = 64
    snapshot: int = None
    failed: bool = False
    claims: dict = field(default_factory=dict)
    foreign: frozenset = frozenset()    # keys whose locks it took as a client without the extension
    savepoints: list = field(default_factory=list)
    cursors: dict = field(default_factory=dict)

    UNDONE = {"claims": dict, "foreign": frozenset}     # what ROLLBACK TO takes back

    def done(self):
        return {name: kind(getattr(self, name)) for name, kind in self.UNDONE.items()}

    def go_back(self, done):
        for name, kind in self.UNDONE.items():
            setattr(self, name, kind(done.get(name, ())))

    def pending(self):
        return [k for k, c in self.claims.items() if c.phase == "claimed"]

    @property
    def may_be_packed(self):
        """A packer starts by itself at any time, and what is found in its runs may be too new for a snapshot."""
        return self.isolation != "READ COMMITTED" and self.snapshot is not None


class Model:
    def __init__(self, foreign_lockers=()):
        self.clock = 0
        self.commits = 0
        self.versions = {}      # key -> Version, newest last
        self.txns = {}          # session -> Txn
        self.prepared = {}      # gid -> Txn
        self.foreign_lockers = set(foreign_lockers)
        self.waits = {}         # session -> the key that it waits for; mode: of the lock, None if it asks again and again

    def now(self):
        self.clock += 1
        return self.clock

    # What is remembered.

    def latest(self, key):
        return self.versions[key][-1] if key in self.versions else None

    def visible(self, txn, key):
        """At READ COMMITTED the newest, else the snapshot's."""
        seen = [v for v in self.versions.get(key, ())
                if txn.isolation == "READ COMMITTED" or v.since <= txn.snapshot]
        return seen[-1] if seen else None

    def remembered(self, txn, key):
        """The version that the transaction sees; None if nothing is remembered."""
        own, seen = txn.claims.get(key), self.visible(txn, key)
        return None if own and own.phase == "forgotten" or seen and seen.status == "unknown" else seen

    def statuses(self, txn, key):
        """The answers to event_status."""
        own, seen = txn.claims.get(key), self.remembered(txn, key)
        return {"completed" if own and own.phase == "completed" else
                "processing" if own and own.phase == "claimed" else seen.status if seen else "unknown"}

    def known(self):
        """The keys of which anything may be remembered."""
        return sorted(self.versions)

    def others(self, txn):
        return [t for t in list(self.txns.values()) + list(self.prepared.values()) if t is not txn]

    def is_busy(self, txn, key):
        for t in self.others(txn):
            claim = t.claims.get(key)
            if key in t.foreign or claim and (claim.phase != "released" or claim.hold or claim.locked):
                return True
        return False

    def is_polled(self, txn, key):
        """Somebody asks for it again and again, and has it for a moment each time."""
        return any(w.key == key and not w.mode and self.txns.get(s) is not txn for s, w in self.waits.items())

    def is_being_forgotten(self, txn, key):
        claims = [t.claims.get(key) for t in self.others(txn)]
        return any(c and (c.anew or c.phase == "forgotten") for c in claims)

    # Claiming.  The answers that the documents allow, as a set; took() then makes one of them so.

    def claim(self, txn, key):
        own = txn.claims.get(key)
        sure = own and (own.locked or own.phase in ("claimed", "completed"))
        return self.judge_claim(txn, key) | ({BUSY} if not sure and self.is_polled(txn, key) else set())

    def judge_claim(self, txn, key):
        own = txn.claims.get(key)
        if own and own.phase in ("claimed", "completed"):
            return {DUPLICATE}
        if own and own.phase == "forgotten":
            return {BUSY} if self.is_busy(txn, key) or self.is_past_budget(txn, key) else {CLAIMED}
        version = self.latest(key)
        late = version and txn.isolation != "READ COMMITTED" and version.since > txn.snapshot
        completed = version and version.status == "completed"
        # A claim past the budget leaves the event's lock alone, and does not notice who has it.
        if self.is_busy(txn, key) and \
                (not completed or not self.is_past_budget(txn, key) or self.is_being_forgotten(txn, key)):
            return {BUSY}
        if completed:
            return {SERIALIZATION} if late else {SERIALIZATION, DUPLICATE} if txn.may_be_packed else {DUPLICATE}
        if self.is_past_budget(txn, key):
            return {BUSY}
        if late:                # kept, perhaps once more, or forgotten
            return {SERIALIZATION}
        return {SERIALIZATION, CLAIMED} if version and txn.may_be_packed else {CLAIMED}

    def forget(self, txn, key):
        """The answers to forget_event; forgot() makes one of them so."""
        own, version = txn.claims.get(key), self.latest(key)
        if own and own.phase in ("claimed", "completed"):
            return {"55000"}
        if self.is_busy(txn, key):
            return {"55P03"}
        polled = {"55P03"} if self.is_polled(txn, key) and not (own and own.locked) else set()
        if own and own.phase == "forgotten" or not version:
            return {NOTHING} | polled
        snapshot = txn.isolation != "READ COMMITTED"
        if snapshot and version.since > txn.snapshot:
            return {SERIALIZATION} | polled
        return {NOTHING if version.status == "unknown" else FORGOTTEN} | polled | ({SERIALIZATION} if txn.may_be_packed else set())

    def forgot(self, txn, key):
        own = txn.claims.get(key)
        locked = bool(own and own.locked)
        txn.claims[key] = Claim("forgotten", self.now(), locked, hold=True, lock_at=own.lock_at if locked else 0)

    def is_past_budget(self, txn, key):
        """It cannot be claimed by this transaction, however long it waits."""
        return not self.would_lock(txn, key) and key[0] in self.foreign_lockers

    def would_wait(self, txn, key):
        return not self.is_past_budget(txn, key)

    def may_wait_or_not(self, _txn, _key):
        return False

    @staticmethod
    def would_lock(txn, key):
        own = txn.claims.get(key)
        return bool(own and own.locked) or sum(c.locked for c in txn.claims.values()) < txn.budget

    def took(self, txn, key):
        own = txn.claims.get(key)
        locked, now = self.would_lock(txn, key), self.now()
        txn.claims[key] = Claim("claimed", now, locked, bool(own and own.hold), past=not locked,
                                anew=bool(own and (own.anew or own.phase == "forgotten")),
                                lock_at=own.lock_at if own and own.locked else now)

    def complete(self, txn, key, result=None):
        claim = txn.claims.get(key)
        if not claim or claim.phase != "claimed":
            return NOT_HELD
        txn.claims[key] = claim._replace(phase="completed", result=result)
        return None

    def release(self, txn, key):
        claim = txn.claims.get(key)
        if not claim or claim.phase != "claimed":
            return NOT_HELD
        if claim.written:
            return "55000"
        # A savepoint behind the lock: rolled back to it, the transaction has the claim again.
        locked = claim.locked and bool(txn.savepoints) and txn.savepoints[-1].at > claim.lock_at
        hold = claim.hold or claim.past
        if claim.anew:
            txn.claims[key] = claim._replace(phase="forgotten", hold=True, locked=locked)
            return None
        txn.claims[key] = claim._replace(phase="released", hold=hold, locked=locked)
        return None

    def lock_foreign(self, txn, key):
        """pg_try_advisory_xact_lock of the event's key."""
        if any(self.has_lock(t, key) for t in self.others(txn)):
            return False
        txn.foreign |= {key}
        return True

    @staticmethod
    def has_lock(txn, key):
        claim = txn.claims.get(key)
        return key in txn.foreign or bool(claim) and claim.locked

    # Transactions.

    def begin(self, session, txn):
        self.txns[session] = txn
        return txn

    def savepoint(self, txn, name):
        txn.savepoints.append(Savepoint(name, self.now(), txn.done()))

    @staticmethod
    def find(txn, name):
        return max(i for i, s in enumerate(txn.savepoints) if s.name == name)

    def rollback_to(self, txn, name):
        at = self.find(txn, name)
        point = txn.savepoints[at]
        txn.go_back(point.done)
        txn.cursors = {n: c for n, c in txn.cursors.items() if c.made < point.at}
        txn.savepoints[at:] = [replace(point, at=point.at)]
        txn.failed = False

    def release_savepoint(self, txn, name):
        del txn.savepoints[self.find(txn, name):]

    def fail(self, txn):
        """An error: what was done since the last savepoint is undone at once."""
        txn.go_back(txn.savepoints[-1].done if txn.savepoints else {})
        txn.failed = True

    def end(self, session):
        return self.txns.pop(session)

    @staticmethod
    def may_commit(txn):
        return txn.keep or not txn.pending()

    def apply(self, txn):
        """It has committed."""
        self.commits += 1
        for key, claim in txn.claims.items():
            if claim.phase == "completed":
                self.versions.setdefault(key, []).append(Version("completed", claim.result, self.commits))
            elif claim.phase == "claimed":
                self.versions.setdefault(key, []).append(Version("processing", None, self.commits))
            elif claim.phase == "forgotten":
                self.versions.setdefault(key, []).append(Version("unknown", None, self.commits))
