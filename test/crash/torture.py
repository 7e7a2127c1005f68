#!/usr/bin/python3
"""Prints the report of a long run, in Markdown on standard output.

    torture.py RESULTS HOURS SECONDS COMMIT SERVER

RESULTS holds a file history.SEED.json per round, and environment.SEED with the output of
the machine's faults.
"""
import collections
import datetime
import json
import os
import pathlib
import platform
import sys


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = int(f.readline().split()[1]) / (1 << 20)
    return f"{model}, {os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def bound(found, n):
    """The bound at 95 %: 3/n beside a zero.  Beside findings there is no bound: they say more."""
    return f"< {3 / n:.1e}" if n and not found else "-"


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(c) for c in row) + " |")


def environment(results):
    """name of a scenario -> [passed, failed]."""
    found = collections.defaultdict(lambda: [0, 0])
    for path in sorted(results.glob("environment.*")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("ok ", "NOT OK ")):
                good = line.startswith("ok ")
                name = line.removeprefix("NOT OK ").removeprefix("ok ").split(" (")[0]
                found[name][not good] += 1
    return found


def attempts(rounds):
    """One line each for leases, requests, offsets and sequences: what happened, in all rounds together."""
    for kind in ("leases", "requests", "offsets", "sequences"):
        total = collections.Counter()
        for one in rounds:
            total.update(one["figures"].get("attempts", {}).get(kind, {}))
        if total:
            print(f"\n{kind.capitalize()}: " + ", ".join(f"{what} {n:,}" for what, n in total.items()) + ".")


def main():
    results, hours, seconds, commit, server = sys.argv[1:]
    results = pathlib.Path(results)
    rounds = [json.loads(p.read_text()) for p in sorted(results.glob("history.*.json"))]
    counts, kinds, found = collections.Counter(), collections.Counter(), collections.Counter()
    for one in rounds:
        counts.update(one["counts"])
        kinds.update(one["kinds"])
        found.update({rule: 0 for rule in one["found"]})
        found.update(one["found"])
    events = sum(r["events"] for r in rounds)
    figure = lambda name: sum(r["figures"].get(name, 0) for r in rounds)
    bad = [r["seed"] for r in rounds if r["failed"]]
    first = sorted(x for r in rounds for x in r["figures"].get("first send", []))
    arrival = sorted(x for r in rounds for x in r["figures"].get("arrival", []))
    machines = environment(results)

    print("# Report of the long run\n")
    print(f"`make torture HOURS={hours}`, {datetime.date.today()}, commit {commit}, {server}.\n\n{machine()}.\n")
    print(f"Rounds, each on two fresh servers: {len(rounds)}, in {int(seconds) / 3600:.2f} h; "
          f"{events:,} events committed in {figure('transactions'):,} transactions, {figure('aborted'):,} of which "
          f"have no effect ({figure('lazy lost'):,} of them asynchronous commits lost in a crash).\n")
    print("**Findings: " + ("none.**" if not bad and not any(v[1] for v in machines.values()) else
                            f"seeds {', '.join(map(str, bad)) or 'none'} of the rounds"
                            f"{'' if not any(v[1] for v in machines.values()) else ', and of the machine'}.**"))
    total = sum(found.values())
    table(("Kill -9 of", "Times", "Findings", "95 % bound per kill"),
          [(what, kinds[kind], total, bound(total, kinds[kind])) for what, kind in
           (("a backend, a relay's worker or the launcher, which restarts the server", "crash"),
            ("an auxiliary process of a server, which restarts it, too", "auxiliary"),
            ("a postmaster", "postmaster"), ("a sink program", "sink"))])
    table(("Rule", "Findings", "95 % bound per event"), [(r, n, bound(n, events)) for r, n in found.items()])
    table(("Fault", "Times"), sorted(counts.items(), key=lambda c: (-c[1], c[0])))
    if machines:
        table(("Fault of the machine", "Passed", "Failed"), [(n, *v) for n, v in sorted(machines.items())])
    if first:
        print(f"\nFirst send after \"ready to accept connections\": p50 {first[len(first) // 2]:.2f} s, "
              f"p99 {first[min(len(first) - 1, int(len(first) * 0.99))]:.2f} s, most {first[-1]:.2f} s, of {len(first)}, "
              f"{figure('first send cut')} of which ended with another restart.")
    if arrival:
        print(f"\nCOMMIT to arrival in {figure('quiet times')} quiet times: p50 {arrival[len(arrival) // 2] * 1000:.0f} ms, "
              f"p99 {arrival[min(len(arrival) - 1, int(len(arrival) * 0.99))] * 1000:.0f} ms, most {arrival[-1]:.2f} s, "
              f"of {len(arrival)}; longest that neither a stall of the machine nor `stat_relay` explains: "
              f"{max(r['figures'].get('unexplained', 0) for r in rounds):.2f} s.")
    longest = collections.defaultdict(float)
    for one in rounds:
        for what, took in one["longest"].items():
            longest[what] = max(longest[what], took)
    for what, took in sorted(longest.items()):
        print(f"{what}: at most {took:.1f} s.")
    print(f"\nSends repeated to the program: {figure('repeated'):,}. Claims: {figure('claims'):,}, "
          f"{figure('duplicates'):,} of them answered `duplicate`.")
    attempts(rounds)


if __name__ == "__main__":
    main()
