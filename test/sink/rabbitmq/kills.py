#!/usr/bin/python3
"""Kill -9 everything between a server and a RabbitMQ server under load, and judge what arrived.

    kills.py SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS HASTY

Runs in a copy of test/crash and test/python, with test/sink/rabbitmq below it (../kills.sh).  What
kills and judges is in test/crash/targetkills.py.  Pika reads the queues.
"""
import collections
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from rabbitmq.server import Server, stop_servers  # noqa: E402
from targetkills import Kills, main, repeats  # noqa: E402


class Run(Kills):
    target = "broker"
    wrapper = "idempotency_rabbitmq"
    mapping = "OPTIONS (user 'admin', password 'admin')"
    relays = {
        "quorum": ("jk", "", "batch_events => 200"),
        "small": ("q", "", "batch_events => 2"),
        "classic": ("jkyq", "", "batch_events => 200"),
    }
    repeating = set(relays)
    rabbit = None
    read = collections.defaultdict(list)

    def make_target(self):
        self.rabbit = Server()
        for relay in self.relays:
            self.rabbit.declare(f"x.{relay}", relay, queue_type="classic" if relay == "classic" else "quorum")

    def options(self, relay):
        return f"servers '{self.rabbit.address}', exchange 'x.{{relay}}', timeout '5000'"

    def target_port(self):
        return self.rabbit.port

    def target_is_up(self):
        return self.rabbit.proc is not None and self.rabbit.proc.poll() is None

    def kill_target(self):
        self.rabbit.kill()

    def start_target(self):
        self.rabbit.start(wait=False)

    def arrivals(self, relay):
        """What was read is gone from the queue, and kept here."""
        self.read[relay] += self.rabbit.drain(relay)
        for _, properties, body in self.read[relay]:
            yield properties.message_id, properties.headers["aggregate_id"], json.loads(body)

    def judge_more(self, tally, h):
        """Each kill ends programs, and each end repeats at most what was in flight: eight batches."""
        for relay, arrivals in h.arrivals.items():
            most = self.kills * 8 * (2 if relay == "small" else 200)
            tally.line(repeats(arrivals) <= most, f"{relay}: {repeats(arrivals)} repeats, at most {most}")

    def remove_target(self):
        stop_servers()


if __name__ == "__main__":
    sys.exit(main(Run))
