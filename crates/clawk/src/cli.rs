//! The command line: verbs, global flags, examples. Each verb's own flags stand in its module under [`crate::cmd`].

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgAction, Parser, Subcommand};

use crate::cmd;

/// Runs AI agents declared in a `claw.yaml` through one governed path, and proves afterwards what they did.
#[derive(Debug, Parser)]
#[command(name = "clawk", version, max_term_width = 100, disable_help_subcommand = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Log to standard error; -vv for more, -vvv for all of it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Runtime configuration; default `clawk.toml` beside the manifest, else `$XDG_CONFIG_HOME/clawk/config.toml`
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  clawk init my-agent                      write a claw.yaml that runs
  clawk run my-agent/claw.yaml             talk to it
  clawk run claw.yaml -m 'What is new?'    one turn
  clawk serve claw.yaml --stdio            the agent as a JSON-RPC service
  clawk trace verify --agent my-agent      check the proof of what it did

Exit codes: 0 done, 1 the thing checked is bad or the work failed, 2 usage, 130 interrupted, 143 terminated.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write a commented claw.yaml that runs
    Init(cmd::init::Args),
    /// Talk to an agent in the terminal
    Run(cmd::run::Args),
    /// Serve an agent to other programs
    Serve(cmd::serve::Args),
    /// Say something to an agent that is served, and print its answer
    Send(cmd::send::Args),
    /// List what waits for a person in a running agent
    Approvals(cmd::approvals::ListArgs),
    /// Say yes to a call that waits
    Approve(cmd::approvals::ApproveArgs),
    /// Say no to a call that waits
    Deny(cmd::approvals::DenyArgs),
    /// Stop an agent at once, look at what is stopped, lift it
    Stop(cmd::stop::Args),
    /// Check a manifest, or one primitive; every finding at once
    Validate(cmd::validate::Args),
    /// Print the JSON Schema of a manifest or a primitive, for editors
    Schema(cmd::schema::Args),
    /// Look at messages whose turn could not be finished, and say them again
    DeadLetters(cmd::dead_letters::Args),
    /// Look at answers that are owed to conversations, and try dead ones again
    Outbox(cmd::outbox::Args),
    /// Look at what happened, check that the record is whole, export it
    Trace(cmd::trace::Args),
    /// Say what a rule set decides and why; test it; replay the past under another one
    Policy(cmd::policy::Args),
    /// Check an Atlas, the folder that says what agents may see and do; show what it holds
    Atlas(cmd::atlas::Args),
    /// Say what Atlases give an agent for a goal: context, actions, what waits for a person
    Resolve(cmd::resolve::Args),
    /// Look at what an agent remembers, search it, export it, forget it on the record
    Memory(cmd::memory::Args),
    /// List the sessions of an agent
    Sessions(cmd::sessions::Args),
    /// List what an agent did to the world, and what nobody knows it did
    Effects(cmd::effects::Args),
    /// Try the box that tools run in, or have it explained
    Sandbox(cmd::sandbox::Args),
    /// Show what is spent, set aside and left
    Budget(cmd::budget::Args),
    /// Check an agent against the protocol's test vectors
    Conformance(cmd::conformance::Args),
    /// Check what this host can enforce and what is misconfigured, with cures
    Doctor(cmd::doctor::Args),
    /// Show the runtime configuration in force, and from where
    Config(cmd::config::Args),
    /// Print a completion script for a shell
    Completions(cmd::completions::Args),
    /// Print the manual page, or write all of them to a folder
    Man(cmd::man::Args),
}

impl Cli {
    /// Runs the verb.
    ///
    /// # Errors
    /// The work could not be done; exit code 1.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let config = self.config;
        match self.verb {
            Verb::Init(args) => cmd::init::run(&args),
            Verb::Run(args) => cmd::run::run(&args, config.as_deref()),
            Verb::Serve(args) => cmd::serve::run(&args, config.as_deref()),
            Verb::Send(args) => cmd::send::run(&args, config.as_deref()),
            Verb::Approvals(args) => cmd::approvals::list(&args),
            Verb::Approve(args) => cmd::approvals::approve(&args),
            Verb::Deny(args) => cmd::approvals::deny(&args),
            Verb::Stop(args) => cmd::stop::run(&args),
            Verb::Validate(args) => cmd::validate::run(&args, config.as_deref()),
            Verb::Schema(args) => cmd::schema::run(&args),
            Verb::DeadLetters(args) => cmd::dead_letters::run(args, config.as_deref()),
            Verb::Outbox(args) => cmd::outbox::run(&args),
            Verb::Trace(args) => cmd::trace::run(&args, config.as_deref()),
            Verb::Policy(args) => cmd::policy::run(&args, config.as_deref()),
            Verb::Atlas(args) => cmd::atlas::run(&args),
            Verb::Resolve(args) => cmd::resolve::run(&args),
            Verb::Memory(args) => cmd::memory::run(&args),
            Verb::Sessions(args) => cmd::sessions::run(&args),
            Verb::Effects(args) => cmd::effects::run(&args),
            Verb::Sandbox(args) => cmd::sandbox::run(&args, config.as_deref()),
            Verb::Budget(args) => cmd::budget::run(&args),
            Verb::Conformance(args) => cmd::conformance::run(&args),
            Verb::Doctor(args) => cmd::doctor::run(&args, config.as_deref()),
            Verb::Config(args) => cmd::config::run(&args, config.as_deref()),
            Verb::Completions(args) => cmd::completions::run(&args),
            Verb::Man(args) => cmd::man::run(&args),
        }
    }
}
