//! R13, R16, R18: questions to people.

use std::time::Duration;

use serde_json::{Value, json};

use super::{agent, allow_all, id, params, rig, rpc, soon};
use crate::error::CallError;
use crate::kind;
use crate::notice::ApprovalAnswer;

fn asking(approval: Value) -> Value {
    agent(
        json!([{"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"}, "approval": approval},
                 {"id": "rest", "action": "allow", "scope": "all"}]),
    )
}

#[tokio::test]
async fn nothing_runs_until_somebody_says_yes() {
    let rig = rig(asking(json!({"timeout_seconds": 300})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = tokio::spawn(kernel.call(session, params("write", json!({"n": 1}), 1)));
    let question = kernel.subscribe_questions().recv().await.unwrap();
    assert_eq!(
        (question.tool.as_str(), question.rule_id.as_deref()),
        ("write", Some("ask"))
    );
    assert_eq!(rig.runner.runs(), []);
    assert!(
        rig.journal.kinds().contains(&kind::APPROVAL_REQUESTED.to_owned()),
        "the question is on record"
    );
    assert_eq!(kernel.pending_questions().len(), 1);
    assert!(
        kernel
            .answer_question(&id(1), ApprovalAnswer::Approve, Some("go".to_owned()), "ann")
            .await
    );
    call.await.unwrap().unwrap();
    assert_eq!(rig.runner.runs().len(), 1);
    assert_eq!(kernel.pending_questions().len(), 0);
}

#[tokio::test]
async fn r18_an_answer_right_behind_the_call_is_not_lost() {
    let rig = rig(asking(json!({"timeout_seconds": 300})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    // The call's future has not been polled when the answer is given.
    let call = kernel.call(session, params("write", json!({}), 1));
    let (outcome, taken) = tokio::join!(call, async {
        kernel
            .answer_question(&id(1), ApprovalAnswer::Approve, None, "ann")
            .await
    });
    assert!(taken);
    outcome.unwrap();
}

#[tokio::test]
async fn r18_an_answer_to_nothing_never_approves_a_later_call() {
    let rig = rig(asking(json!({"timeout_seconds": 1})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    assert!(
        !kernel
            .answer_question(&id(1), ApprovalAnswer::Approve, None, "eve")
            .await
    );
    tokio::time::pause();
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert!(
        matches!(error, CallError::ApprovalTimeout { timeout_ms: 1000, .. }),
        "{error}"
    );
    assert_eq!(rig.runner.runs(), []);
}

#[tokio::test]
async fn r18_the_first_answer_counts() {
    let rig = rig(asking(json!({"timeout_seconds": 300})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = tokio::spawn(kernel.call(session, params("write", json!({}), 1)));
    kernel.subscribe_questions().recv().await.unwrap();
    let asked = id(1);
    let (first, second) = tokio::join!(
        kernel.answer_question(&asked, ApprovalAnswer::Deny, Some("no".to_owned()), "ann"),
        kernel.answer_question(&asked, ApprovalAnswer::Approve, None, "bob"),
    );
    assert_eq!((first, second), (true, false));
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "`write` was denied by ann: no");
    let denied = rig
        .journal
        .events()
        .into_iter()
        .find(|e| e.kind == kind::ACTION_DENIED)
        .unwrap();
    assert!(
        denied.payload.contains(r#""rule_id":"ask""#),
        "the rule that asked is on record: {}",
        denied.payload
    );
    assert_eq!(rig.runner.runs(), []);
}

#[tokio::test(start_paused = true)]
async fn r16_silence_means_no_unless_the_rule_says_otherwise() {
    let rig_no = rig(asking(json!({"timeout_seconds": 1})));
    let kernel = rig_no.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::ApprovalTimeout { .. }));

    let rig_yes = rig(asking(
        json!({"timeout_seconds": 1, "default_if_timeout": "allow"}),
    ));
    let kernel = rig_yes.start().await;
    let session = rpc(&kernel).await;
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    let approved = rig_yes
        .journal
        .events()
        .into_iter()
        .find(|e| e.kind == kind::ACTION_APPROVED)
        .unwrap();
    assert!(
        approved.payload.contains(r#""by":"timeout""#),
        "{}",
        approved.payload
    );
}

#[tokio::test]
async fn r13_supervised_asks_for_effects_whatever_a_rule_allows_and_a_grant_spares() {
    let mut spec = agent(allow_all());
    spec["identity"] = json!({"name": "tester", "personality": "x", "autonomy": "supervised"});
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("echo", json!({"text": "free"}), 1))
        .await
        .unwrap();
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({}), 2)));
    soon(questions.recv()).await.unwrap();
    assert!(
        kernel
            .answer_question(&id(2), ApprovalAnswer::ApproveForSession, None, "ann")
            .await
    );
    call.await.unwrap().unwrap();
    kernel.call(session, params("write", json!({}), 3)).await.unwrap();
    let wider = tokio::spawn(kernel.call(session, params("write", json!({"n": 2}), 5)));
    soon(questions.recv()).await.unwrap();
    kernel
        .answer_question(&id(5), ApprovalAnswer::Deny, None, "ann")
        .await;
    wider
        .await
        .unwrap()
        .expect_err("a grant covers what was shown, and nothing wider");
    let other = rpc(&kernel).await;
    let call = tokio::spawn(kernel.call(other, params("write", json!({}), 4)));
    soon(questions.recv()).await.unwrap();
    kernel
        .answer_question(&id(4), ApprovalAnswer::Deny, None, "ann")
        .await;
    call.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_question_without_running_anything() {
    let rig = rig(asking(json!({"timeout_seconds": 300})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = tokio::spawn(kernel.call(session, params("write", json!({}), 1)));
    kernel.subscribe_questions().recv().await.unwrap();
    assert!(
        !kernel.shutdown("test", 100).await,
        "a waiting question is work in flight"
    );
    assert!(matches!(call.await.unwrap(), Err(CallError::NotReady { .. })));
    assert_eq!(rig.runner.runs(), []);
    tokio::time::sleep(Duration::from_millis(1)).await;
}
