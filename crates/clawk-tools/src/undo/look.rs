//! Reads the state of a path without following links.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::record::RecordedPath;

/// A second change within this time may leave the same time stamp, because file system time stamps are coarse.
const COARSE: Duration = Duration::from_secs(2);

/// The state of a path. Times are seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum State {
    /// Nothing exists there.
    #[default]
    Absent,
    /// A regular file.
    File {
        /// SHA-256 of its content, lower-case hex; empty until the content was read.
        digest: String,
        /// Permission bits.
        mode: u32,
        /// Size in bytes.
        size: u64,
        /// Modification time.
        modified: (i64, i64),
        /// Its other hard links, if it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        linked: Option<HardLink>,
    },
    /// A folder.
    Folder {
        /// Permission bits.
        mode: u32,
        /// Modification time.
        modified: (i64, i64),
    },
    /// A symbolic link.
    Link {
        /// The link's target, as bytes.
        target: Vec<u8>,
        /// Modification time.
        modified: (i64, i64),
    },
    /// A pipe, a socket or a device.
    Other,
}

/// A file with several names (hard links).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardLink {
    /// The first of its names among the scanned paths, in the order of paths.
    pub first: RecordedPath,
    /// Whether it has names outside the scanned paths.
    pub beyond: bool,
}

impl State {
    /// Its other hard links, if it has any.
    pub(super) const fn hard_link(&self) -> Option<&HardLink> {
        match self {
            Self::File { linked, .. } => linked.as_ref(),
            Self::Absent | Self::Folder { .. } | Self::Link { .. } | Self::Other => None,
        }
    }

    /// Whether both states are equal, ignoring other hard links.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.without_links() == other.without_links()
    }

    fn without_links(&self) -> Self {
        let mut state = self.clone();
        if let Self::File { linked, .. } = &mut state {
            *linked = None;
        }
        state
    }

    pub(crate) const fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// One word for this state, for messages.
    #[must_use]
    pub const fn kind_name(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::File { .. } => "file",
            Self::Folder { .. } => "folder",
            Self::Link { .. } => "link",
            Self::Other => "special file",
        }
    }

    /// Adds the digest of the content.
    pub(super) fn with_digest(self, path: &Path) -> io::Result<Self> {
        match self {
            Self::File {
                mode,
                size,
                modified,
                linked,
                ..
            } => Ok(Self::File {
                digest: digest_of(open_regular(path)?)?,
                mode,
                size,
                modified,
                linked,
            }),
            other => Ok(other),
        }
    }
}

/// Metadata that shows whether a file has changed, without reading it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileFingerprint {
    dev: u64,
    ino: u64,
    links: u64,
    size: u64,
    mode: u32,
    owner: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileFingerprint {
    pub(crate) fn from_metadata(meta: &Metadata) -> Self {
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            links: meta.nlink(),
            size: meta.size(),
            mode: meta.mode(),
            owner: meta.uid(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Device and inode; equal for two hard links of one file.
    pub(crate) const fn file_id(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Whether the file has other hard links.
    pub(super) const fn is_shared(&self) -> bool {
        self.links > 1
    }

    /// Size in bytes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// The change time (ctime), nanoseconds since 1970. Programs can't set it.
    pub(crate) const fn changed_ns(&self) -> i64 {
        self.changed
            .0
            .saturating_mul(1_000_000_000)
            .saturating_add(self.changed.1)
    }

    /// The modification time (mtime), nanoseconds since 1970. Programs can set it.
    pub(crate) const fn modified_ns(&self) -> i64 {
        self.modified
            .0
            .saturating_mul(1_000_000_000)
            .saturating_add(self.modified.1)
    }

    /// The file type and permission bits.
    pub(crate) const fn mode(&self) -> u32 {
        self.mode
    }

    /// The user id of its owner.
    pub(crate) const fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether the last change is so long before `at` that a later change has another time stamp.
    pub(super) fn is_settled(&self, at: SystemTime) -> bool {
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default(); // silent-ok: before 1970 nothing is settled
        let at = at.saturating_sub(COARSE).as_secs();
        u64::try_from(self.changed.0).is_ok_and(|changed| changed < at)
    }
}

/// The observed state of one path.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileObservation {
    pub(crate) state: State,
    pub(crate) seen: FileFingerprint,
}

pub(crate) fn observe_path(path: &Path) -> io::Result<FileObservation> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(FileObservation::default());
        }
        Err(error) => return Err(error),
    };
    let (mode, modified) = (meta.mode() & 0o7777, (meta.mtime(), meta.mtime_nsec()));
    let kind = meta.file_type();
    let state = if kind.is_file() {
        State::File {
            digest: String::new(),
            mode,
            size: meta.size(),
            modified,
            linked: None,
        }
    } else if kind.is_dir() {
        State::Folder { mode, modified }
    } else if kind.is_symlink() {
        let target = fs::read_link(path)?;
        State::Link {
            target: target.into_os_string().into_vec(),
            modified,
        }
    } else {
        debug_assert!(kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device());
        State::Other
    };
    Ok(FileObservation {
        state,
        seen: FileFingerprint::from_metadata(&meta),
    })
}

