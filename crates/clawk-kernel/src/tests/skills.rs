//! Skills: offered, validated, a ceiling while they run; composite tools with every gate inside.

use std::sync::Arc;

use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, params, rig, rpc};
use crate::error::CallError;
use crate::kind;
use crate::notice::TurnEnd;
use crate::ports::ModelMessage;
use crate::testing::{Rig, ScriptedModel, calls, says};

fn spec(permissions: Value) -> Value {
    let mut spec = agent(allow_all());
    spec["tools"].as_array_mut().unwrap().push(json!(
        {"name": "fetch", "description": "x", "input_schema": {"type": "object"}, "labels": {"category": "network"}}));
    spec["tools"].as_array_mut().unwrap().push(json!(
        {"name": "research", "composite": true, "skill_ref": "dig", "annotations": {}}));
    spec["skills"] = json!([{"name": "dig", "description": "Digs.", "tools_required": ["echo", "fetch"],
        "instruction": "Dig deep.", "permissions": permissions, "estimates": {"avg_tokens": 500},
        "input_schema": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}}]);
    spec
}

fn with_model(mut rig: Rig, model: ScriptedModel) -> Rig {
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

#[tokio::test]
async fn an_invoked_skill_joins_the_turn_and_is_a_ceiling() {
    let script = vec![
        calls(&[("fetch", json!({}))]),
        calls(&[("skill-dig", json!({"topic": "worms"}))]),
        calls(&[("fetch", json!({}))]),
        says("done"),
    ];
    let rig = with_model(
        rig(spec(json!({"network": false, "filesystem": "none"}))),
        ScriptedModel::turns(script),
    );
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "dig").await.0, TurnEnd::Answered);
    let asked = rig.models["model"].asked();
    assert!(asked[0].tools.iter().any(|t| t.name == "skill-dig"
        && t.description.contains("Digs.")
        && t.description.contains("500 tokens")));
    // What to do is told when the skill is invoked, and not before.
    let early = format!("{:?}", &asked[..2]);
    assert!(!early.contains("Dig deep."), "{early}");
    let texts: Vec<&str> = asked[3]
        .messages
        .iter()
        .filter_map(|m| {
            if let ModelMessage::ToolResult { text, .. } = m {
                Some(text.as_str())
            } else {
                None
            }
        })
        .collect();
    assert!(texts[1].contains("Dig deep."), "{texts:?}");
    assert!(texts[2].contains("network"), "{texts:?}");
    assert_eq!(rig.runner.runs().len(), 1, "the second fetch did not run");
}

/// An agent whose skill has these permissions and the tools `bare` (nothing is known of it), `home` (it stays off the network) and
/// `reads` (it only reads, and stays off the network); the refusals of a turn in which the skill calls all three.
async fn refusals(permissions: Value) -> Vec<Option<String>> {
    let mut spec = agent(allow_all());
    let tools = spec["tools"].as_array_mut().unwrap();
    for (name, annotations) in [
        ("bare", json!({})),
        ("home", json!({"openWorldHint": false})),
        ("reads", json!({"openWorldHint": false, "readOnlyHint": true})),
    ] {
        tools.push(json!({"name": name, "description": "x", "input_schema": {"type": "object"}, "annotations": annotations}));
    }
    let names = ["bare", "home", "reads"];
    spec["skills"] = json!([{"name": "dig", "description": "Digs.", "tools_required": names, "instruction": "Dig deep.",
        "permissions": permissions}]);
    let called: Vec<(&str, Value)> = names.iter().map(|name| (*name, json!({}))).collect();
    let script = vec![calls(&[("skill-dig", json!({}))]), calls(&called), says("done")];
    let rig = with_model(rig(spec), ScriptedModel::turns(script));
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "dig").await.0, TurnEnd::Answered);
    let ran = rig.runner.runs().len();
    let events = rig.journal.events();
    let denied: Vec<Value> = events
        .iter()
        .filter(|e| e.kind == kind::ACTION_DENIED)
        .map(|e| serde_json::from_str(&e.payload_with_words()).unwrap())
        .collect();
    let denied = |name: &str| {
        let found = denied.iter().find(|payload| payload["action_id"] == name);
        found.map(|payload| payload["reason"].as_str().unwrap_or_default().to_owned())
    };
    let all: Vec<Option<String>> = names.iter().map(|name| denied(name)).collect();
    assert_eq!(
        ran,
        all.iter().filter(|one| one.is_none()).count(),
        "the rest ran: {all:?}"
    );
    all
}

#[tokio::test]
async fn a_tool_of_which_nothing_is_known_has_no_more_than_the_skill_may() {
    let all = refusals(json!({"network": false, "filesystem": "full"})).await;
    assert!(all[0].as_ref().unwrap().contains("network"), "{all:?}");
    assert_eq!(all[1..], [None, None]);
    let all = refusals(json!({"network": true, "filesystem": "none"})).await;
    assert!(
        all.iter().all(|one| one.as_ref().unwrap().contains("filesystem")),
        "{all:?}"
    );
    let all = refusals(json!({"network": true, "filesystem": "read-only"})).await;
    assert!(
        all[..2]
            .iter()
            .all(|one| one.as_ref().unwrap().contains("only read files")),
        "{all:?}"
    );
    assert_eq!(all[2], None);
    let all = refusals(json!({"network": true, "filesystem": "write-workspace"})).await;
    assert!(
        all[..2]
            .iter()
            .all(|one| one.as_ref().unwrap().contains("workspace")),
        "{all:?}"
    );
    // An empty block asks for nothing, so it gives nothing.
    let all = refusals(json!({})).await;
    assert!(all.iter().all(Option::is_some), "{all:?}");
    assert_eq!(
        refusals(json!({"network": true, "filesystem": "full"})).await,
        [None, None, None]
    );
}

