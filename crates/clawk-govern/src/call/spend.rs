//! The budget of a call: reserved before the call runs, and settled with its outcome.

use clawk_manifest::model::Manifest;

use super::{CallGovernor, CallerContext, Request};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::error::CallError;
use crate::purse::{CallBudget, CallBudgetRequest};

/// Largest nesting depth of composite tools.
const MAX_DEPTH: u8 = 4;

/// Reserves the call's amounts in every budget above it, or in none. For a composite tool, the reservation must cover its skill's
/// estimates.
///
/// # Errors
/// -32021: the budget, the limit, the used and the requested amount.
pub(super) fn reserve_call(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
    tool: &CatalogEntry,
    described: &DescribedTool,
) -> Result<CallBudget, CallError> {
    if tool.skill.is_some() && caller.depth >= MAX_DEPTH {
        return Err(CallError::Unavailable {
            tool: tool.name.to_string(),
            reason: format!("composite tools may be nested {} deep", MAX_DEPTH),
        });
    }
    let bytes_out = if described.is_pure() || tool.skill.is_some() {
        0
    } else {
        argument_bytes(request)
    };
    let wanted = CallBudgetRequest {
        tool: &tool.name,
        skill: tool.skill.as_ref().map(|skill| skill.name.as_str()),
        tokens: tool
            .skill
            .as_ref()
            .and_then(|skill| skill.estimates.avg_tokens)
            .unwrap_or(0),
        // The member that works on it pays for its own time.
        timeout_ms: if tool.of_team { 0 } else { tool.timeout_ms },
        bytes_out,
        provider: primary_provider(&calls.manifest),
    };
    calls.purses.call(&caller.purse, wanted, calls.scribe.now())
}

/// Returns the manifest's first provider.
fn primary_provider(manifest: &Manifest) -> &str {
    let first = manifest.providers.first();
    first.map(|provider| provider.name.as_str()).unwrap_or_default()
}

/// Returns the size of the arguments when sent, in bytes.
fn argument_bytes(request: &Request) -> u64 {
    u64::try_from(crate::event::canonical(&request.arguments).len()).unwrap_or(u64::MAX)
}
