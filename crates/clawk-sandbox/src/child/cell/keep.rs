//! Protects the agent's own files in the view. Each file is covered by a read-only mount of itself. The folders above it become
//! mount points, so that the tool can't move them. Files that do not exist yet, links, and files that the host replaces are
//! protected by the guard ([`super::guard`]).

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::masks;
use super::pieces::named_error;
use super::view::{SandboxView, attach_mount, copy_of};
use crate::child::sys::{self, ATTR_RDONLY};

/// Covers the agent's existing own files that are in a writable mount.
pub(super) fn cover_own_files(view: &mut SandboxView) -> io::Result<()> {
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
        if view.open_path(&name).is_err() || is_link(view, &name)? {
            continue;
        }
        masks::pin_folders(view, folder)?;
        let target = view
            .open_path(&name)
            .map_err(named_error(&name.to_string_lossy()))?;
        let cover = copy_of(&target, true)?;
        sys::set_attributes(&cover, true, ATTR_RDONLY, 0)?;
        attach_mount(&cover, &target)?;
        covered.push(name);
    }
    view.held.push(format!("own-files:{}", covered.len()));
    Ok(())
}

/// Whether the deepest mount that shows this file is writable.
fn is_writable(view: &SandboxView, name: &Path) -> bool {
    let depth = |roots: &[PathBuf]| {
        let holders = roots.iter().filter(|root| name.starts_with(root));
        holders.map(|root| root.components().count()).max()
    };
    depth(&view.writable) > depth(&view.readable)
}

/// Whether this is a link: a link can't be covered by a mount.
fn is_link(view: &SandboxView, name: &Path) -> io::Result<bool> {
    let (Some(folder), Some(last)) = (name.parent(), name.file_name()) else {
        return Ok(false);
    };
    let folder = view.open_path(folder)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(&folder, last, flags, Mode::empty())?;
    Ok(FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode) == FileType::Symlink)
}
