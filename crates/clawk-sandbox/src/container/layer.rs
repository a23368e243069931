//! Unpacks one layer of an image: untrusted bytes that contain paths.
//!
//! INVARIANT: every path is walked from the root folder's descriptor, one component at a time, following no link. So neither a name
//! in a layer nor a link that an earlier layer made leads out of the root.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use tar::{Archive, EntryType};

/// The limits of one image; they decrease with each layer.
#[derive(Debug)]
pub(super) struct UnpackBudget {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// The maximum number of components of a path in a layer.
const MAX_DEPTH: usize = 256;

/// Unpacks a tar stream over `root`. Devices are skipped and set-id bits dropped; all files belong to `owner`.
pub(super) fn unpack_layer(
    tar: impl Read,
    root: &OwnedFd,
    owner: u32,
    budget: &mut UnpackBudget,
) -> io::Result<()> {
    let mut archive = Archive::new(tar);
    let mut made = BTreeSet::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        budget.entries = budget
            .entries
            .checked_sub(1)
            .ok_or_else(|| layer_error("it has too many files"))?;
        budget.bytes = budget
            .bytes
            .checked_sub(entry.size())
            .ok_or_else(|| layer_error("it unpacks to more than `max_image_mb`"))?;
        let path = path_inside(&entry.path()?)?;
        let Some(name) = path.file_name() else {
            continue; // the root itself
        };
        let parent = open_parent(root, path.parent().unwrap_or(Path::new("")))?;
        if let Some(gone) = name.as_bytes().strip_prefix(b".wh.") {
            if gone == b".wh..opq" {
                clear_opaque_folder(&parent, path.parent().unwrap_or(Path::new("")), &made)?;
            } else if gone.is_empty() || gone == b"." || gone == b".." || gone.contains(&b'/') {
                return Err(layer_error("a whiteout names no file"));
            } else {
                remove(&parent, Path::new(std::ffi::OsStr::from_bytes(gone)))?;
            }
            continue;
        }
        let mode = Mode::from_raw_mode(entry.header().mode()? & 0o1777);
        let target = entry.link_name()?.map(std::borrow::Cow::into_owned);
        let name = Path::new(name);
        match entry.header().entry_type() {
            EntryType::Directory => create_folder(&parent, name, mode)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                remove(&parent, name)?;
                let flags =
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?;
                let mut file = File::from(file);
                let size = entry.size();
                io::copy(&mut (&mut entry).take(size), &mut file)?;
                rustix::fs::fchmod(&file, mode)?;
            }
            EntryType::Symlink => {
                remove(&parent, name)?;
                // The container resolves the link's text inside its own root.
                rustix::fs::symlinkat(
                    target.ok_or_else(|| layer_error("a link without a target"))?,
                    &parent,
                    name,
                )?;
            }
            EntryType::Link => {
                let target = path_inside(&target.ok_or_else(|| layer_error("a link without a target"))?)?;
                let from = open_parent(root, target.parent().unwrap_or(Path::new("")))?;
                let old = target
                    .file_name()
                    .ok_or_else(|| layer_error("a link to the root"))?;
                if target != path {
                    remove(&parent, name)?;
                }
                rustix::fs::linkat(&from, old, &parent, name, AtFlags::empty())?;
            }
            // Devices, pipes, extensions: a read-only root needs none of these.
            _ => continue,
        }
        let id = (Uid::from_raw(owner), Gid::from_raw(owner));
        if rustix::process::geteuid().is_root() {
            rustix::fs::chownat(&parent, name, Some(id.0), Some(id.1), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        made.insert(path);
    }
    Ok(())
}

/// The path without leading slash and dots. A path with `..` is refused.
fn path_inside(path: &Path) -> io::Result<PathBuf> {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => out.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(layer_error("a path leads out of the image"));
            }
        }
    }
    if out.components().count() > MAX_DEPTH {
        return Err(layer_error("a path is too deep"));
    }
    Ok(out)
}

/// Opens the parent folder, and creates missing folders. A link or a file in the path is refused.
fn open_parent(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut at = root.try_clone()?;
    for name in path.iter() {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = rustix::fs::openat(&at, name, folder_flags(), Mode::empty()).map_err(|error| {
            io::Error::other(format!(
                "`{}` goes through what is not a folder: {error}",
                path.display()
            ))
        })?;
    }
    Ok(at)
}

fn folder_flags() -> OFlags {
    OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn create_folder(parent: &OwnedFd, name: &Path, mode: Mode) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, mode) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => {
            let meta = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if !rustix::fs::FileType::from_raw_mode(meta.st_mode).is_dir() {
                remove(parent, name)?;
                rustix::fs::mkdirat(parent, name, mode)?;
            }
        }
        Err(error) => return Err(error.into()),
    }
    let opened = rustix::fs::openat(parent, name, folder_flags(), Mode::empty())?;
    // The owner must be able to continue unpacking below.
    rustix::fs::fchmod(&opened, mode | Mode::RWXU)?;
    Ok(())
}

/// Removes the entry with this name: a file, a link, or a folder with everything below it. Links are not followed.
fn remove(parent: &OwnedFd, name: &Path) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let below = rustix::fs::openat(parent, name, folder_flags(), Mode::empty())?;
    for child in list_children(&below)? {
        remove(&below, &child)?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// Empties a folder that is marked opaque: the content of lower layers is removed, that of this layer stays.
fn clear_opaque_folder(folder: &OwnedFd, path: &Path, made: &BTreeSet<PathBuf>) -> io::Result<()> {
    for child in list_children(folder)? {
        let whole = path.join(&child);
        if !made.iter().any(|ours| ours.starts_with(&whole)) {
            remove(folder, &child)?;
        }
    }
    Ok(())
}

fn list_children(folder: &OwnedFd) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
        }
    }
    Ok(names)
}

/// Opens the folder into which the image is unpacked.
pub(super) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, folder_flags(), Mode::empty())?)
}

fn layer_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
