//! `clawk doctor`: checks what this host can enforce and what is misconfigured, and suggests fixes.

mod checks;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, Format, TerminalStyle};
use crate::{build, compose, manifest};

/// Flags of `clawk doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Also check this manifest: its providers, secrets, tools and state
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: Option<PathBuf>,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    outside: AllowOutsideArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk doctor                              this host
  clawk doctor claw.yaml                    and whether this agent can run on it
  clawk doctor claw.yaml --format json      for scripts; exit code 1 when a check failed

What each check means: docs/reference/doctor.md";

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum DoctorStatus {
    /// No problem.
    Ok,
    /// It works, but perhaps not as expected.
    Warn,
    /// It does not work.
    Fail,
}

/// One check and its result.
#[derive(Debug, Serialize)]
struct DoctorCheck {
    /// Stable name. `docs/reference/doctor.md` has a section for each.
    id: &'static str,
    status: DoctorStatus,
    /// What was found.
    result: String,
    /// Suggested fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl DoctorCheck {
    fn ok(id: &'static str, result: impl Into<String>) -> Self {
        Self {
            id,
            status: DoctorStatus::Ok,
            result: result.into(),
            cure: None,
        }
    }

    fn warn(id: &'static str, result: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            id,
            status: DoctorStatus::Warn,
            result: result.into(),
            cure: Some(cure.into()),
        }
    }

    fn fail(id: &'static str, result: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            id,
            status: DoctorStatus::Fail,
            result: result.into(),
            cure: Some(cure.into()),
        }
    }
}

/// Runs and prints all checks. Exit code 1 if one fails.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let checks = compose::build_runtime()?.block_on(checks::run_checks(
        args.manifest.as_deref(),
        config,
        args.state.as_deref(),
        args.outside,
    ));
    let failed = checks.iter().any(|check| check.status == DoctorStatus::Fail);
    match args.format {
        Format::Json => out::print_json(&serde_json::json!({ "ok": !failed, "checks": checks }))?,
        Format::Human => print_checks(&checks)?,
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Reports which optional parts this build has, and fails if the agent needs another one.
fn check_build(path: &Path, config: &Config) -> DoctorCheck {
    let options = manifest::load_options(config);
    let loaded = clawk_manifest::load_manifest(path, &options);
    let manifest = loaded.manifest.as_ref();
    let absent = manifest.map(|manifest| build::missing_from_build(manifest, &config.settings));
    match absent.unwrap_or_default().first() {
        None => DoctorCheck::ok("build", build::build_line()),
        Some(first) => {
            let cure = first.help.clone().unwrap_or_default();
            DoctorCheck::fail("build", first.message.clone(), cure)
        }
    }
}

fn print_checks(checks: &[DoctorCheck]) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    for check in checks {
        let mark = match check.status {
            DoctorStatus::Ok => paint.green("ok  "),
            DoctorStatus::Warn => paint.yellow("warn"),
            DoctorStatus::Fail => paint.red("FAIL"),
        };
        out::print_line(format!(
            "{mark}  {:<18} {}",
            check.id,
            out::one_line(&check.result)
        ))?;
        if let Some(cure) = &check.cure {
            out::print_line(format!(
                "      {:<18} {}",
                "",
                paint.dim(&format!("→ {}", out::one_line(cure)))
            ))?;
        }
    }
    Ok(())
}
