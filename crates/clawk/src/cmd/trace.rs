//! `clawk trace`: shows, checks and exports the record. Works on a state directory, also while an agent uses it, or on a
//! `.trace.jsonl` file from any source.

mod diff;
mod export;
mod fork;
mod key;
mod redact;
pub(in crate::cmd) mod replay;
pub(in crate::cmd) mod source;
mod tail;
#[cfg(test)]
mod tests;
pub(super) mod verify;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use clawk_kernel::time::Timestamp;
use clawk_proto::Digest;
use clawk_proto::trace::TraceEvent;
use clawk_trace::show::{LineStyle, line};

pub(in crate::cmd) use self::replay::tapes::{build_tape, context_files};
use self::source::SessionSelection;
pub(in crate::cmd) use self::source::TraceSource;
use crate::out::{Format, TerminalStyle};
use crate::state;
use crate::time_range::TimeRangeArgs;

/// Flags of `clawk trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: TraceCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk trace show --session last            what happened in the latest session
  clawk trace show --since yesterday --until yesterday
  clawk trace show --content DIGEST          the bytes that an event refers to
  clawk trace tail -f --agent hello          watch an agent work
  clawk trace verify --format json           is the record whole?
  clawk trace verify run.trace.jsonl         the same for a file, from any machine
  clawk trace key > agent.pub                keep this elsewhere, and `clawk trace key --heads`, too
  clawk trace verify --key agent.pub --checkpoints heads.jsonl     nothing was cut off, rolled back or rewritten
  clawk trace replay --session last          does the kernel do the same again?
  clawk trace replay --with-policy strict.yaml     what it would have blocked, call by call
  clawk trace fork --session last --at 12 -m 'Try it without the file'
  clawk trace redact --session last --reason 'asked to forget'
  clawk trace diff a.trace.jsonl b.trace.jsonl     what differs by meaning; exit code 1 if it matters
  clawk trace export --session last -o run.trace.jsonl
  clawk trace export --session last --as html -o run.html
  clawk trace export --otlp-endpoint http://127.0.0.1:4318";

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Print events, one line each
    Show {
        #[command(flatten)]
        from: TraceSelector,
        #[command(flatten)]
        range: TimeRangeArgs,
        /// Print the content with this digest (64 hex digits) instead
        #[arg(long, value_name = "DIGEST")]
        content: Option<String>,
        /// Only this task of a swarm, with all that was delegated below it, as one tree
        #[arg(long, value_name = "UUID", conflicts_with_all = ["content", "session", "file"])]
        task: Option<String>,
        /// With `--task`: the record of another host of the swarm, a state directory or an exported `.trace.jsonl`; may be repeated
        #[arg(long, value_name = "PATH", requires = "task")]
        with: Vec<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print the latest events, and go on with -f
    Tail {
        #[command(flatten)]
        from: TraceSelector,
        /// Print this many events
        #[arg(short = 'n', long, default_value_t = 20)]
        lines: usize,
        /// Wait for new events until interrupted
        #[arg(short, long)]
        follow: bool,
        /// `json` prints one event per line
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Check that no event was changed, removed, added or moved; exit code 1 if so
    Verify {
        #[command(flatten)]
        from: TraceSelector,
        /// Check signed checkpoints with the public key (64 hex digits) in this file [default: the state's own]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// The checkpoints, one JSON object per line [default: the state's own]
        #[arg(long, value_name = "FILE")]
        checkpoints: Option<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print the public key that signs checkpoints, and how far second places have them
    Key {
        #[command(flatten)]
        which: state::StateSelector,
        /// Print the signed heads instead, as a checkpoints file
        #[arg(long)]
        heads: bool,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Erase content for good, on the record; the chain stays valid
    Redact(redact::Args),
    /// Run a recorded session again without model, tools or network, or decide it by other rules
    Replay(replay::Args),
    /// Continue live from a step of a recorded session, in a new session
    Fork(fork::Args),
    /// Compare two traces by meaning; exits with 1 if more than timings, token counts and texts differ
    Diff(diff::Args),
    /// Write events as JSON Lines, which anyone can verify; as OTLP spans; or as a page for people
    Export {
        #[command(flatten)]
        from: TraceSelector,
        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Only the event types of the TRACE standard; leaves out `ckp.*` and chains the rest anew
        #[arg(long)]
        strict: bool,
        /// Output form
        #[arg(long = "as", value_enum, default_value_t, value_name = "FORM")]
        form: export::TraceExportFormat,
        /// Send OTLP spans to this collector instead of writing them; the path is `/v1/traces` unless given
        #[arg(long, value_name = "URL", conflicts_with_all = ["output", "form", "strict"])]
        otlp_endpoint: Option<String>,
    },
}

/// Which record.
#[derive(Debug, clap::Args)]
struct TraceSelector {
    /// A `.trace.jsonl` file, `-` for standard input [default: an agent's state directory]
    #[arg(conflicts_with_all = ["state", "agent"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    which: state::StateSelector,

    /// Only this session: its id, or `last`
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

impl TraceSelector {
    fn open(&self) -> Result<(TraceSource, SessionSelection)> {
        let source = match &self.file {
            Some(file) => TraceSource::from_file(file.clone()),
            None => TraceSource::from_state(&self.which.find_dir()?)?,
        };
        let pick = source.select_sessions(self.session.as_deref())?;
        Ok((source, pick))
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.verb {
        TraceCommand::Show {
            from,
            content: Some(digest),
            ..
        } => content(from, digest),
        TraceCommand::Show {
            from,
            task: Some(task),
            with,
            format,
            ..
        } => super::swarm::print_tree(&from.which.find_dir()?, task, with, *format),
        TraceCommand::Show {
            from,
            range,
            content: None,
            task: None,
            format,
            ..
        } => show(from, *range, *format),
        TraceCommand::Tail {
            from,
            lines,
            follow,
            format,
        } => {
            let (source, pick) = from.open()?;
            tail::run(&source, pick, *lines, *follow, *format)
        }
        TraceCommand::Verify {
            from,
            key,
            checkpoints,
            format,
        } => {
            let (source, pick) = from.open()?;
            let signed = verify::SignatureFiles {
                key: key.as_deref(),
                checkpoints: checkpoints.as_deref(),
            };
            verify::run(&source, pick, signed, *format)
        }
        TraceCommand::Key { which, heads, format } => key::run(which, *heads, *format),
        TraceCommand::Redact(args) => redact::run(args),
        TraceCommand::Replay(args) => replay::run(args, config),
        TraceCommand::Fork(args) => fork::run(args, config),
        TraceCommand::Diff(args) => diff::run(args),
        TraceCommand::Export {
            from,
            output,
            strict,
            form,
            otlp_endpoint,
        } => {
            let (source, pick) = from.open()?;
            let how = export::TraceExportOptions {
                output: output.as_deref(),
                strict: *strict,
                form: *form,
                endpoint: otlp_endpoint.as_deref(),
            };
            export::run(&source, pick, how)
        }
    }
}

fn show(from: &TraceSelector, range: TimeRangeArgs, format: Format) -> Result<ExitCode> {
    let (source, pick) = from.open()?;
    let is_asked = |event: &TraceEvent| -> Result<bool> {
        if !range.is_given() {
            return Ok(true);
        }
        let at = Timestamp::parse(&event.timestamp)
            .with_context(|| format!("the event {} has no valid time", event.event_id))?;
        Ok(range.contains(at))
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match format {
        Format::Human => {
            let mut lines = EventLinePrinter::new();
            source.each_with_words(pick, |event| match is_asked(&event)? {
                true => Ok(lines.write(&mut out, &event)?),
                false => Ok(()),
            })?;
        }
        Format::Json => {
            let mut first = true;
            source.for_each_event(pick, |event| {
                if !is_asked(&event)? {
                    return Ok(());
                }
                out.write_all(if first { b"[\n" } else { b",\n" })?;
                first = false;
                Ok(serde_json::to_writer(&mut out, &event)?)
            })?;
            out.write_all(if first { b"[]\n" } else { b"\n]\n" })?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn content(from: &TraceSelector, digest: &str) -> Result<ExitCode> {
    let Some(digest) = Digest::from_hex(digest) else {
        bail!(
            "`--content` takes the 64 hex digits that `clawk trace show --format json` prints, not `{digest}`"
        );
    };
    if from.file.is_some() {
        bail!(
            "a trace file holds no contents; they lie in the agent's state directory: say --state DIR or --agent NAME"
        );
    }
    let reader = crate::state::kept::read_only(from.which.find_dir()?)?;
    let bytes = reader
        .content(digest)?
        .with_context(|| format!("no content `{digest}`: it was erased, or never stored here"))?;
    let mut out = io::stdout().lock();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints events as lines, with a heading at each change of session.
struct EventLinePrinter {
    style: LineStyle,
    paint: TerminalStyle,
    session: Option<clawk_proto::SessionId>,
}

impl EventLinePrinter {
    fn new() -> Self {
        let paint = TerminalStyle::for_stdout();
        let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col)); // silent-ok: no terminal
        Self {
            style: LineStyle {
                colour: paint.is_on(),
                width,
            },
            paint,
            session: None,
        }
    }

    fn write(&mut self, out: &mut impl Write, event: &TraceEvent) -> io::Result<()> {
        if self.session != Some(event.session_id) {
            self.session = Some(event.session_id);
            let day = event
                .timestamp
                .split('T')
                .next()
                .map(crate::out::one_line)
                .unwrap_or_default();
            writeln!(
                out,
                "{}",
                self.paint.bold(&format!("session {}  {day}", event.session_id))
            )?;
        }
        writeln!(out, "{}", line(event, self.style))
    }
}
