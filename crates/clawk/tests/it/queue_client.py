"""A client of a CKP queue that nobody of clawk wrote: nats-py. Prints what it reads as JSON lines.

queue_client.py PORT put SUBJECT TIMES PAYLOAD [NAME=VALUE…]   publishes into a stream, TIMES times
queue_client.py PORT get SUBJECT COUNT                          reads COUNT messages of a stream, from its beginning,
                                                                heartbeats aside
"""

import asyncio
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy


async def main() -> None:
    port, verb, subject, count = sys.argv[1:5]
    client = await nats.connect(f"nats://127.0.0.1:{port}", connect_timeout=5)
    stream = client.jetstream(timeout=5)
    if verb == "put":
        headers = dict(pair.split("=", 1) for pair in sys.argv[6:]) or None
        for _ in range(int(count)):
            await stream.publish(subject, sys.argv[5].encode(), headers=headers)
    else:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        read = await stream.pull_subscribe(subject, config=config)
        left = int(count)
        while left:
            for message in await read.fetch(1, timeout=40):
                if b'"claw.heartbeat"' in message.data:
                    continue
                left -= 1
                print(json.dumps({"headers": message.headers or {}, "data": message.data.decode()}))
    await client.close()


asyncio.run(main())
