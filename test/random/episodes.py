"""Runs episodes of random operations, and makes the shortest one that still fails.

An episode starts from an empty state and is a function of its seed, so a failure is repeated from its seed
alone, whatever ran before.  An operation is a tuple that says all; one that makes no sense any more, since an
earlier one was left out, is passed over by its episode.
"""
import random
import time

import psycopg2

from server import Finding

SHRINK_SECONDS = 120


class Mismatch(Finding):
    """The server did not do as the model says."""


def play(episode, ops):
    """Apply them; the mismatch, or None.  A statement of the test itself that fails is one, too."""
    try:
        for op in ops:
            if episode.makes_sense(op):
                episode.apply(op)
        episode.finish()
        return None
    except (Finding, psycopg2.Error) as found:
        return found


def generate(episode, seed, transactions):
    """Operations until so many transactions have begun; (those made, the mismatch or None)."""
    rng = random.Random(seed)
    ops = []
    try:
        while episode.transactions < transactions:
            op = episode.choose(rng)
            ops.append(op)
            episode.apply(op)
        episode.finish()
        return ops, None
    except (Finding, psycopg2.Error) as found:
        return ops, found


def shrink(make, ops, found):
    """Leave out what is not needed to fail, larger parts first; the shortest and its mismatch."""
    end = time.monotonic() + SHRINK_SECONDS
    size = max(1, len(ops) // 2)
    while time.monotonic() < end:
        at, less = 0, False
        while at < len(ops) and time.monotonic() < end:
            fewer = ops[:at] + ops[at + size:]
            again = play(make(), fewer)
            if again is not None:
                ops, found, less = fewer, again, True
            else:
                at += size
        if size == 1 and not less:
            break
        size = max(1, size // 2)
    return ops, found


def run(name, make, transactions, seed, length, shrinks=True):
    """Episodes of that length until there were so many transactions; True if the model held."""
    began, done, steps, episodes, remarks = time.monotonic(), 0, 0, 0, []
    while done < transactions:
        episode = make()
        ops, found = generate(episode, seed + episodes, min(length, transactions - done))
        if found is not None:
            print(f"NOT OK {name}: {found}\nSEED={seed + episodes} ONLY={name} repeats it", flush=True)
            print("".join(f"    {line}\n" for line in episode.trace[-40:]), flush=True)
            if shrinks:
                again = make()
                if play(again, ops) is None:
                    print("the same operations did not fail again")
                    return False
                ops, found = shrink(make, ops, found)
                last = make()
                found = play(last, ops) or found
                print(f"{len(ops)} operations suffice: {found}")
                print("".join(f"    {line}\n" for line in last.trace), flush=True)
            return False
        done += episode.transactions
        steps += len(ops)
        episodes += 1
        remarks = [r for r in [*remarks, getattr(episode, "remark", None)] if r is not None]
    print(f"ok     {name}: {done} transactions, {steps} operations in {episodes} episodes, first seed {seed}, "
          f"{time.monotonic() - began:.0f} s" + (f"; {max(remarks)}" if remarks else ""))
    return True
