//! What a call may take is set aside before it runs, and settled with its outcome.

use super::{Caller, Request};
use crate::agent::Agent;
use crate::catalog::{Described, Entry};
use crate::composite;
use crate::error::CallError;
use crate::purse::{Place, Wanted};

/// Sets aside what the call may take: in every purse above it, or in none. A composite tool needs room for what its skill
/// says it takes.
///
/// # Errors
/// -32021: which purse, which limit, what is used and wanted.
pub(super) fn reserve(
    agent: &Agent,
    caller: &Caller,
    request: &Request,
    tool: &Entry,
    described: &Described,
) -> Result<Place, CallError> {
    if tool.skill.is_some() && caller.depth >= composite::MAX_DEPTH {
        return Err(CallError::Unavailable {
            tool: tool.name.to_string(),
            reason: format!("composite tools may be nested {} deep", composite::MAX_DEPTH),
        });
    }
    let bytes_out = if described.pure() || tool.skill.is_some() {
        0
    } else {
        bytes(request)
    };
    let wanted = Wanted {
        tool: &tool.name,
        skill: tool.skill.as_ref().map(|skill| skill.name.as_str()),
        tokens: tool
            .skill
            .as_ref()
            .and_then(|skill| skill.estimates.avg_tokens)
            .unwrap_or(0),
        timeout_ms: tool.timeout_ms,
        bytes_out,
        provider: agent.primary_provider(),
    };
    agent.purses.call(&caller.purse, wanted, agent.scribe.now())
}

/// Bytes of the arguments as they go out.
fn bytes(request: &Request) -> u64 {
    u64::try_from(crate::event::canonical(&request.arguments).len()).unwrap_or(u64::MAX)
}
