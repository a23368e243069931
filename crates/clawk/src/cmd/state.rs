//! `clawk state`: shows where agents' states are, to which manifests they belong and which host serves them.

pub(super) mod identity;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::out::{self, Format};
use crate::state::StateSelector;
use crate::state::kept::{self, StateInfo};
use crate::state::moving;

/// Flags of `clawk state`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk state list\n  clawk state adopt my-agent --claw /srv/new/claw.yaml\n  clawk state info --agent my-agent\n  clawk state move --from DIR --to URL"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: StateCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum StateCommand {
    /// List the states in the default place, with the manifests that they belong to
    List(identity::ListArgs),

    /// Make a state belong to a manifest that was moved, renamed or restored
    Adopt(identity::AdoptArgs),

    /// Give a copied manifest an empty state of its own
    New(identity::NewArgs),

    /// Show what keeps the state, its hosts and leases
    Info(InfoArgs),

    /// Move a whole state to another directory or database, and verify it there
    Move(MoveArgs),
}

/// Flags of `clawk state move`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = MOVES)]
struct MoveArgs {
    /// Where it lies: a state directory, or `postgres://USER@HOST/DATABASE?schema=SCHEMA`
    #[arg(long, value_name = "DIR|URL")]
    from: PathBuf,

    /// Where it is to lie; nothing may be there
    #[arg(long, value_name = "DIR|URL")]
    to: PathBuf,

    /// Print JSON or text
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

const MOVES: &str = "\
Examples:
  clawk state move --from ~/.local/state/clawk/desk --to 'postgres://clawk@db.example.com/agents?schema=desk'
  clawk state move --from /var/lib/clawk/desk --to /srv/desk

Stop the agent first. The source can still be read afterwards, and is served no more. A move that is cut off changes nothing in the
target; run it again. The password comes from PGPASSWORD.";

/// Flags of `clawk state info`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
struct InfoArgs {
    #[command(flatten)]
    which: StateSelector,

    /// Print JSON or text
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk state info --agent my-agent
  clawk state info --state postgres://clawk@127.0.0.1:5432/agents --format json

`leases` says which host serves the agent: the session `*` stands for all of its sessions. `expires_ms` is the time
that the lease still holds, by the database's clock; null: it was given up.";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let args = match &args.verb {
        StateCommand::Info(args) => args,
        StateCommand::List(args) => return identity::list_states(args),
        StateCommand::Adopt(args) => return identity::adopt_state(args),
        StateCommand::New(args) => return identity::make_state(args),
        StateCommand::Move(args) => return move_state(args),
    };
    let info = kept::state_info(&args.which.find_dir()?)?;
    match args.format {
        Format::Json => out::print_json(&info)?,
        Format::Human => print_human(&info)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn move_state(args: &MoveArgs) -> Result<ExitCode> {
    let mut bar = ProgressBar::new();
    let moved = moving::run(&args.from, &args.to, &mut |table, rows| bar.show(table, rows));
    bar.clear();
    let moved = moved?;
    match args.format {
        Format::Json => out::print_json(&moved)?,
        Format::Human => {
            for (what, count) in moved.moved.iter().filter(|(_, count)| **count > 0) {
                out::print_line(format!("{count:>12}  {what}"))?;
            }
            let word = if moved.valid { "valid" } else { "NOT VALID" };
            out::print_line(format!(
                "moved: {} chains, the same heads on both sides, {word}",
                moved.heads
            ))?;
        }
    }
    Ok(ExitCode::from(u8::from(!moved.valid)))
}

/// Shows the progress of a transfer, only on a terminal.
struct ProgressBar {
    shown: bool,
    next: std::time::Instant,
}

impl ProgressBar {
    /// Interval between two progress updates.
    const PACE: std::time::Duration = std::time::Duration::from_millis(200);

    fn new() -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
            next: std::time::Instant::now() + Self::PACE,
        }
    }

    fn show(&mut self, table: &str, rows: u64) {
        if !self.shown || std::time::Instant::now() < self.next {
            return;
        }
        self.next = std::time::Instant::now() + Self::PACE;
        // silent-ok: a closed standard error has no reader
        let _ = write!(std::io::stderr(), "\r\x1b[K{table}: {rows}");
    }

    fn clear(&self) {
        if self.shown {
            // silent-ok: as above
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn print_human(info: &StateInfo) -> Result<()> {
    out::print_line(format!(
        "{} (schema {}), {} events",
        info.kind, info.schema, info.events
    ))?;
    for host in &info.hosts {
        out::print_line(format!(
            "host   {}  process {}, seen {} ms ago",
            out::one_line(&host.host),
            host.pid,
            host.seen_ms
        ))?;
    }
    for lease in &info.leases {
        let until = match lease.expires_ms {
            Some(left) if left > 0 => format!("for {left} ms more"),
            Some(_) => "expired".to_owned(),
            None => "given up".to_owned(),
        };
        out::print_line(format!(
            "lease  {}  host {}, epoch {}, {until}",
            out::one_line(&lease.session),
            out::one_line(&lease.host),
            lease.epoch
        ))?;
    }
    Ok(())
}
