//! Every door leads through the one path: whatever runs, its decision was durable before. The runner itself looks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clawk_plan::{Plan, SandboxRefusal};
use clawk_proto::method::{DelegateContext, DelegateParams, DelegateTask, LifecycleState};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{agent, id, params, rig, rpc};
use crate::call::Permit;
use crate::notice::{ApprovalAnswer, SessionNotice};
use crate::ports::{BoxFuture, InspectedCall, RunError, RunOutcome, ToolDescription, ToolRunner};
use crate::testing::{Behaviour, MemJournal, Rig, ScriptedModel, TestRunner, calls, says};
use crate::witness::GrantPrecondition;
use crate::{EntryPoint, Kernel, kind};

/// Runs as the test runner does, after it has found the durable decision of every call with effects.
#[derive(Debug)]
struct Looking {
    runner: Arc<TestRunner>,
    journal: Arc<MemJournal>,
    seen: AtomicUsize,
}

impl ToolRunner for Looking {
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        self.runner.describe_tool(tool)
    }

    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.runner.preflight_call(tool, arguments, plan, workdir)
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        let decided = self.journal.events().iter().any(|event| {
            event.kind == kind::ACTION_APPROVED && event.payload.contains(permit.request_id().as_str())
        });
        assert!(decided, "`{}` runs before its decision is durable", permit.tool());
        self.seen.fetch_add(1, Ordering::SeqCst);
        self.runner.run(permit, cancel)
    }

    fn preview_call<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, crate::sheet::ExecutorPreview> {
        self.runner.preview_call(look)
    }

    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        self.runner.stands_on(look)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.runner.close()
    }
}

fn spec() -> Value {
    let mut spec = agent(json!([
        {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "asked"}},
        {"id": "watch", "action": "audit-only", "scope": "tool", "match": {"name": "watched"}},
        {"id": "no", "action": "deny", "scope": "tool", "match": {"name": "denied"}},
        {"id": "rest", "action": "allow", "scope": "all"}]));
    let tools = spec["tools"].as_array_mut().unwrap();
    for name in ["asked", "watched", "denied"] {
        tools.push(json!({"name": name, "description": name, "input_schema": {"type": "object"}}));
    }
    tools.push(
        json!({"name": "retried", "description": "r", "input_schema": {"type": "object"},
        "annotations": {"idempotentHint": true}, "retry": {"max_attempts": 3, "backoff": "constant"}}),
    );
    tools.push(json!({"name": "composed", "description": "c", "input_schema": {"type": "object"}, "composite": true, "skill_ref": "flow"}));
    spec["skills"] =
        json!([{"name": "flow", "description": "d", "instruction": "Write.", "tools_required": ["write"]}]);
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker", "agents": [{"identity_ref": "tester", "role": "worker", "count": 1}],
        "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {}}, "aggregation": {"strategy": "merge"}});
    spec
}

async fn start(rig: &Rig) -> (Kernel, Arc<Looking>) {
    let looking = Arc::new(Looking {
        runner: Arc::clone(&rig.runner),
        journal: Arc::clone(&rig.journal),
        seen: AtomicUsize::new(0),
    });
    let mut parts = rig.parts();
    parts.runner = Arc::clone(&looking) as _;
    (Kernel::start(parts).await.expect("it starts"), looking)
}

/// What the trace must say whatever was done: an outcome has its decision before it, with the same request.
fn covered(rig: &Rig) -> usize {
    let mut decided = Vec::new();
    let mut ran = 0;
    for event in rig.journal.events() {
        let payload: Value = serde_json::from_str(&event.payload).unwrap();
        let request = (event.session, payload["request_id"].as_str().map(str::to_owned));
        match event.kind.as_str() {
            kind::ACTION_APPROVED => decided.push(request),
            kind::ACTION_EXECUTED => {
                ran += 1;
                assert!(
                    decided.contains(&request),
                    "executed without a decision: {payload}"
                );
            }
            _ => {}
        }
    }
    ran
}

#[tokio::test]
async fn every_door_leads_through_a_durable_decision() {
    let mut rig = rig(spec());
    rig.runner.set("retried", Behaviour::Flaky(2));
    let model = ScriptedModel::new(|request, _| {
        let last = request.messages.last().cloned();
        Ok(match last {
            Some(crate::ports::ModelMessage::User { text, .. })
                if text.contains("skill") || text.contains("task") =>
            {
                calls(&[("write", json!({}))])
            }
            Some(crate::ports::ModelMessage::User { .. }) => calls(&[
                ("write", json!({})),
                ("watched", json!({})),
                ("denied", json!({})),
                ("composed", json!({})),
            ]),
            _ => says("done"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let (kernel, looking) = start(&rig).await;
    assert_eq!(kernel.status().state, LifecycleState::Ready);
    // The wire: allowed, watched, retried, denied, asked.
    let session = rpc(&kernel).await;
    for (tool, n, runs) in [
        ("write", 1, true),
        ("watched", 2, true),
        ("retried", 3, true),
        ("denied", 4, false),
    ] {
        let outcome = kernel.call(session, params(tool, json!({}), n)).await;
        assert_eq!(outcome.is_ok(), runs, "{tool}: {outcome:?}");
    }
    for (n, answer) in [(5, ApprovalAnswer::Approve), (6, ApprovalAnswer::Deny)] {
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("asked", json!({}), n)));
        questions.recv().await.unwrap();
        kernel.answer_question(&id(n), answer, None, "ann").await;
        assert_eq!(call.await.unwrap().is_ok(), answer == ApprovalAnswer::Approve);
    }
    // A conversation, with a composite tool in it.
    let talk = kernel.open_session(EntryPoint::Cli).await.unwrap();
    talk.send_text("all of it").await.unwrap();
    while !matches!(talk.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    // A peer.
    let task = DelegateParams {
        task_id: id(8),
        task: DelegateTask {
            description: "a task".to_owned(),
            input: None,
        },
        context: DelegateContext {
            request_id: id(7),
            swarm: "team".to_owned(),
            member: None,
            report_token: None,
            limits: None,
            proof: None,
        },
    };
    kernel.delegate_task(session, task).await.unwrap();
    let reported = || rig.journal.kinds().contains(&kind::SWARM_REPORTED.to_owned());
    while !reported() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // write, watched, retried ×3, asked; write, watched, composed's write; the peer's write.
    assert_eq!(looking.seen.load(Ordering::SeqCst), 10);
    assert_eq!(covered(&rig), 9, "composed and its inner call are one each");
}

#[tokio::test]
async fn nothing_runs_when_the_decision_cannot_be_written() {
    let rig = rig(spec());
    let (kernel, looking) = start(&rig).await;
    let session = rpc(&kernel).await;
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    rig.journal.fail_after(0);
    for (tool, n) in [("write", 2), ("watched", 3), ("retried", 4), ("composed", 5)] {
        kernel
            .call(session, params(tool, json!({}), n))
            .await
            .unwrap_err();
    }
    assert_eq!(looking.seen.load(Ordering::SeqCst), 1);
}
