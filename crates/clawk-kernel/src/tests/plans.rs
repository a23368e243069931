//! One question for several calls of one model answer: shown together, answered together or step by step, exact step by step.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{agent, allow_all, rig, soon};
use crate::notice::ApprovalAnswer;
use crate::ports::ModelMessage;
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{
    ApprovalQuestion, ApprovalReply, EntryPoint, GrantScope, Kernel, KnownPerson, Plan, ReplyOutcome,
    SessionHandle, SessionNotice, TurnEnd, WaitingApproval, kind,
};

fn asking() -> Value {
    agent(json!([
        {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"}},
        {"id": "no", "action": "deny", "scope": "tool", "match": {"name": "rm"}},
        {"id": "rest", "action": "allow", "scope": "all"}]))
}

/// A model that asks for these calls once, and then is done.
fn model(wanted: Vec<(&'static str, Value)>) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(move |request, _| {
        let done = request
            .messages
            .iter()
            .any(|message| matches!(message, ModelMessage::ToolResult { .. }));
        Ok(if done { says("done") } else { calls(&wanted) })
    }))
}

struct Folder {
    _dir: tempfile::TempDir,
    at: PathBuf,
    rig: Rig,
}

fn place(wanted: Vec<(&'static str, Value)>) -> Folder {
    let dir = tempfile::tempdir().unwrap();
    let at = fs::canonicalize(dir.path()).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(at.join(name), name).unwrap();
    }
    let mut rig = rig(asking());
    rig.workdir = at.clone();
    rig.models.insert("model".to_owned(), model(wanted));
    Folder { _dir: dir, at, rig }
}

fn three() -> Vec<(&'static str, Value)> {
    ["a", "b", "c"]
        .map(|name| ("write", json!({"path": name})))
        .to_vec()
}

fn reply(answer: ApprovalAnswer) -> ApprovalReply {
    ApprovalReply {
        answer,
        breadth: GrantScope::Exact,
        person: KnownPerson::admin("terminal", "ann"),
        reason: None,
        seen: crate::sheet::PreviewReceipt::Short,
    }
}

/// Says something and waits for the plan that comes of it.
async fn planned(kernel: &Kernel) -> (SessionHandle, Plan) {
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("do it").await.unwrap();
    let plan = soon(async {
        loop {
            match session.next_notice().await.unwrap() {
                SessionNotice::Planned(plan) => return plan,
                SessionNotice::Asking(question) => panic!("asked alone: {question:?}"),
                SessionNotice::TurnEnded { .. } => panic!("nothing was asked"),
                _ => {}
            }
        }
    })
    .await;
    (session, plan)
}

async fn ended(session: &SessionHandle) -> TurnEnd {
    soon(async {
        loop {
            if let SessionNotice::TurnEnded { end, .. } = session.next_notice().await.unwrap() {
                return end;
            }
        }
    })
    .await
}

fn ran(rig: &Rig) -> Vec<String> {
    let runs = rig.runner.runs();
    runs.iter()
        .map(|(_, arguments)| arguments["path"].as_str().unwrap().to_owned())
        .collect()
}

fn count(rig: &Rig, kind: &str) -> usize {
    rig.journal.kinds().iter().filter(|found| *found == kind).count()
}

fn codes(rig: &Rig) -> Vec<String> {
    let events = rig.journal.events();
    let denied = events.iter().filter(|event| event.kind == kind::ACTION_DENIED);
    denied.map(|event| event.payload.clone()).collect()
}

