//! The undo itself: makes a list of all changes first, then performs the list.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use clawk_proto::RequestId;
use clawk_recall::seal::Vault;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps};

use super::look::{self, State};
use super::record::{self, Record};

/// One place that is put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where.
    pub path: PathBuf,
    /// What stands there now.
    pub now: State,
    /// What will stand there.
    pub then: State,
}

/// A change that can't be put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The call.
    pub request_id: RequestId,
    /// Its tool.
    pub tool: String,
    /// Where; none: the whole call.
    pub path: Option<PathBuf>,
    /// Why not.
    pub why: String,
}

/// What an undo comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Back {
    /// In the order of paths.
    pub steps: Vec<Step>,
    /// Calls of which everything is put back.
    pub calls: Vec<RequestId>,
    /// What is not.
    pub conflicts: Vec<Conflict>,
}

/// What it comes to, to put back these calls, newest first. Looks, and changes nothing.
///
/// # Errors
/// What is there can't be looked at.
pub fn plan(root: &Path, records: &[Record]) -> io::Result<Back> {
    let mut back = Back::default();
    // What stands at each place, while the calls are taken back one after the other.
    let mut stands: BTreeMap<PathBuf, State> = BTreeMap::new();
    let mut first: BTreeMap<PathBuf, State> = BTreeMap::new();
    for call in records {
        let conflict = |path: Option<&Path>, why: String| Conflict {
            request_id: call.request_id.clone(),
            tool: call.tool.clone(),
            path: path.map(Path::to_owned),
            why,
        };
        if let Some(why) = &call.why {
            back.conflicts.push(conflict(None, why.clone()));
            continue;
        }
        if !call.ended {
            let why = "it was cut off, so nobody knows what it changed".to_owned();
            back.conflicts.push(conflict(None, why));
            continue;
        }
        let before = back.conflicts.len();
        for change in &call.changes {
            let path = change.place.path();
            let now = match stands.get(&path) {
                Some(now) => now.clone(),
                None => {
                    let now = look::at(&path)?.state.hashed(&path)?;
                    first.insert(path.clone(), now.clone());
                    now
                }
            };
            let then = if change.before == State::Other || change.after == State::Other {
                Err("it is not a file, a folder or a link".to_owned())
            } else if missing(root, &change.before) {
                Err("what it overwrote is kept no more".to_owned())
            } else {
                taken_back(&now, &change.before, &change.after)
            };
            match then {
                Ok(then) => {
                    stands.insert(path, then);
                }
                Err(why) => {
                    stands.insert(path.clone(), now);
                    back.conflicts.push(conflict(Some(&path), why));
                }
            }
        }
        if back.conflicts.len() == before {
            back.calls.push(call.request_id.clone());
        }
    }
    for (path, then) in stands {
        let now = first.remove(&path).unwrap_or_default();
        if now != then {
            back.steps.push(Step { path, now, then });
        }
    }
    Ok(back)
}

fn missing(root: &Path, state: &State) -> bool {
    match state {
        State::File { digest, .. } => !record::blob(root, digest).is_file(),
        State::Absent | State::Folder { .. } | State::Link { .. } | State::Other => false,
    }
}

/// What stands there once one change is taken back.
fn taken_back(now: &State, before: &State, after: &State) -> Result<State, String> {
    if now == after {
        return Ok(before.clone());
    }
    // Others work in a folder too: its date is put back only where nobody has.
    if let (
        State::Folder { mode, modified },
        State::Folder { mode: was, .. },
        State::Folder { mode: left, .. },
    ) = (now, before, after)
    {
        return Ok(State::Folder {
            mode: if mode == left { *was } else { *mode },
            modified: *modified,
        });
    }
    Err(match now {
        State::Absent => "it has been removed since".to_owned(),
        now => format!(
            "something else has changed it since: a {} stands there",
            now.word()
        ),
    })
}

/// Does it. Returns what could not be done, with the reasons.
#[must_use]
pub fn apply(root: &Path, back: &Back, vault: Option<&Vault>) -> Vec<(PathBuf, String)> {
    let mut failed = BTreeMap::new();
    let mut note = |path: &Path, done: io::Result<()>| {
        if let Err(error) = done {
            failed.entry(path.to_owned()).or_insert_with(|| error.to_string());
        }
    };
    let holders = holders(back);
    let changes_kind = |step: &&Step| std::mem::discriminant(&step.now) != std::mem::discriminant(&step.then);
    // Away with what is not to be there, the deepest first.
    for step in back
        .steps
        .iter()
        .rev()
        .filter(changes_kind)
        .filter(|step| step.now != State::Absent)
    {
        note(&step.path, remove(step));
    }
    // Then folders and what is in them, from above.
    for step in &back.steps {
        note(&step.path, put((root, vault), step));
    }
    // Dates and modes of folders last, the deepest first: what was done in them has changed them.
    for (path, modified) in holders {
        note(&path, dress_folder(&path, None, modified));
    }
    for step in back.steps.iter().rev() {
        if let State::Folder { mode, modified } = &step.then {
            note(&step.path, dress_folder(&step.path, Some(*mode), *modified));
        }
    }
    failed.into_iter().collect()
}

