#!/usr/bin/env python3
"""The tools of the conformance agent as an MCP server on standard streams. Python 3, standard library only."""

import json
import sys
import threading
import time

ANY_OBJECT = {"type": "object"}
URL = {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}, "required": ["url"]}

TOOLS = [
    {
        "name": "network-tool",
        "description": "Asks a service on the network",
        "inputSchema": URL,
        "annotations": {"readOnlyHint": True, "openWorldHint": True},
    },
    {
        "name": "slow-tool",
        "description": "Takes five seconds",
        "inputSchema": ANY_OBJECT,
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "destructive-tool",
        "description": "Would remove everything",
        "inputSchema": ANY_OBJECT,
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "approval-tool",
        "description": "Does its work",
        "inputSchema": ANY_OBJECT,
        "annotations": {"readOnlyHint": False},
    },
]

output = threading.Lock()


def send(message):
    with output:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def answer(request, result):
    send({"id": request["id"], "result": result})


def refuse(request, code, message):
    send({"id": request["id"], "error": {"code": code, "message": message}})


def call(request):
    name = request.get("params", {}).get("name")
    if name not in {tool["name"] for tool in TOOLS}:
        return refuse(request, -32602, f"unknown tool {name!r}")
    if name == "slow-tool":
        time.sleep(5)
    answer(request, {"content": [{"type": "text", "text": f"{name} ran"}], "isError": False})


def take(request):
    method = request.get("method")
    if "id" not in request or method is None:
        return  # notifications and answers ask for nothing
    if method == "initialize":
        version = request.get("params", {}).get("protocolVersion", "2025-06-18")
        info = {"name": "conformance-tools", "version": "1.0.0"}
        answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "ping":
        answer(request, {})
    elif method == "tools/list":
        answer(request, {"tools": TOOLS})
    elif method == "tools/call":
        # A slow tool keeps nobody else waiting.
        threading.Thread(target=call, args=(request,), daemon=True).start()
    else:
        refuse(request, -32601, f"unknown method {method!r}")


def main():
    for line in sys.stdin:
        try:
            request = json.loads(line)
        except ValueError:
            continue
        if isinstance(request, dict):
            take(request)


if __name__ == "__main__":
    main()
