//! The slice of a delegated task knows after a restart what was spent of it before.

use std::sync::Arc;

use clawk_proto::method::{DelegateContext, DelegateParams, DelegateTask, TaskLimits};
use serde_json::{Value, json};

use super::{agent, allow_all, id, rig, rpc};
use crate::ports::{FaultKind, ModelCompletion, ModelMessage};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{Kernel, kind};

fn team() -> Value {
    let mut spec = agent(allow_all());
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
        "agents": [{"identity_ref": "lead", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 2}],
        "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {"max_parallel": 3}},
        "aggregation": {"strategy": "merge"}});
    spec
}

pub(super) fn task(
    member: Option<&str>,
    (tokens, cost_microusd): (Option<u64>, Option<u64>),
) -> DelegateParams {
    DelegateParams {
        task_id: id(1001),
        task: DelegateTask {
            description: "count the beans".to_owned(),
            input: None,
        },
        context: DelegateContext {
            proof: None,
            request_id: id(1),
            swarm: "team".to_owned(),
            member: member.map(str::to_owned),
            report_token: None,
            limits: Some(TaskLimits {
                role: Some("admin".to_owned()),
                tokens,
                cost_microusd,
                ..TaskLimits::default()
            }),
        },
    }
}

fn costs(mut completion: ModelCompletion, input: u64, output: u64) -> ModelCompletion {
    completion.usage.input_tokens = input;
    completion.usage.output_tokens = output;
    completion
}

/// What was set aside for each inference that was asked for behind so many events: tokens and millionths of a dollar.
fn set_aside(rig: &Rig, behind: usize) -> Vec<(u64, u64)> {
    let events = rig.journal.events().into_iter().skip(behind);
    let requested = events.filter(|event| event.kind == kind::PROVIDER_REQUESTED);
    requested
        .map(|event| {
            let payload: Value = serde_json::from_str(&event.payload).unwrap();
            let of = |name: &str| payload[name].as_u64().unwrap_or(0);
            (of("input_tokens") + of("output_tokens"), of("cost_microusd"))
        })
        .collect()
}

/// Inferences were asked for behind so many events, and none set aside more than so many tokens.
fn goes_on_with(rig: &Rig, behind: usize, most: u64) {
    let aside = set_aside(rig, behind);
    assert!(!aside.is_empty(), "it goes on");
    assert!(aside.iter().all(|(tokens, _)| *tokens <= most), "{aside:?}");
}

fn reports(rig: &Rig) -> Vec<String> {
    let events = rig.journal.events().into_iter();
    let reports = events.filter(|event| event.kind == kind::SWARM_REPORTED);
    reports.map(|event| event.payload).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{what}");
}

/// Delegates, lets the first inference end and its tool hang, and stops. The next start's model says that it is done.
async fn interrupted(rig: &mut Rig, params: DelegateParams, (input, output): (u64, u64)) -> (Kernel, usize) {
    let before = ScriptedModel::new(move |_, _| Ok(costs(calls(&[("write", json!({}))]), input, output)));
    rig.models.insert("model".to_owned(), Arc::new(before));
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, params).await.unwrap();
    until("the tool runs", || !rig.runner.runs().is_empty()).await;
    kernel.shutdown("test", 0).await;
    assert_eq!(reports(rig), Vec::<String>::new());
    let behind = rig.journal.kinds().len();
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::saying("three beans")));
    let kernel = rig.start().await;
    until("a report", || !reports(rig).is_empty()).await;
    (kernel, behind)
}

