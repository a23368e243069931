//! The exact grant: all preconditions of an approval, as they were when the request was made. If one of them changes before the
//! permit is made, the approval is void.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_plan::Plan;
use clawk_policy::path::named_paths;
use clawk_proto::Digest;
use serde_json::{Map, Value};

use super::{CallGovernor, Request};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::error::{CallError, DeniedBy};
use crate::event::{canonical, digest};
use crate::place;
use crate::ports::InspectedCall;
use crate::time;
use crate::witness::{self, ExactGrant, FileMark, GrantPrecondition};

/// Largest number of files that one request may be bound to. A call that names more is refused; it is never bound to only some of
/// them.
const MAX_FILES: usize = 128;

/// Returns the digest of a standing grant's further preconditions: the manifest, and the programs, scripts, servers and endpoints
/// that the call uses.
pub(super) fn basis_digest(origin: &str, stands_on: &[GrantPrecondition]) -> Digest {
    digest(&canonical(&(origin, witness::lasting_preconditions(stands_on))))
}

/// Records the state of everything that the call would act on.
///
/// # Errors
/// The call names too many files.
pub(super) async fn observe_grant(
    calls: &CallGovernor,
    tool: &CatalogEntry,
    described: &DescribedTool,
    request: &Request,
    parameters: Digest,
) -> Result<ExactGrant, CallError> {
    let workdir = calls.workdir.clone();
    let paths = named_files(&request.arguments, &described.input_schema, &workdir);
    if paths.len() > MAX_FILES {
        return Err(CallError::Denied {
            tool: request.tool.clone(),
            by: DeniedBy::Policy,
            rule_id: None,
            policy: None,
            reason: format!("it names more than {MAX_FILES} files, too many for one approval"),
            retry_after_ms: None,
        });
    }
    let look = InspectedCall {
        tool: &tool.name,
        arguments: &request.arguments,
        plan: &tool.plan,
        workdir: &workdir,
    };
    let stands_on = calls.runner.stands_on(look).await;
    let mut facts = vec![
        GrantPrecondition::new("the tool", request.tool.as_str()),
        GrantPrecondition::new("the arguments", parameters.to_hex()),
        GrantPrecondition::new("the sandbox plan", plan_digest(tool).to_hex()),
    ];
    let seen = time::run_blocking(calls.clock(), move || {
        let place = witness::observe_file(&workdir);
        let files: Vec<_> = paths.iter().map(|path| witness::observe_file(path)).collect();
        (place, files)
    })
    .await
    .map_err(|error| CallError::Unavailable {
        tool: request.tool.clone(),
        reason: format!("its files can't be looked at: {error}"),
    })?;
    let (place, files) = seen;
    facts.extend(place.facts);
    let mut marks = Vec::with_capacity(files.len());
    for file in files {
        facts.extend(file.facts);
        marks.push(file.mark);
    }
    let basis = Some(basis_digest(&calls.origin, &stands_on));
    facts.extend(stands_on);
    Ok(ExactGrant { facts, marks, basis })
}

/// Returns the digest of the whole plan: level, capabilities, limits.
pub(super) fn plan_digest(tool: &CatalogEntry) -> Digest {
    digest_of_plan(&tool.plan)
}

/// INVARIANT: a standing grant holds this digest. Another text of a plan, by a renamed type or field for example, voids every standing
/// grant; the tests pin it.
fn digest_of_plan(plan: &Plan) -> Digest {
    digest(format!("{plan:?}").as_bytes())
}

/// Returns the absolute paths of the files that the arguments name. Relative paths start at the call's own working directory, if it
/// has one.
pub(super) fn named_files(arguments: &Map<String, Value>, schema: &Value, workdir: &Path) -> Vec<PathBuf> {
    let found = named_paths(arguments, Some(schema));
    let mut bases: Vec<PathBuf> = found
        .workdirs
        .iter()
        .map(|(_, text)| workdir.join(strip_file_scheme(text)))
        .collect();
    let mut all = bases.clone();
    if bases.is_empty() {
        bases.push(workdir.to_path_buf());
    }
    for (_, text) in &found.paths {
        all.extend(bases.iter().map(|base| base.join(strip_file_scheme(text))));
    }
    all.dedup();
    all
}

/// Returns the resolved folder that contains all files of a call. No symbolic link is on the way to it.
pub(super) fn common_folder(
    arguments: &Map<String, Value>,
    schema: &Value,
    workdir: &Path,
) -> Option<PathBuf> {
    let named = named_files(arguments, schema, workdir);
    let mut parents = named
        .iter()
        .map(|file| place::real_path(file).parent().map(Path::to_path_buf));
    let first = parents.next()??;
    let same = parents.all(|parent| parent.as_ref() == Some(&first));
    (same && first != Path::new("/")).then_some(first)
}

/// Returns the files that a call uses, without its working directory. Paths stay as written, so two names of one file count as two.
pub(super) fn works_on(arguments: &Map<String, Value>, schema: &Value, workdir: &Path) -> Vec<PathBuf> {
    let found = named_paths(arguments, Some(schema));
    let base = found.workdirs.first().map_or_else(
        || workdir.to_path_buf(),
        |(_, text)| workdir.join(strip_file_scheme(text)),
    );
    found
        .paths
        .iter()
        .map(|(_, text)| base.join(strip_file_scheme(text)))
        .collect()
}

/// Returns the path of a `file:` URI, or the text itself.
fn strip_file_scheme(text: &str) -> &str {
    text.strip_prefix("file://").unwrap_or(text)
}

/// The authorization to continue, and its preconditions.
#[derive(Debug)]
pub(super) struct CallAuthorization {
    pub(super) by: super::CallApprover,
    pub(super) marks: Arc<[FileMark]>,
    /// The preconditions, if a person gave the authorization.
    pub(super) grant: Option<ExactGrant>,
}

impl CallAuthorization {
    /// Makes an authorization without a person.
    pub(super) fn by_policy() -> Self {
        Self {
            by: super::CallApprover::Policy,
            marks: Arc::default(),
            grant: None,
        }
    }

    /// Makes a person's authorization for exactly this call.
    pub(super) fn by_person(by: super::CallApprover, grant: ExactGrant) -> Self {
        Self {
            by,
            marks: grant.marks.as_slice().into(),
            grant: Some(grant),
        }
    }
}

#[cfg(test)]
mod tests;
