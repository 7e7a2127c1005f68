#!/usr/bin/python3
"""Tests each rule of the checker with histories made by hand: the good history passes, and
each bad history is flagged by the rules that it breaks, and by no other rule.
"""
import functools
import pathlib
import signal
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import attempt_rules_test  # noqa: E402
from handmade import judged  # noqa: E402
from resolve import shared  # noqa: E402
from rules import RULES, Claim, Event, History, Quiet  # noqa: E402
from server import deaths  # noqa: E402
from store_parts import Parts  # noqa: E402
from store_rules import NEVER, STORE_RULES, Passing, StoreHistory, expected  # noqa: E402

E1, E2, E3, GONE, SHORT = "event-1", "event-2", "event-3", "event-gone", "event-short"
# Events of one transaction, of which each part of a history has some.
MANY = [f"event-many-{i}" for i in range(40)]
PARTS = 4


def arrival(e):
    return (e.id, e.key, {"t": e.txn, "i": e.i, "n": e.n, "a": e.amount})


def good():
    """Two committed transactions, an aborted one, a savepoint rolled back, a repeat, a duplicate."""
    h = History(types={"fn": "k", "pg": "k", "prog": "k"}, repeats={"prog"}, inbox="pg", window=1)
    first = Event(E1, "key", 1, 10, True, "p.1", 0, "k")
    undone = Event(GONE, "key", 0, 5, False, "p.1", 1, "k")
    second = Event(E2, "key", 2, 20, True, "p.2", 0, "k")
    never = Event(E3, "key", 2, 30, True, "p.3", 0, "k")
    h.events = {e.id: [e] for e in (first, undone, second, never)}
    h.outcome = {"p.1": "committed", "p.2": "committed", "p.3": "aborted"}
    h.said_ok = {"p.1"}
    h.business = {"p.1": [(1, 10)], "p.2": [(1, 20)]}
    both = [arrival(first), arrival(second)]
    h.arrivals = {"fn": list(both), "pg": list(both), "prog": [both[0], both[0], both[1]]}
    h.effects = [(E1, "c.1"), (E2, "c.2")]
    h.meant = {"c.1": {E1}, "c.2": {E2}}
    h.committing = {"c.1": 1.0, "c.2": 2.0}
    h.claims = [Claim(0.5, "c.1", E1, "claimed"), Claim(1.5, "c.3", E1, "duplicate")]
    h.sessions = [[E1], [E1, E2]]
    # E1 was committed before the quiet time, E2 in it; only explained waits are longer than a second.
    h.quiet = [Quiet(begin=100.0, end=200.0, awaited=[(E2, "k", 100.9, 101.0)],
                     stalls=[(101.2, 104.0), (102.0, 105.0)], named={"prog": [(105.0, 109.0, "outage: backoff")]},
                     arrived={"fn": {E1: 100.9, E2: 101.01}, "pg": {E1: 100.5, E2: 105.7},
                              "prog": {E1: 100.1, E2: 109.5}})]
    return h


def quiet(h):
    return h.quiet[0]


def payload(h, relay, at, **more):
    event, key, old = h.arrivals[relay][at]
    h.arrivals[relay][at] = (event, key, {**old, **more})


