//! Checks of paths: which mount contains a path, and whether it is denied. Text only; see the parent module for links.

use std::path::{Component, Path, PathBuf};

use crate::level::SandboxRefusal;
use crate::plan::{Filesystem, FsMode, Mount};

pub(super) fn check_path(
    fs: &Filesystem,
    path: &str,
    write: bool,
    workdir: &Path,
) -> Result<(), SandboxRefusal> {
    permit_path(fs, path, write, workdir).map(drop)
}

/// A path that a mount admits, split into a root and a relative path. It must be opened beneath the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPath {
    /// The mount's absolute path, or `/` in mode `full`.
    pub root: PathBuf,
    /// The path below `root`; empty for the root itself.
    pub below: PathBuf,
    /// `root` joined with `below`.
    pub absolute: PathBuf,
}

/// Finds the mount that admits `path`.
///
/// # Errors
/// [`SandboxRefusal::Blocked`] names the rule that refuses the path.
pub fn permit_path(
    fs: &Filesystem,
    path: &str,
    write: bool,
    workdir: &Path,
) -> Result<AllowedPath, SandboxRefusal> {
    let refused = |rule: &str, allowed: String| path_refusal(path, write, rule, allowed);
    if path.is_empty() || path.contains('\0') {
        return Err(refused(
            "filesystem",
            "a path without null bytes that is not empty".to_owned(),
        ));
    }
    let absolute = lexical_path(workdir, Path::new(path));
    if let Some(denied) = fs
        .denied
        .iter()
        .find(|denied| denied.covers_path(&absolute, workdir))
    {
        return Err(refused(
            "filesystem.denied_paths",
            format!("paths outside `{}`", denied.text()),
        ));
    }
    let admitted = admit_path(fs, path, write, workdir, absolute)?;
    if write && fs.is_protected(&admitted.absolute) {
        let subject = format!("writing `{}`", format_path(path));
        return Err(fs.kept_refusal(subject, &admitted.absolute, workdir));
    }
    Ok(admitted)
}

/// Checks the filesystem mode and the mounts.
fn admit_path(
    fs: &Filesystem,
    path: &str,
    write: bool,
    workdir: &Path,
    absolute: PathBuf,
) -> Result<AllowedPath, SandboxRefusal> {
    let refused = |rule: &str, allowed: String| path_refusal(path, write, rule, allowed);
    match fs.mode {
        FsMode::Deny => return Err(refused("filesystem.mode: deny", "no path at all".to_owned())),
        FsMode::Full => return Ok(split_root(Path::new("/"), &absolute)),
        FsMode::ReadOnly if write => {
            return Err(refused(
                "filesystem.mode: read-only",
                "reading below the mounts".to_owned(),
            ));
        }
        FsMode::ReadOnly | FsMode::Scoped => {}
    }
    // The permission of the deepest mount that contains the path counts.
    let holder = fs
        .mounts
        .iter()
        .map(|mount| (lexical_path(workdir, &mount.path), mount))
        .filter(|(root, _)| absolute.starts_with(root))
        .max_by_key(|(root, _)| root.components().count());
    match holder {
        None => Err(refused("filesystem.mount_paths", format_mounts(&fs.mounts))),
        Some((_, mount)) if write && !mount.writable => Err(refused(
            "filesystem.mount_paths",
            format!("reading below `{}`", mount.path.display()),
        )),
        Some((root, _)) => Ok(split_root(&root, &absolute)),
    }
}

fn path_refusal(path: &str, write: bool, rule: &str, allowed: String) -> SandboxRefusal {
    SandboxRefusal::Blocked {
        rule: rule.to_owned(),
        subject: format!(
            "{} `{}`",
            if write { "writing" } else { "reading" },
            format_path(path)
        ),
        allowed,
    }
}

/// Makes `path` absolute relative to `base` and removes `.` and `..` as text. `..` above `/` stays at `/`.
#[must_use]
pub fn lexical_path(base: &Path, path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in base.join(path).components() {
        match component {
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(name) => out.push(name),
        }
    }
    out
}

fn split_root(root: &Path, absolute: &Path) -> AllowedPath {
    let below = absolute
        .strip_prefix(root)
        .map(Path::to_path_buf)
        .unwrap_or_default();
    AllowedPath {
        root: root.to_path_buf(),
        below,
        absolute: absolute.to_path_buf(),
    }
}

fn format_mounts(mounts: &[Mount]) -> String {
    if mounts.is_empty() {
        return "none, there are no mounts".to_owned();
    }
    let shown = mounts.iter().take(20).map(|mount| {
        let place = if mount.path == Path::new(".") {
            "the working directory".into()
        } else {
            mount.path.to_string_lossy()
        };
        format!("below `{place}` ({})", if mount.writable { "rw" } else { "ro" })
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn format_path(path: &str) -> String {
    path.chars().take(200).flat_map(char::escape_debug).collect()
}
