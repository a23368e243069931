"""State directories, migrations, traces, replay, forks, plans, the clock."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import time

from rig import CLAWK, Broke, case, must


def lived(w):
    """A state with a few turns."""
    w.put("in.txt", "text")
    w.acts(("file-read", {"path": "in.txt"}), ("file-write", {"path": "out.txt", "content": "1"}))
    must(w.says().code == 0, "a turn")
    return w.state()


def sql(state, text):
    base = sqlite3.connect(os.path.join(state, "state.db"))
    base.executescript(text)
    base.commit()
    base.close()


READERS = [("trace", "show"), ("trace", "verify"), ("sessions",), ("effects",), ("memory", "show"), ("budget",), ("outbox", "list"), ("dead-letters", "list"), ("trace", "replay")]


def readers(w, state, seconds=15):
    for verb in READERS:
        w.clawk(*verb, "--state", state, seconds=seconds)


@case("state", "a database that is text, empty, cut, another program's", True)
def _(w):
    state = lived(w)
    base = os.path.join(state, "state.db")
    with open(base, "rb") as whole:
        whole = whole.read()
    other = w.at("other.db")
    sqlite3.connect(other).executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
    with open(other, "rb") as foreign:
        foreign = foreign.read()
    for bad in [b"text", whole[: len(whole) // 2], whole[:100], b"\0" * 100_000, foreign, whole[:4096] + os.urandom(len(whole) - 4096)]:
        for beside in ["state.db-wal", "state.db-shm"]:
            if os.path.exists(os.path.join(state, beside)):
                os.remove(os.path.join(state, beside))
        with open(base, "wb") as out:
            out.write(bad)
        done = w.says()
        must(done.code == 1, (bad[:10], done))
        readers(w, state)


@case("state", "a schema of a later version, of none, of a negative one", True)
def _(w):
    state = lived(w)
    for version in [10_000, -1, 2**31 - 1, 0]:
        copy = w.at("copy")
        shutil.copytree(state, copy)
        sql(copy, f"PRAGMA user_version = {version}")
        done = w.says("go", "--state", copy)
        must(done.code == 1, (version, done))
        shutil.rmtree(copy)


@case("state", "triggers and views that somebody put into the database", True)
def _(w):
    state = lived(w)
    for text in ["CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events WHERE row < new.row; END",
                 "CREATE TRIGGER t BEFORE INSERT ON events BEGIN SELECT RAISE(IGNORE); END",
                 "CREATE TRIGGER t AFTER INSERT ON inbox BEGIN DELETE FROM inbox; END",
                 "ALTER TABLE events RENAME TO e2; CREATE VIEW events AS SELECT * FROM e2"]:
        copy = w.at("copy")
        shutil.copytree(state, copy)
        try:
            sql(copy, text)
        except sqlite3.Error:
            shutil.rmtree(copy)
            continue
        done = w.says("go", "--state", copy)
        after = w.clawk("trace", "verify", "--state", copy)
        must(done.code != 0 or after.code != 0, (text, done, after))
        shutil.rmtree(copy)


@case("state", "what a start makes is made through no link that lies there", True)
def _(w):
    state = lived(w)
    victim = w.put("victim", "precious")
    for name in ["lock", "history", "suggested-rules.yaml", "consents.jsonl", "blobs", "keys", "cache", "state.db-wal", "manifest", "control.sock"]:
        copy = w.at("copy")
        shutil.copytree(state, copy, symlinks=True, ignore=lambda *_: ["control.sock"])
        path = os.path.join(copy, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)
        os.symlink(victim, path)
        w.says("go", "--state", copy)
        with open(victim) as kept:
            must(kept.read() == "precious", name)
        shutil.rmtree(copy)


@case("state", "the directory is a file, a link in a circle, a device, below a file")
def _(w):
    os.symlink(w.at("loop"), w.at("loop"))
    w.put("file", "x")
    for state in [w.at("agent", "file"), w.at("loop"), "/dev/null", w.at("agent", "file", "below"), "", "/proc/self", "\x1b[2J"]:
        done = w.says("go", "--state", state, seconds=8)
        must(done.code in (0, 1, 2) and "\x1b[2J" not in done.err, (state, done))
    must(not os.path.exists("/dev/null/state.db"), "?")


@case("state", "another user's directory, and a link of another user", True)
def _(w):
    if os.geteuid() != 0:
        return
    theirs = w.at("theirs")
    os.mkdir(theirs, 0o777)
    os.chown(theirs, 1234, 1234)
    must("1234" in w.says("go", "--state", theirs).err, "their directory")
    must(os.listdir(theirs) == [], "something was made in it")
    os.mkdir(w.at("mine"))
    os.symlink(w.at("mine"), w.at("link"))
    os.lchown(w.at("link"), 1234, 1234)
    must("1234" in w.says("go", "--state", w.at("link")).err, "their link")


@case("state", "two starts at once: one runs, the other says so; a stale lock is none", True)
def _(w):
    w.acts(("shell", {"command": "sleep 2"}))
    first = subprocess.Popen([CLAWK, "run", "claw.yaml", "-m", "go"], cwd=w.at("agent"), env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    w.started.append(first)
    time.sleep(1)
    second = w.says()
    must(second.code == 1 and "in use" in second.err, second)
    w.end(first)
    must(w.says().code == 0, "after a kill")


@case("state", "a full disk for the record: nothing runs that is not on it")
def _(w):
    w.acts(("file-write", {"path": "out.txt", "content": "1"}))
    for blocks in [1, 20, 40, 80, 120, 160, 200]:
        try:
            w.clawk("run", "claw.yaml", "-m", "go", "--state", w.at(f"s{blocks}"), program=["/bin/sh", "-c", f'trap "" XFSZ; ulimit -f {blocks}; exec "$0" "$@"', CLAWK])
        except Broke as error:
            must("signal -25" in str(error), error)
        if os.path.exists(w.at("agent", "out.txt")):
            os.remove(w.at("agent", "out.txt"))
            effects = w.clawk("effects", "--state", w.at(f"s{blocks}"))
            must("file-write" in effects.out or effects.code == 0, (blocks, effects))


@case("trace", "every byte of a stored event counts", True)
def _(w):
    state = lived(w)
    for change in ["UPDATE events SET payload = replace(payload, 'file-write', 'file-wrote')", "UPDATE events SET at = at + 1", "DELETE FROM events WHERE row = 5",
                   "UPDATE events SET kind = 'action.denied' WHERE kind = 'action.executed'", "UPDATE sessions SET events = events - 1",
                   "UPDATE events SET content = x'00' WHERE content IS NOT NULL", "DELETE FROM inbox", "DELETE FROM answers"]:
        copy = w.at("copy")
        shutil.copytree(state, copy, ignore=lambda *_: ["control.sock"])
        base = sqlite3.connect(os.path.join(copy, "state.db"))
        count = base.execute(change).rowcount
        base.commit()
        base.close()
        must(count > 0, f"the case changes nothing: {change}")
        done = w.clawk("trace", "verify", "--state", copy)
        must(done.code == 1, (change, done))
        # A start verifies from the last mark on; what is older is found by who verifies all of it.
        w.says("go", "--state", copy)
        must(w.clawk("trace", "verify", "--state", copy).code == 1, f"healed: {change}")
        shutil.rmtree(copy)


@case("trace", "a verdict that nobody reads is no success", True)
def _(w):
    state = lived(w)
    sql(state, "UPDATE sessions SET events = events + 1")
    for args in [["trace", "verify"], ["trace", "verify", "--format", "json"], ["trace", "show"]]:
        read, write = os.pipe()
        os.close(read)
        child = subprocess.Popen([CLAWK, *args, "--state", state], cwd=w.at("agent"), env=w.env, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        _, err = child.communicate(timeout=20)
        must(child.returncode != 0, (args, child.returncode, err))


@case("trace", "exports that are forged, cut, of another version, megabytes of one line", True)
def _(w):
    state = lived(w)
    w.clawk("trace", "export", "--state", state, "--output", w.at("export.json"))
    done = w.clawk("trace", "export", "--state", state)
    text = done.out
    must(len(text) > 500, done)
    for bad in [text[: len(text) // 2], text.replace("out.txt", "oth.txt", 1), "x" * 10_000_000, "", "[]", "{}", text.replace('"1', '"9', 3), "[" * 100_000, text + text]:
        w.put("bad.json", bad)
        done = w.clawk("trace", "verify", w.at("agent", "bad.json"))
        must(done.code != 0 or bad == text, (bad[:60], done))


@case("replay", "a replay writes no file, reaches no network, starts no tool", True)
def _(w):
    state = lived(w)
    os.remove(w.at("agent", "out.txt"))
    done = w.clawk("trace", "replay", "--state", state, program=["unshare", "-r", "-n", "--", CLAWK])
    must(done.code == 0, done)
    must(not os.path.exists(w.at("agent", "out.txt")), "it was written again")


@case("replay", "a record whose calls were exchanged does not replay as the same")
def _(w):
    state = lived(w)
    blobs = sqlite3.connect(os.path.join(state, "state.db"))
    tables = [name for (name,) in blobs.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    blobs.close()
    must("events" in tables, tables)
    for table in tables:
        copy = w.at("copy")
        shutil.copytree(state, copy, ignore=lambda *_: ["control.sock"])
        try:
            sql(copy, f"DELETE FROM {table}")
        except sqlite3.Error:
            pass
        for verb in READERS:
            w.clawk(*verb, "--state", copy)
        shutil.rmtree(copy)


@case("fork", "steps that are none: 0, the last, beyond, negative, of another session", True)
def _(w):
    state = lived(w)
    rows = w.clawk("sessions", "--state", state, "--format", "json").json()
    sessions = [row.get("session_id", row.get("session")) for row in (rows["sessions"] if isinstance(rows, dict) else rows)]
    for session in [*sessions, "last", "nothing", "00000000-0000-4000-8000-000000000000"]:
        for at in ["0", "1", "-1", "999999", "18446744073709551616", "x"]:
            done = w.clawk("trace", "fork", "claw.yaml", "--session", session, "--at", at, "--state", state, "-m", "on", seconds=20)
            must(done.code in (0, 1, 2), (session, at, done))
    must(w.clawk("trace", "verify", "--state", state).code == 0, "the record")


ASKS = [{"inline": {"name": "p", "rules": [
    {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "file-write"}, "approval": {"timeout_seconds": 2}},
    {"id": "rest", "action": "allow", "scope": "all"}]}}]


@case("fork", "a fork behind an approval gives no approval", True)
def _(w):
    w.spec(policies=ASKS)
    state = lived(w)
    must(not os.path.exists(w.at("agent", "out.txt")), "unasked")
    for at in range(1, 30):
        w.clawk("trace", "fork", "claw.yaml", "--session", "last", "--at", str(at), "--state", state, "-m", "go", seconds=20)
        must(not os.path.exists(w.at("agent", "out.txt")), f"at {at}")


@case("fork", "a session's budget is not new in its fork")
def _(w):
    w.put("clawk.toml", "[budgets.session]\ncalls = 2\n")
    state = lived(w)
    os.remove(w.at("agent", "out.txt"))
    rows = w.clawk("trace", "show", "--session", "last", "--state", state).out.count("\n")
    w.clawk("trace", "fork", "claw.yaml", "--session", "last", "--at", str(rows), "--state", state, "-m", "go")
    must(not os.path.exists(w.at("agent", "out.txt")), "two more calls")
    must(w.clawk("trace", "verify", "--state", state).code == 0, "the record")


@case("plans", "60 steps, the same step 40 times, steps that name each other's files", True)
def _(w):
    w.spec(policies=ASKS)
    for calls in [[{"name": "file-write", "arguments": {"path": f"f{n}", "content": "x"}} for n in range(60)],
                  [{"name": "file-write", "arguments": {"path": "f", "content": "x"}}] * 40,
                  [{"name": "file-write", "arguments": {"path": "a", "content": "x"}}, {"name": "file-read", "arguments": {"path": "a"}},
                   {"name": "file-write", "arguments": {"path": "./a", "content": "y"}}]]:
        w.put("script.yaml", json.dumps({"scenes": [{"steps": [{"call": calls}, {"say": "over"}]}]}))
        done = w.says("go", "--approve", "never", seconds=60)
        must(done.code in (0, 1), done)
        must(not any(name.startswith("f") or name == "a" for name in os.listdir(w.at("agent"))), "unasked")
    must(w.clawk("trace", "verify", "--state", w.state()).code == 0, "the record")


@case("plans", "a model that asks for 5,000 calls at once", True)
def _(w):
    calls = [{"name": "file-read", "arguments": {"path": f"n{n}"}} for n in range(5_000)]
    w.put("script.yaml", json.dumps({"scenes": [{"steps": [{"call": calls}, {"say": "over"}]}]}))
    done = w.says(seconds=90)
    must(done.code in (0, 1), done)


FAKE_TIME = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <sys/time.h>
static long shift(void) { const char *s = getenv("SHIFT"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t c, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int r = real(c, t);
  if (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE) t->tv_sec += shift();
  return r;
}
int gettimeofday(struct timeval *t, void *z) { struct timespec s; clock_gettime(CLOCK_REALTIME, &s); t->tv_sec = s.tv_sec; t->tv_usec = s.tv_nsec / 1000; return 0; }
time_t time(time_t *t) { struct timespec s; clock_gettime(CLOCK_REALTIME, &s); if (t) *t = s.tv_sec; return s.tv_sec; }
"""


