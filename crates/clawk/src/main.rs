//! `clawk`: one governed path for autonomous agents, with a proof.
//!
//! *Owns:* the command line, `clawk.toml`, the composition root, the start of the sandbox's other side.
//! *Depends on:* every other crate.
//! *Must not know:* domain rules; it reads, composes, shows.
//! *Start reading at:* [`compose`], then [`cmd::run`].

mod activity;
mod atlases;
mod audit;
mod build;
mod cli;
mod cmd;
mod companion;
mod compose;
mod config;
mod coverage;
mod dry;
mod http;
mod inert_parts;
mod keeper;
mod manifest;
mod out;
mod pack;
mod peers;
mod refusal;
mod state;
mod terminal;
mod time_range;
mod trust;
mod unapplied;
mod usage;

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use activity::LogFormat;
use clap::{CommandFactory, FromArgMatches};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// Exit code if the reader of the output closed the pipe, the same as for a program that SIGPIPE ends.
const CLOSED_PIPE: u8 = 141;

fn main() -> ExitCode {
    limit_core_dumps();
    // This comes before any thread, file or signal handler, because this process may become a sandboxed tool.
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
            print_error(&error);
            ExitCode::FAILURE
        });
    }
    hide_memory();
    if wants_build() {
        let version = env!("CARGO_PKG_VERSION");
        let shown = out::lines(&format!("clawk {version}\nbuild: {}", build::build_line()));
        return shown.map_or(ExitCode::from(CLOSED_PIPE), |()| ExitCode::SUCCESS);
    }
    // A usage error is exit code 2; `--help` and `--version` are 0.
    let matches = match cli::CommandLine::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            return ExitCode::from(usage::print_usage_error(&error, &words));
        }
    };
    let json = refusal::is_wanted(&matches);
    let cli = cli::CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    init_logging(cli.verbose, cmd::serve::served_log_format(&matches));
    terminal::thoughts::set_thought_detail(cli.verbose);
    as_many_descriptors_as_allowed();
    state::kept::find_keys(cli.config.as_deref());
    match cli.run() {
        Ok(code) => code,
        Err(error) if closed_pipe(&error) => ExitCode::from(CLOSED_PIPE),
        Err(error) => {
            print_error(&error);
            if json && let Err(error) = refusal::print_refusal(&error) {
                print_error(&error);
            }
            ExitCode::FAILURE
        }
    }
}

/// Disables core dumps, because keys are in the memory of this process and its children. The limit is one byte, not zero: only with
/// this value the kernel also starts no core dump handler (`core_pattern` with a `|`).
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

/// Forbids dumps, whatever the limits are, and access of the same user's other processes to this one's memory. Not used for box
/// supervisors, because an unprivileged user's box needs its own files in `/proc`.
fn hide_memory() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable); // silent-ok: the kernel has no reason to refuse
}

/// Raises the limit of open files. The default suits programs that use `select`; an agent's boxes, connections and files need more.
/// Tools have their own limit.
fn as_many_descriptors_as_allowed() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised); // silent-ok: then it stays as it is
}

/// Returns whether the words are `--version` and `-v`, in any order: the version and the parts of this build. The parser alone would stop
/// at `--version`.
fn wants_build() -> bool {
    let words: Vec<_> = std::env::args_os().skip(1).take(3).collect();
    let is = |word: &OsStr, known: [&str; 2]| known.iter().any(|known| word == *known);
    let version = |word: &OsStr| is(word, ["--version", "-V"]);
    let verbose = |word: &OsStr| is(word, ["--verbose", "-v"]);
    match words.as_slice() {
        [one, other] => {
            (version(one.as_os_str()) && verbose(other.as_os_str()))
                || (verbose(one.as_os_str()) && version(other.as_os_str()))
        }
        [only] => is(only.as_os_str(), ["-vV", "-Vv"]),
        _ => false,
    }
}

/// Sets up logs on standard error: none by default, `-v` info, `-vv` debug, `-vvv` trace of clawk's crates; `RUST_LOG` for more. A
/// served host also logs what concerns its operator: channels, MCP servers, why tools are unavailable.
fn init_logging(verbose: u8, served: Option<LogFormat>) {
    let asked = clawk_secrets::env::non_empty("RUST_LOG");
    let level = ["error", "info", "debug", "trace"]
        .get(usize::from(verbose))
        .copied()
        .unwrap_or("trace");
    let usual = match (verbose, served) {
        (0, None) => None,
        (0, Some(LogFormat::Off)) => Some(format!("off,{}=warn", clawk_kernel::OPERATOR)),
        (0, Some(LogFormat::Text | LogFormat::Json)) => Some(format!("off,{}=info", clawk_kernel::OPERATOR)),
        (_, _) => Some(format!("warn,clawk={level}")),
    };
    let Some(filter) = asked.or(usual) else {
        return;
    };
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(filter);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| out::LogLines)
        .with_ansi(false);
    match served {
        Some(LogFormat::Json) => log.event_format(activity::JsonLogFormatter::default()).init(),
        Some(LogFormat::Text | LogFormat::Off) | None => log.init(),
    }
}

/// Prints the error and its chain of causes.
fn print_error(error: &anyhow::Error) {
    let paint = out::TerminalStyle::for_stderr();
    out::notes(&format!(
        "{} {}",
        paint.red("error:"),
        out::sanitize_block(&error.to_string())
    ));
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        // Skip a cause whose text the error already contains.
        if !said.contains(&text) {
            out::notes(&format!("  because: {}", out::sanitize_block(&text)));
        }
        said = text;
    }
}

/// Returns whether the error is a closed pipe, as in `clawk trace show … | head`. It needs no message. It is not a success, because
/// the reader may have missed a negative result.
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
