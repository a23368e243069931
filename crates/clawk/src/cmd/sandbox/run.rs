//! `clawk sandbox run`: runs one command in its box, prints its output as it arrives, and the mechanisms in force.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_egress::ConnectionReport;
use clawk_plan::Request;
use clawk_sandbox::launch::OutputTee;
use clawk_sandbox::{LaunchError, LaunchInput, LaunchOutcome, LimitHit};
use clawk_secrets::env;
use serde_json::json;

use super::BoxArgs;
use super::asked::{BoxRequest, SandboxPurpose};
use super::shown::ForwardedOutput;
use super::waiting::waiting_for;
use super::way::SandboxEgress;
use crate::compose;
use crate::out::{self, TerminalStyle};

/// Largest standard input that is passed on, in bytes.
const MAX_STDIN_BYTES: u64 = 64 << 20;
/// Exit code: the time limit expired.
const TIME: u8 = 124;
/// Exit code: nothing was run.
const REFUSED: u8 = 125;
/// Exit code: interrupted.
const INTERRUPTED: u8 = 130;

/// Flags of `clawk sandbox run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// The same as --file
    #[arg(value_name = "MANIFEST", conflicts_with = "file", value_parser = crate::manifest::manifest_path_parser())]
    manifest: Option<PathBuf>,

    #[command(flatten)]
    within: BoxArgs,

    /// A line for `/bin/sh`; the Sandbox's shell rules judge it first, as for the `shell` tool
    #[arg(short = 'c', long, value_name = "LINE", conflicts_with = "cmd")]
    line: Option<String>,

    /// Pass standard input to the command; without this flag it is empty
    #[arg(short = 'i', long)]
    stdin: bool,

    /// Set an environment variable: `NAME=VALUE`, or `NAME` to pass this shell's value
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Use a prepared box, as later calls of a tool do
    #[arg(long)]
    warm: bool,

    /// Print no summary at the end
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,

    /// Print the summary as one line of JSON
    #[arg(long)]
    json: bool,

    /// The command
    #[arg(last = true, value_name = "CMD", required_unless_present = "line")]
    cmd: Vec<String>,
}

/// Runs the command.
pub(super) fn run(args: &RunArgs, config: Option<&Path>) -> Result<ExitCode> {
    let asked = args
        .within
        .clone()
        .with_manifest(args.manifest.clone())
        .resolve_request(config, SandboxPurpose::Run)?;
    if let Some(command) = &args.line
        && let Err(refusal) = asked.plan.preflight(&Request::Shell { command })
    {
        return Ok(report_refusal(&LaunchError::Refused(refusal), args.json));
    }
    let mut spec = match (&args.line, args.cmd.split_first()) {
        (Some(line), _) => asked.spec("/bin/sh", vec!["-c".to_owned(), line.clone()]),
        (None, Some((program, rest))) => asked.spec(program, rest.to_vec()),
        (None, None) => bail!("a command, after `--`"),
    };
    for given in &args.env {
        let (name, value) = parse_variable(given)?;
        spec.env.retain(|(known, _)| *known != name);
        spec.env.push((name, value));
    }
    if args.stdin {
        let mut bytes = Vec::new();
        let read = io::stdin()
            .lock()
            .take(MAX_STDIN_BYTES + 1)
            .read_to_end(&mut bytes);
        read.context("standard input")?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_STDIN_BYTES) {
            bail!("standard input is larger than {MAX_STDIN_BYTES} bytes");
        }
        spec.stdin = LaunchInput::Bytes(bytes);
    }
    let shown = Arc::new(ForwardedOutput::new());
    let seen = Arc::clone(&shown);
    spec.tee = Some(OutputTee::new(move |stream, bytes| {
        seen.forward_bytes(stream, bytes)
    }));
    let (ended, reached) = compose::build_runtime()?.block_on(async {
        let way = SandboxEgress::open(&asked, &mut spec)?;
        let launcher = match args.warm {
            true => waiting_for(&spec, &asked.launcher).await?,
            false => asked.launcher.clone(),
        };
        let ended = tokio::select! {
            ended = launcher.launch(&spec) => Some(ended),
            _ = tokio::signal::ctrl_c() => None,
        };
        let waited = launcher.served_warm() > 0;
        if args.warm && matches!(ended, Some(Ok(_))) && !waited {
            bail!("the box that waited could not be used: the host changed, or it ended");
        }
        anyhow::Ok((ended, way.into_report().await))
    })?;
    let outcome = match ended {
        None => return Ok(ExitCode::from(INTERRUPTED)),
        Some(Err(error)) => return Ok(report_refusal(&error, args.json)),
        Some(Ok(outcome)) => outcome,
    };
    shown.forward_rest(&outcome)?;
    if args.json {
        out::print_note(summary_json(&outcome, &reached).to_string());
    } else if !args.quiet {
        print_outcome(&asked, &outcome, &reached);
    }
    Ok(ExitCode::from(exit_code(&outcome)))
}

