//! Sends `claw.swarm.report` to the client that delegated: a request of ours, repeated with the same content until it is answered.
//! A client that reconnects and delegates the same task again gets the report again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::{Kernel, RunResult};
use clawk_proto::method::{Method, TaskStatus};
use clawk_proto::{ErrorCode, RequestId, RpcError};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::ServedRun;
use crate::transport::outbox::Outbox;

/// The wait before the first repetition, and the longest wait.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);
/// The largest number of unsent reports per client. The client gets further reports when it delegates the same task again.
const MOST: usize = 10_000;
/// The prefix of our request ids.
const PREFIX: &str = "report-";

/// The reports that one client must get.
#[derive(Debug, Default)]
pub(crate) struct OwedReports {
    reports: Mutex<BTreeMap<RequestId, OwedReport>>,
    bell: Notify,
}

#[derive(Debug)]
struct OwedReport {
    token: Option<String>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing waits for the task's end yet.
    New,
    /// A task waits for the end.
    Waiting,
    /// The report is ready to be sent.
    Said {
        line: String,
        due: Instant,
        wait: Duration,
    },
}

impl OwedReports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestId, OwedReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the client has delegated this task.
    pub(crate) fn add_owed(&self, task: RequestId, token: Option<String>) {
        let mut reports = self.lock();
        if reports.len() >= MOST && !reports.contains_key(&task) {
            return tracing::warn!("a client is owed too many reports; one more is told when it asks again");
        }
        let report = reports.entry(task).or_insert(OwedReport {
            token,
            state: State::New,
        });
        // The client delegated the task again: the report is sent again at once.
        if let State::Said { due, wait, .. } = &mut report.state {
            (*due, *wait) = (Instant::now(), FIRST);
        }
        drop(reports);
        self.bell.notify_one();
    }

    /// Whether this line is the client's answer to a report. If so, the report is not repeated.
    pub(crate) fn settle_answered(&self, line: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct ReportAnswer {
            id: String,
            error: Option<RpcError>,
        }
        let id = serde_json::from_slice::<ReportAnswer>(line).ok(); // silent-ok: it answers something else
        let Some(ReportAnswer { id, error: refused }) = id else {
            return false;
        };
        let task = id
            .strip_prefix(PREFIX)
            .and_then(|task| RequestId::parse(task).ok()); // silent-ok: as above
        let Some(task) = task else { return false };
        if let Some(error) = refused {
            tracing::warn!(%task, "the report of a task was refused: {}", error.message);
        }
        let mut reports = self.lock();
        match reports.get(&task).map(|report| &report.state) {
            Some(State::Said { .. }) => reports.remove(&task).is_some(),
            Some(State::New | State::Waiting) | None => false,
        }
    }

    fn take_new_tasks(&self) -> Vec<RequestId> {
        let mut fresh = Vec::new();
        for (task, report) in self.lock().iter_mut() {
            if matches!(report.state, State::New) {
                report.state = State::Waiting;
                fresh.push(task.clone());
            }
        }
        fresh
    }

    fn set_result(&self, kernel: &Kernel, task: &RequestId, result: Option<&RunResult>) {
        let mut reports = self.lock();
        let Some(result) = result else {
            reports.remove(task);
            return;
        };
        if let Some(report) = reports.get_mut(task) {
            report.state = State::Said {
                line: report_request(kernel, task, result, report.token.as_deref()),
                due: Instant::now(),
                wait: FIRST,
            };
        }
    }

    /// The reports to send now, and the time of the next one.
    fn due_reports(&self) -> (Vec<String>, Option<Instant>) {
        let now = Instant::now();
        let (mut lines, mut next) = (Vec::new(), None);
        for report in self.lock().values_mut() {
            let State::Said { line, due, wait } = &mut report.state else {
                continue;
            };
            if *due <= now {
                lines.push(line.clone());
                *due = now + *wait;
                *wait = (*wait * 2).min(LONGEST);
            }
            next = Some(next.map_or(*due, |next: Instant| next.min(*due)));
        }
        (lines, next)
    }
}

/// The report of a run, as a JSON-RPC request.
pub(crate) fn report_request(
    kernel: &Kernel,
    task: &RequestId,
    result: &RunResult,
    token: Option<&str>,
) -> String {
    signed_request(kernel, task, report_params(task, result, token))
}

/// The request, signed by this host's key if it has one.
fn signed_request(kernel: &Kernel, task: &RequestId, params: Value) -> String {
    let (id, params) = (format!("{PREFIX}{task}"), kernel.sign_report(params));
    json!({"jsonrpc": "2.0", "id": id, "method": Method::SwarmReport.name(), "params": params}).to_string()
}

/// The report for a task that never ran here and can't run, as a JSON-RPC request.
pub(crate) fn lost_report(
    kernel: &Kernel,
    task: &RequestId,
    (reason, message): (&str, &str),
    token: Option<&str>,
) -> String {
    let mut params = json!({
        "task_id": task, "status": TaskStatus::Failed, "token_usage": 0, "cost_microusd": 0, "duration_ms": 0,
        "result": {"text": message, "error": {"code": ErrorCode::PeerFailed.code(), "reason": reason}},
    });
    if let Some(token) = token {
        set_member(&mut params, "report_token", json!(token));
    }
    signed_request(kernel, task, params)
}

/// The params of a report: the answer; for a run of several members their answers too.
pub(crate) fn report_params(task: &RequestId, result: &RunResult, token: Option<&str>) -> Value {
    let mut answer = json!({"text": result.text});
    if let Some(data) = &result.data {
        set_member(&mut answer, "data", data.clone());
    }
    if result.answers.len() > 1 {
        set_member(&mut answer, "answers", json!(result.answers));
    }
    if let Some(fault) = result
        .error
        .as_ref()
        .filter(|_| result.status == TaskStatus::Failed)
    {
        if result.text.is_empty() {
            set_member(&mut answer, "text", json!(fault.message));
        }
        set_member(
            &mut answer,
            "error",
            json!({"code": fault.code, "reason": fault.reason}),
        );
    }
    let mut params = json!({
        "task_id": task, "status": result.status, "result": answer, "token_usage": result.tokens,
        "cost_microusd": result.cost_microusd, "duration_ms": result.duration_ms,
    });
    if let Some(token) = token {
        set_member(&mut params, "report_token", json!(token));
    }
    params
}

fn set_member(object: &mut Value, member: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(member.to_owned(), value);
    }
}

/// Sends the client its reports for the current run in `pulse`, until the connection ends.
pub(crate) async fn follow_reports(mut pulse: watch::Receiver<Option<ServedRun>>, outbox: &Outbox) {
    loop {
        let run = pulse.borrow_and_update().clone();
        let Some((kernel, owed)) = run.and_then(|run| Some((run.kernel, run.owed?))) else {
            if pulse.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut ends = FuturesUnordered::new();
        loop {
            for task in owed.take_new_tasks() {
                let kernel = kernel.clone();
                ends.push(async move { (kernel.swarm_result(&task).await, task) });
            }
            let (lines, next) = owed.due_reports();
            for line in lines {
                outbox.room().await;
                let mut line = line.into_bytes();
                line.push(b'\n');
                outbox.take(&mut line);
            }
            tokio::select! {
                biased;
                changed = pulse.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return, // silent-ok: the connection is over
                },
                () = owed.bell.notified() => {}
                Some((result, task)) = ends.next(), if !ends.is_empty() => owed.set_result(&kernel, &task, result.as_ref()),
                () = wait_until(next) => {}
            }
        }
    }
}

async fn wait_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}
