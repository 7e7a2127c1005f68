"""The leases, requests, readers and sequences of a round: the clients that work on B beside the events, the end of their work, its
judgement.
"""
import collections
import threading
from contextlib import closing, contextmanager

import ledger
import readers
import sequencers
from attempt_client import MAX_ATTEMPTS, SCHEMA, Pool
from attempt_rules import ATTEMPT_RULES, BEGUN, AttemptHistory, Call, Step, ordered
from dead_rules import DEAD_RULES
from leases import Heart, Leases, Lessee
from operators import Operator, RequestOperator
from request_rules import REQUEST_RULES
from requesters import Requester, parts, request_name
from server import wait_until

LESSEES = 3
HEARTS = 2
OPERATORS = 2
REQUEST_OPERATORS = 2
REQUESTERS = 4
# Names that are open at a time: fewer than clients.
OPEN = {"leases": 3, "requests": 3}
# Requests that are asked for once more in the end.
ASKED = 3000
STEPS = """SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint, pos, txn, name, what, token, attempt, point, print
    FROM app.steps"""
# What a round has to show of each kind, once it has begun so many attempts: with fewer it would be chance.
NEEDED = {"leases": {"completed": 0, "taken over": 50, "heartbeats": 50, "leases that found a recovery point": 100,
                     "lost to another holder": 150, "late effects outside, refused by their receiver": 500, "emptied from the log": 5000,
                     "parked": 400, "answered dead": 400, "redriven": 200, "redriven all at once": 4000, "discarded": 2000},
          "requests": {"completed": 0, "taken over": 50, "replays": 50, "mismatches": 50, "attempts at a recovery point": 150,
                       "replays after a wait": 300, "lost to another holder": 400, "parked": 500, "answered dead": 500,
                       "redriven": 200, "redriven all at once": 1000, "discarded": 800, "attempts after a redrive": 200}}


