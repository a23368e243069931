//! Provider (CKP §5.2): the endpoint of a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// The protocol an endpoint speaks.
    pub enum ProviderProtocol {
        OpenaiCompatible = "openai-compatible",
        AnthropicNative = "anthropic-native",
        /// In clawk: a scripted model.
        Custom = "custom",
    }
}

closed_set! {
    /// The authentication of requests to the provider.
    pub enum AuthType {
        Bearer = "bearer",
        ApiKeyHeader = "api-key-header",
        Oauth2 = "oauth2",
        None = "none",
    }
}

closed_set! {
    /// The growth of the delay between two attempts.
    pub enum BackoffStrategy {
        Exponential = "exponential",
        Linear = "linear",
        Constant = "constant",
    }
}

closed_set! {
    /// A kind of input or output of a model.
    pub enum ModelModality {
        Text = "text",
        Image = "image",
        Audio = "audio",
        Video = "video",
        Realtime = "realtime",
    }
}

closed_set! {
    /// The transport to the provider.
    pub enum ProviderTransport {
        Http = "http",
        Websocket = "websocket",
        Webrtc = "webrtc",
        Grpc = "grpc",
    }
}

/// An inference endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Unique name; `provider-N` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering and policy.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The endpoint's protocol.
    pub protocol: ProviderProtocol,
    /// Base URL of the inference API (`http` or `https`; any text for `custom`, where it names the script).
    pub endpoint: String,
    /// The model's name at the endpoint.
    pub model: String,
    /// How clawk authenticates at the endpoint.
    pub auth: ProviderAuth,
    /// Whether to request a stream; `false` by default.
    #[serde(default)]
    pub streaming: bool,
    /// Hints for the choice of a provider.
    #[serde(default)]
    pub hints: ProviderHints,
    /// The providers to try, in order, if this one fails.
    #[serde(default)]
    pub fallback: Vec<ProviderFallback>,
    /// Limits for this provider. Above them, clawk refuses or waits.
    #[serde(default)]
    pub limits: ProviderLimits,
    /// Retries after transient failures; `None`: not configured.
    #[serde(default)]
    pub retry: Option<ProviderRetry>,
    /// The supported inputs and outputs; `[text]` by default.
    #[serde(default = "default_modalities")]
    pub capabilities: Vec<ModelModality>,
    /// The transport; `http` by default.
    #[serde(default = "default_transport")]
    pub transport: ProviderTransport,
}

/// Authentication of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderAuth {
    /// How the key is sent.
    #[serde(rename = "type")]
    pub kind: AuthType,
    /// Name of the secret (never its value); present unless the type is `none`.
    #[serde(default)]
    pub secret_ref: Option<String>,
}

/// Weights from 0 (ignore) to 1 (most important).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderHints {
    /// Minimise cost.
    pub cost_priority: Option<f64>,
    /// Minimise latency.
    pub speed_priority: Option<f64>,
    /// Maximise quality.
    pub intelligence_priority: Option<f64>,
}

/// One link of a fallback chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderFallback {
    /// Name of a declared provider.
    pub provider_ref: String,
}

/// Usage limits; absent means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderLimits {
    /// Tokens per UTC day (`-32021` above it).
    pub tokens_per_day: Option<u64>,
    /// Tokens of one request; a larger request is never sent.
    pub tokens_per_request: Option<u64>,
    /// Requests per minute.
    pub requests_per_minute: Option<u64>,
    /// The size of the model's context, tokens.
    pub max_context_window: Option<u64>,
}

/// Retries after a provider's transient failures (defaults: runtime profile §5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderRetry {
    /// The total number of attempts; 3 by default.
    pub max_attempts: u32,
    /// How the delay grows; `exponential` by default.
    pub backoff: BackoffStrategy,
    /// Milliseconds before the second attempt; 1000 by default.
    pub initial_delay_ms: u64,
}

impl ProviderRetry {
    /// The longest wait between two attempts (runtime profile §5).
    pub const MAX_DELAY_MS: u64 = 30_000;
}

impl Default for ProviderRetry {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            backoff: BackoffStrategy::Exponential,
            initial_delay_ms: 1000,
        }
    }
}

fn default_modalities() -> Vec<ModelModality> {
    vec![ModelModality::Text]
}

fn default_transport() -> ProviderTransport {
    ProviderTransport::Http
}
