//! `clawk upgrade`: tests a new program or manifest on recorded sessions, and installs it with `--apply`.

mod apply;
mod played;
mod program;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_kernel::replay::{ComparedDecision, DecisionDifference, SessionShadowReport};
use clawk_manifest::Manifest;
use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, Format, TerminalStyle};
use crate::state::server::StateConfig;
use crate::state::{Origin, StateLookup};
use crate::{atlases, compose, manifest};

/// Flags of `clawk upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The current manifest
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: PathBuf,

    /// The new program or the new manifest; twice for both
    #[arg(long, value_name = "NEW")]
    shadow: Vec<PathBuf>,

    /// Replay the last N sessions that have a message or a call
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,

    /// State directory [default: the manifest's own]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Replace the old program or manifest by the new one and restart the running agent; refused if a decision differs
    #[arg(long)]
    apply: bool,

    /// With --apply: switch although decisions differ or sessions could not be replayed
    #[arg(long, requires = "apply")]
    accept_differences: bool,

    /// For an older version that starts this one: replay with the recorded manifest, or with --shadow, and print JSON
    #[arg(long, hide = true, conflicts_with = "apply")]
    recorded: bool,

    #[command(flatten)]
    outside: AllowOutsideArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk upgrade claw.yaml --shadow next.yaml                     the last 20 sessions under another manifest
  clawk upgrade claw.yaml --shadow ./clawk-next --sessions 200   by another program
  clawk upgrade claw.yaml --shadow ./clawk-next --shadow next.yaml --apply

clawk asks no model, tool or person: the record gives their answers. A difference is a call with another verdict (allow,
audit, ask, deny) or a message with another end; another reason for the same verdict is not a difference. Exit code 0:
every session was replayed and nothing differs; 1 otherwise.

With --apply, clawk keeps the old file beside the new one, with `.before` at the end of its name. A running `clawk serve`
ends its turns and starts again with the same arguments; an agent on standard input does not start again.";

/// The result of replaying all sessions.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct UpgradeReport {
    sessions: usize,
    decisions: usize,
    prompts_differ: usize,
    /// Number of decisions that also the current program would make differently from the record. The upgrade does not change them.
    as_before: usize,
    differences: Vec<DecisionDifference>,
    not_replayed: Vec<NotReplayed>,
}

/// A session whose record is too incomplete to replay.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct NotReplayed {
    session_id: SessionId,
    reason: String,
}

impl UpgradeReport {
    fn add_session(&mut self, one: SessionShadowReport) {
        self.sessions += 1;
        self.decisions += one.decisions;
        self.prompts_differ += one.prompts_differ;
        self.differences.extend(one.differences);
    }

    /// Removes differences that the current program under the recorded manifest shows, too.
    fn subtract_baseline(mut self, before: &Self) -> Self {
        let all = self.differences.len();
        self.differences
            .retain(|one| !before.differences.iter().any(|known| known.same_as(one)));
        self.as_before += all - self.differences.len();
        self
    }

    fn is_same(&self) -> bool {
        self.differences.is_empty() && self.not_replayed.is_empty()
    }
}

/// The program or manifest that should replace the current one.
#[derive(Debug, Default)]
struct UpgradeCandidate<'a> {
    manifest: Option<&'a Path>,
    program: Option<&'a Path>,
}

impl<'a> UpgradeCandidate<'a> {
    fn from_paths(paths: &'a [PathBuf]) -> Result<Self> {
        let mut new = Self::default();
        for path in paths {
            let (place, what) = if is_program(path)? {
                (&mut new.program, "program")
            } else {
                (&mut new.manifest, "manifest")
            };
            if place.replace(path).is_some() {
                bail!(
                    "`--shadow` takes one {what}, and `{}` is a second one",
                    path.display()
                );
            }
        }
        Ok(new)
    }
}

/// Returns whether the file is an executable, by its first bytes. A manifest is text.
fn is_program(path: &Path) -> Result<bool> {
    let mut first = Vec::new();
    let file = std::fs::File::open(path).with_context(|| format!("can't open `{}`", path.display()))?;
    let read = file.take(4).read_to_end(&mut first);
    read.with_context(|| format!("can't read `{}`", path.display()))?;
    Ok(first == b"\x7fELF" || first.starts_with(b"#!"))
}

