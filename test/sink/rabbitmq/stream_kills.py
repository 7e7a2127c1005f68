#!/usr/bin/python3
"""The same as kills.py for streams: exactly once into streams of their own, and at least once into one that two relays share.

The reader is rstream.
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from rabbitmq.server import Server, stop_servers  # noqa: E402
from rabbitmq.streamlib import Client  # noqa: E402
from rabbitmq.streamread import read  # noqa: E402
from targetkills import Kills, main  # noqa: E402

SHARED = "shared"


class Run(Kills):
    target = "rabbitmq"
    wrapper = "idempotency_rabbitmq"
    mapping = "OPTIONS (user 'admin', password 'admin')"
    relays = {
        "exact": ("jkyq", ", stream 's.{relay}'", "batch_events => 200"),
        "small": ("q", ", stream 's.{relay}'", "batch_events => 2"),
        "least": ("jk", f", stream '{SHARED}', delivery 'at_least_once'", "batch_events => 200"),
        "other": ("y", f", stream '{SHARED}', delivery 'at_least_once'", "batch_events => 50"),
    }
    repeating = {"least", "other"}
    rabbit = None

    def make_target(self):
        self.rabbit = Server()
        with Client(self.rabbit.stream_port) as c:
            for stream in ("s.exact", "s.small", SHARED):
                c.create(stream)

    def options(self, relay):
        return f"servers '127.0.0.1:{self.rabbit.stream_port}', timeout '10000'"

    def target_port(self):
        return self.rabbit.stream_port

    def target_is_up(self):
        return self.rabbit.proc is not None and self.rabbit.proc.poll() is None

    def kill_target(self):
        self.rabbit.kill()

    def start_target(self):
        self.rabbit.start(wait=False)

    def arrivals(self, relay):
        for m in read(self.rabbit.stream_port, SHARED if relay in self.repeating else f"s.{relay}"):
            # a fence has no event
            if m.properties is None:
                continue
            fields = {k.decode(): v.decode() for k, v in m.application_properties.items()}
            if fields["aggregate_type"] in self.types[relay]:
                yield m.properties.message_id.decode(), fields["aggregate_id"], json.loads(m.body)

    def remove_target(self):
        stop_servers()


if __name__ == "__main__":
    sys.exit(main(Run))
