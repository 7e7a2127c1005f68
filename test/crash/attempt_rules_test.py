"""Histories of leases, requests, readers and sequences made by hand, for rules_test.py: the good ones pass, and each bad one is flagged by
the rules that it breaks, and by no other rule.
"""
from attempt_rules import ATTEMPT_RULES, AttemptHistory, Call, Step
from dead_rules import DEAD_RULES
from handmade import judged
from reader_rules import READER_RULES
from request_rules import REQUEST_RULES
from sequence_rules import SEQUENCE_RULES

E1, E2, E3, E4 = "event-1", "event-2", "event-3", "event-4"
R1, R2, R3 = "t|request-1", "t|request-2", "u|request-2"
P0, P1 = "part 0", "part 1"
T0, T1 = "till 0", "till 1"


def told(h, asked, txn, name, call, result=None, error=None, token=None, point=None, **answer):
    """A call of a tenth of a second; without an error it has an answer."""
    more = {key: answer.pop(key) for key in ("print", "wait", "failed", "park") if key in answer}
    h.calls.append(Call(asked, asked + 0.1, txn, name, call, None if error else {"result": result, **answer}, error, token, point, more))


def commit(h, at, txn, *steps, prepared=None):
    """A transaction with rows, whose COMMIT is sent a tenth before the time and answered a tenth after it."""
    for step in steps:
        h.steps.append(Step(int(at * 1e6), len(h.steps), txn, *step))
    h.meant[txn] = [(step[0], step[1], step[2] if len(step) > 2 else None) for step in steps]
    h.sent[txn] = at - 0.1
    if not prepared:
        h.answered[txn] = at + 0.1


def lease(h, asked, txn, name, token, attempt, point=None):
    told(h, asked, txn, name, "lease", "claimed", token=None, recovery_point=point, noted=point, attempt=attempt)
    h.calls[-1].answer["token"] = token


def good_leases():
    """The first event's lease is taken over, and its late holder refused; the second event's is given back, and taken by a claim.
    The third event is dead after three attempts, and redriven; the fourth one is parked, and discarded."""
    h = AttemptHistory(names=[E1, E2, E3, E4], limit=3)
    lease(h, 1.0, "l.1", E1, 10, 1)
    commit(h, 1.5, "l.1", (E1, "lease", 10, 1))
    told(h, 2.0, None, E1, "extend", token=10, point="p1", until="later")
    told(h, 2.2, "l.2", E1, "assert", token=10, ok="")
    commit(h, 2.5, "l.2", (E1, "effect", 10))
    lease(h, 3.0, "l.3", E1, 20, 2, "p1")
    commit(h, 3.5, "l.3", (E1, "lease", 20, 2, "p1"))
    told(h, 4.0, "l.4", E1, "complete", error="ID007", token=10)
    h.undone.add("l.4")
    h.outside = [(E1, 10), (E1, 20)]
    told(h, 5.0, "l.5", E1, "complete", token=20, ok="")
    commit(h, 5.5, "l.5", (E1, "effect", 20), (E1, "complete", 20))
    told(h, 6.0, "l.6", E1, "lease", "duplicate")
    lease(h, 1.0, "l.7", E2, 11, 1)
    commit(h, 1.5, "l.7", (E2, "lease", 11, 1))
    told(h, 2.0, "l.8", E2, "release", token=11, state="waiting")
    commit(h, 2.5, "l.8", (E2, "release", 11))
    lease(h, 3.2, "l.9", E2, 22, 1)
    commit(h, 3.5, "l.9", (E2, "lease", 22, 1), prepared=True)
    told(h, 4.0, "l.10", E2, "claim", "claimed")
    commit(h, 4.5, "l.10", (E2, "claim"), (E2, "effect"), (E2, "complete"))
    told(h, 4.8, "l.11", E2, "claim", "duplicate")
    good_dead(h)
    return h