fn parse_variable(given: &str) -> Result<(String, String)> {
    let (name, value) = match given.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (
            given,
            env::get(given).with_context(|| {
                format!("the environment has no variable `{given}`; write `{given}=VALUE`")
            })?,
        ),
    };
    if name.is_empty() {
        bail!("`{given}` names no variable");
    }
    Ok((name.to_owned(), value))
}

fn report_refusal(error: &LaunchError, json: bool) -> ExitCode {
    if json {
        let data = match error {
            LaunchError::Refused(refusal) => refusal.error_data(),
            LaunchError::Lost { .. } => json!({"reason": "lost"}),
        };
        out::print_note(json!({"error": error.to_string(), "data": data}).to_string());
    } else {
        let paint = TerminalStyle::for_stderr();
        out::notes(&format!(
            "{} {}",
            paint.red("refused:"),
            out::sanitize_block(&error.to_string())
        ));
    }
    ExitCode::from(REFUSED)
}

fn exit_code(outcome: &LaunchOutcome) -> u8 {
    if matches!(outcome.limit, Some(LimitHit::Time(_))) {
        return TIME;
    }
    let code = match (outcome.exit_code, outcome.signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => i32::from(REFUSED),
    };
    u8::try_from(code & 0xff).unwrap_or(REFUSED)
}

/// Describes in a few words how the command ended.
fn format_end(outcome: &LaunchOutcome) -> String {
    match (outcome.exit_code, outcome.signal, &outcome.limit) {
        (_, _, Some(limit)) => limit.to_string(),
        (Some(code), _, None) => format!("exit code {code}"),
        (None, Some(31), None) => "ended by the system call filter (SIGSYS)".to_owned(),
        (None, signal, None) => format!("ended by signal {}", signal.unwrap_or_default()),
    }
}

fn print_outcome(asked: &BoxRequest, outcome: &LaunchOutcome, reached: &ConnectionReport) {
    let paint = TerminalStyle::for_stderr();
    let obtained = &outcome.obtained;
    let asked_for = if asked.plan.level() == obtained.level {
        String::new()
    } else {
        format!(" (asked for: {})", asked.plan.level())
    };
    let held = match obtained.mechanisms.as_slice() {
        [] => "nothing".to_owned(),
        held => held.join(", "),
    };
    out::print_note(paint.dim(&format!(
        "[sandbox] level {}{asked_for}, held by {held}",
        obtained.label()
    )));
    if !obtained.missing.is_empty() {
        out::print_note(paint.yellow(&format!("[sandbox] not held: {}", obtained.missing.join(", "))));
    }
    let swept = match outcome.swept {
        0 => String::new(),
        1 => "; a process that it left behind was killed".to_owned(),
        n => format!("; {n} processes that it left behind were killed"),
    };
    let line = format!(
        "[sandbox] {} after {} ms{swept}",
        format_end(outcome),
        outcome.duration_ms
    );
    out::print_note(&match outcome.limit {
        Some(_) => paint.yellow(&line),
        None => paint.dim(&line),
    });
    for one in &reached.connections {
        let place = out::one_line(&format!("{}:{}", one.host, one.port));
        let line = match &one.refused {
            Some(denial) => paint.yellow(&format!(
                "[sandbox] refused {place}: {} ({})",
                out::one_line(&denial.reason),
                denial.code
            )),
            None => paint.dim(&format!(
                "[sandbox] reached {place} by `{}`, {} bytes out, {} in",
                one.rule.as_deref().unwrap_or_default(),
                one.bytes_out,
                one.bytes_in
            )),
        };
        out::print_note(&line);
    }
    let more = reached.more.connected.saturating_add(reached.more.refused);
    if more > 0 {
        out::print_note(paint.dim(&format!("[sandbox] and {more} more connections")));
    }
}

fn summary_json(outcome: &LaunchOutcome, reached: &ConnectionReport) -> serde_json::Value {
    let one = |one: &clawk_egress::ConnectionRecord| {
        json!({
            "host": one.host,
            "port": one.port,
            "rule": one.rule,
            "bytes_out": one.bytes_out,
            "bytes_in": one.bytes_in,
            "refused": one.refused.as_ref().map(|denial| json!({"code": denial.code, "reason": denial.reason})),
        })
    };
    json!({
        "level": outcome.obtained.level,
        "mechanisms": outcome.obtained.mechanisms,
        "missing": outcome.obtained.missing,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "limit": outcome.limit.map(|limit| limit.to_string()),
        "truncated": outcome.truncated,
        "duration_ms": outcome.duration_ms,
        "swept": outcome.swept,
        "connections": reached.connections.iter().map(one).collect::<Vec<_>>(),
    })
}
