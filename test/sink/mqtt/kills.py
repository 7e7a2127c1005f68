#!/usr/bin/python3
"""Kill everything between a server and mosquitto under load, end mosquitto, and judge what arrived.

    kills.py SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS HASTY

Runs in a copy of test/crash and test/python, with test/sink/mqtt below it (../kills.sh).  What
kills and judges is in test/crash/targetkills.py.  The judge is a subscriber whose session stays.
Mosquitto is ended by SIGTERM, and not by kill -9: it stores what it acknowledged when it ends
and every autosave_interval, and no client can make it do so sooner.
"""
import json
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
sys.path.append(os.environ["SINK_CLIENTS"])

from mqtt.broker import Broker  # noqa: E402
from mqtt.reader import Reader  # noqa: E402
from targetkills import Kills, main, repeats  # noqa: E402

# The batches that a program may have got and not yet answered (doc/sink-protocol.md): those come again after a kill.
WINDOW = 8


class Run(Kills):
    target = "mosquitto"
    ended_by = {"mosquitto": "SIGTERM"}
    wrapper = "idempotency_mqtt"
    batches = {"once": 200, "twice": 100, "small": 2}
    relays = {
        "once": ("jkyq", ", qos '1'", "batch_events => 200"),
        "twice": ("jk", ", qos '2', in_flight '1000'", "batch_events => 100"),
        "small": ("q", ", qos '1', in_flight '3'", "batch_events => 2"),
    }
    repeating = set(relays)
    broker = reader = None

    def make_target(self):
        # with a bounded flight the reader got nothing more behind some restarts (2.0.11)
        self.broker = Broker(conf="max_queued_messages 1000000\nmax_inflight_messages 0")
        self.reader = Reader(self.broker.port, "+/event/#")

    def options(self, relay):
        return f"servers '{self.broker.address}', topic '{relay}/event/{{aggregate_type}}', client_id 'relay-{relay}', timeout '60000'"

    def target_port(self):
        return self.broker.port

    def target_is_up(self):
        return self.broker.proc.poll() is None

    def kill_target(self):
        self.reader.catch_up()
        self.broker.stop()

    def start_target(self):
        self.broker.start(wait=False)

    def arrivals(self, relay):
        self.reader.catch_up()
        for topic, fields, payload in self.reader.messages():
            if topic.startswith(f"{relay}/"):
                yield fields["Event-Id"], fields["Aggregate-Id"], json.loads(payload)

    def remove_target(self):
        if self.reader:
            self.reader.close()
        if self.broker:
            self.broker.remove()

    def judge_more(self, tally, h):
        """Repeats are bounded by what was under way at the kills."""
        kills = sum(self.counts.values())
        for relay, arrivals in h.arrivals.items():
            again, most = repeats(arrivals), kills * WINDOW * self.batches[relay]
            tally.line(again <= most, f"relay {relay}: {again} repeats, at most {most} = {kills} kills, each with {WINDOW} batches of"
                       f" {self.batches[relay]} events under way")


if __name__ == "__main__":
    sys.exit(main(Run))
