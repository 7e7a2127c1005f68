"""A history of claims alone, in parts that fit into memory.

A part has some of the events, and all rows, claims and meanings of these, in the order in which they came.  The parts lie on
disk, and one is in memory at a time.  The times of transactions are in memory for all parts: a transaction has many claims.
"""
import collections
import contextlib
import pathlib
import zlib

from rules import Claim
from store_rules import NEVER, Passing, StoreHistory

# Events of a part, on average.
EVENTS = 100000


class Parts:
    """Usage: add rows, lines of logs and events that were made; then close, and take the histories.
    is_brief: does the event expire?"""

    def __init__(self, directory, count, is_brief):
        self.directory, self.count, self.is_brief = pathlib.Path(directory), count, is_brief
        self.directory.mkdir(exist_ok=True)
        self.shared = StoreHistory()
        self.verdicts = collections.Counter()
        self.rows = self.orders = 0
        self.open = contextlib.ExitStack()
        self.files = [self.open.enter_context(open(self.path(n), "w", encoding="utf-8")) for n in range(count)]

    def path(self, n):
        return self.directory / f"part-{n}"

    def part_of(self, event):
        return zlib.crc32(event.encode()) % self.count

    def put(self, kind, event, *more):
        self.files[self.part_of(event)].write("\t".join((kind, event, *more)) + "\n")

    def add_made(self, events):
        for event in events:
            self.put("made", event)

    def add_rows(self, rows):
        """(event, transaction, forgets), in the order of the event's lock."""
        for event, txn, forgets in rows:
            self.put("row", event, txn, "forgets" if forgets else "")
            self.rows += 1
            self.orders += forgets

    def add_log(self, entries):
        """Lines of the clients' logs (ledger.py), each client's in order."""
        h, passing, prepared = self.shared, {}, set()
        for e in entries:
            op, txn, at = e["op"], e.get("txn"), e["at"]
            if op == "answers":
                for event, verdict in e["of"]:
                    self.put("claim", event, txn, repr(at), verdict)
                    self.verdicts[verdict] += 1
            elif op in ("effects", "forgets"):
                for event in e["of"]:
                    self.put("meant", event, txn, "forgets" if op == "forgets" else "")
            elif op == "passes":
                passing[txn] = Passing(at, NEVER, e["seconds"])
            elif op == "passed":
                passing[txn].end = at
            elif op == "begin":
                h.begun[txn] = at
            elif op == "lazy":
                h.lazy.add(txn)
            elif op == "commit":
                h.committing.setdefault(txn, at)
            elif op == "ok":
                h.answered[txn] = at
            elif op == "decide":
                prepared.add(txn)
                h.committing[txn] = at if e["what"] == "COMMIT" else NEVER
        h.passing = list(passing.values())
        # For a prepared transaction "ok" is the answer to PREPARE.
        for txn in prepared:
            h.answered.pop(txn, None)

    def close(self):
        self.open.close()

    def histories(self, claims=True):
        """The StoreHistory of each part, without its claims if these are not asked for."""
        for n in range(self.count):
            yield self.load(n, claims)

    def load(self, n, claims):
        s = self.shared
        h = StoreHistory(begun=s.begun, committing=s.committing, answered=s.answered, lazy=s.lazy, passing=s.passing)
        events, names = {}, {}      # one copy of each
        with open(self.path(n), encoding="utf-8") as f:
            for line in f:
                kind, event, *more = line.rstrip("\n").split("\t")
                if kind == "claim" and not claims:
                    continue
                event = events.setdefault(event, event)
                if kind == "made":
                    h.made.append(event)
                    continue
                txn = names.setdefault(more[0], more[0])
                if kind == "row":
                    h.changes.append((event, txn, more[1] == "forgets"))
                elif kind == "meant":
                    h.meant.setdefault(txn, set()).add((event, more[1] == "forgets"))
                else:
                    h.claims.append(Claim(float(more[1]), txn, event, names.setdefault(more[2], more[2])))
        h.brief = {event for event in events if self.is_brief(event)}
        return h
