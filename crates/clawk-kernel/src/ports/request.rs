//! The format of a request to a model: effort, the cache key, and changes that an earlier refusal asked for (R53).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Reasoning effort of a model. Adapters map it to their dialect's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningEffort {
    /// No thinking.
    None,
    /// The model's lowest effort.
    Minimal,
    /// Low effort.
    Low,
    /// The model's usual amount.
    Medium,
    /// High effort.
    High,
    /// The model's highest effort.
    Max,
}

impl ReasoningEffort {
    /// All levels, lowest first.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Minimal,
        Self::Low,
        Self::Medium,
        Self::High,
        Self::Max,
    ];

    /// Returns the level's word in configuration.
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

/// Changes to the format of a request, learnt from refusals of this endpoint and model or set in `[providers.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestAdaptation {
    /// User and assistant messages must strictly alternate, and the system prompt is allowed only at the beginning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alternate_roles: bool,
    /// Parameters of the dialect that are not sent, by their wire names, for example `stream_options`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub omitted: BTreeSet<String>,
    /// Parameters of the dialect that are sent under another name, for example `max_tokens` as `max_completion_tokens`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
    /// The endpoint requires OpenAI's Responses API instead of chat completions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub responses_api: bool,
    /// Call ids use the strictest format of any vendor: nine letters and digits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub short_call_ids: bool,
}

impl RequestAdaptation {
    /// Returns whether the request has the usual format.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The cause that a model's server names for its refusal, if a changed request may succeed (R53).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum RefusalCause {
    /// The conversation does not fit the model's window.
    TooLong {
        /// The window in tokens, if the server reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_tokens: Option<u64>,
    },
    /// A parameter is not supported.
    Parameter {
        /// The parameter's new name, if the server reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead: Option<String>,
        /// The parameter's name on the wire.
        name: String,
    },
    /// The order of messages, or an empty message.
    Roles,
    /// The format of call ids.
    CallIds,
    /// The model takes tools only through the Responses API.
    ResponsesApi,
}
