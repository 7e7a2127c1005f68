#!/usr/bin/python3
"""Kill -9 everything between a server and a nats-server under load, and judge what arrived.

    kills.py SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS HASTY

Runs in a copy of test/crash and test/python, with test/sink/nats below it (../kills.sh).  What
kills and judges is in test/crash/targetkills.py.  Two relays share a stream.  nats-py reads (reader.py).
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from nats.broker import Broker  # noqa: E402
from targetkills import Kills, main, read_by  # noqa: E402

READER = pathlib.Path(__file__).parent / "reader.py"


class Run(Kills):
    target = "nats-server"
    wrapper = "idempotency_nats"
    relays = {
        "exact": ("jkyq", ", stream 'SHARED'", "batch_events => 200"),
        "small": ("q", ", stream 'SHARED'", "batch_events => 2"),
        "least": ("jk", ", stream 'LEAST', delivery 'at_least_once'", "batch_events => 200"),
    }
    streams = {"exact": "SHARED", "small": "SHARED", "least": "LEAST"}
    # a repeat within duplicate_window is dropped, and the test makes none later
    repeating = {"least"}
    broker = None

    def make_target(self):
        self.broker = Broker()
        client = self.broker.client()
        client.stream("SHARED", subjects=["exact.>", "small.>", "idempotency.position.>"], allow_atomic=True, allow_rollup_hdrs=True,
                      allow_msg_ttl=True)
        client.stream("LEAST", subjects=["least.>"])
        client.close()

    def options(self, relay):
        return f"servers '{self.broker.address}', subject '{relay}.{{aggregate_type}}', timeout '10000'"

    def target_port(self):
        return self.broker.port

    def target_is_up(self):
        return self.broker.proc.poll() is None

    def kill_target(self):
        self.broker.kill()

    def start_target(self):
        self.broker.start(wait=False)

    def arrivals(self, relay):
        return read_by(READER, self.broker.port, self.streams[relay], f"{relay}.>")

    def remove_target(self):
        if self.broker:
            self.broker.remove()


if __name__ == "__main__":
    sys.exit(main(Run))
