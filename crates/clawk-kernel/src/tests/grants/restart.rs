//! Questions and answers over a restart.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{id, params, rpc, soon};
use super::{asking, place, reply, void};
use crate::error::CallError;
use crate::notice::ApprovalAnswer;
use crate::testing::Rig;
use crate::{Kernel, ReplyOutcome, kind};

/// Crashes while a question is open; the journal and the files stay.
async fn crashed_asking(rig: &Rig, arguments: Value) -> clawk_proto::SessionId {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", arguments, 1)));
    soon(questions.recv()).await.unwrap();
    call.abort();
    let _aborted = call.await;
    session
}

async fn retried(kernel: &Kernel, arguments: Value) -> Result<(), CallError> {
    let session = rpc(kernel).await;
    kernel
        .call(session, params("write", arguments, 1))
        .await
        .map(drop)
}

#[tokio::test]
async fn a_question_survives_a_restart_and_its_answer_counts_once() {
    let (_dir, rig, _) = place();
    crashed_asking(&rig, json!({"path": "sub/f"})).await;
    let kernel = rig.start().await;
    let open = kernel.pending_questions();
    assert_eq!(open.len(), 1, "open again");
    assert_eq!(open[0].tool, "write");
    assert_eq!(
        kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
            .await,
        ReplyOutcome::Taken
    );
    assert_eq!(
        kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Deny))
            .await,
        ReplyOutcome::Nothing,
        "once"
    );
    assert_eq!(kernel.pending_questions().len(), 0);
    drop(kernel);
    // The answer is durable, too: yet another start finds it.
    let kernel = rig.start().await;
    retried(&kernel, json!({"path": "sub/f"})).await.unwrap();
    assert_eq!(rig.runner.runs().len(), 1);
    retried(&kernel, json!({"path": "sub/f"})).await.unwrap();
    assert_eq!(rig.runner.runs().len(), 1, "the stored answer");
    rig.clock.advance_ms(290_000);
    let kernel = rig.start().await;
    assert_eq!(kernel.pending_questions(), [], "used up");
    let past = kernel.past_approvals(10).await.unwrap();
    assert_eq!(past.len(), 1);
    assert_eq!(
        (
            past[0].by.as_str(),
            past[0].channel.as_str(),
            past[0].role.as_str()
        ),
        ("ann", "terminal", "admin")
    );
}

#[tokio::test]
async fn what_was_open_keeps_its_expiry_its_arguments_and_what_was_shown() {
    let (_dir, rig, at) = place();
    crashed_asking(&rig, json!({"path": "sub/f"})).await;
    let before = rig.start().await.pending_questions();
    let kernel = rig.start().await;
    assert_eq!(kernel.pending_questions()[0].expires_at, before[0].expires_at);
    let other = retried(&kernel, json!({"path": "other"})).await;
    assert!(
        matches!(other, Err(CallError::RequestIdReused { .. })),
        "{other:?}"
    );
    assert_eq!(
        kernel.pending_questions().len(),
        1,
        "a stranger's arguments do not close it"
    );
    fs::write(at.join("sub/f"), "two").unwrap();
    kernel
        .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
        .await;
    let outcome = retried(&kernel, json!({"path": "sub/f"})).await;
    void(&rig, &outcome, "content");

    let (_dir, mut rig, _) = place();
    crashed_asking(&rig, json!({})).await;
    let mut spec = asking();
    spec["sandbox"] =
        json!({"name": "box", "level": "process", "capabilities": {"network": {"mode": "allow-all"}}});
    rig.manifest = Arc::new(crate::testing::manifest(spec));
    let kernel = rig.start().await;
    kernel
        .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
        .await;
    let outcome = retried(&kernel, json!({})).await;
    void(&rig, &outcome, "the sandbox plan");

    let (_dir, rig, _) = place();
    rig.runner.stand_on("the endpoint", "https://a.example/");
    crashed_asking(&rig, json!({})).await;
    rig.runner.stand_on("the endpoint", "https://b.example/");
    let kernel = rig.start().await;
    kernel
        .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
        .await;
    let outcome = retried(&kernel, json!({})).await;
    void(&rig, &outcome, "the endpoint");

    let (_dir, rig, _) = place();
    crashed_asking(&rig, json!({})).await;
    rig.clock.advance_ms(301_000);
    let kernel = rig.start().await;
    assert_eq!(kernel.pending_questions(), []);
    assert_eq!(
        kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
            .await,
        ReplyOutcome::Nothing
    );
}

