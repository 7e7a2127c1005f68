"""Measures the relays' workers: their descriptors, their memory, and how soon they send."""
import os
import re
import time
from datetime import datetime, timezone

from server import READY

# Contexts that fill step by step up to a bound: the catalog's size or a buffer's size.
BOUNDED = ("CacheMemoryContext", "outbox reader", "sink pipe")
CONTEXT = re.compile(r"LOG:  level: (\d+); (.*?): \d+ total in .* (\d+) used")


def descriptors(cluster, pids):
    """The open descriptors, without the server's own cache of data files."""
    found = 0
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found += not os.readlink(f"/proc/{pid}/fd/{fd}").startswith(str(cluster.data))
            except OSError:
                pass
    return found


def settled_descriptors(cluster, pids):
    """Descriptors that two looks in a row agree on: a wait set that is made anew is missing for a moment."""
    last = None
    for _ in range(100):
        now = descriptors(cluster, pids)
        if now == last:
            break
        last = now
        time.sleep(0.1)
    return last


def memory(cluster, pids):
    """Bytes in use in all memory contexts, without the bounded contexts and the contexts below them."""
    total = 0
    for pid in pids:
        offset = cluster.log_size()
        cluster.rows("SELECT pg_log_backend_memory_contexts(%s)", (pid,))
        cluster.wait_log("Grand total", offset)
        below = None
        for level, name, used in CONTEXT.findall(cluster.log_from(offset)):
            level = int(level)
            if below is not None and level > below:
                continue
            below = level if name in BOUNDED else None
            if below is None:
                total += int(used)
    return total


def resident(pids):
    """The private memory of the largest worker, in kB."""
    most = 0
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            most = max(most, next(int(line.split()[1]) for line in f if line.startswith("RssAnon")))
    return most


def arrival_times(topology):
    """relay -> the times of arrivals, as seconds since the epoch, in order: one relay per kind of sink."""
    times = "SELECT extract(epoch FROM at)::float8 FROM app"
    return {"fn": [r[0] for r in topology.a.rows(f"{times}.effect WHERE relay = 'fn' ORDER BY at")],
            "pgfn": [r[0] for r in topology.b.rows(f"{times}.inbox ORDER BY at")],
            "prog": sorted(e["at"] for e in topology.program_log() if e.get("outcome") == "acked")}


def ready_times(server):
    """The times when the server began to accept connections, as seconds since the epoch."""
    found = []
    for line in server.log_text().splitlines():
        if READY in line:
            m = re.match(r"(\d+-\d+-\d+ \d+:\d+:\d+\.\d+) UTC", line)
            at = datetime.strptime(m.group(1), "%Y-%m-%d %H:%M:%S.%f")
            found.append(at.replace(tzinfo=timezone.utc).timestamp())
    return found


def first_sends(topology):
    """Seconds from "ready to accept connections" to the first arrival, per restart of A and relay, sorted; and
    how many of these values are only lower bounds.

    If the next restart came before any arrival, the time until that restart counts, as a lower bound.  After the
    last restart no restart follows: without an arrival its value is not known.  A wait for a restart of B says
    nothing about A's relay, and does not count.
    """
    ready = ready_times(topology.a)
    of_target = ready_times(topology.b)
    took, cut = [], 0
    for relay, at in arrival_times(topology).items():
        i = 0
        for start, end in zip(ready[1:], ready[2:] + [float("inf")]):
            while i < len(at) and at[i] < start:
                i += 1
            first = at[i] if i < len(at) else float("inf")
            if relay == "pgfn" and any(start < b <= min(first, end) for b in of_target):
                continue
            cut += end < first
            if min(first, end) != float("inf"):
                took.append(min(first, end) - start)
    return sorted(took), cut
