"""A person on a Matrix homeserver, by its client API.

    python3 matrix_person.py URL login USER PASSWORD       prints an access token
    python3 matrix_person.py URL room TOKEN AGENT SECONDS  a direct room with the agent; prints it once the agent has joined
    python3 matrix_person.py URL say TOKEN ROOM ID TEXT    ID makes the message the same message when it is sent again
    python3 matrix_person.py URL read TOKEN ROOM AGENT     the agent's messages so far, a JSON list of texts
"""

import json
import sys
import time
import urllib.parse
import urllib.request

base = sys.argv[1].rstrip("/")


def call(method, path, token=None, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}/_matrix/client/v3/{path}", data=data, method=method)
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def quoted(text):
    return urllib.parse.quote(text, safe="")


def login(user, password):
    identifier = {"type": "m.id.user", "user": user}
    body = {"type": "m.login.password", "identifier": identifier, "password": password}
    print(call("POST", "login", body=body)["access_token"])


def room(token, agent, seconds):
    made = call("POST", "createRoom", token, {"invite": [agent], "is_direct": True, "preset": "trusted_private_chat"})
    place = made["room_id"]
    until = time.monotonic() + float(seconds)
    while agent not in call("GET", f"rooms/{quoted(place)}/joined_members", token)["joined"]:
        if time.monotonic() > until:
            sys.exit("the agent does not join")
        time.sleep(0.1)
    print(place)


def say(token, place, number, text):
    path = f"rooms/{quoted(place)}/send/m.room.message/{quoted(number)}"
    print(call("PUT", path, token, {"msgtype": "m.text", "body": text})["event_id"])


def read(token, place, agent):
    told = call("GET", f"rooms/{quoted(place)}/messages?dir=b&limit=100", token)["chunk"]
    texts = [
        event["content"]["body"]
        for event in reversed(told)
        if event["type"] == "m.room.message" and event["sender"] == agent and "m.new_content" not in event["content"]
    ]
    print(json.dumps(texts))


{"login": login, "room": room, "say": say, "read": read}[sys.argv[2]](*sys.argv[3:])
