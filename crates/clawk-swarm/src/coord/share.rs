//! Values that the members of a run share (`message_passing: shared-memory`), by key, each with a version.

use super::{BTreeMap, Effect, SwarmCoordinator, SwarmFact, SwarmTaskPhase, TaskId, Value};
use crate::answer::canonical_json;
use crate::coord::task::SharedValue;

/// The largest number of keys per run.
const MAX_KEYS: usize = 1024;
/// The largest value, bytes.
const MAX_BYTES: usize = 64 * 1024;
/// The longest key, bytes.
const MAX_KEY: usize = 256;

/// Why a value was not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotShared {
    /// The member's task is not running, or its swarm has no shared values.
    Nowhere,
    /// Another member has changed the key since (-32031, `conflict`). Holds the newest version, 0 if there is none.
    Conflict(u64),
    /// The value is too large, or there are too many keys.
    TooMuch(String),
}

impl SwarmCoordinator {
    /// Stores a value for all members of the run, if `version` is the key's newest version or `None`. Returns the new version.
    ///
    /// # Errors
    /// See [`NotShared`].
    pub fn share_value(
        &mut self,
        task: &TaskId,
        key: &str,
        value: Value,
        version: Option<u64>,
    ) -> Result<(u64, Vec<Effect>), NotShared> {
        let Some(shared) = self.shared_values(task) else {
            return Err(NotShared::Nowhere);
        };
        let newest = shared.get(key).map_or(0, |shared| shared.version);
        if version.is_some_and(|version| version != newest) {
            return Err(NotShared::Conflict(newest));
        }
        if key.is_empty() || key.len() > MAX_KEY || canonical_json(&value).len() > MAX_BYTES {
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

    /// The shared values of the task's run; `None`: the task is not running, or its swarm has no shared values.
    #[must_use]
    pub fn shared_values(&self, task: &TaskId) -> Option<&BTreeMap<String, SharedValue>> {
        let shares = self.plan.limits.passing == clawk_manifest::model::MessagePassing::SharedMemory;
        let task = self
            .tasks
            .get(task)
            .filter(|task| shares && task.phase == SwarmTaskPhase::Running)?;
        Some(&self.runs.get(&task.new.run)?.shared)
    }
}
