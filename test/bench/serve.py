#!/usr/bin/python3
"""A Kafka broker for the benchmark, as long as standard input is open.

Prints "ADDRESS<tab>PID", then answers each line, a command of test/sink/kafka/Probe.java,
with lines and a last line "ok".  The command "position NAME" makes a position topic.
Ends with the broker gone.
"""
import sys

from kafka.broker import Broker


def main():
    # Unlike the tests' brokers this one works for long: it gets all that Java does to be fast.
    broker = Broker(launcher=["java"], file_delete_delay_ms=1000, log_retention_check_interval_ms=1000)
    try:
        print(f"{broker.address}\t{broker.proc.pid}", flush=True)
        for line in sys.stdin:
            words = line.rstrip("\n").split("\t")
            if words[0] == "position":
                broker.position_topic(words[1])
            else:
                for answer in broker.lines(*words):
                    print(answer)
            print("ok", flush=True)
    finally:
        broker.remove()


if __name__ == "__main__":
    main()
