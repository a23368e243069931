//! `clawk trust`: consents to what a folder's files would run, before its agent is started.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::json;

use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, Format};
use crate::{manifest, trust};

/// Flags of `clawk trust`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A manifest, or a folder with a `claw.yaml`
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Only list the programs, and agree to nothing
    #[arg(long, conflicts_with = "forget")]
    show: bool,

    /// Withdraw the agreement; clawk asks again
    #[arg(long)]
    forget: bool,

    #[command(flatten)]
    outside: AllowOutsideArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk trust --show cloned/       list the programs that its agent would run
  clawk trust cloned/              agree: `clawk run` and `clawk serve` do not ask again
  clawk trust --forget cloned/     take it back

You agree to a digest of the commands, their variables, and the content of their files in the folder. If one of them
changes, the next start on a terminal asks again. Without a terminal, naming the manifest is the agreement.
`consents.jsonl` in the state directory records every agreement.";

/// Shows what would run, gives consent, or withdraws it.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let file = if args.folder.is_dir() {
        args.folder.join("claw.yaml")
    } else {
        args.folder.clone()
    };
    if !file.is_file() {
        bail!(
            "there is no manifest `{}`; name it, or its folder",
            file.display()
        );
    }
    let config = Config::load(config, Some(&file))?.with_outside_access(args.outside);
    let (manifest, _) = manifest::load_valid_manifest(&file, &config)?;
    let runs = trust::find_startup_programs(&config, Some(&manifest));
    let digest = trust::digest_programs(&runs);
    let word = if args.forget {
        if trust::forget_consent(digest)? {
            "forgotten"
        } else {
            "was not trusted"
        }
    } else if args.show || runs.is_empty() {
        "shown"
    } else {
        trust::remember_consent(digest, &manifest.dir)?;
        "trusted"
    };
    if args.format == Format::Json {
        out::print_json(&json!({ "digest": digest, "result": word, "runs": runs }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if runs.is_empty() {
        out::print_line("its files would run nothing on this machine")?;
        return Ok(ExitCode::SUCCESS);
    }
    for entry in &runs {
        out::print_line(entry.display_line())?;
    }
    if word != "shown" {
        out::print_line(format!("{word}: {digest}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