/// Set back, the clock gives a question no more time than it had at first; set forward, it takes the question away.
#[tokio::test]
async fn a_clock_that_is_set_between_a_crash_and_the_next_start_keeps_no_question_open_for_ever() {
    for off_ms in [-60_000, -365 * 86_400_000] {
        let (_dir, rig, _) = place();
        crashed_asking(&rig, json!({"path": "sub/f"})).await;
        rig.clock.set_off_ms(off_ms);
        let kernel = rig.start().await;
        let open = kernel.pending_questions();
        assert_eq!(open.len(), 1, "{off_ms}");
        assert!(kernel.left_ms(&open[0]) <= 300_000, "{off_ms}");
        let now = crate::time::Clock::now(&*rig.clock);
        assert!(open[0].expires_at <= now.plus_millis(300_000), "{off_ms}");
        // While this process lives, what passes counts, and not what the clock says.
        rig.clock.set_off_ms(off_ms - 86_400_000);
        rig.clock.advance_ms(299_000);
        assert_eq!(kernel.pending_questions().len(), 1, "{off_ms}");
        rig.clock.set_off_ms(off_ms + 86_400_000);
        assert_eq!(kernel.pending_questions().len(), 1, "{off_ms}");
        rig.clock.advance_ms(2_000);
        assert_eq!(kernel.pending_questions(), [], "{off_ms}");
        let late = kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
            .await;
        assert_eq!(late, ReplyOutcome::Nothing, "{off_ms}");
        assert_eq!(rig.runner.runs().len(), 0);
    }
    let (_dir, rig, _) = place();
    crashed_asking(&rig, json!({"path": "sub/f"})).await;
    rig.clock.set_off_ms(86_400_000);
    let kernel = rig.start().await;
    assert_eq!(kernel.pending_questions(), []);
    let late = kernel
        .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
        .await;
    assert_eq!(late, ReplyOutcome::Nothing);
}

/// A call waits for its answer, and the wall clock is set meanwhile.
#[tokio::test]
async fn a_wall_clock_that_jumps_ends_no_question_of_a_call_that_waits() {
    for off_ms in [86_400_000, -86_400_000] {
        let (_dir, rig, _) = place();
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
        let asked = soon(questions.recv()).await.unwrap();
        rig.clock.set_off_ms(off_ms);
        assert_eq!(kernel.pending_questions().len(), 1);
        assert!(kernel.left_ms(&asked) > 299_000 && kernel.left_ms(&asked) <= 300_000);
        assert_eq!(
            kernel
                .reply_to_question(&asked.request_id, reply(ApprovalAnswer::Approve))
                .await,
            ReplyOutcome::Taken
        );
        soon(call).await.unwrap().unwrap();
        assert_eq!(rig.runner.runs().len(), 1);
    }
}

#[tokio::test]
async fn an_orderly_stop_leaves_the_question_open_and_the_turn_goes_on_with_it() {
    let (_dir, mut rig, _) = place();
    let model = crate::testing::ScriptedModel::new(|request, _| {
        let done = request
            .messages
            .iter()
            .any(|message| matches!(message, crate::ports::ModelMessage::ToolResult { .. }));
        Ok(if done {
            crate::testing::says("done")
        } else {
            crate::testing::calls(&[("write", json!({"path": "sub/f"}))])
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let kernel = rig.start().await;
    let mut questions = kernel.subscribe_questions();
    let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
    session.send_text("write it").await.unwrap();
    let asked = soon(questions.recv()).await.unwrap();
    kernel.shutdown("test", 1).await;
    let kernel = rig.start().await;
    let again = loop {
        if let Some(question) = kernel.pending_questions().pop() {
            break question;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(again.request_id, asked.request_id, "the same question");
    assert_eq!(
        kernel
            .reply_to_question(&asked.request_id, reply(ApprovalAnswer::Approve))
            .await,
        ReplyOutcome::Taken
    );
    while rig.journal.inbox().iter().any(|(_, end)| end.is_none()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(rig.runner.runs().len(), 1);
    let asked = rig
        .journal
        .kinds()
        .into_iter()
        .filter(|kind| kind == kind::APPROVAL_REQUESTED);
    assert_eq!(asked.count(), 1);
}
