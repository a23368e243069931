//! Swarm members on other hosts: in another process, or in another implementation of the protocol.

use std::fmt;
use std::sync::Arc;

use clawk_proto::RequestId;
use clawk_proto::method::{
    AcknowledgedResult, DelegateContext, DelegateParams, DelegateTask, HostSignature, ReportParams,
    TaskLimits,
};
use clawk_swarm::coord::RetryReason;
use clawk_trace::checkpoint::PublicKey;

use super::BoxFuture;
use crate::error::KernelError;

/// How an identity is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRoute {
    /// A separate agent, bound in `clawk.toml`.
    Peer,
    /// A queue, from which any host that serves it takes the tasks.
    Bus,
}

/// One attempt at a task, in the form that is sent to another process.
#[derive(Debug, Clone)]
pub struct RemoteTask {
    /// The swarm.
    pub swarm: String,
    /// The member.
    pub member: String,
    /// The name of its identity.
    pub identity: String,
    /// The attempt's id, which the other side uses as `task_id`. It is the same after a restart.
    pub id: RequestId,
    /// The id of the request. It is the same after a restart, so that the request is accepted once.
    pub request_id: RequestId,
    /// The task's text, with other parties' text marked as data.
    pub text: String,
    /// The limits of the task.
    pub limits: TaskLimits,
    /// The token that a report of the task must show.
    pub report_token: String,
    /// This host's signature of [`RemoteTask::delegate_params`].
    pub proof: Option<HostSignature>,
}

impl RemoteTask {
    /// Returns the params of `claw.swarm.delegate`.
    #[must_use]
    pub fn delegate_params(&self) -> DelegateParams {
        DelegateParams {
            task_id: self.id.clone(),
            task: DelegateTask {
                description: self.text.clone(),
                input: None,
            },
            context: DelegateContext {
                request_id: self.request_id.clone(),
                swarm: self.swarm.clone(),
                member: Some(self.member.clone()),
                report_token: Some(self.report_token.clone()),
                limits: Some(self.limits.clone()),
                proof: self.proof.clone(),
            },
        }
    }
}

/// The result of a remote task.
#[derive(Debug, Clone, PartialEq)]
pub enum RemoteResult {
    /// The member answered directly, without a report.
    Answered {
        /// Its last text.
        text: String,
        /// The tokens that it reports; `None`: not reported.
        tokens: Option<u64>,
    },
    /// The task may be tried again.
    Lost {
        /// Why.
        why: RetryReason,
        /// For people.
        message: String,
        /// The tokens that it used: 0 if it did not get the task; `None`: unknown.
        tokens: Option<u64>,
    },
    /// The other side refused the task permanently.
    Refused {
        /// A stable word.
        reason: String,
        /// For people.
        message: String,
        /// As of [`RemoteResult::Lost`].
        tokens: Option<u64>,
    },
}

/// What is known of the attempt that a report names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedTryState {
    /// It was sent from this host since the start.
    Sent,
    /// Its token was made here, but the attempt is not running: it was not resumed since the start, or its run has ended.
    Given,
    /// It shows no token of this host.
    Foreign,
}

/// Receives reports from a connection or a bus.
pub trait ReportReceiver: fmt::Debug + Send + Sync {
    /// Returns what is known of the attempt that a report with this token names.
    fn try_state(&self, task: &RequestId, token: Option<&str>) -> ReportedTryState;

    /// Receives a report. `bound`: the member that owns the connection; `None`: only the token counts.
    ///
    /// # Errors
    /// The report is malformed, or can't be recorded.
    fn accept_report<'a>(
        &'a self,
        bound: Option<&'a str>,
        params: ReportParams,
    ) -> BoxFuture<'a, Result<AcknowledgedResult, KernelError>>;
}

/// The workers outside this process.
pub trait RemoteWorkers: fmt::Debug + Send + Sync {
    /// Returns how the identity is reached; `None`: it is in this process.
    fn member_route(&self, identity: &str) -> Option<MemberRoute>;

    /// Returns whether the last attempt to reach it failed.
    fn is_gone(&self, identity: &str) -> bool;

    /// Returns whether it is a process started by this host, so that no other host can know its effects.
    fn lives_here(&self, identity: &str) -> bool;

    /// Returns its own time limit for one attempt in milliseconds, if there is one.
    fn timeout_ms(&self, identity: &str) -> Option<u64>;

    /// Returns its allowed tools, if they are limited.
    fn allowed_tools(&self, identity: &str) -> Option<Vec<String>>;

    /// Returns the key that must sign the reports of this identity. `None`: no key is bound, and signatures are not checked.
    fn report_key(&self, identity: &str) -> Option<PublicKey>;

    /// Works on an attempt. Reports go to `reports`; the first valid one ends the attempt, and this future is dropped.
    fn perform_task<'a>(
        &'a self,
        errand: RemoteTask,
        reports: Arc<dyn ReportReceiver>,
    ) -> BoxFuture<'a, RemoteResult>;

    /// Completes when an effect of `run`, which this host took from the bus, may begin here: this host owns the run, and no other
    /// host has begun an effect of it. Called before each effect.
    ///
    /// # Errors
    /// The reason why no effect may begin here, for people.
    fn may_begin<'a>(&'a self, run: &'a RequestId) -> BoxFuture<'a, Result<(), String>>;
}

/// The key of report tokens: 256 bits that never leave the state directory.
#[derive(Clone, Default)]
pub struct TokenKey(pub [u8; 32]);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}