# name -> (rules that must flag it, what to change)
BAD = {
    "an answered COMMIT is gone": ({"business_rows"}, lambda h: h.said_ok.add("p.3")),
    "a business row is doubled": ({"business_rows"}, lambda h: h.business["p.1"].append((1, 10))),
    "money is missing": ({"business_rows"}, lambda h: h.business.update({"p.2": [(1, 19)]})),
    "an event of a business row is missing": ({"business_rows"}, lambda h: h.business.update({"p.2": [(2, 20)]})),
    "a given id is enqueued twice": ({"same_id_twice", "business_rows", "content"},
                                     lambda h: h.events[E1].append(Event(E1, "key", 1, 10, True, "p.2", 1, "k"))),
    "a function relay loses an event": ({"lost"}, lambda h: h.arrivals["fn"].pop()),
    "a postgres sink loses an event": ({"lost", "one_effect"}, lambda h: h.arrivals["pg"].pop(0)),
    "a program loses an event": ({"lost"}, lambda h: h.arrivals["prog"].pop()),
    "what aborted arrives": ({"phantom", "order"}, lambda h: h.arrivals["fn"].append(arrival(h.events[E3][0]))),
    "what a savepoint undid arrives": ({"phantom"}, lambda h: h.arrivals["prog"].append(arrival(h.events[GONE][0]))),
    "what nobody enqueued arrives": ({"phantom"}, lambda h: h.arrivals["fn"].append(("nobody's", "key", {"t": "p.9"}))),
    "a lost asynchronous commit arrived": ({"phantom"},
                                           lambda h: (h.outcome.update({"p.2": "aborted"}), h.business.pop("p.2"))),
    "a payload is another": ({"content"}, lambda h: payload(h, "fn", 1, a=21)),
    "a key is another": ({"content"}, lambda h: h.arrivals["prog"].append((E2, "other", arrival(h.events[E2][0])[2]))),
    "a type arrives that was not asked for": ({"content"}, lambda h: h.types.update({"fn": ""})),
    "a function's effect is doubled": ({"double"}, lambda h: h.arrivals["fn"].append(h.arrivals["fn"][0])),
    "a postgres sink's arrival is doubled": ({"double"}, lambda h: h.arrivals["pg"].append(h.arrivals["pg"][1])),
    "a key is out of order": ({"order"}, lambda h: h.arrivals["fn"].reverse()),
    "a key is out of order at a program": ({"order"}, lambda h: h.arrivals["prog"].reverse()),
    "a consumer's effect is missing": ({"one_effect", "duplicate"}, lambda h: h.effects.pop(0)),
    "a consumer's effect is doubled": ({"one_effect"}, lambda h: h.effects.append((E1, "c.1"))),
    "two consumers made the effect": ({"one_effect"}, lambda h: (h.effects.append((E1, "c.4")),
                                                                 h.meant.update({"c.4": {E1}}))),
    "an effect of a savepoint rolled back stays": ({"one_effect"}, lambda h: h.meant.update({"c.2": set()})),
    "an effect without an arrival": ({"one_effect"}, lambda h: (h.effects.append((E3, "c.3")),
                                                                h.meant.update({"c.3": {E3}}))),
    "duplicate before the completion": ({"duplicate"}, lambda h: h.claims.append(Claim(0.9, "c.4", E1, "duplicate"))),
    "duplicate, and the completion was lost": ({"duplicate"}, lambda h: h.committing.update({"c.1": 7.0})),
    "duplicate of what nobody completed": ({"duplicate"}, lambda h: h.claims.append(Claim(9, "c.4", E3, "duplicate"))),
    "an event waits for nothing": ({"late"}, lambda h: quiet(h).arrived["fn"].update({E2: 106.3})),
    "an event waits for a minute": ({"late"}, lambda h: quiet(h).arrived["fn"].update({E2: 157.0})),
    "an event of a quiet time is never seen": ({"late"}, lambda h: quiet(h).arrived["pg"].pop(E2)),
    "an event waits longer than the machine stalled": ({"late"}, lambda h: quiet(h).arrived["pg"].update({E2: 106.1})),
    "the stall was another's time": ({"late"}, lambda h: quiet(h).stalls.__setitem__(slice(None), [(90.0, 100.9)])),
    "the view names a reason of another relay": ({"late"}, lambda h: quiet(h).named.update({"pg": quiet(h).named.pop("prog")})),
    "the reason is gone, and the event waits": ({"late"}, lambda h: quiet(h).named["prog"].__setitem__(0, (105.0, 108.0, "backoff"))),
    "what was committed before the quiet time lies there": ({"late"}, lambda h: quiet(h).arrived["fn"].update({E1: 102.5})),
    "a relay that is behind stops": ({"late"}, lambda h: quiet(h).arrived["fn"].update({"another": 107.0})),
    "more is repeated than was in flight": ({"window"}, lambda h: h.sessions.append([E1, E2])),
}



