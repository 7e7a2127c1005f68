"""What the documents promise of offsets and sequences: the model of cursors.py.

The rules of sequences are Kafka's, told otherwise than in the sources: the records of an epoch have numbers from 0 on, and
a sequence stands for those numbers that are equal to it modulo 2^31.
"""
from dataclasses import dataclass, field
from typing import NamedTuple

CIRCLE = 1 << 31
LARGEST = (1 << 63) - 1
SHARE, EXCLUSIVE = "share", "exclusive"
SERIALIZATION, READ_ONLY, PAST_BUDGET, IN_USE = "40001", "25006", "53400", "55P03"
INVALID, UNKNOWN, OTHER_RULE = "22023", "42704", "55000"


class Offset(NamedTuple):
    position: int = None
    generation: int = None


class Registration(NamedTuple):
    name: str
    epoch: int
    gapless: bool


class Sequence(NamedTuple):
    last: int           # of a producer that is not gapless
    epoch: int
    accepted: int       # records of all epochs
    in_epoch: int


class Savepoint(NamedTuple):
    name: str
    writes: dict
    locks: dict


@dataclass
class Txn:
    isolation: str
    read_only: bool = False
    budget: int = 64
    snapshot: int = None
    failed: bool = False
    writes: dict = field(default_factory=dict)      # key -> state, None: gone
    locks: dict = field(default_factory=dict)       # key -> SHARE or EXCLUSIVE
    savepoints: list = field(default_factory=list)


def offset_key(consumer, partition):
    return ("o", consumer, partition)


def sequence_key(producer_id, partition):
    return ("s", producer_id, partition)


def id_key(producer_id):
    return ("p", producer_id)


def name_key(name):
    return ("n", name)


