//! What a model reads of a long result, how it reads the rest, and results that are not what was promised.

use std::sync::Arc;

use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, params, rig, rpc};
use crate::EntryPoint;
use crate::error::CallError;
use crate::ports::ModelMessage;
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};

fn long() -> String {
    format!("first line\n{}\nlast: no such table", "0123456789".repeat(20_000))
}

/// Asks for `write`, then reads on with what the cut says, then answers with what it read.
fn reading(rig: &mut Rig) -> Arc<ScriptedModel> {
    let model = ScriptedModel::new(|request, count| {
        Ok(match count {
            1 => calls(&[("write", json!({}))]),
            2 => {
                let told = last(&request.messages);
                let digest = told.split("\"digest\": \"").nth(1).unwrap().get(..64).unwrap();
                calls(&[(
                    "output-read",
                    json!({"digest": digest, "offset": 100_000, "limit": 40}),
                )])
            }
            _ => says(&last(&request.messages)),
        })
    });
    let model = Arc::new(model);
    rig.models.insert("model".to_owned(), Arc::clone(&model));
    model
}

fn last(messages: &[ModelMessage]) -> String {
    match messages.last() {
        Some(ModelMessage::ToolResult { text, .. }) => text.clone(),
        other => panic!("{other:?}"),
    }
}

fn offered(model: &ScriptedModel) -> Vec<bool> {
    let has =
        |request: &crate::ports::InferRequest| request.tools.iter().any(|tool| tool.name == "output-read");
    model.asked().iter().map(has).collect()
}

#[tokio::test]
async fn a_cut_result_is_read_on_and_reading_is_offered_only_then() {
    // The last rule denies whatever no other names: reading on needs no rule of its own.
    let rules = json!([{"id": "w", "action": "allow", "scope": "tool", "match": {"name": "write"}}, {"id": "rest", "action": "deny", "scope": "all"}]);
    let mut rig = rig(agent(rules));
    rig.runner.set("write", Behaviour::Fail(long()));
    let model = reading(&mut rig);
    let kernel = rig.start().await;
    let (_, told) = say(&kernel, "go").await;
    let said = format!("{told:?}");
    assert!(
        said.contains("[bytes 100000 to 100040 of 200031; read on with"),
        "{said}"
    );
    assert_eq!(offered(&model), [false, true, true]);
    let told = last(&model.asked()[1].messages);
    assert!(told.starts_with("[it failed: "), "{told}");
    assert!(told.contains("first line") && told.ends_with("last: no such table"));
    assert!(told.len() <= 24 << 10);
    assert_eq!(rig.runner.runs().len(), 1, "the kernel reads itself");
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

#[tokio::test]
async fn another_session_and_a_session_without_a_cut_read_nothing() {
    let mut rig = rig(agent(allow_all()));
    rig.runner.set("write", Behaviour::Fail(long()));
    let model = reading(&mut rig);
    let kernel = rig.start().await;
    say(&kernel, "go").await;
    let told = last(&model.asked()[1].messages);
    let digest = told
        .split("\"digest\": \"")
        .nth(1)
        .unwrap()
        .get(..64)
        .unwrap()
        .to_owned();
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("output-read", json!({"digest": digest}), 1))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    // Its own cut does not open another session's output.
    let model = ScriptedModel::new(move |request, count| {
        Ok(match count {
            1 => calls(&[("write", json!({}))]),
            2 => calls(&[("output-read", json!({"digest": digest.replace('0', "1")}))]),
            _ => says(&last(&request.messages)),
        })
    });
    let mut second = rig.clone();
    second.models.insert("model".to_owned(), Arc::new(model));
    drop(kernel);
    let kernel = second.start().await;
    let (_, told) = say(&kernel, "go").await;
    let said = format!("{told:?}");
    assert!(
        said.contains("no output with this digest was cut in this session"),
        "{said}"
    );
}

