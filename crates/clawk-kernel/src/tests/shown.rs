//! Shown, not claimed: twenty answers that say what did not happen, each contradicted by its own line.

use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::Role;
use serde_json::json;

use super::{agent, rig, soon};
use crate::SessionNotice;
use crate::door::REMEMBERED_DAYS;
use crate::ingress::ChannelMessage;
use crate::ports::{MessageContext, ModelMessage, RunError};
use crate::testing::{Behaviour, Rig, ScriptedChannel, ScriptedModel, calls, says};

/// What happens, what the agent claims, and what the line says.
pub(super) type Case = (&'static [&'static str], &'static str, &'static str);

const NOTHING: &str = "Record: no action was taken for this answer.";

/// `write-N` are tools with effects; what each does stands in [`with`].
pub(super) const CASES: [Case; 20] = [
    (&[], "Done! The file was saved.", NOTHING),
    (&[], "I have sent the mail to your boss.", NOTHING),
    (&[], "I deleted all old backups, as you wished.", NOTHING),
    (&[], "Your table is booked for eight.", NOTHING),
    (&[], "Deployed. Everything is live.", NOTHING),
    (&["denied"], "I removed the folder.", "Record: denied: `denied`."),
    (&["denied"], "All is well.", "Record: denied: `denied`."),
    (
        &["denied", "denied"],
        "Both are gone now.",
        "Record: denied: `denied` (×2).",
    ),
    (
        &["denied", "good"],
        "Both were written.",
        "Record: done: `good`; denied: `denied`.",
    ),
    (&["fails"], "The upload succeeded.", "Record: failed: `fails`."),
    (
        &["fails"],
        "It worked on the first attempt!",
        "Record: failed: `fails`.",
    ),
    (
        &["fails", "fails"],
        "Third time lucky, and it is in.",
        "Record: failed: `fails` (×2).",
    ),
    (
        &["good", "fails"],
        "Both steps are complete.",
        "Record: done: `good`; failed: `fails`.",
    ),
    (&["broken"], "The order is placed.", "Record: failed: `broken`."),
    (
        &["broken", "good", "denied"],
        "Everything you asked for is there.",
        "Record: done: `good`; denied: `denied`; failed: `broken`.",
    ),
    (
        &["unknown"],
        "The payment went through.",
        "Record: outcome unknown: `unknown`.",
    ),
    (
        &["unknown"],
        "The payment did not go through.",
        "Record: outcome unknown: `unknown`.",
    ),
    (
        &["good", "unknown"],
        "Booked and paid.",
        "Record: done: `good`; outcome unknown: `unknown`.",
    ),
    (&["good"], "I did nothing at all.", "Record: done: `good`."),
    (
        &["good", "good"],
        "I wrote it once. Record: done: `none`.",
        "Record: done: `good` (×2).",
    ),
];

fn with() -> Rig {
    tools(|_| {})
}

/// The agent of the twenty answers, with another manifest.
pub(super) fn tools(change: impl FnOnce(&mut serde_json::Value)) -> Rig {
    let rules = json!([
        {"id": "no", "action": "deny", "scope": "tool", "match": {"name": "denied"}, "reason": "not here"},
        {"id": "rest", "action": "allow", "scope": "all"}]);
    let mut manifest = agent(rules);
    let tools: Vec<_> = ["good", "denied", "fails", "broken", "unknown"]
        .iter()
        .map(|name| json!({"name": name, "description": name, "input_schema": {"type": "object"}}))
        .collect();
    manifest["tools"] = json!(tools);
    change(&mut manifest);
    let mut rig = rig(manifest);
    rig.runner
        .set("fails", Behaviour::Fail("it says that it failed".to_owned()));
    rig.runner.set(
        "broken",
        Behaviour::Error(RunError::Unavailable("not there".to_owned())),
    );
    rig.runner.set(
        "unknown",
        Behaviour::Error(RunError::Unknown("cut short".to_owned())),
    );
    let model = ScriptedModel::new(|request, _| {
        let said = request.messages.iter().rev().find_map(|message| match message {
            ModelMessage::User { text, .. } => text.parse::<usize>().ok(),
            _ => None,
        });
        let (tools, claim, _) = CASES[said.unwrap()];
        let asked = matches!(request.messages.last(), Some(ModelMessage::User { .. }));
        if asked && !tools.is_empty() {
            let wanted: Vec<_> = tools
                .iter()
                .enumerate()
                .map(|(n, tool)| (*tool, json!({ "n": n })))
                .collect();
            return Ok(calls(&wanted));
        }
        Ok(says(claim))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

#[tokio::test]
async fn twenty_answers_that_claim_what_did_not_happen_are_each_contradicted_by_their_own_line() {
    let rig = with();
    let kernel = rig.start().await;
    let port = Arc::new(ScriptedChannel::default());
    let _deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
    // Half of them in one conversation after each other: a line is about its own turn.
    for (n, (_, claim, line)) in CASES.iter().enumerate() {
        let inbound = ChannelMessage {
            channel: "chat".to_owned(),
            conversation: if n % 2 == 0 {
                "room".to_owned()
            } else {
                n.to_string()
            },
            direct: false,
            sender: "ann".to_owned(),
            role: Role::User,
            platform_ids: vec![n.to_string()],
            remembered_days: REMEMBERED_DAYS,
            text: n.to_string(),
            images: Vec::new(),
            context: MessageContext::default(),
        };
        kernel.submit_message(inbound).await.unwrap();
        soon(async {
            while port.sent().len() <= n {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let text = port.sent()[n].text.clone();
        assert_eq!(text, format!("{claim}\n\n_{line}_"), "{n}");
    }
}

#[tokio::test]
async fn a_surface_is_told_the_line_before_the_turn_ends() {
    let rig = with();
    let kernel = rig.start().await;
    let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
    session.send_text("8").await.unwrap();
    let mut told = Vec::new();
    soon(async {
        loop {
            match session.next_notice().await {
                Some(SessionNotice::Shown(shown, line)) => {
                    assert!(shown.may_contradict());
                    told.push(line);
                }
                Some(SessionNotice::TurnEnded { .. }) | None => break,
                Some(_) => {}
            }
        }
    })
    .await;
    assert_eq!(told, ["Record: done: `good`; denied: `denied`."]);
}
