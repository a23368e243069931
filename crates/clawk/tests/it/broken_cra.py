"""clawk as a CRA implementation with one fault: the harness must find it.

`broken_cra.py adapter FAULT CLAWK` stands between the harness and the adapter.
`broken_cra.py http FAULT CLAWK PORT ATLAS STATE` stands between the harness and the API.
"""

import ctypes
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading


def adapter(fault, clawk):
    child = subprocess.Popen([clawk, "__cra"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in sys.stdin:
        child.stdin.write(line)
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        method, result = json.loads(line)["method"], answer.get("result")
        if method == fault.split("/")[0] and result is not None:
            FAULTS[fault](result)
        print(json.dumps(answer), flush=True)
    child.stdin.close()
    child.wait()


def set_to(**members):
    return lambda result: result.update(members)


def moved(result):
    for error in result["errors"]:
        error["path"] = "/elsewhere"


FAULTS = {
    "cra.validate/takes-all": set_to(valid=True),
    "cra.validate/takes-none": set_to(valid=False),
    "cra.validate/wrong-path": moved,
    "cra.hash/another": set_to(hash="0" * 64),
    "cra.verify/takes-all": set_to(valid=True, error=None, error_at=None),
    "cra.verify/takes-none": set_to(valid=False),
    "cra.verify/wrong-word": set_to(error="bad"),
    "cra.verify/wrong-place": lambda result: result.update(error_at=(result["error_at"] or 0) + 1),
    "cra.diff/identical": set_to(compatibility="identical", differences=[]),
    "cra.diff/incompatible": set_to(compatibility="incompatible"),
    "cra.replay/identical": set_to(identical=True),
    "cra.replay/differs": set_to(identical=False),
}


def reversed_blocks(body):
    body["context_blocks"].reverse()


def all_allowed(body):
    body["allowed_actions"] += [dict(one, action_id=one["action_id"]) for one in body["denied_actions"]]
    body["denied_actions"] = []


def decided(body):
    body["decision"]["type"] = "allow"


# Path's beginning, status and body of an answer: what becomes of them.
def spoil(fault, method, path, status, kind, body):
    def json_body(change):
        value = json.loads(body)
        change(value)
        return status, kind, json.dumps(value).encode()

    if path.startswith("/v1/resolve") and status == 200:
        if fault == "decision":
            return json_body(decided)
        if fault == "blocks":
            return json_body(reversed_blocks)
        if fault == "allowed":
            return json_body(all_allowed)
    if path.startswith("/v1/execute") and status == 403 and fault == "never-denies":
        return 200, "application/json", b'{"status": "success"}'
    if path.startswith("/v1/traces") and "ndjson" in kind:
        lines = body.splitlines(keepends=True)
        if fault == "trace-hole" and len(lines) > 2:
            return status, kind, b"".join(lines[:1] + lines[2:])
        if fault == "trace-changed":
            return status, kind, body.replace(b'"result":"', b'"result":"x', 1)
        if fault == "ndjson":
            return status, "application/json", body
    if path.endswith("/verify") and fault == "verify" and status == 200:
        return json_body(set_to(valid=False))
    if status == 404 and fault == "not-found":
        return 200, "application/json", b"{}"
    if status == 409 and fault == "conflict":
        return 201, kind, body
    if status == 400 and fault == "bad-request":
        return 500, kind, body
    if path == "/v1/health" and fault == "health":
        return json_body(lambda value: value.pop("status"))
    return status, kind, body


def serve(fault, clawk, port, atlas, state):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        behind = free.getsockname()[1]
    here = os.path.dirname(state)
    with open(os.path.join(here, "clawk.toml"), "w") as config:
        config.write(CONFIG)
    command = [clawk, "serve", "--simulate", "--http", f"127.0.0.1:{behind}", "--config", os.path.join(here, "clawk.toml")]
    # The harness kills this process outright; the server must not outlive it.
    end_with_parent = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    subprocess.Popen(command + ["--state", state, "--atlas", atlas], preexec_fn=end_with_parent)

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            if self.headers.get("Upgrade"):
                return self.tunnel()
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            if fault == "no-auth":
                headers["Authorization"] = "Bearer " + os.environ["CRA_TOKEN"]
            length = int(self.headers.get("Content-Length", 0))
            upstream = http.client.HTTPConnection("127.0.0.1", behind, timeout=20)
            try:
                upstream.request(self.command, self.path, self.rfile.read(length) or None, headers)
                answer = upstream.getresponse()
                status, body = answer.status, answer.read()
                kind = answer.getheader("Content-Type") or ""
            except OSError:
                status, body, kind = 503, b"", ""
            status, kind, body = spoil(fault, self.command, self.path, status, kind, body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(body)

        def tunnel(self):
            self.close_connection = True
            if fault == "stream":
                return self.send_error(501)
            upstream = socket.create_connection(("127.0.0.1", behind))
            head = f"{self.command} {self.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in self.headers.items())
            head = head.replace(f":{port}\r\n", f":{behind}\r\n")
            upstream.sendall(head.encode() + b"\r\n")
            threading.Thread(target=copy, args=(self.connection, upstream), daemon=True).start()
            copy(upstream, self.connection)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_):
            pass

    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Proxy).serve_forever()


CONFIG = """[[http.tokens]]
name = "conformance"
secret_ref = "CRA_TOKEN"
scopes = ["admin"]
"""

if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"adapter": adapter, "http": serve}[what](*rest)
