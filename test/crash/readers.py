"""Readers of a stream: they resume a partition, claim its offsets, and are replaced by readers of a higher generation.

    transaction     resume_offset, with a generation of its own
    transactions    claim_offset and an effect: of a range of positions, or of one record in a partition with holes

A reader whose partition is given to another one goes on until it is fenced.  What it committed asynchronously may be
lost, and what it prepared may be rolled back.  The answer gap tells so to one that claims ranges, but not in a partition
that has no position yet, which begins wherever it is read first; so such a reader, and one that claims single records,
resumes anew unless its own session has committed.  The effects are rows of app.steps.
"""
import threading
from contextlib import closing

import ledger
from attempt_client import AttemptClient, interval
from attempt_rules import AttemptHistory, Call, Step
from reader_rules import READER_RULES, is_sparse, next_record

READERS = 4
PARTITIONS = 4
# What a round has to show, once it has resumed so many times: with fewer it would be chance.
NEEDED = {"claimed": 0, "duplicate": 50, "fenced": 100, "busy": 100, "gap": 1000, "waited for an open transaction": 200}


def part(number):
    return f"part {number}"


class Group:
    """Who may read a partition: the reader with the highest generation; and which have a position that stays."""

    def __init__(self):
        self.lock = threading.Lock()
        self.generations = [0] * PARTITIONS
        self.begun = [False] * PARTITIONS

    def rebalance(self, number):
        with self.lock:
            self.generations[number] += 1
            return self.generations[number]


class Reader(AttemptClient):
    def __init__(self, *args, group):
        super().__init__(*args)
        self.group = group
        self.number = self.generation = self.position = self.session = self.told = None

    def attempt(self, name):
        self.number = self.rng.randrange(PARTITIONS)
        self.generation = self.group.rebalance(self.number)
        if self.transact(self.resume) == "ROLLBACK" or self.told != "claimed":
            return
        for _ in range(self.rng.randint(1, 12)):
            if not self.read():
                return
            self.pause(0.02)

    def resume(self):
        wait = self.rng.choice((0, 0.02, 10))
        answer = self.ask("resume", part(self.number), """SELECT result::text, next_offset
            FROM idempotency.resume_offset('readers', 'stream', %s, %s, wait => %s)""", (self.number, self.generation, interval(wait)),
                          token=self.generation)
        self.told, self.session = answer["result"], self.connection
        if self.told == "claimed":
            self.position = answer["next_offset"] or 0
            self.row(part(self.number), "resume", self.generation, point=str(self.position))

    def read(self):
        """One transaction of reading; false if the reader has to resume."""
        sparse = is_sparse(part(self.number))
        first = next_record(self.position) if sparse else max(0, self.position - self.rng.choice((0, 0, 0, 2)))
        end = first + 1 if sparse else self.position + self.rng.randint(1, 5)
        if sparse and self.rng.random() < 0.1 and self.position > 0:
            first, end = self.position - 1, self.position     # delivered again
        self.told = None
        unwarned = sparse or not self.group.begun[self.number]
        how = self.transact(lambda: self.claim(first, end, sparse, unwarned))
        if self.told in ("fenced", "gap", "stale"):
            return False
        if how == "ROLLBACK":
            return True
        if self.told in ("claimed", "duplicate"):
            self.position = max(self.position, end)
        if self.told == "claimed" and how == "COMMIT":
            self.group.begun[self.number] = True
        return how in ("COMMIT", "lazily") or not unwarned

    def claim(self, first, end, sparse, unwarned):
        if unwarned and self.connection is not self.session:
            self.told = "stale"
            return
        if self.rng.random() < 0.05:
            self.savepoint(lambda: self.claim_once(first, end, sparse))
        self.claim_once(first, end, sparse)
        if self.rng.random() < 0.2:
            self.pause(0.1)

    def claim_once(self, first, end, sparse):
        wait = self.rng.choice((0, 0, 0.03))
        answer = self.ask("claim", part(self.number), """SELECT result::text, new_from
            FROM idempotency.claim_offset('readers', 'stream', %s, %s, %s, %s, %s)""",
                          (self.number, first, None if sparse else end, self.generation, interval(wait)), token=self.generation,
                          point=f"{first} {end}")
        self.told = answer["result"]
        if self.told == "claimed":
            self.row(part(self.number), "read", self.generation, point=f"{answer['new_from']} {end}")


