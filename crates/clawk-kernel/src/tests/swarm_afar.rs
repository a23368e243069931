//! What is counted for a try on another host: never nothing and never twice, whichever message is lost and whenever the agent crashes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use clawk_proto::RequestId;
use clawk_proto::method::{DelegateParams, ReportParams, TaskStatus};
use clawk_swarm::coord::RetryReason;
use clawk_trace::checkpoint::PublicKey;
use serde_json::{Value, json};

use super::{agent, allow_all, id, rig, rpc, swarm_slices};
use crate::ports::{BoxFuture, MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver};
use crate::purse::{BudgetUnit, Window};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, kind};

/// What the other side does with a try.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Takes it and says nothing more.
    Keep,
    /// The connection is lost. The tokens that the try used; none: not known.
    Lose(Option<u64>),
    /// Reports that it used so many tokens.
    Report(u64),
    /// Answers without a report.
    Answer(u64),
}

/// Members that work elsewhere.
#[derive(Debug, Default)]
struct There {
    acts: Mutex<VecDeque<Act>>,
    given: Mutex<Vec<RemoteTask>>,
}

impl There {
    fn new(acts: &[Act]) -> Arc<Self> {
        Arc::new(Self {
            acts: Mutex::new(acts.iter().copied().collect()),
            ..Self::default()
        })
    }

    /// The tokens of each try so far.
    fn limits(&self) -> Vec<Option<u64>> {
        let given = self.given.lock().unwrap();
        given.iter().map(|errand| errand.limits.tokens).collect()
    }

    fn report(&self, at: usize, tokens: u64) -> ReportParams {
        let given = self.given.lock().unwrap();
        said(&given[at], tokens)
    }
}

fn said(errand: &RemoteTask, tokens: u64) -> ReportParams {
    ReportParams {
        task_id: errand.id.clone(),
        status: TaskStatus::Completed,
        result: json!("three beans"),
        token_usage: Some(tokens),
        cost_microusd: Some(0),
        duration_ms: None,
        report_token: Some(errand.report_token.clone()),
        proof: None,
    }
}

impl RemoteWorkers for There {
    fn member_route(&self, identity: &str) -> Option<MemberRoute> {
        (identity == "hand").then_some(MemberRoute::Peer)
    }

    fn is_gone(&self, _identity: &str) -> bool {
        false
    }

    fn lives_here(&self, _identity: &str) -> bool {
        false
    }

    fn timeout_ms(&self, _identity: &str) -> Option<u64> {
        None
    }

    fn allowed_tools(&self, _identity: &str) -> Option<Vec<String>> {
        None
    }

    fn report_key(&self, _identity: &str) -> Option<PublicKey> {
        None
    }

    fn perform_task<'a>(
        &'a self,
        errand: RemoteTask,
        reports: Arc<dyn ReportReceiver>,
    ) -> BoxFuture<'a, RemoteResult> {
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(Act::Keep);
        self.given.lock().unwrap().push(errand.clone());
        Box::pin(async move {
            match act {
                Act::Keep => {}
                Act::Lose(tokens) => {
                    return RemoteResult::Lost {
                        why: RetryReason::Crashed,
                        message: "gone".to_owned(),
                        tokens,
                    };
                }
                Act::Report(tokens) => {
                    let taken = reports.accept_report(None, said(&errand, tokens)).await;
                    assert!(taken.unwrap().acknowledged);
                }
                Act::Answer(tokens) => {
                    return RemoteResult::Answered {
                        text: "three beans".to_owned(),
                        tokens: Some(tokens),
                    };
                }
            }
            std::future::pending().await
        })
    }

    fn may_begin<'a>(&'a self, _run: &'a RequestId) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A swarm whose workers are elsewhere, of which one run may use 3000 tokens.
fn team() -> Value {
    let mut spec = agent(allow_all());
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
        "agents": [{"identity_ref": "lead", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 2}],
        "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {"max_parallel": 3}},
        "aggregation": {"strategy": "merge"},
        "failure": {"retry_per_agent": 0, "dead_letter": {"max_retries": 3}},
        "resource_limits": {"max_total_tokens": 3000}});
    spec
}