/// Observes these paths, each parent folder whose entries would change, and other hard links of the files below `around`.
pub(super) fn observe_places(
    places: &[PathBuf],
    (around, own): (&[PathBuf], &Path),
    max_entries: usize,
) -> io::Result<BTreeMap<PathBuf, FileObservation>> {
    let mut found = BTreeMap::new();
    for place in places {
        let mut path: &Path = place;
        loop {
            let look = observe_path(path)?;
            let exists = look.state != State::Absent;
            found.insert(path.to_owned(), look);
            match path.parent() {
                Some(parent) if path == place || !exists => path = parent,
                Some(_) | None => break,
            }
        }
    }
    let shared = |look: &&FileObservation| look.state.is_file() && look.seen.is_shared();
    let files: Vec<_> = found
        .values()
        .filter(shared)
        .map(|look| look.seen.file_id())
        .collect();
    // Hard links that are not found count as outside the scanned paths.
    if !files.is_empty()
        && let Ok(Ok(all)) = observe_trees(around, own, u64::MAX, max_entries)
    {
        found.extend(
            all.into_iter()
                .filter(|(_, look)| files.contains(&look.seen.file_id())),
        );
    }
    name_links(&mut found);
    Ok(found)
}

/// Finds observed paths that are hard links of one file, and notes it in their states.
fn name_links(found: &mut BTreeMap<PathBuf, FileObservation>) {
    let mut names: HashMap<(u64, u64), (RecordedPath, u64)> = HashMap::new();
    for (path, look) in found.iter().filter(|(_, look)| look.seen.is_shared()) {
        let (_, count) = names
            .entry(look.seen.file_id())
            .or_insert_with(|| (RecordedPath::new(path), 0));
        *count += 1;
    }
    for look in found.values_mut() {
        if let State::File { linked, .. } = &mut look.state {
            *linked = names.get(&look.seen.file_id()).map(|(first, count)| HardLink {
                first: first.clone(),
                beyond: look.seen.links > *count,
            });
        }
    }
}

/// Observes the same paths again.
pub(super) fn observe_again<'a>(
    places: impl Iterator<Item = &'a PathBuf>,
) -> io::Result<BTreeMap<PathBuf, FileObservation>> {
    let looked = places.map(|path| Ok((path.clone(), observe_path(path)?)));
    let mut found = looked.collect::<io::Result<BTreeMap<_, _>>>()?;
    name_links(&mut found);
    Ok(found)
}

/// Observes these folders and everything below them, except below `own`. The outer error: the limits are exceeded.
pub(super) fn observe_trees(
    roots: &[PathBuf],
    own: &Path,
    max_bytes: u64,
    max_entries: usize,
) -> Result<io::Result<BTreeMap<PathBuf, FileObservation>>, String> {
    let mut found = BTreeMap::new();
    let mut bytes = 0_u64;
    let mut todo: Vec<PathBuf> = roots.to_vec();
    // The state directory holds what is saved; tools can't change it.
    let state = own.parent().unwrap_or(own);
    while let Some(path) = todo.pop() {
        if path == state {
            continue;
        }
        let look = match observe_path(&path) {
            Ok(look) => look,
            Err(error) => return Ok(Err(error)),
        };
        if let State::File { size, .. } = &look.state {
            bytes = bytes.saturating_add(*size);
        }
        if bytes > max_bytes || found.len() >= max_entries {
            return Err(format!(
                "its writable folders hold more than {} MB (`[undo] max_mb`) or {max_entries} entries",
                max_bytes >> 20
            ));
        }
        if matches!(look.state, State::Folder { .. }) {
            match fs::read_dir(&path)
                .and_then(|all| all.map(|one| Ok(one?.path())).collect::<io::Result<Vec<_>>>())
            {
                Ok(below) => todo.extend(below),
                Err(error) => return Ok(Err(error)),
            }
        }
        found.insert(path, look);
    }
    name_links(&mut found);
    Ok(Ok(found))
}

/// Whether these folders are within the limits. Checks sizes only.
pub(super) fn fits_limits(roots: &[PathBuf], own: &Path, max_bytes: u64, max_entries: usize) -> bool {
    matches!(observe_trees(roots, own, max_bytes, max_entries), Ok(Ok(_)))
}

/// Opens a regular file at an absolute path for reading. Links are not followed.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )?;
    let file = File::from(fd);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// SHA-256 of a file, lower-case hex.
pub(crate) fn digest_of(mut file: File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut piece = vec![0_u8; 64 << 10];
    loop {
        let read = file.read(&mut piece)?;
        match piece.get(..read) {
            Some([]) | None => break,
            Some(bytes) => hash.update(bytes),
        }
    }
    Ok(clawk_proto::Digest(hash.finalize().into()).to_hex())
}

/// A path's bytes.
pub(super) fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The path of these bytes.
pub(super) fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}
