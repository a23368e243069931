//! `clawk policy`: shows what a rule set decides and why, runs its tests, and replays past calls with other rules.

mod explain;
mod facts;
mod test;
pub(super) mod what_if;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use clawk_manifest::model::AutonomyLevel;
use clawk_policy::Verdict;
use serde_json::{Value, json};

use crate::config::AllowOutsideArgs;
use crate::out::{Format, TerminalStyle};
use crate::state;

/// Flags of `clawk policy`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: PolicyCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk policy explain claw.yaml --tool shell --args '{\"command\": \"ls\"}'   which rule decides, and what would change that
  clawk policy test policies/standard.yaml                                the cases in policies/standard.tests.yaml
  clawk policy what-if --policy new.yaml --agent hello                    past calls under new rules

All of it: docs/how-to/policies.md";

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Show which layer and rule decide a call, why earlier rules do not apply, and what would change the verdict
    Explain {
        /// The manifest
        #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        manifest: PathBuf,
        /// The tool of the call
        #[arg(long, value_name = "NAME")]
        tool: String,
        /// The call's arguments, a JSON object
        #[arg(long, value_name = "JSON", default_value = "{}")]
        args: String,
        /// `context.policy` of the call: one more policy that the call must pass
        #[arg(long, value_name = "NAME")]
        policy: Option<String>,
        /// Tokens used today, for rules with a rate limit
        #[arg(long, value_name = "N", default_value_t = 0)]
        tokens_today: u64,
        /// Where untrusted text in the conversation came from, for rules with `taint`: `web`, `peer`, `file`, `tool`, or one
        /// with its place, such as `web https://example.com`; may be said several times
        #[arg(long, value_name = "ORIGIN")]
        taint: Vec<String>,
        /// What the person said in the conversation: values of the call that stand there are the person's own, for rules with `from`
        #[arg(long, value_name = "TEXT")]
        said: Option<String>,
        /// What a tool gave before, for rules with `from` and `confidential`: `TOOL=TEXT`, or a JSON object with `tool`, `arguments`
        /// and `text`; may be said several times
        #[arg(long = "result", value_name = "RESULT")]
        results: Vec<String>,
        #[command(flatten)]
        outside: AllowOutsideArgs,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Run the test cases beside policy files; exit code 1 when one fails
    Test {
        /// Policies, their `NAME.tests.yaml`, or a manifest (all policy files that it names)
        #[arg(value_name = "FILE", required = true, value_parser = crate::manifest::manifest_path_parser())]
        files: Vec<PathBuf>,
        #[command(flatten)]
        outside: AllowOutsideArgs,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Decide recorded calls again by other rules, and list the calls whose verdict changes
    WhatIf {
        /// The new policy files, in their order
        #[arg(long = "policy", value_name = "FILE", required = true)]
        policies: Vec<PathBuf>,
        /// The manifest with the tools' labels and annotations, the working directory and the autonomy
        #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        manifest: Option<PathBuf>,
        /// An exported trace; with --state or --agent, clawk takes the calls' arguments from there
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
        /// Only this session: its id, or `last`
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Decide with this autonomy [default: the manifest's, else the recorded one]
        #[arg(long, value_parser = parse_level)]
        autonomy: Option<AutonomyLevel>,
        #[command(flatten)]
        which: state::StateSelector,
        #[command(flatten)]
        outside: AllowOutsideArgs,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// Runs the command.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.verb {
        PolicyCommand::Explain {
            manifest,
            tool,
            args,
            policy,
            tokens_today,
            taint,
            said,
            results,
            outside,
            format,
        } => {
            let call = explain::ExplainQuery {
                tool,
                arguments: args,
                policy: policy.as_deref(),
                tokens_today: *tokens_today,
                taint,
                said: said.as_deref(),
                results,
                outside: *outside,
            };
            explain::run(manifest, config, &call, *format)
        }
        PolicyCommand::Test {
            files,
            outside,
            format,
        } => test::run(files, config, *outside, *format),
        PolicyCommand::WhatIf {
            policies,
            manifest,
            trace,
            session,
            autonomy,
            which,
            outside,
            format,
        } => {
            let asked = what_if::WhatIfQuery {
                policies,
                manifest: manifest.as_deref(),
                trace: trace.as_deref(),
                session: session.as_deref(),
                autonomy: *autonomy,
                which,
                outside: *outside,
            };
            what_if::run(&asked, config, *format)
        }
    }
}

fn parse_level(text: &str) -> Result<AutonomyLevel, String> {
    AutonomyLevel::parse(text).ok_or_else(|| format!("one of {}", AutonomyLevel::WORDS.join(", ")))
}

/// Returns a verdict as JSON, in the form that other commands and the trace use.
fn verdict_json(verdict: &Verdict) -> Value {
    json!({
        "effect": verdict.effect.name(),
        "rule_id": verdict.rule_id.as_deref(),
        "policy": verdict.policy.as_deref(),
        "reason": verdict.reason.as_deref(),
    })
}

/// Returns an effect's word in its colour.
fn paint_effect(paint: TerminalStyle, effect: &str) -> String {
    match effect {
        "allow" | "audit-only" => paint.green(effect),
        "deny" => paint.red(effect),
        _ => paint.yellow(effect),
    }
}
