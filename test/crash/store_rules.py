"""The rules for a history of claims alone, which are forgotten or expire at times.  Each rule is a
function, which yields the violations that it finds, as (rule, event or transaction, text).

A StoreHistory has the clients' logs and the rows that their transactions left, but nothing
from the store of claims.  Each event is judged by its own changes and claims, and by the times of their transactions.  So the
events of a history may be judged in parts (store_parts.py).  The time of every rule is that of sorting the history.
"""
import collections
import itertools
from bisect import bisect_left, bisect_right
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
    made: list = field(default_factory=list)        # events that clients were given, claimed or not


class StoreTime:
    """How much of the store's time may have passed."""

    def __init__(self, passing):
        self.begins, self.begun = sums((p.begin, p.seconds + 1) for p in passing)
        self.ends, self.ended = sums((p.end, p.seconds + 1) for p in passing)

    def may_expire(self, since, until):
        """May an event be forgotten at the one moment that was remembered at the other?  What was set forward in between is what
        has begun before the one moment, less what had ended at the other."""
        return since < until and until - since + self.begun[bisect_left(self.begins, until)] \
            - self.ended[bisect_right(self.ends, since)] >= LEAST

    def first_remembered(self, times, until):
        """The first one of [(sent, answered)], in order, after which there was too little time to forget the event."""
        return bisect_left(times, True, key=lambda time: not self.may_expire(time[0], until))


def sums(of):
    """The moments of [(moment, seconds)] in order; and before each of them, and after the last one, the seconds so far."""
    of = sorted(of)
    return [at for at, _ in of], [0, *itertools.accumulate(seconds for _, seconds in of)]


def durable(h):
    """What a transaction did whose COMMIT was answered is there."""
    there = {(txn, event, forgets) for event, txn, forgets in h.changes}
    for txn, meant in h.meant.items():
        if txn not in h.answered or txn in h.lazy:
            continue
        for event, forgets in meant:
            if (txn, event, forgets) not in there:
                yield "durable", event, f"COMMIT of {txn} was answered, and its {'order to forget' if forgets else 'effect'} is gone"


def one_by_one(h):
    """Of an event there is an effect, then an order to forget, then an effect; each was meant.  An event that
    expires has an effect again when its retention may be over."""
    last, time = {}, StoreTime(h.passing)
    claimed = {(c.txn, c.event): c.at for c in h.claims if c.verdict == "claimed"}
    for event, txn, forgets in h.changes:
        if (event, forgets) not in h.meant.get(txn, ()):
            yield "one by one", event, f"{txn} did not mean to {'forget' if forgets else 'make'} it"
        before = last.get(event, (True, None))
        if event in h.brief and not before[0]:
            if not time.may_expire(h.committing.get(before[1], NEVER), claimed.get((txn, event), NEVER)):
                yield "one by one", event, f"made by {txn}, and by {before[1]} within its retention"
        elif forgets == before[0]:
            yield "one by one", event, f"{'forgotten' if forgets else 'made'} by {txn}, and by {before[1] or 'nobody'} before"
        last[event] = (forgets, txn)


class Changes:
    """The transactions that changed an event in one way: when they sent COMMIT, and when it was answered."""
    __slots__ = ("times", "answers")

    def __init__(self, times):
        self.times = sorted(times)      # [(sent, answered)]
        self.answers = sorted(answered for _, answered in times)

    def sent(self, before):
        return bisect_left(self.times, (before,))

    def answered(self, before):
        return bisect_left(self.answers, before)


NOTHING = Changes(())


def by_event(h):
    """event -> its effects, its orders to forget"""
    found = collections.defaultdict(lambda: ([], []))
    for event, txn, forgets in h.changes:
        found[event][forgets].append((h.committing.get(txn, NEVER), h.answered.get(txn, NEVER)))
    return {event: tuple(Changes(times) if times else NOTHING for times in both) for event, both in found.items()}


def claimed_again(h):
    """"claimed" is not answered after an answered completion that nothing has forgotten."""
    events, time = by_event(h), StoreTime(h.passing)
    for c in h.claims:
        if c.verdict != "claimed" or c.event not in events:
            continue
        effects, orders = events[c.event]
        begun = h.begun[c.txn]
        if c.event in h.brief:
            # A COMMIT that was answered before this moment was sent before it.
            times = effects.times[time.first_remembered(effects.times, c.at):effects.sent(begun)]
            completed = sum(answered < begun for _, answered in times)
        else:
            completed = effects.answered(begun)
        if completed > orders.sent(c.at):
            yield "claimed again", c.event, f"answered to {c.txn} after {completed} answered completions"


def never_completed(h):
    """"duplicate" is answered only of what was completed, and was not forgotten since."""
    events = by_event(h)
    for c in h.claims:
        if c.verdict != "duplicate":
            continue
        effects, orders = events.get(c.event, (NOTHING, NOTHING))
        forgotten = orders.answered(h.begun[c.txn])
        if effects.sent(c.at) <= forgotten:
            yield "never completed", c.event, f"\"duplicate\" answered to {c.txn} after {forgotten} answered orders to forget"


STORE_RULES = (durable, one_by_one, claimed_again, never_completed)


def expected(h, now):
    """event -> what its next claim may be answered, of all events with a change."""
    told, time = {event: (txn, {"claimed"} if forgets else {"duplicate"}) for event, txn, forgets in h.changes}, StoreTime(h.passing)
    return {event: may | {"claimed"} if event in h.brief and time.may_expire(h.committing.get(txn, NEVER), now) else may
            for event, (txn, may) in told.items()}
