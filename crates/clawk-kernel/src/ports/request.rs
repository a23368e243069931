//! How a request to a model is written, beside what it says: effort, the cache key, and changes that an earlier refusal asked for (R53).

use std::collections::{BTreeMap, BTreeSet};

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

    /// The level that a person names.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|level| level.as_str().eq_ignore_ascii_case(word))
    }

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

/// Changes to the form of a request, learnt from refusals of this endpoint and model or set in `[providers.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestAdaptation {
    /// Messages of the user and the assistant must strictly alternate, and the system prompt stands first only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alternate_roles: bool,
    /// Parameters of the dialect to leave out, by their wire names, for example `stream_options`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub omitted: BTreeSet<String>,
    /// Parameters of the dialect to send under another name, for example `max_tokens` as `max_completion_tokens`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
    /// The endpoint wants OpenAI's Responses API instead of chat completions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub responses_api: bool,
    /// Call ids are written in the strictest form that a vendor asks for: nine letters and digits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub short_call_ids: bool,
}

impl RequestAdaptation {
    /// The request is sent in its usual form.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a model's server names as the cause of its refusal, where a changed request may be accepted (R53).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum RefusalCause {
    /// The conversation does not fit the model's window.
    TooLong {
        /// The window in tokens, where the server says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_tokens: Option<u64>,
    },
    /// A parameter is not supported.
    Parameter {
        /// The name to use in its place, where the server says one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead: Option<String>,
        /// Its name on the wire.
        name: String,
    },
    /// The order or emptiness of messages.
    Roles,
    /// The form of call ids.
    CallIds,
    /// The model takes tools only through the Responses API.
    ResponsesApi,
}