def good_store():
    """An event is made, forgotten and made again, the last time by an unknown COMMIT; another one is kept open.  Many are made
    by one transaction."""
    h = StoreHistory()
    h.changes = [(E1, "c.1", False), (E1, "f.1", True), (E1, "c.4", False), (E2, "c.2", False)]
    h.meant = {"c.1": {(E1, False)}, "f.1": {(E1, True)}, "c.4": {(E1, False)}, "c.2": {(E2, False)}, "c.9": {(E3, False)}}
    h.begun = {"c.1": 1.0, "c.2": 1.0, "c.3": 2.5, "c.4": 4.0, "c.5": 6.0, "c.9": 1.0}
    h.committing = {"c.1": 2.0, "f.1": 3.0, "c.4": 5.0, "c.2": 2.0, "c.9": 2.0}
    h.answered = {"c.1": 2.1, "f.1": 3.1, "c.2": 2.1, "c.9": 2.1}
    h.lazy = {"c.2", "c.9"}
    h.claims = [Claim(1.5, "c.1", E1, "claimed"), Claim(2.6, "c.3", E1, "duplicate"), Claim(4.5, "c.4", E1, "claimed"),
                Claim(5.1, "c.5", E1, "duplicate"), Claim(1.6, "c.9", E3, "claimed"), Claim(6.1, "c.5", E3, "claimed")]
    # These began while an order to forget, or a completion, had been sent and was not yet answered.
    h.begun.update({"c.6": 3.05, "c.7": 2.05})
    h.claims += [Claim(3.07, "c.6", E1, "duplicate"), Claim(2.07, "c.7", E2, "claimed")]
    # An event that expires: an hour may have passed between its effects.
    h.brief = {SHORT}
    h.passing = [Passing(2.5, 2.6, 1800), Passing(3.5, 3.6, 1800), Passing(4.5, NEVER, 100)]
    h.changes += [(SHORT, "b.1", False), (SHORT, "b.2", False)]
    h.meant.update({"b.1": {(SHORT, False)}, "b.2": {(SHORT, False)}})
    h.begun.update({"b.1": 1.0, "b.2": 3.7, "b.3": 3.1, "b.4": 5.15})
    h.committing.update({"b.1": 2.0, "b.2": 5.0})
    h.answered.update({"b.1": 2.1, "b.2": 5.1})
    h.claims += [Claim(1.5, "b.1", SHORT, "claimed"), Claim(3.2, "b.3", SHORT, "duplicate"),
                 Claim(4.0, "b.2", SHORT, "claimed"), Claim(5.2, "b.4", SHORT, "duplicate")]
    h.changes += [(event, "m.1", False) for event in MANY]
    h.meant["m.1"] = {(event, False) for event in MANY}
    h.begun.update({"m.1": 1.0, "m.2": 2.5})
    h.committing["m.1"], h.answered["m.1"] = 2.0, 2.1
    h.claims += [Claim(1.5, "m.1", event, "claimed") for event in MANY] + [Claim(2.6, "m.2", event, "duplicate") for event in MANY]
    return h


def lose(h, txn):
    h.changes[:] = [c for c in h.changes if c[1] != txn]