def shifted(w, seconds):
    """An environment in which the clock is off by so many seconds."""
    library = w.at("time.so")
    if not os.path.exists(library):
        w.put("../time.c", FAKE_TIME)
        made = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, w.at("time.c"), "-ldl"], capture_output=True)
        must(made.returncode == 0, made.stderr)
    return {"LD_PRELOAD": library, "SHIFT": str(seconds)}


@case("clock", "set back by a day, a year, to 1970, far ahead: starts, verifies, replays", True)
def _(w):
    state = lived(w)
    for seconds in [-86_400, -31_536_000, -1_700_000_000, 86_400 * 365, 10**10, -3600]:
        done = w.says("go", env=shifted(w, seconds))
        must(done.code in (0, 1), (seconds, done))
    must(w.clawk("trace", "verify", "--state", state).code == 0, "the record")
    must(w.clawk("trace", "replay", "--state", state).code == 0, "the replay")


@case("clock", "set back: what was spent this hour is spent", True)
def _(w):
    w.put("clawk.toml", "[budgets.day]\ncalls = 2\n")
    lived(w)
    must(os.path.exists(w.at("agent", "out.txt")), "two calls are within the budget")
    for seconds in [-7200, -86_400, -40 * 86_400]:
        if os.path.exists(w.at("agent", "out.txt")):
            os.remove(w.at("agent", "out.txt"))
        w.says("go", env=shifted(w, seconds))
        must(not os.path.exists(w.at("agent", "out.txt")), f"spent anew at {seconds}")


