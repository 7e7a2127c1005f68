"""What doc/reference/outbox.md promises of enqueued events.

An event is found by every reader that has not passed it, once its transaction has committed, and never if that
did not.  Within a difference of two snapshots events come in the order they were enqueued in.  Of the events with
one dedup id the first is enqueued; the window of these tests does not end.
"""
from dataclasses import dataclass, field
from typing import NamedTuple


class Event(NamedTuple):
    at: int             # the number of its enqueueing, over all sessions
    row: tuple          # what a reader gives out: event_id, aggregate_type, aggregate_id, event_type, ...


@dataclass
class Cursor:
    """Enqueues one event per row; the row `bad`, counted from 1, raises after that."""
    rows: int
    bad: int
    made: int
    at: int = 0
    broken: bool = False


@dataclass
class Savepoint:
    name: str
    at: int
    events: list
    ids: frozenset
    dedups: dict


@dataclass
class Txn:
    isolation: str
    read_only: bool = False
    snapshot: int = None
    failed: bool = False
    events: list = field(default_factory=list)
    ids: frozenset = frozenset()        # ids of the client's own
    dedups: dict = field(default_factory=dict)      # dedup id -> event id
    savepoints: list = field(default_factory=list)
    cursors: dict = field(default_factory=dict)


class Snapshot(NamedTuple):
    """The server's, and how many transactions had committed then."""
    text: str
    commits: int


class Model:
    def __init__(self):
        self.clock = 0
        self.committed = []     # lists of events, by the order of commit
        self.ids = {}           # an id of a client's own -> number of the commit
        self.dedups = {}        # dedup id -> event id, number of the commit
        self.txns = {}
        self.prepared = {}

    def now(self):
        self.clock += 1
        return self.clock

    @property
    def commits(self):
        return len(self.committed)

    # Transactions.

    def savepoint(self, txn, name):
        txn.savepoints.append(Savepoint(name, self.now(), list(txn.events), txn.ids, dict(txn.dedups)))

    @staticmethod
    def find(txn, name):
        return max(i for i, s in enumerate(txn.savepoints) if s.name == name)

    def rollback_to(self, txn, name):
        at = self.find(txn, name)
        point = txn.savepoints[at]
        del txn.savepoints[at + 1:]
        txn.events, txn.ids, txn.dedups, txn.failed = list(point.events), point.ids, dict(point.dedups), False
        txn.cursors = {n: c for n, c in txn.cursors.items() if c.made < point.at}

    def release_savepoint(self, txn, name):
        del txn.savepoints[self.find(txn, name):]

    @staticmethod
    def fail(txn):
        """What was done since the last savepoint is undone at once, its ids are free."""
        point = txn.savepoints[-1] if txn.savepoints else Savepoint("", 0, [], frozenset(), {})
        txn.events, txn.ids, txn.dedups, txn.failed = list(point.events), point.ids, dict(point.dedups), True

    def commit(self, txn):
        self.committed.append(sorted(txn.events))
        for event_id in txn.ids:
            self.ids[event_id] = self.commits
        for dedup_id, event_id in txn.dedups.items():
            self.dedups[dedup_id] = event_id, self.commits

    # Enqueueing.

    def refuses(self, txn, ids):
        """The SQLSTATEs of those ids that may not be enqueued; which of them is met first is not said."""
        states, seen = set(), set()
        for event_id in ids:
            if event_id in txn.ids or event_id in seen:
                states.add("23505")
            elif any(event_id in t.ids for t in [*self.txns.values(), *self.prepared.values()] if t is not txn):
                states.add("55P03")
            elif event_id in self.ids:
                # a packer may come at any time, and what it packs is too new for a snapshot
                late = txn.isolation != "READ COMMITTED" and self.ids[event_id] > txn.snapshot
                states |= {"40001"} if late else {"23505"} if txn.isolation == "READ COMMITTED" else {"23505", "40001"}
            seen.add(event_id)
        return states

    def dedup_errors(self, txn, dedup_ids):
        """The SQLSTATEs of those dedup ids that are not answered; which of them is met first is not said."""
        states = set()
        for dedup_id in set(dedup_ids) - set(txn.dedups) - {None}:
            if any(dedup_id in t.dedups for t in [*self.txns.values(), *self.prepared.values()] if t is not txn):
                states.add("55P03")
            elif dedup_id in self.dedups and txn.isolation != "READ COMMITTED" and self.dedups[dedup_id][1] > txn.snapshot:
                states.add("40001")
        return states

    def first_event(self, txn, dedup_id):
        """The id of the event that has the dedup id; None: there is none."""
        return txn.dedups.get(dedup_id) or self.dedups.get(dedup_id, (None,))[0]

    # Reading.

    def difference(self, done, cur):
        """The events that committed between two snapshots."""
        return sorted(e for events in self.committed[done.commits:cur.commits] for e in events)
