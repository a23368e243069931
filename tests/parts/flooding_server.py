"""An MCP server on standard streams that drowns its client: endless messages, a line without an end, a huge result.

usage: flooding_server.py [ANYTHING…]   (the arguments only mark the process)
"""

import json
import sys

TOOLS = ["many-messages", "one-endless-line", "a-huge-result"]


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(request_id, name):
    if name == "many-messages":
        note = {"method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}}
        while True:
            say(note)
    if name == "one-endless-line":
        while True:
            sys.stdout.write("x" * 65536)
    text = "y" * (6 << 20)
    say({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})


def main():
    for line in sys.stdin:
        request = json.loads(line)
        method, request_id = request.get("method"), request.get("id")
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            about = {"name": "flood", "version": "1"}
            say({"id": request_id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}})
        elif method == "tools/list":
            tools = [{"name": name, "description": "Floods", "inputSchema": {"type": "object"}} for name in TOOLS]
            say({"id": request_id, "result": {"tools": tools}})
        elif method == "tools/call":
            call(request_id, request["params"]["name"])
        elif request_id is not None:
            say({"id": request_id, "result": {}})


try:
    main()
except BrokenPipeError:
    pass
