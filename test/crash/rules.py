"""The rules for a history.  Each rule is a function, which yields the violations that it
finds, as (rule, event or transaction, text).

A History has the clients' logs and the receivers' events, but nothing from the views of the
tested system.  The time of every rule is linear in the size of the History.
"""
from dataclasses import dataclass, field

# Seconds.
PATIENCE = 1.0


@dataclass(slots=True)
class Event:
    id: str
    key: str
    n: int          # number under the lock of the key, 0 where none was taken
    amount: int
    kept: bool      # False: its savepoint was rolled back
    txn: str
    i: int          # which of the transaction's events
    type: str


@dataclass(slots=True)
class Claim:
    at: float
    txn: str
    event: str
    verdict: str


@dataclass
class Quiet:
    """A quiet time, when only its own events were committed; seconds of one clock."""
    begin: float
    end: float
    awaited: list                               # its own: (id, type, when COMMIT was sent, when answered)
    stalls: list = field(default_factory=list)  # (from, to): the machine, or a server, was late
    named: dict = field(default_factory=dict)   # relay -> [(from, to, why)]: the view told what it waited for
    held: dict = field(default_factory=dict)    # relay -> [(from, to)]: the test held its sink
    arrived: dict = field(default_factory=dict)     # relay -> {id: when it first came}, in this time


@dataclass
class History:
    events: dict = field(default_factory=dict)      # id -> [Event]: more than one where a client repeats its id
    outcome: dict = field(default_factory=dict)     # transaction -> committed | aborted
    said_ok: set = field(default_factory=set)       # synchronous COMMITs that were answered
    business: dict = field(default_factory=dict)    # transaction -> [(events, amount), ...] in A's table
    arrivals: dict = field(default_factory=dict)    # relay -> [(id, key, payload), ...] in order
    types: dict = field(default_factory=dict)       # relay -> letters of the aggregate types it takes
    repeats: set = field(default_factory=set)       # relays that may repeat
    effects: list = field(default_factory=list)     # consumers' (id, transaction)
    inbox: str = "pgfn"                             # relay that consumers read from
    meant: dict = field(default_factory=dict)       # consumer's transaction -> set of ids it makes effects of
    committing: dict = field(default_factory=dict)  # consumer's transaction -> when it first sent COMMIT
    claims: list = field(default_factory=list)      # [Claim]
    sessions: list = field(default_factory=list)    # of the program: lists of ids in order
    window: int = 0
    quiet: list = field(default_factory=list)       # [Quiet]


def committed(h):
    """id -> its committed, kept Event."""
    found = {}
    for versions in h.events.values():
        for e in versions:
            if e.kept and h.outcome.get(e.txn) == "committed":
                found[e.id] = e
    return found


def business_rows(h):
    """A COMMIT that was answered is there, once, with the right number and sum of events."""
    for txn in h.said_ok:
        if h.outcome.get(txn) != "committed":
            yield "business", txn, "COMMIT was answered, and the transaction is gone"
    sums = {}
    for versions in h.events.values():
        for e in versions:
            if e.kept:
                count, amount = sums.get(e.txn, (0, 0))
                sums[e.txn] = (count + 1, amount + e.amount)
    for txn, rows in h.business.items():
        if len(rows) != 1:
            yield "business", txn, f"{len(rows)} rows of the transaction"
        elif rows[0] != sums.get(txn, (0, 0)):
            yield "business", txn, f"row says {rows[0]}, its events {sums.get(txn)}"


def same_id_twice(h):
    """An event id that the client gave is enqueued by one committed transaction."""
    for event, versions in h.events.items():
        n = sum(e.kept and h.outcome.get(e.txn) == "committed" for e in versions)
        if n > 1:
            yield "id twice", event, f"enqueued by {n} committed transactions"


def lost(h):
    """An event that committed is at every relay that takes its type."""
    found = committed(h)
    for relay, arrivals in h.arrivals.items():
        there = {a[0] for a in arrivals}
        for event, e in found.items():
            if e.type in h.types[relay] and event not in there:
                yield "lost", event, f"committed by {e.txn}, not at {relay}"


def phantom(h):
    """An event that did not commit, was rolled back, or was never enqueued is nowhere."""
    found = committed(h)
    for relay, arrivals in h.arrivals.items():
        for event, _, payload in arrivals:
            if event not in found:
                yield "phantom", event, f"at {relay}, transaction {payload.get('t')} is " \
                    f"{h.outcome.get(payload.get('t'), 'not known')}"


def content(h):
    """An event arrives as it was enqueued, at a relay that takes its type."""
    found = committed(h)
    for relay, arrivals in h.arrivals.items():
        for event, key, payload in arrivals:
            e = found.get(event)
            if e is None:
                continue
            got = (key, payload.get("t"), payload.get("i"), payload.get("n"), payload.get("a"))
            if got != (e.key, e.txn, e.i, e.n, e.amount):
                yield "content", event, f"at {relay}: {got}, enqueued {(e.key, e.txn, e.i, e.n, e.amount)}"
            elif e.type not in h.types[relay]:
                yield "content", event, f"at {relay}, which does not take type {e.type}"


