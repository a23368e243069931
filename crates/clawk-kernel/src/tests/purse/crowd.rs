//! 200 children against one purse: never over by one token.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clawk_proto::method::{DelegateContext, DelegateParams, DelegateTask};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::{agent, allow_all, id, rig, rpc};
use crate::ports::{
    BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion, ModelMessage, ModelProvider,
    ProviderError, Usage,
};
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{Kernel, kind};

/// A server with counters of its own: what it has billed, and the most that it may yet bill for what it works on.
#[derive(Debug, Default)]
struct Server {
    billed: AtomicU64,
    open: AtomicU64,
    most: AtomicU64,
    asked: AtomicU64,
}

impl Server {
    /// Looks at both counters at one moment.
    fn look(&self) {
        let sum = self.billed.load(Ordering::SeqCst) + self.open.load(Ordering::SeqCst);
        self.most.fetch_max(sum, Ordering::SeqCst);
    }
}

impl ModelProvider for Server {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        _: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(async move {
            let n = self.asked.fetch_add(1, Ordering::SeqCst);
            // The cache key is a parameter, and no part of the prompt.
            let prompt = InferRequest {
                cache_key: None,
                ..request.clone()
            };
            let input = u64::try_from(serde_json::to_vec(&prompt).unwrap().len())
                .unwrap()
                .div_ceil(4);
            let most = input + request.max_output_tokens;
            self.open.fetch_add(most, Ordering::SeqCst);
            self.look();
            tokio::time::sleep(Duration::from_millis(n * 7 % 13)).await;
            // Some use up all that they may, some next to nothing; some die on the way and bill the whole.
            let output = match n % 4 {
                0 => request.max_output_tokens,
                1 => 1,
                2 => request.max_output_tokens.div_ceil(2),
                _ => request.max_output_tokens.min(40),
            };
            let cut = n % 9 == 4;
            let billed = if cut { most } else { input + output };
            self.billed.fetch_add(billed, Ordering::SeqCst);
            self.open.fetch_sub(most, Ordering::SeqCst);
            self.look();
            if cut {
                return Err(ScriptedModel::fault(FaultKind::Cut, "the stream ended"));
            }
            let worked = request
                .messages
                .iter()
                .filter(|m| matches!(m, ModelMessage::ToolResult { .. }))
                .count();
            let mut completion = match worked {
                0 => calls(&[("write", json!({"n": n})), ("research", json!({"topic": n}))]),
                1 | 2 => calls(&[("echo", json!({"text": format!("{n}")}))]),
                _ => says("done"),
            };
            completion.usage = Usage {
                input_tokens: input,
                output_tokens: output,
                ..Usage::default()
            };
            Ok(completion)
        })
    }
}

const CHILDREN: u32 = 200;

fn crowd(tokens: u64) -> Rig {
    let mut spec = agent(allow_all());
    spec["tools"].as_array_mut().unwrap().push(
        json!({"name": "research", "composite": true, "skill_ref": "dig", "annotations": {"readOnlyHint": true}}),
    );
    spec["skills"] =
        json!([{"name": "dig", "description": "Digs.", "tools_required": ["echo"], "instruction": "Dig."}]);
    spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
        "auth": {"type": "none"}, "retry": {"max_attempts": 2, "initial_delay_ms": 1}, "limits": {"tokens_per_request": 900}}]);
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
        "agents": [{"identity_ref": "hand", "role": "worker", "count": CHILDREN}],
        "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {"max_parallel": CHILDREN}},
        "aggregation": {"strategy": "merge"}});
    let mut rig = rig(spec);
    // The session's purse is the one all children draw from; the agent's own is wider.
    rig.budgets.session.tokens = Some(tokens);
    rig.budgets.day.tokens = Some(tokens * 10);
    rig
}

fn task(n: u32) -> DelegateParams {
    DelegateParams {
        task_id: id(100_000 + n),
        task: DelegateTask {
            description: format!("dig at {n}"),
            input: None,
        },
        context: DelegateContext {
            request_id: id(n),
            swarm: "team".to_owned(),
            member: None,
            report_token: None,
            limits: None,
            proof: None,
        },
    }
}