def good_dead(h):
    lease(h, 1.0, "l.12", E3, 12, 1)
    commit(h, 1.5, "l.12", (E3, "lease", 12, 1))
    lease(h, 2.0, "l.21", E3, 14, 2)
    commit(h, 2.5, "l.21", (E3, "lease", 14, 2))
    lease(h, 3.05, "l.13", E3, 21, 3)
    commit(h, 3.5, "l.13", (E3, "lease", 21, 3))
    told(h, 3.6, "l.22", E3, "lease", "dead")       # in a savepoint that is rolled back
    commit(h, 3.8, "l.22")
    told(h, 3.95, None, E3, "extend", token=21, until="later")
    told(h, 4.0, "l.14", E3, "lease", "dead")
    commit(h, 4.5, "l.14", (E3, "dead"))
    told(h, 4.8, None, E3, "extend", error="ID007", token=21)
    told(h, 5.0, "d.1", E3, "redrive", n=1)
    commit(h, 5.5, "d.1", (E3, "redrive"))
    lease(h, 6.0, "l.15", E3, 30, 1)
    commit(h, 6.5, "l.15", (E3, "lease", 30, 1))
    told(h, 7.0, "l.16", E3, "complete", token=30, ok="")
    commit(h, 7.5, "l.16", (E3, "effect", 30), (E3, "complete", 30))
    lease(h, 1.0, "l.17", E4, 13, 1)
    commit(h, 1.5, "l.17", (E4, "lease", 13, 1))
    told(h, 2.0, "l.18", E4, "release", token=13, park=True, state="dead")
    commit(h, 2.5, "l.18", (E4, "park", 13))
    told(h, 3.0, "d.2", E4, "discard", n=1)
    commit(h, 3.5, "d.2", (E4, "discard"))
    told(h, 4.0, "l.19", E4, "lease", "duplicate")


def ask(h, asked, txn, result, sent="this", name=R1, **answer):
    told(h, asked, txn, name, "request", result, print=sent, **{**dict.fromkeys(
        ("status", "headers", "body", "completed_at", "token", "attempt", "recovery_point", "noted")), **answer})
    h.calls[-1].answer["token"] = answer.get("token")


def start(h, asked, txn, name, token, attempt, point=None, sent="this"):
    """A request is started with a lease."""
    ask(h, asked, txn, "started", sent, name, token=token, attempt=attempt, recovery_point=point, noted=point)
    commit(h, asked + 0.2, txn, (name, "lease", token, attempt, point, sent))


def good_requests():
    """A first attempt is released and the key used for another request; that one's second attempt goes on at the first phase.
    The second request is dead after three attempts, and redriven; the third one's last lease is found overdue, and it is discarded."""
    h = AttemptHistory(names=[R1, R2, R3], limit=3)
    start(h, 0.6, "r.1", R1, 5, 1, sent="another")
    told(h, 0.9, "r.2", R1, "release", token=5)
    commit(h, 1.1, "r.2", (R1, "release", 5))
    start(h, 1.3, "r.3", R1, 10, 1)
    ask(h, 1.7, "r.4", "mismatch", sent="another")
    told(h, 2.0, "r.5", R1, "advance", token=10, until="later")
    commit(h, 2.5, "r.5", (R1, "phase", 10, None, "charged"))
    ask(h, 2.8, "r.6", "in_progress", retry_after="1 s")
    ask(h, 3.0, "r.7", "started", attempt=2, recovery_point="charged", noted="charged")
    told(h, 3.2, "r.7", R1, "complete", ok="", headers='{"A": "b"}')
    h.calls[-1].more.update(status=201, body="00ff")
    commit(h, 3.5, "r.7", (R1, "start", None, 2, "charged", "this"), (R1, "phase", None, None, "shipped"), (R1, "complete",))
    for asked, txn, sent in ((4.0, "r.8", "this"), (5.0, "r.9", None)):
        ask(h, asked, txn, "replay", sent=sent, status=201, headers='{"A": "b"}', body="00ff", completed_at="then")
    ask(h, 6.0, "r.10", "mismatch", sent="another")
    good_redriven(h)
    good_discarded(h)
    return h


def good_redriven(h):
    start(h, 0.75, "r.31", R2, 7, 1)
    told(h, 1.0, "r.32", R2, "advance", token=7, until="later")
    commit(h, 1.2, "r.32", (R2, "phase", 7, None, "charged"))
    start(h, 1.55, "r.33", R2, 12, 2, "charged")
    told(h, 1.8, "r.34", R2, "fail", token=12, failed=True, state="waiting")
    commit(h, 2.0, "r.34", (R2, "fail", 12))
    ask(h, 2.2, "r.35", "started", name=R2, attempt=3, recovery_point="charged", noted="charged")
    told(h, 2.4, "r.35", R2, "fail", failed=True, state="dead")
    commit(h, 2.6, "r.35", (R2, "start", None, 3, "charged", "this"), (R2, "park",))
    ask(h, 2.8, "r.36", "dead", name=R2, attempt=3)
    commit(h, 3.0, "r.36", (R2, "dead"))
    ask(h, 2.9, "r.37", "mismatch", sent="another", name=R2)
    told(h, 3.2, "g.1", R2, "redrive", n=1)
    commit(h, 3.4, "g.1", (R2, "redrive"))
    start(h, 3.8, "r.38", R2, 30, 1, "charged")
    told(h, 4.2, "r.39", R2, "release", token=30)
    commit(h, 4.4, "r.39", (R2, "release", 30))
    ask(h, 4.6, "r.40", "mismatch", sent="another", name=R2)
    start(h, 5.0, "r.41", R2, 40, 1, "charged")
    told(h, 5.4, "r.42", R2, "complete", token=40, ok="", headers=None)
    h.calls[-1].more.update(status=200, body=None)
    commit(h, 5.6, "r.42", (R2, "phase", 40, None, "shipped"), (R2, "complete", 40))


