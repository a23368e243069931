//! `clawk run --dry-run` and `clawk run --plan`: a rehearsal with predictions, and a run with its approved report.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::conversation::{AnswerScript, Conversation, question_channel};
use super::{code_of, one_message, print_greeting};
use crate::compose;
use crate::dry::{ApprovedPlan, CallPredictions, DryRunReport, Recorder};
use crate::out::{self, Format, TerminalStyle};
use crate::terminal::can_ask;

/// Flags about predictions.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct DryRunArgs {
    /// Predict every call that would change something instead of doing it, and print a report
    #[arg(long, conflicts_with_all = ["session", "plan"])]
    pub(super) dry_run: bool,

    /// Write the dry run's report as JSON to this file; it must not exist
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    report: Option<PathBuf>,

    /// Output format of the dry run's report
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Approve a dry run's report and send its message: clawk answers yes to exactly the questions that the report predicted
    #[arg(long, value_name = "FILE", conflicts_with_all = ["message", "session"])]
    plan: Option<PathBuf>,

    /// Approve the plan without being asked
    #[arg(long, requires = "plan")]
    yes: bool,
}

impl DryRunArgs {
    /// Returns the message and the approvals of `--plan`, after the person has approved them.
    ///
    /// # Errors
    /// The report belongs to another manifest, or the person refuses.
    pub(super) fn load_approved_plan(&self, manifest: &Path) -> Result<Option<(String, ApprovedPlan)>> {
        if self.format == Format::Json {
            bail!("`--format json` prints the report of a dry run; say `--dry-run`, too");
        }
        let Some(file) = &self.plan else { return Ok(None) };
        let report = DryRunReport::read(file, manifest)?;
        report.print_human(TerminalStyle::for_stdout())?;
        if !self.yes {
            if !io::stdin().is_terminal() {
                bail!("there is no terminal to ask whether this plan may run; say `--yes` to approve it");
            }
            out::print_note("Approve this plan? What differs from it is asked about again. [y/N]");
            let mut line = String::new();
            io::stdin()
                .read_line(&mut line)
                .context("can't read the answer")?;
            if !matches!(line.trim(), "y" | "yes") {
                bail!("the plan is not approved; nothing was done");
            }
        }
        let approved = ApprovedPlan::new(&report);
        Ok(Some((report.message, approved)))
    }
}

/// Runs one turn in a copy of the state, with predictions, and prints the report.
pub(super) async fn run(args: &super::Args, config: Option<&Path>) -> Result<ExitCode> {
    let Some(message) = one_message(args)? else {
        bail!("a dry run is one turn; say something with `-m TEXT`");
    };
    let flags = &args.dry;
    let predictions = CallPredictions::default();
    let request = compose::Request {
        manifest: &args.manifest,
        config,
        state: args.state.as_deref(),
        outside: args.outside,
        trust: args.trust,
        dry: Some(predictions.clone()),
        trial: None,
    };
    let (ask, asked) = question_channel();
    let agent = compose::start_agent(&request, can_ask().then_some(ask)).await?;
    print_greeting(&agent, false);
    let session = agent.open_session(None).await?;
    let mut conversation = Conversation::new(&agent, session, None, asked, args.approve)?;
    conversation.start_dry_run(Recorder::new(predictions), flags.format == Format::Json);
    let end = conversation.run_turn(message.clone()).await;
    let report = match &conversation.script {
        AnswerScript::Dry { recorder, .. } => recorder.build_report(&args.manifest, &message),
        AnswerScript::Nobody | AnswerScript::Plan(_) => bail!("the dry run lost its report"),
    };
    let _session = conversation.end_conversation().await;
    agent.close("the dry run has ended").await;
    let (end, report) = (end?, report?);
    if let Some(file) = &flags.report {
        write(file, &report)?;
    }
    match flags.format {
        Format::Json => out::print_json(&report)?,
        Format::Human => {
            report.print_human(TerminalStyle::for_stdout())?;
            if let Some(file) = &flags.report {
                let claw = args.manifest.display();
                out::print_note(format!("approve it: clawk run {claw} --plan {}", file.display()));
            }
        }
    }
    Ok(code_of(&end))
}

/// Writes the report. Only its owner can read the file, because it may quote files.
fn write(file: &Path, report: &DryRunReport) -> Result<()> {
    let failed = || format!("can't write the report `{}`", file.display());
    let mut open = OpenOptions::new();
    let mut out = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .with_context(failed)?;
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    out.write_all(text.as_bytes()).with_context(failed)
}