/// Runs the command. Exit code 1 if a decision differs or could not be replayed, unless that was accepted.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    if args.shadow.is_empty() && !args.recorded {
        bail!("say what is new: `--shadow NEW`, a program or a manifest");
    }
    let file = config;
    let config = Config::load(config, Some(&args.manifest))?.with_outside_access(args.outside);
    let (current, _) = manifest::load_valid_manifest(&args.manifest, &config)?;
    let new = UpgradeCandidate::from_paths(&args.shadow)?;
    let judged = new
        .manifest
        .map(|path| load_for_start(path, &config))
        .transpose()?;
    let origin = Origin::of_file(&args.manifest)?;
    let state = StateLookup {
        flag: args.state.as_deref(),
        configured: config.settings.state.as_ref().and_then(StateConfig::dir),
        agent: &current.metadata.name,
        origin: &origin,
    };
    let state = state.dir()?;
    let runtime = compose::build_runtime()?;
    let played = played::ReplayedRecord::open(&state, usize::try_from(args.sessions)?)?;
    if args.recorded {
        let found = runtime.block_on(played.replay_all(judged.as_ref(), &config))?;
        out::print_json(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let before = runtime.block_on(played.replay_all(None, &config))?;
    let found = match new.program {
        None => runtime.block_on(played.replay_all(judged.as_ref(), &config))?,
        Some(program) => {
            runtime.block_on(program::ask_program(program, args, (new.manifest, file), &state))?
        }
    };
    let found = found.subtract_baseline(&before);
    if !args.apply {
        print_report(args, &new, &found, None)?;
        return Ok(exit_code(found.is_same()));
    }
    if !found.is_same() && !args.accept_differences {
        print_report(args, &new, &found, None)?;
        out::print_note("nothing was changed: `--accept-differences` goes live all the same");
        return Ok(ExitCode::FAILURE);
    }
    let applied = apply::apply_upgrade(args, &new, judged.as_ref(), &config)?;
    let live = runtime.block_on(apply::restart_agent(&state, &applied))?;
    print_report(args, &new, &found, Some((&applied, &live)))?;
    Ok(exit_code(live.is_well()))
}

fn exit_code(well: bool) -> ExitCode {
    if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the manifest as a start would use it, with the tools of configured Atlases.
fn load_for_start(path: &Path, config: &Config) -> Result<Manifest> {
    let (mut manifest, _) = manifest::load_valid_manifest(path, config)?;
    let _bound = atlases::bind_actions(&mut manifest, &mut config.clone())?;
    Ok(manifest)
}

fn print_report(
    args: &Args,
    new: &UpgradeCandidate<'_>,
    found: &UpgradeReport,
    live: Option<(&apply::AppliedUpgrade, &apply::RestartOutcome)>,
) -> Result<()> {
    match args.format {
        Format::Json => out::print_json(&json!({
            "manifest": new.manifest, "program": new.program,
            "sessions": found.sessions, "decisions": found.decisions, "prompts_differ": found.prompts_differ,
            "as_before": found.as_before, "differences": found.differences, "not_replayed": found.not_replayed,
            "applied": live.map(|(applied, _)| &applied.replaced),
            "restarted": live.map(|(_, live)| live.outcome_word()),
        })),
        Format::Human => print_human(found, live),
    }
}

fn print_human(
    found: &UpgradeReport,
    live: Option<(&apply::AppliedUpgrade, &apply::RestartOutcome)>,
) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let word = if found.is_same() {
        paint.green("same")
    } else {
        paint.red("DIFFERS")
    };
    out::print_line(format!(
        "{word}  {} decisions in {} sessions: {} differ",
        found.decisions,
        found.sessions,
        found.differences.len()
    ))?;
    for one in &found.differences {
        out::print_line(format_difference(one))?;
    }
    for one in &found.not_replayed {
        out::print_line(format!(
            "  session {} was not replayed: {}",
            one.session_id,
            out::one_line(&one.reason)
        ))?;
    }
    if found.prompts_differ > 0 {
        out::print_line(paint.dim(&format!(
            "{} questions to models would have another text; their answers are the recorded ones",
            found.prompts_differ
        )))?;
    }
    if found.as_before > 0 {
        out::print_line(paint.dim(&format!(
            "{} decisions left out: a replay by the program in use decides them in the same way",
            found.as_before
        )))?;
    }
    if let Some((applied, live)) = live {
        for path in &applied.replaced {
            out::print_line(format!("replaced `{}`", path.display()))?;
        }
        out::print_line(live.describe_outcome())?;
    }
    Ok(())
}

/// Returns one difference as a line.
fn format_difference(one: &DecisionDifference) -> String {
    let about = match (&one.tool, one.message) {
        (Some(tool), Some(n)) => format!("message {n}, {}", out::clip_line(tool, 40)),
        (Some(tool), None) => out::clip_line(tool, 40),
        (None, n) => format!("message {}", n.unwrap_or(0)),
    };
    let at = one
        .sequence
        .map_or_else(String::new, |at| format!(", event {at}"));
    format!(
        "  session {}{at}: {about}: {} → {}",
        one.session_id,
        format_decision(&one.was),
        format_decision(&one.would_be)
    )
}

fn format_decision(judged: &ComparedDecision) -> String {
    let mut why = Vec::new();
    match (&judged.rule, &judged.by) {
        (Some(rule), _) => why.push(format!("rule `{}`", out::clip_line(rule, 60))),
        (None, Some(by)) => why.push(out::clip_line(by, 40)),
        (None, None) => {}
    }
    why.extend(judged.reason.as_ref().map(|reason| out::clip_line(reason, 120)));
    if why.is_empty() {
        judged.verdict.clone()
    } else {
        format!("{} ({})", judged.verdict, why.join(": "))
    }
}
