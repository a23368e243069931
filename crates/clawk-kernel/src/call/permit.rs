//! The permit: authority to run one call once, as a value.

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

/// Authority to run one tool once, with exactly these arguments, in exactly this sandbox.
///
/// INVARIANT: only the path in `call` makes one, after the decision is in the journal. It is no `Clone` and is
/// consumed by the run, so what was approved is what runs, and it runs at most once.
///
/// No other crate can make one:
///
/// ```compile_fail,E0451
/// let permit = clawk_kernel::call::Permit { read_only: false, ..unreachable!() };
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
    /// The tool's name.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// The arguments that were decided on.
    #[must_use]
    pub fn arguments(&self) -> &Map<String, Value> {
        &self.arguments
    }

    /// SHA-256 of the arguments' canonical JSON.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The sandbox to run in.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The agent's working directory.
    #[must_use]
    pub fn workdir(&self) -> &Path {
        &self.workdir
    }

    /// The time limit of the run, in milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms
    }

    /// The call's id.
    #[must_use]
    pub fn request_id(&self) -> &RequestId {
        &self.request_id
    }

    /// The files that the call names, as they were when a person was asked about it; empty when nobody was. A runner that
    /// opens one of them must find the same beneath its own open, and do nothing otherwise.
    #[must_use]
    pub fn marks(&self) -> &[FileMark] {
        &self.marks
    }

    /// What the call leaves out: the rules have a stricter word there than for the call. A tool that walks through folders
    /// passes it by, and a runner that opens files itself opens none there.
    #[must_use]
    pub fn apart(&self) -> &ExcludedPaths {
        &self.apart
    }

    /// The place where the runner reports the connections that the call made.
    #[must_use]
    pub fn connections(&self) -> &ConnectionCollector {
        &self.connections
    }

    /// The tool is declared to have no side effects (R13). Without such a word it is taken to have some.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The origins of untrusted text in whatever the call writes: those of the context that asked for it, and the tool's own where it
    /// brings text of the network or of another agent (R46).
    #[must_use]
    pub fn made_from(&self) -> &[String] {
        &self.made_from
    }

    /// The place where the runner reports the untrusted files that the call could read.
    #[must_use]
    pub fn sources(&self) -> &ProvenanceCollector {
        &self.sources
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }
}

/// What the text that a call writes is made from (R46).
pub(super) fn made_from(
    caller: &CallerContext,
    tool: &CatalogEntry,
    described: &DescribedTool,
    arguments: &Map<String, Value>,
) -> Vec<String> {
    let own = taint::of_call(&tool.name, arguments, taint::brings(tool, described));
    let read = caller.context.read.told().into_values().flatten();
    let mut all = caller.context.sources();
    all.extend(own);
    all.extend(read);
    all.into_iter().collect()
}