/// Folders in which something is put back and that stay as they are: with their dates.
fn holders(back: &Back) -> BTreeMap<PathBuf, (i64, i64)> {
    let own: BTreeSet<&Path> = back.steps.iter().map(|step| step.path.as_path()).collect();
    let parents = back.steps.iter().filter_map(|step| step.path.parent());
    let others = parents.filter(|parent| !own.contains(parent));
    // silent-ok: what can't be looked at can't be written to, and that is told
    let looked = others.filter_map(|parent| Some((parent.to_owned(), look::at(parent).ok()?.state)));
    looked
        .filter_map(|(path, state)| match state {
            State::Folder { modified, .. } => Some((path, modified)),
            State::Absent | State::File { .. } | State::Link { .. } | State::Other => None,
        })
        .collect()
}

/// The folder that holds it, opened without following a link on the way, and its name.
fn parent(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("it has no name"))?;
    let holder = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(
        rustix::fs::CWD,
        holder,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )?;
    Ok((fd, name))
}

fn remove(step: &Step) -> io::Result<()> {
    let (holder, name) = parent(&step.path)?;
    let flags = match step.now {
        State::Folder { .. } => AtFlags::REMOVEDIR,
        State::Absent | State::File { .. } | State::Link { .. } | State::Other => AtFlags::empty(),
    };
    Ok(rustix::fs::unlinkat(&holder, name, flags)?)
}

fn put((root, vault): (&Path, Option<&Vault>), step: &Step) -> io::Result<()> {
    match &step.then {
        State::Absent | State::Other => Ok(()),
        State::Folder { .. } => match step.now {
            State::Folder { .. } => Ok(()),
            State::Absent | State::File { .. } | State::Link { .. } | State::Other => {
                let (holder, name) = parent(&step.path)?;
                Ok(rustix::fs::mkdirat(&holder, name, Mode::from_raw_mode(0o700))?)
            }
        },
        State::Link { target, modified } => {
            let (holder, name) = parent(&step.path)?;
            if matches!(step.now, State::Link { .. }) {
                rustix::fs::unlinkat(&holder, name, AtFlags::empty())?;
            }
            rustix::fs::symlinkat(look::path_of(target.clone()), &holder, name)?;
            Ok(rustix::fs::utimensat(
                &holder,
                name,
                &times(*modified),
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        }
        State::File {
            digest,
            mode,
            modified,
            ..
        } => {
            let same = matches!(&step.now, State::File { digest: now, .. } if now == digest);
            if same {
                let file = look::open(&step.path)?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode))?;
                return Ok(rustix::fs::futimens(&file, &times(*modified))?);
            }
            file((root, vault), &step.path, digest, *mode, *modified)
        }
    }
}

/// Puts a kept content in its place in one step.
fn file(
    (root, vault): (&Path, Option<&Vault>),
    path: &Path,
    digest: &str,
    mode: u32,
    modified: (i64, i64),
) -> io::Result<()> {
    let kept = record::content(root, digest, vault)?;
    let (holder, name) = parent(path)?;
    let part = format!(".clawk-undo-{}.tmp", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&holder, part.as_str(), flags, Mode::from_raw_mode(0o600))?;
    let mut copy = File::from(fd);
    let put = copy
        .write_all(&kept)
        .and_then(|()| copy.sync_data())
        .and_then(|()| Ok(rustix::fs::fchmod(&copy, Mode::from_raw_mode(mode))?))
        .and_then(|()| Ok(rustix::fs::futimens(&copy, &times(modified))?))
        .and_then(|()| Ok(rustix::fs::renameat(&holder, part.as_str(), &holder, name)?));
    if put.is_err() {
        let _ = rustix::fs::unlinkat(&holder, part.as_str(), AtFlags::empty()); // silent-ok: the first error is told
    }
    put
}

fn dress_folder(path: &Path, mode: Option<u32>, modified: (i64, i64)) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )?;
    rustix::fs::futimens(&fd, &times(modified))?;
    if let Some(mode) = mode {
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

fn times((tv_sec, tv_nsec): (i64, i64)) -> Timestamps {
    Timestamps {
        // The date of the last reading stays as it is.
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec { tv_sec, tv_nsec },
    }
}
