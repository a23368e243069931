//! What a running skill may call, its result, what it took; the same after a crash and in a replay.

use std::sync::Arc;

use serde_json::{Value, json};

use super::limits::say;
use super::origin::{cut, replayed, settled_turns};
use super::{agent, allow_all, rig};
use crate::kind;
use crate::notice::TurnEnd;
use crate::ports::{ModelCompletion, ModelMessage};
use crate::testing::{Rig, ScriptedModel, calls, says};

/// A skill `dig` that may use `echo` and `fetch`, changed by `change`.
fn spec(change: Value) -> Value {
    let mut spec = agent(allow_all());
    spec["tools"].as_array_mut().unwrap().push(json!(
        {"name": "fetch", "description": "x", "input_schema": {"type": "object"}, "labels": {"category": "network"}}));
    let mut skill = json!({"name": "dig", "description": "Digs.", "tools_required": ["echo", "fetch"],
        "instruction": "Dig deep."});
    for (name, value) in change.as_object().unwrap() {
        skill[name] = value.clone();
    }
    spec["skills"] = json!([skill]);
    spec
}

fn scripted(spec: Value, script: Vec<ModelCompletion>) -> Rig {
    let mut rig = rig(spec);
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::turns(script)));
    rig
}

/// The results that the model read last.
fn results(rig: &Rig) -> Vec<(String, bool)> {
    let asked = rig.models["model"].asked();
    let messages = &asked.last().unwrap().messages;
    let result = |message: &ModelMessage| match message {
        ModelMessage::ToolResult { text, is_error, .. } => Some((text.clone(), *is_error)),
        ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
    };
    messages.iter().filter_map(result).collect()
}

fn payloads(rig: &Rig, kind: &str) -> Vec<Value> {
    let events = rig.journal.events();
    let of_kind = events.iter().filter(|event| event.kind == kind);
    of_kind
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect()
}

fn ran(rig: &Rig) -> Vec<String> {
    rig.runner.runs().iter().map(|run| run.0.clone()).collect()
}

#[tokio::test]
async fn a_skills_tools_bound_what_runs_until_the_turn_ends() {
    let script = vec![
        calls(&[("write", json!({}))]),
        calls(&[("skill-dig", json!({}))]),
        calls(&[("write", json!({})), ("echo", json!({"text": "in"}))]),
        says("done"),
        calls(&[("write", json!({}))]),
        says("done"),
    ];
    let rig = scripted(spec(json!({})), script);
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "dig").await.0, TurnEnd::Answered);
    let told = results(&rig);
    assert!(
        told[2].1 && told[2].0.contains("not one of its tools"),
        "{told:?}"
    );
    assert_eq!(ran(&rig), ["write", "echo"]);
    assert_eq!(say(&kernel, "again").await.0, TurnEnd::Answered);
    assert_eq!(
        ran(&rig),
        ["write", "echo", "write"],
        "the next turn is free again"
    );
    assert_eq!(replayed(&rig).await.divergence, None);
}

#[tokio::test]
async fn an_invocation_takes_the_one_path_and_a_rule_can_refuse_it() {
    let script = || vec![calls(&[("skill-dig", json!({}))]), says("done")];
    let mut refusing = spec(json!({}));
    refusing["policies"][0]["rules"] = json!([
        {"id": "no-digging", "action": "deny", "scope": "tool", "match": {"name": "skill-dig"}},
        {"id": "rest", "action": "allow", "scope": "all"}]);
    let rig = scripted(refusing, script());
    say(&rig.start().await, "dig").await;
    let told = results(&rig);
    assert!(told[0].1 && !told[0].0.contains("Dig deep."), "{told:?}");
    assert_eq!(payloads(&rig, kind::ACTION_DENIED)[0]["rule_id"], "no-digging");
    // A rule that says nothing of it is no refusal: it has no effect of its own.
    let mut silent = spec(json!({}));
    silent["policies"][0]["rules"] =
        json!([{"id": "echo-only", "action": "allow", "scope": "tool", "match": {"name": "echo"}}]);
    let rig = scripted(silent, script());
    say(&rig.start().await, "dig").await;
    assert!(results(&rig)[0].0.contains("Dig deep."), "{:?}", results(&rig));
    assert_eq!(payloads(&rig, kind::ACTION_EXECUTED)[0]["action_id"], "skill-dig");
}

#[tokio::test]
async fn permissions_hold_for_tools_that_have_no_label() {
    let refused = async |permissions: Value| {
        let script = vec![
            calls(&[("skill-dig", json!({}))]),
            calls(&[("write", json!({})), ("echo", json!({"text": "x"}))]),
            says("done"),
        ];
        let change = json!({"tools_required": ["write", "echo"], "permissions": permissions});
        let rig = scripted(spec(change), script);
        say(&rig.start().await, "dig").await;
        let told = results(&rig);
        (told[1].1, told[2].1)
    };
    assert_eq!(
        refused(json!({"network": true, "filesystem": "full"})).await,
        (false, false)
    );
    assert_eq!(
        refused(json!({"network": false, "filesystem": "full"})).await,
        (true, true)
    );
    assert_eq!(
        refused(json!({"network": true, "filesystem": "none"})).await,
        (true, true)
    );
    // `echo` is read-only, `write` is not.
    assert_eq!(
        refused(json!({"network": true, "filesystem": "read-only"})).await,
        (true, false)
    );
    assert_eq!(
        refused(json!({"network": true, "filesystem": "write-workspace"})).await,
        (true, true)
    );
}

