//! `cargo xtask soak swarm [--backend NAME]`: a swarm whose hosts and processes fail. Needs root.

use anyhow::{Result, bail};

use super::{number, only};
use crate::{parts, run};

/// The tests in `crates/clawk/tests/it/hosts.rs`, by back end.
pub(super) const TESTS: [(&str, &str); 4] = [
    (
        "nats",
        "hosts::every_task_is_reported_once_or_is_a_dead_letter_whatever_happens_to_hosts",
    ),
    ("redis", "hosts::the_same_over_redis"),
    (
        "sqlite-wal",
        "hosts::the_same_over_a_file_between_processes_of_one_host",
    ),
    ("in-process", "hosts::the_same_in_one_process"),
];

/// Runs the tests with more tasks: the one for `--backend`, or all.
///
/// # Errors
/// The arguments are wrong, or a test failed.
pub(super) fn run(args: &[String]) -> Result<()> {
    only(args, &["--backend", "--tasks", "--workers"])?;
    let asked = args.iter().position(|arg| arg == "--backend");
    let asked = asked.map(|at| args.get(at.saturating_add(1)).map_or("", String::as_str));
    let known: Vec<_> = TESTS
        .iter()
        .filter(|(backend, _)| asked.is_none_or(|asked| asked == *backend))
        .collect();
    if known.is_empty() {
        bail!("`--backend` is one of `nats`, `redis`, `sqlite-wal` and `in-process`");
    }
    known.into_iter().try_for_each(|(_, test)| soak(test, args))
}

fn soak(test: &str, args: &[String]) -> Result<()> {
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
        test,
        "--exact",
        "--nocapture",
    ]);
    command
        .env(parts::VARIABLE, parts::install()?)
        .env("CLAWK_SWARM_TASKS", tasks.to_string())
        .env("CLAWK_SWARM_WORKERS", workers.to_string());
    run::must(&mut command)
}
