//! `clawk`: one governed path for autonomous agents, with a proof.
//!
//! *Owns:* the command line, `clawk.toml`, the composition root, the start of the sandbox's other side.
//! *Depends on:* every other crate.
//! *Must not know:* domain rules; it reads, composes, shows.
//! *Start reading at:* [`compose`], then [`cmd::run`].

mod atlases;
mod audit;
mod cli;
mod cmd;
mod companion;
mod compose;
mod config;
mod coverage;
mod dry;
mod http;
mod keeper;
mod manifest;
mod out;
mod pack;
mod peers;
mod refusal;
mod state;
mod terminal;
mod trust;
mod unapplied;

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// Exit code when nobody reads the output to its end, as of a program that SIGPIPE ends.
const CLOSED_PIPE: u8 = 141;

fn main() -> ExitCode {
    limit_core_dumps();
    // Before any thread, file or signal handler: this process may be about to become a sandboxed tool.
    let mut words = std::env::args_os().skip(1);
    match words.next().as_deref().and_then(OsStr::to_str) {
        Some("__sandbox") => return clawk_sandbox::child::main(),
        Some(clawk_sandbox::container::stage::MODE) => return clawk_sandbox::container::stage::main(),
        #[cfg(feature = "vm")]
        Some(clawk_sandbox::vm::stage::MODE) => return clawk_sandbox::vm::stage::main(),
        Some(clawk_tools::builtin::MODE) => return clawk_tools::builtin::main(),
        Some(_) | None => {}
    }
    #[cfg(feature = "conformance")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|verb| verb == clawk_conformance::cra::ADAPTER_VERB)
    {
        return clawk_conformance::cra::adapter().unwrap_or_else(|error| {
            report(&error);
            ExitCode::FAILURE
        });
    }
    hide_memory();
    // Usage errors end here with 2, `--help` and `--version` with 0.
    let matches = cli::CommandLine::command().get_matches();
    let json = refusal::is_wanted(&matches);
    let cli = cli::CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log(cli.verbose, is_served(&matches));
    as_many_descriptors_as_allowed();
    state::kept::find_keys(cli.config.as_deref());
    match cli.run() {
        Ok(code) => code,
        Err(error) if closed_pipe(&error) => ExitCode::from(CLOSED_PIPE),
        Err(error) => {
            report(&error);
            if json && let Err(error) = refusal::print(&error) {
                report(&error);
            }
            ExitCode::FAILURE
        }
    }
}

/// Keys are in the memory of this process and of all that it starts: no dump of it is written. One byte and not zero, because only at
/// exactly this limit the kernel starts no handler of core dumps either (`core_pattern` with a `|`).
fn limit_core_dumps() {
    let least = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    let ceiling = getrlimit(Resource::Core).maximum;
    if ceiling.is_none_or(|ceiling| ceiling >= 1) {
        let _ = setrlimit(Resource::Core, least); // silent-ok: a limit can always be lowered
    }
}

/// No dump, whatever the limits say, and no other process of this user reads the memory of this one. Not for the supervisors of boxes:
/// an ordinary user's box needs its own files in `/proc`.
fn hide_memory() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable); // silent-ok: the kernel has no reason to refuse
}

/// The soft limit is for programs that use `select`; an agent's boxes, connections and files go beyond it. Tools have their own.
fn as_many_descriptors_as_allowed() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised); // silent-ok: then it stays as it is
}

/// `clawk serve` with doors other than standard streams: its standard error is a log that somebody keeps.
fn is_served(matches: &clap::ArgMatches) -> bool {
    let Some(serve) = matches.subcommand_matches("serve") else {
        return false;
    };
    let on = |flag: &str| serve.try_get_one::<bool>(flag).ok().flatten() == Some(&true); // silent-ok: no such flag is none
    !on("stdio") && !on("mcp")
}

/// Logs go to standard error, none unless asked: `-v` info, `-vv` debug, `-vvv` trace of our crates; `RUST_LOG` for more. A host
/// tells who runs it, unasked, what keeps its tools away.
fn log(verbose: u8, served: bool) {
    let asked = clawk_secrets::env::non_empty("RUST_LOG");
    let level = ["error", "info", "debug", "trace"]
        .get(usize::from(verbose))
        .copied()
        .unwrap_or("trace");
    let usual = match (verbose, served) {
        (0, false) => None,
        (0, true) => Some(format!("off,{}=warn", clawk_kernel::OPERATOR)),
        (_, _) => Some(format!("warn,clawk={level}")),
    };
    let Some(filter) = asked.or(usual) else {
        return;
    };
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(filter);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| out::LogLines)
        .with_ansi(false)
        .init();
}

/// What went wrong, what caused it, and so on down.
fn report(error: &anyhow::Error) {
    let paint = out::TerminalStyle::stderr();
    out::note(&format!(
        "{} {}",
        paint.red("error:"),
        out::block(&error.to_string())
    ));
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        // An error that already quotes its cause needs no second line for it.
        if !said.contains(&text) {
            out::note(&format!("  because: {}", out::block(&text)));
        }
        said = text;
    }
}

/// `clawk trace show … | head` needs no message. It is no success either: what was checked may be bad, and nobody read so.
fn closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_never_dumped() {
        limit_core_dumps();
        hide_memory();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(1), Some(1)));
        assert_eq!(
            rustix::process::dumpable_behavior(),
            Ok(DumpableBehavior::NotDumpable)
        );
    }
}
