//! Finds an agent's state directory (DESIGN §4) and its owner.

pub(crate) mod backup;
pub(crate) mod identity;
pub(crate) mod kept;
pub(crate) mod moving;
pub(crate) mod places;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod server;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::witness::digest_of;
use clawk_proto::Digest;
use clawk_secrets::env;

use identity::{KnownState, StateChoice, StateIdentity, owner_of};

/// Which state directory a verb looks at.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct StateSelector {
    /// State directory, or `postgres://USER@HOST/DATABASE?schema=SCHEMA`
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) state: Option<PathBuf>,

    /// Use the default state directory of this agent [default: the only agent that has one]
    #[arg(long, value_name = "NAME", conflicts_with = "state")]
    pub(crate) agent: Option<String>,
}

impl StateSelector {
    /// Returns the existing directory.
    ///
    /// # Errors
    /// There is none, or there are several candidates.
    pub(crate) fn find_dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.state {
            if let Some(url) = server::url_of(dir) {
                return server::StateServer::of_url(url, &server::StateTable::default())?.own_dir();
            }
            return require_existing(dir.clone());
        }
        let home = state_home()?;
        if let Some(agent) = &self.agent {
            return require_existing(home.join(agent));
        }
        let mut agents = Vec::new();
        // silent-ok: without the folder of states there is no state
        for entry in fs::read_dir(&home).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Hidden folders are the unfinished parts of a move or a restore, and states that were set aside.
            if entry.path().is_dir() && !name.starts_with('.') {
                agents.push(name);
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

impl StateSelector {
    /// Returns the existing directory that is named; without a name, those of all agents that have run here.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find_dirs(&self) -> Result<Vec<PathBuf>> {
        if self.state.is_some() || self.agent.is_some() {
            return self.find_dir().map(|dir| vec![dir]);
        }
        let mut dirs: Vec<PathBuf> = identity::known_states()?
            .into_iter()
            .map(|state| state.dir)
            .collect();
        dirs.retain(|dir| kept::holds_state(dir));
        match dirs.is_empty() {
            true => self.find_dir().map(|dir| vec![dir]),
            false => Ok(dirs),
        }
    }
}

/// Returns the text of a content; `None` if there is none or it was erased.
///
/// # Errors
/// The state can't be read.
pub(crate) fn text_of(reader: &kept::StateReader, content: Option<Digest>) -> Result<Option<String>> {
    let bytes = content
        .map(|digest| reader.content(digest))
        .transpose()?
        .flatten();
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn require_existing(dir: PathBuf) -> Result<PathBuf> {
    if !dir.is_dir() {
        bail!(
            "there is no state directory `{}`: no agent has run with it",
            dir.display()
        );
    }
    Ok(dir)
}

/// Returns the folder of all default states: `$XDG_STATE_HOME/clawk`.
pub(crate) fn state_home() -> Result<PathBuf> {
    let base = match env::path_variable("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        Some(base) => base,
        None => env::path_variable("HOME")
            .context("neither XDG_STATE_HOME nor HOME is set; say --state DIR")?
            .join(".local/state"),
    };
    Ok(base.join("clawk"))
}

/// The source of a manifest. Two agents with the same name are the same agent only if this is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A file, as a resolved path.
    File(PathBuf),
    /// A client's manifest, as the digest of its text.
    Wire(Digest),
    /// No manifest, only Atlases.
    Atlases,
}

impl Origin {
    /// Makes the origin of a manifest file.
    ///
    /// # Errors
    /// The path can't be resolved.
    pub(crate) fn of_file(path: &Path) -> Result<Self> {
        let real = path.canonicalize();
        Ok(Self::File(real.with_context(|| {
            format!("can't resolve `{}`", path.display())
        })?))
    }

