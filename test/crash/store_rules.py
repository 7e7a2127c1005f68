"""The rules for a history of claims alone, which are forgotten or expire at times.  Each rule is a
function, which yields the violations that it finds, as (rule, event or transaction, text).

A StoreHistory has the clients' logs and the rows that their transactions left, but nothing
from the store of claims.
"""
import collections
from dataclasses import dataclass, field

NEVER = float("inf")
# Events that expire are remembered for so many seconds of the store's time at least.
LEAST = 3600


@dataclass
class Passing:
    """The store's time was set forward between two moments, or not at all."""
    begin: float
    end: float
    seconds: int


@dataclass
class StoreHistory:
    changes: list = field(default_factory=list)     # (event, transaction, forgets): rows, in the order of the event's lock
    meant: dict = field(default_factory=dict)       # transaction -> {(event, forgets)} that it makes if it commits
    begun: dict = field(default_factory=dict)       # transaction -> when it had begun, before its first claim
    committing: dict = field(default_factory=dict)  # transaction -> when it first sent COMMIT
    answered: dict = field(default_factory=dict)    # transaction -> when COMMIT was answered
    lazy: set = field(default_factory=set)          # asynchronous ones
    claims: list = field(default_factory=list)      # rules.Claim
    brief: set = field(default_factory=set)         # events that expire
    passing: list = field(default_factory=list)     # Passing


def may_expire(h, since, until):
    """May an event be forgotten at the one moment that was remembered at the other?"""
    return until - since + sum(p.seconds + 1 for p in h.passing if p.end > since and p.begin < until) >= LEAST


def durable(h):
    """What a transaction did whose COMMIT was answered is there."""
    there = {(txn, event, forgets) for event, txn, forgets in h.changes}
    for txn in h.answered:
        if txn in h.lazy:
            continue
        for event, forgets in h.meant.get(txn, ()):
            if (txn, event, forgets) not in there:
                yield "durable", event, f"COMMIT of {txn} was answered, and its {'order to forget' if forgets else 'effect'} is gone"


def one_by_one(h):
    """Of an event there is an effect, then an order to forget, then an effect; each was meant.  An event that
    expires has an effect again when its retention may be over."""
    last = {}
    claimed = {(c.txn, c.event): c.at for c in h.claims if c.verdict == "claimed"}
    for event, txn, forgets in h.changes:
        if (event, forgets) not in h.meant.get(txn, ()):
            yield "one by one", event, f"{txn} did not mean to {'forget' if forgets else 'make'} it"
        before = last.get(event, (True, None))
        if event in h.brief and not before[0]:
            if not may_expire(h, h.committing.get(before[1], NEVER), claimed.get((txn, event), NEVER)):
                yield "one by one", event, f"made by {txn}, and by {before[1]} within its retention"
        elif forgets == before[0]:
            yield "one by one", event, f"{'forgotten' if forgets else 'made'} by {txn}, and by {before[1] or 'nobody'} before"
        last[event] = (forgets, txn)


def by_event(h):
    """event -> ([(sent, answered)] of its effects, the same of its orders to forget)"""
    found = collections.defaultdict(lambda: ([], []))
    for event, txn, forgets in h.changes:
        found[event][forgets].append((h.committing.get(txn, NEVER), h.answered.get(txn, NEVER)))
    return found


def count(times, before):
    return sum(at < before for at in times)


def claimed_again(h):
    """"claimed" is not answered after an answered completion that nothing has forgotten."""
    events = by_event(h)
    for c in h.claims:
        if c.verdict != "claimed" or c.event not in events:
            continue
        effects, orders = events[c.event]
        if c.event in h.brief:
            effects = [(sent, answered) for sent, answered in effects if not may_expire(h, sent, c.at)]
        completed = count((answered for _, answered in effects), h.begun[c.txn])
        if completed > count((sent for sent, _ in orders), c.at):
            yield "claimed again", c.event, f"answered to {c.txn} after {completed} answered completions"


def never_completed(h):
    """"duplicate" is answered only of what was completed, and was not forgotten since."""
    events = by_event(h)
    for c in h.claims:
        if c.verdict != "duplicate":
            continue
        effects, orders = events[c.event]
        forgotten = count((answered for _, answered in orders), h.begun[c.txn])
        if count((sent for sent, _ in effects), c.at) <= forgotten:
            yield "never completed", c.event, f"\"duplicate\" answered to {c.txn} after {forgotten} answered orders to forget"


STORE_RULES = (durable, one_by_one, claimed_again, never_completed)


def expected(h, now):
    """event -> what its next claim may be answered, of all events with a change."""
    told = {event: (txn, {"claimed"} if forgets else {"duplicate"}) for event, txn, forgets in h.changes}
    return {event: may | {"claimed"} if event in h.brief and may_expire(h, h.committing.get(txn, NEVER), now) else may
            for event, (txn, may) in told.items()}
