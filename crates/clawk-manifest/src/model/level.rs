//! Conformance levels (CKP §11, R6): the primitives in the manifest decide which methods the agent serves.

use serde::Serialize;

use super::Manifest;
use super::closed::closed_set;

closed_set! {
    /// The conformance level of a manifest. The variants are ordered.
    pub enum ConformanceLevel { Core = "level-1", Standard = "level-2", Full = "level-3" }
}

impl ConformanceLevel {
    /// The level's number: 1, 2 or 3.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Core => 1,
            Self::Standard => 2,
            Self::Full => 3,
        }
    }
}

/// The primitives that a manifest lacks for the next level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingForNext {
    /// The next level.
    pub level: ConformanceLevel,
    /// The kinds of primitives that it requires and the manifest lacks.
    pub primitives: Vec<&'static str>,
}

impl Manifest {
    /// The level that the declared primitives reach.
    #[must_use]
    pub fn conformance_level(&self) -> ConformanceLevel {
        match self.next_level_missing() {
            None => ConformanceLevel::Full,
            Some(missing) if missing.level == ConformanceLevel::Full => ConformanceLevel::Standard,
            Some(_) => ConformanceLevel::Core,
        }
    }

    /// The kinds of primitive that the manifest declares, in the order of CKP §5.
    #[must_use]
    pub fn primitives(&self) -> Vec<&'static str> {
        let all = [
            ("Identity", true),
            ("Provider", !self.providers.is_empty()),
            ("Channel", !self.channels.is_empty()),
            ("Tool", !self.tools.is_empty()),
            ("Skill", !self.skills.is_empty()),
            ("Memory", self.memory.is_some()),
            ("Sandbox", self.sandbox.is_some()),
            ("Policy", !self.policies.is_empty()),
            ("Swarm", self.swarm.is_some()),
            ("Telemetry", self.telemetry.is_some()),
            ("WorldModel", !self.world_models.is_empty()),
        ];
        all.into_iter()
            .filter(|(_, present)| *present)
            .map(|(kind, _)| kind)
            .collect()
    }

    /// The missing primitives of the next level; `None` at the highest level.
    #[must_use]
    pub fn next_level_missing(&self) -> Option<MissingForNext> {
        let present = self.primitives();
        let lacking = |kinds: &[&'static str]| -> Vec<&'static str> {
            kinds
                .iter()
                .copied()
                .filter(|kind| !present.contains(kind))
                .collect()
        };
        let standard = lacking(&["Channel", "Tool", "Sandbox", "Policy"]);
        if !standard.is_empty() {
            return Some(MissingForNext {
                level: ConformanceLevel::Standard,
                primitives: standard,
            });
        }
        let full = lacking(&["Skill", "Memory", "Swarm"]);
        (!full.is_empty()).then_some(MissingForNext {
            level: ConformanceLevel::Full,
            primitives: full,
        })
    }
}
