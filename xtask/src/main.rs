//! The project's own tasks: `cargo xtask check | tidy | docs | screens | ci | parts | dist | footprint | sim | soak | bench`.
//!
//! *Owns:* checks of the source tree that the compiler does not make, and the order of CI. *Depends on:* no crate of clawk; it runs
//! tools. *Must not know:* what the product does. *Start reading at:* [`ci`], then [`tidy`].

mod bench;
mod check;
mod ci;
mod dist;
mod docs;
mod features;
mod footprint;
mod licences;
mod parts;
mod run;
mod screens;
mod sim;
mod soak;
mod tidy;

use std::process::ExitCode;

use run::say;

const HELP: &str = "\
usage: cargo xtask COMMAND

  check   before a commit: fmt, tidy, clippy and unit tests of what changed and of what depends on it: [CRATE...]
  tidy    check what no compiler checks: layers, file sizes, crate headers, docs that name what exists
  docs    write the pages that are made from data (coverage, claw.yaml, command line), check every link, render target/book
  screens draw the pictures of terminals in docs/screens from what the program shows
  ci      run everything CI runs; installs what the tests need (cargo, pip, npm, apt-get) and prints a summary
  parts   only install the real parts that tests run against, and print where they are
  dist    build the program that is shipped (profile `dist`, every optional part): [--features LIST]
  features  check that the program compiles without optional parts and with each one alone: [PART...]
  footprint  compare the release program's size and its dependencies with xtask/footprint.toml; 5 % more fails
  sim     play the deterministic simulation, each seed twice: [--seeds N | --hours H] [--from N]
  soak    run long loads and faults that CI leaves out or runs in a small form:
          [channels [WORD…] | doors | memory [--turns N] | hosts [--minutes N] [--conversations N]
           | swarm [--backend NAME] [--tasks N] [--workers N] (network namespaces: needs root)]
  bench   measure the shipped program on this machine: [--quick] [--format json] [--only WORDS]
          [--most ENTRIES] [--profile NAME] [--program PATH] [--wasm]
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = args.first().map(String::as_str).unwrap_or_default();
    if args.iter().any(|word| word == "--help" || word == "-h") {
        say(HELP);
        return ExitCode::SUCCESS;
    }
    let done = match (command, args.len()) {
        ("check", _) => check::run(args.get(1..).unwrap_or_default()),
        ("tidy", 1) => tidy::check(&run::root()),
        ("docs", 1) => docs::run(&run::root()),
        ("screens", 1) => screens::run(),
        ("ci", 1) => ci::run(),
        ("dist", _) => dist::run(args.get(1..).unwrap_or_default()),
        ("features", _) => features::run(args.get(1..).unwrap_or_default()),
        ("footprint", 1) => footprint::run(),
        ("bench", _) => bench::run(args.get(1..).unwrap_or_default()),
        ("sim", _) => sim::run(args.get(1..).unwrap_or_default()),
        ("soak", _) => soak::run(args.get(1..).unwrap_or_default()),
        ("parts", 1) => parts::install().map(|dir| say(&dir.display().to_string())),
        ("help", 1) => {
            say(HELP);
            return ExitCode::SUCCESS;
        }
        _ => {
            say(HELP);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