# name -> (rules that must flag it, what to change)
BAD_STORE = {
    "an answered completion is gone": ({"durable", "one_by_one", "never_completed"}, lambda h: lose(h, "c.1")),
    "an answered order to forget is gone": ({"durable", "one_by_one", "claimed_again"}, lambda h: lose(h, "f.1")),
    "a lazy completion is gone, and was a duplicate": ({"never_completed"}, lambda h: (
        lose(h, "c.2"), h.claims.append(Claim(6.1, "c.5", E2, "duplicate")))),
    "an event is made twice": ({"one_by_one"}, lambda h: (h.changes.append((E2, "c.5", False)), h.meant.update({"c.5": {(E2, False)}}))),
    "an effect of a savepoint rolled back stays": ({"one_by_one"}, lambda h: h.meant.update({"c.2": set()})),
    "claimed again, and rolled back": ({"claimed_again"}, lambda h: h.claims.append(Claim(6.1, "c.5", E2, "claimed"))),
    "claimed again before it was forgotten": ({"claimed_again"}, lambda h: h.claims.append(Claim(2.9, "c.3", E1, "claimed"))),
    "duplicate of what nobody completed": ({"never_completed"}, lambda h: h.claims.append(Claim(6.1, "c.5", E3, "duplicate"))),
    "duplicate before the completion": ({"never_completed"}, lambda h: h.claims.append(Claim(1.9, "c.2", E1, "duplicate"))),
    "an effect within the retention": ({"one_by_one", "claimed_again"}, lambda h: h.passing.pop(0)),
    "an effect within the retention, by an unknown COMMIT": ({"one_by_one"}, lambda h: (h.passing.pop(0), h.answered.pop("b.1"))),
    "claimed within the retention, and rolled back": ({"claimed_again"}, lambda h: h.claims.append(Claim(5.2, "b.4", SHORT, "claimed"))),
    "claimed before all of the time had passed": ({"claimed_again"}, lambda h: h.claims.append(Claim(3.4, "b.3", SHORT, "claimed"))),
    "an event that does not expire is made twice": ({"one_by_one", "claimed_again"}, lambda h: h.brief.clear()),
    "duplicate of what was forgotten": ({"never_completed"}, lambda h: h.claims.append(Claim(4.9, "c.4", E1, "duplicate"))),
    "a completion of many has lost one": ({"durable", "never_completed"}, lambda h: h.changes.remove((MANY[-1], "m.1", False))),
    "a completion of many is gone": ({"durable", "never_completed"}, lambda h: lose(h, "m.1")),
    "one of many is made twice by them": ({"one_by_one"}, lambda h: h.changes.append((MANY[-1], "m.1", False))),
    "one of many is claimed again": ({"claimed_again"}, lambda h: h.claims.append(Claim(2.7, "m.2", MANY[0], "claimed"))),
    "many are duplicates, and were completed later": ({"never_completed"}, lambda h: (
        h.committing.update({"m.1": 2.65}), h.answered.update({"m.1": 2.7}))),
}


# Lines of a server's log: does the line report a process that died by itself, if the test sends SIGKILL?
DEATHS = {
    "server process (PID 7) was terminated by signal 9: Killed": False,
    "server process (PID 7) was terminated by signal 11: Segmentation fault": True,
    "checkpointer process (PID 7) was terminated by signal 6: Aborted": True,
    "sink program was terminated by signal 9": False,
    "sink program was terminated by signal 15": False,
    "sink program was terminated by signal 11": True,
    "TRAP: failed Assert": True,
    "PANIC:  could not write": True,
    "LOG:  terminating any other active server processes": False,
}


def log_of(h):
    """Lines of logs that tell the history.  What had an unknown end was prepared."""
    for txn, at in h.begun.items():
        yield {"at": at, "op": "begin", "txn": txn}
    for txn in h.lazy:
        yield {"at": 0, "op": "lazy", "txn": txn}
    for c in h.claims:
        yield {"at": c.at, "op": "answers", "txn": c.txn, "of": [[c.event, c.verdict]]}
    for txn, meant in h.meant.items():
        for op in ("effects", "forgets"):
            yield {"at": 0, "op": op, "txn": txn, "of": [event for event, forgets in meant if forgets == (op == "forgets")]}
    for txn, at in h.committing.items():
        if txn in h.answered:
            yield {"at": at, "op": "commit", "txn": txn}
            yield {"at": h.answered[txn], "op": "ok", "txn": txn}
        else:
            yield {"at": at - 0.2, "op": "commit", "txn": txn}
            yield {"at": at - 0.1, "op": "ok", "txn": txn}
            yield {"at": at, "op": "decide", "txn": txn, "what": "COMMIT"}
    for i, p in enumerate(h.passing):
        yield {"at": p.begin, "op": "passes", "txn": f"t.{i}", "seconds": p.seconds}
        if p.end != NEVER:
            yield {"at": p.end, "op": "passed", "txn": f"t.{i}"}


