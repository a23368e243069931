//! Resolutions: decided by `clawk-carp`, recorded here, and returned only when the record is durable.

use clawk_carp::execute::IssuedResolution;
use clawk_carp::message;
use clawk_carp::resolve::{ResolutionIds, ResolveError};
use clawk_proto::carp::{CarpResolution, ContextBlock, Request};
use jiff::Timestamp;

use super::CarpRuntime;
use super::error::CarpError;
use super::event::{self, ResolutionRecord};
use crate::event::Thread;

impl From<ResolveError> for CarpError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::UnknownAtlas(ids) => Self::UnknownAtlas(ids),
            ResolveError::NoTask => Self::Invalid(clawk_carp::InputFaults {
                errors: vec![clawk_proto::carp::CarpFault {
                    path: "/task".to_owned(),
                    code: "missing".to_owned(),
                    message: "`task` is required".to_owned(),
                }],
                left_out: 0,
            }),
        }
    }
}

/// Checks that a request's timestamp is close enough to this host's clock.
pub fn check_skew(carp: &CarpRuntime, request: &Request, now: Timestamp) -> Result<(), CarpError> {
    let Some(limit_ms) = carp.config.clock_skew_ms else {
        return Ok(());
    };
    let off_ms = message::skew_ms(request, now).map_err(CarpError::Invalid)?;
    if off_ms <= limit_ms {
        return Ok(());
    }
    Err(CarpError::ClockSkew { off_ms, limit_ms })
}

/// Records in the session's chain that a request failed. The answer is an error anyway, so a failed write changes nothing.
pub async fn record_error(carp: &CarpRuntime, request: &Request, error: &CarpError) {
    match error {
        // The session is not theirs, or nothing can be written.
        CarpError::UnknownSession(_)
        | CarpError::NotYours
        | CarpError::NotReady(_)
        | CarpError::Journal(_)
        | CarpError::Unseen { .. }
        | CarpError::TooMany(_) => return,
        // The call path has recorded it.
        CarpError::Denied { .. } => return,
        CarpError::Invalid(_)
        | CarpError::ClockSkew { .. }
        | CarpError::DuplicateRequest(_)
        | CarpError::UnknownAtlas(_)
        | CarpError::UnknownResolution
        | CarpError::UnknownApproval(_)
        | CarpError::Conflict(_)
        | CarpError::Set(_) => {}
    }
    let session = request.requester.session_id;
    let theirs = carp
        .lock_sessions()
        .live_session(session)
        .is_ok_and(|book| book.agent_id == request.requester.agent_id);
    if !theirs {
        return;
    }
    let thread = Thread::for_session(session).child(carp.new_uuid());
    let drafts = event::error_drafts(&carp.scribe, &thread, request, error);
    if let Err(error) = carp.scribe.write(drafts).await {
        tracing::warn!(%error, "a refused CRA request could not be recorded");
    }
}

/// Makes a resolution for a live session. `most_tokens`: further context is left out, and recorded as left out.
pub async fn resolve_request(
    carp: &CarpRuntime,
    request: &Request,
    most_tokens: Option<u64>,
) -> Result<CarpResolution, CarpError> {
    let loaded = carp.loaded_atlases();
    let now = carp.now();
    let session = request.requester.session_id;
    let ids = ResolutionIds {
        resolution: carp.new_uuid(),
        approval: carp.new_uuid(),
        trace: session.0,
    };
    let resolved = {
        let books = carp.lock_sessions();
        clawk_carp::resolve_request(&loaded.set, request, now, ids, &books.ledger)?
    };
    let mut resolution = resolved.resolution;
    let thread = Thread::for_session(session).child(carp.new_uuid());
    let drafts = {
        let redacted = most_tokens
            .map(|most| excess_blocks(&resolution, most))
            .unwrap_or_default();
        let record = ResolutionRecord {
            request,
            atlas_changes: loaded.changes,
            resolution: &resolution,
            evaluations: &resolved.evaluations,
            redacted: &redacted,
        };
        let mut drafts = record.drafts(&carp.scribe, &thread);
        let root = carp.root_thread(thread.span);
        drafts.push(event::issued_draft(&carp.scribe, &root, request, &resolution));
        drafts
    };
    carp.scribe.write(drafts).await?;
    if let Some(most) = most_tokens {
        let kept = resolution.context_blocks.len() - excess_blocks(&resolution, most).len();
        let mut left = most;
        resolution
            .context_blocks
            .retain(|block| fits_budget(block, &mut left));
        debug_assert_eq!(kept, resolution.context_blocks.len());
    }
    let issued = IssuedResolution::new(request, &resolution, now);
    carp.lock_sessions()
        .live_session(session)?
        .add_resolution(issued, now);
    Ok(resolution)
}

fn fits_budget(block: &ContextBlock, left: &mut u64) -> bool {
    let fits = block.token_estimate <= *left;
    if fits {
        *left -= block.token_estimate;
    }
    fits
}

/// Returns the blocks that do not fit into `most` tokens. Important blocks are kept first.
fn excess_blocks(resolution: &CarpResolution, most: u64) -> Vec<&ContextBlock> {
    let mut left = most;
    let blocks = resolution.context_blocks.iter().map(|block| &**block);
    blocks.filter(|block| !fits_budget(block, &mut left)).collect()
}
