//! A peer over a connection, on any transport of the client. A peer that supports `claw.swarm.*` gets the task and sends a report.
//! Any other peer gets the task as a message and answers. Requests of a peer other than reports are refused.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Plain, PoisonError};
use std::time::Duration;

use clawk_client::{AgentAddress, AgentClient, ClientError, Options, UnsolicitedMessage};
use clawk_kernel::ports::{RemoteResult, RemoteTask, ReportReceiver, RetryReason};
use clawk_kernel::{KernelError, UNPROVEN};
use clawk_proto::message::SEND;
use clawk_proto::method::{Method, ReportParams};
use clawk_proto::{ErrorCode, RequestId, RpcError};
use clawk_secrets::Secret;
use clawk_trace::checkpoint::PublicKey;
use serde_json::{Value, json};
use tokio::sync::{Mutex, broadcast, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::ckp as error;

/// How often the task is sent again to a peer that has not reported. The request is the same, so the peer runs it once.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// How long an acknowledgement may take.
const ACKNOWLEDGE: Duration = Duration::from_secs(30);
/// How long clawk tries to restore a broken connection before the try is lost.
const RECONNECT: Duration = Duration::from_secs(5);
/// How many messages without effect (duplicates, unknown ids, refused requests) one connection may send within [`PATIENCE`]. Above
/// that it is closed.
const USELESS: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(60);

/// Settings of the connection to a peer.
#[derive(Clone)]
pub struct LinkOptions {
    /// The peer's address.
    pub target: AgentAddress,
    /// The name that we give to the peer.
    pub name: String,
    /// The token that the peer requires.
    pub token: Option<Secret>,
    /// The only tools that the peer may use; `None`: no such limit.
    pub tools: Option<Vec<String>>,
    /// The time limit of one try, milliseconds.
    pub timeout_ms: Option<u64>,
}

impl fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkOptions({})", self.target)
    }
}

/// One peer.
pub(super) struct PeerLink {
    identity: String,
    options: LinkOptions,
    open: Mutex<Option<PeerConnection>>,
    gone: AtomicBool,
    /// The members that work on tries now, by try.
    members: Arc<Plain<HashMap<RequestId, String>>>,
}

/// A connection.
#[derive(Clone)]
struct PeerConnection {
    client: AgentClient,
    /// The connection was closed because of too many useless messages.
    flooded: CancellationToken,
    /// Set once a message could not be verified as its member's; holds the reason.
    unproven: watch::Sender<Option<String>>,
}

/// The error for a task whose limited rights a message can't express.
const NOT_CONVEYED: &str = "the peer serves no `claw.swarm.*`, and a message can't tell it to use less than it has; declare the Swarm there, or give the task with a wider role and without `tools`";

impl PeerLink {
    pub(super) fn new(identity: String, options: LinkOptions) -> Arc<Self> {
        Arc::new(Self {
            identity,
            options,
            open: Mutex::default(),
            gone: AtomicBool::new(false),
            members: Arc::default(),
        })
    }

