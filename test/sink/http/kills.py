#!/usr/bin/python3
"""Kill -9 everything between a server and a receiver of webhooks under load, and judge what arrived.

    kills.py SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS HASTY

Runs in a copy of test/crash and test/python, with this folder below it (../kills.sh).  What kills
and judges is in test/crash/targetkills.py.  The receiver syncs its journal before it answers; a
kill of the receiver between the two makes a repeat.
"""
import collections
import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)
sys.path.append(str(HERE))

from receiver import read_journal  # noqa: E402
from server import free_port  # noqa: E402
from targetkills import Kills, main, repeats, say  # noqa: E402

# The batches that a program may have got and not yet answered (doc/sink-protocol.md): those come again after a kill.
WINDOW = 8
# ms that an answer takes at most
SLOWEST = 4


class Run(Kills):
    target = "receiver"
    wrapper = "idempotency_http"
    batches = {"wide": 100, "many": 50, "small": 2}
    relays = {
        "wide": ("jkyq", ", concurrency '16'", "batch_events => 100"),
        "many": ("jk", ", concurrency '128'", "batch_events => 50"),
        "small": ("q", ", concurrency '2'", "batch_events => 2"),
    }
    repeating = set(relays)
    proc = None

    def make_target(self):
        self.port = free_port()
        self.journal = self.work / "journal"
        self.start_target()

    def options(self, relay):
        return f"url 'http://127.0.0.1:{self.port}/{relay}/{{aggregate_type}}/{{aggregate_id}}', allowed_addresses '127.0.0.1'"

    def target_port(self):
        return self.port

    def target_is_up(self):
        return self.proc.poll() is None

    def kill_target(self):
        self.proc.kill()
        self.proc.wait()

    def start_target(self):
        with open(self.work / "receiver.log", "ab") as log:
            self.proc = subprocess.Popen([sys.executable, "-B", HERE / "receiver.py", str(self.port), self.journal, str(SLOWEST)],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def arrivals(self, relay):
        for e in self.entries():
            if e["path"].split("/")[1] == relay:
                yield e["id"], e["key"], json.loads(e["body"])

    def entries(self):
        return list(read_journal(self.journal))

    def remove_target(self):
        if self.proc and self.target_is_up():
            self.kill_target()

    def judge_more(self, tally, h):
        """Repeats are bounded by what was under way at the kills."""
        kills = sum(self.counts.values())
        for relay, arrivals in h.arrivals.items():
            again, most = repeats(arrivals), kills * WINDOW * self.batches[relay]
            tally.line(again <= most, f"relay {relay}: {again} repeats, at most {most} = {kills} kills, each with {WINDOW} batches of"
                       f" {self.batches[relay]} events under way")
        spread = collections.Counter(collections.Counter(a[0] for arrivals in h.arrivals.values() for a in arrivals).values())
        say("   arrivals of an event at all relays: " + ", ".join(f"{n} times: {c}" for n, c in sorted(spread.items())[:8]))


if __name__ == "__main__":
    sys.exit(main(Run))
