//! A client's own tools (R44): offered, handed over, run by nobody here; the same after a crash and in a replay.

use std::sync::Arc;

use clawk_manifest::model::Role;
use serde_json::{Value, json};

use super::origin::{cut, replayed};
use super::{agent, allow_all, id, rig, soon};
use crate::kind;
use crate::ports::{ModelMessage, ToolOffer};
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{ClientCall, EntryPoint, Kernel, TalkRequest, TalkStop, TurnResult};

fn weather() -> ToolOffer {
    ToolOffer {
        name: "weather".into(),
        description: "Tells the weather".into(),
        input_schema: json!({"type": "object"}),
    }
}

/// Echoes and asks the client for the weather; says what it reads of the next message.
fn rigged() -> Rig {
    let mut rig = rig(agent(allow_all()));
    rig.models.insert("model".to_owned(), Arc::new(model()));
    rig
}

fn model() -> ScriptedModel {
    ScriptedModel::new(|request, _| {
        let offered = request.tools.iter().any(|tool| tool.name == "weather");
        Ok(match request.messages.last() {
            Some(ModelMessage::User { text, .. }) if text.ends_with("rain?") && offered => calls(&[
                ("echo", json!({"text": "x"})),
                ("weather", json!({"city": "Bonn"})),
            ]),
            Some(ModelMessage::User { text, .. }) => says(&format!("read: {text}")),
            _ => says("not asked again"),
        })
    })
}

fn asked(text: &str, n: u32) -> TalkRequest {
    let talk = TalkRequest::new("ann", Some("desk".into()), text.to_owned(), id(n));
    TalkRequest {
        tools: vec![weather()],
        ..talk
    }
}

async fn send(kernel: &Kernel, asked: TalkRequest) -> TurnResult {
    let door = EntryPoint::Rpc {
        client: "test".into(),
        role: Role::User,
    };
    soon(kernel.send_message(door, asked, &|_, _| ())).await.unwrap()
}

fn handed() -> Vec<ClientCall> {
    vec![ClientCall {
        arguments: r#"{"city":"Bonn"}"#.into(),
        id: "call-1-weather".into(),
        name: "weather".into(),
    }]
}

#[tokio::test]
async fn a_clients_tool_is_handed_over_and_the_turn_ends_with_it() {
    let rig = rigged();
    let kernel = rig.start().await;
    let told = send(&kernel, asked("rain?", 1)).await;
    assert_eq!((told.stop, told.calls.clone()), (TalkStop::Answered, handed()));
    let names: Vec<String> = rig.runner.runs().iter().map(|run| run.0.clone()).collect();
    assert_eq!(names, ["echo"], "its own tools run, the client's does not");
    // The conversation is well-formed, and the next message goes on with it.
    let next = send(&kernel, asked("wet", 2)).await;
    assert_eq!(next.text, "read: wet");
    // Without the tools of that request, the model is not offered them.
    let bare = TalkRequest {
        tools: Vec::new(),
        ..asked("rain?", 3)
    };
    assert_eq!(send(&kernel, bare).await.text, "read: rain?");
    // The same request has the same end, and other tools under its id are refused.
    assert_eq!(send(&kernel, asked("rain?", 1)).await.calls, handed());
    let other = TalkRequest {
        tools: Vec::new(),
        ..asked("rain?", 1)
    };
    let door = EntryPoint::Rpc {
        client: "test".into(),
        role: Role::User,
    };
    assert!(kernel.send_message(door, other, &|_, _| ()).await.is_err());
    let replayed = replayed(&rig).await;
    assert_eq!(replayed.divergence, None, "{replayed:?}");
}

#[tokio::test]
async fn a_tool_of_the_agents_own_is_never_the_clients() {
    let rig = rigged();
    let kernel = rig.start().await;
    let mut talk = asked("rain?", 1);
    talk.tools.push(ToolOffer {
        name: "echo".into(),
        ..weather()
    });
    let told = send(&kernel, talk).await;
    assert_eq!(told.calls, handed());
    assert_eq!(rig.runner.runs().len(), 1, "echo ran here");
}

#[tokio::test]
async fn after_a_crash_anywhere_the_turn_ends_with_the_same_call() {
    let rig = rigged();
    let kernel = rig.start().await;
    send(&kernel, asked("rain?", 1)).await;
    let events = rig.journal.events();
    let accepted = events
        .iter()
        .position(|event| event.kind == kind::MESSAGE_TOOLS)
        .unwrap();
    for at in accepted + 1..=events.len() {
        let mut after = cut(&rig, at);
        after.models.insert("model".to_owned(), Arc::new(model()));
        let kernel = after.start().await;
        let told = send(&kernel, asked("rain?", 1)).await;
        assert_eq!(
            (told.stop, told.calls),
            (TalkStop::Answered, handed()),
            "after event {at}"
        );
        let ends = after.journal.kinds();
        let ends = ends.iter().filter(|known| *known == kind::CLIENT_CALLED).count();
        assert_eq!(ends, 1, "after event {at}");
    }
}

#[tokio::test]
async fn who_may_call_a_tool_with_some_arguments_is_offered_it() {
    let rules = json!([
        {"id": "no-writing", "action": "deny", "scope": "tool", "match": {"name": "write"}},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]);
    let kernel = rig(agent(rules)).start().await;
    let names = |offers: Vec<ToolOffer>| offers.into_iter().map(|offer| offer.name).collect::<Vec<_>>();
    assert_eq!(names(kernel.offered_tools(Role::User).await), ["echo"]);
    assert_eq!(
        names(kernel.offered_tools(Role::Viewer).await),
        Vec::<String>::new()
    );
    let places = json!([{"id": "here", "action": "allow", "scope": "tool", "match": {"name": "write"},
        "conditions": {"path_within": ["/tmp"]}}]);
    let kernel = rig(agent(places)).start().await;
    assert_eq!(
        names(kernel.offered_tools(Role::User).await),
        ["write"],
        "some paths are allowed"
    );
    let silent: Value =
        json!([{"id": "other", "action": "allow", "scope": "tool", "match": {"name": "other"}}]);
    let kernel = rig(agent(silent)).start().await;
    assert!(
        kernel.offered_tools(Role::Admin).await.is_empty(),
        "no rule allows anything (R14)"
    );
}
