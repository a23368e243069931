//! `clawk schema [KIND]`: JSON Schema, for editors.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_manifest::{SCHEMA_KINDS, schema_file, schema_for_kind};

use crate::out;

/// Flags of `clawk schema`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kind of document: Claw (includes all others), Tool, Policy, …; `openapi` prints the HTTP API's description
    #[arg(value_name = "KIND", default_value = "Claw")]
    kind: String,

    /// Write the schemas of all kinds into this folder instead
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The word that selects the CRA API's OpenAPI document.
const OPENAPI: &str = "openapi";

fn write(path: &std::path::Path, text: &str) -> Result<ExitCode> {
    std::fs::write(path, format!("{text}\n"))
        .with_context(|| format!("`{}` cannot be written", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

const EXAMPLES: &str = "\
Examples:
  clawk schema > claw.schema.json
  clawk schema Policy
  clawk schema openapi > schema/openapi.json
  clawk schema --out schema/

An editor with a YAML language server completes a file that starts with
  # yaml-language-server: $schema=./claw.schema.json";

/// Prints one schema, or writes all of them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.kind == OPENAPI {
        let text = clawk_server::http::openapi_document().to_pretty_json()?;
        if let Some(folder) = &args.out {
            return write(&folder.join("openapi.json"), &text);
        }
        out::lines(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(folder) = &args.out else {
        let Some(schema) = schema_for_kind(&args.kind) else {
            bail!(
                "`{}` is not a kind of document; known: {}",
                args.kind,
                SCHEMA_KINDS.join(", ")
            );
        };
        out::print_json(&schema)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(folder).with_context(|| format!("`{}` cannot be made", folder.display()))?;
    for kind in SCHEMA_KINDS {
        let path = folder.join(schema_file(kind));
        let text = schema_for_kind(kind)
            .map(|schema| serde_json::to_string_pretty(&schema))
            .transpose()?;
        std::fs::write(&path, text.unwrap_or_default() + "\n")
            .with_context(|| format!("`{}` cannot be written", path.display()))?;
        out::print_line(path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
