//! The closed table of wire errors (CKP §9.4 and runtime profile §4).

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $title:literal, retryable: $retry:literal, no_effect: $clean:literal;)*) => {
        /// Every code that clawk ever sends. The numbers are the protocol's; nothing else may use them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode { $($(#[$doc])* $name,)* }

        impl ErrorCode {
            /// All codes, in the table's order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The JSON-RPC number.
            #[must_use]
            pub const fn code(self) -> i64 { match self { $(Self::$name => $code,)* } }

            /// The table's name for it.
            #[must_use]
            pub const fn title(self) -> &'static str { match self { $(Self::$name => $title,)* } }

            /// The same request may succeed later without a change.
            #[must_use]
            pub const fn retryable(self) -> bool { match self { $(Self::$name => $retry,)* } }

            /// Nothing outside can have happened because of the request.
            #[must_use]
            pub const fn surely_no_side_effects(self) -> bool { match self { $(Self::$name => $clean,)* } }

            /// The code with this number, if it is ours.
            #[must_use]
            pub const fn from_code(code: i64) -> Option<Self> { match code { $($code => Some(Self::$name),)* _ => None } }
        }
    };
}

codes! {
    /// The bytes are not JSON.
    ParseError = -32700, "Parse error", retryable: false, no_effect: true;
    /// The JSON is not a request, or the method can't be called now (R4).
    InvalidRequest = -32600, "Invalid request", retryable: false, no_effect: true;
    /// The method is unknown, or requires a higher level than the agent has (R6).
    MethodNotFound = -32601, "Method not found", retryable: false, no_effect: true;
    /// The params do not have the method's shape, or name something that does not exist.
    InvalidParams = -32602, "Invalid params", retryable: false, no_effect: true;
    /// An internal error, or the journal can't be written.
    Internal = -32603, "Internal error", retryable: false, no_effect: false;
    /// `claw.initialize` with another major version.
    ProtocolVersion = -32001, "Protocol version not supported", retryable: false, no_effect: true;
    /// The sandbox refused, or the requested level is not available (R32).
    SandboxDenied = -32010, "Sandbox denied", retryable: false, no_effect: true;
    /// A policy, the autonomy or a limit on calls refused.
    PolicyDenied = -32011, "Policy denied", retryable: false, no_effect: true;
    /// Nobody answered the question in time.
    ApprovalTimeout = -32012, "Approval timeout", retryable: false, no_effect: true;
    /// A person said no.
    ApprovalDenied = -32013, "Approval denied", retryable: false, no_effect: true;
    /// The tool exceeded its `timeout_ms` and was ended. It may have done part of its work.
    ToolTimeout = -32014, "Tool execution timeout", retryable: false, no_effect: false;
    /// No model endpoint could be reached.
    ProviderUnavailable = -32020, "Provider unavailable", retryable: true, no_effect: true;
    /// The budget of tokens or money is used up.
    QuotaExceeded = -32021, "Provider quota exceeded", retryable: false, no_effect: true;
    /// The memory's backend can't be reached.
    MemoryBackend = -32030, "Memory backend error", retryable: true, no_effect: false;
    /// A memory query failed.
    MemoryQuery = -32031, "Memory query failed", retryable: true, no_effect: true;
    /// The peer doesn't answer.
    PeerUnreachable = -32040, "Peer unreachable", retryable: true, no_effect: false;
    /// The delegated task failed.
    PeerFailed = -32041, "Peer task failed", retryable: false, no_effect: false;
    /// The channel's platform refused our credentials.
    ChannelAuth = -32050, "Channel auth failed", retryable: true, no_effect: true;
    /// The channel's platform limits our requests.
    ChannelRate = -32051, "Channel rate limited", retryable: true, no_effect: true;
    /// The manifest is invalid (not for `claw.initialize`, which uses -32602, R3).
    ManifestInvalid = -32060, "Manifest invalid", retryable: false, no_effect: true;
    /// A referenced file or URI can't be resolved.
    PrimitiveNotFound = -32061, "Primitive not found", retryable: false, no_effect: true;
}

/// The `error` member of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    /// The error code; clawk's codes are in [`ErrorCode`].
    pub code: i64,
    /// The message for people: what is wrong, where, and how to fix it.
    pub message: String,
    /// Structured facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code: code.code(),
            message: message.into(),
            data: None,
        }
    }

    /// Adds `data` to the error.
    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}