def good_discarded(h):
    for asked, txn, token, attempt in ((0.8, "r.51", 8, 1), (1.6, "r.52", 13, 2), (2.1, "r.53", 20, 3)):
        start(h, asked, txn, R3, token, attempt)
    ask(h, 2.5, "r.54", "dead", name=R3, attempt=3)
    commit(h, 2.7, "r.54", (R3, "dead"))
    told(h, 2.9, "r.55", R3, "advance", error="ID007", token=20)
    h.undone.add("r.55")
    told(h, 3.0, "g.2", R3, "discard", n=1)
    commit(h, 3.2, "g.2", (R3, "discard"))
    ask(h, 3.5, "r.56", "replay", sent="another", name=R3, completed_at="then")
    ask(h, 5.5, "r.57", "replay", name=R3, completed_at="earlier")


def steps_of(h, txn):
    return [s for s in h.steps if s.txn == txn]


def lose(h, txn):
    """The transaction is not there; nobody was told that it committed."""
    h.steps[:] = [s for s in h.steps if s.txn != txn]
    h.answered.pop(txn, None)


def call_of(h, txn, call=None):
    return next(c for c in h.calls if c.txn == txn and call in (None, c.call))


def later(h, txn, at):
    for s in steps_of(h, txn):
        s.at = int(at * 1e6)


def renumber(h, txn, token):
    """Another token was given to a transaction."""
    call_of(h, txn).answer["token"] = token
    for s in steps_of(h, txn):
        s.token = token
    h.meant[txn] = [(name, what, token) for name, what, _ in h.meant[txn]]


