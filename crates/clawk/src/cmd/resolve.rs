//! `clawk resolve`: makes one CARP resolution, prints it, and writes its trace.

mod trace;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_carp::message::{self, RequestShape};
use clawk_carp::resolve::ResolutionIds;
use clawk_carp::{AtlasSet, ExplainedResolution, Options, RateLedger, resolve_request};
use clawk_kernel::time::{Clock, SystemClock};
use clawk_proto::carp::{CarpOperation, CarpResolution, DecisionType, Request};
use jiff::Timestamp;
use serde_json::Value;

use super::atlas;
use crate::out::{self, Format, TerminalStyle, clip_line, one_line};
use crate::refusal::DetailedRefusal;

/// Largest request, in bytes.
const REQUEST_BYTES: u64 = 4 * 1024 * 1024;

/// Flags of `clawk resolve`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folders with an `atlas.json`, or such files; all of them apply
    #[arg(long = "atlas", value_name = "PATH", required = true, num_args = 1..)]
    atlases: Vec<PathBuf>,

    /// A CARP request to resolve; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    request: PathBuf,

    /// Resolve for this time, for example `2026-01-05T12:00:00Z` [default: now]
    #[arg(long, value_name = "RFC3339", value_parser = parse_time)]
    now: Option<Timestamp>,

    /// Deny actions that no policy mentions, even if no Atlas has an `allow`
    #[arg(long)]
    strict: bool,

    /// Write the events of the resolution to this `.trace.jsonl`
    #[arg(long, value_name = "OUT")]
    trace: Option<PathBuf>,

    /// Output format; `json` prints the resolution of the protocol
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk resolve --atlas examples/atlas --request examples/atlas/request.json
  clawk resolve --atlas one/ two/ --request - --format json < request.json
  clawk resolve --atlas examples/atlas --request examples/atlas/request.json --trace out.trace.jsonl
  clawk trace verify out.trace.jsonl

Rate limits and budgets count as unspent. The exit code is 0 whatever the decision; 1 when there is none.";

fn parse_time(text: &str) -> Result<Timestamp, String> {
    let wanted = "expected RFC 3339 with a zone, such as `2026-01-05T12:00:00Z`";
    text.parse().map_err(|cause| format!("{wanted}: {cause}"))
}

/// Makes the resolution and prints it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let clock = SystemClock::default();
    let started = clock.monotonic_us();
    let mut atlases = Vec::new();
    for path in &args.atlases {
        atlases.push(Arc::new(atlas::load_valid_atlas(path)?));
    }
    let options = Options {
        strict: args.strict,
        ..Options::default()
    };
    let set = AtlasSet::compile(atlases, options).context("these Atlases cannot be loaded together")?;
    let request = read_request(&args.request)?;
    let now = match args.now {
        Some(now) => now,
        None => Timestamp::from_microsecond(clock.now().0)?,
    };
    let ids = ResolutionIds {
        resolution: clock.new_uuid(),
        approval: clock.new_uuid(),
        trace: clock.new_uuid(),
    };
    let resolved = resolve_request(&set, &request, now, ids, &RateLedger::new())?;
    if let Some(path) = &args.trace {
        let took_us = clock.monotonic_us().saturating_sub(started);
        trace::write(path, &request, &resolved, now, took_us, &clock)
            .with_context(|| format!("can't write the trace `{}`", path.display()))?;
    }
    match args.format {
        Format::Json => out::print_json(&resolved.resolution)?,
        Format::Human => print_human(&request, &resolved)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a request from a file.
fn read_request(path: &Path) -> Result<Request> {
    let name = one_line(&path.display().to_string());
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(REQUEST_BYTES + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(REQUEST_BYTES + 1).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("can't read the request `{name}`"))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > REQUEST_BYTES) {
        bail!("the request `{name}` is larger than {REQUEST_BYTES} bytes");
    }
    let request = message::parse(&bytes, RequestShape::Schema).map_err(|faults| {
        let paint = TerminalStyle::for_stderr();
        for fault in &faults.errors {
            out::print_note(atlas::format_finding(&paint.red("error"), fault));
        }
        DetailedRefusal::new(format!("`{name}` is not a CARP request"), &faults.errors)
    })?;
    if request.operation != CarpOperation::Resolve {
        let operation = request.operation.name();
        bail!("`{name}` asks to `{operation}`, at /operation; only `resolve` is answered here");
    }
    Ok(request)
}

fn print_human(request: &Request, resolved: &ExplainedResolution) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let resolution = &resolved.resolution;
    let goal = request.task.as_ref().map_or("", |task| task.goal.as_str());
    let agent = clip_line(&request.requester.agent_id, 60);
    out::print_line(paint.dim(&format!("{agent} asks for: {}", clip_line(goal, 120))))?;
    out::print_line(format_decision(resolution, paint))?;
    if !resolution.allowed_actions.is_empty() {
        out::print_line("")?;
        out::print_line(paint.bold("Allowed:"))?;
    }
    for action in &resolution.allowed_actions {
        let asks = if action.requires_confirmation {
            ", asks each time"
        } else {
            ""
        };
        let name = clip_line(&action.name, 80);
        let tier = atlas::format_tier(paint, action.risk_tier);
        out::print_line(format!("{tier}  {}  {name}{asks}", action.action_id))?;
    }
    if !resolution.denied_actions.is_empty() {
        out::print_line("")?;
        out::print_line(paint.bold("Not allowed:"))?;
    }
    for action in &resolution.denied_actions {
        let by = match &action.policy_id {
            Some(policy) => format!("policy `{policy}`"),
            None => "no policy allows it".to_owned(),
        };
        out::print_line(clip_line(
            &format!("  {}  {} ({by})", action.action_id, action.reason),
            200,
        ))?;
    }
    if !resolution.context_blocks.is_empty() {
        out::print_line("")?;
        out::print_line(paint.bold("Context:"))?;
    }
    for block in &resolution.context_blocks {
        let (tokens, priority) = (block.token_estimate, block.priority);
        let text = format!(
            "  {}  about {tokens} tokens, priority {priority}, from {}",
            block.block_id, block.source
        );
        out::print_line(clip_line(&text, 200))?;
    }
    if !resolution.constraints.is_empty() {
        out::print_line("")?;
        out::print_line(paint.bold("Execution is held to:"))?;
    }
    for constraint in &resolution.constraints {
        let parameters = Value::Object(constraint.parameters.clone());
        let text = format!("  {}  {parameters}", constraint.constraint_id);
        out::print_line(clip_line(&text, 200))?;
    }
    let life = format!(
        "\nvalid for {} s from {}",
        resolution.ttl_seconds, resolution.timestamp
    );
    Ok(out::print_line(paint.dim(&life))?)
}

fn format_decision(resolution: &CarpResolution, paint: TerminalStyle) -> String {
    let decision = &resolution.decision;
    let word = decision.kind.name();
    let mut text = match decision.kind {
        DecisionType::Allow => paint.green(word),
        DecisionType::Deny => paint.red(word),
        DecisionType::Partial | DecisionType::RequiresApproval => paint.yellow(word),
    };
    if let Some(reason) = &decision.reason {
        text = format!("{text}: {}", clip_line(reason, 200));
    }
    if let (Some(id), Some(until)) = (&decision.approval_id, &decision.expires_at) {
        text = format!("{text} (approval {id}, until {until})");
    }
    text
}
