//! A member of the swarm at its task: who it is, what its turn may do, and what went wrong in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::{AutonomyLevel, Identity};
use clawk_swarm::coord::{Kind, TaskId};

use crate::error::CallError;
use crate::ports::RemoteWorkers;

/// What kept a member from answering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberFailure {
    /// No provider answered.
    NoProvider,
    /// Money is limited and the price is not known.
    Unpriced,
    /// A limit, by its name.
    Quota(String),
    /// A call may have been done; its outcome is not known.
    Effects(String),
}

/// A member, while it works on one task. Its turn has at most these rights.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) swarm: String,
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) task: TaskId,
    pub(crate) kind: Kind,
    /// To whom it may delegate.
    pub(crate) below: Vec<String>,
    /// Whom it may ask.
    pub(crate) askable: Vec<String>,
    /// At most these tools; none given: all of the agent's.
    pub(crate) tools: Option<Vec<String>>,
    /// At most this, where another host gave the task.
    pub(crate) at_most: Option<AutonomyLevel>,
    /// Its own Identity; none: the Claw's.
    pub(crate) identity: Option<Arc<Identity>>,
    /// Reports that it reads before its next inference.
    pub(crate) heard: Mutex<Vec<String>>,
    pub(crate) trouble: Mutex<Option<MemberFailure>>,
    /// Asked before each effect, where another host may be given the same task; with its run.
    pub(crate) claim: Option<(Arc<dyn RemoteWorkers>, TaskId)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// The stricter of its own autonomy and the Claw's.
    pub(crate) fn autonomy(&self, claw: AutonomyLevel) -> AutonomyLevel {
        let own = self.identity.as_ref().map(|identity| identity.autonomy);
        own.into_iter().chain(self.at_most).fold(claw, AutonomyLevel::min)
    }

    /// A tool of the agent's that its task may use.
    pub(crate) fn may_use(&self, tool: &str) -> bool {
        let named = |tools: &Vec<String>| tools.iter().any(|name| name == tool);
        !matches!(self.kind, Kind::Judge { .. }) && self.tools.as_ref().is_none_or(named)
    }

    /// What a system prompt says of it.
    pub(crate) fn words(&self) -> String {
        format!(
            "You are member {}, role {}, swarm {}.",
            self.name, self.role, self.swarm
        )
    }

    /// Keeps the worst fault. An effect of unknown outcome outweighs every other fault.
    pub(crate) fn note(&self, trouble: MemberFailure) {
        let mut known = lock(&self.trouble);
        if !matches!(*known, Some(MemberFailure::Effects(_))) {
            *known = Some(trouble);
        }
    }

    /// Completes when an effect of its task may begin on this host.
    ///
    /// # Errors
    /// It may not: another host has the task. Nothing of it counts here any more.
    pub(crate) async fn may_begin(&self, tool: &str) -> Result<(), CallError> {
        let Some((there, run)) = &self.claim else {
            return Ok(());
        };
        there.may_begin(run).await.map_err(|reason| {
            self.note(MemberFailure::Effects(reason.clone()));
            CallError::Unavailable {
                tool: tool.to_owned(),
                reason,
            }
        })
    }

    /// Remembers that a call may have been done.
    pub(crate) fn note_call(&self, error: &CallError, side_effects: bool) {
        if side_effects && error.may_have_run() {
            self.note(MemberFailure::Effects(error.to_string()));
        }
    }

    pub(crate) fn trouble(&self) -> Option<MemberFailure> {
        lock(&self.trouble).clone()
    }

    pub(crate) fn hear(&self, text: String) {
        lock(&self.heard).push(text);
    }

    /// What others have reported, for the system prompt.
    pub(crate) fn heard(&self) -> Vec<String> {
        lock(&self.heard).clone()
    }
}