class Always:
    """The pool of readers: there is always something to read, until it is closed."""

    def __init__(self):
        self.closed = False

    def pick(self):
        return None if self.closed else "stream"


class Readers:
    def __init__(self, one, resting):
        self.one, self.cluster, self.pool = one, one.b, Always()
        group = Group()
        self.clients = [one.client(Reader, f"o{i}", one.b, self.pool, one.coordinators[1], resting, group=group)
                        for i in range(READERS)]

    def close(self):
        self.pool.closed = True

    def drain(self):
        self.one.stop(self.clients)

    def judge(self, steps):
        """(rules -> violations, what happened).  steps: a query of app.steps."""
        h = AttemptHistory(names=[part(i) for i in range(PARTITIONS)])
        resolve(h, ledger.read(self.one.directory), self.cluster.rows(f"SELECT * FROM ({steps}) s WHERE name LIKE 'part %'"), "part ", "o")
        found = {f"offsets {rule.__name__}": list(rule(h)) for rule in READER_RULES}
        found["offsets remembered"] = list(self.forgotten(h))
        figures = {result: sum(c.result == result for c in h.calls if c.call == "claim")
                   for result in ("claimed", "duplicate", "fenced", "busy", "gap")}
        figures.update({"attempts begun": sum(c.call == "resume" and c.result == "claimed" for c in h.calls),
                        "waited for an open transaction": sum(c.call == "resume" and c.at - c.asked > 0.01 for c in h.calls),
                        "records": sum(end - first for first, end in
                                       ((int(n) for n in s.point.split()) for s in h.steps if s.what == "read"))})
        return found, figures

    def forgotten(self, h):
        """The partitions whose next offset is not behind the last one that was read."""
        ends = {}
        for s in h.steps:
            if s.what == "read":
                ends[s.name] = max(ends.get(s.name, 0), int(s.point.split()[1]))
        with closing(self.cluster.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 'part ' || partition, next_offset FROM idempotency.cursors WHERE consumer = 'readers'")
            known = dict(cursor.fetchall())
        for name in h.names:
            if known.get(name) != ends.get(name):
                yield "remembered", name, f"was read up to {ends.get(name)}, and its next offset is {known.get(name)}"


def resolve(h, entries, rows, prefix, letter):
    """Fill a history from the clients' logs and the rows of app.steps.  Names of the history begin with the prefix, and names
    of its transactions with the letter."""
    lazy, decided = set(), {}
    for e in entries:
        txn = e.get("txn") or ""
        if e["op"] == "told" and (e["name"] or "").startswith(prefix):
            h.calls.append(Call(e["asked"], e["at"], txn, e["name"], e["call"], e["answer"], e["error"], e.get("token"), e.get("point"),
                                {"snapshot": e.get("snapshot")}))
        elif e["op"] == "decide":
            decided[txn] = e
        elif not txn.startswith(letter):
            continue
        elif e["op"] == "commit":
            h.meant[txn] = [tuple(row) for row in e["rows"]]
            h.sent[txn] = e["at"]
            if not e["sync"]:
                lazy.add(txn)
        elif e["op"] == "ok" and txn not in lazy:
            h.answered[txn] = e["at"]
        elif e["op"] == "fail":
            h.undone.add(txn)
    for txn in h.sent.keys() & decided.keys():
        h.sent[txn] = decided[txn]["at"]
        if decided[txn]["what"] == "ROLLBACK":
            h.undone.add(txn)
    h.steps = [Step(*row) for row in rows]


def report(tally, figures):
    never = [what for what, least in NEEDED.items() if figures["attempts begun"] >= least and not figures[what]]
    tally.line(not never, "offsets: " + ", ".join(f"{what} {n}" for what, n in figures.items()) +
               (f"; never: {', '.join(never)}" if never else ""))
