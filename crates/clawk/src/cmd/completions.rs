//! `clawk completions SHELL`: prints a shell's completion script.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

/// Flags of `clawk completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  clawk completions bash > ~/.local/share/bash-completion/completions/clawk"
)]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::cli::CommandLine::command(),
        "clawk",
        &mut script,
    );
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