def parts_of(h, directory):
    parts = Parts(directory, PARTS, h.brief.__contains__)
    parts.add_made(MANY)
    parts.add_rows(h.changes)
    parts.add_log(log_of(h))
    parts.close()
    return parts


def in_parts(rule):
    """The rule for a history that is judged in parts."""
    @functools.wraps(rule)
    def judge(h):
        with tempfile.TemporaryDirectory() as directory:
            for part in parts_of(h, directory).histories():
                yield from rule(part)
    return judge


def parts_results():
    """All of a history is in its parts, and nothing else.  Each history against a rule is found in parts, too."""
    h = good_store()
    with tempfile.TemporaryDirectory() as directory:
        every = list(parts_of(h, directory).histories())
        rows = list(parts_of(h, directory).histories(claims=False))
    yield "each part has some of a transaction's events", all(part.made for part in every), [len(part.made) for part in every]
    for what, key in (("rows", lambda one: one.changes), ("claims", lambda one: map(str, one.claims)), ("events that expire", lambda one: one.brief),
                      ("meanings", lambda one: [(txn, *pair) for txn, meant in one.meant.items() for pair in meant])):
        found = sorted(x for part in every for x in key(part))
        yield f"the parts have the {what} of the whole", found == sorted(key(h)), found
    for part in every:
        shared = [(p.begun, p.committing, p.answered, p.lazy, p.passing) for p in (part, h)]
        yield "a part has all times of the whole", shared[0] == shared[1], [shared[0]]
    yield "parts without claims have the rows", [part.changes for part in rows] == [part.changes for part in every] and \
        not any(part.claims for part in rows), [len(part.claims) for part in rows]
    yield from judged("the store in parts", good_store, BAD_STORE, [in_parts(rule) for rule in STORE_RULES])


def store_results():
    """As judged() has them."""
    yield from judged("the store", good_store, BAD_STORE, STORE_RULES)
    yield from parts_results()
    found = expected(good_store(), 6.0)
    yield "what the store has to remember", found == {e: {"duplicate"} for e in (E1, E2, SHORT, *MANY)}, found
    found = expected(good_store(), 3505.0)
    yield "what the store may have forgotten", found[SHORT] == {"claimed", "duplicate"} and found[E1] == {"duplicate"}, found


def shared_results():
    """Only equal arrivals become one."""
    first, same, other, late = (E1, "key", {"a": 1}), (E1, "key", {"a": 1}), (E1, "key", {"a": 2}), (E2, "key", {"a": 1})
    known = {}
    found = [*shared([first], known), *shared([other, same, late], known)]
    yield "arrivals stay what they are", found == [first, other, same, late], map(str, found)
    yield "equal arrivals are in memory once", found[2] is first, map(str, found)


def main():
    results = list(judged("effects", good, BAD, RULES))
    results += shared_results()
    results += store_results()
    results += attempt_rules_test.results()
    for line, died in DEATHS.items():
        found = deaths(line, {signal.SIGKILL})
        results.append((f"a log with \"{line}\"", bool(found) == died, found))
    full = "PANIC:  disk full\nserver process (PID 7) was terminated by signal 6: Aborted"
    found = deaths(full, panic="disk full")
    results.append(("a PANIC that the test brings about", not found, found))
    for name, passed, found in results:
        print(f"{'ok' if passed else 'NOT OK'} {name}" + ("" if passed else f": flagged by {sorted(found)}"))
    bad = sum(not passed for _, passed, _ in results)
    print(f"{len(results) - bad} passed, {bad} failed")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
