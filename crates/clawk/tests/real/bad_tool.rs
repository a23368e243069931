//! MCP servers that die and that flood.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::agent::{Agent, allow, manifest, of, scripted};
use crate::parts::{ours, part, stdio};
use crate::process::{memory_kb, running, until};
use crate::turn::read_file;
use crate::wire::{Wire, text};

#[test]
fn a_server_that_was_killed_is_started_again_by_the_next_call() {
    let agent = Agent::new();
    agent.write("script.yaml", "scenes: [{ steps: [{ say: nothing }] }]\n");
    agent.write("notes.txt", "The meeting is on Tuesday.\n");
    let tools = json!([read_file(&agent)]);
    agent.is(&manifest(&scripted(), &tools, &json!([allow("read-file")])), "");
    let mut wire = Wire::open(&agent);
    let arguments = json!({ "path": agent.path("notes.txt") });
    let answer = wire.call("read-file", &arguments);
    assert!(text(&answer).contains("Tuesday"), "{answer}");

    let folder = agent.path("").display().to_string();
    let server = format!("mcp-server-filesystem {}", folder.trim_end_matches('/'));
    let first = running(&server);
    assert!(!first.is_empty(), "`{server}` runs");
    for pid in &first {
        // The supervisor may have ended it before us.
        let _ = kill_process(*pid, Signal::KILL);
    }
    until(
        Duration::from_secs(10),
        "the killed server is still there",
        || {
            running(&server)
                .iter()
                .all(|pid| !first.contains(pid))
                .then_some(())
        },
    );

    // A call may still have met the server's end. Then nobody knows whether it was heard, and it is not sent again.
    let mut answer = wire.call("read-file", &arguments);
    let lost = answer["error"].is_object();
    if lost {
        assert_eq!(answer["error"]["data"]["reason"], "outcome_unknown", "{answer}");
        assert!(
            answer.to_string().contains("was lost during the call"),
            "{answer}"
        );
        answer = wire.call("read-file", &arguments);
    }
    assert!(text(&answer).contains("Tuesday"), "{answer}");
    assert!(!running(&server).is_empty(), "a new one runs");
    assert!(wire.close().success());
    until(Duration::from_secs(10), "the server outlives its agent", || {
        running(&server).is_empty().then_some(())
    });
    let events = agent.events();
    let executed = of(&events, "action.executed");
    assert_eq!(executed.len(), 2, "both calls are in the trace");
    let failed = of(&events, "action.failed");
    assert_eq!(failed.len(), usize::from(lost), "and so is the lost one");
    assert!(executed.iter().all(|executed| executed["is_error"] == false));
}

#[test]
fn a_server_that_floods_ends_its_own_call_and_nothing_else() {
    let agent = Agent::new();
    agent.write("script.yaml", "scenes: [{ steps: [{ say: nothing }] }]\n");
    let mark = agent.path("mark").display().to_string();
    let (python, script) = (
        part("py/bin/python"),
        ours("flooding_server.py").display().to_string(),
    );
    // A server for each, so that one flood does not drown the next.
    let flood = |name: &str| {
        let server = stdio(&python, &[&script, &mark, name]);
        json!({ "inline": { "name": name, "description": "Floods", "timeout_ms": 3000, "input_schema": { "type": "object" },
            "mcp_source": { "uri": server, "tool_name": name } } })
    };
    let echo = json!({ "inline": { "name": "echo", "description": "Says it again",
        "input_schema": { "type": "object", "properties": { "text": {} } } } });
    let tools = json!([
        flood("many-messages"),
        flood("one-endless-line"),
        flood("a-huge-result"),
        echo
    ]);
    let rules = json!([{ "id": "all", "action": "allow", "scope": "all" }]);
    agent.is(&manifest(&scripted(), &tools, &rules), "");
    let mut wire = Wire::open(&agent);
    for tool in ["many-messages", "one-endless-line", "a-huge-result"] {
        let began = Instant::now();
        let answer = wire.call(tool, &json!({}));
        let failed = answer["error"].is_object() || answer["result"]["isError"] == true;
        let cut = answer.to_string().contains("[the result is longer: ");
        assert!(failed || cut, "{tool}: {}", answer.to_string().len());
        assert!(
            answer.to_string().len() < (4 << 20) + 4096,
            "{tool}: the answer is bounded"
        );
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{tool}: {:?}",
            began.elapsed()
        );
        assert_eq!(
            text(&wire.call("echo", &json!({ "text": "still here" }))),
            "still here",
            "after {tool}"
        );
    }
    let peak = memory_kb(wire.pid(), "VmHWM");
    assert!(peak < 200_000, "clawk's memory is bounded: {peak} kB");
    assert!(wire.close().success());
    until(Duration::from_secs(10), "the server outlives its agent", || {
        running(&mark).is_empty().then_some(())
    });
    let events = agent.events();
    let ended = of(&events, "action.executed").len() + of(&events, "action.failed").len();
    assert_eq!(ended, 6, "every call has one end in the trace");
}
