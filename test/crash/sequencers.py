"""Producers that number their records: they register, claim sequences, and are replaced by others of their name.

    transaction     register_producer
    transactions    claim_sequence and an effect; some records are sent again, and some are left out

Whoever is replaced goes on until it is fenced.  What was committed asynchronously may be lost: then a gapless producer is
told where to go on.  The effects are rows of app.steps.
"""
from contextlib import closing

import ledger
from attempt_client import AttemptClient, interval
from attempt_rules import AttemptHistory
from readers import Always, resolve
from sequence_rules import SEQUENCE_RULES, accepted, is_gapless

SEQUENCERS = 3
PRODUCERS = 2
PARTITIONS = 2
# What a round has to show, once so many producers have registered: with fewer it would be chance.
NEEDED = {"accepted": 0, "duplicate": 50, "gap": 100, "fenced": 100, "busy": 200}


def producer(number):
    return f"till {number}"


class Sequencer(AttemptClient):
    def __init__(self, *args):
        super().__init__(*args)
        self.name_of = self.id = self.epoch = self.told = None
        self.next = {}      # partition -> the sequence to go on at

    def attempt(self, name):
        self.name_of = producer(self.rng.randrange(PRODUCERS))
        self.next = {}
        # Whoever does not know that it is registered has no epoch to claim under.
        if self.transact(self.register) not in ("COMMIT", "lazily"):
            return
        for _ in range(self.rng.randint(1, 12)):
            if not self.write(self.rng.randrange(PARTITIONS)):
                return
            self.pause(0.02)

    def register(self):
        answer = self.ask("register", self.name_of, "SELECT producer_id, epoch FROM idempotency.register_producer(%s, %s)",
                          (self.name_of, is_gapless(self.name_of)))
        self.id, self.epoch = answer["producer_id"], answer["epoch"]
        self.row(self.name_of, "register", self.epoch, point=str(self.id))

    def write(self, partition):
        """One transaction of writing; false if the producer is fenced."""
        self.told = None
        how = self.transact(lambda: self.claim(partition))
        if self.told is None:
            return True
        result, end, expected = self.told
        if result in ("gap", "duplicate"):
            self.next[partition] = expected
        elif result == "accepted" and how in ("COMMIT", "lazily"):
            self.next[partition] = end
        return result != "fenced"

    def claim(self, partition):
        if partition not in self.next:
            self.next[partition] = 0 if is_gapless(self.name_of) else self.after_last(partition)
        first, count, way = self.next[partition], self.rng.randint(1, 4), self.rng.random()
        if way < 0.15:
            first = max(0, first - count)
        elif way < 0.2:
            first += self.rng.randint(1, 3)
        if self.rng.random() < 0.05:
            self.savepoint(lambda: self.claim_once(partition, first, count))
        self.claim_once(partition, first, count)
        if self.rng.random() < 0.2:
            self.pause(0.1)

    def after_last(self, partition):
        last = self.ask("last", self.name_of, "SELECT idempotency.last_sequence(%s, 'stream', %s) AS last", (self.id, partition),
                        token=self.epoch, point=f"{partition} 0 0")["last"]
        return 0 if last is None else last + 1

    def claim_once(self, partition, first, count):
        answer = self.ask("sequence", self.name_of, """SELECT result::text, record_number, expected
            FROM idempotency.claim_sequence(%s, %s, %s, 'stream', %s, %s, %s)""",
                          (self.id, self.epoch, first, partition, count, interval(self.rng.choice((0, 0, 0.03)))),
                          token=self.epoch, point=f"{partition} {first} {count}")
        self.told = answer["result"], first + count, answer["expected"]
        if answer["result"] == "accepted":
            self.row(self.name_of, "accept", self.epoch, point=f"{partition} {first} {first + count} {answer['record_number']}")


class Sequencers:
    def __init__(self, one, resting):
        self.one, self.cluster, self.pool = one, one.b, Always()
        self.clients = [one.client(Sequencer, f"n{i}", one.b, self.pool, one.coordinators[1], resting) for i in range(SEQUENCERS)]

    def close(self):
        self.pool.closed = True

    def drain(self):
        self.one.stop(self.clients)

    def judge(self, steps):
        """(rules -> violations, what happened).  steps: a query of app.steps."""
        h = AttemptHistory(names=[producer(i) for i in range(PRODUCERS)])
        resolve(h, ledger.read(self.one.directory), self.cluster.rows(f"SELECT * FROM ({steps}) s WHERE name LIKE 'till %'"), "till ", "n")
        found = {f"sequences {rule.__name__}": list(rule(h)) for rule in SEQUENCE_RULES}
        found["sequences remembered"] = list(self.forgotten(h))
        figures = {result: sum(c.result == result for c in h.calls) for result in ("accepted", "duplicate", "gap", "fenced", "busy")}
        figures.update({"attempts begun": sum(s.what == "register" for s in h.steps),
                        "records": sum(end - first for of in accepted(h).values() for _, first, end, _ in of)})
        return found, figures

    def forgotten(self, h):
        """The partitions whose last sequence, or number of records, is not that of the claims that stayed."""
        wanted = {key: (of[-1][2] - 1, of[-1][0].token, sum(end - first for _, first, end, _ in of)) for key, of in accepted(h).items()}
        with closing(self.cluster.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT producer, partition, last_sequence, epoch, records FROM idempotency.cursors WHERE producer LIKE 'till %'")
            known = {tuple(row[:2]): tuple(row[2:]) for row in cursor.fetchall()}
        for key in wanted.keys() | known.keys():
            if known.get(key) != wanted.get(key):
                yield "remembered", key[0], f"partition {key[1]} has (last, epoch, records) {known.get(key)}, and not {wanted.get(key)}"


def report(tally, figures):
    never = [what for what, least in NEEDED.items() if figures["attempts begun"] >= least and not figures[what]]
    tally.line(not never, "sequences: " + ", ".join(f"{what} {n}" for what, n in figures.items()) +
               (f"; never: {', '.join(never)}" if never else ""))
