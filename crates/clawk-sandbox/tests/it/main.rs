//! Real processes: what a run may use, what is told about it, and that nothing of it stays.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]
#![expect(
    clippy::duplicate_mod,
    reason = "`warm` runs the suites once more, in boxes that have waited"
)]

mod calls;
mod containers;
mod denied;
#[cfg(feature = "wasm")]
mod guests;
mod image;
mod room;
mod runs;
mod services;
mod walls;
mod warm;

use std::sync::Arc;
use std::time::Duration;

use clawk_plan::{Limits, Plan, PlanDefaults};
use clawk_sandbox::{LaunchInput, LaunchOutcome, Launcher, Spec};

fn launcher() -> Launcher {
    Launcher::new(env!("CARGO_BIN_EXE_clawk-sandbox-launcher"), Vec::new())
}

fn plan(limits: Limits) -> Arc<Plan> {
    Arc::new(Plan::compile(
        None,
        &PlanDefaults {
            limits,
            ..PlanDefaults::default()
        },
    ))
}

fn script(text: &str) -> Spec {
    let mut spec = Spec::new("/bin/sh", plan(Limits::default()));
    spec.args = vec!["-c".to_owned(), text.to_owned()];
    spec
}

async fn run(spec: &Spec) -> LaunchOutcome {
    tokio::time::timeout(Duration::from_secs(20), launcher().launch(spec))
        .await
        .expect("in time")
        .expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a process with this word in its command line lives.
fn lives(word: &str) -> bool {
    let listing = std::fs::read_dir("/proc").expect("proc");
    listing.flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let zombie = stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'));
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        !zombie && String::from_utf8_lossy(&line).contains(word)
    })
}

/// A number that no other test's command line holds.
fn seconds() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{}.{:05}{}",
        3000,
        std::process::id() % 100_000,
        NEXT.fetch_add(1, Ordering::Relaxed) + 10
    )
}

fn bytes(text: &str) -> LaunchInput {
    LaunchInput::Bytes(text.as_bytes().to_vec())
}