# name -> (rules that must flag it, what to change)
BAD_LEASES = {
    "an answered lease is gone": ({"durable", "fenced"}, lambda h: h.steps.remove(steps_of(h, "l.3")[0])),
    "a row of a transaction that was rolled back": ({"durable"}, lambda h: h.undone.add("l.9")),
    "a row of a savepoint that was rolled back": ({"durable"}, lambda h: h.meant["l.2"].clear()),
    "a token is given out again": ({"tokens", "fenced", "unjustified"}, lambda h: renumber(h, "l.3", 10)),
    "a token falls": ({"tokens", "fenced"}, lambda h: renumber(h, "l.3", 9)),
    "a token falls, of a lease that was rolled back": ({"tokens"}, lambda h: lease(h, 7.0, "l.20", "event-5", 15, 1)),
    "an effect commits after a take-over": ({"fenced"}, lambda h: later(h, "l.2", 3.6)),
    "an effect under a token that was given back": ({"fenced"}, lambda h: commit(h, 3.0, "l.20", (E2, "effect", 11))),
    "a lease is completed by another token": ({"fenced"}, lambda h: (steps_of(h, "l.5")[0].__setattr__("token", 10),
                                                                     h.meant["l.5"].__setitem__(0, (E1, "effect", 10)))),
    "an effect outside by a later holder": ({"outside"}, lambda h: h.outside.append((E1, 30))),
    "an event is completed twice": ({"once"}, lambda h: commit(h, 5.7, "l.20", (E1, "complete", 20))),
    "an effect after the completion": ({"over"}, lambda h: commit(h, 5.8, "l.20", (E1, "effect", 20))),
    "a completed event is leased": ({"over"}, lambda h: lease(h, 7.0, "l.20", E1, 35, 3, "p1")),
    "an event is never completed": ({"finished", "completed_before"}, lambda h: lose(h, "l.10")),
    "duplicate before the completion": ({"completed_before"}, lambda h: told(h, 5.0, "l.20", E1, "lease", "duplicate")),
    "duplicate before a prepared completion is decided": ({"completed_before"}, lambda h: h.sent.update({"l.10": 9.0})),
    "an attempt is not counted": ({"attempts"}, lambda h: steps_of(h, "l.3")[0].__setattr__("attempt", 1)),
    "an attempt is counted twice": ({"attempts"}, lambda h: steps_of(h, "l.3")[0].__setattr__("attempt", 3)),
    "an attempt is not given back": ({"attempts"}, lambda h: steps_of(h, "l.9")[0].__setattr__("attempt", 2)),
    "a heartbeat of a former holder": ({"superseded"}, lambda h: told(h, 4.0, None, E1, "extend", token=10, until="later")),
    "an assertion of a former holder, rolled back": ({"superseded"}, lambda h: told(h, 4.0, "l.20", E1, "assert", token=10, ok="")),
    "a heartbeat after the completion": ({"superseded"}, lambda h: told(h, 6.0, None, E1, "extend", token=20, until="later")),
    "a lease is lost when it is overdue": ({"unjustified"}, lambda h: told(h, 2.7, None, E1, "extend", error="ID007", token=10)),
    "a completion is refused, and nobody has ended the lease": ({"unjustified"}, lambda h: told(
        h, 1.9, "l.20", E2, "complete", error="ID007", token=11)),
    "a lease that an old snapshot does not see": ({"snapshots"}, lambda h: call_of(h, "l.3").more.update(snapshot=1.2)),
    "a claim after a release that its snapshot does not see": ({"snapshots"}, lambda h: call_of(h, "l.9").more.update(snapshot=2.3)),
    "a recovery point is lost": ({"points"}, lambda h: call_of(h, "l.3").answer.update(recovery_point=None, noted=None)),
    "an old recovery point is found": ({"points"}, lambda h: told(h, 2.6, None, E1, "extend", token=10, point="p2", until="later")),
    "a recovery point that nobody noted": ({"points"}, lambda h: call_of(h, "l.9").answer.update(recovery_point="p7", noted="p7")),
    "a recovery point with another state": ({"points"}, lambda h: call_of(h, "l.3").answer.update(noted="p0")),
    "an internal error": ({"errors"}, lambda h: told(h, 4.0, "l.20", E1, "lease", error="XX000")),
    "a heartbeat under a lease that was given back": ({"superseded"}, lambda h: told(h, 2.8, None, E2, "extend", token=11, until="later")),
    "a heartbeat under a lease whose event was parked": ({"superseded"}, lambda h: told(h, 2.8, None, E4, "extend", token=13, until="later")),
    "a parked event is leased": ({"stays_dead", "redriven"}, lambda h: (
        lease(h, 2.7, "l.20", E4, 15, 2), commit(h, 2.9, "l.20", (E4, "lease", 15, 2)))),
    "a parked event is leased, and rolled back": ({"stays_dead"}, lambda h: lease(h, 2.7, "l.20", E4, 15, 2)),
    "a parked event is claimed, and rolled back": ({"stays_dead"}, lambda h: told(h, 2.7, "l.20", E4, "claim", "claimed")),
    "one attempt more than the last one": ({"stays_dead"}, lambda h: (
        lease(h, 3.6, "l.20", E3, 26, 4), commit(h, 3.9, "l.20", (E3, "lease", 26, 4)))),
    "a claim instead of the dead answer": ({"stays_dead", "over", "once", "superseded"}, lambda h: commit(
        h, 3.9, "l.20", (E3, "claim"), (E3, "effect"), (E3, "complete"))),
    "a completion under the last token of a dead event, rolled back": ({"stays_dead"}, lambda h: told(
        h, 4.7, "l.20", E3, "complete", token=21, ok="")),
    "a heartbeat under the last token of a dead event": ({"stays_dead"}, lambda h: told(
        h, 4.7, None, E3, "extend", token=21, until="later")),
    "a heartbeat under a token from before the redrive": ({"stays_dead"}, lambda h: told(
        h, 5.8, None, E3, "extend", token=21, until="later")),
    "a dead event is leased, and nobody redrove it": ({"stays_dead", "attempts"}, lambda h: lose(h, "d.1")),
    "a dead event is leased before the redrive": ({"stays_dead"}, lambda h: lease(h, 4.8, "l.20", E3, 25, 1)),
    "a redrive does not give the attempts back": ({"attempts"}, lambda h: steps_of(h, "l.15")[0].__setattr__("attempt", 4)),
    "dead after the first attempt": ({"died"}, lambda h: told(h, 1.9, "l.20", E2, "lease", "dead")),
    "dead by a last lease that was rolled back": ({"died", "redriven"}, lambda h: (lose(h, "l.13"), h.undone.add("l.13"))),
    "parked, and nobody asked for it": ({"last_failure"}, lambda h: call_of(h, "l.18").more.update(park=False, failed=True)),
    "not parked, and its holder asked for it": ({"last_failure"}, lambda h: call_of(h, "l.8").more.update(park=True)),
    "dead again at once after the redrive": ({"died"}, lambda h: told(h, 5.8, "l.20", E3, "claim", "dead")),
    "redriven twice": ({"redriven"}, lambda h: (told(h, 5.6, "d.3", E3, "redrive", n=1), commit(h, 5.8, "d.3", (E3, "redrive")))),
    "redriven while it waits": ({"redriven"}, lambda h: (told(h, 2.7, "d.3", E2, "redrive", n=1), commit(h, 2.9, "d.3", (E2, "redrive")))),
    "redriven while its last lease goes on": ({"redriven"}, lambda h: lose(h, "l.14")),
    "redriven, and completed twice": ({"once"}, lambda h: commit(h, 7.7, "l.20", (E3, "complete", 30))),
    "redriven, and never completed": ({"finished"}, lambda h: lose(h, "l.16")),
    "redriven by an old snapshot": ({"snapshots"}, lambda h: call_of(h, "d.1").more.update(snapshot=3.2)),
    "a redrive that an old snapshot does not see": ({"snapshots"}, lambda h: call_of(h, "l.15").more.update(snapshot=5.2)),
    "discarded while it is leased": ({"redriven", "fenced", "over", "once", "superseded"}, lambda h: (
        told(h, 1.7, "d.3", E1, "discard", n=1), commit(h, 1.9, "d.3", (E1, "discard")))),
    "a discarded event is leased": ({"over", "stays_dead"}, lambda h: lease(h, 7.0, "l.20", E4, 40, 2)),
    "a discarded event is dead": ({"over"}, lambda h: told(h, 4.0, "l.20", E4, "lease", "dead")),
    "a discarded event is completed": ({"once", "fenced"}, lambda h: commit(h, 3.9, "l.20", (E4, "complete", 13))),
    "a discarded event is redriven": ({"over", "redriven"}, lambda h: (
        told(h, 3.7, "d.3", E4, "redrive", n=1), commit(h, 3.9, "d.3", (E4, "redrive")), h.steps[-1].__setattr__("at", 3900000))),
    "a discard is lost": ({"durable", "completed_before", "finished"}, lambda h: h.steps.remove(steps_of(h, "d.2")[0])),
    "duplicate before the discard": ({"completed_before"}, lambda h: told(h, 2.7, "l.20", E4, "lease", "duplicate")),
}

