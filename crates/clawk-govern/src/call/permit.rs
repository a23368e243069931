//! The permit: the right to run one call once, as a value.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_plan::Plan;
use clawk_proto::{Digest, RequestId, SessionId};
use serde_json::{Map, Value};

use super::CallerContext;
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::place::ExcludedPaths;
use crate::ports::{ConnectionCollector, ProvenanceCollector};
use crate::taint;
use crate::witness::FileMark;

/// The right to run one tool once, with exactly these arguments, in exactly this sandbox.
///
/// INVARIANT: only the path in `call` makes one, after the decision is in the journal. It is no `Clone` and is
/// consumed by the run, so what was approved is what runs, and it runs at most once.
///
/// No other crate can make one:
///
/// ```compile_fail,E0451
/// let permit = clawk_govern::call::Permit { read_only: false, ..unreachable!() };
/// ```
#[derive(Debug)]
pub struct Permit {
    pub(super) tool: Arc<str>,
    pub(super) arguments: Map<String, Value>,
    pub(super) digest: Digest,
    pub(super) plan: Arc<Plan>,
    pub(super) workdir: PathBuf,
    pub(super) timeout_ms: u64,
    pub(super) request_id: RequestId,
    pub(super) session: SessionId,
    pub(super) marks: Arc<[FileMark]>,
    pub(super) connections: ConnectionCollector,
    pub(super) apart: Arc<ExcludedPaths>,
    pub(super) read_only: bool,
    pub(super) made_from: Vec<String>,
    pub(super) sources: ProvenanceCollector,
}

impl Permit {
    /// Returns the tool's name.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Returns the arguments that were decided on.
    #[must_use]
    pub fn arguments(&self) -> &Map<String, Value> {
        &self.arguments
    }

    /// Returns the SHA-256 of the arguments' canonical JSON.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the sandbox plan of the run.
    #[must_use]
    pub fn sandbox_plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the agent's working directory.
    #[must_use]
    pub fn workdir(&self) -> &Path {
        &self.workdir
    }

    /// Returns the time limit of the run, in milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms
    }

    /// Returns the call's id.
    #[must_use]
    pub fn request_id(&self) -> &RequestId {
        &self.request_id
    }

    /// Returns the files that the call names, with their state when a person was asked; empty if nobody was asked. A runner that
    /// opens one of them must check the open file's state, and must do nothing if it differs.
    #[must_use]
    pub fn file_marks(&self) -> &[FileMark] {
        &self.marks
    }

    /// Returns the paths that the call must not touch, because rules are stricter there than for the call itself. A tool that walks
    /// through folders skips them, and a runner that opens files opens none there.
    #[must_use]
    pub fn excluded_paths(&self) -> &ExcludedPaths {
        &self.apart
    }

    /// Returns the collector to which the runner reports the call's connections.
    #[must_use]
    pub fn connections(&self) -> &ConnectionCollector {
        &self.connections
    }

    /// Returns whether the tool is declared to have no side effects (R13). Without a declaration it counts as having some.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the sources of untrusted text in whatever the call writes: those of the context, and the tool itself if it returns
    /// text of the network or of another agent (R46).
    #[must_use]
    pub fn made_from(&self) -> &[String] {
        &self.made_from
    }

    /// Returns the collector to which the runner reports the untrusted files that the call could read.
    #[must_use]
    pub fn sources(&self) -> &ProvenanceCollector {
        &self.sources
    }

    /// Returns the session of the call.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }
}

/// Returns the provenance of the text that a call writes (R46).
pub(super) fn made_from(
    caller: &CallerContext,
    tool: &CatalogEntry,
    described: &DescribedTool,
    arguments: &Map<String, Value>,
) -> Vec<String> {
    let own = taint::of_call(&tool.name, arguments, taint::tool_text_origin(tool, described));
    let read = caller.context.read.collected_files().into_values().flatten();
    let mut all = caller.context.output_origins();
    all.extend(own);
    all.extend(read);
    all.into_iter().collect()
}
