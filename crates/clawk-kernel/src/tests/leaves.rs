//! Leaves of the manifest whose effect no other test shows (`vectors/coverage.toml`).

use std::sync::Arc;

use clawk_manifest::model::BackoffStrategy;
use clawk_proto::method::{
    DelegateContext, DelegateParams, DelegateTask, MemoryContext, MemoryQuery, MemoryQueryParams,
    MemoryStoreParams, NewEntry,
};
use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, id, params, rig, rpc};
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::ModelMessage;
use crate::retry_policy::backoff_ms;
use crate::testing::{ScriptedModel, calls, says};

#[tokio::test]
async fn an_identity_is_told_to_the_model() {
    let mut spec = agent(allow_all());
    spec["identity"] = json!({"name": "t", "personality": "You are a lighthouse.", "autonomy": "autonomous", "locale": "de-DE"});
    let rig = rig(spec);
    let kernel = rig.start().await;
    say(&kernel, "hello").await;
    let system = &rig.models["model"].asked()[0].system;
    assert!(
        system.starts_with("You are a lighthouse.") && system.contains("de-DE"),
        "{system}"
    );
}

#[test]
fn waits_between_attempts_grow_as_declared() {
    let waits = |backoff| [1, 2, 3, 4].map(|attempt| backoff_ms(backoff, 100, attempt, 0));
    assert_eq!(waits(BackoffStrategy::Exponential), [100, 200, 400, 800]);
    assert_eq!(waits(BackoffStrategy::Linear), [100, 200, 300, 400]);
    assert_eq!(waits(BackoffStrategy::Constant), [100, 100, 100, 100]);
    assert_eq!(backoff_ms(BackoffStrategy::Constant, 7_000, 1, 0), 7_000);
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_minute_are_bounded() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
        "auth": {"type": "none"}, "limits": {"requests_per_minute": 2}, "retry": {"max_attempts": 1}}]);
    let rig = rig(spec);
    let kernel = rig.start().await;
    for _ in 0..2 {
        assert_eq!(say(&kernel, "hello").await.0, TurnEnd::Answered);
    }
    let (end, told) = say(&kernel, "hello").await;
    let said = format!("{end:?} {told:?}");
    assert!(said.contains("requests_per_minute"), "{said}");
    let waited = told
        .iter()
        .any(|notice| matches!(notice, SessionNotice::Retrying { wait_ms, .. } if *wait_ms > 0));
    assert!(end != TurnEnd::Answered || waited, "{said}");
}

/// What a skill with this permission may do: read inside, write inside, write elsewhere.
async fn allowed(permission: &str) -> Vec<bool> {
    let mut spec = agent(allow_all());
    let tool = |name: &str, reads: bool| {
        json!({"name": name, "description": "x", "input_schema": {"type": "object"},
            "labels": {"category": "filesystem"}, "annotations": {"readOnlyHint": reads}})
    };
    spec["tools"] = json!([tool("look", true), tool("put", false)]);
    spec["skills"] = json!([{"name": "dig", "description": "Digs.", "tools_required": ["look", "put"],
        "instruction": "Dig.", "permissions": {"network": false, "filesystem": permission}}]);
    let mut rig = rig(spec);
    let script = vec![
        calls(&[("skill-dig", json!({}))]),
        calls(&[("look", json!({"path": "in.txt"}))]),
        calls(&[("put", json!({"path": "in.txt"}))]),
        calls(&[("put", json!({"path": "/elsewhere/out.txt"}))]),
        says("done"),
    ];
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::turns(script)));
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "dig").await.0, TurnEnd::Answered);
    let asked = rig.models["model"].asked();
    let results = asked[4].messages.iter().filter_map(|message| match message {
        ModelMessage::ToolResult { is_error, .. } => Some(!is_error),
        _ => None,
    });
    results.skip(1).collect()
}

#[tokio::test]
async fn a_skills_filesystem_permission_is_a_ceiling() {
    assert_eq!(allowed("none").await, [false, false, false]);
    assert_eq!(allowed("read-only").await, [true, false, false]);
    assert_eq!(allowed("write-workspace").await, [true, true, false]);
    assert_eq!(allowed("full").await, [true, true, true]);
}

#[tokio::test]
async fn a_stores_top_k_bounds_what_is_found() {
    let mut spec = agent(allow_all());
    spec["memory"] =
        json!({"name": "mem", "stores": [{"name": "notes", "type": "semantic", "search": {"top_k": 2}}]});
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let entry = |text: &str| NewEntry {
        content: Value::from(text),
        key: None,
        metadata: None,
    };
    let store = MemoryStoreParams {
        store: "notes".to_owned(),
        entries: ["one bean", "two bean", "three bean"].map(entry).into(),
        context: MemoryContext { request_id: id(5) },
    };
    kernel.memory_store(session, store).await.unwrap();
    let found = async |top_k| {
        let text = "bean".to_owned();
        let query = MemoryQueryParams {
            store: "notes".to_owned(),
            query: MemoryQuery::Semantic { text, top_k },
        };
        kernel.memory_query(session, query).await.unwrap().entries.len()
    };
    assert_eq!((found(None).await, found(Some(3)).await), (2, 3));
}

#[tokio::test]
async fn a_peer_asks_the_provider_of_its_seat() {
    let mut spec = agent(allow_all());
    let provider = |name: &str| json!({"name": name, "protocol": "custom", "endpoint": "script:x", "model": "m", "auth": {"type": "none"}});
    spec["providers"] = json!([provider("model"), provider("second")]);
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
        "agents": [{"identity_ref": "hand", "role": "worker", "provider_ref": "second"}],
        "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {}},
        "aggregation": {"strategy": "merge"}});
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let task = DelegateParams {
        task_id: id(1001),
        task: DelegateTask {
            description: "count the beans".to_owned(),
            input: None,
        },
        context: DelegateContext {
            request_id: id(1),
            swarm: "team".to_owned(),
            member: Some("hand".to_owned()),
            report_token: None,
            limits: None,
            proof: None,
        },
    };
    kernel.delegate_task(session, task).await.unwrap();
    for _ in 0..10_000 {
        if !rig.models["second"].asked().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let asked = |name: &str| rig.models[name].asked().len();
    assert_eq!((asked("model"), asked("second")), (0, 1));
}

#[tokio::test]
async fn scanning_that_is_switched_off_changes_nothing() {
    // Made here, so that nothing in this file looks like a key.
    let key = format!("gh{}_{}", "p", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    for (enabled, kept) in [(false, true), (true, false)] {
        let mut spec = agent(allow_all());
        spec["policies"][0]["secret_scanning"] =
            json!({"enabled": enabled, "scope": "output", "action": "redact"});
        let rig = rig(spec);
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let call = params("echo", json!({"text": format!("found {key}")}), 1);
        let result = kernel.call(session, call).await.unwrap();
        let told = serde_json::to_string(&result).unwrap();
        assert_eq!(told.contains(&key), kept, "enabled: {enabled}: {told}");
    }
}
