//! A secret that is known here goes in and out by no way, whatever the policies screen: none is set in these tests.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::limits::say;
use super::screening::{SECRET, encodings, kept, knowing, screened};
use super::{agent, allow_all, id, params, rpc};
use crate::error::CallError;
use crate::testing::{ScriptedModel, calls, says};
use crate::{EntryPoint, kind};

const MARK: &str = "[redacted:known-secret LAMP_KEY]";

#[tokio::test]
async fn arguments_reach_neither_tool_nor_record() {
    for encoded in encodings() {
        let rig = knowing(agent(allow_all()));
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let arguments = json!({"header": format!("Bearer {encoded}"), "deep": [{"k": encoded}]});
        kernel.call(session, params("write", arguments, 1)).await.unwrap();
        let (_, ran) = rig.runner.runs().remove(0);
        assert!(json!(ran).to_string().contains(MARK), "{encoded}: {ran:?}");
        assert!(
            !json!(ran).to_string().contains(&encoded) && !kept(&rig).contains(&encoded),
            "{encoded}"
        );
        assert_eq!(screened(&rig, kind::SCREEN_SECRET)[0]["place"], "arguments");
    }
}

#[tokio::test]
async fn names_and_refused_arguments_are_not_kept() {
    let rig = knowing(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut call = params(&format!("tool-{SECRET}"), json!({"k": SECRET}), 1);
    call.context.identity = format!("me {SECRET}");
    let error = kernel.call(session, call).await.unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    for (member, n) in [("sandbox", 2), ("policy", 3)] {
        let mut call = params("write", json!({}), n);
        let name = Some(format!("box {SECRET}"));
        if member == "sandbox" {
            call.context.sandbox = name;
        } else {
            call.context.policy = name;
        }
        let error = kernel.call(session, call).await.unwrap_err();
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    }
    let wrong = params("echo", json!({"text": {"a": SECRET}}), 4);
    let error = kernel.call(session, wrong).await.unwrap_err();
    assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    assert!(!kept(&rig).contains(SECRET), "{}", kept(&rig));
}

#[tokio::test]
async fn messages_prompts_and_what_a_model_asks_for_hold_none() {
    let mut spec = agent(allow_all());
    spec["identity"] =
        json!({"name": "tester", "personality": format!("The key is {SECRET}."), "autonomy": "autonomous"});
    let mut rig = knowing(spec);
    let mut wanted = calls(&[("write", json!({"t": SECRET})), ("nothing", json!({}))]);
    wanted.calls[0].id = format!("id-{SECRET}");
    wanted.calls[1].name = format!("name-{SECRET}");
    wanted.model = format!("model-{SECRET}");
    let model = ScriptedModel::turns(vec![wanted, says("done")]);
    let model = std::sync::Arc::new(model);
    rig.models
        .insert("model".to_owned(), std::sync::Arc::clone(&model));
    let kernel = rig.start().await;
    let (_, told) = say(&kernel, &format!("use {SECRET} now")).await;
    assert!(!format!("{told:?}").contains(SECRET), "{told:?}");
    let asked = model.asked();
    assert_eq!(asked.len(), 2);
    assert!(!format!("{asked:?}").contains(SECRET), "{asked:?}");
    assert_eq!(rig.runner.runs()[0].1["t"], MARK);
    assert!(!kept(&rig).contains(SECRET), "{}", kept(&rig));
}

#[tokio::test]
async fn questions_descriptions_and_reasons_hold_none() {
    let mut spec = agent(json!([{"id": "ask", "action": "require-approval", "scope": "all"}]));
    spec["tools"] = json!([{"name": "bare"}]);
    let rig = knowing(spec);
    rig.runner.say_of("bare", &format!("Sends {SECRET} along."));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = tokio::spawn(kernel.call(session, params("bare", json!({"t": SECRET}), 1)));
    let question = loop {
        if let Some(question) = kernel.pending_questions().pop() {
            break question;
        }
        tokio::task::yield_now().await;
    };
    assert!(!format!("{question:?}").contains(SECRET), "{question:?}");
    let reason = Some(format!("never send {SECRET}"));
    assert!(
        kernel
            .answer_question(&id(1), crate::ApprovalAnswer::Deny, reason, "op")
            .await
    );
    let error = call.await.unwrap().unwrap_err();
    assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    assert!(!kept(&rig).contains(SECRET), "{}", kept(&rig));
}

/// A value somewhere in which the secret stands, as text or as a key.
fn holding() -> impl Strategy<Value = Value> {
    let text = ("[a-z /]{0,12}", "[a-z\"\n]{0,12}").prop_map(|(a, b)| format!("{a}{SECRET}{b}"));
    let leaf = prop_oneof![
        text.clone().prop_map(Value::String),
        text.prop_map(|key| json!({key: 1}))
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..3).prop_map(Value::Array),
            ("[a-z]{1,6}", inner).prop_map(|(key, value)| json!({key: value, "other": true})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Wherever it stands in the arguments: neither the tool nor the record has it.
    #[test]
    fn wherever_it_stands(value in holding()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let rig = knowing(agent(allow_all()));
            let kernel = rig.start().await;
            let session = rpc(&kernel).await;
            let _outcome = kernel.call(session, params("write", json!({"v": value}), 1)).await;
            let ran = format!("{:?}", rig.runner.runs());
            assert!(!ran.contains(SECRET), "{ran}");
            assert!(!kept(&rig).contains(SECRET));
            kernel.open_session(EntryPoint::Cli).await.unwrap();
        });
    }
}
