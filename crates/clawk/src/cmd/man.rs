//! `clawk man`: prints manual pages.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

/// Flags of `clawk man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  clawk man | man -l -\n  clawk man --dir ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Write one page for each verb into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the main page, or writes all pages.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let command = crate::cli::CommandLine::command();
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("can't make `{}`", dir.display()))?;
            clap_mangen::generate_to(command, dir)
                .with_context(|| format!("can't write to `{}`", dir.display()))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
