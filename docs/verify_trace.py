#!/usr/bin/env python3
"""Verifies a TRACE file (JSON Lines) without clawk: verify_trace.py FILE. Standard library only; see trace-format.md.
Prints {"valid", "event_count", "error", "error_at"} as `clawk trace verify --format json` does; exit code 1 if not valid.
Knows the profiles `jcs` (no floats, no integers beyond 2^53: what clawk writes) and `appendix-b`, not `cra-core`."""
import hashlib, json, re, sys

UUID, HEX = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), re.compile("[0-9a-f]{64}")
IDS, HASHES = ("event_id", "trace_id", "span_id", "session_id"), ("event_hash", "previous_event_hash")
TEXTS = ("trace_version", "timestamp", "event_type") + IDS + HASHES
HASHED = "trace_version event_id trace_id span_id parent_span_id session_id sequence timestamp event_type".split()
def refuse(what):
    raise ValueError(what)
def unique(pairs):
    return dict(pairs) if len(dict(pairs)) == len(pairs) else refuse("a key stands twice")

def jcs(value):
    """RFC 8785 text; refuses numbers on whose text readers would not agree."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(jcs(key) + ":" + jcs(value[key]) for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(jcs, value)) + "]"
    if isinstance(value, float) or isinstance(value, int) and abs(value) > 2**53:
        refuse("a number without an agreed text")
    return json.dumps(value, ensure_ascii=False)

def read(line):
    event = json.loads(line.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse,
                       parse_int=lambda text: -0.0 if text == "-0" else int(text))
    json.dumps(event, ensure_ascii=False).encode("utf-8")  # refuses lone surrogates
    fits = len(line) <= 16 * 2**20 and isinstance(event, dict) and set(event) | {"parent_span_id"} == {*TEXTS, *HASHED, "payload"}
    fits = fits and line == line.strip(b" \t\r") and isinstance(event["payload"], dict)
    fits = fits and all(isinstance(event[name], str) for name in TEXTS)
    fits = fits and all(UUID.fullmatch(event[name]) for name in IDS) and all(HEX.fullmatch(event[name]) for name in HASHES)
    fits = fits and type(event["sequence"]) is int and 0 <= event["sequence"] < 2**64
    parent = event.setdefault("parent_span_id", None) if fits else None
    fits = fits and (parent is None or isinstance(parent, str) and UUID.fullmatch(parent))
    return event if fits else refuse("no event, or members that no hash covers")

def fitting(event, profiles):
    """The profiles under which the event's hash is right."""
    found, problem = set(), None
    for name in sorted(profiles):
        try:
            payload = event["payload"]
            text = jcs(payload) if name == "jcs" else json.dumps(payload, sort_keys=True, separators=(",", ":"))
            front = "".join("" if event[name] is None else str(event[name]) for name in HASHED)
            digest = hashlib.sha256((front + text + event["previous_event_hash"]).encode("utf-8")).hexdigest()
            found |= {name} if digest == event["event_hash"] else set()
        except ValueError as error:
            problem = error
    return refuse(problem) if problem and not found else found

def judge(line, tips):
    """What is wrong with the next event, or None; moves the tip of its session's chain on."""
    try:
        event = read(line)
        session, number = event["session_id"].lower(), event["sequence"]
        expected, head, profiles = tips.get(session, (0, "0" * 64, {"jcs", "appendix-b"}))
        if number != expected or event["previous_event_hash"] != head:
            kind = "sequence_gap" if number > expected else "sequence_duplicate" if number < expected else "chain_broken"
            return kind if expected else "invalid_genesis"
        profiles = fitting(event, profiles)
    except (ValueError, RecursionError):
        return "malformed"
    tips[session] = (number + 1, event["event_hash"], profiles)
    return None if profiles else "hash_mismatch"

def verify(lines):
    tips, count, error, error_at = {}, 0, None, None
    for line in lines:
        text = line[:-1] if line.endswith(b"\n") else line
        fault = judge(text, tips) if text and not error else None
        error, error_at = (fault, count) if fault else (error, error_at)
        count += bool(text)
    error = error if count else "empty"  # nothing is no proof
    return {"valid": error is None, "event_count": count, "error": error, "error_at": error_at}
if __name__ == "__main__":
    report = verify(open(sys.argv[1], "rb"))
    sys.exit(print(json.dumps(report)) or not report["valid"])
