"""Somebody who can read a swarm's bus and write to it, and who is not of clawk: a file, NATS (nats-py), or Redis (by its protocol).

bus.py KIND PLACE put QUEUE ID COUNT    puts what stands on standard input there, COUNT times, each with an id of its own
bus.py KIND PLACE look QUEUE            prints the messages that lie there, oldest first: [[message, reason], …]
bus.py KIND PLACE small QUEUE           makes the queue so that it holds one message (NATS)
bus.py KIND PLACE hold QUEUE COUNT      takes COUNT messages as a host, stays at all of them but the last, until it is killed (Redis)

KIND is file, nats or redis; PLACE is a path or a port.
"""

import asyncio
import json
import socket
import sqlite3
import sys
import time

KIND, PLACE, VERB, QUEUE = sys.argv[1:5]


def file():
    bus = sqlite3.connect(PLACE, timeout=30)
    if VERB == "look":
        if not bus.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchone():
            return []
        return [[m.decode(), r] for m, r in bus.execute("SELECT message, reason FROM messages WHERE queue = ? ORDER BY id", (QUEUE,))]
    message, own, count = sys.stdin.read().encode(), sys.argv[5], int(sys.argv[6])
    for n in range(count):
        bus.execute(
            "INSERT OR IGNORE INTO messages (queue, client, message, own_id, added_ms, visible_ms) VALUES (?, 'forger', ?, ?, ?, 0)",
            (QUEUE, message, own if count == 1 else "%s-%d" % (own, n), int(time.time() * 1000)),
        )
    bus.commit()
    return []


async def jetstream():
    import nats
    from nats.js.api import DiscardPolicy, StreamConfig

    client = await nats.connect("nats://127.0.0.1:" + PLACE, connect_timeout=10)
    stream, name, found = client.jetstream(timeout=10), QUEUE.replace(".", "-"), []
    if VERB == "small":
        await stream.add_stream(StreamConfig(name=name, subjects=[QUEUE], max_msgs=1, discard=DiscardPolicy.NEW))
    elif VERB == "put":
        message, own, count = sys.stdin.read().encode(), sys.argv[5], int(sys.argv[6])
        for n in range(count):
            id = own if count == 1 else "%s-%d" % (own, n)
            await stream.publish(QUEUE, message, headers={"Nats-Msg-Id": id, "client": "forger"})
    else:
        try:
            state = (await stream.stream_info(name)).state
        except nats.js.errors.NotFoundError:
            state = None
        for seq in range(state.first_seq, state.last_seq + 1) if state and state.messages else []:
            try:
                message = await stream.get_msg(name, seq)
                found.append([message.data.decode(), (message.headers or {}).get("reason")])
            except nats.js.errors.NotFoundError:
                pass
    await client.close()
    return found


def redis():
    connection = socket.create_connection(("127.0.0.1", int(PLACE)), timeout=30)
    answers = connection.makefile("rb")

    def read():
        kind, rest = (line := answers.readline())[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else answers.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [read() for _ in range(int(rest))]
        assert kind in b"+:", line
        return rest

    def ask(*words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return read()

    if VERB == "look":
        found = []
        for _, fields in ask("XRANGE", QUEUE, "-", "+"):
            fields = dict(zip(fields[::2], fields[1::2]))
            reason = fields.get(b"reason")
            found.append([fields[b"message"].decode(), reason.decode() if reason else None])
        return found
    if VERB == "hold":
        count = int(sys.argv[5])
        taken = ask("XREADGROUP", "GROUP", "clawk-swarm", "ghost", "COUNT", count, "STREAMS", QUEUE, ">")
        ids = [id for id, _ in taken[0][1]]
        assert len(ids) == count, taken
        print("[]", flush=True)
        while True:
            ask("XCLAIM", QUEUE, "clawk-swarm", "ghost", 0, *ids[:-1], "JUSTID")
            time.sleep(1)
    message, own, count = sys.stdin.read().encode(), sys.argv[5], int(sys.argv[6])
    for n in range(count):
        ask("XADD", QUEUE, "*", "message", message, "id", "%s-%d" % (own, n), "client", "forger")
    return []


print(json.dumps({"file": file, "redis": redis, "nats": lambda: asyncio.run(jetstream())}[KIND]()))
