"""clawk as an MCP client, for the official conformance suite: python conformance_client.py URL.

Environment: CLAWK (the program), MCP_CONFORMANCE_SCENARIO, MCP_CONFORMANCE_CONTEXT (what a client would be configured with).
Makes an agent whose one server is URL, logs in where the server wants a token (the browser is this script), calls a tool.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from urllib.parse import urlparse

url, clawk, scenario = sys.argv[-1], os.environ["CLAWK"], os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
host = urlparse(url).netloc
folder = tempfile.mkdtemp()
tools = {"add-numbers": {"a": 5, "b": 3}, "test-client-elicitation-defaults": {}, "test-reconnection": {}, "test-tool": {}}
calls = [{"when": {"offered": f"srv-{name}"}, "call": [{"name": f"srv-{name}", "arguments": args}]} for name, args in tools.items()]
script = {"scenes": [{"steps": [{"any": [*calls, {"say": "no tool"}]}, {"say": "{{last_tool_text}}"}]}]}
allow = {"id": "all", "action": "allow", "scope": "tool", "match": {"name": "srv*"}}
places = [host, *{urlparse(one).netloc for one in context.values() if isinstance(one, str) and one.startswith("http")}]
box = {"name": "out", "level": "process", "capabilities": {"network": {"mode": "allowlist", "allowed_hosts": [host]}}}
manifest = {
    "claw": "0.3.0", "kind": "Claw", "metadata": {"name": "conformance", "version": "1.0.0"},
    "spec": {
        "identity": {"inline": {"name": "conformance", "personality": "You call tools.", "autonomy": "autonomous"}},
        "providers": [{"inline": {"name": "script", "protocol": "custom", "endpoint": "script:script.yaml", "model": "scripted", "auth": {"type": "none"}}}],
        "tools": [{"inline": {"name": "srv", "mcp_source": {"uri": url}}}],
        "sandbox": {"inline": box},
        "policies": [{"inline": {"name": "rules", "rules": [allow]}}],
    },
}
for name, value in {"claw.yaml": manifest, "script.yaml": script}.items():
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)
with open(os.path.join(folder, "clawk.toml"), "w") as file:
    # The suite's servers are on this machine, each at a port of its own.
    file.write("[egress]\nallow_private = ['localhost', '127.0.0.1']\n".replace("'localhost'", f"'{host}', 'localhost'"))
env = {"PATH": os.environ["PATH"], "HOME": folder, "XDG_STATE_HOME": folder, "SUITE_SECRET": context.get("client_secret", "")}


def start(*args):
    return subprocess.Popen([clawk, *args], cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def login():
    args = ["mcp", "login", "claw.yaml"]
    if context.get("client_id"):
        args += ["--client-id", context["client_id"]]
        args += ["--client-secret-ref", "SUITE_SECRET"] if context.get("client_secret") else []
    process = start(*args)
    for line in process.stderr:
        sys.stderr.write(line)
        if "code_challenge=" in line:
            urllib.request.urlopen(line.strip(), timeout=10).read()
    return process.wait(20)


if scenario.startswith("auth/"):
    if login() != 0:
        sys.exit(1)
process = start("run", "claw.yaml", "-m", "go")
out, err = process.communicate(timeout=25)
sys.stderr.write(out + err)
sys.exit(process.returncode)
