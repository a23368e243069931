//! `clawk backup` and `clawk restore`: an agent's whole state in one file, made while the agent runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_recall::seal::SealKeyring;
use serde_json::json;

use super::state::identity::ManifestLookup;
use crate::out::{self, Format};
use crate::state::backup::BackupReport;
use crate::state::backup::read::{BackupReader, RestoreTarget, SigningKey};
use crate::state::backup::write::{BackupRequest, write_backup};
use crate::state::{StateSelector, identity, kept, state_home};
use crate::{manifest, state};

const BACKUP_HELP: &str = "\
Examples:
  clawk backup desk.backup --agent desk
  clawk backup desk.backup --encrypt BACKUP_KEY
  clawk backup desk.backup --with-keys --encrypt BACKUP_KEY

The agent may run. The file holds journal, contents, memory, channels, undo, audit and history as of one moment; it appears whole or not
at all. It holds no keys and no tokens, unless --with-keys says so. `--encrypt` takes a reference to 64 hexadecimal digits
(`openssl rand -hex 32`), as encrypted stores do. Stores on Qdrant, on MCP servers and on other databases are not in it.";

const RESTORE_HELP: &str = "\
Examples:
  clawk restore desk.backup --check
  clawk restore desk.backup --claw /srv/desk/claw.yaml
  clawk restore desk.backup --state /srv/restored
  clawk restore desk.backup --key BACKUP_KEY --replace

Every file, every chain, every content and the signatures are verified before anything takes its place. A state on PostgreSQL is restored
into a directory first; `clawk state move` brings it to a server.";

/// Flags of `clawk backup`.
#[derive(Debug, clap::Args)]
#[command(after_help = BACKUP_HELP)]
pub(crate) struct BackupArgs {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    which: StateSelector,

    /// Encrypt the file with this secret, 64 hexadecimal digits
    #[arg(long, value_name = "REF")]
    encrypt: Option<String>,

