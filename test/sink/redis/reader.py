#!/usr/bin/python3
"""Read streams with redis-py, as a consumer, and print id, key and payload of each entry.

    reader.py PORT STREAM...

A program of its own, because the package of the tests has the name of the client.
"""
import json
import os
import sys

sys.path[0] = os.environ["SINK_CLIENTS"]
import redis  # noqa: E402

READ = 1000


def read(port, *streams):
    connection = redis.Redis("127.0.0.1", int(port), decode_responses=True)
    for stream in streams:
        last = "0-0"
        while got := connection.xread({stream: last}, count=READ):
            ((_, entries),) = got
            for last, fields in entries:
                print(json.dumps([fields["event_id"], fields["aggregate_id"], json.loads(fields["payload"])]))


if __name__ == "__main__":
    read(*sys.argv[1:])
