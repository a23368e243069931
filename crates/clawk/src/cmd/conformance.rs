//! `clawk conformance`: runs conformance tests.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clawk_conformance::{self as conformance, CkpTarget, cra};

use super::call::read_token;
use crate::out::{self, Format, TerminalStyle};

/// Flags of `clawk conformance`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clawk conformance ckp                                       clawk itself, every vector in its own set-up
  clawk conformance ckp --target 'node agent.js' --level 2    another agent
  clawk conformance ckp --target 'clawk serve examples/conformance/claw.yaml --stdio' --format json
  clawk conformance ckp --target ws://127.0.0.1:8420          an agent that is served, over its WebSocket
  clawk conformance cra                                       clawk itself, up to CRA-Full
  clawk conformance cra --target http://127.0.0.1:8420 --token-env CRA_TOKEN
  clawk conformance cra --target 'other-cra --port {port} --atlas {atlas}' --level cra-minimal
  clawk conformance cra --cases our-cases.json --golden specs/conformance/golden")]
pub(crate) struct Args {
    #[command(subcommand)]
    suite: ConformanceSuite,
}

#[derive(Debug, clap::Subcommand)]
enum ConformanceSuite {
    /// Run the test vectors of the Claw Kernel Protocol 0.2.0
    Ckp(CkpArgs),
    /// Run the tests of the CRA conformance document 1.0
    Cra(CraArgs),
}

/// Flags of `clawk conformance ckp`.
#[derive(Debug, clap::Args)]
struct CkpArgs {
    /// The agent's command, speaking on standard streams; it is started once for each vector. Or its URL: `http://`, `https://`,
    /// `ws://`, `wss://`, `unix:PATH`, `dir:PATH`, `nats://HOST#AGENT`, `redis://HOST#AGENT` [default: this clawk]
    #[arg(long, value_name = "CMD|URL")]
    target: Option<String>,

    /// The environment variable with the token for a URL
    #[arg(long, value_name = "NAME", requires = "target")]
    token_env: Option<String>,

    /// Run the tests of this level and of the levels below
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    level: u8,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Flags of `clawk conformance cra`.
#[derive(Debug, clap::Args)]
struct CraArgs {
    /// An API's URL; a command that starts one, with `{port}` and, if it can, `{atlas}` and `{state}`; or the command of an
    /// adapter on standard streams [default: this clawk]
    #[arg(long, value_name = "URL|CMD")]
    target: Option<String>,

    /// The environment variable with the token for a URL
    #[arg(long, value_name = "NAME", requires = "target")]
    token_env: Option<String>,

    /// Run the tests that this level requires
    #[arg(long, value_enum, default_value = "cra-full")]
    level: cra::Level,

    /// Play these cases instead of the built-in ones: a JSON file of cases as in the conformance document, or a folder of such
    /// files; several may be given
    #[arg(long, value_name = "PATH")]
    cases: Vec<PathBuf>,

    /// Play this golden folder (`atlas.json`, `request.json` or `requests/`, what is expected), or all in this folder, instead
    /// of the built-in ones; several may be given
    #[arg(long, value_name = "DIR")]
    golden: Vec<PathBuf>,

    /// Run only tests whose id begins with this text
    #[arg(long, value_name = "ID")]
    only: Vec<String>,

    /// How the result is printed; `json` is the document's report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs a test suite. Exit code 1 if a test fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.suite {
        ConformanceSuite::Ckp(args) => run_ckp(args),
        ConformanceSuite::Cra(args) => run_cra(args),
    }
}

fn run_cra(args: &CraArgs) -> Result<ExitCode> {
    let token = read_token(args.token_env.as_deref())?;
    let target = match &args.target {
        Some(given) => cra::CraTarget::parse(given, token)?,
        None => cra::CraTarget::for_clawk(std::env::current_exe().context("this program can't find itself")?),
    };
    let human = args.format == Format::Human;
    let paint = TerminalStyle::for_stdout();
    let report = cra::run(
        &target,
        args.level,
        (&args.cases, &args.golden, &args.only),
        |outcome| {
            if human {
                // silent-ok: a closed pipe shows when the summary is printed
                let _ = out::lines(&shown_cra(outcome, paint));
            }
        },
    )?;
    let run = &report.test_run;
    if human {
        let name = out::one_line(&format!("{} {}", report.implementation, report.version));
        let level = report.conformance_level.unwrap_or("no level");
        out::print_line(format!(
            "{name}: {} of {} passed, {} failed, {} skipped: {level}",
            run.passed, run.total, run.failed, run.skipped
        ))?;
    } else {
        out::print_json(&report)?;
    }
    Ok(if run.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn shown_cra(outcome: &cra::CraCaseResult, paint: TerminalStyle) -> String {
    let word = match outcome.status {
        cra::CraStatus::Passed => paint.green("pass"),
        cra::CraStatus::Failed => paint.red("FAIL"),
        cra::CraStatus::Skipped => paint.yellow("skip"),
    };
    let mut line = format!("{word} {} ({} ms)", outcome.test_id, outcome.duration_ms);
    if let Some(error) = &outcome.error {
        line.push_str(&format!("\n     {}", out::clip_line(error, 600)));
    }
    out::sanitize_block(&line).into()
}

/// Runs the CKP vectors. Exit code 1 if one fails.
fn run_ckp(args: &CkpArgs) -> Result<ExitCode> {
    let target = match &args.target {
        Some(url) if clawk_client::AgentAddress::is_url(url) => CkpTarget::Remote {
            target: clawk_client::AgentAddress::parse(url)?,
            token: read_token(args.token_env.as_deref())?,
        },
        Some(command) => CkpTarget::Command(command.clone()),
        None => CkpTarget::Own {
            program: std::env::current_exe().context("this program can't find itself")?,
        },
    };
    let human = args.format == Format::Human;
    let paint = TerminalStyle::for_stdout();
    let report = conformance::run(&target, args.level, |outcome| {
        if human {
            // silent-ok: a closed pipe shows when the summary is printed
            let _ = out::lines(&format_result(outcome, paint));
        }
    })?;
    if human {
        let version = report.version.as_deref().unwrap_or_default();
        let name = out::one_line(&format!("{} {version}", report.implementation));
        out::print_line(format!(
            "{}: {} of {} passed, {} failed",
            name.trim(),
            report.passed,
            report.total,
            report.failed
        ))?;
    } else {
        out::print_json(&report)?;
    }
    Ok(if report.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn format_result(outcome: &conformance::VectorResult, paint: TerminalStyle) -> String {
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
    out::sanitize_block(&lines.join("\n")).into()
}
