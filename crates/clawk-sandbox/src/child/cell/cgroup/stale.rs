//! Removes control groups that are no longer in use.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use super::name::{GroupName, old_supervisor};
use super::{mount_of, path_below};

/// The flags for opening a group's folder.
pub(super) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A younger group is kept: its supervisor may have created it and not locked or entered it yet. In seconds.
const MIN_AGE_S: i64 = 10;

/// Removes groups that remain because a supervisor was killed together with its clawk. A group is removed if it has one of clawk's
/// names, is in a place where clawk creates groups, is empty (the kernel checks this), is older than [`MIN_AGE_S`], and is not
/// locked. Returns how many were removed.
pub(crate) fn remove_stale() -> usize {
    let mut removed = 0;
    for holder in group_parents() {
        for entry in std::fs::read_dir(&holder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let candidate = match old_supervisor(name) {
                // Earlier versions had no lock: check whether any process has the id.
                Some(pid) => !Path::new("/proc").join(format!("{pid}")).exists(),
                None => GroupName::parse(name).is_some(),
            };
            if candidate && remove_unused(&entry.path()) {
                removed += 1;
            }
        }
    }
    removed
}

/// Removes a group if it is old and no supervisor holds its lock.
fn remove_unused(group: &Path) -> bool {
    let Ok(folder) = rustix::fs::open(group, FOLDER, Mode::empty()) else {
        return false; // silent-ok: another clawk removed it
    };
    // The lock is held until the group is gone.
    is_old(&folder)
        && rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
        && std::fs::remove_dir(group).is_ok()
}

fn is_old(folder: impl AsFd) -> bool {
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    rustix::fs::fstat(folder).is_ok_and(|stat| now.saturating_sub(stat.st_mtime) >= MIN_AGE_S)
}

/// Removes the groups of a supervisor that was lost.
pub(crate) fn remove_left(name: &GroupName) {
    // The name came from a clawk process, but check that it can't be a path.
    let Some(name) = GroupName::parse(name.as_str()) else {
        return;
    };
    for holder in group_parents() {
        remove_group(&holder.join(name.as_str()));
    }
}

/// Removes a group if it exists. The kernel may need a moment after the last process has ended.
pub(super) fn remove_group(group: &Path) {
    for _ in 0..200 {
        match std::fs::remove_dir(group) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Ok(()) | Err(_) => break, // silent-ok: gone
        }
    }
}

/// Folders that may contain clawk's groups: its own groups and all of their parents.
fn group_parents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let top = if controllers.is_empty() {
            mount_of(&mounts, "cgroup2", None)
        } else {
            controllers
                .split(',')
                .find_map(|controller| mount_of(&mounts, "cgroup", Some(controller)))
        };
        let Some(top) = top else { continue };
        let mut holder = path_below(&top, path);
        loop {
            found.push(holder.clone());
            if holder == top || !holder.pop() {
                break;
            }
        }
    }
    found
}
