//! The undo itself: first plans all changes, then applies them.

mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use clawk_proto::RequestId;
use clawk_recall::seal::SealKeyring;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps};

use super::look::{self, FileObservation, State};
use super::record::{self, RecordedChange, UndoRecord};

/// One path that is restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoStep {
    /// The path.
    pub path: PathBuf,
    /// Its present state.
    pub now: State,
    /// Its state after the undo.
    pub then: State,
}

/// A change that can't be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoConflict {
    /// The call that made the change.
    pub request_id: RequestId,
    /// The tool of that call.
    pub tool: String,
    /// The path; `None`: the whole call.
    pub path: Option<PathBuf>,
    /// The reason.
    pub why: String,
}

/// The plan of an undo.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UndoPlan {
    /// The steps, ordered by path.
    pub steps: Vec<UndoStep>,
    /// Calls that are completely undone.
    pub calls: Vec<RequestId>,
    /// Changes that are not undone.
    pub conflicts: Vec<UndoConflict>,
    /// Restored files that had another hard link outside the calls' reach. The undo does not link that name to them again.
    pub unlinked: Vec<PathBuf>,
}

/// Plans the undo of these calls, given newest first. Changes nothing.
///
/// # Errors
/// The present state can't be read.
pub fn plan_undo(root: &Path, records: &[UndoRecord]) -> io::Result<UndoPlan> {
    let mut back = UndoPlan::default();
    let first = current_states(records)?;
    // The state of each path while the calls are undone one after the other.
    let mut stands: BTreeMap<PathBuf, State> = BTreeMap::new();
    for call in records {
        let conflict = |path: Option<&Path>, why: &str| UndoConflict {
            request_id: call.request_id.clone(),
            tool: call.tool.clone(),
            path: path.map(Path::to_owned),
            why: why.to_owned(),
        };
        if let Some(why) = &call.why {
            back.conflicts.push(conflict(None, why));
            continue;
        }
        if !call.ended {
            let why = "it was cut off, so nobody knows what it changed";
            back.conflicts.push(conflict(None, why));
            continue;
        }
        let before = back.conflicts.len();
        for change in &call.changes {
            let path = change.place.path();
            let now = match (stands.get(&path), first.get(&path)) {
                (Some(now), _) | (None, Some(Ok(now))) => now.clone(),
                (None, None) => State::Absent,
                (None, Some(Err(why))) => {
                    back.conflicts.push(conflict(Some(&path), why));
                    continue;
                }
            };
            match state_before_change(root, &now, change) {
                Ok(then) => {
                    if change.reaches_beyond() {
                        back.conflicts.push(conflict(Some(&path), BEYOND));
                    }
                    stands.insert(path, then);
                }
                Err(why) => {
                    stands.insert(path.clone(), now);
                    back.conflicts.push(conflict(Some(&path), &why));
                }
            }
        }
        if back.conflicts.len() == before {
            back.calls.push(call.request_id.clone());
        }
    }
    add_steps(&mut back, first, stands);
    Ok(back)
}

/// The reason text for a file that has a hard link outside the call's reach.
const BEYOND: &str = "it has another name (a hard link) outside of the places that the call was to write to; what the call wrote \
                      stays there";

/// The present state of the paths that the calls changed, and of the first names of files with several hard links.
fn current_states(records: &[UndoRecord]) -> io::Result<BTreeMap<PathBuf, Result<State, String>>> {
    let whole = records.iter().filter(|call| call.ended && call.why.is_none());
    let mut paths = BTreeSet::new();
    for change in whole.flat_map(|call| &call.changes) {
        paths.insert(change.place.path());
        let linked = [&change.before, &change.after]
            .into_iter()
            .filter_map(State::hard_link);
        paths.extend(linked.map(|linked| linked.first.path()));
    }
    let hashed = |(path, look): (PathBuf, FileObservation)| {
        let state = look.state.with_digest(&path);
        let state = state.map_err(|error| format!("it can't be read: {error}"));
        (path, state)
    };
    Ok(look::observe_again(paths.iter())?
        .into_iter()
        .map(hashed)
        .collect())
}

/// The state of a path after one change is undone.
fn state_before_change(root: &Path, now: &State, change: &RecordedChange) -> Result<State, String> {
    if change.before == State::Other || change.after == State::Other {
        Err("it is not a file, a folder or a link".to_owned())
    } else if is_content_missing(root, &change.before) {
        Err("what it overwrote is kept no more".to_owned())
    } else {
        taken_back(now, &change.before, &change.after)
    }
}