#[tokio::test]
async fn a_task_that_goes_on_after_a_restart_has_the_rest_of_its_tokens() {
    let mut rig = rig(team());
    let (kernel, behind) = interrupted(&mut rig, task(Some("hand"), (Some(3_000), None)), (10, 1_494)).await;
    goes_on_with(&rig, behind, 1_496);
    let report = &reports(&rig)[0];
    assert!(report.contains(r#""status":"completed""#), "{report}");
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn a_call_that_a_slice_has_no_room_for_after_a_restart_is_refused() {
    let mut rig = rig(team());
    let (kernel, behind) = interrupted(&mut rig, task(Some("hand"), (Some(3_000), None)), (10, 2_985)).await;
    assert_eq!(set_aside(&rig, behind), [], "5 tokens are left");
    assert_eq!(rig.models["model"].asked().len(), 0);
    let report = &reports(&rig)[0];
    assert!(report.contains(r#""status":"failed""#), "{report}");
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn an_inference_that_a_crash_cut_off_counts_for_its_slice() {
    let mut rig = rig(team());
    let before = ScriptedModel::new(|request, _| {
        let worked = |m: &ModelMessage| matches!(m, ModelMessage::ToolResult { .. });
        Ok(match request.messages.iter().any(worked) {
            false => costs(calls(&[("echo", json!({"text": "x"}))]), 10, 990),
            true => costs(says("lost"), 10, 90),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(before));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .delegate_task(session, task(Some("hand"), (Some(3_000), None)))
        .await
        .unwrap();
    until("a report", || !reports(&rig).is_empty()).await;
    // The crash came when the second inference was under way: all of the rest was set aside for it.
    let kinds = rig.journal.kinds();
    let asked = kinds
        .iter()
        .enumerate()
        .filter(|(_, k)| *k == kind::PROVIDER_REQUESTED);
    let second = asked.map(|(at, _)| at).nth(1).unwrap();
    let mut after = rig.clone();
    after.journal = Arc::new(rig.journal.cut(second + 1));
    after
        .models
        .insert("model".to_owned(), Arc::new(ScriptedModel::saying("three beans")));
    let kernel = after.start().await;
    until("a report", || !reports(&after).is_empty()).await;
    assert_eq!(after.models["model"].asked().len(), 0, "nothing is left");
    assert_eq!(set_aside(&after, second + 1), []);
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn a_task_that_goes_on_after_a_restart_has_the_rest_of_its_money() {
    let mut spec = team();
    spec["providers"] = json!([{"name": "model", "protocol": "openai-compatible", "endpoint": "https://x.example",
        "model": "gpt-4o", "auth": {"type": "none"}}]);
    let mut rig = rig(spec);
    // 1000 × 2.50 + 100 × 10.00 dollars per million.
    let (kernel, behind) =
        interrupted(&mut rig, task(Some("hand"), (None, Some(20_000))), (1_000, 100)).await;
    let aside = set_aside(&rig, behind);
    assert!(!aside.is_empty(), "it goes on");
    assert!(
        aside.iter().all(|(_, cost)| *cost > 0 && *cost <= 16_500),
        "{aside:?}"
    );
    // What is reported holds what was spent before: 3500, and 10 × 2.50 + 5 × 10.00.
    let report = &reports(&rig)[0];
    assert!(report.contains(r#""cost_microusd":3575"#), "{report}");
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn a_run_counts_after_a_restart_what_its_open_tasks_have_spent() {
    let mut spec = team();
    spec["swarm"]["resource_limits"] = json!({"max_total_tokens": 3_000});
    let mut rig = rig(spec);
    let (kernel, behind) = interrupted(&mut rig, task(Some("hand"), (None, None)), (10, 1_494)).await;
    goes_on_with(&rig, behind, 1_496);
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn the_session_of_a_task_keeps_its_budget_over_a_restart() {
    let mut rig = rig(team());
    rig.budgets.session.tokens = Some(3_000);
    let (kernel, behind) = interrupted(&mut rig, task(Some("hand"), (None, None)), (10, 1_494)).await;
    goes_on_with(&rig, behind, 1_496);
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn what_a_part_spent_before_a_restart_counts_for_who_delegated_it() {
    let mut rig = rig(team());
    let lead = |request: &crate::ports::InferRequest| {
        let parts =
            |m: &ModelMessage| matches!(m, ModelMessage::User { .. }) && format!("{m:?}").contains("a part");
        !request.messages.iter().any(parts)
    };
    let before = ScriptedModel::new(move |request, _| {
        Ok(if lead(request) {
            let part = json!({"to": "hand", "task": "a part"});
            costs(calls(&[("delegate", part)]), 10, 990)
        } else {
            costs(calls(&[("write", json!({}))]), 10, 1_490)
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(before));
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .delegate_task(session, task(Some("lead"), (Some(4_000), None)))
        .await
        .unwrap();
    until("the tool runs", || !rig.runner.runs().is_empty()).await;
    kernel.shutdown("test", 0).await;
    let behind = rig.journal.kinds().len();
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::saying("three beans")));
    let kernel = rig.start().await;
    let ended = || rig.journal.kinds().contains(&kind::SWARM_ENDED.to_owned());
    until("the end of the run", ended).await;
    goes_on_with(&rig, behind, 1_500);
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn another_try_of_a_task_has_the_rest_of_its_slice() {
    let mut spec = team();
    spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
        "auth": {"type": "none"}, "retry": {"max_attempts": 1, "initial_delay_ms": 1}}]);
    // Another member tries it, at once.
    spec["swarm"]["failure"] = json!({"retry_per_agent": 0, "dead_letter": {"max_retries": 2}});
    let mut rig = rig(spec);
    let lost = std::sync::atomic::AtomicBool::new(false);
    let model = ScriptedModel::new(move |request, _| {
        let worked = |m: &ModelMessage| matches!(m, ModelMessage::ToolResult { .. });
        if !request.messages.iter().any(worked) {
            return Ok(costs(calls(&[("echo", json!({"text": "x"}))]), 10, 990));
        }
        match lost.swap(true, std::sync::atomic::Ordering::SeqCst) {
            false => Err(ScriptedModel::fault(FaultKind::Unreachable, "gone")),
            true => Ok(says("three beans")),
        }
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .delegate_task(session, task(Some("hand"), (Some(3_000), None)))
        .await
        .unwrap();
    until("a report", || !reports(&rig).is_empty()).await;
    let aside = set_aside(&rig, 0);
    // Each try has a first and a second inference; the first of each spends 1000.
    let most = [3_000, 2_000, 2_000, 1_000];
    assert_eq!(aside.len(), most.len(), "{aside:?} {:?}", reports(&rig));
    assert!(
        aside.iter().zip(most).all(|((tokens, _), most)| *tokens <= most),
        "{aside:?}"
    );
    kernel.shutdown("test", 5_000).await;
}
