//! Copies an agent's state for a dry run: its memory and its spending. The original state is never changed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::state::kept::{self, Options, StateDir};
use crate::state::server::StateServer;

/// Largest state that is copied, in bytes.
const MAX_BYTES: u64 = 2 << 30;
/// Folders that are not copied. A dry run creates them if needed.
const LEFT_OUT: [&str; 3] = ["cache", "undo", "keys"];
/// The file of a directory that names the state's server. It is not copied, because the copy is a separate state.
const SERVER: &str = "postgres.json";
/// The folder of the state within the dry run's folder.
const STATE: &str = "state";

/// The dry run's folder, which is deleted when dropped, and the path of the state in it.
type DryRunCopy = (TempDir, PathBuf);

fn create_folder() -> Result<DryRunCopy> {
    let folder = tempfile::Builder::new()
        .prefix("clawk-dry-run-")
        .tempdir()
        .context("can't make a folder for the dry run's state")?;
    let state = folder.path().join(STATE);
    Ok((folder, state))
}

/// Makes a folder with a copy of the server's current state, and of the files in `beside`. Hosts may use the state meanwhile.
///
/// # Errors
/// The server can't be reached, the key of encrypted stores is missing or wrong, or the state is too large.
pub(crate) async fn copy_server(server: StateServer, beside: &Path) -> Result<DryRunCopy> {
    let (folder, state) = create_folder()?;
    let to = state.clone();
    let copied = tokio::task::spawn_blocking(move || kept::copy_of_server(&server, &to, MAX_BYTES));
    copied
        .await?
        .context("the dry run begins with a copy of the agent's state, which lies on PostgreSQL")?;
    if beside.is_dir() {
        fs::create_dir_all(&state)?;
        let mut left = MAX_BYTES;
        copy_files(beside, &state, &mut left)
            .with_context(|| format!("can't copy `{}`", beside.display()))?;
    }
    Ok((folder, state))
}

/// Makes a folder with a copy of the state in `from`, if there is one. No process may use the state meanwhile.
///
/// # Errors
/// Another process owns the state, the state is too large, or it can't be copied.
pub(crate) fn copy_state(from: &Path) -> Result<DryRunCopy> {
    let (folder, to) = create_folder()?;
    if !from.join("state.db").is_file() {
        return Ok((folder, to));
    }
    fs::create_dir(&to)?;
    let held = StateDir::open(from, Options::default()).context(
        "the dry run begins with a copy of the agent's state; stop the agent, or name another state with `--state DIR`",
    )?;
    let mut left = MAX_BYTES;
    let copied = copy_files(from, &to, &mut left);
    held.close();
    copied.with_context(|| format!("can't copy the state in `{}`", from.display()))?;
    Ok((folder, to))
}

fn copy_files(from: &Path, to: &Path, left: &mut u64) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let target = to.join(&name);
        if LEFT_OUT
            .iter()
            .chain([&SERVER])
            .any(|out| OsStr::new(out) == name)
        {
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy_files(&entry.path(), &target, left)?;
        } else if kind.is_file() && name != OsStr::new("lock") {
            let size = entry.metadata()?.len();
            let Some(rest) = left.checked_sub(size) else {
                bail!("it holds more than {MAX_BYTES} bytes; name another state with `--state DIR`");
            };
            *left = rest;
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