    pub(super) const fn options(&self) -> &LinkOptions {
        &self.options
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(super) async fn close(&self) {
        let open = self.open.lock().await.take();
        if let Some(open) = open {
            open.client.close().await;
        }
    }

    /// The open connection, or a new one.
    async fn ensure_connected(
        &self,
        reports: &Arc<dyn ReportReceiver>,
    ) -> Result<PeerConnection, ClientError> {
        let mut open = self.open.lock().await;
        if let Some(open) = open.as_ref().filter(|open| !open.flooded.is_cancelled()) {
            return Ok(open.clone());
        }
        let options = Options {
            token: self.options.token.clone(),
            capabilities: json!({"swarm": {}, "messages": {}}),
            reconnect: RECONNECT,
            ..Options::for_client(&self.options.name)
        };
        let client = AgentClient::connect(self.options.target.clone(), options).await?;
        let fresh = PeerConnection {
            client,
            flooded: CancellationToken::new(),
            unproven: watch::Sender::new(None),
        };
        let desk = PeerMessageHandler {
            identity: self.identity.clone(),
            open: fresh.clone(),
            reports: Arc::clone(reports),
            members: Arc::clone(&self.members),
            useless: 0,
            since: Instant::now(),
        };
        let notices = fresh.client.subscribe_notices();
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with the connection, whose notices it reads"
        )]
        tokio::spawn(desk.serve_notices(notices));
        *open = Some(fresh.clone());
        Ok(fresh)
    }

    /// Drops a connection that can't be used any more.
    async fn drop_connection(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.open.lock().await.take();
    }

    /// Gives the peer one try and waits for the result. Dropping the future gives up. With a bound `key`, only a signed report
    /// counts as success.
    pub(super) async fn run_task(
        &self,
        errand: &RemoteTask,
        reports: &Arc<dyn ReportReceiver>,
        key: Option<&PublicKey>,
    ) -> RemoteResult {
        let open = match self.ensure_connected(reports).await {
            Ok(open) => open,
            Err(error) => {
                self.drop_connection().await;
                return lost_result(RetryReason::Unreached, &error, Some(0));
            }
        };
        self.gone.store(false, Ordering::Relaxed);
        let _bound = MemberTryGuard::new(&self.members, errand);
        let serves = |group: &str| {
            let agent = open.client.agent_info();
            agent.pointer(&format!("/capabilities/{group}")).is_some()
        };
        let mut unproven = open.unproven.subscribe();
        let worked = tokio::select! {
            message = async {
                let why = unproven.wait_for(Option::is_some).await;
                why.map_or_else(|_| None, |why| why.clone()) // silent-ok: the connection outlives this
            } => RemoteResult::Refused { reason: UNPROVEN.to_owned(), message: message.unwrap_or_default(), tokens: None },
            () = open.flooded.cancelled() => RemoteResult::Lost {
                why: RetryReason::Garbage,
                message: format!("`{}` sent more than {USELESS} useless messages within {} s", self.identity, PATIENCE.as_secs()),
                tokens: None,
            },
            worked = async {
                if serves("swarm") {
                    delegate_task(&open.client, errand).await
                } else if let Some(key) = key {
                    RemoteResult::Refused {
                        reason: UNPROVEN.to_owned(),
                        message: format!(
                            "`{}` is bound to the key {}, and serves no `claw.swarm.*`: nobody signs what it answers",
                            self.identity,
                            key.id()
                        ),
                        tokens: Some(0),
                    }
                } else if serves("messages") {
                    send_as_message(&open.client, errand).await
                } else {
                    RemoteResult::Refused {
                        reason: "no_swarm".to_owned(),
                        message: format!("`{}` serves neither `claw.swarm.*` nor `{SEND}`", self.identity),
                        tokens: Some(0),
                    }
                }
            } => worked,
        };
        let is_unproven = open.unproven.borrow().is_some();
        if is_unproven || matches!(worked, RemoteResult::Lost { .. }) {
            self.drop_connection().await;
        }
        worked
    }
}

fn lost_result(why: RetryReason, error: &ClientError, tokens: Option<u64>) -> RemoteResult {
    RemoteResult::Lost {
        why,
        message: error.to_string(),
        tokens,
    }
}

/// Delegates the task, repeatedly with the same id, until the report arrives and the caller drops this future.
async fn delegate_task(client: &AgentClient, errand: &RemoteTask) -> RemoteResult {
    let mut greeted = client.watch_greetings();
    // A peer that refuses a task before it acknowledges it has not begun it.
    let mut unbegun = Some(0);
    loop {
        greeted.mark_unchanged();
        let call = client.call(Method::SwarmDelegate.name(), json!(errand.delegate_params()));
        match timeout(ACKNOWLEDGE, call).await {
            Ok(Ok(answer)) if answer.get("acknowledged") == Some(&Value::Bool(true)) => unbegun = None,
            Ok(Ok(_)) => {
                return RemoteResult::Refused {
                    reason: "not_acknowledged".to_owned(),
                    message: "the peer did not take the task".to_owned(),
                    tokens: unbegun,
                };
            }
            Ok(Err(ClientError::Rpc(error))) => return result_from_error(&error, unbegun),
            Ok(Err(error)) => return lost_result(RetryReason::Crashed, &error, None),
            Err(_) => return lost_result(RetryReason::Crashed, &ClientError::Silent(ACKNOWLEDGE), None), // silent-ok: the deadline is the whole cause
        }
        // After a reconnect the peer may have forgotten the task, or may still owe the report.
        tokio::select! {
            _ = greeted.changed() => {}
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
    }
}

/// Whether the task has fewer rights than the peer. Only `claw.swarm.delegate` can express that.
pub(super) fn is_narrow(errand: &RemoteTask) -> bool {
    errand.limits.tools.is_some() || errand.limits.role.as_deref() == Some("viewer")
}

/// Sends the task as a message and returns the answer.
async fn send_as_message(client: &AgentClient, errand: &RemoteTask) -> RemoteResult {
    if is_narrow(errand) {
        return RemoteResult::Refused {
            reason: "rights_not_conveyed".to_owned(),
            message: NOT_CONVEYED.to_owned(),
            tokens: Some(0),
        };
    }
    let params = json!({"request_id": errand.request_id, "conversation": errand.id, "text": errand.text});
    match client.call(SEND, params).await {
        Ok(answer) => result_from_answer(&answer),
        Err(ClientError::Rpc(error)) => result_from_error(&error, None),
        Err(error) => lost_result(RetryReason::Crashed, &error, None),
    }
}

/// The result in the answer to `claw.message.send`.
fn result_from_answer(answer: &Value) -> RemoteResult {
    let parts = answer.get("parts").and_then(Value::as_array);
    let texts = parts
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text")?.as_str());
    let text = texts.collect::<Vec<_>>().join("\n");
    let tokens = answer.get("usage").map(|usage| {
        ["input", "output", "input_tokens", "output_tokens"]
            .iter()
            .filter_map(|name| usage.get(*name)?.as_u64())
            .fold(0_u64, u64::saturating_add)
    });
    match answer.get("stop").and_then(Value::as_str) {
        Some("answered") => RemoteResult::Answered { text, tokens },
        Some(other) => RemoteResult::Refused {
            reason: other.chars().take(32).collect(),
            message: "the peer's turn did not answer".to_owned(),
            tokens,
        },
        None => RemoteResult::Lost {
            why: RetryReason::Garbage,
            message: "its answer does not say how it ended".to_owned(),
            tokens: None,
        },
    }
}

/// The result for an error of the peer. The error's code says whether another try makes sense.
fn result_from_error(error: &RpcError, tokens: Option<u64>) -> RemoteResult {
    let again = [ErrorCode::PeerUnreachable, ErrorCode::ProviderUnavailable];
    let message: String = error.message.chars().take(300).collect();
    if let Some(code) = again.iter().find(|code| code.code() == error.code) {
        let why = if *code == ErrorCode::PeerUnreachable {
            RetryReason::Unreached
        } else {
            RetryReason::NoProvider
        };
        return RemoteResult::Lost { why, message, tokens };
    }
    let reason = error.data.as_ref().and_then(|data| data.get("reason")?.as_str());
    RemoteResult::Refused {
        reason: reason.unwrap_or("refused").chars().take(64).collect(),
        message,
        tokens,
    }
}

/// Marks a member as working on a try, until dropped.
struct MemberTryGuard<'a> {
    members: &'a Plain<HashMap<RequestId, String>>,
    id: RequestId,
}

