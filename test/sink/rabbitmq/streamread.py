"""Reads a stream from its beginning with rstream, a client that is not ours."""
import asyncio
import sys

from rabbitmq.server import clients
from rabbitmq.streamlib import LAST, Client
from sinklib import PATIENCE


def read(port, stream):
    """The messages that are there now, in order."""
    with Client(port) as c:
        last = c.chunks_from(stream, LAST)
        end = c.end
    if clients() not in sys.path:
        sys.path.append(clients())
    return asyncio.run(_read(port, stream, end)) if last else []


async def _read(port, stream, end):
    from rstream import AMQPMessage, Consumer, ConsumerOffsetSpecification, OffsetType, amqp_decoder

    assert AMQPMessage
    out = []
    done = asyncio.Event()

    async def take(message, context):
        out.append(message)
        if context.offset >= end - 1:
            done.set()
    consumer = Consumer("127.0.0.1", port, username="admin", password="admin", heartbeat=0)
    await consumer.start()
    await consumer.subscribe(stream, take, decoder=amqp_decoder, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None))
    # however long it takes, as long as something comes
    while not done.is_set():
        before = len(out)
        try:
            await asyncio.wait_for(done.wait(), PATIENCE)
        except asyncio.TimeoutError:
            if len(out) == before:
                raise
    await consumer.close()
    return out
