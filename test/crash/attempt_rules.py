"""The rules for a history of attempts: leases of events, and requests.  Each rule is a function, which yields the
violations that it finds, as (rule, name, text).

An AttemptHistory has the clients' logs and the rows that their transactions left, each with the time of its commit.
Transactions about one name that exclude each other commit one after the other, so their times have the order of their
commits.  It has nothing from the views of the tested system.
"""
import collections
from dataclasses import dataclass, field

NEVER = float("inf")
# The lease of what nobody holds, which differs from None, the token of who executes a request in one transaction.
NOBODY = object()
# Calls under a token, which an attempt that lost its lease may not make.
UNDER_TOKEN = ("extend", "assert", "advance", "complete", "release", "fail")
ENDS = ("complete", "release", "fail")
# Steps behind which nothing of a name comes.
LAST = ("complete", "discard")
# Answers that begin an attempt, and answers that say that a name is completed.
BEGUN = ("claimed", "started")
COMPLETED = ("duplicate", "replay")
# The errors that faults and other clients cause, by SQLSTATE or its class: lost leases, old snapshots, deadlocks, locks, timeouts,
# cancelled and terminated sessions, servers that start, lost connections, slots for prepared transactions.
EXPECTED = ("ID007", "40001", "40P01", "55P03", "57014", "57P", "25P03", "08", "53")


@dataclass
class Step:
    """A row of app.steps."""
    at: int             # of the commit
    pos: int
    txn: str
    name: str
    what: str           # lease, start (of a request without a lease), claim, effect, phase, fail, release, complete; of dead
                        # ones park (by their holder), redrive, discard; dead: the answer, which may have parked it
    token: int = None
    attempt: int = None
    point: str = None
    print: str = None


@dataclass
class Call:
    asked: float
    at: float           # when the answer came, or the error
    txn: str            # None: a transaction of its own
    name: str
    call: str
    answer: dict = None
    error: str = None   # without an answer and without an error nobody knows
    token: int = None
    point: str = None
    more: dict = field(default_factory=dict)

    @property
    def result(self):
        return (self.answer or {}).get("result")


@dataclass
class AttemptHistory:
    names: list = field(default_factory=list)       # that were opened
    steps: list = field(default_factory=list)       # [Step]
    calls: list = field(default_factory=list)       # [Call]
    meant: dict = field(default_factory=dict)       # transaction -> [(name, what, token)] of its rows
    sent: dict = field(default_factory=dict)        # transaction -> when COMMIT was sent, or its end decided
    answered: dict = field(default_factory=dict)    # transaction -> when its synchronous COMMIT was answered
    undone: set = field(default_factory=set)        # transactions that were rolled back, prepared ones too
    outside: list = field(default_factory=list)     # (event, token) that the receiver accepted, in order
    limit: int = 0      # attempts before one is dead


def ordered(h):
    """name -> its steps, in the order of their commits.  A transaction that was only answered dead excludes no other one, so
    its place among them says nothing."""
    found = collections.defaultdict(list)
    for step in sorted(h.steps, key=lambda s: (s.at, s.pos)):
        if step.what != "dead":
            found[step.name].append(step)
    return found


def completions(h):
    """name -> the first step that completed or discarded it."""
    return {name: next(s for s in steps if s.what in LAST)
            for name, steps in ordered(h).items() if any(s.what in LAST for s in steps)}


def durable(h):
    """A COMMIT that was answered is there; each row was meant, by a transaction that was not rolled back."""
    there = collections.defaultdict(list)
    for s in sorted(h.steps, key=lambda s: s.pos):
        there[s.txn].append((s.name, s.what, s.token))
    for txn in h.answered:
        if h.meant.get(txn, []) != there.get(txn, []):
            yield "durable", txn, f"COMMIT was answered, its rows were {h.meant.get(txn)}, and are {there.get(txn)}"
    for txn, rows in there.items():
        if txn in h.undone or rows != h.meant.get(txn):
            yield "durable", txn, f"its rows are {rows}, and it {'was rolled back' if txn in h.undone else 'meant others'}"


