//! Requests to models, and their cost.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::{BudgetUse, DryRunCost, RefusalCause, RequestAdaptation, TokenReport};
use crate::text::ChainText;

payloads! {
    /// `ckp.provider.requested`. A request to a model starts. The amounts are the reserved amounts.
    ProviderRequested {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Bytes sent.
        bytes_out: u64,
        /// Cost in millionths of a US dollar.
        cost_microusd: Option<u64>,
        /// Id of the request to the model.
        inference_id: Uuid,
        /// Input tokens.
        input_tokens: u64,
        /// Name of the model.
        model: String,
        /// Output tokens.
        output_tokens: u64,
        /// Name of the provider.
        provider: String,
        /// The budgets that pay.
        purses: Vec<String>,
        /// Digest of the request.
        request_hash: Digest,
        /// Id of the turn.
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
        /// Id of the request to the model.
        inference_id: Uuid,
        /// Input tokens.
        input_tokens: u64,
        /// Name of the model.
        model: String,
        /// Output tokens.
        output_tokens: u64,
        /// Name of the provider.
        provider: String,
        /// Digest of the request.
        request_hash: Digest,
        /// Why the model stopped.
        stop: String,
        /// The server's own token counts, if they differ from the recorded ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<TokenReport>,
        /// The amounts that persistent budgets paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.provider.failed`. An attempt of a model request failed.
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
        /// Id of the request to the model.
        inference_id: Uuid,
        /// Input tokens.
        input_tokens: u64,
        /// The kind, as a word.
        kind: String,
        /// Output tokens.
        output_tokens: u64,
        /// Name of the provider.
        provider: String,
        /// Why.
        reason: ChainText,
        /// How long the server asks to wait, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// The status; for a provider, the HTTP status.
        status: Option<u16>,
        /// The server's own token counts, if they differ from the recorded ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<TokenReport>,
        /// The amounts that persistent budgets paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// Id of the turn.
        turn: Uuid,
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.provider.adapted`. From now on, requests to an endpoint use another format, or are smaller.
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
        /// Name of the model.
        model: String,
        /// Name of the provider.
        provider: String,
        /// The model's window in tokens, as the server reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server_tokens: Option<u64>,
        /// Id of the turn.
        turn: Uuid,
        /// The model's window in tokens, as derived from refusals.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window_tokens: Option<u64>,
    }

    /// `ckp.provider.unreachable`. A provider could not be reached after the start.
    ProviderUnreachable {
        /// Name of the provider.
        provider: String,
        /// Why.
        reason: ChainText,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.budget.warned`. A budget limit passed its warning threshold.
    BudgetWarned {
        /// The limit's maximum.
        bound: u64,
        /// Name of the limit.
        limit: String,
        /// Name of the budget.
        purse: String,
        /// The time when the limit resets, RFC 3339.
        resets_at: Option<String>,
        /// The amount that is spent.
        spent: u64,
    }

    /// `ckp.budget.dry_run`. A dry run ended. The cost of its models counts against the agent's budgets.
    DryRunSpent {
        /// The identity that did this.
        by: String,
        /// What each budget paid.
        paid: Vec<DryRunCost>,
    }
}
