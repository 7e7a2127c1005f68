"""Runs every fault point with every action, over some lanes; prints ok or NOT OK for each pair."""
import multiprocessing
import os
import pathlib
import signal
import sys
import time
import traceback

from lane import SETTINGS, Lane
from server import Server

WORK = pathlib.Path(os.environ["WORK"])

ACTIONS = {
    "error": ("error", "kill", "stall", "cancel"),
    "no_error": ("kill", "stall", "cancel"),
    "child": ("kill", "stall"),
    "sink": ("error", "kill", "stall", "cancel"),
}


def read_steps(beginnings):
    wanted = os.environ.get("ACTIONS", "").split()
    steps = []
    with open(WORK / "points.txt") as f:
        for line in f:
            name, kind, _ = line.split()
            if beginnings and not name.startswith(tuple(beginnings)):
                continue
            steps += [(name, kind, action) for action in ACTIONS[kind] if not wanted or action in wanted]
    return steps


def run_lane(number, template, todo, results):
    # libpq reports every crash on standard error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    lane = Lane(WORK / "lanes" / f"lane{number}", template, bool(os.environ.get("VERBOSE")))
    try:
        lane.start()
        while True:
            step = todo.get()
            if step is None:
                break
            began = time.monotonic()
            try:
                problems = lane.step(*step)
            except Exception:
                problems = traceback.format_exc().splitlines()
            results.put((f"{step[0]} {step[2]}", problems, time.monotonic() - began, number))
        results.put((f"history of lane {number}", whole_history(lane), 0, number))
        results.put((f"end of lane {number}", lane.stop(), 0, number))
    except Exception:
        results.put((f"lane {number}", traceback.format_exc().splitlines(), 0, number))
    finally:
        lane.stop()
        results.put((None, lane.ledger.nevents, 0, number))


def whole_history(lane):
    """Judge the whole history of the lane once more, for events that came late and ids that were lost."""
    lane.ledger.begin_step()
    return lane.ledger.judge_events(0, everything=True) + lane.judge_store()


def main():
    steps = read_steps(sys.argv[1:])
    if not steps:
        print("no such fault point")
        return 1
    template = Server("template", WORK / "lanes", os.environ["BINDIR"])
    template.make((WORK / "extension.conf").read_text() + SETTINGS)
    nlanes = min(int(os.environ["LANES"]), len(steps))
    todo, results = multiprocessing.Queue(), multiprocessing.Queue()
    for step in steps + [None] * nlanes:
        todo.put(step)
    lanes = [multiprocessing.Process(target=run_lane, args=(i, template, todo, results))
             for i in range(nlanes)]
    for lane in lanes:
        lane.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return report(results, nlanes, len(steps))


def bound(n):
    """The largest rate that n clean trials leave open, at 95 %."""
    return f"{3 / n:.2g}" if n else "1"


def report(results, running, nsteps):
    began = time.monotonic()
    passed = failed = nevents = 0
    while running:
        name, problems, seconds, lane = results.get()
        if name is None:
            running -= 1
            nevents += problems
            continue
        if problems:
            failed += 1
            for line in problems[:20]:
                print(f"    {line}")
            if len(problems) > 20:
                print(f"    and {len(problems) - 20} more")
            print(f"NOT OK {name} (lane {lane}, {seconds:.1f} s)")
        else:
            passed += 1
            print(f"ok {name}" + (f" ({seconds:.1f} s)" if os.environ.get("VERBOSE") else ""))
        sys.stdout.flush()
    found = "findings" if failed else f"no finding, 95 %: < {bound(nsteps)} per fault, < {bound(nevents)} per event"
    print(f"{nevents} committed events over {nsteps} faults, in {time.monotonic() - began:.0f} s; {found}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
