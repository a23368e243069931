//! The agent's own files in the view: each is covered by itself, read-only, and the folders above it are made mount points, so
//! that the tool can't move them away. What is not there yet, links, and what the host puts in the place of a covered file are
//! the guard's matter ([`super::guard`]).

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::masks;
use super::pieces::named;
use super::view::{SandboxView, attach, copy_of};
use crate::child::sys::{self, ATTR_RDONLY};

/// Covers what is there of the own files and lies in a writable mount.
pub(super) fn put(view: &mut SandboxView) -> io::Result<()> {
    if view.kept.is_empty() {
        return Ok(());
    }
    let names: Vec<PathBuf> = view.kept.names().map(Path::to_path_buf).collect();
    let mut covered: Vec<PathBuf> = Vec::new();
    for name in names {
        if !is_writable(view, &name) || covered.iter().any(|above| name.starts_with(above)) {
            continue;
        }
        let Some(folder) = name.parent() else { continue };
        if view.open(&name).is_err() || is_link(view, &name)? {
            continue;
        }
        masks::pin(view, folder)?;
        let target = view.open(&name).map_err(named(&name.to_string_lossy()))?;
        let cover = copy_of(&target, true)?;
        sys::set_attributes(&cover, true, ATTR_RDONLY, 0)?;
        attach(&cover, &target)?;
        covered.push(name);
    }
    view.held.push(format!("own-files:{}", covered.len()));
    Ok(())
}

/// The deepest piece of the host that shows it may be written.
fn is_writable(view: &SandboxView, name: &Path) -> bool {
    let depth = |roots: &[PathBuf]| {
        let holders = roots.iter().filter(|root| name.starts_with(root));
        holders.map(|root| root.components().count()).max()
    };
    depth(&view.writable) > depth(&view.readable)
}

/// A link has no content of its own: no mount covers it.
fn is_link(view: &SandboxView, name: &Path) -> io::Result<bool> {
    let (Some(folder), Some(last)) = (name.parent(), name.file_name()) else {
        return Ok(false);
    };
    let folder = view.open(folder)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(&folder, last, flags, Mode::empty())?;
    Ok(FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode) == FileType::Symlink)
}
