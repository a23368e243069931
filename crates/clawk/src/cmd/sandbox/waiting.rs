//! `clawk sandbox run --warm`: runs the command in a prewarmed box, as for a tool's second call.

use std::time::Duration;

use anyhow::{Result, bail};
use clawk_sandbox::{EgressGate, LaunchInput, Launcher, Spec, WarmPoolLimits};

/// Time limit for the box to become ready, in milliseconds.
const PATIENCE_MS: u64 = 10_000;

/// The program of the first call, which shows the configuration to the launcher.
const FIRST: &str = "/bin/true";

/// Returns the launcher with a prewarmed box for `spec`.
///
/// # Errors
/// The box can't be made, or `spec` can't be served by a prewarmed box.
pub(super) async fn waiting_for(spec: &Spec, launcher: &Launcher) -> Result<Launcher> {
    let launcher = launcher.clone().with_warm(WarmPoolLimits::default());
    let mut first = spec.clone();
    first.program = FIRST.to_owned();
    first.args = Vec::new();
    first.stdin = LaunchInput::Null;
    first.tee = None;
    // The program in that box opens no connections.
    first.gate = spec.gate.as_ref().map(|_| EgressGate::new(|_| Ok(Box::new(()))));
    launcher.launch(&first).await?;
    for _ in 0..PATIENCE_MS {
        if launcher.waiting_count() > 0 {
            return Ok(launcher);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bail!("no box waits for this configuration: see docs/reference/warm-boxes.md");
}