def tokens(h):
    """Tokens rise: an event's in the order of the leases' commits, and all tokens in the order of the answers."""
    for name, steps in ordered(h).items():
        last = 0
        for s in steps:
            if s.what == "lease":
                if s.token <= last:
                    yield "tokens", name, f"{s.token} of {s.txn} after {last}"
                last = max(last, s.token)
    begun = [(c.asked, c.at, c.answer["token"], c.name, c.txn) for c in h.calls if c.result in BEGUN and c.answer.get("token")]
    by_answer = collections.deque(sorted(begun, key=lambda b: b[1]))
    last = 0
    for asked, _, token, name, txn in sorted(begun):
        while by_answer and by_answer[0][1] < asked:
            last = max(last, by_answer.popleft()[2])
        if token <= last:
            yield "tokens", name, f"{token} was given to {txn}, and {last} before it asked"


def fenced(h):
    """An effect commits under the token of the newest lease only, and a lease that ended has no more effects."""
    for name, steps in ordered(h).items():
        token = NOBODY
        for s in steps:
            if s.what in ("lease", "start", "claim"):
                token = s.token
            elif s.what in ("redrive", "discard"):
                token = NOBODY
            elif s.token != token:
                yield "fenced", name, f"{s.what} of {s.txn} under {s.token}, and the lease is {'nobody' if token is NOBODY else token}"
            elif s.what in ("fail", "release", "park"):
                token = NOBODY


def outside(h):
    """No effect outside of the database has a higher token than the completion: its lease was committed before."""
    done = completions(h)
    for name, token in h.outside:
        last = done.get(name)
        if last and last.token is not None and token > last.token:
            yield "outside", name, f"an effect under {token}, and {last.txn} completed under {last.token}"


def once(h):
    """A name is completed, or discarded, by one transaction."""
    for name, steps in ordered(h).items():
        by = [s.txn for s in steps if s.what in LAST]
        if len(by) > 1:
            yield "once", name, f"completed by {by}"


def over(h):
    """What is completed or discarded is not begun again: nothing commits after it, and no later call begins an attempt or is
    answered dead."""
    done = completions(h)
    for name, steps in ordered(h).items():
        if name not in done:
            continue
        last = done[name]
        for s in steps:
            if (s.at, s.pos) > (last.at, last.pos) and s.what not in LAST:
                yield "over", name, f"{s.what} of {s.txn}, after {last.txn} completed it"
    for c in h.calls:
        if c.result in (*BEGUN, "dead") and c.name in done and c.asked > h.answered.get(done[c.name].txn, NEVER):
            yield "over", c.name, f"{c.result} to {c.txn}, after the COMMIT of {done[c.name].txn} was answered"


def finished(h):
    """Everything that was opened is completed or discarded in the end."""
    done = completions(h)
    for name in h.names:
        if name not in done:
            yield "finished", name, "is not completed"


def completed_before(h):
    """duplicate, or replay, is answered after a completion that stayed was sent, or by the transaction itself."""
    done = completions(h)
    for c in h.calls:
        if c.result not in COMPLETED:
            continue
        if c.name not in done:
            yield "completed before", c.name, f"{c.result} to {c.txn}, and nothing completed it"
        elif done[c.name].txn != c.txn and h.sent.get(done[c.name].txn, NEVER) > c.at:
            yield "completed before", c.name, f"{c.result} to {c.txn}, and {done[c.name].txn} completed it later"


def attempts(h):
    """An attempt's number is one more than that of the attempt before, if that was not given back.  After a redrive the first
    one comes again."""
    for name, steps in ordered(h).items():
        before = 0
        for s in steps:
            if s.what in ("lease", "start"):
                if s.attempt != before + 1:
                    yield "attempts", name, f"attempt {s.attempt} of {s.txn} after {before}"
                before = s.attempt
            elif s.what == "release":
                before -= 1
            elif s.what == "redrive":
                before = 0


