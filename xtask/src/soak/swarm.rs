//! `cargo xtask soak swarm`: hosts in network namespaces with NATS between them; needs root.

use anyhow::Result;

use super::number;
use crate::{parts, run};

/// Runs the test of `crates/clawk/tests/it/hosts.rs` with more tasks.
pub(super) fn run(args: &[String]) -> Result<()> {
    let (tasks, workers) = (number(args, "--tasks", 10_000)?, number(args, "--workers", 5)?);
    let mut command = run::command("cargo");
    command.args([
        "test",
        "--package",
        "clawk",
        "--features",
        "nats,redis",
        "--test",
        "it",
        "--locked",
        "--",
        "hosts::every_task_is_reported_once_or_is_a_dead_letter_whatever_happens_to_hosts",
        "--exact",
        "--nocapture",
    ]);
    command
        .env(parts::VARIABLE, parts::dir()?)
        .env("CLAWK_SWARM_TASKS", tasks.to_string())
        .env("CLAWK_SWARM_WORKERS", workers.to_string());
    run::must(&mut command)
}
