//! `clawk conformance`.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::conformance::{self, Target};
use crate::out::{self, Format, Paint};

/// Flags of `clawk conformance`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clawk conformance ckp                                       clawk itself, every vector in its own set-up
  clawk conformance ckp --target 'node agent.js' --level 2    another agent
  clawk conformance ckp --target 'clawk serve examples/conformance/claw.yaml --stdio' --format json")]
pub(crate) struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, clap::Subcommand)]
enum Suite {
    /// The vectors of the Claw Kernel Protocol 0.2.0
    Ckp(CkpArgs),
}

/// Flags of `clawk conformance ckp`.
#[derive(Debug, clap::Args)]
struct CkpArgs {
    /// The agent's command, speaking on standard streams; it is started once for each vector [default: this clawk]
    #[arg(long, value_name = "CMD")]
    target: Option<String>,

    /// Play the vectors of this level and those below
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    level: u8,

    /// How the result is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Plays the vectors; exit code 1 if any fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Suite::Ckp(args) = &args.suite;
    let target = match &args.target {
        Some(command) => Target::Command(command.clone()),
        None => Target::Own {
            program: std::env::current_exe().context("this program can't find itself")?,
        },
    };
    let human = args.format == Format::Human;
    let paint = Paint::stdout();
    let report = conformance::run(&target, args.level, |outcome| {
        if human {
            // silent-ok: a closed pipe shows when the summary is printed
            let _ = out::line(&shown(outcome, paint));
        }
    })?;
    if human {
        let version = report.version.as_deref().unwrap_or_default();
        let name = out::harmless(&format!("{} {version}", report.implementation));
        out::line(&format!(
            "{}: {} of {} passed, {} failed",
            name.trim(),
            report.passed,
            report.total,
            report.failed
        ))?;
    } else {
        out::json(&report)?;
    }
    Ok(if report.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn shown(outcome: &conformance::Outcome, paint: Paint) -> String {
    let head = format!("{} {} ({} ms)", outcome.id, outcome.title, outcome.duration_ms);
    let Some(failure) = &outcome.failure else {
        return format!("{} {head}", paint.green("pass"));
    };
    let mut lines = vec![
        format!("{} {head}", paint.red("FAIL")),
        format!("     expected: {}", failure.expected),
        format!("     got:      {}", failure.got),
        format!("     see:      {}", outcome.clause),
    ];
    lines.extend(failure.conversation.iter().map(|line| format!("       {line}")));
    out::harmless(&lines.join("\n"))
}