#[tokio::test]
async fn one_question_shows_every_step_in_order_before_any_runs() {
    let place = place(three());
    let kernel = place.rig.start().await;
    let (session, plan) = planned(&kernel).await;
    assert_eq!(ran(&place.rig), [""; 0]);
    let shown: Vec<(u32, u32, &str)> = plan
        .steps
        .iter()
        .map(|question| {
            let step = question.step.as_ref().unwrap();
            assert_eq!(step.plan, plan.id);
            (step.number, step.of, question.sheet.first())
        })
        .collect();
    assert_eq!(
        shown,
        [
            (1, 3, r#"write {"path":"a"}"#),
            (2, 3, r#"write {"path":"b"}"#),
            (3, 3, r#"write {"path":"c"}"#)
        ]
    );
    let ids: BTreeSet<String> = plan.steps.iter().map(|q| q.request_id.to_string()).collect();
    assert_eq!(ids.len(), 3, "each step has its own id");
    let listed = Plan::group_questions(kernel.pending_questions());
    assert!(
        matches!(&listed[..], [WaitingApproval::Plan(listed)] if listed.id == plan.id && listed.steps.len() == 3),
        "one question: {listed:?}"
    );
    assert_eq!(
        count(&place.rig, kind::APPROVAL_REQUESTED),
        3,
        "durable before it is shown"
    );
    let told = soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    assert_eq!(told, [1, 2, 3].map(|number| (number, ReplyOutcome::Taken)));
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(ran(&place.rig), ["a", "b", "c"]);
    assert_eq!(kernel.pending_questions(), []);
    assert_eq!(count(&place.rig, kind::APPROVAL_REQUESTED), 3, "asked once");
    assert_eq!(count(&place.rig, kind::ACTION_REQUESTED), 3);
    let past = kernel.past_approvals(10).await.unwrap();
    let who: Vec<_> = past
        .iter()
        .map(|past| (past.answer.as_str(), past.by.as_str(), past.channel.as_str()))
        .collect();
    assert_eq!(who, [("approve", "ann", "terminal"); 3]);
}

#[tokio::test]
async fn none_runs_nothing_and_some_runs_those() {
    let place = place(three());
    let kernel = place.rig.start().await;
    let (session, plan) = planned(&kernel).await;
    soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Deny))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(ran(&place.rig), [""; 0]);

    let (session, plan) = planned(&kernel).await;
    // The last first: whatever the order of the answers, the order of the steps is that of the model.
    let late = soon(kernel.reply_plan(&plan.id, Some(&[3, 9]), &reply(ApprovalAnswer::Approve))).await;
    assert_eq!(late, [(3, ReplyOutcome::Taken)], "there is no step 9");
    assert_eq!(
        ran(&place.rig),
        [""; 0],
        "step 1 waits, and so does what comes behind it"
    );
    let twice = soon(kernel.reply_plan(&plan.id, Some(&[3]), &reply(ApprovalAnswer::Deny))).await;
    assert_eq!(twice, [(3, ReplyOutcome::Nothing)], "the first answer counts");
    // One step alone, by its own id.
    assert_eq!(
        soon(kernel.reply_to_question(&plan.steps[1].request_id, reply(ApprovalAnswer::Deny))).await,
        ReplyOutcome::Taken
    );
    soon(kernel.reply_plan(&plan.id, Some(&[1]), &reply(ApprovalAnswer::Approve))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(ran(&place.rig), ["a", "c"]);
}

#[tokio::test]
async fn a_swap_between_question_and_run_voids_that_step_alone() {
    let place = place(three());
    let kernel = place.rig.start().await;
    let (session, plan) = planned(&kernel).await;
    fs::write(place.at.join("b"), "swapped").unwrap();
    soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(ran(&place.rig), ["a", "c"]);
    let voided: Vec<_> = kernel.past_approvals(10).await.unwrap();
    let voided: Vec<_> = voided.iter().filter(|past| past.answer == "voided").collect();
    assert_eq!(voided.len(), 1);
    assert_eq!(voided[0].request_id, plan.steps[1].request_id.to_string());
    assert!(voided[0].reason.as_ref().unwrap().contains('b'), "{voided:?}");
}

#[tokio::test]
async fn a_plan_survives_a_restart_with_the_answers_that_were_given() {
    let place = place(three());
    let kernel = place.rig.start().await;
    let (_session, plan) = planned(&kernel).await;
    soon(kernel.reply_plan(&plan.id, Some(&[2]), &reply(ApprovalAnswer::Deny))).await;
    kernel.shutdown("test", 1).await;
    let kernel = place.rig.start().await;
    let ids = |plan: &Plan| {
        plan.steps
            .iter()
            .map(|q| q.request_id.clone())
            .collect::<Vec<_>>()
    };
    let again = soon(async {
        loop {
            // The call of step 1 takes its question up; meanwhile it is in neither list.
            match &Plan::group_questions(kernel.pending_questions())[..] {
                [WaitingApproval::Plan(plan)] if plan.steps.len() == 2 => return plan.clone(),
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!(again.id, plan.id, "the same question");
    assert_eq!(ids(&again), [ids(&plan)[0].clone(), ids(&plan)[2].clone()]);
    assert_eq!(again.steps[0].expires_at, plan.steps[0].expires_at);
    // Exactness outlives the restart, too.
    fs::write(place.at.join("c"), "swapped").unwrap();
    soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    soon(async {
        while place.rig.journal.inbox().iter().any(|(_, end)| end.is_none()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(ran(&place.rig), ["a"]);
    assert_eq!(count(&place.rig, kind::APPROVAL_REQUESTED), 3, "asked once");
    let past = kernel.past_approvals(10).await.unwrap();
    let said: Vec<&str> = past.iter().map(|past| past.answer.as_str()).collect();
    assert_eq!(
        said.iter().filter(|said| **said == "voided").count(),
        1,
        "{said:?}"
    );
    kernel.shutdown("test", 1).await;
    assert_eq!(place.rig.start().await.pending_questions(), [], "used up");
}

#[tokio::test]
async fn restarts_while_a_person_thinks_do_not_use_a_turn_up() {
    let place = place(three());
    let kernel = place.rig.start().await;
    let (_session, plan) = planned(&kernel).await;
    kernel.shutdown("test", 1).await;
    for times in 1..=2 * crate::drive::MAX_RESUMES {
        let kernel = place.rig.start().await;
        // The turn itself is taken up again, not only its questions.
        let resumed = usize::try_from(times).unwrap();
        soon(async {
            while count(&place.rig, kind::MESSAGE_RESUMED) < resumed || kernel.pending_questions().len() < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        kernel.shutdown("test", 1).await;
    }
    let kernel = place.rig.start().await;
    soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    soon(async {
        while place.rig.journal.inbox().iter().any(|(_, end)| end.is_none()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(ran(&place.rig), ["a", "b", "c"]);
    assert_eq!(kernel.dead_letters(10).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_every_step_of_a_plan() {
    let mut place = place(three());
    place.rig.manifest = Arc::new(crate::testing::manifest(agent(json!([
        {"id": "ask", "action": "require-approval", "scope": "all", "approval": {"timeout_seconds": 60}}]))));
    let kernel = place.rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("do it").await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(3_600), async {
        loop {
            if let SessionNotice::TurnEnded { end, .. } = session.next_notice().await.unwrap() {
                return end;
            }
        }
    });
    assert_eq!(end.await.unwrap(), TurnEnd::Answered);
    assert_eq!(ran(&place.rig), [""; 0]);
    let lapsed = codes(&place.rig);
    assert_eq!(lapsed.len(), 3);
    assert!(
        lapsed.iter().all(|payload| payload.contains("approval_timeout")),
        "{lapsed:?}"
    );
}

#[tokio::test]
async fn a_step_that_works_on_what_an_earlier_one_changes_is_asked_about_in_its_turn() {
    let place = place(vec![
        ("write", json!({"path": "a"})),
        ("echo", json!({"text": "x"})),
        ("write", json!({"path": "b"})),
        ("rm", json!({"path": "c"})),
        ("write", json!({"path": "./a"})),
    ]);
    let kernel = place.rig.start().await;
    let mut questions = kernel.subscribe_questions();
    let (session, plan) = planned(&kernel).await;
    let numbers: Vec<u32> = plan.steps.iter().map(ApprovalQuestion::step_number).collect();
    assert_eq!(numbers, [1, 3]);
    let beside = plan.uncovered_calls();
    assert_eq!(beside[0], "step 2: `echo` needs no question");
    assert_eq!(
        beside[1],
        "step 4: `rm` will be refused: `rm` is denied: a policy rule denies it"
    );
    assert!(
        beside[2].starts_with("step 5: `write` is asked about in its turn"),
        "{beside:?}"
    );
    for _ in 0..2 {
        soon(questions.recv()).await.unwrap();
    }
    soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    let alone = soon(async {
        loop {
            if let SessionNotice::Asking(question) = session.next_notice().await.unwrap() {
                return question;
            }
        }
    })
    .await;
    assert_eq!(alone.step, None);
    soon(kernel.reply_to_question(&alone.request_id, reply(ApprovalAnswer::Approve))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(place.rig.runner.runs().len(), 4);
}

/// A manifest whose tools `write`, `sh` and `dear` a person is asked about, in a sandbox that blocks `rm *`.
fn bounded() -> Value {
    let mut spec = agent(json!([{"id": "ask", "action": "require-approval", "scope": "all"}]));
    let tools = spec["tools"].as_array_mut().unwrap();
    for (name, labels) in [("sh", json!({"category": "shell"})), ("dear", json!({}))] {
        tools.push(
            json!({"name": name, "description": name, "labels": labels, "input_schema": {"type": "object"}}),
        );
    }
    spec["sandbox"] = json!({"name": "box", "level": "none", "capabilities": {
        "shell": {"mode": "restricted", "blocked_commands": ["rm *"]}}});
    spec
}

#[tokio::test]
async fn a_step_that_is_refused_whatever_a_person_says_is_not_asked_about() {
    let mut place = place(vec![
        ("write", json!({"path": "a"})),
        ("write", json!({"command": "rm -rf home"})),
        ("dear", json!({"path": "a long way to go out"})),
        ("sh", json!({"path": "b"})),
        ("write", json!({"path": "c"})),
    ]);
    place.rig.manifest = Arc::new(crate::testing::manifest(bounded()));
    let tight = crate::purse::NamedBudget {
        run: crate::purse::BudgetAllowance {
            bytes_out: Some(10),
            ..Default::default()
        },
        ..Default::default()
    };
    place.rig.budgets.tools.insert("dear".to_owned(), tight);
    let kernel = place.rig.start().await;
    let operator = KnownPerson::admin("control", "ann");
    kernel
        .engage_stop(None, crate::stop::Level::NoNetwork, &operator, None)
        .await
        .unwrap();
    let (session, plan) = planned(&kernel).await;
    let numbers: Vec<u32> = plan.steps.iter().map(ApprovalQuestion::step_number).collect();
    assert_eq!(numbers, [1, 5], "{:?}", plan.uncovered_calls());
    let beside = plan.uncovered_calls();
    let wanted = [
        ("step 2: `write` will be refused: ", "rm *"),
        (
            "step 3: `dear` will be refused: ",
            "budgets.tools.dear.run.bytes_out is 10",
        ),
        ("step 4: `sh` will be refused: ", "stop"),
    ];
    assert_eq!(beside.len(), wanted.len(), "{beside:?}");
    for (said, (begins, why)) in beside.iter().zip(wanted) {
        assert!(said.starts_with(begins) && said.contains(why), "{said}");
    }
    soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(ran(&place.rig), ["a", "c"]);
    assert_eq!(codes(&place.rig).len(), 3, "each is refused by its own call");
    let agent = kernel.budget_report().purses.remove(0);
    assert!(
        agent.reserved.is_zero() && agent.spent.calls == 2,
        "looking takes nothing: {agent:?}"
    );
}

#[tokio::test]
async fn nobody_is_asked_about_steps_for_which_the_minute_has_no_room() {
    let mut place = place(three());
    let mut spec = asking();
    spec["policies"][0]["rate_limits"] = json!({"tool_calls_per_minute": 1});
    place.rig.manifest = Arc::new(crate::testing::manifest(spec));
    let kernel = place.rig.start().await;
    let caller = super::rpc(&kernel).await;
    let first = super::params("echo", json!({"text": "x"}), 1);
    kernel.call(caller, first).await.unwrap();
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("do it").await.unwrap();
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(count(&place.rig, kind::APPROVAL_REQUESTED), 0);
    assert_eq!(place.rig.runner.runs().len(), 1);
}

#[tokio::test]
async fn a_single_call_and_calls_without_questions_make_no_plan() {
    let place = place(vec![
        ("echo", json!({"text": "x"})),
        ("write", json!({"path": "a"})),
    ]);
    let kernel = place.rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("do it").await.unwrap();
    let alone = soon(async {
        loop {
            match session.next_notice().await.unwrap() {
                SessionNotice::Asking(question) => return question,
                SessionNotice::Planned(plan) => panic!("{plan:?}"),
                _ => {}
            }
        }
    })
    .await;
    assert_eq!(alone.step, None);
    soon(kernel.reply_to_question(&alone.request_id, reply(ApprovalAnswer::Approve))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);

    let mut spec = rig(agent(allow_all()));
    spec.models.insert("model".to_owned(), model(three()));
    let kernel = spec.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("do it").await.unwrap();
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(count(&spec, kind::APPROVAL_REQUESTED), 0);
}

#[tokio::test]
async fn a_cancelled_turn_leaves_no_question_behind() {
    let place = place(three());
    let kernel = place.rig.start().await;
    let (session, plan) = planned(&kernel).await;
    session.cancel_turn();
    assert_eq!(ended(&session).await, TurnEnd::Cancelled);
    assert_eq!(kernel.pending_questions(), []);
    let told = soon(kernel.reply_plan(&plan.id, None, &reply(ApprovalAnswer::Approve))).await;
    assert_eq!(told, []);
    kernel.shutdown("test", 100).await;
    assert_eq!(place.rig.start().await.pending_questions(), []);
    assert_eq!(ran(&place.rig), [""; 0]);
}

#[tokio::test]
async fn a_no_to_one_step_is_heard_though_a_standing_grant_would_cover_it() {
    let place = place(vec![
        ("write", json!({"path": "a"})),
        ("write", json!({"n": 1})),
        ("write", json!({"n": 1})),
    ]);
    let kernel = place.rig.start().await;
    let (session, plan) = planned(&kernel).await;
    assert_eq!(plan.steps.len(), 3);
    soon(kernel.reply_plan(&plan.id, Some(&[3]), &reply(ApprovalAnswer::Deny))).await;
    soon(kernel.reply_plan(&plan.id, Some(&[1, 2]), &reply(ApprovalAnswer::ApproveForSession))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(place.rig.runner.runs().len(), 2);
    assert_eq!(kernel.standing_grants().len(), 2);
}

#[tokio::test]
async fn a_standing_grant_spares_a_step_that_nobody_has_answered() {
    let place = place(vec![("write", json!({"n": 1})), ("write", json!({"n": 1}))]);
    let kernel = place.rig.start().await;
    let (session, plan) = planned(&kernel).await;
    soon(kernel.reply_plan(&plan.id, Some(&[1]), &reply(ApprovalAnswer::ApproveForSession))).await;
    assert_eq!(ended(&session).await, TurnEnd::Answered);
    assert_eq!(place.rig.runner.runs().len(), 2);
    assert_eq!(kernel.pending_questions(), []);
}
