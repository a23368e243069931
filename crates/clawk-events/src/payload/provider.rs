//! Requests to models, and what they cost.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::{BudgetUse, DryRunCost, RefusalCause, RequestAdaptation, TokenReport};
use crate::text::ChainText;

payloads! {
    /// `ckp.provider.requested`. A request to a model starts; the amounts are the reserved ones.
    ProviderRequested {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Bytes sent.
        bytes_out: u64,
        /// Cost in millionths of a US dollar.
        cost_microusd: Option<u64>,
        /// The request to the model.
        inference_id: Uuid,
        /// Tokens read.
        input_tokens: u64,
        /// The model.
        model: String,
        /// Tokens written.
        output_tokens: u64,
        /// The provider.
        provider: String,
        /// The budgets that pay.
        purses: Vec<String>,
        /// Digest of the request.
        request_hash: Digest,
        /// The turn.
        turn: Uuid,
    }

    /// `ckp.provider.completed`. A model answered.
    ProviderCompleted {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Bytes sent.
        bytes_out: u64,
        /// Input tokens that the server had cached.
        cached_tokens: u64,
        /// Calls that the model asked for.
        call_count: u64,
        /// Digest of the completion.
        completion_hash: Digest,
        /// Cost in millionths of a US dollar.
        cost_microusd: Option<u64>,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The counts are clawk's estimate.
        estimated: bool,
        /// The request to the model.
        inference_id: Uuid,
        /// Tokens read.
        input_tokens: u64,
        /// The model.
        model: String,
        /// Tokens written.
        output_tokens: u64,
        /// The provider.
        provider: String,
        /// Digest of the request.
        request_hash: Digest,
        /// Why the model stopped.
        stop: String,
        /// The server's own counts, where the books say something else.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<TokenReport>,
        /// What budgets that outlive a restart paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// The turn.
        turn: Uuid,
    }

    /// `ckp.provider.failed`. An attempt at a model failed.
    ProviderFailed {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Bytes sent.
        bytes_out: u64,
        /// The cause that the server names, or `known` before the turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<RefusalCause>,
        /// Cost in millionths of a US dollar.
        cost_microusd: Option<u64>,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The counts are clawk's estimate.
        estimated: bool,
        /// The request to the model.
        inference_id: Uuid,
        /// Tokens read.
        input_tokens: u64,
        /// Of what kind.
        kind: String,
        /// Tokens written.
        output_tokens: u64,
        /// The provider.
        provider: String,
        /// Why.
        reason: ChainText,
        /// How long the server asks to wait, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// The status; of HTTP for a provider.
        status: Option<u16>,
        /// The server's own counts, where the books say something else.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<TokenReport>,
        /// What budgets that outlive a restart paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// The turn.
        turn: Uuid,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.provider.adapted`. Requests to an endpoint are written in another form, or smaller, than usual.
    ProviderAdapted {
        /// How requests are written from now on; the usual form is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adaptation: Option<RequestAdaptation>,
        /// The cause that the server names, or `known` before the turn.
        cause: String,
        /// What is written differently.
        change: String,
        /// Digest of the endpoint's address.
        endpoint: Digest,
        /// The model.
        model: String,
        /// The provider.
        provider: String,
        /// The window, as the server says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server_tokens: Option<u64>,
        /// The turn.
        turn: Uuid,
        /// The window, as far as refusals tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window_tokens: Option<u64>,
    }

    /// `ckp.provider.unreachable`. A provider could not be reached after the start.
    ProviderUnreachable {
        /// The provider.
        provider: String,
        /// Why.
        reason: ChainText,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.budget.warned`. A limit passed its warning mark.
    BudgetWarned {
        /// The limit.
        bound: u64,
        /// The limit.
        limit: String,
        /// The budget.
        purse: String,
        /// When the limit begins anew, RFC 3339.
        resets_at: Option<String>,
        /// What is spent.
        spent: u64,
    }

    /// `ckp.budget.dry_run`. A dry run ended; what its models cost counts against the agent's budgets.
    DryRunSpent {
        /// Who did it.
        by: String,
        /// What each budget paid.
        paid: Vec<DryRunCost>,
    }
}