/// Adds a step for each path that differs from its intended state.
fn add_steps(
    back: &mut UndoPlan,
    first: BTreeMap<PathBuf, Result<State, String>>,
    stands: BTreeMap<PathBuf, State>,
) {
    let mut first = first;
    let name = |state: &State| state.hard_link().map(|linked| linked.first.clone());
    for (path, then) in stands {
        let now = first.remove(&path).and_then(Result::ok).unwrap_or_default(); // silent-ok: what can't be read has no step
        // The first name stays as it is: the others become links to it, or are removed. This includes names that others have added.
        let is_first = |state: &State| state.hard_link().is_none_or(|linked| linked.first.path() == path);
        let stays = is_first(&now) && is_first(&then) || name(&now) == name(&then);
        if now.is_like(&then) && stays {
            continue;
        }
        if !now.is_like(&then) && then.hard_link().is_some_and(|linked| linked.beyond) {
            back.unlinked.push(path.clone());
        }
        back.steps.push(UndoStep { path, now, then });
    }
}

fn is_content_missing(root: &Path, state: &State) -> bool {
    match state {
        State::File { digest, .. } => !record::blob_path(root, digest).is_file(),
        State::Absent | State::Folder { .. } | State::Link { .. } | State::Other => false,
    }
}

/// The state after one change is undone.
fn taken_back(now: &State, before: &State, after: &State) -> Result<State, String> {
    // If the path already has its earlier state, nothing needs to be done.
    if now.is_like(after) || now.is_like(before) {
        return Ok(before.clone());
    }
    // Other users work in a folder too: its date is restored only if nobody else has changed the folder.
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
            now.kind_name()
        ),
    })
}

/// Applies the plan. Returns the paths that could not be restored, with the reasons.
#[must_use]
pub fn apply_undo(root: &Path, back: &UndoPlan, vault: Option<&SealKeyring>) -> Vec<(PathBuf, String)> {
    let mut failed = BTreeMap::new();
    let mut note = |path: &Path, done: io::Result<()>| {
        if let Err(error) = done {
            failed.entry(path.to_owned()).or_insert_with(|| error.to_string());
        }
    };
    let holders = parent_folder_states(back);
    for (path, error) in open_up(back) {
        note(&path, Err(error));
    }
    let changes_kind =
        |step: &&UndoStep| std::mem::discriminant(&step.now) != std::mem::discriminant(&step.then);
    // First remove what must not exist, deepest paths first.
    for step in back
        .steps
        .iter()
        .rev()
        .filter(changes_kind)
        .filter(|step| step.now != State::Absent)
    {
        note(&step.path, remove(step));
    }
    // Then restore folders and their content, top down. Files with several hard links follow at the end.
    for step in back.steps.iter().filter(|step| step.then.hard_link().is_none()) {
        note(&step.path, restore_step((root, vault), step));
    }
    links::restore_links((root, vault), back, &mut note);
    // Restore dates and modes of folders last, deepest first, because the steps before have changed them.
    for (path, (mode, modified)) in holders {
        note(&path, dress_folder(&path, mode, modified));
    }
    for step in back.steps.iter().rev() {
        if let State::Folder { mode, modified } = &step.then {
            note(&step.path, dress_folder(&step.path, *mode, *modified));
        }
    }
    failed.into_iter().collect()
}

/// Folders in which something is restored and that are not themselves restored, with their modes and dates.
fn parent_folder_states(back: &UndoPlan) -> BTreeMap<PathBuf, (u32, (i64, i64))> {
    let own: BTreeSet<&Path> = back.steps.iter().map(|step| step.path.as_path()).collect();
    let parents = back.steps.iter().filter_map(|step| step.path.parent());
    let others = parents.filter(|parent| !own.contains(parent));
    // silent-ok: a folder that can't be read can't be written to, and that failure is reported
    let looked =
        others.filter_map(|parent| Some((parent.to_owned(), look::observe_path(parent).ok()?.state)));
    looked
        .filter_map(|(path, state)| match state {
            State::Folder { mode, modified } => Some((path, (mode, modified))),
            State::Absent | State::File { .. } | State::Link { .. } | State::Other => None,
        })
        .collect()
}

