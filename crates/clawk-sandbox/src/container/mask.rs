//! Finds the paths of a view that must be covered because of `denied_paths` (R33): everything that exists when the run starts,
//! under all of its names.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::Denied;
use clawk_plan::preflight::path::lexical_path;

/// A host path that the container sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VisibleMount {
    /// The real path on the host.
    pub(super) source: PathBuf,
    /// The path in the container.
    pub(super) target: PathBuf,
    /// Whether these are the system's programs and libraries, which contain no secrets. Globs that start elsewhere are not searched
    /// there.
    pub(super) system: bool,
}

/// The maximum number of files that are checked. A larger mount with globs to hide is refused.
const MAX_LOOKED_AT: usize = 200_000;

/// The maximum number of covered paths.
const MAX_MASKS: usize = 2_048;

/// The denied paths of a view.
#[derive(Debug, Default)]
pub(crate) struct MaskedPaths {
    /// Paths in the container that must be covered.
    pub(crate) paths: Vec<PathBuf>,
    /// Device and inode of those files that have other hard links.
    pub(crate) inodes: BTreeSet<(u64, u64)>,
}

/// Finds the paths that must be covered.
pub(crate) fn find_masks(
    denied: &[Denied],
    base: &Path,
    shown: &[VisibleMount],
) -> Result<MaskedPaths, String> {
    let mut found = BTreeSet::new();
    let mut inodes = BTreeSet::new();
    for entry in denied.iter().filter(|entry| !entry.is_pattern()) {
        let Ok(real) = lexical_path(base, Path::new(entry.text())).canonicalize() else {
            continue; // nothing is there
        };
        for part in shown {
            if let Ok(below) = real.strip_prefix(&part.source) {
                found.insert(join_below(&part.target, below));
            } else if part.source.starts_with(&real) {
                found.insert(part.target.clone());
            }
        }
        inodes.extend(other_names(&real));
    }
    let globs: Vec<&Denied> = denied.iter().filter(|entry| entry.is_pattern()).collect();
    if !globs.is_empty() || !inodes.is_empty() {
        let mut looked_at = 0;
        for part in shown {
            let of_it =
                |glob: &&Denied| !part.system || Path::new(glob.text()).starts_with(top_folder(&part.target));
            let globs: Vec<&Denied> = globs.iter().copied().filter(of_it).collect();
            if part.system && globs.is_empty() {
                continue;
            }
            walk_mount(part, &globs, base, &mut inodes, &mut found, &mut looked_at)?;
        }
        // Another hard link may be found before the name that the glob matches.
        if !inodes.is_empty() {
            for part in shown.iter().filter(|part| !part.system) {
                walk_mount(part, &[], base, &mut inodes, &mut found, &mut looked_at)?;
            }
        }
    }
    if found.len() > MAX_MASKS {
        return Err(format!("`denied_paths` cover more than {MAX_MASKS} paths"));
    }
    Ok(MaskedPaths {
        paths: found.into_iter().collect(),
        inodes,
    })
}

/// The first component: `/usr` of `/usr/lib`.
fn top_folder(path: &Path) -> PathBuf {
    path.components().take(2).collect()
}

fn join_below(target: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        target.to_owned()
    } else {
        target.join(below)
    }
}

/// Device and inode of a file, if it has other hard links.
fn other_names(path: &Path) -> Option<(u64, u64)> {
    let meta = path.symlink_metadata().ok()?; // silent-ok: it is gone
    (meta.is_file() && meta.nlink() > 1).then(|| (meta.dev(), meta.ino()))
}

fn walk_mount(
    part: &VisibleMount,
    globs: &[&Denied],
    base: &Path,
    inodes: &mut BTreeSet<(u64, u64)>,
    found: &mut BTreeSet<PathBuf>,
    looked_at: &mut usize,
) -> Result<(), String> {
    let mut open = vec![part.source.clone()];
    while let Some(path) = open.pop() {
        *looked_at += 1;
        if *looked_at > MAX_LOOKED_AT {
            return Err(format!(
                "`denied_paths` would have to be looked for among more than {MAX_LOOKED_AT} files"
            ));
        }
        let below = path.strip_prefix(&part.source).unwrap_or(Path::new(""));
        let target = join_below(&part.target, below);
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("`{}`: {error}", path.display())),
        };
        let fits = globs
            .iter()
            .any(|glob| glob.covers_path(&path, base) || glob.covers_path(&target, base));
        if fits {
            inodes.extend(other_names(&path));
        }
        if fits || (meta.is_file() && inodes.contains(&(meta.dev(), meta.ino()))) {
            found.insert(target);
        } else if meta.is_dir() {
            let listing =
                std::fs::read_dir(&path).map_err(|error| format!("`{}`: {error}", path.display()))?;
            open.extend(listing.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

/// The agent's own files in the container that must be read-only: each existing path, and other hard links of the same file. Masked
/// paths need no cover.
pub(super) fn find_covers(
    kept: &RuntimeFileGuard,
    shown: &[VisibleMount],
    masked: &[PathBuf],
) -> Result<Vec<PathBuf>, String> {
    let mut found = BTreeSet::new();
    let mut inodes: BTreeSet<(u64, u64)> = kept.file_ids().collect();
    for name in kept.names() {
        let holders = shown
            .iter()
            .filter(|part| !part.system && name.starts_with(&part.source));
        let deepest = holders.max_by_key(|part| part.source.components().count());
        let (Some(part), Ok(meta)) = (deepest, name.symlink_metadata()) else {
            continue;
        };
        if meta.is_symlink() {
            return Err(format!(
                "`{}` leads to one of the agent's own files, and a container can't keep a link in a writable mount from being replaced",
                name.display()
            ));
        }
        if meta.nlink() == 1 {
            inodes.remove(&(meta.dev(), meta.ino()));
        }
        found.insert(join_below(
            &part.target,
            name.strip_prefix(&part.source).unwrap_or(name),
        ));
    }
    if !inodes.is_empty() {
        let mut looked_at = 0;
        for part in shown.iter().filter(|part| !part.system) {
            walk_mount(part, &[], Path::new("/"), &mut inodes, &mut found, &mut looked_at)?;
        }
    }
    let alone = |path: &&PathBuf| {
        !masked.iter().any(|mask| path.starts_with(mask))
            && !path.ancestors().skip(1).any(|above| found.contains(above))
    };
    Ok(found.iter().filter(alone).cloned().collect())
}

/// Sorts mounts, parents first, and adds the folders between a writable mount and a mount below it. Then a tool can't move these
/// folders; otherwise the next call would find something else under the name.
pub(super) fn with_holders(mut mounts: Vec<(PathBuf, bool)>) -> Vec<(PathBuf, bool)> {
    let mut between: Vec<(PathBuf, bool)> = Vec::new();
    for (path, _) in &mounts {
        let above = mounts
            .iter()
            .filter(|(root, _)| path.starts_with(root) && path != root);
        let Some((root, true)) = above.max_by_key(|(root, _)| root.components().count()) else {
            continue;
        };
        let folders = path.ancestors().skip(1).take_while(|folder| folder != root);
        between.extend(folders.map(|folder| (folder.to_owned(), true)));
    }
    for holder in between {
        if !mounts.iter().any(|(path, _)| *path == holder.0) {
            mounts.push(holder);
        }
    }
    mounts.sort_by_key(|(path, _)| path.components().count());
    mounts
}