#[tokio::test]
async fn a_result_that_does_not_fit_is_repaired_once_and_then_fails_the_turn() {
    let schema = json!({"output_schema": {"type": "object", "required": ["worms"],
        "properties": {"worms": {"type": "integer"}}}});
    let mended = scripted(
        spec(schema.clone()),
        vec![
            calls(&[("skill-dig", json!({}))]),
            says("there are three"),
            says("Here:\n```json\n{\"worms\": 3}\n```\n"),
        ],
    );
    assert_eq!(say(&mended.start().await, "dig").await.0, TurnEnd::Answered);
    let asked = mended.models["model"].asked();
    assert!(
        matches!(asked[2].messages.last(), Some(ModelMessage::User { text, .. }) if text.contains("does not fit")),
        "{:?}",
        asked[2].messages
    );
    let ended = &payloads(&mended, kind::SKILL_FINISHED)[0];
    assert_eq!((&ended["fits"], &ended["repaired"]), (&json!(true), &json!(true)));
    assert_eq!(replayed(&mended).await.divergence, None);
    let failing = scripted(
        spec(schema),
        vec![
            calls(&[("skill-dig", json!({}))]),
            says("three"),
            says("still three"),
            says("never asked"),
        ],
    );
    let TurnEnd::Failed(why) = say(&failing.start().await, "dig").await.0 else {
        panic!("the turn failed");
    };
    assert!(why.contains("output_schema") && why.contains("dig"), "{why}");
    assert_eq!(failing.models["model"].asked().len(), 3, "one more try, no more");
    assert_eq!(replayed(&failing).await.divergence, None);
}

#[tokio::test]
async fn what_a_skill_took_is_recorded_beside_its_estimates() {
    let change = json!({"estimates": {"avg_tokens": 900, "avg_duration_seconds": 1.5, "avg_tool_calls": 4}});
    let script = vec![
        calls(&[("skill-dig", json!({}))]),
        calls(&[("echo", json!({"text": "a"})), ("echo", json!({"text": "b"}))]),
        says("done"),
    ];
    let rig = scripted(spec(change), script);
    say(&rig.start().await, "dig").await;
    let asked = rig.models["model"].asked();
    let offer = asked[0]
        .tools
        .iter()
        .find(|tool| tool.name == "skill-dig")
        .unwrap();
    assert!(
        offer.description.contains("about 900 tokens, 2 s, 4 tool calls"),
        "{}",
        offer.description
    );
    let said = json!({"calls": 4, "duration_ms": 1500, "tokens": 900});
    assert_eq!(payloads(&rig, kind::SKILL_INVOKED)[0]["estimates"], said);
    let ended = &payloads(&rig, kind::SKILL_FINISHED)[0];
    assert_eq!((&ended["estimates"], &ended["calls"]), (&said, &json!(2)));
}

#[tokio::test]
async fn a_skill_whose_tools_are_lacking_is_refused_with_their_names() {
    let change = json!({"labels": {"requires-tools": "shell web-fetch echo"}});
    let rig = scripted(spec(change), vec![calls(&[("skill-dig", json!({}))]), says("oh")]);
    say(&rig.start().await, "dig").await;
    let told = results(&rig);
    assert!(told[0].1, "{told:?}");
    assert!(
        told[0].0.contains("`shell`, `web-fetch`") && !told[0].0.contains("`echo`"),
        "{told:?}"
    );
    assert!(!told[0].0.contains("Dig deep."), "{told:?}");
}

#[tokio::test]
async fn a_crash_anywhere_leaves_the_skills_bound_in_force() {
    let change = json!({"output_schema": {"type": "object"}});
    let answers = ScriptedModel::new(|request, _| {
        let told = request.messages.iter().rev().find_map(|message| match message {
            ModelMessage::ToolResult { text, .. } => Some(text.clone()),
            ModelMessage::User { text, .. } if text.contains("does not fit") => Some("again".to_owned()),
            ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
        });
        Ok(match told.as_deref() {
            None => calls(&[("skill-dig", json!({}))]),
            Some("again") => says("{}"),
            Some(text) if text.contains("Dig deep.") => calls(&[("write", json!({}))]),
            Some(_) => says("no JSON"),
        })
    });
    let mut rig = rig(spec(change));
    let model = Arc::new(answers);
    rig.models.insert("model".to_owned(), Arc::clone(&model));
    assert_eq!(say(&rig.start().await, "dig").await.0, TurnEnd::Answered);
    assert_eq!(ran(&rig), Vec::<String>::new());
    let events = rig.journal.events();
    let accepted = events
        .iter()
        .position(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap();
    let answered = events
        .iter()
        .position(|event| event.kind == kind::MESSAGE_ANSWERED)
        .unwrap();
    let mut joins = 0;
    for at in accepted + 1..=answered {
        let mut after = cut(&rig, at);
        after.models.insert("model".to_owned(), Arc::clone(&model));
        let kernel = after.start().await;
        settled_turns(&after).await;
        assert_eq!(ran(&after), Vec::<String>::new(), "after event {at}");
        // Cut between its decision and its end, which one commit holds, the invocation is of unknown outcome and joined nothing.
        let executed = payloads(&after, kind::ACTION_EXECUTED);
        let joined = executed
            .iter()
            .filter(|event| event["action_id"] == "skill-dig")
            .count();
        let repaired = payloads(&after, kind::SKILL_REPAIRED).len();
        assert_eq!(repaired, joined, "after event {at}");
        joins += joined;
        let ends = payloads(&after, kind::MESSAGE_ANSWERED).len();
        assert_eq!(ends, 1, "after event {at}");
        kernel.shutdown("the test is over", 1_000).await;
    }
    assert!(joins > 8, "{joins}");
}
