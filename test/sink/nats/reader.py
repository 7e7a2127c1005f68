#!/usr/bin/python3
"""Read a subject of a stream with nats-py, as a consumer, and print id, key and payload of each message.

    reader.py PORT STREAM SUBJECT

A program of its own, because the package of the tests has the name of the client.
"""
import asyncio
import json
import os
import sys

sys.path[0] = os.environ["SINK_CLIENTS"]
import nats  # noqa: E402
from nats.js.api import AckPolicy, ConsumerConfig  # noqa: E402

PATIENCE = float(os.environ.get("SINK_PATIENCE") or 180)
FETCH = 500


async def read(port, stream, subject):
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    consumer = await connection.jetstream().pull_subscribe(subject, stream=stream, config=config)
    left = (await consumer.consumer_info()).num_pending
    while left:
        for m in await consumer.fetch(min(left, FETCH), PATIENCE):
            print(json.dumps([m.headers["Event-Id"], m.headers["Aggregate-Id"], json.loads(m.data)]))
            left = m.metadata.num_pending
    await connection.close()


if __name__ == "__main__":
    asyncio.run(read(*sys.argv[1:]))
