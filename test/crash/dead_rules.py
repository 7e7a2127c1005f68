"""The rules for dead events and requests, besides those of attempt_rules.py.

An event or a request is dead when its holder has parked it, or failed in its last attempt, and when somebody wants it whose
call finds the last lease overdue.  Such a call writes, but a call that finds it dead already does not, and both have
the same answer.  So the order of the commits has each one that its holder parked, and each redrive; of the others it
has only the last attempt, and the times of the calls bound the moment of death.

A request that is executed in one transaction has an attempt only if that transaction fails it.
"""
import collections

from attempt_rules import BEGUN, NEVER, UNDER_TOKEN, ordered


def redrives(h):
    """name -> the calls that redrove it, of transactions that committed."""
    there = {(s.txn, s.name) for s in h.steps if s.what == "redrive"}
    found = collections.defaultdict(list)
    for c in h.calls:
        if c.call == "redrive" and (c.txn, c.name) in there:
            found[c.name].append(c)
    return found


def deaths(h):
    """name -> the calls that were answered dead, of transactions whose COMMIT was answered.  ROLLBACK TO a savepoint undoes a
    death, and its row."""
    there = {(s.txn, s.name) for s in h.steps if s.what in ("dead", "park")}
    found = collections.defaultdict(list)
    for c in h.calls:
        if c.answer and "dead" in (c.result, c.answer.get("state")) and c.txn in h.answered and (c.txn, c.name) in there:
            found[c.name].append(c)
    return found


def in_order(h):
    """(name, step, was it dead before, may it have been) in the order of the commits.

    It may have been dead without a row of its own if its last attempt was begun and not given back.
    """
    for name, steps in ordered(h).items():
        dead, count = False, 0
        for s in steps:
            last = h.limit > 0 and count >= h.limit
            yield name, s, dead, dead or last
            if s.what in ("lease", "start"):
                dead, count = False, s.attempt
            elif s.what == "release":
                count -= 1
            elif s.what == "park":
                dead = True
            elif s.what in ("redrive", "discard"):
                dead, count = False, 0


def stays_dead(h):
    """What is dead has no attempt and no effect before it is redriven, whatever token they have."""
    for name, s, dead, may in in_order(h):
        if s.what in ("lease", "start", "claim") and may:
            yield "stays_dead", name, f"{s.what} of {s.txn}, after " + ("it was parked" if dead else "the last attempt")
    again, met = redrives(h), deaths(h)
    leased = {(c.name, c.answer["token"]): c.at for c in h.calls if c.result in BEGUN and c.answer.get("token")}
    for c in h.calls:
        for d in met[c.name]:
            if c.asked <= h.answered[d.txn] or c.answer is None:
                continue
            if c.result in BEGUN:
                bad = not any(r.at > d.asked and h.sent[r.txn] < c.at for r in again[c.name])
            else:
                bad = d.result == "dead" and c.call in UNDER_TOKEN and leased.get((c.name, c.token), NEVER) < d.asked
            if bad:
                yield "stays_dead", c.name, f"{c.call} of {c.txn}, after {d.txn} was answered dead"
                break


def died(h):
    """Dead for a reason: its holder parked it, or the last attempt was leased, by a transaction that was not rolled back, behind
    the last redrive."""
    again, causes = redrives(h), collections.defaultdict(list)
    for c in h.calls:
        parked = c.answer and c.answer.get("state") == "dead"
        last = c.result in BEGUN and c.answer.get("token") and c.answer["attempt"] >= h.limit > 0
        if (parked or last) and c.txn not in h.undone:
            causes[c.name].append(c)
    for c in h.calls:
        if c.result != "dead":
            continue
        since = max((r.asked for r in again[c.name] if h.answered.get(r.txn, NEVER) < c.asked), default=-NEVER)
        if not any(h.sent.get(cause.txn, NEVER) < c.at and cause.at > since for cause in causes[c.name]):
            yield "died", c.name, f"{c.txn} was answered dead, and nothing had killed it"


def last_failure(h):
    """A failed attempt parks it if that was the last attempt, and else only if the holder asks for that."""
    numbers = {}
    for c in h.calls:
        if c.result in BEGUN and "attempt" in c.answer:
            numbers[c.name, c.answer.get("token") or c.txn] = c.answer["attempt"]
    for c in h.calls:
        number = numbers.get((c.name, c.token or c.txn))
        if not c.answer or "state" not in c.answer or number is None:
            continue
        wanted = c.more.get("park") or (c.more.get("failed") and number >= h.limit > 0)
        if (c.answer["state"] == "dead") != bool(wanted):
            yield "last_failure", c.name, f"{c.call} of {c.txn} in attempt {number} was answered {c.answer['state']}"


def redriven(h):
    """Only what is dead is redriven or discarded, and by one transaction each time."""
    met = collections.defaultdict(list)
    for s in h.steps:
        if s.what == "dead":
            met[s.name].append(h.sent[s.txn])
    calls = {(c.txn, c.name, c.call): c for c in h.calls if c.call in ("redrive", "discard")}
    for name, s, dead, may in in_order(h):
        if s.what not in ("redrive", "discard"):
            continue
        call = calls.get((s.txn, name, s.what))
        if not may:
            yield "redriven", name, f"{s.what} of {s.txn}, and it was not dead"
        elif not dead and not any(sent < call.at for sent in met[name]):
            yield "redriven", name, f"{s.what} of {s.txn}, and nobody had found the last lease overdue"


DEAD_RULES = (stays_dead, died, last_failure, redriven)
