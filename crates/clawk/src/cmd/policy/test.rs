//! `clawk policy test`: runs the test files of policies.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::companion::{self, PolicyTestReport};
use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, Format, TerminalStyle};

/// Runs every test file. Exit code 1 if a case fails.
pub(super) fn run(
    files: &[PathBuf],
    config: Option<&Path>,
    outside: AllowOutsideArgs,
    format: Format,
) -> Result<ExitCode> {
    let mut reports = Vec::new();
    for file in files {
        let config = Config::load(config, Some(file))?.with_outside_access(outside);
        let found = companion::of_argument(file, &config)?;
        if found.is_empty() {
            bail!(
                "`{}` has no tests: they lie beside a policy file NAME.yaml as NAME.tests.yaml (docs/how-to/policies.md)",
                file.display()
            );
        }
        reports.extend(found);
    }
    let good = reports.iter().all(|report| report.failures.is_empty());
    match format {
        Format::Json => out::print_json(&document(&reports, good))?,
        Format::Human => reports.iter().try_for_each(people)?,
    }
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn document(reports: &[PolicyTestReport], good: bool) -> Value {
    let files: Vec<Value> = reports
        .iter()
        .map(|report| {
            let failures: Vec<Value> = report
                .failures
                .iter()
                .map(|failure| {
                    json!({
                        "case": failure.case, "tool": failure.tool,
                        "expected": failure.expected, "got": failure.got, "why": failure.why,
                    })
                })
                .collect();
            json!({"policy": report.policy, "tests": report.tests, "cases": report.cases, "failures": failures})
        })
        .collect();
    json!({"ok": good, "files": files})
}

fn people(report: &PolicyTestReport) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let name = out::one_line(&report.tests.display().to_string());
    let (cases, failed) = (report.cases, report.failures.len());
    let verdict = if failed == 0 {
        paint.green("ok")
    } else {
        paint.red("FAILED")
    };
    out::print_line(format!(
        "{verdict}  {name}: {} of {cases} cases hold",
        cases - failed
    ))?;
    for failure in &report.failures {
        out::print_line("")?;
        out::print_line(paint.bold(&out::one_line(&failure.case)))?;
        out::print_line(format!("  expected  {}", out::one_line(&failure.expected)))?;
        out::print_line(format!("  got       {}", out::one_line(&failure.got)))?;
        for why in &failure.why {
            out::print_line(paint.dim(&format!("    {}", out::one_line(why))))?;
        }
    }
    Ok(())
}
