#!/usr/bin/python3
"""A broker for the benchmark, as long as standard input is open.

    serve.py kafka|nats|redis|rabbitmq|mqtt

Prints "ADDRESS<tab>PID", of rabbitmq and the address of its streams behind it.  Then it answers each
line with lines and a last line "ok".  For kafka a line is a command of test/sink/kafka/Probe.java, or
"position NAME", which makes a position topic.  For the others it is one of

    make TARGET         so that events can be sent to it
    count TARGET        how many messages it has
    delete TARGET

where TARGET is a stream, a queue, or for mqtt a topic.  Ends with the broker gone.
"""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


class Kafka:
    def __init__(self):
        from kafka.broker import Broker
        # Unlike the tests' brokers this one works for long: it gets all that Java does to be fast.
        self.broker = Broker(launcher=["java"], file_delete_delay_ms=1000, log_retention_check_interval_ms=1000)
        self.addresses = [self.broker.address]
        self.pid = self.broker.proc.pid

    def do(self, command, *words):
        if command != "position":
            return self.broker.lines(command, *words)
        self.broker.position_topic(*words)
        return []

    def remove(self):
        self.broker.remove()


class Target:
    """What the others have in common."""

    def do(self, command, target):
        got = getattr(self, command)(target)
        return [] if got is None else [got]

    def delete(self, target):
        pass


class Nats(Target):
    def __init__(self):
        from nats.broker import Broker
        self.broker = Broker()
        self.client = self.broker.client()
        self.addresses = [self.broker.address]
        self.pid = self.broker.proc.pid

    def make(self, stream):
        self.client.stream(stream, subjects=[f"{stream}.>", f"position.{stream}.>"], allow_atomic=True, allow_rollup_hdrs=True,
                           allow_msg_ttl=True)

    def count(self, stream):
        """Of the events, without positions."""
        got = self.client.api(f"STREAM.INFO.{stream}", {"subjects_filter": f"{stream}.>"})
        return sum((got["state"].get("subjects") or {}).values())

    def delete(self, stream):
        self.client.api(f"STREAM.DELETE.{stream}")

    def remove(self):
        self.broker.remove()


class Redis(Target):
    def __init__(self):
        from redis.server import Server, stop_servers
        # no rewrite begins by itself while something is measured
        self.server = Server(**{"auto-aof-rewrite-percentage": "0"})
        self.remove = stop_servers
        self.addresses = [self.server.address]
        self.pid = self.server.proc.pid

    def make(self, stream):
        pass

    def count(self, stream):
        return self.server.ask("XLEN", stream)

    def delete(self, stream):
        from redis.server import until
        self.server.ask("DEL", stream)
        self.server.ask("BGREWRITEAOF")
        until("the file is rewritten", lambda: b"aof_rewrite_in_progress:0" in self.server.ask("INFO", "persistence"))


class Rabbitmq(Target):
    """A stream is a target whose name begins with "stream"; the others are queues behind the exchange "bench"."""

    def __init__(self):
        from rabbitmq.server import Server, stop_servers
        self.server = Server()
        self.remove = stop_servers
        self.addresses = [self.server.address, f"127.0.0.1:{self.server.stream_port}"]
        self.pid = self.server.proc.pid

    def streams(self):
        from rabbitmq.streamlib import Client
        return Client(self.server.stream_port)

    def make(self, target):
        from rabbitmq.server import until
        if not target.startswith("stream"):
            self.server.declare("bench", target, key=target)
            return
        with self.streams() as c:
            c.create(target)
            until("the stream has a leader", lambda: c.available(target))

    def count(self, target):
        from rabbitmq.streamlib import LAST
        if target.startswith("stream"):
            with self.streams() as c:
                c.chunks_from(target, LAST)
                return c.end
        with self.server.channel() as c:
            return c.queue_declare(target, passive=True).method.message_count

    def delete(self, target):
        with self.server.channel() as c:
            c.queue_delete(target)


class Mqtt(Target):
    """Nobody subscribes to the topics: the broker counts what it has got, once a second."""

    TOTAL = "$SYS/broker/publish/messages/received"

    def __init__(self):
        from mqtt.broker import Broker
        self.broker = Broker(conf="sys_interval 1")
        self.addresses = [self.broker.address]
        self.pid = self.broker.proc.pid
        self.before = {}

    def total(self):
        from mqtt.packets import read_packet
        client = self.broker.client(client_id="bench-counter").subscribe(self.TOTAL, qos=0)
        while not client.got:
            client.take(read_packet(client.file))
        client.close()
        return int(client.got[0].payload)

    def make(self, topic):
        self.before[topic] = self.total()

    def count(self, topic):
        return self.total() - self.before[topic]

    def remove(self):
        self.broker.remove()


def main():
    kind = sys.argv[1]
    # where test/sink/copy.sh has put the clients that read
    os.environ["SINK_CLIENTS"] = str(HERE / f"{kind}-clients")
    broker = {"kafka": Kafka, "nats": Nats, "redis": Redis, "rabbitmq": Rabbitmq, "mqtt": Mqtt}[kind]()
    try:
        print(broker.addresses[0], broker.pid, *broker.addresses[1:], sep="\t", flush=True)
        for line in sys.stdin:
            for answer in broker.do(*line.rstrip("\n").split("\t")):
                print(answer)
            print("ok", flush=True)
    finally:
        broker.remove()


if __name__ == "__main__":
    main()
