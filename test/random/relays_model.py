"""What doc/reference/relay.md promises of one relay, given the events that have committed.

Which events it owes, which it may send though it does not owe them, and how often: at-least-once and exactly-once
sinks, what operators move and replay, and what a handler refuses.
"""
from dataclasses import dataclass, field

# Event types, and what handlers do: accept; refuse for good; refuse while the door is closed; kill the program once; accept, and
# keep the relay of kind "append" waiting for the answer while others are answered.
FINE, REFUSED, DOOR, DEADLY, LATE = "E", "D", "M", "K", "L"

# kind -> (exactly once, claims its events, so that nothing repeats even after a replay)
KINDS = {"fn": (True, True), "pg": (True, True), "pgplain": (True, False), "store": (True, False), "append": (False, False)}


@dataclass
class Relay:
    name: str
    kind: str
    types: tuple                # aggregate types, empty for all
    ordering: str
    on_dead: str
    start: int                  # commits before this one are not for it
    paused: bool = False
    repeats: bool = False       # an operator has moved it: what was sent may come again
    reordered: bool = False     # redriven or moved: no order is promised any more
    optional: set = field(default_factory=set, repr=False)      # ids that it need not send: passed over or discarded
    again: list = field(default_factory=list, repr=False)       # (arrivals before, ids): these have to come once more

    def wants(self, event):
        return not self.types or event.row[1] in self.types


class Arrivals:
    """What a sink has got, in its order: event ids."""

    def __init__(self, ids):
        self.ids = ids
        self.seen = set(ids)


def due(relay, committed):
    """The events that it owes, by id; committed: per commit the list of its events."""
    return {e.row[0]: e for events in committed[relay.start:] for e in events if relay.wants(e)}


def missing(relay, owed, arrivals, dead):
    """What has not come, and need not be waited for if it is dead."""
    return {i for i, e in owed.items() if i not in relay.optional and i not in arrivals.seen and i not in dead
            } | {i for before, ids in relay.again for i in ids - set(arrivals.ids[before:]) if i not in dead}


def faults(relay, owed, every, arrivals, dead):
    """What must not be, as sentences; the relay is drained."""
    exactly, claims = KINDS[relay.kind]
    if exactly and (claims or not relay.repeats) and len(arrivals.ids) != len(arrivals.seen):
        twice = [i for i in arrivals.seen if arrivals.ids.count(i) > 1]
        yield f"{len(twice)} events came twice: {twice[:3]}"
    strangers = arrivals.seen - (every.keys() if relay.repeats else owed.keys())
    if strangers:
        yield f"events that are not for it, or never committed, came: {sorted(strangers)[:3]}"
    for i in arrivals.seen & owed.keys():
        if owed[i].row[3] == REFUSED:
            yield f"event {i}, which is refused, came"
    for i in dead:
        if i in every and every[i].row[3] in (FINE, LATE):
            yield f"event {i}, which nobody refuses, is a dead letter"
    for i, e in owed.items():
        if e.row[3] == REFUSED and i not in dead and i not in relay.optional:
            yield f"event {i}, which is refused for good, is no dead letter"
    if relay.ordering == "key" and not relay.reordered:
        yield from disorder(owed, arrivals)


def disorder(owed, arrivals):
    """Events that were enqueued under the lock of their key come first in that order."""
    last, seen = {}, set()
    for i in arrivals.ids:
        if i in seen or i not in owed or owed[i].row[1] != "k":
            continue
        seen.add(i)
        key, n = owed[i].row[2], owed[i].row[4]
        if n < last.get(key, 0):
            yield f"key {key}: number {n} came after {last[key]}"
            return
        last[key] = n
