//! Members of a swarm that work elsewhere: in another process, on another host, in another implementation of the protocol.

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
    /// It is an agent of its own, bound in `clawk.toml`.
    Peer,
    /// Its tasks lie in a queue, from which any host that serves it takes them.
    Bus,
}

/// One try of a task, as it crosses to another process.
#[derive(Debug, Clone)]
pub struct RemoteTask {
    /// The swarm.
    pub swarm: String,
    /// The member.
    pub member: String,
    /// The name of its identity.
    pub identity: String,
    /// The try's id: what the other side knows as `task_id`. The same after a restart.
    pub id: RequestId,
    /// The id of the request: the same after a restart, so that it is taken once.
    pub request_id: RequestId,
    /// What is to be done, with all that came from others in it, marked as data.
    pub text: String,
    /// At most this.
    pub limits: TaskLimits,
    /// Who reports the task shows it.
    pub report_token: String,
    /// This host's signature of [`RemoteTask::params`].
    pub proof: Option<HostSignature>,
}

impl RemoteTask {
    /// The params of `claw.swarm.delegate`.
    #[must_use]
    pub fn params(&self) -> DelegateParams {
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

/// How an errand ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RemoteResult {
    /// The member answered by itself, without a report.
    Answered {
        /// Its last text.
        text: String,
        /// Tokens that it says it used.
        tokens: Option<u64>,
    },
    /// It may be tried again.
    Lost {
        /// Why.
        why: RetryReason,
        /// For people.
        message: String,
        /// Tokens that it used: 0 where it was not given the task; none: not known.
        tokens: Option<u64>,
    },
    /// The other side refused it for good.
    Refused {
        /// A stable word.
        reason: String,
        /// For people.
        message: String,
        /// As of [`RemoteResult::Lost`].
        tokens: Option<u64>,
    },
}

/// What is known of the try that a report names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedTryState {
    /// It was sent from here since the start.
    Sent,
    /// Its token was made here, and the try is not under way: it has not been taken up again since the start, or its run has ended.
    Given,
    /// It shows no token of this host's.
    Foreign,
}

/// Takes reports that come in by a connection or a bus.
pub trait ReportReceiver: fmt::Debug + Send + Sync {
    /// What is known here of the try that a report names, which shows this token.
    fn knows(&self, task: &RequestId, token: Option<&str>) -> ReportedTryState;

    /// Takes one. `bound`: the member to which the connection belongs that it came by; none: only the token counts.
    ///
    /// # Errors
    /// It is not readable, or can't be recorded.
    fn report<'a>(
        &'a self,
        bound: Option<&'a str>,
        params: ReportParams,
    ) -> BoxFuture<'a, Result<AcknowledgedResult, KernelError>>;
}

/// Where members work that are not in this process.
pub trait RemoteWorkers: fmt::Debug + Send + Sync {
    /// How the identity of this name is reached; none: it is not elsewhere.
    fn place(&self, identity: &str) -> Option<MemberRoute>;

    /// The last attempt to reach it failed.
    fn is_gone(&self, identity: &str) -> bool;

    /// It is a process that this host started: what it did, no other host can know.
    fn lives_here(&self, identity: &str) -> bool;

    /// How long one try may take there, milliseconds, where that is its own.
    fn timeout_ms(&self, identity: &str) -> Option<u64>;

    /// At most these tools.
    fn tools(&self, identity: &str) -> Option<Vec<String>>;

    /// The key that must sign the reports of this identity. `None`: no key is bound, and signatures are not checked.
    fn key(&self, identity: &str) -> Option<PublicKey>;

    /// Works on a try. Reports go to `reports`; the first one that counts ends the try, and this future is dropped.
    fn work<'a>(
        &'a self,
        errand: RemoteTask,
        reports: Arc<dyn ReportReceiver>,
    ) -> BoxFuture<'a, RemoteResult>;

    /// Completes when an effect of `run`, which this host took out of the bus, may begin here: this host holds the run, and no
    /// other host has begun an effect of it. Asked before each effect.
    ///
    /// # Errors
    /// Why none may begin here any more, for people.
    fn may_begin<'a>(&'a self, run: &'a RequestId) -> BoxFuture<'a, Result<(), String>>;
}

/// What report tokens are made of: 256 bits that never leave the state directory.
#[derive(Clone, Default)]
pub struct TokenKey(pub [u8; 32]);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}
