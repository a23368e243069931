//! Where an agent's state lies (DESIGN §4), and whose it is.

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

/// The file of a default state directory that names the manifest which it belongs to.
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
    /// The directory; it exists.
    ///
    /// # Errors
    /// There is none, or more than one to choose from.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.state {
            if let Some(url) = server::url_of(dir) {
                return server::StateServer::of_url(url, &server::StateTable::default())?.own_dir();
            }
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

/// The text of a content; `None` where there is none, or it was erased.
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

/// Where an agent's manifest comes from. Two agents of one name are one agent only if this is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A file, by its resolved path.
    File(PathBuf),
    /// A client brought it; the digest of what it says.
    Wire(Digest),
    /// Atlases alone.
    Atlases,
}

impl Origin {
    /// Of a manifest's file.
    ///
    /// # Errors
    /// Its path can't be resolved.
    pub(crate) fn of_file(path: &Path) -> Result<Self> {
        let real = path.canonicalize();
        Ok(Self::File(real.with_context(|| {
            format!("can't resolve `{}`", path.display())
        })?))
    }

    /// What a default state directory is kept for. Manifests that clients bring change from one start to the next.
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

/// Where the state of an agent is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateLookup<'a> {
    /// `--state`.
    pub(crate) flag: Option<&'a Path>,
    /// `state` of `clawk.toml`.
    pub(crate) configured: Option<&'a Path>,
    /// The agent's name.
    pub(crate) agent: &'a str,
    /// Its manifest.
    pub(crate) origin: &'a Origin,
}

/// The place of an agent's state.
#[derive(Debug)]
struct StateLocation {
    dir: PathBuf,
    /// It is the agent's default one, and no other manifest's.
    default: bool,
    /// Another manifest took the directory of the agent's name before.
    taken_by: Option<(PathBuf, OsString)>,
}

impl StateLookup<'_> {
    /// The directory, whether it is there or not; nothing is made.
    ///
    /// # Errors
    /// No home directory is known, or two other manifests took both names that it may have.
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
        let (home, owner) = (home()?, self.origin.owner());
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

    /// The state directory of a run: the flag, else the configuration, else the agent's own; made when missing, mode 0700. A note, if a
    /// person should know why it is where it is.
    ///
    /// # Errors
    /// It can't be made or protected, or it belongs to another user.
    pub(crate) fn prepare(&self) -> Result<(PathBuf, Option<String>)> {
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
            self.take(&dir)?;
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

    /// Writes down whose the directory is, if nobody has.
    fn take(&self, dir: &Path) -> Result<()> {
        let (file, owner) = (dir.join(OWNER), self.origin.owner());
        let write = || -> io::Result<()> {
            let part = dir.join(format!("{OWNER}.{}", std::process::id()));
            let mut open = fs::OpenOptions::new();
            let mut out = open.write(true).create_new(true).mode(0o600).open(&part)?;
            out.write_all(owner.as_bytes())?;
            // Of two that start at once, one is first; the other finds that here.
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

/// Which manifest a state directory belongs to; `None`: an earlier version made it, or it is not there.
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

/// A directory of another user's may be changed under the agent's feet, and so may a link of theirs that leads to it.
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

/// What is written into a directory that came with a cloned folder must not land elsewhere. The store looks deeper when it opens it;
/// images of containers are unpacked before.
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