    /// Also write the agent's keys and tokens into the file: whoever has it can sign as this agent
    #[arg(long)]
    with_keys: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Flags of `clawk restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = RESTORE_HELP)]
pub(crate) struct RestoreArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Restore into this directory [default: the agent's, below the folder of all states]
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    state: Option<PathBuf>,

    /// The manifest that the state is to belong to
    #[arg(long, value_name = "FILE", conflicts_with = "check", value_parser = manifest::manifest_path_parser())]
    claw: Option<PathBuf>,

    /// Set a state aside that is there already
    #[arg(long)]
    replace: bool,

    /// If the backup has no keys: sign with a new key from here on; earlier signatures are kept beside it
    #[arg(long, conflicts_with = "check")]
    new_key: bool,

    /// Verify the backup and restore nothing
    #[arg(long, conflicts_with = "replace")]
    check: bool,

    /// The secret that encrypts the backup
    #[arg(long, value_name = "REF")]
    key: Option<String>,

    #[arg(from_global)]
    config: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Writes a backup.
pub(crate) fn run_backup(args: &BackupArgs) -> Result<ExitCode> {
    let dir = args.which.find_dir()?;
    let vault = args.encrypt.as_deref().map(load_vault).transpose()?;
    let report = write_backup(&BackupRequest {
        dir: &dir,
        file: &args.file,
        keys: args.with_keys,
        vault,
    })?;
    match args.format {
        Format::Json => out::print_json(&json!({"file": args.file, "state": dir, "backup": report}))?,
        Format::Human => print_report(&format!("`{}` is written", args.file.display()), &report)?,
    }
    if !args.with_keys {
        out::print_note(
            "the keys are not in it: back up the `keys` folder apart, or restore with `--new-key`",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Restores a backup, or checks it.
pub(crate) fn run_restore(args: &RestoreArgs) -> Result<ExitCode> {
    let find_key = || match args.key.as_deref() {
        Some(reference) => load_vault(reference),
        None => bail!(
            "`{}` is encrypted; `--key REF` names the secret that opens it",
            args.file.display()
        ),
    };
    let backup = BackupReader::open(&args.file, find_key)?;
    if args.check {
        let folder = tempfile::tempdir().context("can't make a folder for the check")?;
        let report = backup.unpack_to(folder.path())?;
        match args.format {
            Format::Json => out::print_json(&json!({"file": args.file, "valid": true, "backup": report}))?,
            Format::Human => print_report(&format!("`{}` is whole and valid", args.file.display()), &report)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = match &args.claw {
        Some(claw) => Some(ManifestLookup::load(claw, args.config.as_deref())?),
        None => None,
    };
    let dir = match (&args.state, &wanted) {
        (Some(dir), _) => dir.clone(),
        (None, Some(wanted)) => wanted.lookup().target_dir()?,
        (None, None) => state_home()?.join(agent_named_in(args)?),
    };
    let (report, aside) = RestoreTarget {
        dir: &dir,
        replace: args.replace,
        signing_key: if args.new_key {
            SigningKey::Renewed
        } else {
            SigningKey::Kept
        },
    }
    .restore_backup(backup)?;
    if let Some(wanted) = &wanted {
        identity::adopt_state(&dir, wanted.lookup().agent, wanted.lookup().origin)?;
    }
    match args.format {
        Format::Json => {
            out::print_json(&json!({"state": dir, "set_aside": aside, "backup": report}))?;
        }
        Format::Human => print_report(&format!("restored to `{}`, and verified", dir.display()), &report)?,
    }
    if let Some(aside) = aside {
        out::print_note(format!("what was there is in `{}`", aside.display()));
    }
    say_what_lacks(args, &dir, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// The name in the backup's header. It names a folder, so it must be one word.
fn agent_named_in(args: &RestoreArgs) -> Result<String> {
    let folder = tempfile::tempdir().context("can't make a folder for the check")?;
    let find_key = || match args.key.as_deref() {
        Some(reference) => load_vault(reference),
        None => bail!("the backup is encrypted"),
    };
    let report = BackupReader::open(&args.file, find_key)?.unpack_to(folder.path())?;
    let name = report.header.agent;
    if name.starts_with('.')
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        bail!(
            "the backup names the agent `{}`; say where it goes: `--state DIR`",
            out::one_line(&name)
        );
    }
    Ok(name)
}

fn say_what_lacks(args: &RestoreArgs, dir: &Path, report: &BackupReport) -> Result<()> {
    let signed = !kept::SqliteReader::open(dir)?.heads()?.is_empty();
    if signed && !report.header.keys && !dir.join("keys/checkpoint.key").is_file() {
        out::print_note(format!(
            "the record is signed and the backup has no keys: put the old `keys` folder into `{}`, or restore again with `--new-key`; \
             until then the state can be read and verified, and no agent starts with it",
            dir.display()
        ));
    }
    if args.claw.is_none() && args.state.is_none() {
        let owner = identity::owner_of(dir)?;
        let owner = owner
            .map(|owner| owner.to_string_lossy().into_owned())
            .unwrap_or_default();
        if !Path::new(&owner).is_file() {
            out::print_note(format!(
                "the manifest that it belongs to is not here (`{}`): `clawk state adopt {} --claw FILE` names the new place",
                out::one_line(&owner),
                dir.file_name().unwrap_or_default().to_string_lossy()
            ));
        }
    }
    Ok(())
}

fn load_vault(reference: &str) -> Result<SealKeyring> {
    let key = state::kept::load_key(reference).with_context(|| {
        format!("the secret `{reference}` is to hold the backup's key, 64 hexadecimal digits")
    })?;
    Ok(SealKeyring::new(key))
}

fn print_report(done: &str, report: &BackupReport) -> Result<()> {
    let header = &report.header;
    out::print_line(done)?;
    out::print_line(format!(
        "  agent `{}` ({}), as of {}: {} events, {} files, {} bytes{}{}",
        out::one_line(&header.agent),
        header.id,
        out::one_line(&header.at),
        report.events,
        report.files,
        report.bytes,
        if report.encrypted {
            ", encrypted"
        } else {
            ", NOT encrypted"
        },
        if header.keys { ", with keys" } else { "" },
    ))?;
    if report.lost > 0 {
        out::print_note(format!(
            "{} contents were lost before the backup; `clawk trace verify` names them",
            report.lost
        ));
    }
    Ok(())
}
