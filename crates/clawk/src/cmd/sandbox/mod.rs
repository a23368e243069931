//! `clawk sandbox`: lets a person try the sandbox of tools, and shows which mechanism stopped an action.

mod asked;
mod explain;
mod run;
mod shown;
mod waiting;
mod way;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use asked::BoxArgs;

/// Flags of `clawk sandbox`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SandboxCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SandboxCommand {
    /// Run a command in the same sandbox that a tool gets, and exit with its exit code
    Run(run::RunArgs),
    /// Explain what a sandbox shows, allows and forbids, and what each wall does not cover
    Explain(explain::ExplainArgs),
}

const EXAMPLES: &str = "\
Examples:
  clawk sandbox run -- id                                   the most restrictive box
  clawk sandbox run --mount .:rw -- make test               the working directory, writable
  clawk sandbox run claw.yaml -- python3 tool.py            the box that a manifest, or a Sandbox's own file, declares
  clawk sandbox run -f claw.yaml -c 'cat /etc/shadow | wc'  a command line, by the manifest's shell rules
  clawk sandbox run --mount .:rw --deny .env -- cat .env    a denied path wins over mounts
  clawk sandbox run --allow-host example.com -- curl -s https://example.com
  clawk sandbox explain claw.yaml                           what such a box can and can't

Exit codes of `run`: the command's own; 128 + N when signal N ended it, 124 when the time was over, 125 when nothing was run.";

/// Runs a command, or explains the box.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.what {
        SandboxCommand::Run(args) => run::run(args, config),
        SandboxCommand::Explain(args) => explain::run(args, config),
    }
}
