//! Makes agents: the binary implements [`AgentFactory`], and `claw.initialize` uses it.

use std::fmt;
use std::sync::Arc;

use clawk_kernel::Kernel;
use clawk_kernel::StartError;
use clawk_kernel::ports::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

/// Makes agents (R3). One implementation is bound to the manifest that `clawk serve FILE` was launched with; the other
/// takes the manifest on the wire.
pub trait AgentFactory: Send + Sync + fmt::Debug {
    /// Judges the manifest of a `claw.initialize`, an object or a `claw://` URI, and starts nothing: what is refused here
    /// changes nothing (R3a). `claw` may be absent.
    ///
    /// # Errors
    /// The manifest is invalid or can't be had.
    fn check<'a>(&'a self, wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>>;

    /// Starts a run, INIT to READY, of the launched agent, or of `wire`'s where none was launched. The run before it has
    /// been shut down.
    ///
    /// # Errors
    /// The manifest is invalid, or the agent can't be served here.
    fn start<'a>(&'a self, wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>>;
}

/// One thing that is wrong with a manifest, as `clawk validate --format json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestFault {
    /// JSON pointer into the manifest.
    pub path: String,
    /// What is wrong and what would mend it.
    pub message: String,
    /// The diagnostic's stable code.
    pub code: String,
}

/// Why `claw.initialize` did not give an agent.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InitFailure {
    /// All its faults.
    #[error("the manifest is invalid: {}", faults(.0))]
    Manifest(Vec<ManifestFault>),
    /// The `claw://` URI names nothing that local configuration knows.
    #[error("`{uri}` can't be resolved: {reason}")]
    Unresolvable {
        /// The URI.
        uri: String,
        /// Why, and the cure.
        reason: String,
    },
    /// The manifest is valid, but the agent does not start here.
    #[error(transparent)]
    Start(#[from] StartError),
}

fn faults(faults: &[ManifestFault]) -> String {
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

/// The run that is served now, shared between the RPC and the control socket: a new `claw.initialize` replaces it.
#[derive(Debug, Clone, Default)]
pub struct CurrentKernel(Arc<watch::Sender<Option<Kernel>>>);

impl CurrentKernel {
    /// The run, if an agent was started; it may be stopped by now.
    #[must_use]
    pub fn get(&self) -> Option<Kernel> {
        self.0.borrow().clone()
    }

    /// From now on, this run.
    pub fn set(&self, kernel: Kernel) {
        self.0.send_replace(Some(kernel));
    }

    /// The run that is served, and every later one.
    pub(crate) fn follow(&self) -> watch::Receiver<Option<Kernel>> {
        self.0.subscribe()
    }
}
