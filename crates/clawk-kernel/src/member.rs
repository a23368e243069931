//! A swarm member at its task: its identity, its turn's rights, and the turn's faults.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::{AutonomyLevel, Identity};
use clawk_swarm::coord::{Kind, TaskId};

use crate::call::{CallerContext, TaskRights};
use crate::error::CallError;
use crate::ports::{BoxFuture, RemoteWorkers};

/// Why a member did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberFailure {
    /// No provider answered.
    NoProvider,
    /// Money is limited and the price is unknown.
    Unpriced,
    /// A limit is used up. Holds its name.
    Quota(String),
    /// A call may have had effects; its outcome is unknown.
    Effects(String),
}

/// A member while it works on one task. Its turn has at most these rights.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) swarm: String,
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) task: TaskId,
    pub(crate) kind: Kind,
    /// Members to which it may delegate.
    pub(crate) below: Vec<String>,
    /// Members that it may ask.
    pub(crate) askable: Vec<String>,
    /// The allowed tools; `None`: all of the agent's.
    pub(crate) tools: Option<Vec<String>>,
    /// Upper limit of the autonomy level, if another host gave the task.
    pub(crate) at_most: Option<AutonomyLevel>,
    /// Its own Identity; `None`: the Claw's.
    pub(crate) identity: Option<Arc<Identity>>,
    /// Reports that it reads before its next model request.
    pub(crate) heard: Mutex<Vec<String>>,
    pub(crate) trouble: Mutex<Option<MemberFailure>>,
    /// Checked before each effect if another host may get the same task; with the task's run.
    pub(crate) claim: Option<(Arc<dyn RemoteWorkers>, TaskId)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the member that makes a call; `None`: it works on no task.
pub(crate) fn member_of(caller: &CallerContext) -> Option<Arc<Member>> {
    let rights: Arc<dyn Any + Send + Sync> = caller.member.clone()?;
    rights.downcast().ok() // silent-ok: only members have such rights
}

impl TaskRights for Member {
    fn effective_autonomy(&self, claw: AutonomyLevel) -> AutonomyLevel {
        Self::effective_autonomy(self, claw)
    }

    fn may_use(&self, tool: &str) -> bool {
        Self::may_use(self, tool)
    }

    fn may_begin<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(Self::may_begin(self, tool))
    }

    fn note_call(&self, error: &CallError, side_effects: bool) {
        Self::note_call(self, error, side_effects);
    }
}

impl Member {
    /// Returns the stricter of its own autonomy level and the Claw's.
    pub(crate) fn effective_autonomy(&self, claw: AutonomyLevel) -> AutonomyLevel {
        let own = self.identity.as_ref().map(|identity| identity.autonomy);
        own.into_iter().chain(self.at_most).fold(claw, AutonomyLevel::min)
    }

    /// Returns whether its task may use this tool of the agent.
    pub(crate) fn may_use(&self, tool: &str) -> bool {
        let named = |tools: &Vec<String>| tools.iter().any(|name| name == tool);
        !matches!(self.kind, Kind::Judge { .. }) && self.tools.as_ref().is_none_or(named)
    }

    /// Returns the system prompt's text about the member.
    pub(crate) fn prompt_text(&self) -> String {
        format!(
            "You are member {}, role {}, swarm {}.",
            self.name, self.role, self.swarm
        )
    }

    /// Keeps the most serious failure. An unknown effect counts as more serious than any other.
    pub(crate) fn record_failure(&self, trouble: MemberFailure) {
        let mut known = lock(&self.trouble);
        if !matches!(*known, Some(MemberFailure::Effects(_))) {
            *known = Some(trouble);
        }
    }

    /// Completes when an effect of its task may begin on this host.
    ///
    /// # Errors
    /// Another host has the task, so nothing of it counts here any more.
    pub(crate) async fn may_begin(&self, tool: &str) -> Result<(), CallError> {
        let Some((there, run)) = &self.claim else {
            return Ok(());
        };
        there.may_begin(run).await.map_err(|reason| {
            self.record_failure(MemberFailure::Effects(reason.clone()));
            CallError::Unavailable {
                tool: tool.to_owned(),
                reason,
            }
        })
    }

    /// Records that a call may have had effects.
    pub(crate) fn note_call(&self, error: &CallError, side_effects: bool) {
        if side_effects && error.may_have_run() {
            self.record_failure(MemberFailure::Effects(error.to_string()));
        }
    }

    pub(crate) fn worst_failure(&self) -> Option<MemberFailure> {
        lock(&self.trouble).clone()
    }

    pub(crate) fn add_peer_report(&self, text: String) {
        lock(&self.heard).push(text);
    }

    /// Returns the reports of other members, for the system prompt.
    pub(crate) fn peer_reports(&self) -> Vec<String> {
        lock(&self.heard).clone()
    }
}
