//! A conversation goes on after a refusal that names its cause (R53), and in whatever window it finds.

use std::sync::Arc;

use serde_json::{Value, json};

use super::limits::{provider, say};
use super::models::payloads;
use super::origin::replayed;
use super::{agent, allow_all, params, rig, rpc};
use crate::ports::{FaultKind, InferRequest, ModelCompletion, ModelMessage, ProviderError, RefusalCause};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, ModelOptions, SessionHandle, SessionNotice, TurnEnd, kind};

/// A refusal with its cause.
fn refused(cause: RefusalCause) -> ProviderError {
    let kind = match cause {
        RefusalCause::TooLong { .. } => FaultKind::ContextTooLong,
        _ => FaultKind::Rejected,
    };
    ProviderError {
        cause: Some(Box::new(cause)),
        ..ScriptedModel::fault(kind, "400")
    }
}

fn parameter(name: &str, instead: Option<&str>) -> RefusalCause {
    RefusalCause::Parameter {
        name: name.to_owned(),
        instead: instead.map(str::to_owned),
    }
}

/// Says something in a session that goes on.
async fn say_in(session: &SessionHandle, text: &str) -> TurnEnd {
    session.send_text(text).await.unwrap();
    loop {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            return end;
        }
    }
}

/// An agent whose model is this.
fn with(
    answer: impl Fn(&InferRequest, usize) -> Result<ModelCompletion, ProviderError> + Send + Sync + 'static,
) -> Rig {
    let mut rig = rig(agent(allow_all()));
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::new(answer)));
    rig
}

