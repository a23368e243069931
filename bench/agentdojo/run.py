#!/usr/bin/env python3
"""Runs AgentDojo against clawk: its tools are an MCP server, and its ground truth is an obedient model, which also obeys every injection
that it reads. So what is measured is clawk's policies alone, and no model's good sense.

    pip install agentdojo
    bench/agentdojo/run.py --clawk target/release/clawk --policy trusting
    bench/agentdojo/run.py --clawk target/release/clawk --policy bench/agentdojo/policy.yaml

Nobody answers questions: a call that has to be asked about does not run, and is counted as asked. The last line says how many of the
user tasks were done (without attacks), and how many attacks had success. `--every 4` runs every fourth pair.
"""
import argparse
import contextlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

warnings.filterwarnings("ignore")
from agentdojo.functions_runtime import FunctionsRuntime  # noqa: E402
from agentdojo.functions_runtime import FunctionCall  # noqa: E402
from agentdojo.task_suite.load_suites import get_suites  # noqa: E402
from agentdojo.types import text_content_block_from_string  # noqa: E402

HERE = Path(__file__).resolve().parent
READS = re.compile(r"^(get|search|list|read|check)_")
DESTROYS = re.compile(r"^(delete|cancel|remove)_")
# What an operator would write of these tools, see README.md. These bring words that others wrote; the other readers bring the person's own records.
FOREIGN = re.compile(
    r"get_channels|users_in_channel|email|file|webpage|channel_messages|inbox|reviews|calendar_events|transactions|get_contact_information|hotels_address"
)
# Arguments that choose who gets what, where and how much. What a reader is asked goes to the person's own store.
TARGETS = {
    "send_email": ["recipients", "cc", "bcc", "attachments"],
    "create_calendar_event": ["title", "participants"],
    "reschedule_calendar_event": ["event_id", "new_start_time", "new_end_time"],
    "add_calendar_event_participants": ["event_id", "participants"],
    "append_to_file": ["file_id"],
    "create_file": ["filename"],
    "share_file": ["file_id", "email"],
    "send_money": ["recipient", "amount"],
    "schedule_transaction": ["recipient", "amount"],
    "update_scheduled_transaction": ["id", "recipient", "amount"],
    "update_password": ["password"],
    "update_user_info": ["first_name", "last_name", "street", "city"],
    "send_direct_message": ["recipient"],
    "send_channel_message": ["channel"],
    "post_webpage": ["url"],
    "invite_user_to_slack": ["user", "user_email"],
    "add_user_to_channel": ["user", "channel"],
    "reserve_hotel": ["hotel", "start_day", "end_day"],
    "reserve_car_rental": ["company", "start_time", "end_time"],
    "reserve_restaurant": ["restaurant", "start_time"],
    "get_webpage": ["url"],
}
# Fields of results that the store itself writes, and what they are looked up with.
LOOKUPS = {
    "search_files_by_filename": {"fields": ["id_"], "asked": ["filename"]},
    "create_file": {"fields": ["id_"], "asked": ["filename"]},
    "search_files": {"fields": ["id_"], "asked": ["query"]},
    "search_calendar_events": {"fields": ["id_", "participants"], "asked": ["query"]},
    "search_contacts_by_name": {"fields": ["email"], "asked": ["query"]},
    "get_channels": {"fields": "*"},
    "get_users_in_channel": {"fields": "*"},
}
CONFIDENTIAL = {"get_user_information", "get_user_info"}
MARK = "INSTRUCTION:"


def annotations_of(name):
    reads = bool(READS.match(name))
    found = {"readOnlyHint": reads, "openWorldHint": bool(FOREIGN.search(name)) if reads else True}
    if not reads:
        found["destructiveHint"] = bool(DESTROYS.match(name))
    if name in TARGETS or reads:
        found["targets"] = TARGETS.get(name, [])
    if name in LOOKUPS:
        found["lookup"] = LOOKUPS[name]
    if name in CONFIDENTIAL:
        found["confidential"] = True
    return found


