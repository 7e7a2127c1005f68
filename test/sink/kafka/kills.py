#!/usr/bin/python3
"""Kill -9 everything between a server and a Kafka broker under load, and judge what arrived.

    kills.py SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS HASTY

Runs in a copy of test/crash and test/python, with test/sink/kafka below it (../kills.sh).  What
kills and judges is in test/crash/targetkills.py.  A read_committed reader reads the topics.
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from kafka.broker import Broker  # noqa: E402
from targetkills import Kills, main  # noqa: E402


class Run(Kills):
    target = "broker"
    wrapper = "idempotency_kafka"
    relays = {
        "exact": ("jkyq", "", "batch_events => 200"),
        "small": ("q", "", "batch_events => 2"),
        "least": ("jk", ", delivery 'at_least_once'", "batch_events => 200"),
    }
    repeating = {"least"}
    broker = None

    def make_target(self):
        self.broker = Broker()
        for relay, letters in self.types.items():
            for letter in letters:
                self.broker.topic(f"{relay}.{letter}", 3)
            self.broker.position_topic(f"idempotency.position.{relay}")

    def options(self, relay):
        return f"brokers '{self.broker.address}', topic '{relay}.{{aggregate_type}}', timeout '10000', transaction_timeout '10000'"

    def target_port(self):
        return self.broker.port

    def target_is_up(self):
        return self.broker.proc.poll() is None

    def kill_target(self):
        self.broker.kill()

    def start_target(self):
        self.broker.start(wait=False)

    def arrivals(self, relay):
        for r in self.broker.records(*(f"{relay}.{letter}" for letter in self.types[relay])):
            yield dict(r["headers"])["id"].decode(), r["key"].decode(), json.loads(r["value"])

    def remove_target(self):
        if self.broker:
            self.broker.remove()


if __name__ == "__main__":
    sys.exit(main(Run))
