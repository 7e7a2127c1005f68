"""The rules for a history of requests, besides those of attempt_rules.py.  A history of requests is an AttemptHistory
whose calls have the fingerprints and the answers.
"""
import collections
import json

from attempt_rules import NEVER, completions, ordered

PHASES = ("charged", "shipped")
# result -> the columns that it may show.  A request that was discarded has the answer NOTHING.
SHOWN = {"started": {"token", "attempt", "recovery_point", "noted"}, "replay": {"status", "headers", "body", "completed_at"},
         "in_progress": {"retry_after"}, "mismatch": set(), "dead": {"attempt"}}
NOTHING = (None, None, None)


def asked(h):
    return (c for c in h.calls if c.call == "request" and c.answer)


def stored(h):
    """request -> the answer that the transaction stored which completed it."""
    by = {(c.txn, c.name): c for c in h.calls if c.call == "complete" and c.answer}
    return {name: by.get((s.txn, name)) for name, s in completions(h).items()}


def executed_for(h):
    """request -> the fingerprint of the execution that completed it."""
    found = {}
    for name, steps in ordered(h).items():
        begun = None
        for s in steps:
            if s.what in ("lease", "start"):
                begun = s.print
            elif s.what == "complete":
                found.setdefault(name, begun)
    return found


def discards(h):
    """request -> the transaction that discarded it."""
    return {name: s.txn for name, s in completions(h).items() if s.what == "discard"}


def replays(h):
    """Each replay is the stored answer: status, headers, and each byte of the body.  What was discarded has none."""
    first, discarded, shown = stored(h), discards(h), {}
    for c in asked(h):
        if c.result != "replay":
            continue
        got = (c.answer["status"], loaded(c.answer["headers"]), c.answer["body"])
        if c.name in discarded:     # and its time is a range, once it is packed
            if got != NOTHING:
                yield "replays", c.name, f"to {c.txn}: {str(got)[:200]}, and {discarded[c.name]} discarded it"
            continue
        one = first.get(c.name)
        if one is None:
            yield "replays", c.name, f"to {c.txn}, and nothing was stored"
            continue
        if got != (one.more["status"], loaded(one.answer["headers"]), one.more["body"]):
            yield "replays", c.name, f"to {c.txn}: {str(got)[:200]}, {one.txn} stored another answer"
        text = shown.setdefault(c.name, (c.answer["headers"], c.answer["completed_at"]))
        if text != (c.answer["headers"], c.answer["completed_at"]):
            yield "replays", c.name, f"to {c.txn}: another replay had other headers, or another time"


def loaded(headers):
    return None if headers is None else json.loads(headers)


def silent(h):
    """Each result is one that may be, and shows what belongs to it: only a replay has an answer, and who is told dead has neither a
    token nor a recovery point."""
    for c in asked(h):
        if c.result not in SHOWN:
            yield "silent", c.name, f"{c.result} to {c.txn}"
            continue
        more = sorted(column for column, value in c.answer.items() if value is not None and column not in SHOWN[c.result] | {"result"})
        if more:
            yield "silent", c.name, f"{c.result} to {c.txn} shows {more}"
        if c.result == "dead" and c.answer["attempt"] != h.limit:
            yield "silent", c.name, f"dead to {c.txn} after {c.answer['attempt']} attempts"


def mismatches(h):
    """Another fingerprint is a mismatch, and only another fingerprint is.  A first attempt that was released does not count.  What
    was discarded has no fingerprint."""
    released = {(c.name, c.token): h.answered[c.txn] for c in h.calls if c.call == "release" and c.token and c.txn in h.answered}
    prints = collections.defaultdict(list)      # request -> (fingerprint, from, to): of attempts that may have counted
    for c in asked(h):
        if c.result == "started":
            end = released.get((c.name, c.answer["token"]), NEVER) if c.answer["attempt"] == 1 else NEVER
            prints[c.name].append((c.more["print"], c.asked, end))
    completed_for, discarded = executed_for(h), discards(h)
    for c in asked(h):
        sent = c.more["print"]
        if c.result == "mismatch" and not any(begin < c.at and end > c.asked and other != sent for other, begin, end in prints[c.name]):
            yield "mismatches", c.name, f"to {c.txn}, and no attempt of another request counted"
        if c.result == "mismatch" and c.asked > h.answered.get(discarded.get(c.name), NEVER):
            yield "mismatches", c.name, f"to {c.txn}, after the request was discarded"
        if c.result == "replay" and sent is not None and sent != completed_for.get(c.name, sent):
            yield "mismatches", c.name, f"the answer of another request to {c.txn}"


def executions(h):
    """While an attempt counts, another request does not start under the key.  A redrive gives the attempts back, but they did begin."""
    for name, steps in ordered(h).items():
        begun, before = None, 0
        for s in steps:
            if s.what in ("lease", "start"):
                if begun not in (None, s.print):
                    yield "executions", name, f"{s.txn} started another request"
                begun, before = s.print, before + 1
            elif s.what == "release":
                before -= 1
                begun = begun if before else None


def phases(h):
    """A phase commits once, behind the phase before it, and before the completion."""
    for name, steps in ordered(h).items():
        done = [s.point or s.what for s in steps if s.what in ("phase", "complete")]
        known = [p for p in PHASES if p in done] + ["complete"] * ("complete" in done)
        if done != known or ("shipped" in done and "charged" not in done):
            yield "phases", name, f"its phases were {done}"


def recovery(h):
    """An attempt begins at the recovery point that was committed last."""
    for name, steps in ordered(h).items():
        point = None
        for s in steps:
            if s.what in ("lease", "start") and s.point != point:
                yield "recovery", name, f"{s.txn} began at {s.point}, and {point} was committed"
            if s.what == "phase":
                point = s.point
    for c in asked(h):
        if c.result == "started" and c.answer["noted"] != c.answer["recovery_point"]:
            yield "recovery", c.name, f"{c.txn} began at {c.answer['recovery_point']}, with the state of {c.answer['noted']}"


REQUEST_RULES = (replays, silent, mismatches, executions, phases, recovery)
