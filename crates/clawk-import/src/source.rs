//! Reads files below the old runtime's folder. All reads go through one function, which follows no link.
//!
//! A folder may come from an untrusted source. A link in it could bring another file of this machine into the new agent. So every
//! path component below the root is opened without following links, and the report names each skipped link.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use crate::ImportError;

/// The largest number of files below one folder.
const MAX_FILES: usize = 2_000;

/// An open folder. All reads stay below it.
#[derive(Debug)]
struct SourceRoot {
    folder: OwnedFd,
    path: PathBuf,
}

/// The skipped links, shared by all roots of one import.
type SkippedLinks = Rc<RefCell<BTreeSet<PathBuf>>>;

/// A path below an open folder. It need not exist.
#[derive(Debug, Clone)]
pub(crate) struct SourcePath {
    root: Rc<SourceRoot>,
    below: PathBuf,
    links: SkippedLinks,
}

/// The kind of object at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    File,
    Folder,
    Link,
    Other,
    Missing,
}

impl SourcePath {
    /// Opens the folder that a person gave. Links in this path itself are followed.
    ///
    /// # Errors
    /// The path is not a folder, or can't be opened.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one opener: the root is what a person named"
    )]
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let folder = rustix::fs::openat(CWD, &path, folder_flags() - OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self {
            root: Rc::new(SourceRoot { folder, path }),
            below: PathBuf::new(),
            links: SkippedLinks::default(),
        })
    }

    /// Opens a path that a person gave: the folder, and the file's name if the path is a file.
    pub(crate) fn open_named(path: &Path) -> io::Result<(Self, Option<OsString>)> {
        match Self::open(path) {
            Ok(folder) => Ok((folder, None)),
            Err(error) => {
                let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
                    return Err(error);
                };
                let parent = if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                };
                Ok((Self::open(parent)?, Some(name.to_owned())))
            }
        }
    }

    /// A path from a configuration: below this root if possible, otherwise below `/`. Neither follows a link.
    pub(crate) fn place_named(&self, path: &Path) -> Option<Self> {
        if !path.is_absolute() {
            return Some(self.join(path));
        }
        if let Ok(below) = path.strip_prefix(&self.root.path) {
            return Some(self.root_itself().join(below));
        }
        let mut whole = Self::open(Path::new("/")).ok()?; // silent-ok: no root, no such place
        whole.links = Rc::clone(&self.links);
        let below: PathBuf = path
            .components()
            .filter(|part| *part != Component::RootDir)
            .collect();
        Some(whole.join(below))
    }

    fn root_itself(&self) -> Self {
        Self {
            below: PathBuf::new(),
            ..self.clone()
        }
    }

    /// A path further below. A path that leads upwards or is absolute is never found.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        let mut below = self.below.clone();
        for part in name.as_ref().components() {
            match part {
                Component::CurDir => {}
                Component::Normal(part) => below.push(part),
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => below.push(".."),
            }
        }
        Self {
            below,
            ..self.clone()
        }
    }

    /// The parent of the root, if it has one. Only the name is computed; nothing is opened.
    pub(crate) fn above_root(&self) -> Option<&Path> {
        self.root.path.parent()
    }

    /// Whether `other` is below the same root.
    pub(crate) fn shares_root(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.root, &other.root)
    }

    /// The whole path, for people.
    pub(crate) fn display_path(&self) -> PathBuf {
        self.root.path.join(&self.below)
    }

    /// The path below the root, for people.
    pub(crate) fn shown_below_root(&self) -> String {
        self.below.to_string_lossy().into_owned()
    }

    /// The path relative to `base`, from which it was joined.
    pub(crate) fn relative_to(&self, base: &Self) -> PathBuf {
        self.below
            .strip_prefix(&base.below)
            .unwrap_or(&self.below)
            .to_owned()
    }

    /// The last component of the path.
    pub(crate) fn file_name(&self) -> String {
        let name = self.below.file_name().or_else(|| self.root.path.file_name());
        name.map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// The last component without its extension.
    pub(crate) fn file_stem(&self) -> String {
        let stem = self.below.file_stem().or_else(|| self.root.path.file_name());
        stem.map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// Whether the name has this extension.
    pub(crate) fn has_extension(&self, wanted: &str) -> bool {
        self.below
            .extension()
            .is_some_and(|extension| extension == wanted)
    }

    /// Whether it is a regular file, reached without a link.
    pub(crate) fn is_file(&self) -> bool {
        self.kind() == SourceKind::File
    }

    /// Whether it is a folder, reached without a link.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == SourceKind::Folder
    }

    /// Whether it is a link, or a link is on its path.
    pub(crate) fn is_link(&self) -> bool {
        self.kind() == SourceKind::Link
    }

    /// Reads the whole content.
    ///
    /// # Errors
    /// It is a link or not a regular file, it can't be read, or it is larger than `limit` bytes.
    pub(crate) fn read(&self, limit: u64) -> Result<Vec<u8>, ImportError> {
        if self.is_link() {
            return Err(ImportError::Link {
                path: self.display_path(),
            });
        }
        let failed = |cause| ImportError::Read {
            path: self.display_path(),
            cause,
        };
        let file = File::from(self.open_file().map_err(failed)?);
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
            return Err(ImportError::TooLarge {
                path: self.display_path(),
                limit,
            });
        }
        Ok(bytes)
    }

    /// Whether its owner, its group or others may execute it.
    pub(crate) fn is_executable(&self) -> bool {
        self.open_file()
            .and_then(|file| Ok(rustix::fs::fstat(&file)?))
            .is_ok_and(|stat| stat.st_mode & 0o111 != 0)
    }

    /// The entries of the folder, sorted by name; empty if it is not a folder.
    pub(crate) fn entries(&self) -> Vec<Self> {
        // This also records a link.
        if !self.is_dir() {
            return Vec::new();
        }
        let Ok(folder) = self.open_folder() else {
            return Vec::new();
        }; // silent-ok: a folder that is not there holds nothing
        let Ok(listing) = Dir::read_from(&folder) else {
            return Vec::new();
        }; // silent-ok: as above
        let mut names: Vec<OsString> = listing
            .flatten()
            .map(|entry| os_name(entry.file_name().to_bytes()))
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort();
        names.into_iter().map(|name| self.join(name)).collect()
    }

    /// All regular files below, sorted; hidden files are skipped.
    pub(crate) fn files_below(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut open = vec![self.clone()];
        while let Some(next) = open.pop() {
            for entry in next.entries() {
                if entry.file_name().starts_with('.') {
                    continue;
                }
                match entry.kind() {
                    SourceKind::Folder => open.push(entry),
                    SourceKind::File => found.push(entry),
                    SourceKind::Link | SourceKind::Other | SourceKind::Missing => {}
                }
            }
            if found.len() > MAX_FILES {
                break;
            }
        }
        found.sort_by(|one, other| one.below.cmp(&other.below));
        found.truncate(MAX_FILES);
        found
    }

    /// All skipped links of this import, as paths for people.
    pub(crate) fn skipped_links(&self) -> Vec<PathBuf> {
        self.links.borrow().iter().cloned().collect()
    }

    fn kind(&self) -> SourceKind {
        if !self.leads_down() {
            return SourceKind::Missing;
        }
        let Some((parent, name)) = self.parent_and_name() else {
            return SourceKind::Folder;
        };
        let parent = match parent.open_folder() {
            Ok(parent) => parent,
            Err(_) if parent.link_on_the_way() => return SourceKind::Link,
            Err(_) => return SourceKind::Missing, // silent-ok: what can't be reached is not there
        };
        self.kind_in(parent.as_fd(), name)
    }

    fn kind_in(&self, parent: BorrowedFd<'_>, name: &OsStr) -> SourceKind {
        // silent-ok: an object without metadata does not exist
        let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return SourceKind::Missing;
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => SourceKind::File,
            FileType::Directory => SourceKind::Folder,
            FileType::Symlink => {
                self.links.borrow_mut().insert(self.display_path());
                SourceKind::Link
            }
            _ => SourceKind::Other,
        }
    }

    /// Whether a component of this path is a link.
    fn link_on_the_way(&self) -> bool {
        match self.parent_and_name() {
            None => false,
            Some((parent, _)) => self.kind() == SourceKind::Link || parent.link_on_the_way(),
        }
    }

    /// The parent folder and the name in it; `None` for the root.
    fn parent_and_name(&self) -> Option<(Self, &OsStr)> {
        let name = self.below.file_name()?;
        let parent = Self {
            below: self.below.parent().unwrap_or(Path::new("")).to_owned(),
            ..self.clone()
        };
        Some((parent, name))
    }

    /// Whether every component is a plain name.
    fn leads_down(&self) -> bool {
        let mut parts = self.below.components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    }

    /// Opens each component inside the previous one, without following a link.
    fn open_folder(&self) -> io::Result<OwnedFd> {
        let mut folder = self.root.folder.try_clone()?;
        for part in self.below.components() {
            let Component::Normal(name) = part else {
                return Err(io::Error::from(io::ErrorKind::InvalidInput));
            };
            folder = rustix::fs::openat(&folder, name, folder_flags(), Mode::empty())?;
        }
        Ok(folder)
    }

    fn open_file(&self) -> io::Result<OwnedFd> {
        let (parent, name) = self
            .parent_and_name()
            .filter(|_| self.leads_down())
            .ok_or(io::Error::from(io::ErrorKind::IsADirectory))?;
        let parent = parent.open_folder()?;
        // Non-blocking, so that a pipe can't stop the import.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(io::Error::other("it is not an ordinary file")),
        }
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn os_name(bytes: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStringExt as _;
    OsString::from_vec(bytes.to_vec())
}