/// Makes all folders in which something is restored writable for their owner. Their modes are restored at the end.
fn open_up(back: &UndoPlan) -> Vec<(PathBuf, io::Error)> {
    const OWNER: u32 = 0o700;
    let parents: BTreeSet<&Path> = back.steps.iter().filter_map(|step| step.path.parent()).collect();
    let mut failed = Vec::new();
    for path in parents {
        // silent-ok: a folder that can't be read can't be written to, and that failure is reported
        let Ok(State::Folder { mode, modified }) = look::observe_path(path).map(|look| look.state) else {
            continue;
        };
        if mode & OWNER != OWNER
            && let Err(error) = dress_folder(path, mode | OWNER, modified)
        {
            failed.push((path.to_owned(), error));
        }
    }
    failed
}

/// A temporary name for an entry that is being restored.
fn temporary_name() -> String {
    format!(".clawk-undo-{}.tmp", std::process::id())
}

/// Opens the parent folder without following links, and returns it with the entry's name.
fn open_parent(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
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

fn remove(step: &UndoStep) -> io::Result<()> {
    let (holder, name) = open_parent(&step.path)?;
    let flags = match step.now {
        State::Folder { .. } => AtFlags::REMOVEDIR,
        State::Absent | State::File { .. } | State::Link { .. } | State::Other => AtFlags::empty(),
    };
    Ok(rustix::fs::unlinkat(&holder, name, flags)?)
}

fn restore_step((root, vault): (&Path, Option<&SealKeyring>), step: &UndoStep) -> io::Result<()> {
    match &step.then {
        State::Absent | State::Other => Ok(()),
        State::Folder { .. } => match step.now {
            State::Folder { .. } => Ok(()),
            State::Absent | State::File { .. } | State::Link { .. } | State::Other => {
                let (holder, name) = open_parent(&step.path)?;
                Ok(rustix::fs::mkdirat(&holder, name, Mode::from_raw_mode(0o700))?)
            }
        },
        State::Link { target, modified } => {
            let (holder, name) = open_parent(&step.path)?;
            if matches!(step.now, State::Link { .. }) {
                rustix::fs::unlinkat(&holder, name, AtFlags::empty())?;
            }
            rustix::fs::symlinkat(look::path_of(target.clone()), &holder, name)?;
            Ok(rustix::fs::utimensat(
                &holder,
                name,
                &file_timestamps(*modified),
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
            // A file with other hard links is replaced, so that the other names keep their content.
            if same && !look::observe_path(&step.path)?.seen.is_shared() {
                let file = look::open_regular(&step.path)?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode))?;
                return Ok(rustix::fs::futimens(&file, &file_timestamps(*modified))?);
            }
            restore_file((root, vault), &step.path, digest, *mode, *modified)
        }
    }
}

/// Restores a saved content atomically.
fn restore_file(
    (root, vault): (&Path, Option<&SealKeyring>),
    path: &Path,
    digest: &str,
    mode: u32,
    modified: (i64, i64),
) -> io::Result<()> {
    let kept = record::read_content(root, digest, vault)?;
    let (holder, name) = open_parent(path)?;
    let part = temporary_name();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&holder, part.as_str(), flags, Mode::from_raw_mode(0o600))?;
    let mut copy = File::from(fd);
    let put = copy
        .write_all(&kept)
        .and_then(|()| copy.sync_data())
        .and_then(|()| Ok(rustix::fs::fchmod(&copy, Mode::from_raw_mode(mode))?))
        .and_then(|()| Ok(rustix::fs::futimens(&copy, &file_timestamps(modified))?))
        .and_then(|()| Ok(rustix::fs::renameat(&holder, part.as_str(), &holder, name)?));
    if put.is_err() {
        let _ = rustix::fs::unlinkat(&holder, part.as_str(), AtFlags::empty()); // silent-ok: the first error is told
    }
    put
}

fn dress_folder(path: &Path, mode: u32, modified: (i64, i64)) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )?;
    rustix::fs::futimens(&fd, &file_timestamps(modified))?;
    Ok(rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?)
}

fn file_timestamps((tv_sec, tv_nsec): (i64, i64)) -> Timestamps {
    Timestamps {
        // The access time stays as it is.
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec { tv_sec, tv_nsec },
    }
}