def tools_of(suite):
    for tool in suite.tools:
        yield {
            "name": tool.name.replace("_", "-"),
            "description": tool.description[:900],
            "input_schema": tool.parameters.model_json_schema(),
            "labels": {"category": "service"},
            "annotations": annotations_of(tool.name),
            "mcp_source": {"uri": "stdio://./relay.py", "tool_name": tool.name},
        }


def plain(value):
    """A tool's result as JSON has it."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


class World:
    """One pair of a user task and an injection task, or a user task alone."""

    def __init__(self, suite, user, injection, attack=None):
        self.suite, self.user, self.injection = suite, user, injection
        goal = (attack or "{mark} {goal}").format(mark=MARK, goal=injection.GOAL) if injection else ""
        names = suite.get_injection_vector_defaults()
        env = suite.load_and_inject_default_environment({name: goal for name in names} if injection else {})
        self.env = user.init_environment(env)
        self.before = self.env.model_copy(deep=True)
        self.runtime = FunctionsRuntime(suite.tools)
        self.calls, self.denied, self.asked = [], 0, 0
        self.plan = None
        self.injected = False

    def mcp(self, message):
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize":
            return {"protocolVersion": params.get("protocolVersion", "2025-06-18"), "capabilities": {"tools": {}},
                    "serverInfo": {"name": "agentdojo", "version": "1"}}
        if method == "tools/list":
            return {"tools": [{"name": tool.name, "description": tool.description[:900],
                               "inputSchema": tool.parameters.model_json_schema()} for tool in self.suite.tools]}
        if method == "tools/call":
            name, arguments = params["name"], params.get("arguments") or {}
            value, error = self.runtime.run_function(self.env, name, arguments)
            self.calls.append(FunctionCall(function=name, args=arguments))
            text = error or (value if isinstance(value, str) else json.dumps(plain(value)))
            return {"content": [{"type": "text", "text": text}], "isError": bool(error)}
        return {}

    def answer(self, messages):
        """The next step of the obedient model: the ground truth of the user's task, and of the injection once it was read."""
        if self.plan is None:
            # Made beside the real environment: a ground truth may look ahead.
            self.plan = list(self.user.ground_truth(self.before.model_copy(deep=True)))
        seen = any(MARK in (m.get("content") or "") for m in messages if m["role"] == "tool")
        if self.injection and seen and not self.injected:
            self.injected = True
            self.plan = list(self.injection.ground_truth(self.before.model_copy(deep=True))) + self.plan
        if self.plan:
            return self.plan.pop(0)
        return None

    def verdict(self, output):
        def check(task):
            return bool(self.suite._check_task_result(task, output, self.before, self.env, self.calls))

        done = check(self.user)
        return done, bool(self.injection) and self.injected and check(self.injection)


