//! Installs an upgrade: replaces the files and restarts the running agent.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clawk_manifest::Manifest;
use clawk_server::{ControlClient, ControlError};
use serde_json::json;

use super::{Args, UpgradeCandidate, load_for_start as judged_manifest};
use crate::config::Config;

/// Time limit for the agent to end its turns and to start again.
const BACK: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);
/// Suffix of the replaced file's name.
const BEFORE: &str = ".before";

/// The replaced files.
#[derive(Debug, Default)]
pub(super) struct AppliedUpgrade {
    pub(super) replaced: Vec<PathBuf>,
}

/// The result of restarting the agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RestartOutcome {
    /// No agent is running.
    NotRunning,
    /// The agent restarted.
    Restarted,
    /// The agent still runs the old version and can't restart by itself. Holds the reason.
    Stays(String),
    /// The agent did not restart, and the old files were restored.
    TakenBack,
}

impl RestartOutcome {
    pub(super) const fn is_well(&self) -> bool {
        matches!(self, Self::NotRunning | Self::Restarted)
    }

    pub(super) const fn outcome_word(&self) -> &'static str {
        match self {
            Self::NotRunning => "not_running",
            Self::Restarted => "restarted",
            Self::Stays(_) => "stays",
            Self::TakenBack => "taken_back",
        }
    }

    pub(super) fn describe_outcome(&self) -> String {
        match self {
            Self::NotRunning => "no agent runs with this state: the next start takes it up".to_owned(),
            Self::Restarted => "the running agent has started again with it".to_owned(),
            Self::Stays(why) => {
                format!("the running agent goes on with the old one until you restart it: {why}")
            }
            Self::TakenBack => format!(
                "the agent did not come back within {} s: the old files are in their places again; look at its log, and start it",
                BACK.as_secs()
            ),
        }
    }
}

/// Replaces the old files by the new ones, each completely or not at all.
///
/// # Errors
/// A file can't be written, or the new manifest has another meaning at the old one's path.
pub(super) fn apply_upgrade(
    args: &Args,
    new: &UpgradeCandidate<'_>,
    judged: Option<&Manifest>,
    config: &Config,
) -> Result<AppliedUpgrade> {
    let mut applied = AppliedUpgrade::default();
    if let (Some(path), Some(judged)) = (new.manifest, judged) {
        let place = args.manifest.canonicalize()?;
        replace_file(path, &place, |fresh| means_the_same(fresh, judged, config))?;
        applied.replaced.push(place);
    }
    if let Some(path) = new.program {
        let place = std::env::current_exe().context("where this program lies is not known")?;
        replace_file(path, &place, |_| Ok(()))?;
        applied.replaced.push(place);
    }
    Ok(applied)
}

/// Checks that the manifest at its new path equals the tested one, because its references are relative to its folder.
fn means_the_same(fresh: &Path, judged: &Manifest, config: &Config) -> Result<()> {
    let here = judged_manifest(fresh, config)?;
    let here = Manifest {
        dir: judged.dir.clone(),
        ..here
    };
    if here != *judged {
        bail!(
            "its references lead elsewhere from the old manifest's folder: put it beside the old one first"
        );
    }
    Ok(())
}

fn adjacent_path(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    path.with_file_name(name)
}

/// Copies `new` to `place`. The old file is kept beside it.
fn replace_file(new: &Path, place: &Path, check: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let context = || {
        format!(
            "`{}` can't take the place of `{}`",
            new.display(),
            place.display()
        )
    };
    let mode = fs::metadata(place).with_context(context)?.permissions().mode();
    let end = place.extension().unwrap_or_default().to_string_lossy();
    let dot = if end.is_empty() { "" } else { "." };
    let fresh = adjacent_path(place, &format!(".new-{}{dot}{end}", std::process::id()));
    let made = || -> Result<()> {
        fs::copy(new, &fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
        File::open(&fresh)?.sync_all()?;
        check(&fresh)?;
        fs::copy(place, adjacent_path(place, BEFORE))?;
        File::open(adjacent_path(place, BEFORE))?.sync_all()?;
        fs::rename(&fresh, place)?;
        if let Some(folder) = place.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    made().with_context(context).inspect_err(|_| {
        let _left = fs::remove_file(&fresh); // silent-ok: the error says more than what became of the copy
    })
}

/// Restarts the running agent and waits until it answers. If it does not, the old files are restored.
///
/// # Errors
/// The old files can't be restored.
pub(super) async fn restart_agent(state: &Path, applied: &AppliedUpgrade) -> Result<RestartOutcome> {
    let asked = match ControlClient::connect(state).await {
        Ok(mut client) => client.call_method("clawk.restart", &json!({})).await,
        Err(error) => Err(error),
    };
    match asked {
        Ok(told) => {
            let before = told.get("run").cloned();
            let until = Instant::now() + BACK;
            while Instant::now() < until {
                tokio::time::sleep(LOOK).await;
                let Ok(mut client) = ControlClient::connect(state).await else {
                    continue; // silent-ok: it is between its end and its start
                };
                let status = client.call_method("clawk.restart.status", &json!({})).await;
                // silent-ok: as above
                if status.is_ok_and(|status| status.get("run").cloned() != before) {
                    return Ok(RestartOutcome::Restarted);
                }
            }
            for place in &applied.replaced {
                fs::rename(adjacent_path(place, BEFORE), place)
                    .with_context(|| format!("`{}` can't be put back", place.display()))?;
            }
            Ok(RestartOutcome::TakenBack)
        }
        Err(ControlError::NotRunning { .. }) => Ok(RestartOutcome::NotRunning),
        Err(ControlError::Refused(refused)) => Ok(RestartOutcome::Stays(refused.message)),
        Err(error) => Ok(RestartOutcome::Stays(error.to_string())),
    }
}