def double(h):
    """An event arrives once if its effect or the position commits with the arrival."""
    for relay, arrivals in h.arrivals.items():
        if relay in h.repeats:
            continue
        seen = set()
        for event, _, _ in arrivals:
            if event in seen:
                yield "double", event, f"again at {relay}"
            seen.add(event)


def order(h):
    """Events enqueued under the lock of their key arrive in the order of the lock's holders."""
    for relay, arrivals in h.arrivals.items():
        last, seen = {}, set()
        for event, key, payload in arrivals:
            n = payload.get("n")
            if not n or event in seen:
                continue
            seen.add(event)
            if n <= last.get(key, (0, None))[0]:
                yield "order", event, f"at {relay}: {n} of key {key} after {last[key][0]} ({last[key][1]})"
            else:
                last[key] = (n, event)


def one_effect(h):
    """Each arrival has one effect of the consumer, of a transaction that meant it and committed."""
    seen = set()
    for event, txn in h.effects:
        if event in seen:
            yield "effect", event, f"a second effect, by {txn}"
        seen.add(event)
        if event not in h.meant.get(txn, ()):
            yield "effect", event, f"by {txn}, which made none that it kept"
    for event in {a[0] for a in h.arrivals[h.inbox]}:
        if event not in seen:
            yield "effect", event, "arrived, and no effect"
    there = {a[0] for a in h.arrivals[h.inbox]}
    for event in seen - there:
        yield "effect", event, "without an arrival"


def duplicate(h):
    """"duplicate" is answered after a completion that stayed, or by the claiming transaction itself."""
    when = {}
    for event, txn in h.effects:
        when.setdefault(event, (h.committing.get(txn, float("inf")), txn))
    for c in h.claims:
        if c.verdict != "duplicate":
            continue
        at, txn = when.get(c.event, (float("inf"), None))
        if txn is None:
            yield "duplicate", c.event, f"answered to {c.txn}; there is no effect"
        elif at > c.at:
            yield "duplicate", c.event, f"answered to {c.txn}; the effect is of {txn}, which committed later"


def window(h):
    """A new instance of the program gets at most the batches again that were in flight."""
    seen = set()
    for i, session in enumerate(h.sessions):
        again = sum(event in seen for event in session)
        if again > h.window:
            first = next(e for e in session if e in seen)
            yield "window", first, f"instance {i} got {again} events again, {h.window} can be in flight"
        seen.update(session)


@dataclass
class Wait:
    relay: str
    event: str
    begin: float
    end: float
    took: float         # seconds since COMMIT was sent while the sink was not held; None: not of the quiet time
    unexplained: float  # seconds between begin and end


def covered(begin, end, intervals):
    """Seconds between begin and end that lie in some of the intervals."""
    total, reached = 0.0, begin
    for start, stop in sorted(i[:2] for i in intervals):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            total, reached = total + stop - start, stop
    return total


def waits(h):
    """Each wait in quiet times.  An event of the quiet time waits since its COMMIT was answered.  An event from
    before waits since the relay's arrival before it, as the relay was busy until then."""
    for q in h.quiet:
        own = {event for event, _, _, _ in q.awaited}
        for relay, letters in h.types.items():
            arrived = q.arrived.get(relay, {})
            spans = [(event, at, max(at, arrived.get(event, q.end)), sent)
                     for event, kind, sent, at in q.awaited if kind in letters]
            previous = q.begin
            for event, at in sorted(arrived.items(), key=lambda a: a[1]):
                if event not in own:
                    spans.append((event, previous, max(previous, at), None))
                    previous = max(previous, at)
            held = q.held.get(relay, [])
            excuses = q.stalls + q.named.get(relay, []) + held
            for event, begin, end, sent in spans:
                yield Wait(relay, event, begin, end, sent and end - sent - covered(sent, end, held),
                           end - begin - covered(begin, end, excuses))


def late(h):
    """A committed event arrives within a second, apart from waits that are explained."""
    for w in waits(h):
        if w.unexplained > PATIENCE:
            since = "COMMIT was answered" if w.took is not None else "the arrival before it, or the quiet time's begin"
            yield "late", w.event, f"at {w.relay}: {w.end - w.begin:.1f} s after {since}, " \
                f"for {w.unexplained:.1f} s of which neither the machine stalled nor stat_relay names a reason"


RULES = (business_rows, same_id_twice, lost, phantom, content, double, order, one_effect, duplicate, window, late)


def judge(h):
    """The violations of all rules."""
    for rule in RULES:
        yield from rule(h)
