//! `cargo xtask footprint`: compares the release program's size and number of dependencies with committed numbers. CI checks only
//! the dependencies, because a release build takes 7 more minutes and tests nothing new.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::dist;
use crate::run::{command, output, root, say};

/// The committed numbers. A commit that raises a number explains it in the row's `why`.
const TABLE: &str = "xtask/footprint.toml";

/// Allowed growth of a number before the check fails, in percent.
const SLACK_PERCENT: u64 = 5;

/// Builds the release program and compares both numbers.
///
/// # Errors
/// The build failed, the table is wrong, or a number grew by more than 5 %.
pub(crate) fn run() -> Result<()> {
    let program = program()?;
    names_what_it_lacks(&program)?;
    compare(&[("release_bytes", fs::metadata(program)?.len())])?;
    dependencies()
}

/// Compares the number of dependencies.
///
/// # Errors
/// `cargo tree` failed, the table is wrong, or the number grew by more than 5 %.
pub(crate) fn dependencies() -> Result<()> {
    compare(&[
        ("dependencies", count_dependencies("")?),
        ("dist_dependencies", count_dependencies("wasm")?),
    ])
}

/// Checks that the release program has the default features and knows what it lacks.
fn names_what_it_lacks(program: &Path) -> Result<()> {
    let told = command(program).args(["--version", "-v"]).output()?;
    let said = String::from_utf8_lossy(&told.stdout);
    if !told.status.success() || !said.trim_end().ends_with("without wasm") {
        bail!("the default build is not what it should be: {said}");
    }
    Ok(())
}

fn compare(measured: &[(&str, u64)]) -> Result<()> {
    let mut faults = Vec::new();
    for &(row, measured) in measured {
        let committed = committed(&root(), row)?;
        say(&judged(row, committed, measured));
        if grown(committed, measured) {
            faults.push(row);
        }
    }
    if !faults.is_empty() {
        bail!(
            "{} grew by more than {SLACK_PERCENT} %: make it smaller, or raise the number in {TABLE} and say why there",
            faults.join(", ")
        );
    }
    Ok(())
}

/// Returns the path of the release program with the default features. Builds it if needed.
///
/// # Errors
/// The build failed.
fn program() -> Result<PathBuf> {
    dist::executables(&["--release", "--package", "clawk"])?
        .into_iter()
        .find(|path| path.file_stem().is_some_and(|stem| stem == "clawk"))
        .context("cargo built no `clawk`")
}

/// Counts the packages in the program, without clawk's own crates.
fn count_dependencies(features: &str) -> Result<u64> {
    let mut cargo = command("cargo");
    cargo.args(["tree", "--locked", "--package", "clawk", "--edges", "normal"]);
    cargo.args(["--prefix", "none", "--format", "{p}", "--features", features]);
    let told = output(&mut cargo)?;
    let packages: BTreeSet<&str> = told
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty() && !line.starts_with("clawk"))
        .collect();
    Ok(u64::try_from(packages.len())?)
}

fn committed(root: &Path, row: &str) -> Result<u64> {
    let text = fs::read_to_string(root.join(TABLE)).with_context(|| format!("can't read {TABLE}"))?;
    let table: toml::Table = toml::from_str(&text).with_context(|| format!("{TABLE} is not valid"))?;
    let row_table = table
        .get(row)
        .with_context(|| format!("{TABLE}: no row `{row}`"))?;
    let why = row_table
        .get("why")
        .and_then(toml::Value::as_str)
        .unwrap_or_default();
    if why.is_empty() {
        bail!("{TABLE}: `{row}` has no `why`: say what the number is made of, or why it was raised");
    }
    let most = row_table.get("is").and_then(toml::Value::as_integer);
    let most = most.with_context(|| format!("{TABLE}: `{row}` has no number `is`"))?;
    u64::try_from(most).with_context(|| format!("{TABLE}: `{row}` is negative"))
}

fn grown(committed: u64, measured: u64) -> bool {
    u128::from(measured) * 100 > u128::from(committed) * u128::from(100 + SLACK_PERCENT)
}

fn judged(row: &str, committed: u64, measured: u64) -> String {
    let word = if grown(committed, measured) { "GREW" } else { "ok" };
    format!("{row:<20} {measured:>12}   committed {committed:>12}   {word}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{committed, grown};

    #[test]
    fn five_percent_more_passes_and_a_byte_above_fails() {
        assert!(!grown(1_000, 1_050));
        assert!(grown(1_000, 1_051));
        assert!(!grown(1_000, 10), "smaller is fine");
    }

    #[test]
    fn a_number_without_a_reason_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("xtask")).unwrap();
        let table = root.path().join("xtask/footprint.toml");
        fs::write(
            &table,
            "[a]\nis = 5\nwhy = \"five parts\"\n[b]\nis = 5\nwhy = \"\"\n",
        )
        .unwrap();
        assert_eq!(committed(root.path(), "a").unwrap(), 5);
        assert!(committed(root.path(), "b").is_err());
        assert!(committed(root.path(), "c").is_err());
    }
}