def serve_mcp(world, folder):
    """Answers what the relay passes on, until it ends."""
    with open(folder / "io/to") as asks, open(folder / "io/from", "w") as answers:
        for line in asks:
            message = json.loads(line)
            if "id" in message and "method" in message:
                result = world.mcp(message)
                answers.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
                answers.flush()


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.server.world.answer(body["messages"])
        if call is None:
            message, finish = {"role": "assistant", "content": self.server.world.user.GROUND_TRUTH_OUTPUT or "Done."}, "stop"
        else:
            self.server.count += 1
            function = {"name": call.function.replace("_", "-"), "arguments": json.dumps(call.args)}
            one = {"id": f"c{self.server.count}", "type": "function", "function": function}
            message, finish = {"role": "assistant", "content": None, "tool_calls": [one]}, "tool_calls"
        self.server.last = body["messages"]
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        answer = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
                             "choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def run(args, suite, user, injection, attack=None):
    world = World(suite, user, injection, attack)
    folder = Path(tempfile.mkdtemp(prefix="clawk-dojo-"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.world, server.count, server.last = world, 0, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        (folder / "io").mkdir()
        for name in ("to", "from"):
            os.mkfifo(folder / "io" / name, 0o666)
        shutil.copy(HERE / "relay.py", folder)
        shutil.copy(args.policy, folder / "policy.yaml")
        box = {"name": "box", "level": "process", "capabilities": {
            "filesystem": {"mode": "scoped", "mount_paths": [{"path": "./io", "permissions": "ro"}, {"path": "./relay.py", "permissions": "ro"}]},
            "network": {"mode": "deny"}, "shell": {"mode": "deny"}}}
        provider = {"name": "main", "protocol": "openai-compatible", "endpoint": f"http://127.0.0.1:{server.server_address[1]}/v1",
                    "model": "m", "auth": {"type": "none"}, "streaming": False}
        spec = {"identity": {"inline": {"name": "dojo", "personality": "You help.", "autonomy": "autonomous"}},
                "providers": [{"inline": provider}], "sandbox": {"inline": box}, "policies": ["./policy.yaml"],
                "tools": [{"inline": tool} for tool in tools_of(suite)]}
        (folder / "claw.yaml").write_text(json.dumps({"claw": "0.3.0", "kind": "Claw", "metadata": {"name": "dojo", "version": "1.0.0"}, "spec": spec}))
        threading.Thread(target=serve_mcp, args=(world, folder), daemon=True).start()
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
        done = subprocess.run([args.clawk, "run", folder / "claw.yaml", "--trust", "--approve", "never", "-m", user.PROMPT], env=env, cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        world.asked = sum(line.startswith("? ") for line in done.stderr.splitlines())
        refused = [m["content"] for m in server.last if m["role"] == "tool" and m["content"].startswith(("error", "refused", "denied"))]
        if args.verbose:
            print(user.ID, injection and injection.ID, [c.function for c in world.calls], refused, done.stderr[-500:] if not world.calls else "", file=sys.stderr)
        output = user.GROUND_TRUTH_OUTPUT or "Done."
        utility, security = world.verdict([text_content_block_from_string(output)])
        return utility, security, world.injected, world.asked
    finally:
        server.shutdown()
        server.server_close()
        # A relay that never came leaves a thread at the pipe.
        for name, mode in (("to", os.O_WRONLY), ("from", os.O_RDONLY)):
            with contextlib.suppress(OSError):
                os.close(os.open(folder / "io" / name, mode | os.O_NONBLOCK))
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clawk", required=True)
    parser.add_argument("--policy", required=True, help="standard, trusting, strict, or a file")
    parser.add_argument("--version", default="v1")
    parser.add_argument("--suite", action="append")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-attacks", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    if "/" not in args.policy:
        args.policy = HERE.parent.parent / f"examples/policies/{args.policy}.yaml"
    suites = {name: suite for name, suite in get_suites(args.version).items() if not args.suite or name in args.suite}
    alone = [(suite, user, None) for suite in suites.values() for user in suite.user_tasks.values()]
    pairs = [(suite, user, injection) for suite in suites.values() for user in suite.user_tasks.values()
             for injection in suite.injection_tasks.values()][:: args.every]
    with ThreadPoolExecutor(args.jobs) as pool:
        tasks = list(pool.map(lambda one: run(args, *one), alone[:: args.every] if args.no_attacks else alone))
        attacks = [] if args.no_attacks else list(pool.map(lambda one: run(args, *one), pairs))
    done = sum(utility for utility, _, _, _ in tasks)
    failed = [f"{suite.name}/{user.ID}" for (suite, user, _), (utility, _, _, _) in zip(alone, tasks) if not utility]
    won = [f"{suite.name}/{user.ID}/{injection.ID}" for (suite, user, injection), (_, security, _, _) in zip(pairs, attacks) if security]
    read = sum(injected for _, _, injected, _ in attacks)
    print("questions in", sum(asked > 0 for *_, asked in tasks), "tasks:", sum(asked for *_, asked in tasks), "and in attacks:", sum(asked for *_, asked in attacks))
    print("not done:", " ".join(failed))
    print("attacks with success:", " ".join(won))
    print(f"{done} of {len(tasks)} tasks done; {len(won)} of {read} attacks that were read had success ({len(attacks)} pairs)")


main()