def superseded(h):
    """A call under a token succeeds only if no later lease, no end of the lease and no completion was answered before the
    call."""
    newer, ended, done = collections.defaultdict(list), {}, completions(h)
    for s in h.steps:
        if s.what == "lease" and s.txn in h.answered:
            newer[s.name].append((h.answered[s.txn], s.token))
        elif s.what in ("release", "fail", "park") and s.txn in h.answered:
            ended[s.name, s.token] = h.answered[s.txn]
    for c in h.calls:
        if c.call not in UNDER_TOKEN or c.answer is None or c.token is None:
            continue
        if any(at < c.asked and token > c.token for at, token in newer[c.name]):
            yield "superseded", c.name, f"{c.call} of {c.txn} under {c.token} came after a later lease"
        if ended.get((c.name, c.token), NEVER) < c.asked:
            yield "superseded", c.name, f"{c.call} of {c.txn} under {c.token} came after the end of its lease"
        last = done.get(c.name)
        if last and h.answered.get(last.txn, NEVER) < c.asked:
            yield "superseded", c.name, f"{c.call} of {c.txn} under {c.token} came after the completion"


def unjustified(h):
    """A lease is lost to another attempt, or ended by its holder, or the event was found dead; that the lease is overdue is no
    reason."""
    begun, ends = collections.defaultdict(list), collections.defaultdict(list)
    for c in h.calls:
        if c.result in (*BEGUN, "dead"):
            begun[c.name].append(c)
        elif c.call in ENDS and c.error != "ID007":
            ends[c.name, c.token].append(c)
    own = {(c.name, c.answer["token"]): c for calls in begun.values() for c in calls if c.answer.get("token")}
    for c in h.calls:
        lease = own.get((c.name, c.token))
        if c.error != "ID007" or lease is None or h.answered.get(lease.txn, NEVER) > c.asked:
            continue
        if not any(other.at > lease.at and other.asked < c.at for other in begun[c.name]) \
                and not any(end.txn != c.txn and end.asked < c.at for end in ends[c.name, c.token]):
            yield "unjustified", c.name, f"{c.call} of {c.txn} under {c.token} was refused, and nobody has taken the lease over"


def snapshots(h):
    """A transaction that keeps its snapshot cannot act on what changed after it: its call fails."""
    changes = collections.defaultdict(list)
    for s in h.steps:
        if s.what in ("lease", "phase", "fail", "release", "complete", "park", "redrive", "discard") and s.txn in h.answered:
            changes[s.name].append((h.sent[s.txn], h.answered[s.txn], s))
    for c in h.calls:
        since = c.more.get("snapshot")
        if since is None or c.answer is None or not (c.result in BEGUN or c.call in UNDER_TOKEN or c.answer.get("n")):
            continue
        for sent, answered, s in changes[c.name]:
            if sent > since and answered < c.asked and s.txn != c.txn and (s.what != "phase" or c.result in BEGUN):
                yield "snapshots", c.name, f"{c.call} of {c.txn}, after {s.what} of {s.txn}, which its snapshot does not see"


def points(h):
    """A lease finds the newest recovery point that was noted, and the state that came with it."""
    noted = collections.defaultdict(list)
    for c in h.calls:
        if c.call == "extend" and c.point and (c.answer or not c.error):
            noted[c.name].append(c)
    for c in h.calls:
        if c.call != "lease" or c.result != "claimed":
            continue
        found = c.answer["recovery_point"]
        own = next((n for n in noted[c.name] if n.point == found), None)
        if c.answer.get("noted") != found:
            yield "points", c.name, f"{c.txn} found the point {found}, and the state of {c.answer.get('noted')}"
        if found and (own is None or own.asked > c.at):
            yield "points", c.name, f"{c.txn} found {found}, which nobody noted before"
        since = own.at if own else -NEVER
        for n in noted[c.name]:
            if n.answer and n.asked > since and n.at < c.asked and n is not own:
                yield "points", c.name, f"{c.txn} found {found}, and not {n.point}, which was noted later"


def errors(h):
    """No call has an error that neither a fault nor another client explains."""
    for c in h.calls:
        if c.error and not c.error.startswith(EXPECTED):
            yield "errors", c.name, f"{c.call} of {c.txn}: {c.error}"


ATTEMPT_RULES = (durable, tokens, fenced, outside, once, over, finished, completed_before, attempts, superseded, unjustified,
                 snapshots, points, errors)
