"""Doors: standard input, HTTP, the control socket, `clawk send`; swarms that come over them."""

import json
import os
import socket
import threading
import time

from rig import HEAD, Broke, case, must


def agent(w):
    w.acts(("file-read", {"path": "x"}))
    server = w.stdio()
    must("result" in server.initialize(), "no initialize")
    return server


@case("stdio", "bytes that are no text, no JSON, no object", True)
def _(w):
    server = agent(w)
    for line in [b"\xff\xfe\n", b"{\n", b"[]\n", b"null\n", b'"x"\n', b"[[[[]]]]\n", b'{"jsonrpc":"2.0"}\n', b'{"jsonrpc":"1.0","id":1,"method":"claw.status"}\n',
                 b"\0\0\0\n", b"\r\n", b"\n", b'{"jsonrpc":"2.0","id":{},"method":"claw.status"}\n', b'{"id":1e999,"jsonrpc":"2.0","method":"x"}\n']:
        server.raw(line)
    server.alive()
    must(server.end() == 0, "exit")


@case("stdio", "a hundred thousand levels of JSON, and a message of 40 MB", True)
def _(w):
    server = agent(w)
    server.raw(b'{"jsonrpc":"2.0","id":1,"method":"claw.status","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    server.raw(b'{"jsonrpc":"2.0","id":2,"method":"claw.status","params":{"x":"' + b"a" * 40_000_000 + b'"}}\n')
    server.alive()


@case("stdio", "calls before, in the middle of, and after a second initialize", True)
def _(w):
    w.acts(("file-read", {"path": "x"}))
    server = w.stdio()
    must("error" in server.call("file-write", {"path": "early", "content": "x"}), "before initialize")
    server.initialize()
    again = server.initialize({**HEAD, "metadata": {"name": "other", "version": "1.0.0"}, "spec": {}})
    must("error" in again, again)
    must(not os.path.exists(w.at("agent", "early")), "it was written")
    server.alive()


@case("stdio", "a thousand requests of one id, and an id of a megabyte")
def _(w):
    server = agent(w)
    for _ in range(1000):
        server.raw(b'{"jsonrpc":"2.0","id":7,"method":"claw.status","params":{}}\n')
    server.raw(json.dumps({"jsonrpc": "2.0", "id": "x" * 1_000_000, "method": "claw.status", "params": {}}).encode() + b"\n")
    got = 0
    while got < 1000:
        got += server.line().get("id") == 7
    server.alive()


@case("stdio", "a flood of notifications and of answers to nothing")
def _(w):
    server = agent(w)
    for n in range(20_000):
        server.raw(b'{"jsonrpc":"2.0","method":"claw.nothing","params":{}}\n{"jsonrpc":"2.0","id":%d,"result":{}}\n' % n)
    server.alive()


@case("stdio", "nobody reads the answers", True)
def _(w):
    server = agent(w)

    def pour():
        try:
            for _ in range(60_000):
                server.raw(b'{"jsonrpc":"2.0","id":1,"method":"claw.status","params":{}}\n')
        except OSError:
            pass

    threading.Thread(target=pour, daemon=True).start()
    time.sleep(3)
    with open(f"/proc/{server.child.pid}/status") as status:
        peak = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
    must(peak < 400, f"{peak} MiB wait for a reader")


@case("stdio", "the input ends in the middle of a message and of a call", True)
def _(w):
    w.acts(("shell", {"command": "sleep 3"}))
    server = w.stdio()
    server.initialize()
    server.raw(b'{"jsonrpc":"2.0","id":9,"method":"claw.tool.call","params":{"name":"shell","arguments":{"command":"sleep 2; echo x > late"},'
               b'"context":{"identity":"t","request_id":"00000000-0000-4000-8000-000000000001"}}}\n{"jsonrpc":')
    must(server.end() == 0, "exit")
    must(w.clawk("trace", "verify", "--state", w.state()).code == 0, "the record")


@case("stdio", "one request id for other arguments, another tool, another method", True)
def _(w):
    server = agent(w)
    must("result" in server.call("file-write", {"path": "a", "content": "1"}), "first")
    for tool, arguments in [("file-write", {"path": "b", "content": "1"}), ("shell", {"command": "touch c"}), ("file-write", {"path": "a", "content": "2"})]:
        must("error" in server.call(tool, arguments), tool)
    must(not os.path.exists(w.at("agent", "b")) and not os.path.exists(w.at("agent", "c")), "it ran")
    with open(w.at("agent", "a")) as kept:
        must(kept.read() == "1", "written twice")


@case("stdio", "request ids in other spellings are the same request", True)
def _(w):
    server = agent(w)
    ids = ["aaaaaaaa-0000-4000-8000-00000000000a", "AAAAAAAA-0000-4000-8000-00000000000A", "aaaaaaaa00004000800000000000000a", "{aaaaaaaa-0000-4000-8000-00000000000a}",
           "urn:uuid:aaaaaaaa-0000-4000-8000-00000000000a"]
    ran = 0
    for request in ids:
        answer = server.ask("claw.tool.call", {"name": "shell", "arguments": {"command": "echo x >> times"}, "context": {"identity": "t", "request_id": request}})
        ran += "result" in answer
    with open(w.at("agent", "times")) as times:
        must(len(times.readlines()) == 1, f"ran {ran} times")


@case("stdio", "context names that widen: a sandbox and a policy that are not there, or weaker", True)
def _(w):
    rules = [{"id": "no", "action": "deny", "scope": "tool", "match": {"name": "shell"}}, {"id": "rest", "action": "allow", "scope": "all"}]
    free = [{"id": "rest", "action": "allow", "scope": "all"}]
    w.spec(policies=[{"inline": {"name": "tight", "rules": rules}}, {"inline": {"name": "free", "rules": free}}])
    server = agent(w)
    for n, context in enumerate([{"policy": "free"}, {"policy": "nothing"}, {"sandbox": "none"}, {"sandbox": ""}, {"policy": ""}, {"sandbox": "allow-all"}], 1):
        must("error" in server.call("shell", {"command": "touch pwned"}, n, **context), context)
    must(not os.path.exists(w.at("agent", "pwned")), "it ran")


@case("stdio", "an answer to a question by who asked it, before it is asked, for another")
def _(w):
    rules = [{"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "shell"}, "approval": {"timeout_seconds": 3}},
             {"id": "rest", "action": "allow", "scope": "all"}]
    w.spec(policies=[{"inline": {"name": "p", "rules": rules}}])
    server = agent(w)
    for params in [{}, {"request_id": "00000000-0000-4000-8000-000000000001"}, {"request_id": "x", "decision": "approve"}]:
        server.ask("claw.tool.approve", params)
    answer = server.call("shell", {"command": "touch pwned"})
    must("error" in answer and not os.path.exists(w.at("agent", "pwned")), answer)


@case("stdio", "a manifest over the wire that refers to files", True)
def _(w):
    w.put("../home/identity.yaml", 'claw: "0.3.0"\nkind: Identity\nmetadata: { name: x }\nspec: { name: SECRET-NAME, personality: SECRET }\n')
    for ref in ["file:../home/identity.yaml", f"file:{w.at('home', 'identity.yaml')}", "identity.yaml", "claw://local/identity/x"]:
        server = w.stdio(claw=None)
        answer = server.initialize({**HEAD, "spec": {"identity": ref, "providers": []}})
        must("error" in answer and "SECRET" not in json.dumps(answer), (ref, answer))
        server.end()


# --- HTTP

def raw(http, head, body=b""):
    return http.raw(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)


@case("http", "two lengths, a length and chunks, a length that lies: no second request is heard", True)
def _(w):
    http = w.http()
    hidden = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 37\r\n\r\n" + b'{"agent_id":"smuggled","goal":"help"}'
    for head in ["POST /healthz HTTP/1.1\nHost: localhost\nContent-Length: 0\nContent-Length: 150",
                 "POST /healthz HTTP/1.1\nHost: localhost\nContent-Length: 5\nTransfer-Encoding: chunked",
                 "POST /healthz HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\nTransfer-Encoding: identity\nContent-Length: 3",
                 "POST /healthz HTTP/1.1\nHost: localhost\nTransfer-Encoding: xchunked\nContent-Length: 3",
                 "POST /healthz HTTP/1.1\nHost: localhost\nContent-Length: +5",
                 "POST /healthz HTTP/1.1\nHost: localhost\nContent-Length : 5",
                 "GET /healthz HTTP/1.1\nHost: localhost\nX: a\x0bContent-Length: 5"]:
        raw(http, head, b"0\r\n\r\n" + hidden[:5])
    http.alive()
    _, listed = http.ask("GET", "/v1/sessions")
    must("smuggled" not in json.dumps(listed), listed)


@case("http", "paths in every spelling reach no door that is closed", True)
def _(w):
    http = w.http(toml='[http]\ndoors = ["health"]\n')
    for path in ["/v1/sessions", "//v1/sessions", "/v1//sessions", "/V1/sessions", "/%76%31/sessions", "/healthz/../v1/sessions", "/healthz/%2e%2e/v1/sessions",
                 "/v1/sessions/", "/v1/sessions;x", "/v1/sessions%00", "/./v1/sessions", "http://localhost/v1/sessions", "/v1\\sessions"]:
        status, body = http.ask("GET", path)
        must(status in (400, 404, 405, 421), (path, status, body))
    http.alive()


@case("http", "hosts and origins of other sites", True)
def _(w):
    http = w.http()
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "evil.example:80", "", "localhost, evil.example",
                 "[::ffff:7f00:1].evil.example", "localhost\tevil", "LOCALHOST.evil.example"]:
        status, _ = http.ask("POST", "/v1/sessions", {"agent_id": "x", "goal": "y"}, host=host)
        must(status in (400, 403, 421), (host, status))
    for origin in ["https://evil.example", "null", "http://localhost.evil.example", "file://", "http://localhost:1@evil.example"]:
        status, _ = http.ask("POST", "/v1/sessions", {"agent_id": "x", "goal": "y"}, f"Origin: {origin}\r\n")
        must(status in (400, 403), (origin, status))
    status, _ = http.ask("POST", "http://evil.example/v1/sessions", {"agent_id": "x", "goal": "y"})
    must(status in (400, 403, 421), status)
    _, listed = http.ask("GET", "/v1/sessions")
    must(listed.get("total", len(listed.get("sessions", []))) == 0, listed)


@case("http", "bodies of other types, and forms that a page may send without asking", True)
def _(w):
    http = w.http()
    body = b'{"agent_id":"page","goal":"help"}'
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonx", "text/plain; application/json"]:
        head = f"POST /v1/sessions HTTP/1.1\nHost: localhost\nConnection: close\nContent-Type: {kind}\nContent-Length: {len(body)}"
        got = raw(http, head, body)
        must(b" 201 " not in got[:20], (kind, got[:200]))
    http.alive()


TOKENS = """
[http]
tokens = [ { name = "reader", sha256 = "%s", scopes = ["read"] }, { name = "runner", sha256 = "%s", scopes = ["resolve", "execute"] } ]
"""


def tokens(w):
    import hashlib
    reader, runner = (hashlib.sha256(word.encode()).hexdigest() for word in ["reader-token-0123456789", "runner-token-0123456789"])
    return w.http(toml=TOKENS % (reader, runner))


def bearer(name):
    return f"Authorization: Bearer {name}-token-0123456789\r\n"


@case("http", "tokens: none, wrong, twice, in a query, in other spellings, of another scope", True)
def _(w):
    http = tokens(w)
    new = {"agent_id": "x", "goal": "y"}
    good = bearer("runner").strip()
    for headers in ["", "Authorization: Bearer \r\n", "Authorization: Basic cnVubmVyLXRva2Vu\r\n", bearer("other"), "Authorization: runner-token-0123456789\r\n",
                    f"{good}x\r\n", bearer("reader") + bearer("runner"), f"X-{good}\r\n", bearer("runner").replace("Bearer ", "Bearer\t"), "Cookie: token=runner-token-0123456789\r\n"]:
        status, body = http.ask("POST", "/v1/sessions", new, headers)
        must(status in (400, 401, 403), (headers, status, body))
    for path in ["/v1/sessions?token=runner-token-0123456789", "/v1/sessions?access_token=runner-token-0123456789"]:
        must(http.ask("POST", path, new)[0] in (400, 401, 403), path)
    must(http.ask("POST", "/v1/sessions", new, bearer("reader"))[0] == 403, "a reader opens a session")
    must(http.ask("POST", "/v1/atlases", {"manifest": {}}, bearer("runner"))[0] == 403, "a runner loads an Atlas")
    must(http.ask("POST", "/v1/sessions", new, bearer("runner"))[0] == 201, "the right one")


@case("http", "another token's sessions, traces and approvals", True)
def _(w):
    http = tokens(w)
    session = http.session(headers=bearer("runner"))
    for method, path in [("GET", f"/v1/sessions/{session}"), ("DELETE", f"/v1/sessions/{session}"), ("GET", f"/v1/traces/{session}"), ("POST", f"/v1/traces/{session}/verify"),
                         ("GET", f"/v1/sessions/{session.upper()}"), ("GET", f"/v1/traces/{session.replace('-', '')}")]:
        status, body = http.ask(method, path, None, bearer("reader"))
        must(status in (403, 404, 400), (method, path, status, body))
    must(http.ask("GET", f"/v1/sessions/{session}", None, bearer("runner"))[0] in (200, 403), "its own")


@case("http", "JSON that is deep, doubled, of other types, with astral keys", True)
def _(w):
    http = w.http()
    for body in [b"[" * 200_000, b'{"agent_id":"a","agent_id":"b","goal":"x"}', b'{"agent_id":1,"goal":"x"}', b'{"agent_id":"a","goal":null}', b'{"agent_id":"' + b"\\ud800" * 10 + b'","goal":"x"}',
                 b'\xff\xfe', b"", b"{}", b'{"agent_id":"a","goal":"x","evil":1}', b'{"agent_id":"a","goal":"' + b"x" * 20_000 + b'"}', json.dumps({"agent_id": "\0", "goal": "\x1b[2J"}).encode()]:
        status, answer = http.ask("POST", "/v1/sessions", body)
        must(400 <= status < 500 or (status == 201 and b"1b" in body), (body[:60], status, answer))
    http.alive()


@case("http", "heads without end, 10,000 headers, a request line of a megabyte, no end of line")
def _(w):
    http = w.http()
    for data in [b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000 + b"\r\n", b"\0" * 100_000, b"GET / HTTP/9.9\r\n\r\n",
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\nHost: localhost\n\n", b"\x16\x03\x01\x02\x00\x01"]:
        http.raw(data, end=True)
    http.alive()


@case("http", "400 connections that say nothing: others are served", True)
def _(w):
    http = w.http()
    idle = []
    for _ in range(400):
        stream = socket.create_connection(("127.0.0.1", http.port), 5)
        stream.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        idle.append(stream)
    start = time.time()
    http.alive()
    must(time.time() - start < 3, "it took long")
    for stream in idle:
        stream.close()


@case("http", "identifiers that are paths, SQL, or enormous", True)
def _(w):
    http = w.http()
    for id in ["..%2f..%2fetc%2fpasswd", "'%20OR%201=1--", "%00", "x" * 5000, "0", "-1", "%ff", "00000000-0000-0000-0000-000000000000", "{}", "*"]:
        for path in [f"/v1/sessions/{id}", f"/v1/traces/{id}", f"/v1/atlases/{id}", f"/v1/approvals/{id}"]:
            status, body = http.ask("GET", path)
            must(400 <= status < 500, (path[:60], status, body))
    for query in ["limit=-1", "limit=99999999999999999999", "offset=18446744073709551615", "since_sequence=-1", "limit=0", "status=%27", "limit=1&limit=2"]:
        status, _ = http.ask("GET", f"/v1/sessions?{query}")
        must(status in (200, 400, 422), (query, status))
    http.alive()


@case("http", "a client goes away in the middle of an execution: it ran once, and the record holds", True)
def _(w):
    w.put("desk/atlas.json", json.dumps({"atlas_version": "1.0", "atlas_id": "com.example.desk", "version": "1.0.0", "name": "D", "description": "D",
          "actions": [{"action_id": "s.run", "name": "S", "description": "s", "executor": "tool:shell"}]}))
    http = w.http("--atlas", "desk")
    session = http.session()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    request = {"carp_version": "1.0", "timestamp": now, "requester": {"agent_id": "ann", "session_id": session}, "task": {"goal": "help"}}
    status, resolution = http.ask("POST", "/v1/resolve", {**request, "request_id": "00000000-0000-4000-8000-000000000001", "operation": "resolve"})
    must(status == 200, resolution)
    body = json.dumps({**request, "request_id": "00000000-0000-4000-8000-000000000002", "operation": "execute", "execution": {
        "resolution_id": resolution["resolution_id"], "action_id": "s.run", "parameters": {"command": "sleep 1; echo x >> times"}}}).encode()
    with socket.create_connection(("127.0.0.1", http.port)) as stream:
        stream.sendall(b"POST /v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.4)
    for _ in range(3):
        http.ask("POST", "/v1/execute", body)
    time.sleep(1.5)
    with open(w.at("agent", "times")) as times:
        must(len(times.readlines()) == 1, "more than once")
    http.alive()


@case("http", "a WebSocket with a foreign origin, a bad key, frames that are too large or not masked")
def _(w):
    http = w.http()
    session = http.session()
    head = f"GET /v1/traces/stream?session_id={session} HTTP/1.1\nHost: localhost\nConnection: upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n"
    got = raw(http, head + "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nOrigin: https://evil.example")
    must(b" 101 " not in got[:20], got[:100])
    for frame in [b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", b"\x81\x05hello", b"\x89\xfe\xff\xff", b"\xff" * 1000]:
        raw(http, head + "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", frame)
    http.alive()


# --- the control socket, `send`, the outbox

def control(w):
    path = os.path.join(w.state(), "control.sock")
    for _ in range(100):
        if os.path.exists(path):
            break
        time.sleep(0.05)
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(10)
    stream.connect(path)
    return stream


@case("control", "only its owner may open the socket, whatever the umask", True)
def _(w):
    old = os.umask(0)
    try:
        agent(w)
    finally:
        os.umask(old)
    control(w).close()
    mode = os.stat(os.path.join(w.state(), "control.sock")).st_mode & 0o777
    must(mode == 0o600 and os.stat(w.state()).st_mode & 0o077 == 0, oct(mode))


@case("control", "garbage, a line of 40 MB, 300 clients that say nothing: the agent goes on", True)
def _(w):
    server = agent(w)
    for data in [b"\xff" * 1000 + b"\n", b"{" * 100_000 + b"\n", b"a" * 40_000_000]:
        with control(w) as stream:
            try:
                stream.sendall(data)
            except OSError:
                pass
    idle = []
    for _ in range(300):
        try:
            idle.append(control(w))
        except OSError:
            break
    server.alive()
    for stream in idle:
        stream.close()
    must(w.clawk("approvals", "--state", w.state()).code == 0, "the socket answers")


@case("control", "a socket, a file and a link in its place before the start")
def _(w):
    for kind in ["file", "link", "socket", "folder"]:
        w.says()
        path = os.path.join(w.state(), "control.sock")
        victim = w.put("victim", "precious")
        if os.path.islink(path) or os.path.exists(path):
            os.remove(path)
        if kind == "file":
            with open(path, "w") as out:
                out.write("x")
        elif kind == "link":
            os.symlink(victim, path)
        elif kind == "socket":
            stale = socket.socket(socket.AF_UNIX)
            stale.bind(path)
        else:
            os.mkdir(path)
        done = w.says()
        must(done.code in (0, 1), (kind, done))
        with open(victim) as kept:
            must(kept.read() == "precious", kind)
        if kind == "folder":
            os.rmdir(path)


@case("send", "parts that are pipes, devices, folders, links, secrets of others", True)
def _(w):
    server = agent(w)
    os.mkfifo(w.at("agent", "pipe"))
    for file in ["pipe", "/dev/zero", ".", "/dev/stdin", "nothing", "/proc/self/mem"]:
        for flag in ["--image", "--file", "--attach"]:
            done = w.clawk("send", w.state(), "hello", flag, file, seconds=8)
            must(done.code in (1, 2), (flag, file, done))
    server.alive()


@case("send", "to a folder, a foreign socket, a socket that answers rubbish or never")
def _(w):
    for answer in [None, b"\xff\xfe\n", b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000 + b"\n", b"x" * 20_000_000, b'{"jsonrpc":"2.0","id":0,"result":{"stop":"answered","text":"\\u001b[2J"}}\n' * 3]:
        folder = w.at(f"fake-{hash(answer)}")
        os.makedirs(folder)
        fake = socket.socket(socket.AF_UNIX)
        fake.bind(os.path.join(folder, "control.sock"))
        fake.listen(5)

        def serve(fake=fake, answer=answer):
            try:
                client, _ = fake.accept()
                client.recv(4096)
                if answer:
                    client.sendall(answer)
                    client.close()
                else:
                    time.sleep(20)
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        try:
            done = w.clawk("send", os.path.join(folder, "control.sock"), "hello", "--timeout", "5s", seconds=25)
            if done.code == 2:
                done = w.clawk("send", os.path.join(folder, "control.sock"), "hello", seconds=25)
            must(done.code != 0 and "\x1b[2J" not in done.all, (str(answer)[:40], done))
        except Broke as error:
            must(answer is None and "took more" in str(error), error)


@case("send", "2 MB of text, an empty text, text that steers a terminal", True)
def _(w):
    w.scenes([])
    server = w.stdio()
    server.initialize()
    must(w.clawk("send", w.state(), "-", stdin=b"x" * 30_000_000).code == 1, "30 MB")
    w.clawk("send", w.state(), "")
    done = w.clawk("send", w.state(), "a\x1b]0;evil\x07b\x1b[2J")
    must("\x1b" not in done.out, repr(done.out))
    server.alive()


@case("outbox", "ids that are none, another's, twice", True)
def _(w):
    w.says()
    for id in ["x", "00000000-0000-4000-8000-000000000000", "../x", "'; DROP TABLE outbox; --"]:
        must(w.clawk("outbox", "retry", id, "--state", w.state()).code in (1, 2), id)
        must(w.clawk("dead-letters", "replay", id, "claw.yaml", "--state", w.state()).code in (1, 2), id)
    must(w.clawk("outbox", "list", "--state", w.state()).code == 0, "list")


# --- swarm

@case("swarm", "peers that are this agent, a file, the metadata service, nowhere")
def _(w):
    for uri in ["claw://local/claw/tested", "file:claw.yaml", "http://169.254.169.254/", "claw://local/claw/../../x", "", "claw://" + "x" * 10_000]:
        w.spec(swarm={"inline": {"name": "team", "topology": "peer-to-peer", "agents": [{"identity_ref": uri, "role": "worker"}], "coordination": {"message_passing": "direct"}}})
        w.clawk("validate", "claw.yaml")
        w.says(seconds=15)


@case("swarm", "delegations to peers that are not there, with tasks of megabytes, from nobody", True)
def _(w):
    server = agent(w)
    for params in [{}, {"peer": "x"}, {"swarm": "x", "task": {"description": "x" * 5_000_000}, "context": {"request_id": "00000000-0000-4000-8000-000000000001"}},
                   {"swarm": None, "peer": None, "task": None}, {"task_id": "x", "status": "done", "result": {}}]:
        for method in ["claw.swarm.delegate", "claw.swarm.report", "claw.swarm.broadcast", "claw.swarm.discover"]:
            answer = server.ask(method, params)
            must("error" in answer or method == "claw.swarm.discover", (method, answer))
    server.alive()
