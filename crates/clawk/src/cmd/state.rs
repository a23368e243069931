//! `clawk state`: where an agent's state lies, and who serves it.

use std::process::ExitCode;

use anyhow::Result;

use crate::out::{self, Format};
use crate::state::Which;
use crate::state::kept::{self, StateInfo};

/// Flags of `clawk state`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  clawk state info --agent my-agent")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Verb {
    /// Show what keeps the state, its hosts and leases
    Info(InfoArgs),
}

/// Flags of `clawk state info`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
struct InfoArgs {
    #[command(flatten)]
    which: Which,

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

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Verb::Info(args) = &args.verb;
    let info = kept::info(&args.which.dir()?)?;
    match args.format {
        Format::Json => out::json(&info)?,
        Format::Human => human(&info)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn human(info: &StateInfo) -> Result<()> {
    out::line(&format!(
        "{} (schema {}), {} events",
        info.kind, info.schema, info.events
    ))?;
    for host in &info.hosts {
        out::line(&format!(
            "host   {}  process {}, seen {} ms ago",
            out::harmless(&host.host),
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
        out::line(&format!(
            "lease  {}  host {}, epoch {}, {until}",
            out::harmless(&lease.session),
            out::harmless(&lease.host),
            lease.epoch
        ))?;
    }
    Ok(())
}
