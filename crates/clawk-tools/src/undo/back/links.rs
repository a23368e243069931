//! Files with several names (hard links), put back as one file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use clawk_recall::seal::Vault;
use rustix::fs::AtFlags;

use super::super::look;
use super::{Back, Step, parent, part};

/// Puts back files that had several names: one name first, then the others as links to it.
pub(super) fn put(kept: (&Path, Option<&Vault>), back: &Back, note: &mut impl FnMut(&Path, io::Result<()>)) {
    let mut groups: BTreeMap<PathBuf, Vec<&Step>> = BTreeMap::new();
    for step in &back.steps {
        if let Some(linked) = step.then.linked() {
            groups.entry(linked.first.path()).or_default().push(step);
        }
    }
    // Files that are one now and were not before must not become one group.
    let mut taken = BTreeSet::new();
    for (first, steps) in groups {
        let source = source(kept, &first, &steps, &taken);
        match source.and_then(|source| Ok((look::at(&source)?.seen.file(), source))) {
            Ok((file, source)) => {
                taken.insert(file);
                for step in steps {
                    note(&step.path, link(&source, &step.path));
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

/// A name of the group that stands as it is to: one that still does, with all other names that it has, or one that is put back.
fn source(
    kept: (&Path, Option<&Vault>),
    first: &Path,
    steps: &[&Step],
    taken: &BTreeSet<(u64, u64)>,
) -> io::Result<PathBuf> {
    let stepless = (!steps.iter().any(|step| step.path == first)).then_some(first);
    let standing = steps.iter().filter(|step| step.now.is_like(&step.then));
    for path in standing.map(|step| step.path.as_path()).chain(stepless) {
        let look = look::at(path)?;
        if taken.contains(&look.seen.file()) {
            continue;
        }
        let state = look.state.hashed(path)?;
        if steps.iter().any(|step| step.then.is_like(&state)) {
            return Ok(path.to_owned());
        }
    }
    let step = steps.first().ok_or_else(|| io::Error::other("it has no name"))?;
    super::put(kept, step)?;
    Ok(step.path.clone())
}

/// Makes `path` another name of the file at `source`, in one step.
fn link(source: &Path, path: &Path) -> io::Result<()> {
    if look::at(source)?.seen.file() == look::at(path)?.seen.file() {
        return Ok(());
    }
    let ((from, file), (holder, name)) = (parent(source)?, parent(path)?);
    let part = part();
    rustix::fs::linkat(&from, file, &holder, part.as_str(), AtFlags::empty())?;
    let put = rustix::fs::renameat(&holder, part.as_str(), &holder, name);
    if put.is_err() {
        let _ = rustix::fs::unlinkat(&holder, part.as_str(), AtFlags::empty()); // silent-ok: the first error is told
    }
    Ok(put?)
}