BAD_REQUESTS = {
    "a body is another": ({"replays"}, lambda h: call_of(h, "r.8").answer.update(body="00fe")),
    "an empty body for a missing one": ({"replays"}, lambda h: (call_of(h, "r.7", "complete").more.update(body=None),
                                                                call_of(h, "r.8").answer.update(body=None),
                                                                call_of(h, "r.9").answer.update(body=""))),
    "a status is another": ({"replays"}, lambda h: call_of(h, "r.8").answer.update(status=200)),
    "headers are others": ({"replays"}, lambda h: call_of(h, "r.9").answer.update(headers='{"A": "c"}')),
    "a replay of another time": ({"replays"}, lambda h: call_of(h, "r.9").answer.update(completed_at="now")),
    "a replay before the answer": ({"completed_before"}, lambda h: call_of(h, "r.8").__dict__.update(asked=2.6, at=2.7)),
    "an answer is lost": ({"finished", "completed_before", "replays"}, lambda h: lose(h, "r.7")),
    "a mismatch shows a body": ({"silent"}, lambda h: call_of(h, "r.10").answer.update(body="00ff")),
    "who waits is shown a status": ({"silent"}, lambda h: call_of(h, "r.6").answer.update(status=201)),
    "a result that a request cannot have": ({"silent"}, lambda h: ask(h, 2.7, "r.20", "busy")),
    "another request gets the answer": ({"mismatches"}, lambda h: call_of(h, "r.8").more.update(print="another")),
    "a mismatch without another request": ({"mismatches"}, lambda h: ask(h, 0.1, "r.20", "mismatch")),
    "a mismatch with a request that was released": ({"mismatches"}, lambda h: ask(h, 1.21, "r.20", "mismatch")),
    "another request starts meanwhile": ({"executions", "mismatches"}, lambda h: (
        steps_of(h, "r.3")[0].__setattr__("print", "another"), call_of(h, "r.3").more.update(print="another"))),
    "a phase is made twice": ({"phases"}, lambda h: commit(h, 2.6, "r.20", (R1, "phase", 10, None, "charged"))),
    "a phase is left out": ({"phases", "recovery"}, lambda h: lose(h, "r.5")),
    "an attempt begins at the beginning again": ({"recovery"}, lambda h: steps_of(h, "r.7")[0].__setattr__("point", None)),
    "an attempt has the state of another phase": ({"recovery"}, lambda h: call_of(h, "r.7").answer.update(noted="shipped")),
    "a phase that an old snapshot does not see": ({"snapshots"}, lambda h: call_of(h, "r.7").more.update(snapshot=2.3)),
    "an answer is stored twice": ({"once", "phases"}, lambda h: commit(h, 3.7, "r.20", (R1, "complete", None))),
    "started after the answer": ({"over"}, lambda h: ask(h, 6.0, "r.20", "started", token=50, attempt=3)),
    "a former holder advances": ({"superseded"}, lambda h: told(h, 5.0, "r.20", R1, "advance", token=10, until="later")),
    "dead after the first attempt": ({"died"}, lambda h: ask(h, 2.7, "r.20", "dead", attempt=3)),
    "dead before the last attempt has failed": ({"died"}, lambda h: ask(h, 2.1, "r.20", "dead", name=R2, attempt=3)),
    "dead by an attempt in a transaction that was rolled back": ({"died", "redriven"}, lambda h: (lose(h, "r.35"), h.undone.add("r.35"))),
    "dead again at once after the redrive": ({"died"}, lambda h: ask(h, 3.6, "r.20", "dead", name=R2, attempt=3)),
    "dead with a token": ({"silent"}, lambda h: call_of(h, "r.36").answer.update(token=12)),
    "dead with its recovery point": ({"silent"}, lambda h: call_of(h, "r.36").answer.update(recovery_point="charged")),
    "dead with fewer attempts than are allowed": ({"silent"}, lambda h: call_of(h, "r.54").answer.update(attempt=2)),
    "the last failure does not park": ({"last_failure", "died"}, lambda h: call_of(h, "r.35", "fail").answer.update(state="waiting")),
    "the second failure parks": ({"last_failure"}, lambda h: call_of(h, "r.34").answer.update(state="dead")),
    "one attempt more than the last one": ({"stays_dead"}, lambda h: start(h, 2.35, "r.20", R3, 25, 4)),
    "one attempt more than the last one, in one transaction": ({"stays_dead"}, lambda h: (
        ask(h, 2.35, "r.20", "started", name=R3, attempt=4),
        commit(h, 2.45, "r.20", (R3, "start", None, 4, None, "this"), (R3, "fail",)))),
    "started while it is dead, and rolled back": ({"stays_dead"}, lambda h: ask(h, 2.8, "r.20", "started", name=R2, attempt=4,
                                                                               recovery_point="charged", noted="charged")),
    "a phase while it is dead": ({"fenced", "phases", "recovery"}, lambda h: commit(h, 2.9, "r.20", (R2, "phase", None, None, "shipped"))),
    "a phase under the last token of a dead request, rolled back": ({"stays_dead"}, lambda h: told(
        h, 2.9, "r.20", R3, "advance", token=20, until="later")),
    "an answer under the last token of a dead request, rolled back": ({"stays_dead"}, lambda h: told(
        h, 2.9, "r.20", R3, "complete", token=20, ok="", headers=None)),
    "an answer while it is dead": ({"fenced", "once", "over", "phases", "superseded"}, lambda h: commit(h, 2.9, "r.20", (R2, "complete",))),
    "a replay while it is dead": ({"completed_before"}, lambda h: ask(h, 2.8, "r.20", "replay", name=R3, completed_at="then")),
    "a redrive does not give the attempts back": ({"attempts", "stays_dead"}, lambda h: steps_of(h, "r.38")[0].__setattr__("attempt", 4)),
    "a redrive forgets the recovery point": ({"recovery"}, lambda h: steps_of(h, "r.38")[0].__setattr__("point", None)),
    "a redrive frees the key for another request": ({"executions", "mismatches"}, lambda h: (
        steps_of(h, "r.41")[0].__setattr__("print", "another"), call_of(h, "r.41").more.update(print="another"),
        call_of(h, "r.40").more.update(print="third"), ask(h, 6.0, "r.20", "replay", name=R2, status=200, completed_at="then"))),
    "redriven twice": ({"redriven"}, lambda h: (told(h, 3.5, "g.3", R2, "redrive", n=1), commit(h, 3.7, "g.3", (R2, "redrive")))),
    "redriven while it waits": ({"redriven", "attempts"}, lambda h: (told(h, 2.05, "g.3", R2, "redrive", n=1), commit(h, 2.15, "g.3", (R2, "redrive")))),
    "redriven by an old snapshot": ({"snapshots"}, lambda h: call_of(h, "g.1").more.update(snapshot=2.3)),
    "a redrive that an old snapshot does not see": ({"snapshots"}, lambda h: call_of(h, "r.38").more.update(snapshot=3.1)),
    "discarded while its last lease goes on": ({"redriven"}, lambda h: lose(h, "r.54")),
    "a discarded request is started": ({"over", "stays_dead"}, lambda h: ask(h, 5.5, "r.20", "started", name=R3, attempt=1)),
    "a discarded request is dead": ({"over"}, lambda h: ask(h, 5.5, "r.20", "dead", name=R3, attempt=3)),
    "a discarded request has an answer": ({"replays"}, lambda h: call_of(h, "r.57").answer.update(status=500)),
    "a discarded request is a mismatch": ({"mismatches"}, lambda h: ask(h, 5.5, "r.20", "mismatch", sent="another", name=R3)),
    "a discarded request is completed": ({"once", "fenced", "mismatches"}, lambda h: commit(h, 3.9, "r.20", (R3, "complete", 20))),
    "a discard is lost": ({"durable", "completed_before", "finished", "replays"}, lambda h: h.steps.remove(steps_of(h, "g.2")[0])),
    "a replay before the discard": ({"completed_before"}, lambda h: ask(h, 2.8, "r.20", "replay", name=R3, completed_at="then")),
}


