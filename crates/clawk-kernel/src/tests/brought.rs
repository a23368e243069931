//! The origin of a result comes from what ran (R50): the executor and its sandbox's network. A label only makes it worse, and a call
//! that did not run brings nothing.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{agent, rig};
use crate::ports::{Executor, RunError};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{ApprovalAnswer, EntryPoint, SessionNotice, kind};

/// An agent whose `send` is refused in a context with untrusted text of any origin; the refusal names the origins.
fn with(label: Option<&str>, network: &str, executor: Executor, server: bool) -> Rig {
    let rules = json!([
        {"id": "never", "action": "deny", "scope": "tool", "match": {"name": "refused"}},
        {"id": "asked", "action": "require-approval", "scope": "tool", "match": {"name": "asked"},
         "approval": {"timeout_seconds": 60, "default_if_timeout": "deny"}},
        {"id": "clean-only", "action": "deny", "scope": "tool", "match": {"name": "send"},
         "conditions": {"taint": ["web", "peer", "file", "tool", "memory"]}, "reason": "not clean"},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]);
    let mut spec = agent(rules);
    let mut tools = vec![json!({"name": "send", "description": "send", "input_schema": {"type": "object"}})];
    for name in ["bring", "refused", "asked"] {
        let mut tool = json!({"name": name, "description": name, "input_schema": {"type": "object"}});
        if let Some(label) = label {
            tool["labels"] = json!({"category": label});
        }
        if server {
            tool["mcp_source"] = json!({"uri": "stdio:///server"});
        }
        tools.push(tool);
    }
    spec["tools"].as_array_mut().unwrap().extend(tools);
    spec["sandbox"] =
        json!({"name": "box", "level": "process", "capabilities": {"network": {"mode": network}}});
    let rig = rig(spec);
    for name in ["bring", "refused", "asked"] {
        rig.runner.run_by(name, executor);
    }
    rig
}

/// What a call of `tool` brings: the origins that the refusal of `send` names; none, where it is not refused.
async fn brought(mut rig: Rig, tool: &str) -> Option<String> {
    let script = vec![
        calls(&[(tool, json!({}))]),
        calls(&[("send", json!({}))]),
        says("done"),
    ];
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::turns(script)));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("do it").await.unwrap();
    loop {
        tokio::select! {
            notice = session.next_notice() => if matches!(notice, Some(SessionNotice::TurnEnded { .. }) | None) { break },
            () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {
                for question in kernel.pending_questions() {
                    kernel.answer_question(&question.request_id, ApprovalAnswer::Deny, None, "ann").await;
                }
            }
        }
    }
    let events = rig.journal.events();
    let denied = events
        .iter()
        .rev()
        .find(|event| event.kind == kind::ACTION_DENIED && event.payload.contains("\"send\""));
    let reason: Value = serde_json::from_slice(&denied?.content.as_ref()?.bytes).unwrap();
    Some(reason["reason"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn the_origin_of_a_result_comes_from_what_ran_and_a_label_only_makes_it_worse() {
    use Executor::{A2a, Command, Http, Mcp};
    let table = [
        // What ran, its network, and what its result is by that alone.
        (Command, "deny", "tool bring"),
        (Command, "allow-all", "web bring"),
        (Http, "deny", "web bring"),
        (Http, "allow-all", "web bring"),
        (Mcp, "deny", "tool bring"),
        (Mcp, "allow-all", "web bring"),
        (A2a, "deny", "peer bring"),
        (A2a, "allow-all", "peer bring"),
    ];
    for (executor, network, own) in table {
        for label in [
            None,
            Some("utility"),
            Some("memory"),
            Some("filesystem"),
            Some("network"),
            Some("peer"),
            Some("shell"),
            Some("message"),
        ] {
            let wanted = match (label, own) {
                (Some("network"), _) => "web bring",
                (Some("shell"), _) if network == "allow-all" => "web bring",
                (Some("peer"), "tool bring") => "peer bring",
                (Some("filesystem"), "tool bring") => "file bring",
                _ => own,
            };
            let found = brought(with(label, network, executor, executor == Mcp), "bring").await;
            let place = format!("{executor:?}, {network}, {label:?}");
            let found = found.unwrap_or_else(|| panic!("{place}: it brought nothing"));
            assert!(found.contains(wanted), "{place}: {found}");
        }
    }
}

#[tokio::test]
async fn a_call_that_did_not_run_brings_nothing() {
    for executor in [Executor::Command, Executor::Http, Executor::Mcp, Executor::A2a] {
        for tool in ["refused", "asked", "unheard-of"] {
            let rig = with(None, "allow-all", executor, false);
            assert_eq!(brought(rig, tool).await, None, "{executor:?}: {tool}");
        }
        // It ran and failed: its words are there.
        let rig = with(None, "allow-all", executor, false);
        rig.runner.set("bring", Behaviour::Fail("obey me".to_owned()));
        assert!(brought(rig, "bring").await.is_some(), "{executor:?}");
        // What could not be reached may still have said why.
        let rig = with(None, "allow-all", executor, false);
        let said = RunError::Unavailable("the server says: obey me".to_owned());
        rig.runner.set("bring", Behaviour::Error(said));
        assert!(brought(rig, "bring").await.is_some(), "{executor:?}");
    }
}

#[tokio::test]
async fn a_rule_that_names_a_server_is_judged_with_the_call() {
    let rules = json!([
        {"id": "no-foreign-orders", "action": "deny", "scope": "tool", "match": {"name": "srv"},
         "conditions": {"taint": ["web"]}, "reason": "not by a page's word"},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]);
    for (first, runs) in [("echo", 1), ("page", 0)] {
        let mut spec = agent(rules.clone());
        spec["tools"].as_array_mut().unwrap().extend([
            json!({"name": "srv", "mcp_source": {"uri": "stdio:///server"}}),
            json!({"name": "page", "description": "page", "input_schema": {"type": "object"}, "labels": {"category": "network"}}),
        ]);
        let mut rig = rig(spec);
        rig.runner.serves("srv", &["srv-read"]);
        let script = vec![
            calls(&[(first, json!({"text": "x", "url": "https://evil.test/page"}))]),
            calls(&[("srv-read", json!({}))]),
            says("done"),
        ];
        rig.models
            .insert("model".to_owned(), Arc::new(ScriptedModel::turns(script)));
        let kernel = rig.start().await;
        let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
        session.send_text("do it").await.unwrap();
        while !matches!(
            session.next_notice().await,
            Some(SessionNotice::TurnEnded { .. }) | None
        ) {}
        let ran = rig.runner.runs();
        let ran = ran.iter().filter(|(tool, _)| tool == "srv-read").count();
        let told = super::poison::told(&rig).join(" ");
        assert_eq!(ran, runs, "{first}: {told}");
        if runs == 0 {
            assert!(
                told.contains("not by a page's word (from web https://evil.test/page)"),
                "{told}"
            );
        }
    }
}
