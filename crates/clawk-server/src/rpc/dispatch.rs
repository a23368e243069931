//! Routes a message to the method that it names: one function per method.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use clawk_kernel::sheet::PreviewReceipt;
use clawk_kernel::{
    ApprovalAnswer, ApprovalReply as Answered, GrantScope, KernelError, KnownPerson, ReplyOutcome,
};
use clawk_proto::message;
use clawk_proto::method::{
    AcknowledgedResult, AnswerParams, BroadcastParams, DelegateParams, DiscoverParams, LifecycleState,
    MemoryCompactParams, MemoryQueryParams, MemoryStoreParams, Method, ReportParams, ToolCallParams,
};
use clawk_proto::rpc::{InboundRpc, Request, RpcId, RpcMessage, parse, write_error, write_result};
use clawk_proto::{ErrorCode, RpcError};
use futures::FutureExt;
use serde::Serialize;

use super::reply::{AnswerDestination, Batch, ReplyGuard};
use super::{ClientRun, ConnectionPhase, RpcConnection, gate, tasks};
use crate::access::Scope;
use crate::control::orders;
use crate::error::ckp as error;

/// A request that has passed the gate.
pub(super) struct AdmittedRequest<'a> {
    pub(super) id: RpcId<'a>,
    pub(super) params: &'a str,
    pub(super) place: AnswerDestination,
}

