//! `clawk sandbox run --warm`: the command runs in a box that has waited for it, as a tool's second call does.

use std::time::Duration;

use anyhow::{Result, bail};
use clawk_sandbox::{EgressGate, LaunchInput, Launcher, Spec, WarmPoolLimits};

/// How long the box may take to be there, milliseconds.
const PATIENCE_MS: u64 = 10_000;

/// The program that shows the configuration to the launcher.
const FIRST: &str = "/bin/true";

/// This launcher with a box that waits for `spec`.
///
/// # Errors
/// The box can't be made, or `spec` is none that a waiting box could serve.
pub(super) async fn waiting_for(spec: &Spec, launcher: &Launcher) -> Result<Launcher> {
    let launcher = launcher.clone().with_warm(WarmPoolLimits::default());
    let mut first = spec.clone();
    first.program = FIRST.to_owned();
    first.args = Vec::new();
    first.stdin = LaunchInput::Null;
    first.tee = None;
    // Nobody in that box asks for anything.
    first.gate = spec.gate.as_ref().map(|_| EgressGate::new(|_| Ok(Box::new(()))));
    launcher.launch(&first).await?;
    for _ in 0..PATIENCE_MS {
        if launcher.waiting() > 0 {
            return Ok(launcher);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bail!("no box waits for this configuration: see docs/reference/warm-boxes.md");
}
