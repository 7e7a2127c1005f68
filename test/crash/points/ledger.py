"""The operations of a lane, and whether their results are right.

Every transaction of a producer has a token, which it also inserts into the table "done".
At the end a transaction has committed if its token is there, whatever answer its client
got.  Every claim has an id, and its effect is a row of the table "effects", with the result
of its completion.  Who makes the server forget an id notes it in the table "forgotten".  In
the end an id has one effect, and one more for each time that it was forgotten.

Ids of the consumer "brief" expire when the store's time is set forward.  Whoever does that
notes it in the table "passed" first, which has its numbers from the sequence of the effects.
Between two rows of "passed" such an id has one effect at most.
"""
import json
from collections import Counter
from contextlib import closing

# The relays that receive events of each aggregate type.
RECEIVERS = {"t": ("fn", "pg", "pos", "rec"), "big": ("pg",), "kill": ("bis",)}
EXACT = ("fn", "pg", "pos")


class Producer:
    """One transaction: its events, and how it ended."""

    def __init__(self, token, sync, session):
        self.token = token
        self.sync = sync
        self.session = session      # which enqueues one transaction after the other
        self.events = []            # (aggregate type, number, aggregate id), as enqueued
        self.told = "unknown"       # committed, aborted


class Claims:
    """The ids that were claimed, and the answers that bind the server."""

    def __init__(self):
        self.ids = set()
        self.binding = set()        # completions that must not be lost any more
        self.brief = set()          # ids that were claimed by the consumer whose ids expire
        self.again = set()          # of these, ids that were duplicates lately


class Leases:
    """The events that were leased, and the tokens that the server has given out, committed or not."""

    def __init__(self):
        self.ids = set()            # (id, consumer)
        self.given = []             # (id, token)