@case("clock", "set back: a question that lapsed does not come back, a stop stays", True)
def _(w):
    state = lived(w)
    must(w.clawk("stop", "--state", state, "--level", "kill-all").code in (0, 1, 2), "stop")
    level = w.clawk("stop", "--help")
    must(level.code == 0, level)


@case("looks", "validate, doctor, config, explain of a hostile clawk.toml run nothing", True)
def _(w):
    mark = w.put("mark.sh", f"#!/bin/sh\ntouch {w.at('pwned')}\necho secret-value-123456\n")
    os.chmod(mark, 0o755)
    w.put("clawk.toml", f"""
[secrets_store]
command = ["{mark}", "{{name}}"]
[sandbox.container]
runtimes = ["{mark}"]
engine = "{mark}"
engine_image = "x"
[sandbox.vm]
qemu = "{mark}"
[tools.shell]
secret_env = {{ A = "A_KEY" }}
[secrets.B_KEY]
tools = ["shell"]
hosts = ["a.example"]
""")
    provider = {"name": "main", "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": {"type": "bearer", "secret_ref": "MODEL_KEY"}}
    served = {"name": "served", "description": "s", "input_schema": {"type": "object"}, "mcp_source": {"uri": f"stdio://{mark}", "tool_name": "t"}}
    for level in ["process", "container", "vm"]:
        w.spec(providers=[{"inline": provider}], tools=[{"inline": served}, {"inline": {"name": "shell"}}], sandbox={"inline": {"level": level, "capabilities": {}}})
        for args in [["validate", "claw.yaml"], ["doctor", "claw.yaml"], ["config", "claw.yaml"], ["sandbox", "explain", "claw.yaml"],
                     ["policy", "explain", "claw.yaml", "shell", "{}"], ["trust", "--show", "."], ["doctor", "claw.yaml", "--format", "json"]]:
            w.clawk(*args, seconds=40)
            must(not os.path.exists(w.at("pwned")), (level, args))