impl RpcConnection {
    /// Handles one message: answers at once, or starts the work that will answer. Returns when the next message may be read (R25).
    pub(crate) async fn handle_line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match parse(line) {
            InboundRpc::One(RpcMessage::Ignored) => self.handle_answer(line),
            InboundRpc::One(message) => self.handle_message(message, AnswerDestination::Alone).await,
            InboundRpc::Batch(messages) => {
                let is_answered = |message: &&RpcMessage<'_>| match message {
                    RpcMessage::Request(request) => request.id.is_some(),
                    RpcMessage::Refused(_) => true,
                    RpcMessage::Ignored => false,
                };
                let outstanding = messages.iter().filter(is_answered).count();
                let place = AnswerDestination::Batch(Batch::new(Arc::clone(&self.outbox), outstanding));
                for message in messages {
                    self.handle_message(message, place.clone()).await;
                }
            }
        }
    }

    /// Handles a response of the client: to a report, or to nothing.
    fn handle_answer(&self, line: &[u8]) {
        let owed = match &self.phase {
            ConnectionPhase::Running(run) => run.owed.as_ref(),
            ConnectionPhase::Fresh | ConnectionPhase::Stopped(_) => None,
        };
        if !owed.is_some_and(|owed| owed.settle_answered(line)) {
            tracing::debug!("a stray response or a malformed notification was dropped");
        }
    }

    /// Answers a message that was too long to read.
    pub(crate) fn too_long(&mut self, max_message_bytes: usize) {
        let message = format!("a message may have at most {max_message_bytes} bytes");
        let error = RpcError::new(ErrorCode::InvalidRequest, message)
            .with(serde_json::json!({"reason": "too_long", "max_message_bytes": max_message_bytes}));
        AnswerDestination::Alone.put_answer(&mut self.out, |out| write_error(out, &RpcId::NULL, &error));
    }

    async fn handle_message(&mut self, message: RpcMessage<'_>, place: AnswerDestination) {
        match message {
            RpcMessage::Request(Request {
                id: Some(id),
                method,
                params,
            }) => {
                self.handle_request(&method, AdmittedRequest { id, params, place })
                    .await;
            }
            RpcMessage::Request(Request {
                id: None,
                method,
                params,
            }) => self.handle_notification(&method, params).await,
            RpcMessage::Refused(refused) => {
                place.put_answer(&mut self.out, |out| write_error(out, &refused.id, &refused.error))
            }
            RpcMessage::Ignored => {
                tracing::debug!("a stray response or a malformed notification was dropped")
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each method, read side by side")]
    async fn handle_request(&mut self, name: &str, ask: AdmittedRequest<'_>) {
        if let ConnectionPhase::Running(run) = &self.phase
            && run.kernel.goes_on()
        {
            Box::pin(self.go_on()).await;
        }
        if self.rights.may_give_orders() && name.starts_with(orders::PREFIX) {
            return self.handle_order(name, ask).await;
        }
        if name == message::SEND {
            return self.message_send(ask).await;
        }
        if name.starts_with(tasks::PREFIX) {
            return self.handle_task(name, ask).await;
        }
        let method = match gate::admit_method(&self.phase, &self.rights, name) {
            Ok(method) => method,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        match method {
            Method::Status => return self.answer_status(&ask),
            // Boxed because they are rare and large: otherwise the future of every line would contain them.
            Method::Initialize => return Box::pin(self.handle_initialize(ask)).await,
            Method::Shutdown => return Box::pin(self.handle_shutdown(ask)).await,
            _ => {}
        }
        let ConnectionPhase::Running(run) = &self.phase else {
            return;
        };
        let run = Arc::clone(run);
        match method {
            Method::ToolCall => self.tool_call(run, ask).await,
            Method::ToolApprove => {
                self.answer_approval(run, ask, method, ApprovalAnswer::Approve)
                    .await
            }
            Method::ToolDeny => self.answer_approval(run, ask, method, ApprovalAnswer::Deny).await,
            Method::SwarmDelegate => {
                self.run_method(run, ask, method, |run, p: DelegateParams| async move {
                    let (task, token) = (p.task_id.clone(), p.context.report_token.clone());
                    let taken = run.kernel.delegate_task(run.session.id, p).await?;
                    if let Some(owed) = &run.owed {
                        owed.add_owed(task, token);
                    }
                    Ok::<_, KernelError>(taken)
                })
                .await;
            }
            Method::SwarmReport => {
                self.run_method(run, ask, method, |run, p: ReportParams| async move {
                    run.kernel.report_task(run.session.id, p).await
                })
                .await;
            }
            Method::SwarmDiscover => {
                self.run_method(run, ask, method, |run, p: DiscoverParams| async move {
                    run.kernel.discover_peers(&p).await
                })
                .await;
            }
            Method::MemoryQuery => {
                self.run_method(run, ask, method, |run, p: MemoryQueryParams| async move {
                    run.kernel.memory_query(run.session.id, p).await
                })
                .await;
            }
            Method::MemoryStore => {
                self.run_method(run, ask, method, |run, p: MemoryStoreParams| async move {
                    run.kernel.memory_store(run.session.id, p).await
                })
                .await;
            }
            Method::MemoryCompact => {
                self.run_method(run, ask, method, |run, p: MemoryCompactParams| async move {
                    run.kernel.memory_compact(run.session.id, p).await
                })
                .await;
            }
            Method::Initialize
            | Method::Status
            | Method::Shutdown
            | Method::Initialized
            | Method::Heartbeat
            | Method::SwarmBroadcast => {}
        }
    }

    /// `claw.status` (CKP §9.3.1): answered immediately, whatever else is in flight.
    fn answer_status(&mut self, ask: &AdmittedRequest<'_>) {
        let (kernel, ended) = match &self.phase {
            ConnectionPhase::Fresh => return,
            ConnectionPhase::Running(run) => (&run.kernel, false),
            ConnectionPhase::Stopped(kernel) => (kernel, true),
        };
        if !ask.params.starts_with('{') {
            let error = RpcError::new(
                ErrorCode::InvalidParams,
                "the params of `claw.status` must be an object",
            );
            return self.refuse_request(ask, &error);
        }
        let mut status = kernel.status();
        if ended {
            // This client's session is over, even if the agent serves others.
            status.state = LifecycleState::Stopped;
        }
        ask.place
            .put_answer(&mut self.out, |out| write_result(out, &ask.id, &status));
    }

    /// `claw.tool.call` (CKP §9.3.2).
    async fn tool_call(&mut self, run: Arc<ClientRun>, ask: AdmittedRequest<'_>) {
        let params: ToolCallParams = match error::decode(Method::ToolCall.name(), ask.params) {
            Ok(params) => params,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        self.flush();
        let slot = self.lanes.enter(ask.params.len()).await;
        let request_id = params.context.request_id.clone();
        let flight = self.lanes.begin_call(&request_id, slot);
        let reply = self.reply_guard(ask);
        self.start_task(async move {
            let outcome = run.kernel.call(run.session.id, params).await;
            drop(flight);
            reply.send_outcome(outcome.map_err(|e| error::from_call(&e, &request_id)));
        })
        .await;
    }

    /// `claw.tool.approve` and `claw.tool.deny` (R18). They have their own limit, because the calls they wait for may fill the
    /// other one.
    async fn answer_approval(
        &mut self,
        run: Arc<ClientRun>,
        ask: AdmittedRequest<'_>,
        method: Method,
        answer: ApprovalAnswer,
    ) {
        let params: AnswerParams = match error::decode(method.name(), ask.params) {
            Ok(params) => params,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        self.flush();
        let permit = self.lanes.enter_answer().await;
        let reply = self.reply_guard(ask);
        self.start_task(async move {
            let answer = Answered {
                answer,
                breadth: GrantScope::Exact,
                // Only a client with the scope `approve` gets here.
                person: KnownPerson::admin("rpc", &run.client),
                reason: params.reason,
                // A client that knows the id has made the call, or has received the whole text.
                seen: PreviewReceipt::Sent,
            };
            let acknowledged =
                run.kernel.reply_to_question(&params.request_id, answer).await == ReplyOutcome::Taken;
            drop(permit);
            reply.send_outcome(Ok(AcknowledgedResult { acknowledged }));
        })
        .await;
    }

    /// An order of the state directory's owner (`clawk approve`, `clawk stop`, …). It needs no `claw.initialize`.
    async fn handle_order(&mut self, name: &str, ask: AdmittedRequest<'_>) {
        let Some(kernel) = self.host.current_kernel().get() else {
            let error = RpcError::new(ErrorCode::InvalidRequest, "no agent is initialized")
                .with(serde_json::json!({"reason": "not_initialized"}));
            return self.refuse_request(&ask, &error);
        };
        self.flush();
        let permit = self.lanes.enter_answer().await;
        let (name, params, by) = (name.to_owned(), ask.params.to_owned(), self.rights.shared_name());
        let reply = self.reply_guard(ask);
        let (channels, host) = (self.host.channels(), self.host.clone());
        self.start_task(async move {
            let of_host = name.starts_with(orders::RESTART);
            let outcome = match channels.filter(|_| name.starts_with(orders::CHANNELS)) {
                Some(channels) => orders::of_channels(&name, &params, &*channels, &by).await,
                None if of_host => orders::of_host(&name, &host),
                None => orders::run_order(&name, &params, &kernel, &by).await,
            };
            drop(permit);
            reply.send_outcome(outcome);
        })
        .await;
    }

    /// All other methods: decode, take a place, ask the kernel, answer.
    async fn run_method<P, T, F>(
        &mut self,
        run: Arc<ClientRun>,
        ask: AdmittedRequest<'_>,
        method: Method,
        ask_kernel: impl FnOnce(Arc<ClientRun>, P) -> F,
    ) where
        P: serde::de::DeserializeOwned,
        T: Serialize,
        F: Future<Output = Result<T, KernelError>> + Send + 'static,
    {
        let params = match error::decode(method.name(), ask.params) {
            Ok(params) => params,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        self.flush();
        let slot = self.lanes.enter(ask.params.len()).await;
        let reply = self.reply_guard(ask);
        let asking = ask_kernel(run, params);
        self.start_task(async move {
            let outcome = asking.await;
            drop(slot);
            reply.send_outcome(outcome.map_err(|e| error::from_kernel(&e)));
        })
        .await;
    }

    /// Handles a notification, which is never answered (R24). An unknown, invalid or early one is dropped. A request without an
    /// `id` is dropped too: its effect could not be reported to anyone.
    async fn handle_notification(&mut self, name: &str, params: &str) {
        let ConnectionPhase::Running(run) = &self.phase else {
            return;
        };
        match Method::from_name(name) {
            Some(Method::SwarmBroadcast)
                if run.kernel.serves_group(Method::SwarmBroadcast.group())
                    && self.rights.has_scope(Scope::Swarm) =>
            {
                let Ok(params) = error::decode::<BroadcastParams>(name, params) else {
                    return tracing::debug!("a malformed claw.swarm.broadcast was dropped");
                };
                let run = Arc::clone(run);
                self.flush();
                let slot = self.lanes.enter(name.len()).await;
                self.start_task(async move {
                    if let Err(e) = run.kernel.broadcast_message(run.session.id, params).await {
                        tracing::warn!(error = %e, "a broadcast was not delivered");
                    }
                    drop(slot);
                })
                .await;
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn refuse_request(&mut self, ask: &AdmittedRequest<'_>, error: &RpcError) {
        ask.place
            .put_answer(&mut self.out, |out| write_error(out, &ask.id, error));
    }

    pub(super) fn reply_guard(&self, ask: AdmittedRequest<'_>) -> ReplyGuard {
        ReplyGuard::new(ask.id, ask.place, Arc::clone(&self.outbox))
    }

    /// Starts work. Its first step runs here, in the order of the lines, so the kernel knows a call before an answer to the call's
    /// question is read (R18).
    pub(super) async fn start_task(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        let first = poll_fn(|cx| {
            // `unconstrained`: an exhausted tokio budget must not delay that first step.
            Poll::Ready(std::pin::pin!(tokio::task::unconstrained(work.as_mut())).poll(cx))
        })
        .await;
        match first {
            Poll::Ready(Ok(())) => {}
            // The reply has already reported it, and the panic hook has logged it.
            Poll::Ready(Err(_)) => tracing::error!("a request ended by a panic"),
            Poll::Pending => {
                self.tasks.spawn(work.map(|outcome| {
                    if outcome.is_err() {
                        tracing::error!("a request ended by a panic");
                    }
                }));
            }
        }
    }
}