async fn all_reported(rig: &Rig) {
    for _ in 0..2_000 {
        let kinds = rig.journal.kinds();
        if kinds.iter().filter(|k| *k == kind::SWARM_REPORTED).count() == usize::try_from(CHILDREN).unwrap() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not all tasks ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_children_never_spend_one_token_more_than_their_parent_has() {
    const TOKENS: u64 = 150_000;
    let rig = crowd(TOKENS);
    let server = Arc::new(Server::default());
    let mut parts = rig.parts();
    parts
        .providers
        .insert("model".to_owned(), Arc::clone(&server) as _);
    let kernel = Kernel::start(parts).await.unwrap();
    let session = rpc(&kernel).await;
    for n in 0..CHILDREN {
        kernel.delegate_task(session, task(n)).await.unwrap();
    }
    all_reported(&rig).await;
    let (billed, most) = (
        server.billed.load(Ordering::SeqCst),
        server.most.load(Ordering::SeqCst),
    );
    let budget = kernel.budget_report();
    let parent = budget
        .purses
        .iter()
        .find(|p| p.name == format!("session {session}"))
        .unwrap();
    eprintln!(
        "limit {TOKENS}, billed {billed}, most at one moment {most}, counted {}",
        parent.spent.tokens
    );
    assert!(
        most <= TOKENS,
        "at one moment {most} of {TOKENS} were spent or promised"
    );
    assert!(
        billed > TOKENS * 9 / 10,
        "the purse was really fought over: {billed}"
    );
    assert!(
        parent.spent.tokens <= TOKENS && parent.reserved.is_zero(),
        "{parent:?}"
    );
    assert!(
        parent.spent.tokens >= billed,
        "nothing that was billed is missing"
    );
    // The same purse counts what its agent counts.
    assert_eq!(budget.purses[0].spent.tokens, parent.spent.tokens);
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
    drop(kernel);
    let kernel = rig.start().await;
    assert_eq!(
        kernel.budget_report().purses[0].spent.tokens,
        budget.purses[0].spent.tokens,
        "kept"
    );
    assert_eq!(
        rig.journal.folded(),
        [],
        "those that have ended are not read again"
    );
}

/// Never answers the task of child 2.
#[derive(Debug)]
struct Stuck;

impl ModelProvider for Stuck {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        _: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(async move {
            if serde_json::to_string(request).unwrap().contains("dig at 2") {
                cancel.cancelled().await;
                return Err(ScriptedModel::fault(FaultKind::Cut, "cancelled"));
            }
            Ok(says("done"))
        })
    }
}

#[tokio::test]
async fn a_restart_takes_up_the_child_that_has_not_ended_and_no_other() {
    let rig = crowd(150_000);
    let start = async || {
        let mut parts = rig.parts();
        parts.providers.insert("model".to_owned(), Arc::new(Stuck) as _);
        Kernel::start(parts).await.unwrap()
    };
    let kernel = start().await;
    let session = rpc(&kernel).await;
    for n in 0..5 {
        kernel.delegate_task(session, task(n)).await.unwrap();
    }
    let reported = || {
        let kinds = rig.journal.kinds();
        kinds.iter().filter(|kind| *kind == kind::SWARM_REPORTED).count()
    };
    for _ in 0..2_000 {
        if reported() == 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(reported(), 4);
    let open: Vec<_> = rig
        .journal
        .inbox()
        .into_iter()
        .filter(|(_, end)| end.is_none())
        .collect();
    assert_eq!(open.len(), 1);
    kernel.shutdown("test", 1).await;
    let before = rig.journal.folded().len();
    let kernel = start().await;
    for _ in 0..2_000 {
        if rig.journal.folded().len() > before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let folded: BTreeSet<_> = rig.journal.folded().split_off(before).into_iter().collect();
    assert_eq!(folded.len(), 1, "one of five: {folded:?}");
    kernel.shutdown("test", 1).await;
}