fn rig_with(there: &Arc<There>) -> Rig {
    let mut rig = rig(team());
    rig.swarm.elsewhere = Some(Arc::clone(there) as Arc<dyn RemoteWorkers>);
    rig
}

fn task(member: &str) -> DelegateParams {
    swarm_slices::task(Some(member), (None, None))
}

/// Takes a run of this agent's own: no other host gave it.
fn own(member: &str) -> DelegateParams {
    let mut task = task(member);
    task.context.limits = None;
    task
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

async fn reported(rig: &Rig) -> Value {
    let found = || {
        let events = rig.journal.events().into_iter();
        let mut reports = events.filter(|event| event.kind == kind::SWARM_REPORTED);
        reports.next().map(|event| event.payload)
    };
    until("a report", || found().is_some()).await;
    serde_json::from_str(&found().unwrap()).unwrap()
}

/// What the agent's own purse has spent.
fn spent(kernel: &Kernel) -> u64 {
    let purses = kernel.budget_report().purses;
    let agent = purses.iter().find(|purse| purse.name == "agent").unwrap();
    agent.spent.tokens
}

/// What it has spent today.
fn of_day(kernel: &Kernel) -> u64 {
    let purses = kernel.budget_report().purses;
    let agent = purses.iter().find(|purse| purse.name == "agent").unwrap();
    let mut limits = agent.limits.iter();
    let day = limits.find(|limit| limit.unit == BudgetUnit::Tokens && limit.window == Window::Day);
    day.unwrap().spent
}

#[tokio::test]
async fn a_try_that_is_lost_counts_its_slice_until_its_report_comes() {
    let there = There::new(&[Act::Lose(None), Act::Lose(Some(0)), Act::Keep]);
    let rig = rig_with(&there);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, own("hand")).await.unwrap();
    until("three tries", || there.limits().len() == 3).await;
    // Of 3000, three may take a part; a lost try keeps its part, and one that never reached anybody keeps nothing.
    assert_eq!(there.limits(), [Some(1000), Some(666), Some(666)]);
    assert_eq!(spent(&kernel), 1000);
    let reports = kernel.report_receiver();
    // Another number in a second report of it changes nothing more.
    for tokens in [10, 500] {
        reports
            .accept_report(None, there.report(0, tokens))
            .await
            .unwrap();
    }
    reports.accept_report(None, there.report(2, 600)).await.unwrap();
    let report = reported(&rig).await;
    assert_eq!(report["status"], "completed");
    let learned: Vec<Value> = rig
        .journal
        .events()
        .into_iter()
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .filter(|payload: &Value| payload["state"] == "learned")
        .collect();
    assert_eq!(learned.len(), 1, "{learned:?}");
    assert_eq!(learned[0]["token_usage"], 10);
    // The agent's day has the rest again, too, and so it is after a restart.
    assert_eq!(of_day(&kernel), 610);
    kernel.shutdown("test", 5_000).await;
    let kernel = rig.start().await;
    assert_eq!(of_day(&kernel), 610);
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn what_a_late_report_gives_back_was_of_its_own_day() {
    let there = There::new(&[Act::Lose(None), Act::Keep]);
    let rig = rig_with(&there);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, own("hand")).await.unwrap();
    until("two tries", || there.limits().len() == 2).await;
    assert_eq!((of_day(&kernel), spent(&kernel)), (1000, 1000));
    kernel
        .report_receiver()
        .accept_report(None, there.report(1, 20))
        .await
        .unwrap();
    reported(&rig).await;
    assert_eq!((of_day(&kernel), spent(&kernel)), (1020, 1020));
    rig.clock.advance_ms(86_400_000);
    assert_eq!((of_day(&kernel), spent(&kernel)), (0, 1020));
    kernel
        .report_receiver()
        .accept_report(None, there.report(0, 10))
        .await
        .unwrap();
    assert_eq!((of_day(&kernel), spent(&kernel)), (0, 30));
    kernel.shutdown("test", 5_000).await;
}

