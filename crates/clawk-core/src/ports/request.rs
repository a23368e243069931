//! How a request to a model is written, beside what it says: effort, the cache key, and changes that an earlier refusal asked for (R53).

pub use clawk_events::shape::{RefusalCause, RequestAdaptation};
use serde::{Deserialize, Serialize};

/// How much a model may think before it answers. Adapters map it to their dialect's own setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningEffort {
    /// No thinking.
    None,
    /// The least that the model has.
    Minimal,
    /// Little.
    Low,
    /// The model's usual amount.
    Medium,
    /// Much.
    High,
    /// The most that the model has.
    Max,
}

impl ReasoningEffort {
    /// All levels, the least first.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Minimal,
        Self::Low,
        Self::Medium,
        Self::High,
        Self::Max,
    ];

    /// As people and configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Max => "max",
        }
    }
}
