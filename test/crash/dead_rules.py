"""The rules for dead events in a history of leases, besides those of attempt_rules.py.

An event is dead when its holder has parked it, or failed in its last attempt, and when somebody wants it whose call
finds the last lease overdue.  Such a call writes, but a call that finds the event dead already does not, and both have
the same answer.  So the order of the commits has each event that its holder parked, and each redrive; of the others it
has only the last attempt, and the times of the calls bound the moment of death.
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
    """name -> the calls that were answered dead, of transactions whose COMMIT was answered."""
    found = collections.defaultdict(list)
    for c in h.calls:
        if c.answer and "dead" in (c.result, c.answer.get("state")) and c.txn in h.answered:
            found[c.name].append(c)
    return found


def in_order(h):
    """(name, step, was the event dead before, may it have been) in the order of the commits.

    It may have been dead without a row of its own if its last attempt was leased and not given back.
    """
    for name, steps in ordered(h).items():
        dead, count = False, 0
        for s in steps:
            last = h.limit > 0 and count >= h.limit
            yield name, s, dead, dead or last
            if s.what == "lease":
                dead, count = False, s.attempt
            elif s.what == "release":
                count -= 1
            elif s.what == "park":
                dead = True
            elif s.what in ("redrive", "discard"):
                dead, count = False, 0


def stays_dead(h):
    """A dead event has no attempt and no effect before it is redriven, whatever token they have."""
    for name, s, dead, may in in_order(h):
        if s.what in ("lease", "claim") and may:
            yield "stays_dead", name, f"{s.what} of {s.txn}, after " + ("the event was parked" if dead else "the last attempt")
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
    """An event is dead for a reason: its holder parked it, or its last attempt was leased, behind the last redrive."""
    again, causes = redrives(h), collections.defaultdict(list)
    for c in h.calls:
        if c.answer and (c.answer.get("state") == "dead" or (c.result == "claimed" and c.answer.get("attempt", 0) >= h.limit > 0)):
            causes[c.name].append(c)
    for c in h.calls:
        if c.result != "dead":
            continue
        last = max((r.asked for r in again[c.name] if h.answered.get(r.txn, NEVER) < c.asked), default=-NEVER)
        if not any(cause.asked < c.at and cause.at > last for cause in causes[c.name]):
            yield "died", c.name, f"{c.txn} was answered dead, and nothing had killed the event"


def redriven(h):
    """Only a dead event is redriven or discarded, and by one transaction each time."""
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
            yield "redriven", name, f"{s.what} of {s.txn}, and the event was not dead"
        elif not dead and not any(sent < call.at for sent in met[name]):
            yield "redriven", name, f"{s.what} of {s.txn}, and nobody had found the last lease overdue"


DEAD_RULES = (stays_dead, died, redriven)