#[tokio::test]
async fn what_a_late_report_gives_back_the_next_try_may_use() {
    let there = There::new(&[Act::Lose(None), Act::Keep, Act::Keep]);
    let rig = rig_with(&there);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, own("hand")).await.unwrap();
    until("two tries", || there.limits().len() == 2).await;
    kernel
        .report_receiver()
        .accept_report(None, there.report(0, 10))
        .await
        .unwrap();
    // The second try is cut off by a stop and goes on: what is left is looked at anew.
    kernel.shutdown("test", 0).await;
    let kernel = rig.start().await;
    until("it goes on", || there.limits().len() == 3).await;
    assert_eq!(there.limits()[2], Some((3000 - 10) / 3));
    kernel.shutdown("test", 0).await;
}

#[tokio::test]
async fn a_report_is_counted_once_wherever_the_agent_dies_behind_it() {
    let there = There::new(&[Act::Report(700)]);
    let rig = rig_with(&there);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, own("hand")).await.unwrap();
    let report = reported(&rig).await;
    assert_eq!(report["token_usage"], 700);
    until("the end", || {
        rig.journal.kinds().contains(&kind::SWARM_ENDED.to_owned())
    })
    .await;
    let payloads: Vec<Value> = rig
        .journal
        .events()
        .into_iter()
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect();
    let first = payloads
        .iter()
        .position(|payload| payload["state"] == "reported")
        .unwrap();
    let last = payloads
        .iter()
        .position(|payload| payload["status"] == "completed" && payload["token_usage"] == 700)
        .unwrap();
    assert!(
        last >= first + 3,
        "reported, settled, said, and its end: {payloads:?}"
    );
    for at in first + 1..=last + 1 {
        let after = There::new(&[Act::Report(700)]);
        let mut cut = rig_with(&after);
        cut.journal = Arc::new(rig.journal.cut(at));
        let kernel = cut.start().await;
        let report = reported(&cut).await;
        assert_eq!(report["token_usage"], 700, "cut behind {at} of {first}..={last}");
        until("the end", || {
            cut.journal.kinds().contains(&kind::SWARM_ENDED.to_owned())
        })
        .await;
        assert_eq!(spent(&kernel), 700, "cut behind {at} of {first}..={last}");
        kernel.shutdown("test", 5_000).await;
    }
}

#[tokio::test]
async fn an_answer_that_was_counted_before_a_crash_is_not_counted_again() {
    let there = There::new(&[Act::Answer(700)]);
    let rig = rig_with(&there);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, own("hand")).await.unwrap();
    reported(&rig).await;
    let settled = |event: &crate::ports::RecordedEvent| event.payload.contains(r#""state":"settled""#);
    let at = rig.journal.events().iter().position(settled).unwrap();
    let after = There::new(&[Act::Answer(700)]);
    let mut cut = rig_with(&after);
    cut.journal = Arc::new(rig.journal.cut(at + 1));
    let kernel = cut.start().await;
    assert_eq!(reported(&cut).await["token_usage"], 700);
    assert_eq!(spent(&kernel), 700);
    assert_eq!(after.limits(), [Some((3000 - 700) / 3)], "its run knows of it");
    kernel.shutdown("test", 5_000).await;
}

