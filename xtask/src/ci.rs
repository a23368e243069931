//! `cargo xtask ci`: the steps of CI, in order. After a failed step the next ones still run, except if they need its result.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::run::{self, command, say};
use crate::{dist, parts, tidy};

/// The result of one step.
struct Outcome {
    name: &'static str,
    ok: bool,
    took: Duration,
}

/// Number of passed and failed tests of all test runners.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
}

/// The steps, in order.
const STEPS: &[(&str, Step)] = &[
    ("disk", |_| room().map(|()| true)),
    ("system packages", |_| parts::system().map(|()| true)),
    ("fmt", |_| {
        plain(command("cargo").args(["fmt", "--all", "--check"]))?;
        plain(
            command("rustfmt")
                .args(["--edition", "2024", "--check"])
                .args(platform_modules()?),
        )
    }),
    ("tidy", |_| tidy::check(&run::root()).map(|()| true)),
    ("clippy", |_| {
        plain(command("cargo").args([
            "clippy",
            "--workspace",
            "--features",
            FEATURES,
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]))
    }),
    ("build", |_| {
        plain(command("cargo").args(["build", "--workspace", "--features", FEATURES, "--locked"]))
    }),
    ("docs", |_| {
        plain(
            command("cargo")
                .args([
                    "doc",
                    "--workspace",
                    "--no-deps",
                    "--features",
                    FEATURES,
                    "--locked",
                ])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    }),
    ("book", |_| crate::docs::build(&run::root()).map(|()| true)),
    ("real parts", |_| parts::install().map(|_| true)),
    ("tests", tests),
    ("doc tests", |tally| {
        counted(
            // Use the features of the build before, so that its libraries are reused.
            command("cargo").args(["test", "--workspace", "--doc", "--features", FEATURES, "--locked"]),
            tally,
        )
    }),
    ("conformance ckp", |tally| conformance("ckp", tally)),
    ("conformance cra", |tally| conformance("cra", tally)),
    // The build with every part is the one above; `cargo xtask features` checks each part alone.
    ("minimal build", |_| {
        plain(command("cargo").args(["check", "--package", "clawk", "--no-default-features", "--locked"]))
    }),
    ("dependencies", |_| {
        crate::footprint::dependencies()?;
        crate::licences::check().map(|()| true)
    }),
];

/// Runs every step. Then prints a table, and as the last line `N passed, N failed`.
pub(crate) fn run() -> Result<()> {
    let began = Instant::now();
    let mut outcomes = Vec::new();
    let mut tally = Tally::default();
    for (name, step) in STEPS {
        say(&format!("\n==> {name}"));
        let start = Instant::now();
        let failed_before = tally.failed;
        let ok = step(&mut tally).unwrap_or_else(|error| {
            say(&format!("{name}: {error:#}"));
            false
        });
        // A step that failed without a failed test counts as one failed test, so that the last line shows the failure.
        if !ok && tally.failed == failed_before {
            tally.failed += 1;
        }
        outcomes.push(Outcome {
            name,
            ok,
            took: start.elapsed(),
        });
        if !ok && matches!(*name, "disk" | "build") {
            break;
        }
    }
    summary(&outcomes, &tally, began.elapsed())
}

/// The features that CI tests: those of the shipped program.
const FEATURES: &str = dist::FEATURES;

type Step = fn(&mut Tally) -> Result<bool>;

/// Free disk space that a full build with the external parts and the test servers needs, in gigabytes, plus half.
const NEEDED_GB: u64 = 24;

/// Least free disk space for an up-to-date build, in gigabytes. NATS reserves three quarters of the free space for its streams, and
/// refuses them if there is too little.
const LEAST_GB: u64 = 6;

/// Frees disk space in the target folder: it deletes incremental build state, which grows with every change and can be rebuilt.
/// Then it reports missing space at once; otherwise a server's test would fail 20 minutes later.
fn room() -> Result<()> {
    let folder = run::target()?;
    std::fs::create_dir_all(&folder)?;
    if free_gb(&folder)? < NEEDED_GB {
        for profile in ["debug", "release", "dist"] {
            let state = folder.join(profile).join("incremental");
            if state.exists() {
                say(&format!("little room: dropping {}", state.display()));
                std::fs::remove_dir_all(&state)?;
            }
        }
    }
    for place in [folder, std::env::temp_dir()] {
        let free = free_gb(&place)?;
        if free < LEAST_GB {
            bail!(
                "{free} GB free in {}, {LEAST_GB} needed: `cargo clean` frees most, then run it again",
                place.display()
            );
        }
    }
    Ok(())
}

/// Returns the free gigabytes on a folder's disk.
fn free_gb(folder: &std::path::Path) -> Result<u64> {
    let out = command("df").args(["-Pk"]).arg(folder).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let free = text
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3));
    let kb: u64 = free
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("`df -Pk {}` said {text:?}", folder.display()))?;
    Ok(kb / 1_000_000)
}

