//! Restores files with several hard links as one file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use clawk_recall::seal::SealKeyring;
use rustix::fs::AtFlags;

use super::super::look::{self, State};
use super::{UndoPlan, UndoStep, open_parent, temporary_name};

/// Restores files that had several hard links: first one name, then the others as links to it.
pub(super) fn restore_links(
    kept: (&Path, Option<&SealKeyring>),
    back: &UndoPlan,
    note: &mut impl FnMut(&Path, io::Result<()>),
) {
    let mut groups: BTreeMap<PathBuf, Vec<&UndoStep>> = BTreeMap::new();
    for step in &back.steps {
        if let Some(linked) = step.then.hard_link() {
            groups.entry(linked.first.path()).or_default().push(step);
        }
    }
    for (first, steps) in groups {
        match source(kept, &first, &steps) {
            Ok(source) => {
                for step in steps {
                    note(&step.path, link_file(&source, &step.path));
                }
            }
            Err(error) => {
                for step in steps {
                    note(&step.path, Err(io::Error::other(error.to_string())));
                }
            }
        }
    }
}

/// Chooses a name of the group that has its intended state: the first name if it needs no step; else a name that still has its
/// content and all of its other names; else a name that is restored.
fn source(kept: (&Path, Option<&SealKeyring>), first: &Path, steps: &[&UndoStep]) -> io::Result<PathBuf> {
    let is_own = |path: &Path| path == first || steps.iter().any(|step| step.path == path);
    // A name that is now linked with a file of another group must not join the two groups.
    let apart = |state: &State| {
        state
            .hard_link()
            .is_none_or(|linked| is_own(&linked.first.path()))
    };
    let standing = steps
        .iter()
        .filter(|step| step.now.is_like(&step.then) && apart(&step.now));
    // A first name without a step stays as it is, so the others become links to it.
    let stepless = (!steps.iter().any(|step| step.path == first)).then_some(first);
    for path in stepless
        .into_iter()
        .chain(standing.map(|step| step.path.as_path()))
    {
        let state = look::observe_path(path)?.state.with_digest(path)?;
        if steps.iter().any(|step| step.then.is_like(&state)) {
            return Ok(path.to_owned());
        }
    }
    let step = steps.first().ok_or_else(|| io::Error::other("it has no name"))?;
    super::restore_step(kept, step)?;
    Ok(step.path.clone())
}

/// Makes `path` a hard link to `source`, atomically.
fn link_file(source: &Path, path: &Path) -> io::Result<()> {
    if look::observe_path(source)?.seen.file_id() == look::observe_path(path)?.seen.file_id() {
        return Ok(());
    }
    let ((from, file), (holder, name)) = (open_parent(source)?, open_parent(path)?);
    let part = temporary_name();
    rustix::fs::linkat(&from, file, &holder, part.as_str(), AtFlags::empty())?;
    let put = rustix::fs::renameat(&holder, part.as_str(), &holder, name);
    if put.is_err() {
        let _ = rustix::fs::unlinkat(&holder, part.as_str(), AtFlags::empty()); // silent-ok: the first error is told
    }
    Ok(put?)
}
