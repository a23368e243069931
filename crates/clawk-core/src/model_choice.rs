//! Which model answers a conversation's next messages, and how much it thinks (ADR 0330).

use crate::ports::ReasoningEffort;

/// What a person chose for a conversation with `/model NAME [EFFORT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChoice {
    /// The provider that is asked first.
    pub provider: String,
    /// How much it thinks; `None`: as its settings say.
    pub effort: Option<ReasoningEffort>,
}

impl ModelChoice {
    /// Reads the choice from the record.
    pub fn recorded(provider: Option<String>, effort: Option<&str>) -> Option<Self> {
        Some(Self {
            provider: provider?,
            effort: effort.and_then(ReasoningEffort::parse),
        })
    }

    /// The effort's word for the record.
    pub fn effort_word(&self) -> Option<&'static str> {
        self.effort.map(ReasoningEffort::as_str)
    }
}
