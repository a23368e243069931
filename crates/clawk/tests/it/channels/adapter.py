"""A platform of lines in files: what stands in NAME.in comes in, what goes out is added to NAME.out. It remembers what it was told
to forget, so that a kill at any moment repeats messages and loses none."""

import json
import os
import sys
import threading
import time

name = sys.argv[1]
told = set()
lock = threading.Lock()


def say(line):
    with lock:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def keep(line):
    with lock:
        with open(name + ".out", "ab", buffering=0) as kept:
            kept.write((json.dumps(line) + "\n").encode())


def listen():
    for text in sys.stdin:
        line = json.loads(text)
        kind = line["type"]
        keep(line)
        if kind in ("accepted", "refused"):
            told.add(line["id"])
        elif kind in ("send", "edit", "ask"):
            say({"type": "delivered", "out": line["out"], "id": "p-" + line["out"]})
        elif kind == "stop":
            break
    os._exit(0)


if os.path.exists(name + ".out"):
    with open(name + ".out") as kept:
        for text in kept:
            line = json.loads(text)
            if line["type"] in ("accepted", "refused"):
                told.add(line["id"])

threading.Thread(target=listen, daemon=True).start()
at = 0
while True:
    with open(name + ".in") as coming:
        coming.seek(at)
        for text in iter(coming.readline, ""):
            if not text.endswith("\n"):
                break
            at = coming.tell()
            line = json.loads(text)
            if line.get("type") == "die":
                if not os.path.exists(name + ".died"):
                    open(name + ".died", "w").close()
                    os._exit(9)
            elif line.pop("again", False) or line.get("id") not in told:
                say(line)
    time.sleep(0.005)
