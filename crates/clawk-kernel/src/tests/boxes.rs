//! Several sandboxes: each tool has its own plan, and a call may only narrow it.

use serde_json::{Value, json};

use super::{agent, allow_all, params, rig, rpc};
use crate::error::CallError;
use crate::testing::Rig;

/// `fs` with a shell for everybody, `net` and the narrower `tight` by name.
fn spec() -> Value {
    let shell = json!({"shell": {"mode": "full"}});
    let mut spec = agent(allow_all());
    spec["sandbox"] = json!({"name": "fs", "level": "process", "capabilities": shell, "resource_limits": {"timeout_ms": 9_000}});
    spec["further_sandboxes"] = json!([
        {"name": "net", "level": "process", "capabilities": {"network": {"mode": "allowlist", "allowed_hosts": ["a.example"]}}},
        {"name": "tight", "level": "process", "capabilities": {}, "resource_limits": {"timeout_ms": 4_000}},
    ]);
    spec["tools"] = json!([
        {"name": "first", "description": "d", "input_schema": {"type": "object"}},
        {"name": "second", "description": "d", "input_schema": {"type": "object"}, "sandbox_ref": "net"},
    ]);
    spec
}

async fn ask(rig: &Rig, tool: &str, sandbox: Option<&str>, n: u32) -> Result<(), CallError> {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut call = params(tool, json!({"command": "ls"}), n);
    call.context.sandbox = sandbox.map(str::to_owned);
    let done = kernel.call(session, call).await.map(drop);
    kernel.shutdown("test", 1_000).await;
    done
}

#[tokio::test]
async fn each_tool_is_enclosed_by_its_own() {
    let rig = rig(spec());
    // The test's runner checks a command against the plan as the sandbox does.
    ask(&rig, "first", None, 1).await.expect("`fs` has a shell");
    let refused = ask(&rig, "second", None, 2).await.unwrap_err();
    assert!(
        matches!(refused, CallError::Sandbox(_)),
        "`net` has none: {refused:?}"
    );
}

#[tokio::test]
async fn a_name_narrows_and_never_widens() {
    let rig = rig(spec());
    ask(&rig, "first", Some("fs"), 1).await.expect("its own");
    let refused = ask(&rig, "first", Some("tight"), 2).await.unwrap_err();
    assert!(
        matches!(refused, CallError::Sandbox(_)),
        "it runs in `tight`, which has no shell: {refused:?}"
    );
    for (tool, name, n) in [("first", "net", 3), ("second", "fs", 4)] {
        let refused = ask(&rig, tool, Some(name), n).await.unwrap_err();
        let said = format!("{refused:?}");
        assert!(
            matches!(refused, CallError::Denied { .. }) && said.contains("may only narrow"),
            "{said}"
        );
    }
    let unknown = ask(&rig, "first", Some("nowhere"), 5).await.unwrap_err();
    assert!(
        matches!(unknown, CallError::UnknownReference { .. }),
        "{unknown:?}"
    );
    assert_eq!(rig.runner.runs().len(), 1);
}

#[tokio::test]
async fn a_declared_tool_stands_for_all_of_its_servers() {
    let rules = json!([{"id": "no", "action": "deny", "scope": "tool", "match": {"name": "srv-drop"}}, {"id": "all", "action": "allow", "scope": "all"}]);
    let mut spec = agent(rules);
    spec["sandbox"] = self::spec()["sandbox"].clone();
    spec["tools"] = json!([{"name": "srv", "mcp_source": {"uri": "stdio:///server"}}]);
    let rig = rig(spec.clone());
    rig.runner.serves("srv", &["srv-read", "srv-drop"]);
    ask(&rig, "srv-read", None, 1).await.expect("taken over");
    let refused = ask(&rig, "srv-drop", None, 2).await.unwrap_err();
    assert!(
        matches!(refused, CallError::Denied { .. }),
        "each is governed: {refused:?}"
    );
    for (name, n) in [("srv", 3), ("srv-nothing", 4)] {
        let unknown = ask(&rig, name, None, n).await.unwrap_err();
        assert!(matches!(unknown, CallError::UnknownTool { .. }), "{unknown:?}");
    }
    // A rule that refuses the declared name refuses what it stands for.
    spec["policies"][0]["rules"][0]["match"]["name"] = json!("srv");
    let rig = super::rig(spec.clone());
    rig.runner.serves("srv", &["srv-read"]);
    let refused = ask(&rig, "srv-read", None, 1).await.unwrap_err();
    assert!(matches!(refused, CallError::Denied { .. }), "{refused:?}");
    assert!(rig.runner.runs().is_empty());
    // A server's tool with the name of a declared one gets another name, and costs no other tool.
    spec["policies"][0]["rules"] = allow_all();
    spec["tools"] = json!([{"name": "srv", "mcp_source": {"uri": "stdio:///server"}}, {"name": "srv-read", "description": "d", "input_schema": {"type": "object"}}]);
    let rig = super::rig(spec);
    rig.runner.serves("srv", &["srv-read"]);
    let refused = ask(&rig, "srv-other", None, 1).await.unwrap_err();
    assert!(matches!(refused, CallError::UnknownTool { .. }), "{refused:?}");
}
