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
mod conformance;
mod coverage;
mod http;
mod keeper;
mod manifest;
mod out;
mod pack;
mod refusal;
mod state;
mod terminal;
mod unapplied;

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn main() -> ExitCode {
    // Before any thread, file or signal handler: this process may be about to become a sandboxed tool.
    let mut words = std::env::args_os().skip(1);
    match words.next().as_deref().and_then(OsStr::to_str) {
        Some("__sandbox") => return clawk_sandbox::child::main(),
        Some(clawk_sandbox::container::stage::MODE) => return clawk_sandbox::container::stage::main(),
        Some(clawk_sandbox::vm::stage::MODE) => return clawk_sandbox::vm::stage::main(),
        Some(clawk_tools::builtin::MODE) => return clawk_tools::builtin::main(),
        Some(_) | None => {}
    }
    if std::env::args_os()
        .nth(1)
        .is_some_and(|verb| verb == conformance::cra::ADAPTER_VERB)
    {
        return conformance::cra::adapter().unwrap_or_else(|error| {
            report(&error);
            ExitCode::FAILURE
        });
    }
    // Usage errors end here with 2, `--help` and `--version` with 0.
    let matches = cli::Cli::command().get_matches();
    let json = refusal::is_wanted(&matches);
    let cli = cli::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log(cli.verbose);
    as_many_descriptors_as_allowed();
    match cli.run() {
        Ok(code) => code,
        Err(error) if closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            if json && let Err(error) = refusal::print(&error) {
                report(&error);
            }
            ExitCode::FAILURE
        }
    }
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

/// Logs go to standard error, none unless asked: `-v` info, `-vv` debug, `-vvv` trace of our crates; `RUST_LOG` for more.
fn log(verbose: u8) {
    let asked = clawk_secrets::env::non_empty("RUST_LOG");
    let level = ["error", "info", "debug", "trace"]
        .get(usize::from(verbose))
        .copied()
        .unwrap_or("trace");
    if asked.is_none() && verbose == 0 {
        return;
    }
    let filter = asked.unwrap_or_else(|| format!("warn,clawk={level}"));
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(filter);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
}

/// What went wrong, what caused it, and so on down.
fn report(error: &anyhow::Error) {
    let paint = out::Paint::stderr();
    out::note(&format!(
        "{} {}",
        paint.red("error:"),
        out::harmless(&error.to_string())
    ));
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        // An error that already quotes its cause needs no second line for it.
        if !said.contains(&text) {
            out::note(&format!("  because: {}", out::harmless(&text)));
        }
        said = text;
    }
}

/// `clawk trace show … | head` is no failure.
fn closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}
