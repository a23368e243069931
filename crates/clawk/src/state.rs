//! Where an agent's state lies (DESIGN §4).

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_secrets::env;

/// Which state directory a verb looks at.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Which {
    /// State directory
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// The agent whose default state directory is meant [default: the only one there is]
    #[arg(long, value_name = "NAME", conflicts_with = "state")]
    pub(crate) agent: Option<String>,
}

impl Which {
    /// The directory; it exists.
    ///
    /// # Errors
    /// There is none, or more than one to choose from.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.state {
            return existing(dir.clone());
        }
        let home = home()?;
        if let Some(agent) = &self.agent {
            return existing(home.join(agent));
        }
        let mut agents = Vec::new();
        // silent-ok: no folder of states means that there is no state
        for entry in fs::read_dir(&home).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                agents.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        agents.sort();
        match agents.as_slice() {
            [] => bail!(
                "no agent has run here yet (nothing in `{}`); say --state DIR to look elsewhere",
                home.display()
            ),
            [only] => Ok(home.join(only)),
            _ => bail!(
                "several agents have run here: {}; say which with --agent NAME",
                agents.join(", ")
            ),
        }
    }
}

fn existing(dir: PathBuf) -> Result<PathBuf> {
    if !dir.is_dir() {
        bail!(
            "there is no state directory `{}`: no agent has run with it",
            dir.display()
        );
    }
    Ok(dir)
}

/// The folder that holds every agent's default state: `$XDG_STATE_HOME/clawk`.
pub(crate) fn home() -> Result<PathBuf> {
    let base = match env::path("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        Some(base) => base,
        None => env::path("HOME")
            .context("neither XDG_STATE_HOME nor HOME is set; say --state DIR")?
            .join(".local/state"),
    };
    Ok(base.join("clawk"))
}

/// The state directory of a run: the flag, else the configuration, else the agent's own; made when missing, mode 0700.
pub(crate) fn prepare(flag: Option<&Path>, configured: Option<&Path>, agent: &str) -> Result<PathBuf> {
    let dir = match flag.or(configured) {
        Some(dir) => dir.to_owned(),
        None => home()?.join(agent),
    };
    if !dir.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("can't make the state directory `{}`", dir.display()))?;
    }
    let mode = fs::metadata(&dir)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).with_context(|| {
            format!(
                "others may read the state directory `{}`, and its mode can't be changed",
                dir.display()
            )
        })?;
    }
    dir.canonicalize()
        .with_context(|| format!("can't resolve `{}`", dir.display()))
}