#[tokio::test(start_paused = true)]
async fn a_parameter_that_is_refused_is_left_out_at_once_and_from_then_on() {
    let rig = with(
        |request, _| match request.adaptation.omitted.contains("stream_options") {
            true => Ok(says("fine")),
            false => Err(refused(parameter("stream_options", None))),
        },
    );
    let kernel = rig.start().await;
    let before = tokio::time::Instant::now();
    assert_eq!(say(&kernel, "hi").await.0, TurnEnd::Answered);
    assert_eq!(before.elapsed().as_millis(), 0, "no wait");
    assert_eq!(say(&kernel, "again").await.0, TurnEnd::Answered);
    assert_eq!(rig.models["model"].asked().len(), 3, "once refused, then known");
    let adapted = payloads(&rig, kind::PROVIDER_ADAPTED);
    assert_eq!(adapted[0]["cause"], "parameter");
    assert_eq!(adapted[0]["change"], "`stream_options` is left out");
    assert_eq!(
        payloads(&rig, kind::PROVIDER_FAILED)[0]["cause"]["name"],
        "stream_options"
    );
    drop(kernel);
    // The next start knows it, too.
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "once more").await.0, TurnEnd::Answered);
    assert_eq!(rig.models["model"].asked().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_parameter_is_renamed_where_the_server_says_how() {
    let rig = with(|request, _| {
        let sent = request.adaptation.renamed.get("max_tokens").map(String::as_str);
        match sent {
            Some("max_completion_tokens") => Ok(says("fine")),
            _ => Err(refused(parameter("max_tokens", Some("max_completion_tokens")))),
        }
    });
    assert_eq!(say(&rig.start().await, "hi").await.0, TurnEnd::Answered);
}

#[tokio::test(start_paused = true)]
async fn what_no_request_can_do_without_is_never_left_out() {
    for name in ["messages", "model", "tools", "system", "input"] {
        let rig = with(move |_, _| Err(refused(parameter(name, Some("something")))));
        let (end, _) = say(&rig.start().await, "hi").await;
        assert!(matches!(end, TurnEnd::Failed(_)), "{name}: {end:?}");
        assert_eq!(rig.models["model"].asked().len(), 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_refuses_is_not_asked_for_ever() {
    for cause in [
        parameter("temperature", None),
        RefusalCause::Roles,
        RefusalCause::CallIds,
        RefusalCause::TooLong { limit_tokens: None },
        RefusalCause::ResponsesApi,
    ] {
        let told = cause.clone();
        let rig = with(move |_, _| Err(refused(told.clone())));
        let (end, _) = say(&rig.start().await, "hi").await;
        assert!(matches!(end, TurnEnd::Failed(_)), "{cause:?}: {end:?}");
        assert!(rig.models["model"].asked().len() <= 4, "{cause:?}");
    }
}

/// A server with a window of so many bytes of messages.
fn strict(
    bytes: usize,
    limit_tokens: Option<u64>,
) -> impl Fn(&InferRequest, usize) -> Result<ModelCompletion, ProviderError> {
    move |request, at| {
        let size: usize = request
            .messages
            .iter()
            .map(|message| serde_json::to_string(message).unwrap().len())
            .sum();
        if size > bytes {
            return Err(refused(RefusalCause::TooLong { limit_tokens }));
        }
        match request.messages.last() {
            Some(ModelMessage::User { .. }) => Ok(calls(&[("echo", json!({ "text": format!("{at}.txt") }))])),
            _ => Ok(says("plum")),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_outgrows_a_window_nobody_told_goes_on() {
    for limit in [None, Some(8_000)] {
        let rig = with(strict(30_000, limit));
        rig.runner.set("echo", Behaviour::Say("lorem ipsum ".repeat(600)));
        let kernel = rig.start().await;
        let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
        for turn in 0..10 {
            let end = say_in(&session, &format!("turn {turn}")).await;
            assert_eq!(end, TurnEnd::Answered, "{limit:?} turn {turn}");
        }
        let replayed = replayed(&rig).await;
        assert_eq!(replayed.divergence, None, "{limit:?}");
        let refusals = payloads(&rig, kind::PROVIDER_FAILED).len();
        assert!((1..=2).contains(&refusals), "{limit:?}: learnt after {refusals}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_turn_of_many_large_results_stays_within_the_window() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([provider(
        "model",
        json!({"limits": {"max_context_window": 16_000}})
    )]);
    let mut rig = rig(spec);
    rig.models.insert(
        "model".to_owned(),
        Arc::new(ScriptedModel::new(|request, at| {
            let size = serde_json::to_string(request).unwrap().len();
            assert!(size < 16_000 * 4, "step {at}: {size} bytes");
            if at == 12 {
                return Ok(says("done"));
            }
            Ok(calls(&[("echo", json!({ "text": format!("{at}.txt") }))]))
        })),
    );
    rig.runner.set("echo", Behaviour::Say("word ".repeat(8_000)));
    let (end, _) = say(&rig.start().await, "go").await;
    assert_eq!(end, TurnEnd::Answered);
    assert!(
        payloads(&rig, kind::CONTEXT_TRIMMED)
            .iter()
            .any(|event| event["shortened_results"].as_u64() > Some(0))
    );
    // What was left out can be read again.
    let last = rig.models["model"].asked().pop().unwrap();
    assert!(last.tools.iter().any(|tool| tool.name == "output-read"));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_no_window_holds_is_refused_in_words() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([provider(
        "model",
        json!({"limits": {"max_context_window": 8_000}})
    )]);
    let rig = rig(spec);
    let (end, _) = say(&rig.start().await, &"word ".repeat(20_000)).await;
    let TurnEnd::Failed(why) = end else {
        panic!("{end:?}")
    };
    assert!(
        why.contains("too long for this model") && why.contains("in parts"),
        "{why}"
    );
    assert!(rig.models["model"].asked().is_empty(), "nobody is asked in vain");
}

#[tokio::test(start_paused = true)]
async fn a_smaller_fallback_is_sent_what_it_can_hold() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([
        provider(
            "model",
            json!({"fallback": [{"provider_ref": "small"}], "limits": {"max_context_window": 100_000}})
        ),
        provider("small", json!({"limits": {"max_context_window": 8_000}})),
    ]);
    let mut rig = rig(spec);
    rig.models.insert(
        "model".to_owned(),
        Arc::new(ScriptedModel::new(|request, _| match request.messages.last() {
            Some(ModelMessage::User { .. }) => Ok(calls(&[("echo", json!({"text": "a"}))])),
            _ => Err(ScriptedModel::fault(FaultKind::Rejected, "no")),
        })),
    );
    rig.models.insert(
        "small".to_owned(),
        Arc::new(ScriptedModel::new(strict(24_000, None))),
    );
    rig.runner.set("echo", Behaviour::Say("word ".repeat(12_000)));
    let (end, _) = say(&rig.start().await, "go").await;
    assert_eq!(end, TurnEnd::Answered);
    let trimmed = payloads(&rig, kind::CONTEXT_TRIMMED);
    assert!(
        trimmed.iter().any(|event| event["provider"] == "small"),
        "{trimmed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_model_writes_in_its_own_way_is_converted_before_anything_looks() {
    let mut spec = agent(allow_all());
    spec["tools"] = json!([{ "name": "echo", "description": "Reads", "input_schema": {"type": "object", "properties": {
        "path": {"type": "string"}, "limit": {"type": "integer"}, "deep": {"type": "boolean"}}, "required": ["path"]}}]);
    let wanted: Value = json!({"path": "a", "limit": "5", "deep": null});
    let mut rig = rig(spec);
    let asked = wanted.clone();
    rig.models.insert(
        "model".to_owned(),
        Arc::new(ScriptedModel::new(move |_, at| match at {
            1 => Ok(calls(&[("echo", asked.clone())])),
            _ => Ok(says("done")),
        })),
    );
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "go").await.0, TurnEnd::Answered);
    let requested = payloads(&rig, kind::ACTION_REQUESTED);
    assert_eq!(requested[0]["converted"], json!(["/deep", "/limit"]));
    assert_eq!(payloads(&rig, kind::ACTION_EXECUTED).len(), 1);
    // A client's own call is taken as it is written.
    let caller = rpc(&kernel).await;
    assert!(
        kernel
            .call(caller, params("echo", wanted.clone(), 7))
            .await
            .is_err()
    );
    // Where the operator says so, a model's is, too.
    rig.locals.insert(
        "model".to_owned(),
        ModelOptions {
            converts_arguments: false,
            ..ModelOptions::default()
        },
    );
    rig.models.insert(
        "model".to_owned(),
        Arc::new(ScriptedModel::new(move |_, at| match at {
            1 => Ok(calls(&[("echo", wanted.clone())])),
            _ => Ok(says("done")),
        })),
    );
    drop(kernel);
    assert_eq!(say(&rig.start().await, "go").await.0, TurnEnd::Answered);
    assert_eq!(payloads(&rig, kind::ACTION_EXECUTED).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_another_session_learnt_is_on_the_record_of_each_that_uses_it() {
    let rig = with(
        |request, _| match request.adaptation.omitted.contains("temperature") {
            true => Ok(says("fine")),
            false => Err(refused(parameter("temperature", None))),
        },
    );
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "hi").await.0, TurnEnd::Answered);
    assert_eq!(say(&kernel, "in another session").await.0, TurnEnd::Answered);
    let known = payloads(&rig, kind::PROVIDER_ADAPTED);
    let causes: Vec<&str> = known
        .iter()
        .map(|event| event["cause"].as_str().unwrap())
        .collect();
    assert_eq!(causes, ["parameter", "known"]);
    assert_eq!(known[1]["adaptation"]["omitted"], json!(["temperature"]));
    assert_eq!(replayed(&rig).await.divergence, None);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_names_another_parameter_each_time_is_not_followed_for_ever() {
    let rig = with(|_, at| Err(refused(parameter(&format!("parameter_{at}"), None))));
    let (end, _) = say(&rig.start().await, "hi").await;
    assert!(matches!(end, TurnEnd::Failed(_)));
    assert!(rig.models["model"].asked().len() <= 9);
}