fn summary(outcomes: &[Outcome], tally: &Tally, total: Duration) -> Result<()> {
    say("\n==> summary");
    for outcome in outcomes {
        let word = if outcome.ok { "ok" } else { "FAILED" };
        say(&format!(
            "{:<18} {word:<7} {:>7.1} s",
            outcome.name,
            outcome.took.as_secs_f64()
        ));
    }
    say(&format!("{:<18} {:<7} {:>7.1} s", "all", "", total.as_secs_f64()));
    say(&format!("{} passed, {} failed", tally.passed, tally.failed));
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|outcome| !outcome.ok)
        .map(|outcome| outcome.name)
        .collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// The platforms' modules: a macro declares them, so `cargo fmt` does not find them.
fn platform_modules() -> Result<Vec<PathBuf>> {
    let folder = run::root().join("crates/clawk-channels/src/platforms");
    let mut modules = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("can't read `{}`", folder.display()))? {
        let module = entry?.path().join("mod.rs");
        if module.is_file() {
            modules.push(module);
        }
    }
    Ok(modules)
}

fn plain(command: &mut Command) -> Result<bool> {
    run::must(command).map(|()| true)
}

fn tests(tally: &mut Tally) -> Result<bool> {
    // nextest shows hanging tests and runs each test in its own process. Without it, the standard runner is sufficient.
    let mut command = command("cargo");
    if run::has("cargo", &["nextest", "--version"]) {
        command.args([
            "nextest",
            "run",
            "--profile",
            "ci",
            "--workspace",
            "--features",
            FEATURES,
            "--locked",
            "--no-fail-fast",
        ]);
    } else {
        command.args([
            "test",
            "--workspace",
            "--features",
            FEATURES,
            "--lib",
            "--bins",
            "--tests",
            "--locked",
            "--no-fail-fast",
        ]);
    }
    counted(command.env(parts::VARIABLE, parts::dir()?), tally)
}

fn conformance(suite: &str, tally: &mut Tally) -> Result<bool> {
    counted(command(built("clawk")?).args(["conformance", suite]), tally)
}

/// Returns the path of a program that the `build` step made.
fn built(name: &str) -> Result<std::path::PathBuf> {
    Ok(run::target()?.join("debug").join(name))
}

fn counted(command: &mut Command, tally: &mut Tally) -> Result<bool> {
    let (mut passed, mut failed) = (0, 0);
    let ok = run::watched(command.env("CARGO_TERM_COLOR", "never"), |line| {
        if let Some((good, bad)) = counts(line) {
            passed += good;
            failed += bad;
        }
    })?;
    tally.passed += passed;
    tally.failed += failed;
    Ok(ok)
}

/// Parses a test runner's summary line and returns passed and failed tests. Known runners: the standard one (`test result: ok. 3
/// passed; 0 failed; …`), nextest (`Summary [ 1.2s] 5 tests run: 4 passed, 1 failed, 0 skipped`), and clawk's own (`clawk 0.1.0: 30
/// of 31 passed, 1 failed, …`). nextest repeats a failed test's output with an indent; such lines are not counted again.
fn counts(line: &str) -> Option<(u64, u64)> {
    let words = if let Some(rest) = line.strip_prefix("test result:") {
        rest.split_once('.').map_or(rest, |(_, counts)| counts)
    } else if line.trim_start().starts_with("Summary [") {
        line.split_once("run:")?.1
    } else if line.starts_with("clawk ") && line.contains(" of ") && line.contains(" passed, ") {
        line.split_once(": ").map_or(line, |(_, counts)| counts)
    } else {
        return None;
    };
    let before = |what: &str| {
        let part = words.split([',', ';']).find(|part| part.contains(what))?;
        part.split_whitespace().next()?.parse::<u64>().ok() // silent-ok: not a line of counts then
    };
    let failed = before(" failed").unwrap_or(0) + before(" timed out").unwrap_or(0);
    Some((before(" passed")?, failed))
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn reads_the_counts_of_each_runner_and_nothing_else() {
        let ordinary = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(counts(ordinary), Some((12, 3)));
        let nextest = "     Summary [   1.234s] 5 tests run: 4 passed (1 slow), 1 failed, 2 skipped";
        assert_eq!(counts(nextest), Some((4, 1)));
        assert_eq!(
            counts("     Summary [   1.234s] 5 tests run: 4 passed, 1 timed out, 0 skipped"),
            Some((4, 1))
        );
        assert_eq!(counts("clawk 0.1.0: 30 of 31 passed, 1 failed"), Some((30, 1)));
        let cra = "clawk 0.1.0: 213 of 213 passed, 0 failed, 0 skipped: CRA-Full";
        assert_eq!(counts(cra), Some((213, 0)));
        assert_eq!(counts(&format!("    {ordinary}")), None, "told again by nextest");
        assert_eq!(counts("running 3 tests"), None);
        assert_eq!(counts("test some::test ... ok"), None);
    }
}