def read(h, at, txn, name, generation, first, end, prepared=None):
    """A claim and its effect."""
    told(h, at - 0.3, txn, name, "claim", "claimed", token=generation, point=f"{first} {end}", new_from=first)
    commit(h, at, txn, (name, "read", generation, None, f"{first} {end}"), prepared=prepared)


def resume(h, at, txn, name, generation, position):
    told(h, at - 0.3, txn, name, "resume", "claimed", token=generation, next_offset=position or None)
    commit(h, at, txn, (name, "resume", generation, None, str(position)))


def good_readers():
    """A reader of a partition without holes is replaced and fenced; in one with holes every third offset has a record."""
    h = AttemptHistory(names=[P0, P1])
    resume(h, 1.0, "o.1", P0, 1, 0)
    read(h, 2.0, "o.2", P0, 1, 0, 5)
    resume(h, 3.0, "o.3", P0, 2, 5)
    told(h, 3.5, "o.4", P0, "claim", "fenced", token=1, point="5 8")
    h.undone.add("o.4")
    told(h, 3.6, "o.5", P0, "claim", "duplicate", token=2, point="3 5")
    read(h, 4.0, "o.6", P0, 2, 5, 8, prepared=True)
    resume(h, 1.0, "o.7", P1, 1, 0)
    read(h, 2.0, "o.8", P1, 1, 0, 1)
    read(h, 3.0, "o.9", P1, 1, 3, 4)
    told(h, 3.5, "o.10", P1, "claim", "busy", token=1, point="6 7")
    return h


