"""An MCP server whose tool `advise` asks the client's model, as often as its argument says."""

import json
import os
import sys


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(number, given):
    """Asks the model; its words, or why there are none."""
    text = {"type": "text", "text": "." * given.get("blanks", 0) + f"Which way, {number}? The key is {os.environ.get('KEY', 'none')}."}
    params = {"systemPrompt": "You are an " + given.get("system", "oracle"), "messages": [{"role": "user", "content": text}], "maxTokens": 50000}
    say({"id": f"ask-{number}", "method": "sampling/createMessage", "params": params})
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == f"ask-{number}":
            if "error" in message:
                return "refused: " + message["error"]["message"]
            return "{model} says {content[text]} ({stopReason})".format(**message["result"])
    return "closed"


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        offered = "sampling" in message["params"]["capabilities"]
        server = {"name": "oracle", "version": "1"}
        say({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}})
    elif method == "tools/list":
        tool = {"name": "advise", "description": "Asks the model.", "inputSchema": {"type": "object"}}
        say({"id": id, "result": {"tools": [tool]}})
    elif method == "tools/call":
        given = message["params"].get("arguments", {})
        said = [f"offered: {offered}"] + [ask(number, given) for number in range(given.get("times", 1))]
        say({"id": id, "result": {"content": [{"type": "text", "text": "; ".join(said)}]}})
