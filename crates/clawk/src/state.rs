//! Finds an agent's state directory (DESIGN §4) and its owner.

pub(crate) mod kept;
pub(crate) mod moving;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod server;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::witness::digest_of;
use clawk_proto::Digest;
use clawk_secrets::env;

/// File in a default state directory that names the manifest it belongs to.
const OWNER: &str = "manifest";

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
#[derive(Debug)]
struct StateLocation {
    dir: PathBuf,
    /// It is the agent's default directory, and belongs to this manifest.
    default: bool,
    /// Another manifest already uses the directory with the agent's name.
    taken_by: Option<(PathBuf, OsString)>,
}

impl StateLookup<'_> {
    /// Returns the directory's path and creates nothing.
    ///
    /// # Errors
    /// There is no home directory, or other manifests use both possible names.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        self.locate().map(|located| located.dir)
    }

    fn locate(&self) -> Result<StateLocation> {
        let flag = self.flag.filter(|flag| server::url_of(flag).is_none());
        if let Some(dir) = flag.or(self.configured) {
            return Ok(StateLocation {
                dir: dir.to_owned(),
                default: false,
                taken_by: None,
            });
        }
        let (home, owner) = (state_home()?, self.origin.owner());
        let dir = home.join(self.agent);
        let Some(other) = owner_of(&dir)?.filter(|other| *other != owner) else {
            return Ok(StateLocation {
                dir,
                default: true,
                taken_by: None,
            });
        };
        let hex = digest_of(owner.as_bytes()).to_hex();
        let short: String = hex.chars().take(8).collect();
        let own = home.join(format!("{}-{short}", self.agent));
        if let Some(third) = owner_of(&own)?.filter(|third| *third != owner) {
            bail!(
                "`{}` and `{}` hold the state of other manifests (`{}` and `{}`); say --state DIR",
                dir.display(),
                own.display(),
                other.display(),
                third.display()
            );
        }
        Ok(StateLocation {
            dir: own,
            default: true,
            taken_by: Some((dir, other)),
        })
    }

    /// Returns the state directory of a run: the flag's, else the configuration's, else the agent's default. Creates it with mode
    /// 0700 if it is missing. Also returns a note if the location is unusual.
    ///
    /// # Errors
    /// The directory can't be created or protected, or belongs to another user.
    pub(crate) fn prepare_dir(&self) -> Result<(PathBuf, Option<String>)> {
        let StateLocation {
            dir,
            default,
            taken_by,
        } = self.locate()?;
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
            self.claim_dir(&dir)?;
        }
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

    /// Records the directory's owner, if there is no record yet.
    fn claim_dir(&self, dir: &Path) -> Result<()> {
        let (file, owner) = (dir.join(OWNER), self.origin.owner());
        let write = || -> io::Result<()> {
            let part = dir.join(format!("{OWNER}.{}", std::process::id()));
            let mut open = fs::OpenOptions::new();
            let mut out = open.write(true).create_new(true).mode(0o600).open(&part)?;
            out.write_all(owner.as_bytes())?;
            // If two processes start at once, one wins; the other sees that here.
            let linked = fs::hard_link(&part, &file);
            fs::remove_file(&part)?;
            linked.or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            })
        };
        if owner_of(dir)?.is_none() {
            write().with_context(|| format!("can't write `{}`", file.display()))?;
        }
        if owner_of(dir)?.is_some_and(|found| found != owner) {
            bail!(
                "another agent of this name took `{}` at the same time; start this one again",
                dir.display()
            );
        }
        Ok(())
    }
}

/// Returns the manifest that a state directory belongs to; `None`: the directory is missing, or an earlier version made it.
fn owner_of(dir: &Path) -> Result<Option<OsString>> {
    let file = dir.join(OWNER);
    match fs::read(&file) {
        Ok(bytes) => Ok(Some(OsString::from_vec(bytes))),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("can't read `{}`", file.display())),
    }
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
