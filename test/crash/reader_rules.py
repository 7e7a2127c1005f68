"""The rules for a history of readers (readers.py): no record twice, no hole, no effect of a reader that was replaced.
Each rule yields the violations that it finds, as (rule, name, text).  A history of readers is an AttemptHistory: the
token is the generation; the point of a read "first end", and of a resume the position.
"""
from attempt_rules import EXPECTED, durable, ordered

# In partitions with holes every third offset has a record.
SPACING = 3


def is_sparse(name):
    """Has the partition holes, so that its records are claimed one by one?"""
    return int(name.split()[1]) % 2 == 1


def next_record(position):
    """The first offset from the position on that has a record."""
    return -(-position // SPACING) * SPACING


def reads(h):
    """name -> [(step, first, end)], in the order of the commits."""
    return {name: [(s, *map(int, s.point.split())) for s in steps if s.what == "read"] for name, steps in ordered(h).items()}


def once(h):
    """No record is read twice: a read begins where the one before ended, or later."""
    for name, of in reads(h).items():
        last = 0
        for s, first, end in of:
            if first < last:
                yield "once", name, f"{s.txn} read {first} to {end}, and {last - 1} was read before"
            last = max(last, end)


def no_hole(h):
    """No record is left out."""
    for name, of in reads(h).items():
        last = 0
        for s, first, end in of:
            expected = next_record(last) if is_sparse(name) else last
            if first > expected:
                yield "no_hole", name, f"{s.txn} read {first} to {end}, and {expected} was not read before"
            last = max(last, end)


def generations(h):
    """No reader commits after one of a higher generation has."""
    for name, steps in ordered(h).items():
        highest = 0
        for s in steps:
            if s.token < highest:
                yield "generations", name, f"{s.txn} of generation {s.token} committed after generation {highest}"
            highest = max(highest, s.token)


def rests(h, of, name, position, before):
    """Has a read that stayed, and whose COMMIT was sent before, come to the position?  of: what reads() has found."""
    return position == 0 or any(end >= position and h.sent.get(s.txn, before) < before for s, _, end in of.get(name, ()))


def duplicates(h):
    """A duplicate was read by a transaction that stayed."""
    of = reads(h)
    for c in h.calls:
        if c.result == "duplicate" and not own(h, c) and not rests(h, of, c.name, int(c.point.split()[1]), c.at):
            yield "duplicates", c.name, f"{c.point} to {c.txn}, and no read of it stayed"


def own(h, c):
    """Has the call's own transaction read the partition?"""
    return any(name == c.name and what == "read" for name, what, _ in h.meant.get(c.txn, ())) or c.txn in h.undone


def resumed(h):
    """A reader goes on where reads that stayed have ended."""
    of = reads(h)
    for c in h.calls:
        if c.call == "resume" and c.result == "claimed" and not rests(h, of, c.name, c.answer["next_offset"] or 0, c.at):
            yield "resumed", c.name, f"{c.txn} at {c.answer['next_offset']}, and no read to there stayed"


def fenced(h):
    """A reader is fenced only by a higher generation."""
    sent = {}
    for txn, rows in h.meant.items():
        for name, _, generation in rows:
            sent.setdefault(name, []).append((generation, h.sent[txn]))
    for c in h.calls:
        if c.result == "fenced" and not any(g > c.token and at < c.at for g, at in sent.get(c.name, ())):
            yield "fenced", c.name, f"{c.txn} of generation {c.token}, and no higher one had come"


def expected_errors(h):
    """Errors are those that faults and other readers cause."""
    for c in h.calls:
        if c.error and not c.error.startswith(EXPECTED):
            yield "expected_errors", c.name, f"{c.error} to {c.txn}"


READER_RULES = (durable, once, no_hole, generations, duplicates, resumed, fenced, expected_errors)
