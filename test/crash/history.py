#!/usr/bin/python3
"""Rounds of faults under a workload, judged by the checker.

    history.py MIX SEED WORK BINDIR EXTENSION_CONF SINKS RESULT

MIX is faults (every change has to survive this mix), brief (half a minute of faults), short
(a few faults of every kind), steady (few faults; it measures what workers keep) or torture
(a round of the long run).  The last lines are "ok NAME" or "NOT OK NAME".  RESULT gets the
figures for the report of a long run.
"""
import json
import pathlib
import sys
import time
import traceback

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import actions  # noqa: E402
import attempts  # noqa: E402
from round import Mix, Round  # noqa: E402
from rules import PATIENCE  # noqa: E402
from server import Finding  # noqa: E402

MIXES = {
    "steady": Mix(crash=1, postmaster=1, sink=5, other=1, events=2000, steady=40000),
    "short": Mix(crash=4, auxiliary=1, postmaster=2, sink=6, other=6, events=5000),
    "brief": Mix(crash=12, auxiliary=2, postmaster=4, sink=20, other=16, events=20000),
    "faults": Mix(crash=100, auxiliary=10, postmaster=30, sink=200, other=60, events=200000, steady=60000,
                  complete=True),
    "torture": Mix(crash=60, auxiliary=6, postmaster=36, sink=240, other=90, events=150000, complete=True),
}
FIRST_SEND = 3.0
# With fewer values there is no 99th percentile.
FIRST_SENDS = 100
MEMORY = 1024
# Memory contexts grow in steps, so fewer events may keep as much memory as so many.
RATED = 300000
# The share of PREPARE TRANSACTION that may be refused: a refused one tests nothing.
REFUSED = 0.01


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def line(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(f"{'ok' if good else 'NOT OK'} {text}", flush=True)


def bound(n):
    """The largest rate that n clean trials leave open, at 95 %."""
    return f"< {3 / n:.2g}" if n > 3 else "unknown"


def percentile(values, share):
    """A percentile of a sorted list that is not empty."""
    return values[min(len(values) - 1, int(len(values) * share))]


def report_quiet(tally, figures):
    took = figures["arrival"]
    tally.line(took, f"quiet times: {figures['quiet times']}, {figures['quiet seconds']:.0f} s, COMMIT to arrival of {len(took)}" +
               "".join(f", p{p} {percentile(took, p / 100) * 1000:.0f} ms" for p in (50, 99) if took) +
               (f", most {took[-1]:.2f} s" if took else ""))
    print(f"   nothing arrived at a relay that was behind for at most {figures['behind']:.2f} s; "
          f"longest without an explanation: {figures['unexplained']:.2f} s; "
          f"above {PATIENCE:.0f} s and explained: {figures['excused']}")


def report(tally, one, found, mix):
    kinds, events, figures = one.kinds, one.events, one.figures

    def judged(good, text):
        """Judge a share or a percentile; of few values it is chance, and only shown."""
        if mix.complete:
            tally.line(good, text)
        else:
            print(f"   {text}")

    for rule, n in found.items():
        tally.line(not n, f"rule {rule}: {n} in {events} events (95 %: {'findings' if n else bound(events)} per event)")
    for what, n, least in (("SIGKILL of backends, relays and launchers", kinds["crash"], mix.crash),
                           ("SIGKILL of auxiliary processes", kinds["auxiliary"], mix.auxiliary),
                           ("postmaster kill -9", kinds["postmaster"], mix.postmaster),
                           ("SIGKILL of sink programs", kinds["sink"], mix.sink)):
        bad = sum(found.values())
        tally.line(n >= least, f"{what}: {n} (95 %: {'findings' if bad else bound(n)} per kill)")
    if mix.complete:
        never = sorted(name for name in actions.ACTIONS if not one.counts[name])
        tally.line(not never, f"every fault there is: {len(actions.ACTIONS)}, never done: {never or 'none'}")
    tally.line(figures["mixed"] >= mix.events, f"{figures['mixed']} events committed among the faults, "
               f"at least {mix.events} asked for, {figures['after the last fault']} of these after the last fault")
    print(f"   {events} events in all, {figures['transactions']} transactions, {figures['aborted']} without effect, "
          f"{figures['lazy lost']} of them asynchronous commits lost")
    for server, (tries, refused) in figures["prepared"].items():
        judged(refused <= tries * REFUSED, f"transactions prepared on server {server}: {tries}, "
               f"{refused} refused for want of a slot")
    for what, took in one.longest.items():
        print(f"   {what}: at most {took:.1f} s")
    print(f"   {figures['repeated']} sends repeated, {figures['claims']} claims, "
          f"{figures['duplicates']} answered duplicate")
    runs = figures["runs"]
    tally.line(all(n for n, _, _ in runs.values()), f"claims packed, in segments of {one.segment}: " + "; ".join(
        f"{server}: {entries} in {n} runs, up to level {level}" for server, (n, level, entries) in runs.items()))
    first = figures["first send"]
    p99 = first[min(len(first) - 1, int(len(first) * 0.99))] if first else float("inf")
    judged(p99 < FIRST_SEND and len(first) >= FIRST_SENDS,
           f"first send after \"ready to accept connections\": p99 {p99:.2f} s, "
           f"p50 {first[len(first) // 2] if first else 0:.2f} s, of {len(first)}, "
           f"{figures['first send cut']} of which ended with another restart")
    report_quiet(tally, figures)
    attempts.report(tally, figures["attempts"])
    if mix.steady:
        leaked = figures["descriptors"]
        tally.line(leaked == 0, f"descriptors leaked: {leaked} in {figures['steady']} events "
                   f"(95 %: {'findings' if leaked else bound(figures['steady'])} per event)")
        kept = figures["memory per million"] * figures["steady"] / 1e6
        tally.line(kept < MEMORY * max(figures["steady"], RATED) / 1e6,
                   f"memory that the relays' workers keep: {kept:.0f} kB, {figures['memory per million']:.0f} kB per "
                   f"million events, largest worker {figures['resident']} kB")


def save(path, one, found, failed, took):
    with open(path, "w", encoding="ascii") as f:
        json.dump({"seed": one.seed, "failed": failed, "seconds": took, "found": found, "events": one.events,
                   "counts": one.counts, "kinds": one.kinds, "longest": one.longest, "figures": one.figures}, f)


def main():
    name, seed, work, bindir, conf, sinks, result = sys.argv[1:]
    mix, tally = MIXES[name], Tally()
    actions.load()
    began, found = time.monotonic(), {}
    one = Round(seed, work, bindir, conf, sinks, lambda text: print(text, flush=True))
    try:
        found = one.run(mix)
        report(tally, one, found, mix)
    except Exception as error:
        if not isinstance(error, Finding):
            traceback.print_exc()
        tally.line(False, f"round: {type(error).__name__}: {error}")
        print(one.topology.a.relays())
    finally:
        one.topology.end()
        crashes = one.own_crashes()
        faults = sum(one.counts.values())
        tally.line(not crashes, f"server processes that failed by themselves: {crashes} in {faults} faults "
                   f"(95 %: {'findings' if crashes else bound(faults)} per fault)")
    for what, n in sorted(one.counts.items()):
        print(f"   {n:4} {what}")
    save(result, one, found, tally.failed, time.monotonic() - began)
    print(f"   {time.monotonic() - began:.0f} s, seed {seed}")
    if tally.failed:
        print(f"   SEED={seed} repeats the schedule; the directory {work} stays")
    print(f"{tally.passed} passed, {tally.failed} failed", flush=True)
    return tally.failed != 0


if __name__ == "__main__":
    sys.exit(main())