class Model:
    def __init__(self):
        self.state = {}             # key -> state
        self.changed = {}           # key -> number of the commit
        self.commits = 0
        self.txns = {}              # session -> Txn
        self.prepared = {}          # gid -> Txn
        self.ids = []               # all that were given out, committed or not
        self.turns = False          # a table of the log may take its turn at any time

    # Transactions.

    @staticmethod
    def savepoint(txn, name):
        txn.savepoints.append(Savepoint(name, dict(txn.writes), dict(txn.locks)))

    @staticmethod
    def find(txn, name):
        return max(i for i, s in enumerate(txn.savepoints) if s.name == name)

    def rollback_to(self, txn, name):
        at = self.find(txn, name)
        del txn.savepoints[at + 1:]
        self.undo(txn, txn.savepoints[at])
        txn.failed = False

    def release_savepoint(self, txn, name):
        del txn.savepoints[self.find(txn, name):]

    @staticmethod
    def undo(txn, point):
        txn.writes, txn.locks = dict(point.writes), dict(point.locks)

    def fail(self, txn):
        """What was done since the last savepoint is undone at once, its locks are free."""
        self.undo(txn, txn.savepoints[-1] if txn.savepoints else Savepoint("", {}, {}))
        txn.failed = True

    def commit(self, txn):
        self.commits += 1
        for key, state in txn.writes.items():
            self.changed[key] = self.commits
            self.state[key] = state
            if state is None:
                del self.state[key]

    # What is seen, and what is locked.

    def get(self, txn, key):
        return txn.writes[key] if key in txn.writes else self.state.get(key)

    def is_held(self, txn, key, modes):
        others = [t for t in [*self.txns.values(), *self.prepared.values()] if t is not txn]
        return any(t.locks.get(key) in modes for t in others)

    @staticmethod
    def has_room(txn, *keys):
        return len(set(keys) - set(txn.locks)) <= max(0, txn.budget - len(txn.locks))

    def is_late(self, txn, key):
        return txn.isolation != "READ COMMITTED" and key not in txn.writes and self.changed.get(key, 0) > txn.snapshot

    def too_late(self, txn, key):
        """40001, or None, or that it is open: a copy of the row may be newer than the snapshot."""
        if self.is_late(txn, key):
            return {SERIALIZATION}
        moved = self.turns and txn.isolation != "READ COMMITTED" and key in self.changed
        return {SERIALIZATION, None} if moved else {None}

    def may_act(self, txn, key):
        """Errors or answers that come before anything is judged; None: none does."""
        if txn.read_only:
            return {READ_ONLY}
        if not self.has_room(txn, key):
            return {PAST_BUDGET}
        return {None}

    @staticmethod
    def lock(txn, key, mode=EXCLUSIVE):
        if txn.locks.get(key) != EXCLUSIVE:
            txn.locks[key] = mode

    # Offsets.  Each returns what is allowed: SQLSTATEs and one answer; act() is called when the answer came.

    def offset(self, txn, key, judge):
        first = self.may_act(txn, key)
        if first != {None}:
            return first, None
        if self.is_held(txn, key, (EXCLUSIVE,)):
            return {("busy", None)}, None
        late = self.too_late(txn, key)
        if late == {SERIALIZATION}:
            return late, None
        answer, state = judge(self.get(txn, key) or Offset())

        def act():
            if state is not None:
                self.lock(txn, key)
                txn.writes[key] = state
        return late - {None} | {answer}, act

    @staticmethod
    def is_fenced(stored, generation):
        return None not in (generation, stored.generation) and generation < stored.generation

    @staticmethod
    def newest(stored, generation):
        return max((g for g in (stored.generation, generation) if g is not None), default=None)

    def resume(self, txn, key, generation):
        def judge(stored):
            if self.is_fenced(stored, generation):
                return ("fenced", None), None
            newest = self.newest(stored, generation)
            return ("claimed", stored.position), stored._replace(generation=newest) if newest != stored.generation else None
        return self.offset(txn, key, judge)

    def claim_offset(self, txn, key, first, following, generation):
        def judge(stored):
            end = following if following is not None else first + 1
            if self.is_fenced(stored, generation):
                return ("fenced", None), None
            if stored.position is not None and end <= stored.position:
                return ("duplicate", None), None
            if following is not None and stored.position is not None and first > stored.position:
                return ("gap", None), None
            begin = first if stored.position is None else max(first, stored.position)
            return ("claimed", begin), Offset(end, self.newest(stored, generation))
        return self.offset(txn, key, judge)

    def reset(self, txn, key, position):
        first = self.may_act(txn, key)
        if first == {None} and self.is_held(txn, key, (EXCLUSIVE,)):
            first = {IN_USE}
        if first != {None}:
            return first, None
        late = self.too_late(txn, key)
        if late == {SERIALIZATION}:
            return late, None
        stored = self.get(txn, key)

        def act():
            self.lock(txn, key)
            if position is not None:
                txn.writes[key] = (stored or Offset())._replace(position=position)
            elif stored is not None:
                txn.writes[key] = None
        return late - {None} | {stored is not None}, act

    # Producers.

    def lock_errors(self, txn, name):
        """What comes before a producer is looked at; None: nothing does."""
        first = self.may_act(txn, name_key(name))
        if first != {None}:
            return first
        if self.is_held(txn, name_key(name), (EXCLUSIVE,)):
            return {IN_USE}
        producer_id = self.get(txn, name_key(name))
        if producer_id is None:
            return {None}
        if not self.has_room(txn, name_key(name), id_key(producer_id)):
            return {PAST_BUDGET}
        if txn.locks.get(id_key(producer_id)) != EXCLUSIVE and self.is_held(txn, id_key(producer_id), (SHARE, EXCLUSIVE)):
            return {IN_USE}
        return {None}

    def lock_producer(self, txn, name):
        self.lock(txn, name_key(name))
        producer_id = self.get(txn, name_key(name))
        if producer_id is not None:
            self.lock(txn, id_key(producer_id))
        return producer_id

    def register(self, txn, name, gapless):
        """SQLSTATEs, or None: registered(), with what was answered, makes it so."""
        errors = self.lock_errors(txn, name)
        if errors != {None}:
            return errors
        producer_id = self.get(txn, name_key(name))
        if producer_id is not None and self.get(txn, id_key(producer_id)).gapless != gapless:
            return {OTHER_RULE}
        return {None}

    def registered(self, txn, name, gapless, producer_id, epoch):
        """True if the answer is right."""
        former = self.lock_producer(txn, name)
        fine = epoch == self.get(txn, id_key(former)).epoch + 1 and producer_id == former if former is not None else \
            epoch == 0 and producer_id > max(self.ids, default=0)
        if former is None:
            self.ids.append(producer_id)
        txn.writes[name_key(name)] = producer_id
        txn.writes[id_key(producer_id)] = Registration(name, epoch, gapless)
        return fine

    def drop(self, txn, name):
        errors = self.lock_errors(txn, name)
        if errors == {None} and self.get(txn, name_key(name)) is None:
            errors = {UNKNOWN}
        return errors

    def dropped(self, txn, name):
        producer_id = self.lock_producer(txn, name)
        txn.writes[name_key(name)] = txn.writes[id_key(producer_id)] = None

    # Sequences.

    def last_sequence(self, txn, producer_id, partition):
        if txn.read_only:
            return {READ_ONLY}
        if self.get(txn, id_key(producer_id)) is None:
            return {UNKNOWN}
        sequence = self.get(txn, sequence_key(producer_id, partition))
        return {sequence.last if sequence else None}

    def claim_sequence(self, txn, producer_id, epoch, sequence, partition, count):
        key, own = sequence_key(producer_id, partition), id_key(producer_id)
        if txn.read_only:
            return {READ_ONLY}, None
        if not self.has_room(txn, key, own):
            return {PAST_BUDGET}, None
        if self.is_held(txn, own, (EXCLUSIVE,)) or self.is_held(txn, key, (EXCLUSIVE,)):
            return {("busy", None, None)}, None
        producer = self.get(txn, own)
        if producer is None or epoch < producer.epoch:
            return {("fenced", None, None)}, None
        if epoch > producer.epoch or sequence >= (CIRCLE if producer.gapless else LARGEST - count + 1):
            return {INVALID}, None
        late = self.too_late(txn, key)
        if late == {SERIALIZATION}:
            return late, None
        stored = self.get(txn, key)
        judge = self.gapless if producer.gapless else self.rising
        answer, state = judge(stored, epoch, sequence, count)

        def act():
            if state is not None:
                self.lock(txn, own, SHARE)
                self.lock(txn, key)
                txn.writes[key] = state
        return late - {None} | {answer}, act

    @staticmethod
    def gapless(stored, epoch, sequence, count):
        accepted = stored.accepted if stored else 0
        if stored is None or stored.epoch != epoch:
            stored = Sequence(-1, epoch, accepted, 0)
        done = stored.in_epoch
        # the last number that the sequence may stand for
        number = done - (done - sequence) % CIRCLE
        following = done % CIRCLE
        if number == done:
            following = (done + count) % CIRCLE
            return ("accepted", accepted, following), Sequence((following - 1) % CIRCLE, epoch, accepted + count, done + count)
        if number >= 0 and done - number <= CIRCLE // 2 and number + count <= done:
            return ("duplicate", accepted - done + number, following), None
        return ("gap", None, following), None

    @staticmethod
    def rising(stored, epoch, sequence, count):
        last, accepted = (stored.last, stored.accepted) if stored else (None, 0)
        end = sequence + count - 1
        if last is None or sequence > last:
            in_epoch = stored.in_epoch if stored and stored.epoch == epoch else 0
            return ("accepted", accepted, end + 1), Sequence(end, epoch, accepted + count, in_epoch + count)
        return ("duplicate" if end <= last else "gap", None, last + 1), None

    # What the views show.

    def cursors(self):
        offsets = [(k[1], None, k[2], *s, None, None, None) for k, s in self.state.items() if k[0] == "o"]
        sequences = [(None, self.state[id_key(k[1])].name, k[2], None, None, s.last, s.epoch, s.accepted)
                     for k, s in self.state.items() if k[0] == "s" and id_key(k[1]) in self.state]
        return sorted([*offsets, *sequences], key=repr)

    def producers(self):
        return sorted((s.name, k[1], s.epoch, s.gapless) for k, s in self.state.items() if k[0] == "p")
