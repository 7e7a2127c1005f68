"""The rules for a history of producers that number their records (sequencers.py): no record twice, none left out, none of a
producer that was replaced.  Each rule yields the violations that it finds, as (rule, name, text).  Such a history is an
AttemptHistory: the token is the epoch; the point of a registration is the producer's id, that of an accepted claim
"partition first end record_number", and that of a call "partition first count".
"""
from attempt_rules import EXPECTED, NEVER, durable, ordered


def is_gapless(name):
    """Does the producer number its records without a gap?"""
    return int(name.split()[1]) % 2 == 0


def numbers_of(point):
    return [int(n) for n in point.split()]


def accepted(h):
    """(name, partition) -> [(step, first, end, record number)], in the order of the commits."""
    found = {}
    for name, steps in ordered(h).items():
        for s in steps:
            if s.what == "accept":
                partition, first, end, number = numbers_of(s.point)
                found.setdefault((name, partition), []).append((s, first, end, number))
    return found


def epochs(h):
    """A producer has one id, and each registration the next epoch; nothing commits under an epoch but the last one."""
    for name, steps in ordered(h).items():
        last, known = -1, None
        for s in steps:
            if s.what == "register":
                if s.token != last + 1 or known not in (None, s.point):
                    yield "epochs", name, f"{s.txn} registered id {s.point}, epoch {s.token}, after id {known}, epoch {last}"
                last, known = s.token, s.point
            elif s.token != last:
                yield "epochs", name, f"{s.txn} committed under epoch {s.token}, and epoch {last} was registered"


def in_order(h):
    """A gapless producer's records follow each other in each epoch; those of another one rise over all epochs."""
    for (name, partition), of in accepted(h).items():
        end_of, last = {}, 0
        for s, first, end, _ in of:
            if is_gapless(name):
                last = end_of.get(s.token, 0)
            if first < last or (first > last and is_gapless(name)):
                yield "in_order", name, f"{s.txn} wrote {first} to {end} into {partition}, and the next one was {last}"
            last = end_of[s.token] = end


def record_numbers(h):
    """Records are counted from 0 on, over all epochs."""
    for (name, partition), of in accepted(h).items():
        count = 0
        for s, first, end, number in of:
            if number != count:
                yield "record_numbers", name, f"{s.txn} wrote record {number} into {partition}, and there were {count}"
            count += end - first


def stayed(h, of, c, epoch=None):
    """The claims that a call may rest on, in order: (first, end, record number), of transactions that stayed and whose COMMIT was
    sent before.  of: what accepted() has found."""
    return [(first, end, number) for s, first, end, number in of.get((c.name, numbers_of(c.point)[0]), ())
            if epoch in (None, s.token) and h.sent.get(s.txn, NEVER) < c.at]


def covers(claims, first, end, number):
    """Do the claims have all these records, with these record numbers?"""
    for begin, behind, begun in claims:
        if begin <= first < behind and number - first == begun - begin:
            first, number = behind, number + behind - first
    return first >= end


def own(h, c):
    """Has the call's own transaction claimed under the producer?"""
    return any(name == c.name and what == "accept" for name, what, _ in h.meant.get(c.txn, ())) or c.txn in h.undone


def repeats(h):
    """A duplicate was accepted by a transaction that stayed; a gapless producer is told the number of the first time."""
    of = accepted(h)
    for c in h.calls:
        if c.result != "duplicate" or own(h, c):
            continue
        _, first, count = numbers_of(c.point)
        if is_gapless(c.name):
            right = covers(stayed(h, of, c, c.token), first, first + count, c.answer["record_number"])
        else:
            right = any(end >= first + count for _, end, _ in stayed(h, of, c)) and c.answer["record_number"] is None
        if not right:
            yield "repeats", c.name, f"{c.point} to {c.txn} as {c.answer['record_number']}, and no such claim stayed"


def told(h):
    """What a gap, or last_sequence, says to be next is where a claim ended that stayed; and it is not what was claimed."""
    of = accepted(h)
    for c in h.calls:
        if own(h, c) or c.answer is None:
            continue
        if c.result == "gap":
            after = c.answer["expected"]
            if after == numbers_of(c.point)[1] and is_gapless(c.name):
                yield "told", c.name, f"a gap to {c.txn}, which claimed {after}, the next one"
        elif c.call == "last" and c.answer["last"] is not None:
            after = c.answer["last"] + 1
        else:
            continue
        if after and not any(end == after for _, end, _ in stayed(h, of, c)):
            yield "told", c.name, f"{after} is next to {c.txn}, and no claim ended there"


def fenced(h):
    """A producer is fenced only by a higher epoch."""
    sent = {}
    for txn, rows in h.meant.items():
        for name, what, epoch in rows:
            if what == "register":
                sent.setdefault(name, []).append((epoch, h.sent[txn]))
    for c in h.calls:
        if c.result == "fenced" and not any(e > c.token and at < c.at for e, at in sent.get(c.name, ())):
            yield "fenced", c.name, f"{c.txn} of epoch {c.token}, and no higher one had come"


def expected_errors(h):
    """Errors are those that faults and other producers cause."""
    for c in h.calls:
        if c.error and not c.error.startswith(EXPECTED):
            yield "expected_errors", c.name, f"{c.error} to {c.txn}"


SEQUENCE_RULES = (durable, epochs, in_order, record_numbers, repeats, told, fenced, expected_errors)
