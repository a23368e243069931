//! The command line: commands, global flags, examples. The flags of each command are in its module under [`crate::cmd`].

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgAction, Parser, Subcommand};

use crate::cmd;

/// Runs AI agents declared in a `claw.yaml` through one governed path, and proves afterwards what they did.
#[derive(Debug, Parser)]
#[command(name = "clawk", version, max_term_width = 100, disable_help_subcommand = true, after_help = EXAMPLES)]
pub(crate) struct CommandLine {
    /// Log to standard error; -vv logs more, -vvv logs everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Runtime configuration [default: `clawk.toml` beside the manifest, else `$XDG_CONFIG_HOME/clawk/config.toml`]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    verb: ClawkCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk init my-agent                      write a claw.yaml that runs
  clawk run my-agent/claw.yaml             talk to it
  clawk run claw.yaml -m 'What is new?'    one turn
  clawk serve claw.yaml --stdio            the agent as a JSON-RPC service
  clawk trace verify --agent my-agent      check the proof of what it did
  clawk --version -v                       which optional parts this build has

Exit codes: 0 done, 1 the thing checked is bad or the work failed, 2 usage, 130 interrupted,
141 the output was not read to its end, 143 terminated.";

#[derive(Debug, Subcommand)]
enum ClawkCommand {
    /// Write a commented claw.yaml that runs
    Init(cmd::init::Args),
    /// Write a manifest from another agent runtime's configuration
    Import(cmd::import::Args),
    /// Talk to an agent in the terminal
    #[command(visible_alias = "chat")]
    Run(cmd::run::Args),
    /// Serve an agent to other programs
    #[command(visible_alias = "start")]
    Serve(cmd::serve::Args),
    /// Serve an agent to an editor over the Agent Client Protocol
    Acp(cmd::acp::Args),
    /// Send a message to a served agent and print its answer
    Send(cmd::send::Args),
    /// Call any method of a served agent, over any transport, and print the result
    Call(cmd::call::Args),
    /// List the questions that wait for a person
    Approvals(cmd::approvals::ListArgs),
    /// Approve a waiting call
    Approve(cmd::approvals::ApproveArgs),
    /// Deny a waiting call
    Deny(cmd::approvals::DenyArgs),
    /// Stop an agent at once, show what is stopped, lift the stop
    Stop(cmd::stop::Args),
    /// Check a manifest or one primitive, and print every finding
    Validate(cmd::validate::Args),
    /// Print the JSON Schema of a manifest or a primitive, for editors
    Schema(cmd::schema::Args),
    /// Give a task to the whole swarm; show its members and how they work together
    Swarm(cmd::swarm::Args),
    /// List messages and tasks that could not be finished, and send them again
    DeadLetters(cmd::dead_letters::Args),
    /// List answers that are not delivered yet, and retry dead ones
    Outbox(cmd::outbox::Args),
    /// Test an API key at its provider, and keep it
    Login(cmd::login::Args),
    /// Add and test providers; list the models that their servers offer
    Provider(cmd::provider::Args),
    /// Show a running agent's channels; add channels, pair people, fire triggers
    Channels(cmd::channels::Args),
    /// Print what an agent does, one line for each fact, running or not
    Logs(cmd::logs::Args),
    /// Show, verify, replay and export the record of what happened
    Trace(cmd::trace::Args),
    /// Explain what a policy decides, test it, and compare it with the past
    Policy(cmd::policy::Args),
    /// Check, pack and show an Atlas: a folder that says what agents may see and do
    Atlas(cmd::atlas::Args),
    /// Show what Atlases grant an agent for a goal: context, actions, approvals
    Resolve(cmd::resolve::Args),
    /// List, search, export and forget what an agent remembers
    Memory(cmd::memory::Args),
    /// List and explain the built-in tools, or the tools of an agent
    Tools(cmd::tools::Args),
    /// Add MCP servers; log in to those that need a token
    Mcp(cmd::mcp::Args),
    /// Agree to the programs that a folder's files would run on this machine
    Trust(cmd::trust::Args),
    /// List the sessions of an agent
    Sessions(cmd::sessions::Args),
    /// Show what keeps an agent's state, and which host serves it
    State(cmd::state::Args),
    /// Write an agent's whole state into one file, while it runs
    Backup(cmd::backup::BackupArgs),
    /// Restore a state from such a file, verified
    Restore(cmd::backup::RestoreArgs),
    /// Put back what a session's calls overwrote
    Undo(cmd::undo::Args),
    /// Try a new program or manifest on recorded sessions, and switch to it
    Upgrade(cmd::upgrade::Args),
    /// Import skills from `SKILL.md` folders; list, show and test an agent's skills
    Skill(cmd::skill::Args),
    /// List an agent's effects, and settle those of unknown outcome
    Effects(cmd::effects::Args),
    /// Run a command in a tool's sandbox, or explain the sandbox
    Sandbox(cmd::sandbox::Args),
    /// Show what is spent, reserved and left
    Budget(cmd::budget::Args),
    /// Run the protocols' conformance tests against an agent
    Conformance(cmd::conformance::Args),
    /// Check what this host can enforce and what is misconfigured, and name the cures
    Doctor(cmd::doctor::Args),
    /// Show the runtime configuration in force, and where each value comes from
    Config(cmd::config::Args),
    /// Print a completion script for a shell
    Completions(cmd::completions::Args),
    /// Print the manual page, or write every page to a folder
    Man(cmd::man::Args),
}

impl CommandLine {
    /// Runs the command and returns its exit code.
    ///
    /// # Errors
    /// The command failed; the exit code is then 1.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let config = self.config;
        match self.verb {
            ClawkCommand::Init(args) => cmd::init::run(&args),
            ClawkCommand::Import(args) => cmd::import::run(&args),
            ClawkCommand::Run(args) => cmd::run::run(&args, config.as_deref()),
            ClawkCommand::Serve(args) => cmd::serve::run(&args, config.as_deref()),
            ClawkCommand::Acp(args) => cmd::acp::run(&args, config.as_deref()),
            ClawkCommand::Send(args) => cmd::send::run(&args, config.as_deref()),
            ClawkCommand::Call(args) => cmd::call::run(&args),
            ClawkCommand::Approvals(args) => cmd::approvals::list_waiting(&args),
            ClawkCommand::Approve(args) => cmd::approvals::approve_call(&args),
            ClawkCommand::Deny(args) => cmd::approvals::deny_call(&args),
            ClawkCommand::Stop(args) => cmd::stop::run(&args),
            ClawkCommand::Validate(args) => cmd::validate::run(&args, config.as_deref()),
            ClawkCommand::Schema(args) => cmd::schema::run(&args),
            ClawkCommand::Swarm(args) => cmd::swarm::run(&args, config.as_deref()),
            ClawkCommand::DeadLetters(args) => cmd::dead_letters::run(args, config.as_deref()),
            ClawkCommand::Outbox(args) => cmd::outbox::run(&args),
            ClawkCommand::Login(args) => cmd::login::run(&args, config.as_deref()),
            ClawkCommand::Provider(args) => cmd::provider::run(&args, config.as_deref()),
            ClawkCommand::Channels(args) => cmd::channels::run(&args, config.as_deref()),
            ClawkCommand::Logs(args) => cmd::logs::run(&args, config.as_deref()),
            ClawkCommand::Trace(args) => cmd::trace::run(&args, config.as_deref()),
            ClawkCommand::Policy(args) => cmd::policy::run(&args, config.as_deref()),
            ClawkCommand::Atlas(args) => cmd::atlas::run(&args),
            ClawkCommand::Resolve(args) => cmd::resolve::run(&args),
            ClawkCommand::Memory(args) => cmd::memory::run(&args),
            ClawkCommand::Tools(args) => cmd::tools::run(&args, config.as_deref()),
            ClawkCommand::Mcp(args) => cmd::mcp::run(&args, config.as_deref()),
            ClawkCommand::Trust(args) => cmd::trust::run(&args, config.as_deref()),
            ClawkCommand::Sessions(args) => cmd::sessions::run(&args),
            ClawkCommand::State(args) => cmd::state::run(&args),
            ClawkCommand::Backup(args) => cmd::backup::run_backup(&args),
            ClawkCommand::Restore(args) => cmd::backup::run_restore(&args),
            ClawkCommand::Undo(args) => cmd::undo::run(&args),
            ClawkCommand::Upgrade(args) => cmd::upgrade::run(&args, config.as_deref()),
            ClawkCommand::Skill(args) => cmd::skill::run(&args, config.as_deref()),
            ClawkCommand::Effects(args) => cmd::effects::run(&args),
            ClawkCommand::Sandbox(args) => cmd::sandbox::run(&args, config.as_deref()),
            ClawkCommand::Budget(args) => cmd::budget::run(&args),
            ClawkCommand::Conformance(args) => cmd::conformance::run(&args),
            ClawkCommand::Doctor(args) => cmd::doctor::run(&args, config.as_deref()),
            ClawkCommand::Config(args) => cmd::config::run(&args, config.as_deref()),
            ClawkCommand::Completions(args) => cmd::completions::run(&args),
            ClawkCommand::Man(args) => cmd::man::run(&args),
        }
    }
}
