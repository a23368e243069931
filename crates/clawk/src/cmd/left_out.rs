//! `clawk conformance` in a build without it: accepts any arguments, and names the missing feature.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, bail};

/// Whatever is said to the verb.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "This build leaves the verb out; build with `--features conformance`."
)]
pub(crate) struct Args {
    /// Not read: this build leaves the verb out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// Refuses, and names the missing feature.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let words: Vec<_> = args.words.iter().map(|word| word.to_string_lossy()).collect();
    bail!(
        "this build of clawk leaves out `conformance {}`: build with `cargo build --release --features conformance`, or use a \
         shipped build (`cargo xtask dist`)",
        words.join(" ")
    );
}
