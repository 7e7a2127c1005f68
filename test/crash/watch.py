#!/usr/bin/python3
"""A process of its own that notes, in quiet times, other reasons why events wait.

    watch.py OUT A B        connection strings of the two servers

Until its standard input ends, it writes to OUT a JSON object per line, with times in seconds
since the epoch:

    {"stall": "clock"|"a"|"b", "from": t, "to": t}
                        this process did not run, or a query that does nothing took so long
    {"relay": R, "why": "state: waiting_for", "from": t, "to": t}
                        at two or more looks in a row the view named a reason why R waits
    {"looks": n, "most": seconds}
                        the end: the number of looks at the view, the longest time between two
"""
import json
import pathlib
import subprocess
import sys
import threading
import time

import psycopg2

READY = b"watching\n"
PAUSE = 0.01
# A delay below this is part of the second that an event may take.
NOTED = 0.02
VIEW = "SELECT relay, state, waiting_for, last_error FROM idempotency.stat_relay"
# The postgres sink tries such an event again after five seconds: two faults met it in a row.
DOUBT = "the session at the target ended when the event was called"


class Witness:
    def __init__(self, path):
        self.file = open(path, "w", encoding="ascii")
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.broken = None

    def write(self, **more):
        with self.lock:
            self.file.write(json.dumps(more) + "\n")
            self.file.flush()

    def stall(self, what, begin, nominal=0.0):
        end = time.time()
        if end - begin - nominal > NOTED:
            self.write(stall=what, **{"from": begin + nominal, "to": end})

    def clock(self, servers):
        """Sleeps, and sends a query that does nothing, by turns."""
        cursors = {name: cursor(dsn) for name, dsn in servers.items()}
        while not self.done.is_set():
            begin = time.time()
            time.sleep(PAUSE)
            self.stall("clock", begin, PAUSE)
            for name, cur in cursors.items():
                begin = time.time()
                cur.execute("SELECT 1")
                self.stall(name, begin)

    def view(self, dsn):
        cur = cursor(dsn)
        since, looks, last, most = {}, 0, None, 0.0
        while not self.done.is_set():
            at = time.time()
            cur.execute(VIEW)
            # The view was read after the moment "at", and before the next look.
            now = {relay: f"{row[0]}: {row[1]}" for relay, *row in cur.fetchall() if named(*row)}
            most = max(most, at - last) if last else most
            looks, last = looks + 1, at
            for relay in [r for r in since if r not in now]:
                self.end(relay, since.pop(relay))
            for relay, why in now.items():
                since.setdefault(relay, [at, at, why])[1] = time.time()
            time.sleep(PAUSE)
        for relay, interval in since.items():
            self.end(relay, interval)
        self.write(looks=looks, most=most)

    def end(self, relay, interval):
        begin, end, why = interval
        self.write(relay=relay, why=why, **{"from": begin, "to": end})

    def run(self, function, *args):
        try:
            function(*args)
        except Exception as error:
            self.broken = error
            self.done.set()


def named(state, waiting, error):
    """Does the row name a reason that holds back an event that no sink refused, but for a fault?"""
    if waiting == "retry" and (error or "").startswith(DOUBT):
        return True
    return state not in ("streaming", "idle") or waiting not in (None, "events", "retry")


def cursor(dsn):
    c = psycopg2.connect(dsn)
    c.autocommit = True
    return c.cursor()


class Watch:
    """Runs this program, from the time when it watches until it is stopped."""

    def __init__(self, path, a, b):
        self.path = pathlib.Path(path)
        self.process = subprocess.Popen([sys.executable, "-B", __file__, path, a, b],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != READY:
            raise RuntimeError("watch.py does not watch")

    def stop(self):
        """(stalls, relay -> times for which the view names a reason)."""
        self.process.stdin.close()
        if self.process.wait(60) != 0:
            raise RuntimeError("watch.py failed: a server did not answer in a quiet time")
        stalls, named = [], {}
        for line in self.path.read_text(encoding="ascii").splitlines():
            entry = json.loads(line)
            if "stall" in entry:
                stalls.append((entry["from"], entry["to"]))
            elif "relay" in entry:
                named.setdefault(entry["relay"], []).append((entry["from"], entry["to"], entry["why"]))
        return stalls, named


def main():
    out, a, b = sys.argv[1:]
    witness = Witness(out)
    threads = [threading.Thread(target=witness.run, args=args, daemon=True)
               for args in ((witness.clock, {"a": a, "b": b}), (witness.view, a))]
    for thread in threads:
        thread.start()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    sys.stdin.read()
    witness.done.set()
    for thread in threads:
        thread.join(30)
    if witness.broken:
        raise witness.broken
    return 0


if __name__ == "__main__":
    sys.exit(main())
