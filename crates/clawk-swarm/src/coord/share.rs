//! What the members of a run share (`message_passing: shared-memory`): values by key, each with a version.

use super::{BTreeMap, Effect, SwarmCoordinator, SwarmFact, SwarmTaskPhase, TaskId, Value};
use crate::answer::canonical;
use crate::coord::task::SharedValue;

/// Keys that one run shares.
const MAX_KEYS: usize = 1024;
/// Bytes of one value.
const MAX_BYTES: usize = 64 * 1024;
/// Bytes of one key.
const MAX_KEY: usize = 256;

/// Why a value is not shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotShared {
    /// The task of who shares does not run, or its swarm shares nothing.
    Nowhere,
    /// Somebody else has changed the key since (-32031, `conflict`): the newest version, 0 where there is none.
    Conflict(u64),
    /// Too large, or too many.
    TooMuch(String),
}

impl SwarmCoordinator {
    /// Puts a value where all members of the run read it, if `version` is the newest one of the key, or is not given. Returns the
    /// value's own version.
    ///
    /// # Errors
    /// See [`NotShared`].
    pub fn share(
        &mut self,
        task: &TaskId,
        key: &str,
        value: Value,
        version: Option<u64>,
    ) -> Result<(u64, Vec<Effect>), NotShared> {
        let Some(shared) = self.shared(task) else {
            return Err(NotShared::Nowhere);
        };
        let newest = shared.get(key).map_or(0, |shared| shared.version);
        if version.is_some_and(|version| version != newest) {
            return Err(NotShared::Conflict(newest));
        }
        if key.is_empty() || key.len() > MAX_KEY || canonical(&value).len() > MAX_BYTES {
            return Err(NotShared::TooMuch(format!(
                "a key has 1 to {MAX_KEY} bytes, a value at most {MAX_BYTES}"
            )));
        }
        if newest == 0 && shared.len() >= MAX_KEYS {
            return Err(NotShared::TooMuch(format!(
                "a run shares at most {MAX_KEYS} keys"
            )));
        }
        let who = self.tasks.get(task).and_then(|task| task.seat);
        let version = newest.saturating_add(1);
        let shared = SharedValue {
            value,
            version,
            member: who.map_or("", |who| self.plan.member(who)).to_owned(),
        };
        self.emit(SwarmFact::Shared {
            task: task.clone(),
            key: key.to_owned(),
            shared,
        });
        Ok((version, std::mem::take(&mut self.out)))
    }

    /// What the run of this task shares; none: the task does not run, or its swarm shares nothing.
    #[must_use]
    pub fn shared(&self, task: &TaskId) -> Option<&BTreeMap<String, SharedValue>> {
        let shares = self.plan.limits.passing == clawk_manifest::model::MessagePassing::SharedMemory;
        let task = self
            .tasks
            .get(task)
            .filter(|task| shares && task.phase == SwarmTaskPhase::Running)?;
        Some(&self.runs.get(&task.new.run)?.shared)
    }
}