#[tokio::test]
async fn a_skills_input_is_validated() {
    let script = vec![calls(&[("skill-dig", json!({"topic": 7}))]), says("oh")];
    let rig = with_model(rig(spec(json!({"network": true}))), ScriptedModel::turns(script));
    let kernel = rig.start().await;
    say(&kernel, "dig").await;
    let asked = rig.models["model"].asked();
    assert!(matches!(
        asked[1].messages.last(),
        Some(ModelMessage::ToolResult { is_error: true, .. })
    ));
}

#[tokio::test]
async fn a_composite_tool_runs_an_inner_turn_with_every_gate() {
    let inner = ScriptedModel::new(|request, _| {
        let done = request
            .messages
            .iter()
            .any(|m| matches!(m, ModelMessage::ToolResult { .. }));
        Ok(if done {
            says("worms are soft")
        } else {
            calls(&[("fetch", json!({})), ("write", json!({}))])
        })
    });
    let mut spec = spec(json!({"network": true}));
    spec["policies"][0]["rules"] = json!([
        {"id": "no-fetch", "action": "deny", "scope": "tool", "match": {"name": "fetch"}},
        {"id": "rest", "action": "allow", "scope": "all"}]);
    let rig = with_model(rig(spec), inner);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let result = kernel
        .call(session, params("research", json!({"topic": "worms"}), 1))
        .await
        .unwrap();
    assert_eq!(result.content[0].as_model_text(), "worms are soft");
    // All of its inner turn is what it took, the first answer of the model, too.
    let events = rig.journal.events();
    let finished = events.iter().find(|e| e.kind == kind::SKILL_FINISHED).unwrap();
    let whole = &result.structured_content.as_ref().unwrap()["tokens"];
    assert!(whole.as_u64() > Some(0), "{whole}");
    let finished: Value = serde_json::from_str(&finished.payload).unwrap();
    assert_eq!(&finished["tokens"], whole, "{finished}");
    let asked = rig.models["model"].asked();
    assert!(asked[0].system.contains("Dig deep."));
    let offered: Vec<&str> = asked[0].tools.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(offered, ["echo", "fetch"], "only what the skill requires");
    let denied = rig
        .journal
        .events()
        .into_iter()
        .filter(|e| e.kind == kind::ACTION_DENIED)
        .count();
    assert_eq!(
        denied, 2,
        "the inner calls went through the same gate; `write` is not the skill's"
    );
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

#[tokio::test]
async fn a_composite_that_would_cost_more_than_is_left_is_refused_before_anything_runs() {
    let mut spec = spec(json!({"network": true}));
    spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
        "auth": {"type": "none"}, "limits": {"tokens_per_day": 400}}]);
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("research", json!({"topic": "worms"}), 1))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Quota { wanted: 500, .. }), "{error:?}");
    assert_eq!(rig.models["model"].asked().len(), 0);
    kernel
        .call(session, params("echo", json!({"text": "still allowed"}), 2))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_skill_that_needs_approval_asks_before_anything_with_effects() {
    let script = vec![
        calls(&[("skill-dig", json!({"topic": "worms"}))]),
        calls(&[("echo", json!({"text": "free"})), ("write", json!({}))]),
        says("done"),
    ];
    let permissions = json!({"network": true, "filesystem": "full", "approval_required": true});
    let mut spec = spec(permissions);
    spec["skills"][0]["tools_required"] = json!(["echo", "fetch", "write"]);
    let rig = with_model(rig(spec), ScriptedModel::turns(script));
    let kernel = rig.start().await;
    let mut questions = kernel.subscribe_questions();
    let person = async {
        let question = questions.recv().await.unwrap();
        assert_eq!(question.tool, "write");
        assert!(question.reason.contains("dig"), "{}", question.reason);
        kernel
            .answer_question(&question.request_id, crate::ApprovalAnswer::Deny, None, "ann")
            .await
    };
    let (end, denied) = tokio::join!(say(&kernel, "dig"), person);
    assert_eq!((end.0, denied), (TurnEnd::Answered, true));
    assert_eq!(rig.runner.runs().len(), 1, "only the read-only call ran");
    // As a composite tool: one question for the whole.
    let session = rpc(&kernel).await;
    let call = kernel.call(session, params("research", json!({"topic": "worms"}), 7));
    let person = async {
        let question = questions.recv().await.unwrap();
        assert_eq!(question.tool, "research");
        kernel
            .answer_question(&question.request_id, crate::ApprovalAnswer::Deny, None, "ann")
            .await
    };
    let (outcome, _) = tokio::join!(call, person);
    assert!(matches!(outcome, Err(CallError::ApprovalDenied { .. })));
}
