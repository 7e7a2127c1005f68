#!/usr/bin/python3
"""Kill -9 everything between a server and a Redis server under load, and judge what arrived.

    kills.py SEED KILLS EVENTS WORK BINDIR EXTENSION_CONF SINKS HASTY

Runs in a copy of test/crash and test/python, with test/sink/redis below it (../kills.sh).  What
kills and judges is in test/crash/targetkills.py.  redis-py reads (reader.py).
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from redis.server import Server, stop_servers  # noqa: E402
from targetkills import Kills, main, read_by  # noqa: E402

READER = pathlib.Path(__file__).parent / "reader.py"


class Run(Kills):
    target = "redis"
    wrapper = "idempotency_redis"
    relays = {
        "exact": ("jkyq", "", "batch_events => 200"),
        "small": ("q", "", "batch_events => 2"),
        "least": ("jk", ", delivery 'at_least_once'", "batch_events => 200"),
    }
    repeating = {"least"}
    redis = None

    def make_target(self):
        self.redis = Server()

    def options(self, relay):
        return f"servers '{self.redis.address}', stream '{relay}.{{relay}}.{{aggregate_type}}', timeout '10000'"

    def target_port(self):
        return self.redis.port

    def target_is_up(self):
        return self.redis.proc is not None and self.redis.proc.poll() is None

    def kill_target(self):
        self.redis.kill()

    def start_target(self):
        self.redis.start(wait=False)

    def arrivals(self, relay):
        return read_by(READER, self.redis.port, *(f"{relay}.{{{relay}}}.{letter}" for letter in self.types[relay]))

    def remove_target(self):
        stop_servers()


if __name__ == "__main__":
    sys.exit(main(Run))