class Attempts:
    def __init__(self, one):
        """one: the Round, which starts clients and says when they rest."""
        self.one, self.cluster = one, one.b
        one.b.rows(SCHEMA)
        self.shared = Leases()
        self.pools = {"leases": Pool("l{}".format, OPEN["leases"], f"{one.seed}/leases"),
                      "requests": Pool(request_name, OPEN["requests"], f"{one.seed}/requests")}
        self.resting = threading.Event()
        more = one.coordinators[1], self.resting
        self.clients = [one.client(kind, f"{letter}{i}", one.b, self.pools[pool], *more, **shared)
                        for kind, letter, n, pool, shared in
                        ((Lessee, "l", LESSEES, "leases", {"shared": self.shared}),
                         (Heart, "e", HEARTS, "leases", {"shared": self.shared}),
                         (Operator, "d", OPERATORS, "leases", {}),
                         (Requester, "r", REQUESTERS, "requests", {}),
                         (RequestOperator, "g", REQUEST_OPERATORS, "requests", {})) for i in range(n)]
        self.cursors = [readers.Readers(one, self.resting), sequencers.Sequencers(one, self.resting)]

    @contextmanager
    def at_rest(self):
        """No client is in a transaction."""
        self.resting.set()
        try:
            wait_until("leases and requests rest", lambda: not self.cluster.rows("""SELECT 1 FROM pg_stat_activity
                WHERE application_name ~ '^crash [ledrgno][0-9]' AND state <> 'idle'"""))
            yield
        finally:
            self.resting.clear()

    def close(self):
        """Begin nothing new."""
        for pool in self.pools.values():
            pool.close()
        for of in self.cursors:
            of.close()

    def drain(self):
        """Wait until everything that was begun is completed."""
        def drained():
            self.one.look_at_clients()
            return all(pool.idle() for pool in self.pools.values())
        wait_until(lambda: f"completed: {[pool.open for pool in self.pools.values()]}", drained, 300, 0.05)
        self.one.stop(self.clients)
        for of in self.cursors:
            of.drain()

    # The judgement.

    def judge(self):
        """(rules of leases and requests -> violations, kind -> what happened)"""
        histories = {kind: AttemptHistory(names=pool.names(), limit=MAX_ATTEMPTS[kind]) for kind, pool in self.pools.items()}
        histories["leases"].outside = self.shared.outside.accepted
        resolve(histories, ledger.read(self.one.directory), self.cluster.rows(f"{STEPS} WHERE name NOT LIKE 'part %' AND name NOT LIKE 'till %'"))
        found, figures = {}, {}
        for kind, h in histories.items():
            for rule in ATTEMPT_RULES + DEAD_RULES + (REQUEST_RULES if kind == "requests" else ()):
                found[f"{kind} {rule.__name__}"] = list(rule(h))
            figures[kind] = figures_of(kind, h)
        found["leases remembered"] = list(self.forgotten_events(histories["leases"]))
        found["requests remembered"] = list(self.forgotten_requests(histories["requests"]))
        figures["leases"]["emptied from the log"] = self.emptied(histories["leases"])
        figures["leases"]["effects outside"] = len(self.shared.outside.accepted)
        figures["leases"]["late effects outside, refused by their receiver"] = self.shared.outside.refused
        for kind, of in zip(("offsets", "sequences"), self.cursors):
            more, figures[kind] = of.judge(STEPS)
            found.update(more)
        return found, figures

    def emptied(self, h):
        """How many leases the log's tables, which take turns, have left behind."""
        oldest = self.cluster.value("SELECT coalesce(min(number), 0) FROM (" + " UNION ALL ".join(
            f"SELECT number FROM idempotency_data.lease_log_{n}" for n in range(3)) + ") l")
        return sum(s.what == "lease" and s.token < oldest for s in h.steps)

    def forgotten_events(self, h):
        """The events whose claim is not answered duplicate any more."""
        with closing(self.cluster.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for i in range(0, len(h.names), 10000):
                cursor.execute("SELECT event_id, result::text FROM idempotency.claim_events(%s, 'leases') WHERE result <> 'duplicate'",
                               (h.names[i:i + 10000],))
                for event, verdict in cursor.fetchall():
                    yield "remembered", event, f"was completed, and its claim is answered {verdict}"
                connection.rollback()

    def forgotten_requests(self, h):
        """The requests whose repeat is not answered as their first replay was."""
        first = {}
        for c in h.calls:
            if c.result == "replay":
                first.setdefault(c.name, (c.answer["status"], c.answer["headers"], c.answer["body"]))
        with closing(self.cluster.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for name in h.names[:ASKED]:
                cursor.execute("""SELECT result::text, status, headers::text, encode(body, 'hex')
                    FROM idempotency.claim_request(%s, %s, consumer => 'requests')""", parts(name))
                result, *answer = cursor.fetchone()
                if result != "replay" or tuple(answer) != first.get(name, tuple(answer)):
                    yield "remembered", name, f"is answered {result} {str(answer)[:200]}"
                connection.rollback()

    def lines_about(self, name, most=60):
        """Lines of clients about one name, and the rows of its transactions."""
        rows = [r for r in self.cluster.rows(f"{STEPS} ORDER BY 1, 2") if name in (r[2], r[3])]
        txns = {r[2] for r in rows} | {name}
        lines = sorted((e["at"], str(e)[:600]) for e in ledger.read(self.one.directory) if e.get("name") == name or e.get("txn") in txns)
        return [text for _, text in lines[-most:]] + [f"row {r}" for r in rows]


def resolve(histories, entries, rows):
    """Fill histories from the clients' logs and the rows of app.steps."""
    lazy, decided = set(), {}
    kinds = {"l": "leases", "e": "leases", "d": "leases", "r": "requests", "g": "requests"}
    for e in entries:
        txn = e.get("txn")
        if e["op"] == "told":
            if (e["name"] or "").startswith(("part ", "till ")):
                continue    # readers.py, sequencers.py
            histories[kinds[(txn or "e")[0]]].calls.extend(calls(e))     # only hearts call outside of a transaction
        elif e["op"] == "decide":
            decided[txn] = e
        elif txn and txn[0] in kinds:
            h = histories[kinds[txn[0]]]
            if e["op"] == "commit":
                h.meant[txn] = [tuple(row) for row in e["rows"]]
                h.sent[txn] = e["at"]
                if not e["sync"]:
                    lazy.add(txn)
            elif e["op"] == "ok" and txn not in lazy:
                h.answered[txn] = e["at"]
            elif e["op"] == "fail":
                h.undone.add(txn)
    for h in histories.values():
        for txn in h.sent.keys() & decided.keys():
            h.sent[txn] = decided[txn]["at"]
            if decided[txn]["what"] == "ROLLBACK":
                h.undone.add(txn)
    for row in rows:
        histories["requests" if "|" in row[3] else "leases"].steps.append(Step(*row))


def calls(e):
    """The calls of a line: one for each event of a batch."""
    each = [(e["name"], e["answer"])]
    if e["call"] == "leases" and e["answer"]:
        each = [(one["event_id"], one) for one in e["answer"]["every"]]
    more = {key: e[key] for key in ("print", "status", "body", "failed", "park") if key in e}
    for name, answer in each:
        yield Call(e["asked"], e["at"], e["txn"], name, "lease" if e["call"] == "leases" else e["call"], answer, e["error"],
                   e.get("token"), e.get("point"), {**more, "wait": e.get("wait", 0), "snapshot": e.get("snapshot")})


def figures_of(kind, h):
    """What happened, for the report: text -> number."""
    errors = collections.Counter(c.error for c in h.calls if c.error)
    results = collections.Counter(c.result for c in h.calls if c.result)
    whats = collections.Counter(s.what for s in h.steps)
    found = {"opened": len(h.names), "completed": whats["complete"], "attempts begun": sum(results[r] for r in BEGUN),
             "leases committed": whats["lease"], "taken over": taken_over(h), "given back": whats["release"], "failed": whats["fail"],
             "lost to another holder": sum(c.error == "ID007" and c.call != "extend" for c in h.calls),
             "old snapshots": errors["40001"], "locked": errors["55P03"], "parked": whats["park"], "answered dead": results["dead"],
             "redriven": whats["redrive"], "discarded": whats["discard"],
             "redriven all at once": sum(c.call == "redrive" and c.answer is not None and "all" in c.answer for c in h.calls)}
    if kind == "leases":
        found.update({"busy": results["busy"], "duplicates": results["duplicate"],
                      "heartbeats": sum(c.call == "extend" and c.answer is not None for c in h.calls),
                      "leases that found a recovery point": sum(s.point is not None for s in h.steps)})
    else:
        found.update({"in progress": results["in_progress"], "replays": results["replay"], "mismatches": results["mismatch"],
                      "attempts at a recovery point": sum(s.what in ("lease", "start") and s.point is not None for s in h.steps),
                      "attempts after a redrive": after_redrive(h),
                      "replays after a wait": sum(c.result == "replay" and c.more["wait"] > 0 and c.at - c.asked > 0.01 for c in h.calls)})
    return found


def after_redrive(h):
    """First attempts that begin after a redrive."""
    return sum(s.attempt == 1 and s.what in ("lease", "start") and any(r.what == "redrive" for r in steps[:i])
               for steps in ordered(h).values() for i, s in enumerate(steps))


def taken_over(h):
    """Attempts that begin while the lease of another one is neither completed nor given back."""
    n = 0
    for steps in ordered(h).values():
        open_lease = False
        for s in steps:
            n += open_lease and s.what in ("lease", "start", "claim")
            open_lease = s.what == "lease" or (open_lease and s.what in ("effect", "phase"))
    return n


def report(tally, figures):
    readers.report(tally, figures["offsets"])
    sequencers.report(tally, figures["sequences"])
    for kind in NEEDED:
        counts = figures[kind]
        never = [what for what, least in NEEDED[kind].items() if counts["attempts begun"] >= least and not counts[what]]
        tally.line(not never, f"{kind}: " + ", ".join(f"{what} {n}" for what, n in counts.items()) +
                   (f"; never: {', '.join(never)}" if never else ""))