BAD_READERS = {
    "an answered read is gone": ({"durable", "no_hole", "resumed", "duplicates"}, lambda h: h.steps.remove(steps_of(h, "o.2")[0])),
    "a row of a transaction that was rolled back": ({"durable"}, lambda h: h.undone.add("o.6")),
    "a record is read twice": ({"once"}, lambda h: read(h, 5.0, "o.20", P0, 2, 7, 9)),
    "records are left out": ({"no_hole"}, lambda h: read(h, 5.0, "o.20", P0, 2, 10, 12)),
    "a record among holes is left out": ({"no_hole"}, lambda h: read(h, 5.0, "o.20", P1, 1, 9, 10)),
    "a replaced reader commits": ({"generations"}, lambda h: read(h, 5.0, "o.20", P0, 1, 8, 9)),
    "duplicate of what was never read": ({"duplicates"}, lambda h: told(h, 5.0, "o.20", P0, "claim", "duplicate", token=2, point="8 9")),
    "duplicate of a read whose COMMIT was not sent yet": ({"duplicates", "resumed"}, lambda h: h.sent.update({"o.2": 9.0, "o.6": 9.5})),
    "a reader resumes behind what was read": ({"resumed"}, lambda h: resume(h, 6.0, "o.20", P1, 2, 9)),
    "fenced by nobody": ({"fenced"}, lambda h: told(h, 5.0, "o.20", P0, "claim", "fenced", token=2, point="8 9")),
    "an error that no fault explains": ({"expected_errors"}, lambda h: told(h, 5.0, "o.20", P0, "claim", error="XX000", token=2)),
}


def register(h, at, txn, name, epoch, producer_id=7):
    told(h, at - 0.3, txn, name, "register", producer_id=producer_id, epoch=epoch)
    commit(h, at, txn, (name, "register", epoch, None, str(producer_id)))


def accept(h, at, txn, name, epoch, partition, first, end, number):
    told(h, at - 0.3, txn, name, "sequence", "accepted", token=epoch, point=f"{partition} {first} {end - first}",
         record_number=number, expected=end)
    commit(h, at, txn, (name, "accept", epoch, None, f"{partition} {first} {end} {number}"))


def claim(h, asked, txn, name, result, epoch, point, number=None, expected=None):
    told(h, asked, txn, name, "sequence", result, token=epoch, point=point, record_number=number, expected=expected)


