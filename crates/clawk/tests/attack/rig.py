"""The rig of the attacks: a folder with an agent, clawk in it, and what holds for every case."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

CLAWK = os.environ["CLAWK"]
# What no attack may take: seconds of one run, MiB of memory.
SECONDS = float(os.environ.get("ATTACK_SECONDS", "30"))
MOST_MIB = 768
CASES = []


class Broke(Exception):
    """The attack got through."""


def case(area, name, quick=False):
    """Registers a case; `quick`: the CI runs it."""

    def add(run):
        CASES.append((area, name, quick, run))
        return run

    return add


def must(held, what):
    if not held:
        raise Broke(str(what)[:900])


HEAD = {
    "claw": "0.3.0",
    "kind": "Claw",
    "metadata": {"name": "tested", "version": "1.0.0"},
}

FILE_TOOLS = [
    {"name": "file-read", "description": "Reads", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}},
    {"name": "file-write", "description": "Writes", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}},
    {"name": "shell", "description": "Runs", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}},
]

BOX = {
    "level": "process",
    "capabilities": {
        "shell": {"mode": "full"},
        "filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]},
    },
    "resource_limits": {"timeout_ms": 10_000},
}

ALLOW = [{"inline": {"name": "all", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}}]


class World:
    """A folder, an environment, and clawk in it. Everything that was started ends with it."""

    def __init__(self):
        self.dir = os.path.realpath(tempfile.mkdtemp(prefix="attack-"))
        self.started = []
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": self.at("home"),
            "XDG_STATE_HOME": self.at("state"),
            "XDG_CONFIG_HOME": self.at("config"),
            "USER": "tester",
        }
        os.mkdir(self.at("home"))
        os.mkdir(self.at("agent"))
        self.spec()
        self.scenes([])

    def at(self, *names):
        return os.path.join(self.dir, *names)

    def put(self, name, text):
        path = self.at("agent", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(text if isinstance(text, bytes) else text.encode())
        return path

    def spec(self, name="claw.yaml", metadata=None, **more):
        """The usual agent with other members of `spec`; None takes one away."""
        spec = {
            "identity": {"inline": {"name": "tested", "personality": "You are tested.", "autonomy": "autonomous"}},
            "providers": [{"inline": {"name": "main", "protocol": "custom", "endpoint": "script:script.yaml", "model": "m", "auth": {"type": "none"}}}],
            "channels": [{"inline": {"name": "here", "type": "cli", "transport": "stdio", "auth": {"secret_ref": "NONE"}}}],
            "tools": [{"inline": tool} for tool in FILE_TOOLS],
            "sandbox": {"inline": BOX},
            "policies": ALLOW,
        }
        spec.update(more)
        spec = {key: value for key, value in spec.items() if value is not None}
        claw = {**HEAD, "spec": spec}
        if metadata:
            claw["metadata"] = metadata
        self.put(name, json.dumps(claw))
        return claw

    def scenes(self, scenes, name="script.yaml"):
        rest = [{"steps": [{"say": "You said: {{last_user_text}}"}]}]
        self.put(name, json.dumps({"scenes": scenes + rest}))

    def acts(self, *calls, then="done: {{last_tool_text}}"):
        """A model that makes these calls, one after the other, at any message."""
        steps = [{"call": [{"name": name, "arguments": arguments}]} for name, arguments in calls]
        self.put("script.yaml", json.dumps({"scenes": [{"steps": steps + [{"say": then}]}]}))

    def state(self, name="tested"):
        return self.at("state", "clawk", name)

    def clawk(self, *args, stdin=b"", seconds=SECONDS, cwd=None, env=None, most_mib=MOST_MIB, program=None):
        """Runs it to its end. Whatever the input: no panic, no signal, within time and memory."""
        child = subprocess.Popen(
            (program or [CLAWK]) + list(args),
            cwd=cwd or self.at("agent"),
            env={**self.env, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(child)
        watch = Memory(child.pid)
        try:
            out, err = child.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end(child)
            raise Broke(f"{args[:3]} took more than {seconds} s")
        finally:
            peak = watch.end()
        done = Done(child.returncode, out.decode("utf8", "replace"), err.decode("utf8", "replace"))
        if "ATTACK_SHOW" in os.environ:
            print("   ", " ".join(args)[:80], "->", repr(done)[:300], flush=True)
        must("panicked" not in done.err and child.returncode not in (101, 134, -6, -11), f"panic: {done}")
        must(child.returncode >= 0, f"signal {child.returncode}: {done}")
        must(peak < most_mib, f"{peak} MiB")
        return done

    def says(self, text="go", *args, **more):
        return self.clawk("run", "claw.yaml", "-m", text, *args, **more)

    def valid(self):
        """The manifest is taken: what follows is an attack, and no mistake of the case."""
        done = self.clawk("validate", "claw.yaml")
        must(done.code == 0, f"the case itself is not valid: {done}")

    def stdio(self, *args, claw="claw.yaml"):
        server = Stdio(self, ["serve", claw, "--stdio", *args] if claw else ["serve", "--stdio", *args])
        return server

    def http(self, *args, claw="claw.yaml", toml=None):
        if toml:
            self.put("clawk.toml", toml)
        return Http(self, [claw] if claw else [], list(args))

    def end(self, child):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()

    def close(self):
        for child in self.started:
            if child.poll() is None:
                self.end(child)
        shutil.rmtree(self.dir, ignore_errors=True)


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def all(self):
        return self.out + self.err

    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}; {self.out[-300:]!r}; {self.err[-400:]!r}"


class Memory(threading.Thread):
    """The most memory that a process held, as often looked at as it can be."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peak, self.over = pid, 0, False
        self.start()

    def run(self):
        while not self.over:
            try:
                with open(f"/proc/{self.pid}/status") as status:
                    for line in status:
                        if line.startswith("VmHWM"):
                            self.peak = max(self.peak, int(line.split()[1]) // 1024)
            except OSError:
                return
            time.sleep(0.02)

    def end(self):
        self.over = True
        self.join()
        return self.peak


class Stdio:
    """`clawk serve --stdio` and its client."""

    def __init__(self, world, args):
        self.world, self.next = world, 0
        self.child = subprocess.Popen(
            [CLAWK, *args], cwd=world.at("agent"), env=world.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=open(world.at("err"), "wb"), start_new_session=True)
        world.started.append(self.child)

    def raw(self, data):
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def line(self, seconds=SECONDS):
        """The next message."""
        box = []
        reader = threading.Thread(target=lambda: box.append(self.child.stdout.readline()), daemon=True)
        reader.start()
        reader.join(seconds)
        must(box, "no answer in time")
        must(box[0], f"the agent has gone: {self.err()}")
        return json.loads(box[0])

    def ask(self, method, params, id=None):
        self.next += 1
        id = self.next if id is None else id
        self.raw(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
        return self.answer(id)

    def answer(self, id):
        while True:
            message = self.line()
            if isinstance(message, dict) and message.get("id") == id and "method" not in message:
                return message

    def initialize(self, manifest=None):
        params = {"protocolVersion": "0.3.0", "clientInfo": {"name": "t", "version": "1"}, "capabilities": {},
                  "manifest": manifest or {**HEAD, "metadata": {"name": "tested", "version": "1.0.0"}}}
        answer = self.ask("claw.initialize", params)
        self.raw(b'{"jsonrpc":"2.0","method":"claw.initialized","params":{}}\n')
        return answer

    def call(self, tool, arguments, n=1, **context):
        request = f"00000000-0000-4000-8000-{n:012}"
        return self.ask("claw.tool.call", {"name": tool, "arguments": arguments,
                        "context": {"identity": "t", "request_id": request, **context}})

    def err(self):
        with open(self.world.at("err"), "rb") as err:
            return err.read().decode("utf8", "replace")[-800:]

    def alive(self):
        must(self.child.poll() is None, f"the agent has gone: {self.err()}")
        answer = self.ask("claw.status", {})
        must("result" in answer, answer)
        return answer["result"]

    def end(self):
        self.child.stdin.close()
        try:
            code = self.child.wait(20)
        except subprocess.TimeoutExpired:
            raise Broke("it does not end")
        must("panicked" not in self.err(), self.err())
        return code


class Http:
    """`clawk serve --listen` and raw requests to it."""

    def __init__(self, world, claw, args):
        self.world = world
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.child = subprocess.Popen(
            [CLAWK, "serve", *claw, "--listen", f"127.0.0.1:{self.port}", *args], cwd=world.at("agent"), env=world.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(world.at("err"), "wb"), start_new_session=True)
        world.started.append(self.child)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                must(self.child.poll() is None, self.err())
                time.sleep(0.05)
        raise Broke("it does not listen")

    def err(self):
        with open(self.world.at("err"), "rb") as err:
            return err.read().decode("utf8", "replace")[-800:]

    def raw(self, data, seconds=10, end=False):
        """Sends bytes, and gives what comes until the other side closes or is quiet."""
        with socket.create_connection(("127.0.0.1", self.port), seconds) as stream:
            stream.settimeout(seconds)
            try:
                stream.sendall(data)
                if end:
                    stream.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            got = b""
            stream.settimeout(1.5)
            try:
                while chunk := stream.recv(65536):
                    got += chunk
            except OSError:
                pass
            return got

    def ask(self, method, path, body=None, headers="", host="localhost"):
        data = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        got = self.raw(head.encode() + b"\r\n" + data)
        status = int(got.split(b" ", 2)[1]) if got.startswith(b"HTTP/1.1 ") else 0
        _, _, text = got.partition(b"\r\n\r\n")
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode("utf8", "replace")

    def alive(self):
        must(self.child.poll() is None, f"the agent has gone: {self.err()}")
        status, _ = self.ask("GET", "/healthz")
        must(status == 200, f"health: {status}")

    def session(self, agent="ann", headers=""):
        status, body = self.ask("POST", "/v1/sessions", {"agent_id": agent, "goal": "help"}, headers)
        must(status == 201, (status, body))
        return body["session_id"]


def run(wanted, quick):
    """Runs the cases whose area or name holds one of the words; how many broke."""
    broke = 0
    for number, (area, name, is_quick, attack) in enumerate(CASES, 1):
        if quick and not is_quick or wanted and not any(word == area or word in name for word in wanted):
            continue
        world, start = World(), time.time()
        try:
            attack(world)
            word = "held"
        except Broke as error:
            word, broke = f"BROKE: {error}", broke + 1
        except Exception as error:  # noqa: BLE001 - a fault of the rig counts, too
            word, broke = f"BROKE: {type(error).__name__}: {str(error)[:300]}", broke + 1
        finally:
            world.close()
        print(f"{number:3} {area:10} {name}: {word} ({time.time() - start:.1f} s)", flush=True)
    return broke