/// The session that gave a run has spent from its budget, is not open after the restart, and is opened later.
#[tokio::test]
async fn a_session_that_gave_a_run_pays_for_it_when_it_is_opened_later() {
    let mut spec = team();
    spec["swarm"]["resource_limits"].take();
    spec["swarm"].as_object_mut().unwrap().remove("resource_limits");
    let mut rig = rig(spec);
    rig.budgets.session.tokens = Some(6_000);
    let costs = |mut completion: crate::ports::ModelCompletion, tokens: u64| {
        completion.usage.input_tokens = 10;
        completion.usage.output_tokens = tokens - 10;
        completion
    };
    let before = ScriptedModel::new(move |request, _| {
        let asked = format!("{:?}", request.messages);
        Ok(match asked.contains("count the beans") {
            true => costs(calls(&[("write", json!({}))]), 500),
            false => costs(says("hello"), 4_000),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(before));
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let kernel = rig.start().await;
    let giver = kernel
        .open_session(EntryPoint::from_launcher("test"))
        .await
        .unwrap();
    giver.send_text("hello").await.unwrap();
    until("an answer", || {
        rig.journal.kinds().contains(&kind::MESSAGE_ANSWERED.to_owned())
    })
    .await;
    kernel.delegate_task(giver.id, own("lead")).await.unwrap();
    until("the tool runs", || !rig.runner.runs().is_empty()).await;
    let giver = giver.id;
    kernel.shutdown("test", 0).await;

    let behind = rig.journal.kinds().len();
    let after = ScriptedModel::new(move |_, _| Ok(costs(says("three beans"), 100)));
    rig.models.insert("model".to_owned(), Arc::new(after));
    let kernel = rig.start().await;
    until("the end", || {
        rig.journal.kinds().contains(&kind::SWARM_ENDED.to_owned())
    })
    .await;
    let aside = |behind: usize| -> Vec<u64> {
        let events = rig.journal.events().into_iter().skip(behind);
        let requested = events.filter(|event| event.kind == kind::PROVIDER_REQUESTED);
        requested
            .map(|event| {
                let payload: Value = serde_json::from_str(&event.payload).unwrap();
                payload["input_tokens"].as_u64().unwrap() + payload["output_tokens"].as_u64().unwrap()
            })
            .collect()
    };
    let worked = aside(behind);
    assert!(!worked.is_empty(), "it goes on");
    assert!(
        worked.iter().all(|tokens| *tokens <= 1_500),
        "6000 - 4000 - 500: {worked:?}"
    );
    let behind = rig.journal.kinds().len();
    let session = kernel
        .reopen_session(giver, EntryPoint::from_launcher("test"))
        .await
        .unwrap();
    session.send_text("and now?").await.unwrap();
    until("an answer", || {
        let answered = rig.journal.kinds().into_iter().skip(behind);
        answered
            .into_iter()
            .any(|kind| kind == kind::MESSAGE_ANSWERED || kind == kind::MESSAGE_DEAD)
    })
    .await;
    let spoke = aside(behind);
    assert!(
        spoke.iter().all(|tokens| *tokens <= 1_400),
        "6000 - 4000 - 500 - 100: {spoke:?}"
    );
    kernel.shutdown("test", 5_000).await;
}

/// Between the end of a run and its record there is a moment in which neither the coordinator nor the journal has it. Who asks then is
/// told all the same: a client that delegated it again would wait for ever.
#[tokio::test]
async fn the_end_of_a_run_is_told_to_who_asks_while_it_is_being_recorded() {
    let there = There::new(&[Act::Keep]);
    let rig = rig_with(&there);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, own("hand")).await.unwrap();
    until("a try", || there.limits().len() == 1).await;
    rig.journal.slow();
    let (reports, said) = (kernel.report_receiver(), there.report(0, 5));
    let report = tokio::spawn(async move { reports.accept_report(None, said).await });
    // Everything is written but the end, which was decided after the last batch was.
    while !kernel.swarm_view().await.unwrap().unwrap().runs.is_empty() {
        rig.journal.commit(1);
        tokio::task::yield_now().await;
    }
    assert!(!rig.journal.kinds().contains(&kind::SWARM_ENDED.to_owned()));
    let asks = kernel.clone();
    let asked = tokio::spawn(async move { asks.swarm_result(&id(1001)).await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    until("it is told", || {
        rig.journal.commit(1);
        asked.is_finished()
    })
    .await;
    let told = asked.await.unwrap().expect("its result");
    assert_eq!(told.status, TaskStatus::Completed);
    report.await.unwrap().unwrap();
    rig.journal.commit(usize::MAX);
    // Later it is in the journal.
    until("all is written", || {
        rig.journal.commit(usize::MAX);
        rig.journal.kinds().contains(&kind::SWARM_ENDED.to_owned())
    })
    .await;
}