def good_sequences():
    """A gapless producer is replaced, and begins at 0 again; another one goes on after its last sequence, and leaves some out."""
    h = AttemptHistory(names=[T0, T1])
    register(h, 1.0, "n.1", T0, 0)
    accept(h, 2.0, "n.2", T0, 0, 0, 0, 3, 0)
    accept(h, 2.5, "n.3", T0, 0, 0, 3, 5, 3)
    accept(h, 2.6, "n.4", T0, 0, 1, 0, 1, 0)
    claim(h, 3.0, "n.5", T0, "duplicate", 0, "0 2 2", 2, 5)
    claim(h, 3.2, "n.6", T0, "gap", 0, "0 7 1", None, 5)
    claim(h, 3.4, "n.7", T0, "busy", 0, "1 1 1")
    register(h, 4.0, "n.8", T0, 1)
    claim(h, 4.5, "n.9", T0, "fenced", 0, "0 5 1")
    claim(h, 4.6, "n.10", T0, "gap", 1, "0 5 1", None, 0)
    accept(h, 5.0, "n.11", T0, 1, 0, 0, 2, 5)
    register(h, 1.0, "n.12", T1, 0, 8)
    accept(h, 2.0, "n.13", T1, 0, 0, 0, 2, 0)
    accept(h, 2.5, "n.14", T1, 0, 0, 4, 6, 2)
    register(h, 3.0, "n.15", T1, 1, 8)
    told(h, 3.5, "n.16", T1, "last", token=1, point="0 0 0", last=5)
    claim(h, 3.6, "n.17", T1, "duplicate", 1, "0 2 2", None, 6)
    accept(h, 4.0, "n.18", T1, 1, 0, 6, 7, 4)
    return h


BAD_SEQUENCES = {
    "an answered claim is gone": ({"durable", "in_order", "record_numbers", "repeats"}, lambda h: h.steps.remove(steps_of(h, "n.2")[0])),
    "an epoch is given out again": ({"epochs"}, lambda h: register(h, 6.0, "n.20", T0, 1)),
    "an epoch is left out": ({"epochs"}, lambda h: register(h, 6.0, "n.20", T0, 3)),
    "another id without a reason": ({"epochs"}, lambda h: register(h, 6.0, "n.20", T0, 2, 9)),
    "a producer that was replaced commits": ({"epochs"}, lambda h: accept(h, 4.5, "n.20", T0, 0, 0, 5, 6, 5) or later(h, "n.11", 9) or
                                             steps_of(h, "n.11")[0].__setattr__("point", "0 0 2 6")),
    "a record is written twice": ({"in_order"}, lambda h: accept(h, 6.0, "n.20", T0, 1, 0, 1, 3, 7)),
    "a record is left out": ({"in_order"}, lambda h: accept(h, 6.0, "n.20", T0, 1, 0, 3, 4, 7)),
    "an epoch begins where the one before ended": ({"in_order"}, lambda h: accept(h, 6.0, "n.20", T0, 1, 1, 1, 2, 1)),
    "sequences fall": ({"in_order"}, lambda h: accept(h, 6.0, "n.20", T1, 1, 0, 5, 8, 5)),
    "records are counted anew": ({"record_numbers"}, lambda h: steps_of(h, "n.11")[0].__setattr__("point", "0 0 2 0")),
    "a duplicate has another number": ({"repeats"}, lambda h: call_of(h, "n.5").answer.update(record_number=3)),
    "a duplicate of what was never written": ({"repeats"}, lambda h: claim(h, 6.0, "n.20", T0, "duplicate", 1, "0 2 1", 7, 2)),
    "a duplicate of another epoch": ({"repeats"}, lambda h: claim(h, 6.0, "n.20", T0, "duplicate", 1, "0 3 1", 3, 2)),
    "a duplicate before its COMMIT was sent": ({"repeats", "told"}, lambda h: h.sent.update({"n.3": 9.0})),
    "a duplicate above the last one": ({"repeats"}, lambda h: claim(h, 6.0, "n.20", T1, "duplicate", 1, "0 6 2", None, 7)),
    "a gap before the next one": ({"told"}, lambda h: claim(h, 6.0, "n.20", T0, "gap", 1, "0 2 1", None, 2)),
    "a gap behind what nobody wrote": ({"told"}, lambda h: call_of(h, "n.6").answer.update(expected=6)),
    "a last sequence that nobody wrote": ({"told"}, lambda h: call_of(h, "n.16").answer.update(last=6)),
    "fenced by nobody": ({"fenced"}, lambda h: claim(h, 6.0, "n.20", T0, "fenced", 1, "0 2 1")),
    "an error that no fault explains": ({"expected_errors"}, lambda h: told(h, 6.0, "n.20", T0, "sequence", error="22023", token=1,
                                                                            point="0 2 1")),
}


def results():
    yield from judged("leases", good_leases, BAD_LEASES, ATTEMPT_RULES + DEAD_RULES)
    yield from judged("requests", good_requests, BAD_REQUESTS, ATTEMPT_RULES + DEAD_RULES + REQUEST_RULES,
                      DEAD_RULES + REQUEST_RULES)
    yield from judged("readers", good_readers, BAD_READERS, READER_RULES)
    yield from judged("sequences", good_sequences, BAD_SEQUENCES, SEQUENCE_RULES)