impl<'a> MemberTryGuard<'a> {
    fn new(members: &'a Plain<HashMap<RequestId, String>>, errand: &RemoteTask) -> Self {
        let mut known = members.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(errand.id.clone(), errand.member.clone());
        drop(known);
        Self {
            members,
            id: errand.id.clone(),
        }
    }
}

impl Drop for MemberTryGuard<'_> {
    fn drop(&mut self) {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&self.id);
    }
}

/// Handles the requests that a peer sends to us.
struct PeerMessageHandler {
    identity: String,
    open: PeerConnection,
    reports: Arc<dyn ReportReceiver>,
    members: Arc<Plain<HashMap<RequestId, String>>>,
    useless: u32,
    since: Instant,
}

impl PeerMessageHandler {
    async fn serve_notices(mut self, mut notices: broadcast::Receiver<UnsolicitedMessage>) {
        loop {
            let notice = match notices.recv().await {
                Ok(notice) => notice,
                // The peer repeats missed messages until they are acknowledged.
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.useless = self.useless.saturating_add(USELESS);
                    if self.is_flooded() {
                        return;
                    }
                    continue;
                }
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if notice.id.is_null() {
                continue;
            }
            let (outcome, useful) = self.answer_notice(&notice).await;
            if !useful {
                self.useless = self.useless.saturating_add(1);
            }
            if self.is_flooded() || self.open.client.send_answer(notice.id, outcome).await.is_err() {
                return;
            }
        }
    }

    /// Counts a useless message. Returns whether the connection must be closed.
    fn is_flooded(&mut self) -> bool {
        if self.since.elapsed() > PATIENCE {
            (self.useless, self.since) = (0, Instant::now());
        }
        if self.useless <= USELESS {
            return false;
        }
        tracing::warn!(peer = %self.identity, "the peer sends too much to no purpose: its connection is closed");
        self.open.flooded.cancel();
        true
    }

    /// The answer to a request, and whether the request had an effect.
    async fn answer_notice(&self, notice: &UnsolicitedMessage) -> (Result<Value, RpcError>, bool) {
        if notice.method != Method::SwarmReport.name() {
            let message = format!(
                "`{}` is not for a peer to ask",
                notice.method.chars().take(64).collect::<String>()
            );
            return (Err(RpcError::new(ErrorCode::MethodNotFound, message)), false);
        }
        let params: ReportParams = match error::decode(Method::SwarmReport.name(), &notice.params.to_string())
        {
            Ok(params) => params,
            Err(error) => return (Err(error), false),
        };
        let member = {
            let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            members.get(&params.task_id).cloned()
        };
        let bound = member.as_deref();
        match self.reports.accept_report(bound, params).await {
            Ok(answer) => (Ok(json!(answer)), bound.is_some() && answer.acknowledged),
            Err(fault) => {
                if let KernelError::Swarm { reason, message, .. } = &fault
                    && reason == UNPROVEN
                    && bound.is_some()
                {
                    self.open.unproven.send_replace(Some(message.clone()));
                }
                (Err(error::from_kernel(&fault)), false)
            }
        }
    }
}