class File:
    """The log of a test sink, read as it grows."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        self.got = []               # in the order of their arrival

    def read(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self.offset)
                data = f.read()
        except FileNotFoundError:
            return self.got
        end = data.rfind(b"\n") + 1
        self.offset += end
        for line in data[:end].splitlines():
            try:
                entry = json.loads(line)
            except ValueError:      # a killed program wrote half of it, and never answered for it
                continue
            if entry.get("outcome") == "acked":
                payload = json.loads(entry["payload"])
                self.got.append((payload["t"], payload["i"]))
        return self.got


class Ledger:
    def __init__(self, source, target, files):
        self.source = source
        self.target = target
        self.files = files          # relay -> File
        self.next = 1
        self.producers = []
        self.claims = Claims()
        self.leases = Leases()
        self.committed = set()
        self.everything = {}        # relay -> Counter of what was due, of all steps
        self.remembered = set()     # ids that were completed in former steps
        self.nevents = 0

    def producer(self, session, sync=True):
        p = Producer(self.next, sync, session)
        self.next += 1
        self.producers.append(p)
        return p

    def new_id(self, what):
        self.next += 1
        return f"{what}-{self.next}"

    def resolve(self):
        """Note which transactions committed; the contradictions, as lines."""
        problems = []
        if not self.producers:
            return problems
        done = {row[0] for row in self.source.try_rows(
            "SELECT token FROM done WHERE token >= %s", (self.producers[0].token,))}
        for p in self.producers:
            if p.told == "committed" and p.sync and p.token not in done:
                problems.append(f"transaction {p.token} was told that it committed, and is gone")
            if p.told == "aborted" and p.token in done:
                problems.append(f"transaction {p.token} was told that it aborted, and has committed")
        for p in self.producers:
            for kind, number, _ in p.events if p.token in done else ():
                self.nevents += 1
                for relay in RECEIVERS[kind]:
                    self.everything.setdefault(relay, set()).add((p.token, number))
        self.committed = done
        return problems

    def due(self, relay):
        """The events that this step's transactions owe a relay."""
        return {(p.token, number) for p in self.producers if p.token in self.committed
                for kind, number, _ in p.events if relay in RECEIVERS[kind]}

    def received(self, relay, since):
        """The events from that token on that came to a relay's sink, by time, with repeats."""
        if relay in self.files:
            return [event for event in self.files[relay].read() if event[0] >= since]
        server = self.source if relay == "fn" else self.target
        return server.try_rows("SELECT token, i FROM received WHERE token >= %s ORDER BY serial", (since,))

    def missing(self, since):
        """relay -> events that are due and have not come."""
        return {relay: late for relay in ("fn", "pg", "pos", "rec", "bis")
                if (late := self.due(relay) - set(self.received(relay, since)))}

    def judge_events(self, since, everything=False):
        problems = []
        for relay in ("fn", "pg", "pos", "rec", "bis"):
            arrivals = self.received(relay, since)
            got = Counter(arrivals)
            due = self.everything.get(relay, set()) if everything else self.due(relay)
            for event in sorted(due - set(got)):
                problems.append(f"event {event} never came to {relay}")
            for event in sorted(set(got) - due):
                problems.append(f"event {event} came to {relay}, and its transaction did not commit")
            if relay in EXACT:
                for event, n in sorted(got.items()):
                    if n > 1:
                        problems.append(f"event {event} came to {relay} {n} times")
            problems += self.judge_order(relay, arrivals)
        return problems

    def judge_order(self, relay, arrivals):
        """Check the order per session and key; of repeats the first counts.

        If a session was told that a transaction committed, the events that it enqueues
        later come after that transaction's events.  A transaction whose end the session
        does not know may commit beside the session's next transaction, so its events
        have no order to later events.
        """
        rank = {}
        for event in arrivals:
            rank.setdefault(event, len(rank))
        problems = []
        last = {}                   # (session, key) -> the latest arrival that binds
        for p in sorted(self.producers, key=lambda p: p.token):
            own = {}
            for kind, number, name in p.events:
                event, key = (p.token, number), (p.session, kind, name)
                if event not in rank:
                    continue
                before = own.get(key, last.get(key))
                if before and rank[before] > rank[event]:
                    problems.append(f"event {event} of {kind} {name} overtook {before} on the way to {relay}")
                else:
                    own[key] = event
            if p.told == "committed":
                last.update(own)
        return problems

    def judge_claims(self, final):
        """Before the last claim of every id: check the answers that bind; after it: each id has one effect."""
        ids = sorted(self.claims.ids if final else self.claims.binding - self.claims.brief)
        effects = self.count("effects", ids)
        forgotten = self.count("forgotten", ids)
        problems = []
        for name in ids:
            n = effects[name]
            if n > 1 + forgotten[name]:
                problems.append(f"claim {name} has {n} effects, and was forgotten {forgotten[name]} times")
            if n == 0:
                problems.append(f"claim {name} was completed, and its effect is gone")
            elif final and n < 1 + forgotten[name]:
                problems.append(f"claim {name} was forgotten {forgotten[name]} times, and has {n} effects")
        if final:
            problems += self.judge_results(ids)
            self.remembered.update(ids)
        return problems + self.judge_brief()

    def judge_brief(self):
        """An id that expires has one effect, until the time passes."""
        ids = sorted(self.claims.brief)
        if not ids:
            return []
        rows = self.source.try_rows("""
            SELECT id, count(*) FROM (
                SELECT id, (SELECT count(*) FROM passed AS p WHERE p.serial < e.serial) AS epoch
                FROM effects AS e WHERE id = ANY (%s)) AS e
            GROUP BY id, epoch HAVING count(*) > 1""", (ids,))
        effects = self.count("effects", ids)
        return ([f"claim {name} that expires has {n} effects, and no time passed between them" for name, n in rows] +
                [f"claim {name} that expires was completed, and its effect is gone"
                 for name in sorted(self.claims.brief & self.claims.binding) if effects[name] == 0])

    def count(self, table, ids):
        return Counter(dict(self.source.try_rows(
            f"SELECT id, count(*) FROM {table} WHERE id = ANY (%s) GROUP BY id", (ids,))))

    def judge_results(self, ids):
        """The result of an event is that of its latest completion."""
        rows = self.source.try_rows("""
            SELECT id, result::text, idempotency.event_result(id, 'worker')::text
            FROM (SELECT DISTINCT ON (id) id, result FROM effects WHERE id = ANY (%s) ORDER BY id, serial DESC) AS e
            WHERE idempotency.event_result(id, 'worker') IS DISTINCT FROM result""", (ids,))
        return [f"claim {name} has the result {got}, not {result}" for name, result, got in rows]

    def judge_memory(self):
        """Every id of former steps is a duplicate, and has its result."""
        ids = sorted(self.remembered)
        if not ids:
            return []
        with closing(self.source.connect(autocommit=False)) as connection, connection.cursor() as cur:
            cur.execute("""SELECT event_id, result::text FROM idempotency.claim_events(%s, 'worker')
                WHERE result <> 'duplicate'""", (ids,))
            rows = cur.fetchall()
        return [f"claim {name} was completed, and is answered {result}" for name, result in rows] + self.judge_results(ids)

    def judge_tokens(self):
        """No token was given out twice, and those of an event rise."""
        repeated = [token for token, n in Counter(token for _, token in self.leases.given).items() if n > 1]
        rows = self.source.try_rows("""
            SELECT id, token, before FROM (
                SELECT id, token, max(token) OVER (PARTITION BY id, consumer ORDER BY serial
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                FROM leases WHERE what = 'lease') AS l
            WHERE token <= before""")
        others = self.source.try_rows("""
            SELECT g.id, g.token, l.id FROM unnest(%s::text[], %s::bigint[]) AS g (id, token) JOIN leases AS l USING (token)
            WHERE l.what = 'lease' AND l.id <> g.id""",
            ([name for name, _ in self.leases.given], [token for _, token in self.leases.given]))
        return ([f"token {token} was given out twice" for token in repeated] +
                [f"token {token} of {name} came after {before}" for name, token, before in rows] +
                [f"token {token} was given out for {name} and for {other}" for name, token, other in others])

    def expected_leases(self):
        """(id, consumer) -> what its last committed transaction did, its token, its attempts and its recovery
        point."""
        rows = self.source.try_rows("""
            SELECT id, consumer, (array_agg(what ORDER BY serial DESC))[1],
                max(token), (array_agg(attempt ORDER BY serial DESC) FILTER (WHERE attempt IS NOT NULL))[1],
                (array_agg(point ORDER BY serial DESC) FILTER (WHERE point IS NOT NULL))[1]
            FROM leases WHERE id = ANY (%s) GROUP BY 1, 2""", ([name for name, _ in self.leases.ids],))
        return {(row[0], row[1]): row[2:] for row in rows}

    def judge_lease(self, session, name, consumer, expected):
        """The log says of the event what was committed last, and the event can be completed."""
        what, token, attempt, point = expected
        ask = "SELECT result::text, token, attempt, recovery_point FROM idempotency.lease_event(%s, %s)"
        result, *got = session.run(ask, name, consumer)[0]
        wrong = [f"{consumer} {name}: after {what}, lease_event says {result} {got}, not as {expected}"]
        if consumer == "once" and what == "lease":
            what = "dead"                   # it is overdue, and was the only attempt
        if what in ("complete", "dead"):
            return [] if result == {"complete": "duplicate"}.get(what, what) else wrong
        if what in ("lease", "extend"):
            if result == "claimed":         # it was overdue
                attempt += 1
            else:
                session.run("SELECT idempotency.release_lease(%s, %s, %s)", name, token, consumer)
                result, *got = session.run(ask, name, consumer)[0]
        else:
            attempt += 1
        if result != "claimed" or got[1:] != [attempt, point] or (token and got[0] <= token):
            return wrong + [f"{consumer} {name}: and then {result} {got}"]
        session.run("SELECT idempotency.complete_event(%s, %s, token => %s)", name, consumer, got[0])
        return []

    def judge_leases(self, session):
        problems = self.judge_tokens()
        expected = self.expected_leases()
        for name, consumer in sorted(self.leases.ids):
            if (name, consumer) in expected:
                problems += self.judge_lease(session, name, consumer, expected[name, consumer])
        completed = [name for (name, _), e in expected.items() if e[0] == "complete"]
        effects = self.count("effects", completed)
        return problems + [f"lease {name} was completed, and has {effects[name]} effects"
                           for name in completed if effects[name] != 1]

    def begin_step(self):
        self.producers = []
        self.leases = Leases()
        self.claims = Claims()
        return self.next