#[tokio::test]
async fn a_rule_that_names_it_denies_reading_and_an_observer_has_none() {
    let rules = json!([{"id": "no", "action": "deny", "scope": "tool", "match": {"name": "output-read"}}, {"id": "all", "action": "allow", "scope": "all"}]);
    let mut rig = rig(agent(rules));
    rig.runner.set("write", Behaviour::Fail(long()));
    let model = reading(&mut rig);
    let kernel = rig.start().await;
    say(&kernel, "go").await;
    let told = last(&model.asked()[2].messages);
    assert!(told.contains("denied"), "{told}");
}

#[tokio::test]
async fn after_a_restart_the_session_still_reads_on() {
    let mut rig = rig(agent(allow_all()));
    rig.runner.set("write", Behaviour::Fail(long()));
    let model = reading(&mut rig);
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("go").await.unwrap();
    while !matches!(
        session.next_notice().await,
        Some(crate::SessionNotice::TurnEnded { .. })
    ) {}
    let id = session.id;
    drop(session);
    kernel.shutdown("test", 1_000).await;
    let told = last(&model.asked()[1].messages);
    let digest = told
        .split("\"digest\": \"")
        .nth(1)
        .unwrap()
        .get(..64)
        .unwrap()
        .to_owned();
    let again = ScriptedModel::new(move |request, count| {
        Ok(match count {
            1 => calls(&[("output-read", json!({"digest": digest, "limit": 10}))]),
            _ => says(&last(&request.messages)),
        })
    });
    let mut rig = rig.clone();
    let again = Arc::new(again);
    rig.models.insert("model".to_owned(), Arc::clone(&again));
    let kernel = rig.start().await;
    let session = kernel.reopen_session(id, EntryPoint::Cli).await.unwrap();
    session.send_text("more").await.unwrap();
    while !matches!(
        session.next_notice().await,
        Some(crate::SessionNotice::TurnEnded { .. })
    ) {}
    assert_eq!(offered(&again), [true, true]);
    let told = last(&again.asked()[1].messages);
    assert!(
        told.contains("[bytes 0 to 10 of 200031") && told.ends_with("first line"),
        "{told}"
    );
}

#[tokio::test]
async fn a_result_that_does_not_fit_is_kept_and_told_as_an_error() {
    let schema = json!({"type": "object", "properties": {"rows": {"type": "integer"}}, "required": ["rows"]});
    let mut spec = agent(allow_all());
    spec["tools"][1]["output_schema"] = schema.clone();
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    // The test's runner says its arguments back as JSON text.
    let fits = kernel
        .call(session, params("write", json!({"rows": 2}), 1))
        .await
        .unwrap();
    assert!(!fits.is_error, "{fits:?}");
    for (n, arguments) in [
        (2, json!({"rows": "two"})),
        (3, json!({})),
        (4, json!({"text": "prose"})),
    ] {
        let result = kernel
            .call(session, params("write", arguments.clone(), n))
            .await
            .unwrap();
        assert!(result.is_error, "{arguments}: {result:?}");
        let told: Vec<String> = result.content.iter().map(|block| block.as_model_text()).collect();
        assert!(told[0].contains("does not fit its `output_schema`"), "{told:?}");
        let kept = arguments
            .get("text")
            .and_then(Value::as_str)
            .map_or_else(|| arguments.to_string(), str::to_owned);
        assert_eq!(told[1], kept, "the result is kept");
    }
}

#[tokio::test]
async fn broken_arguments_are_not_sent_back_whole() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let arguments = json!({"text": ["x".repeat(600_000)]});
    let error = kernel
        .call(session, params("echo", arguments, 1))
        .await
        .unwrap_err();
    let told = error.to_string();
    assert!(
        told.len() < 2_000 && told.contains("is not of type"),
        "{} bytes",
        told.len()
    );
    assert!(serde_json::to_string(&error).unwrap().len() < 4_000);
}
