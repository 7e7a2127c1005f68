"""What the relays' workers hold: descriptors and memory; how soon they send."""
import os
import re
import time
from datetime import datetime, timezone

from server import READY

# Bounded by the catalog and by a buffer's size, and filled step by step.
BOUNDED = ("CacheMemoryContext", "outbox reader")
CONTEXT = re.compile(r"LOG:  level: (\d+); (.*?): \d+ total in .* (\d+) used")


def descriptors(cluster, pids):
    """Open ones, but for the server's own cache of data files."""
    found = 0
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found += not os.readlink(f"/proc/{pid}/fd/{fd}").startswith(str(cluster.data))
            except OSError:
                pass
    return found


def settled_descriptors(cluster, pids):
    """The same, twice in a row: a wait set is made anew now and then, and is missing for a moment."""
    last = None
    for _ in range(100):
        now = descriptors(cluster, pids)
        if now == last:
            break
        last = now
        time.sleep(0.1)
    return last


def memory(cluster, pids):
    """Bytes in use in all memory contexts but the bounded ones and those below them."""
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
    """kB of memory of its own, of the largest."""
    most = 0
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            most = max(most, next(int(line.split()[1]) for line in f if line.startswith("RssAnon")))
    return most


def arrival_times(topology):
    """relay -> when something arrived, as seconds since the epoch, in order: one relay per kind of sink."""
    times = "SELECT extract(epoch FROM at)::float8 FROM app"
    return {"fn": [r[0] for r in topology.a.rows(f"{times}.effect WHERE relay = 'fn' ORDER BY at")],
            "pgfn": [r[0] for r in topology.b.rows(f"{times}.inbox ORDER BY at")],
            "prog": sorted(e["at"] for e in topology.program_log() if e.get("outcome") == "acked")}


def ready_times(server):
    """When it began to accept connections, as seconds since the epoch."""
    found = []
    for line in server.log_text().splitlines():
        if READY in line:
            m = re.match(r"(\d+-\d+-\d+ \d+:\d+:\d+\.\d+) UTC", line)
            at = datetime.strptime(m.group(1), "%Y-%m-%d %H:%M:%S.%f")
            found.append(at.replace(tzinfo=timezone.utc).timestamp())
    return found


def first_sends(topology):
    """Seconds from "ready to accept connections" to the first arrival, per restart of A and relay, sorted;
    and how many of them only say that it took longer.

    Where the next restart came before any arrival, the time until then counts.
    The last restart has none after it, so nothing is known where nothing came.
    What the target in B waited for B to restart says nothing about A's relay.
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
