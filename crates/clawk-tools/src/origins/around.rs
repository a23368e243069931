//! Calls the provenance scans before and after a call, outside the async threads.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use clawk_kernel::call::Permit;
use clawk_kernel::ports::{MarkedContent, RunError, TaintedFiles};
use clawk_kernel::taint::lasts;

use super::{FileProvenanceStore, SOMEWHERE, TrackedCall, TrackedWrite};
use crate::runner::ExecutorBinding;

/// Scans before a call. Skipped if nothing is marked and nothing can become marked.
///
/// # Errors
/// The provenance of what the call writes can't be recorded, so the call must not run.
pub(crate) async fn before_call(
    origins: Option<&Arc<FileProvenanceStore>>,
    binding: &Arc<ExecutorBinding>,
    permit: &Permit,
) -> Result<Option<TrackedWrite>, RunError> {
    let Some(origins) = origins else { return Ok(None) };
    let brings = permit.made_from().iter().any(|origin| lasts(origin));
    if !brings && origins.is_empty() {
        return Ok(None);
    }
    let (origins, binding, asked) = (
        Arc::clone(origins),
        Arc::clone(binding),
        TrackedCall::from_permit(permit),
    );
    let looked = tokio::task::spawn_blocking(move || origins.before_call(&binding, &asked)).await;
    let failed = |why: String| {
        RunError::Unavailable(format!(
            "nothing was begun: where the text came from that it would write can't be kept: {why}"
        ))
    };
    match looked {
        Ok(Ok(open)) => Ok(open),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Scans after a call.
pub(crate) async fn after_call(
    origins: Option<&Arc<FileProvenanceStore>>,
    binding: &Arc<ExecutorBinding>,
    asked: TrackedCall,
    open: Option<TrackedWrite>,
) {
    let Some(origins) = origins.filter(|origins| open.is_some() || !origins.is_empty()) else {
        return;
    };
    let (origins, binding) = (Arc::clone(origins), Arc::clone(binding));
    let looked = tokio::task::spawn_blocking(move || origins.after_call(&binding, &asked, open)).await;
    let why = match looked {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    // The call's start is recorded: until the next start, all changes there count as the call's.
    tracing::warn!(%why, "what a call wrote can't be marked file by file with where it came from");
}

/// Implements the port's check of contents.
pub(crate) async fn content_origins(
    origins: Option<&Arc<FileProvenanceStore>>,
    workdir: &Path,
    contents: Vec<MarkedContent>,
) -> TaintedFiles {
    let Some(origins) = origins.filter(|origins| !origins.is_empty()) else {
        return TaintedFiles::new();
    };
    let (origins, workdir) = (Arc::clone(origins), workdir.to_owned());
    let all = Arc::clone(&origins);
    let looked = tokio::task::spawn_blocking(move || origins.content_origins(contents, &workdir)).await;
    // If the check fails, the content counts as having the worst origins.
    looked
        .unwrap_or_else(|_| TaintedFiles::from([(SOMEWHERE.to_owned(), all.lock_log().known.all_origins())]))
}

/// Implements the port's marking of contents.
pub(crate) async fn mark_content(
    origins: Option<&Arc<FileProvenanceStore>>,
    content: Vec<u8>,
    from: BTreeSet<String>,
) -> Result<(), String> {
    let Some(origins) = origins.cloned() else {
        return Ok(());
    };
    let kept = tokio::task::spawn_blocking(move || origins.mark_content(&content, from)).await;
    kept.map_err(|error| error.to_string())?
        .map_err(|error| format!("where the text came from can't be kept: {error}"))
}
