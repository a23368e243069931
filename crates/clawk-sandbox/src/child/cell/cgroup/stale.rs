//! Removes control groups that nobody uses any more.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use super::name::{GroupName, old_supervisor};
use super::{below, mount_of};

/// How a group's folder is opened.
pub(super) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A younger group may be one that its supervisor has made and not locked or entered yet.
const MIN_AGE_S: i64 = 10;

/// Removes the groups that supervisors left behind which were killed together with their clawk: groups with a name of ours, in the
/// places where ours are made, empty (the kernel sees to that), older than [`MIN_AGE_S`], whose supervisor holds no lock on them.
/// Returns how many were removed.
pub(crate) fn remove_stale() -> usize {
    let mut removed = 0;
    for holder in holders() {
        for entry in std::fs::read_dir(&holder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let candidate = match old_supervisor(name) {
                // Those had no lock: the process is looked for, whoever that is by now.
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

/// Removes a group if it is old and no supervisor has it.
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

/// Removes the groups that a lost supervisor left behind.
pub(crate) fn remove_left(name: &GroupName) {
    // The name came from a process of ours; a path it can't be.
    let Some(name) = GroupName::parse(name.as_str()) else {
        return;
    };
    for holder in holders() {
        vanish(&holder.join(name.as_str()));
    }
}

/// Removes a group, if it is there; the kernel may need a moment after the last process is gone.
pub(super) fn vanish(group: &Path) {
    for _ in 0..200 {
        match std::fs::remove_dir(group) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Ok(()) | Err(_) => break, // silent-ok: gone
        }
    }
}

/// Folders in which groups of ours may be: our own groups, and all above them.
fn holders() -> Vec<PathBuf> {
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
        let mut holder = below(&top, path);
        loop {
            found.push(holder.clone());
            if holder == top || !holder.pop() {
                break;
            }
        }
    }
    found
}
