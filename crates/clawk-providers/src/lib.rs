//! Models behind the kernel's `Provider` port.
//!
//! * **Owns:** the API dialects of model servers (chat completions, Responses, Anthropic), the scripted model, stream decoding,
//!   counting tokens, authentication, finding a provider on this machine. One call is one attempt at one endpoint.
//! * **Depends on:** the kernel's port, manifest types, secrets, egress.
//! * **Must not know:** tools, channels; retry, fallback, limits and the record, which are the kernel's.
//! * **Start reading at:** [`ProviderFactory`], then `attempt` (one attempt, top to bottom), then `openai`.

mod factory;

mod attempt;

mod openai;

mod responses;

mod anthropic;

mod wire;

mod history;

mod call_ids;

mod tool_schema;

mod draft;

mod call_slots;

mod thought;

mod state;

mod surrogates;

mod answer_errors;

mod number;

pub mod sse;

mod endpoint;

mod auth;

mod fault;

mod refusal;

mod window;

mod embeddings;
mod picture;
mod scripted;
mod speech;

mod discover;
mod listing;

pub use discover::{DiscoveredProvider, discover_provider};
pub use factory::{FactoryError, ProviderConfig, ProviderDialect, ProviderFactory, ScriptAccess};
pub use listing::{ListedModel, ListingError};
pub use scripted::{ModelScript, ScriptError, ScriptedProvider};
