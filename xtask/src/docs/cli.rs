//! `docs/reference/cli.md`: the `--help` text of every command, unchanged, from the built program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::dist;
use crate::run::command;

const PAGE: &str = "docs/reference/cli.md";

const HEAD: &str = "\
# Command line

`cargo xtask docs` writes this page from the program's own `--help`. Do not edit it.

Every verb takes `--help`. Exit codes: 0 success; 1 the checked thing is bad, or the work failed; 2 wrong usage; 130 interrupted; 143 terminated.
";

/// Returns the page's path and text. Builds the program with the shipped features.
pub(super) fn page() -> Result<(&'static str, String)> {
    let program = program()?;
    let mut text = HEAD.to_owned();
    verb(&program, &mut Vec::new(), &mut text)?;
    Ok((PAGE, text))
}

/// Builds the program with the default features and returns its path.
pub(super) fn program() -> Result<PathBuf> {
    dist::executables(&["--package", "clawk"])?
        .into_iter()
        .find(|path| path.file_stem().is_some_and(|stem| stem == "clawk"))
        .context("cargo built no `clawk`")
}

/// Writes the help of a command and of all its subcommands.
fn verb(program: &Path, words: &mut Vec<String>, out: &mut String) -> Result<()> {
    // Without a terminal on any stream, the width is the same for every user.
    let told = command(program).args(&*words).arg("--help").output();
    let told = told.with_context(|| format!("can't run `{}`", program.display()))?;
    let help = String::from_utf8(told.stdout).context("a help text is not UTF-8")?;
    let level = "#".repeat((words.len() + 2).min(4));
    let name = std::iter::once("clawk".to_owned())
        .chain(words.iter().cloned())
        .collect::<Vec<_>>()
        .join(" ");
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(
        out,
        "\n{level} {name}\n\n```text\n{}\n```\n",
        help.join("\n").trim_end()
    )?;
    for below in verbs(&help) {
        words.push(below.to_owned());
        verb(program, words, out)?;
        words.pop();
    }
    Ok(())
}

/// Returns the commands listed under `Commands:`.
fn verbs<'a>(help: &[&'a str]) -> Vec<&'a str> {
    help.iter()
        .skip_while(|line| **line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}
