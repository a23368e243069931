//! `clawk import`: converts another runtime's agent to a `claw.yaml`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use clawk_import::{ImportResult, Runtime};
use serde_json::json;

use crate::cmd::validate::check_document;
use crate::config::Config;
use crate::out::{self, Format};

/// Flags of `clawk import`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The runtime whose files are read
    #[arg(value_name = "FROM", value_enum)]
    from: RuntimeArg,

    /// Its folder or its configuration file, for example `~/.openclaw`
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Folder to write the new agent to; it must be empty or missing
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk import openclaw ~/.openclaw --output my-agent    then: clawk validate my-agent/claw.yaml
  clawk import zeroclaw ~/.zeroclaw/config.toml          writes to ./imported
  clawk import moltis ~/.config/moltis --format json     the report as JSON

No secret is copied: the new files hold references, and IMPORT.md says where each value is. What the other runtime
allowed without asking is asked for here. Every setting that does not come over is listed with the reason.";

/// The name of a runtime on the command line.
#[derive(Debug, Clone, Copy)]
struct RuntimeArg(Runtime);

impl ValueEnum for RuntimeArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(Runtime::Openclaw),
            Self(Runtime::Zeroclaw),
            Self(Runtime::Nanobot),
            Self(Runtime::Picoclaw),
            Self(Runtime::Ironclaw),
            Self(Runtime::Zeptoclaw),
            Self(Runtime::Nullclaw),
            Self(Runtime::Moltis),
            Self(Runtime::Tinyclaw),
            Self(Runtime::Nanoclaw),
            Self(Runtime::Clawlet),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

/// Reads the agent, writes the new folder, and reports what was not converted. The folder appears complete and valid, or not at
/// all.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = args.from.0;
    let target = args.output.clone().unwrap_or_else(|| PathBuf::from("imported"));
    if fs::read_dir(&target).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!(
            "`{}` is not empty; choose another folder with `--output`",
            target.display()
        );
    }
    let import = clawk_import::import_agent(runtime, &args.path)?;
    let staged = StagedFolder::create_beside(&target)?;
    for (name, content) in &import.files {
        write(&staged.folder.join(name), content)?;
    }
    check_manifest(&staged.folder.join("claw.yaml"))?;
    staged.move_into_place()?;
    print_report(args, &target, &import)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks the written manifest as `clawk validate` does.
fn check_manifest(manifest: &Path) -> Result<()> {
    let config = Config::load(None, Some(manifest))
        .context("the imported `clawk.toml` is not valid; nothing was written")?;
    let loaded = check_document(manifest, &config)?;
    if loaded.is_valid() {
        return Ok(());
    }
    let errors = loaded.report().errors;
    let errors: Vec<String> = errors
        .iter()
        .map(|error| {
            format!(
                "  {}: {}",
                out::one_line(&error.path),
                out::one_line(&error.message)
            )
        })
        .collect();
    bail!(
        "the imported agent is not valid, so nothing was written; please report this as a fault of the import:\n{}",
        errors.join("\n")
    )
}

/// A folder beside the target, which a single rename moves to the target. Until then it is deleted when dropped.
struct StagedFolder {
    folder: PathBuf,
    target: PathBuf,
}

impl StagedFolder {
    fn create_beside(target: &Path) -> Result<Self> {
        // If the target is a link to an empty folder, the folder it points to is replaced.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned()); // silent-ok: it is not there yet
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            Some(_) | None => PathBuf::from("."),
        };
        let name = target.file_name().context("`--output` names no folder")?;
        fs::create_dir_all(&parent).with_context(|| format!("can't make `{}`", parent.display()))?;
        let folder = parent.join(format!(
            ".{}.import-{}",
            name.to_string_lossy(),
            std::process::id()
        ));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("can't make `{}`", folder.display()))?;
        Ok(Self { folder, target })
    }

    /// Moves the folder to the target and replaces an empty folder there. A folder that is no longer empty is left unchanged.
    fn move_into_place(self) -> Result<()> {
        fs::rename(&self.folder, &self.target)
            .with_context(|| format!("can't write `{}`; nothing was written", self.target.display()))
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder); // silent-ok: it was moved, or what is left of it is named by its error
    }
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let failed = || format!("can't write `{}`", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    // The file may hold what the agent knew about its user, so only the owner may read it.
    let mut file = OpenOptions::new();
    let mut file = file
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(failed)?;
    file.write_all(content).with_context(failed)
}

fn print_report(args: &Args, target: &Path, import: &ImportResult) -> Result<()> {
    let manifest = target.join("claw.yaml");
    if args.format == Format::Json {
        return out::print_json(&json!({"manifest": manifest, "report": import.report}));
    }
    let report = &import.report;
    out::print_line(format!(
        "wrote {} and {} more files",
        manifest.display(),
        import.files.len().saturating_sub(1)
    ))?;
    out::print_line(format!(
        "{} parts came over, {} settings did not:",
        report.carried.len(),
        report.left.len()
    ))?;
    for left in &report.left {
        out::print_line(format!(
            "  {}: {}",
            out::one_line(&left.setting),
            out::one_line(&left.reason)
        ))?;
    }
    if !report.secrets.is_empty() {
        out::print_line("secrets that it needs, in the environment or in $CLAW_SECRETS_DIR:")?;
        for secret in &report.secrets {
            out::print_line(format!("  {} ({})", secret.name, out::one_line(&secret.found)))?;
        }
    }
    out::print_line(format!("next:  clawk validate {}", manifest.display()))?;
    out::print_line(format!("       clawk doctor {}", manifest.display()))?;
    Ok(())
}
