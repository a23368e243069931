"""Files as an MCP server: one file, or everything below a folder. Python 3, standard library only."""

import json
import os
import sys

PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [{"name": name, "description": name, "inputSchema": PATH} for name in ("served-read", "served-tree")]


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError as error:
        return f"{path}: {error.strerror}\n"


def run(name, path):
    if name == "served-read":
        return read(path)
    found = []
    for folder, _, files in os.walk(path):
        found += [read(os.path.join(folder, file)) for file in files]
    return "".join(found)


for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params", {})
    if "id" not in request:
        continue
    if method == "initialize":
        result = {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "files", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "tools/call":
        text = run(params["name"], params.get("arguments", {}).get("path", "."))
        result = {"content": [{"type": "text", "text": text}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