    /// Returns the owner's name for a default state directory. A client's manifest may change between starts, so its digest is not
    /// part of it.
    fn owner(&self) -> OsString {
        match self {
            Self::File(path) => path.clone().into_os_string(),
            Self::Wire(_) => "wire".into(),
            Self::Atlases => "atlases".into(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Wire(digest) => write!(f, "wire {digest}"),
            Self::Atlases => f.write_str("atlases"),
        }
    }
}

/// The inputs for finding an agent's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateLookup<'a> {
    /// The `--state` flag.
    pub(crate) flag: Option<&'a Path>,
    /// The `state` key of `clawk.toml`.
    pub(crate) configured: Option<&'a Path>,
    /// The agent's name.
    pub(crate) agent: &'a str,
    /// Source of the agent's manifest.
    pub(crate) origin: &'a Origin,
}

/// The location of an agent's state.
#[derive(Debug, Default)]
struct StateLocation {
    dir: PathBuf,
    /// It is the agent's default directory, and belongs to this manifest.
    default: bool,
    /// Another manifest already uses the directory with the agent's name.
    taken_by: Option<(PathBuf, OsString)>,
    /// The manifest has no state, and these may be its own.
    doubtful: Vec<KnownState>,
}

impl StateLookup<'_> {
    /// Returns the directory's path and creates nothing.
    ///
    /// # Errors
    /// There is no home directory, other manifests use both possible names, or it must be said first which state the manifest has.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        let located = self.locate()?;
        if !located.doubtful.is_empty() {
            bail!(
                "{}",
                identity::describe_doubt(self.agent, self.origin, &located.doubtful)
            );
        }
        Ok(located.dir)
    }

    /// Returns the directory that a state for this manifest goes to, whatever states of its name there are.
    ///
    /// # Errors
    /// There is no home directory, or other manifests use both possible names.
    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        Ok(self.locate()?.dir)
    }

    fn locate(&self) -> Result<StateLocation> {
        let flag = self.flag.filter(|flag| server::url_of(flag).is_none());
        if let Some(dir) = flag.or(self.configured) {
            return Ok(StateLocation {
                dir: dir.to_owned(),
                ..StateLocation::default()
            });
        }
        let (home, owner) = (state_home()?, self.origin.owner());
        let dir = home.join(self.agent);
        let of_dir = owner_of(&dir)?;
        let own = home.join(format!("{}-{}", self.agent, short_digest(&owner)));
        let of_own = owner_of(&own)?;
        let located = |dir: PathBuf| StateLocation {
            dir,
            default: true,
            ..StateLocation::default()
        };
        // What an earlier version made has no owner yet.
        if of_dir.as_ref() == Some(&owner) || of_dir.is_none() && dir.is_dir() {
            return Ok(located(dir));
        }
        if of_own.as_ref() == Some(&owner) {
            return Ok(located(own));
        }
        if let Some(adopted) = identity::adopted_state(self.agent, &owner)? {
            return Ok(located(adopted));
        }
        let doubtful = identity::doubtful_states(self.agent, self.origin)?;
        match (of_dir, of_own) {
            (None, _) => Ok(StateLocation {
                doubtful,
                ..located(dir)
            }),
            (Some(other), None) => Ok(StateLocation {
                taken_by: Some((dir, other)),
                doubtful,
                ..located(own)
            }),
            (Some(other), Some(third)) => bail!(
                "`{}` and `{}` hold the state of other manifests (`{}` and `{}`); say --state DIR",
                dir.display(),
                own.display(),
                other.display(),
                third.display()
            ),
        }
    }

    /// Returns the state directory of a run: the flag's, else the configuration's, else the agent's default. Creates it with mode
    /// 0700 if it is missing. Also returns a note if the location is unusual. If there is a state that may be this manifest's, a
    /// person is asked.
    ///
    /// # Errors
    /// The directory can't be created or protected, belongs to another user, or it was not said which state the manifest has.
    pub(crate) fn prepare_dir(&self) -> Result<(PathBuf, Option<String>)> {
        let mut located = self.locate()?;
        if !located.doubtful.is_empty() {
            match identity::ask_for_state(self.agent, self.origin, &located.doubtful)? {
                StateChoice::Adopt(dir) => {
                    identity::adopt_state(&dir, self.agent, self.origin)?;
                    located = self.locate()?;
                }
                StateChoice::BeginNew => {}
            }
        }
        self.make_dir(located)
    }

    /// Makes an empty state for the manifest, whatever states of its name there are.
    ///
    /// # Errors
    /// It has a state already, or the directory can't be created.
    pub(crate) fn make_new_dir(&self) -> Result<PathBuf> {
        let located = self.locate()?;
        if kept::holds_state(&located.dir) {
            bail!("the manifest has a state already: `{}`", located.dir.display());
        }
        self.make_dir(located).map(|(dir, _)| dir)
    }

    fn make_dir(&self, located: StateLocation) -> Result<(PathBuf, Option<String>)> {
        let StateLocation {
            dir,
            default,
            taken_by,
            doubtful: _,
        } = located;
        let fresh = !dir.is_dir();
        if fresh {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .with_context(|| format!("can't make the state directory `{}`", dir.display()))?;
        }
        refuse_others(&dir)?;
        refuse_links(&dir)?;
        let mode = fs::metadata(&dir)?.permissions().mode();
        if mode & 0o077 != 0 {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).with_context(|| {
                format!(
                    "others may read the state directory `{}`, and its mode can't be changed",
                    dir.display()
                )
            })?;
        }
        if default {
            identity::claim_dir(&dir, &self.origin.owner())?;
        }
        StateIdentity::ensure_in(&dir, self.agent)?;
        let note = taken_by.filter(|_| fresh).map(|(taken, by)| {
            format!(
                "`{}` holds the state of another agent of this name (`{}`); this one keeps its own in `{}`",
                taken.display(),
                by.display(),
                dir.display()
            )
        });
        let dir = dir
            .canonicalize()
            .with_context(|| format!("can't resolve `{}`", dir.display()))?;
        Ok((dir, note))
    }
}

/// Returns the digits that tell states of one name apart.
fn short_digest(owner: &OsStr) -> String {
    digest_of(owner.as_bytes()).to_hex().chars().take(8).collect()
}

/// Refuses a directory or a symbolic link of another user, who could change it while the agent runs.
pub(crate) fn refuse_others(dir: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for (what, meta) in [
        ("link to the state directory", fs::symlink_metadata(dir)),
        ("state directory", fs::metadata(dir)),
    ] {
        let meta = meta.with_context(|| format!("can't look at the state directory `{}`", dir.display()))?;
        if meta.uid() != own {
            bail!(
                "the {what} `{}` belongs to user {}, and clawk runs as user {own}; give it to that user (`chown`), or say --state DIR",
                dir.display(),
                meta.uid()
            );
        }
    }
    Ok(())
}

/// Refuses symbolic links in a directory that came with a cloned folder, because files would be written elsewhere. The store checks
/// more when it opens the directory, but container images are unpacked before.
fn refuse_links(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("can't look at `{}`", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_symlink() {
            bail!(
                "`{}` is a link; a state directory holds no links: remove it, or say --state DIR",
                entry.path().display()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
