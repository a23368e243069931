//! Creates agents. The binary implements [`AgentFactory`], and `claw.initialize` uses it.

use std::fmt;
use std::sync::Arc;

use clawk_kernel::Kernel;
use clawk_kernel::StartError;
use clawk_kernel::ports::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

/// Creates agents (R3). One implementation uses the manifest that `clawk serve FILE` was started with. The other one takes the
/// manifest from the client.
pub trait AgentFactory: Send + Sync + fmt::Debug {
    /// Checks the manifest of a `claw.initialize` (an object or a `claw://` URI) without starting anything, so an invalid one
    /// changes nothing (R3a). The parameter may lack `claw`.
    ///
    /// # Errors
    /// The manifest is invalid or can't be read.
    fn check_manifest<'a>(&'a self, wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>>;

    /// Starts a run, from INIT to READY. It uses the launched agent, or the manifest in `wire` if no agent was launched. The
    /// previous run must have been shut down.
    ///
    /// # Errors
    /// The manifest is invalid, or the agent can't be served here.
    fn start_agent<'a>(&'a self, wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>>;
}

/// One error in a manifest, as `clawk validate --format json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestFault {
    /// JSON pointer into the manifest.
    pub path: String,
    /// What is wrong, and how to fix it.
    pub message: String,
    /// The diagnostic's stable code.
    pub code: String,
}

/// Why `claw.initialize` failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InitFailure {
    /// All errors of the manifest.
    #[error("the manifest is invalid: {}", faults_text(.0))]
    Manifest(Vec<ManifestFault>),
    /// The local configuration does not know this `claw://` URI.
    #[error("`{uri}` can't be resolved: {reason}")]
    Unresolvable {
        /// The URI.
        uri: String,
        /// The reason, and how to fix it.
        reason: String,
    },
    /// The manifest is valid, but the agent can't start here.
    #[error(transparent)]
    Start(#[from] StartError),
}

fn faults_text(faults: &[ManifestFault]) -> String {
    const SHOWN: usize = 3;
    let mut text: Vec<String> = faults
        .iter()
        .take(SHOWN)
        .map(|f| format!("{} {}", f.path, f.message))
        .collect();
    if faults.len() > SHOWN {
        text.push(format!("and {} more", faults.len() - SHOWN));
    }
    text.join("; ")
}

/// The current run, shared by RPC and the control socket. Each `claw.initialize` replaces it.
#[derive(Debug, Clone, Default)]
pub struct CurrentKernel(Arc<watch::Sender<Option<Kernel>>>);

impl CurrentKernel {
    /// The current run, if an agent was started. It may have stopped since.
    #[must_use]
    pub fn get(&self) -> Option<Kernel> {
        self.0.borrow().clone()
    }

    /// Replaces the current run.
    pub fn set(&self, kernel: Kernel) {
        self.0.send_replace(Some(kernel));
    }

    /// The current run and all later ones.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Kernel>> {
        self.0.subscribe()
    }
}
