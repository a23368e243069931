//! `clawk config`: shows the configuration in force and the source of each value.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use crate::config::Config;
use crate::out::{self, Format, TerminalStyle};
use crate::trust;

/// Flags of `clawk config`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk config claw.yaml\n  clawk config --config site.toml --format json"
)]
pub(crate) struct Args {
    /// The manifest; clawk looks for `clawk.toml` beside it
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints every key.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let config = Config::load(config, args.manifest.as_deref())?;
    let (keys, runs) = (config.in_force()?, trust::find_startup_programs(&config, None));
    match args.format {
        Format::Json => {
            out::print_json(&serde_json::json!({ "file": config.file, "keys": keys, "runs": runs }))?
        }
        Format::Human => {
            let paint = TerminalStyle::for_stdout();
            let file = config
                .file
                .as_deref()
                .map_or_else(|| "no file: all defaults".to_owned(), |f| f.display().to_string());
            out::print_line(paint.dim(&format!("# {file}")))?;
            for key in keys {
                let origin = if key.from == "default" {
                    paint.dim("  # default")
                } else {
                    String::new()
                };
                out::print_line(format!("{} = {}{origin}", key.key, key.value))?;
            }
            for entry in &runs {
                let line = entry.display_line();
                out::print_line(paint.dim(&format!("# a start would run {line}")))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
