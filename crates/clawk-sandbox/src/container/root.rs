//! What the stage makes in its own mount namespace, so that nothing of it has to be removed: an in-memory file system for the
//! runtime's state, the mount points and the system's root. The system's programs are mounted into that root.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::cgroup::has_enforcing_controller;
use super::stage::{StageOrder, set_attributes};
use super::view::system_root;

/// The mount point in a run's folder.
const INSIDE: &str = "t";

/// The mount options. The size is enough for mount points and the runtime's state.
const OPTIONS: &str = "mode=0700,size=16m";

/// A run's in-memory folder. An ordinary user's stage can't mount anything, so there it is on disk.
pub(super) fn memory_folder(folder: &Path) -> PathBuf {
    folder.join(INSIDE)
}

/// Where the system's root is made.
pub(super) fn root_of(folder: &Path) -> PathBuf {
    memory_folder(folder).join("root")
}

/// Mounts the in-memory folder and makes the root.
pub(super) fn create_root(folder: &Path, order: &StageOrder) -> io::Result<()> {
    let inside = memory_folder(folder);
    fs::create_dir(&inside)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("clawk", &inside, "tmpfs", flags, Some(&*c_string(OPTIONS)?))?;
    if let Some(system) = &order.system {
        let root = root_of(folder);
        fs::create_dir(&root)?;
        system_root(&root)?;
        for path in system {
            mount_host_part(path, &root)
                .map_err(|error| io::Error::other(format!("`{}`: {error}", path.display())))?;
        }
    }
    Ok(())
}

/// Mounts a host path below `root` under the same name, read-only.
fn mount_host_part(path: &Path, root: &Path) -> io::Result<()> {
    let at = root.join(path.strip_prefix("/").map_err(io::Error::other)?);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let source = rustix::fs::open(path, flags, Mode::empty())?;
    match path.is_dir() {
        true => fs::create_dir_all(&at)?,
        false => {
            fs::create_dir_all(at.parent().unwrap_or(root))?;
            fs::File::create(&at).map(drop)?;
        }
    }
    let tree = copy_of(&source)?;
    set_attributes(
        &tree,
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        None,
    )?;
    attach_tree(&tree, &at)
}

/// A detached mount of this path alone.
pub(super) fn copy_of(source: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(rustix::mount::open_tree(
        source,
        "",
        flags | OpenTreeFlags::AT_EMPTY_PATH,
    )?)
}

/// Attaches the mount.
pub(super) fn attach_tree(tree: &OwnedFd, at: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(
        tree,
        "",
        rustix::fs::CWD,
        at,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Unmounts control group hierarchies without clawk's limits from this mount namespace. The runtime creates a group in each
/// hierarchy that it sees.
pub(super) fn hide_other_hierarchies() -> io::Result<()> {
    for place in other_cgroup_mounts(&fs::read_to_string("/proc/self/mountinfo")?) {
        rustix::mount::unmount(place, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// The hierarchies to unmount. Those that limit memory and processes, weight CPU time or forbid devices stay.
fn other_cgroup_mounts(mounts: &str) -> Vec<&str> {
    let other = |line: &&str| {
        let Some((_, kind)) = line.split_once(" - ") else {
            return false;
        };
        let mut words = kind.split(' ');
        match words.next() {
            Some("cgroup2") => true,
            Some("cgroup") => !has_enforcing_controller(words.nth(1).unwrap_or_default()),
            _ => false,
        }
    };
    let place = |line: &&str| line.contains(" /sys/fs/cgroup/");
    let mut found: Vec<&str> = mounts.lines().filter(place).filter(other).collect();
    found
        .iter_mut()
        .for_each(|line| *line = line.split(' ').nth(4).unwrap_or_default());
    found.retain(|place| place.starts_with("/sys/fs/cgroup/") && !place.contains('\\'));
    found
}

fn c_string(text: &str) -> io::Result<std::ffi::CString> {
    std::ffi::CString::new(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::other_cgroup_mounts;

    #[test]
    fn only_hierarchies_without_a_limit_of_ours_are_hidden() {
        let mounts = "\
33 24 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
34 33 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw
36 33 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
37 33 0:32 / /sys/fs/cgroup/cpuset rw shared:16 - cgroup cgroup rw,cpuset
38 33 0:33 / /sys/fs/cgroup/memory rw shared:17 - cgroup cgroup rw,memory
39 33 0:34 / /sys/fs/cgroup/devices rw shared:18 - cgroup cgroup rw,devices
40 33 0:35 / /sys/fs/cgroup/systemd rw shared:19 - cgroup cgroup rw,xattr,name=systemd
41 24 0:36 / /home/cgroup rw shared:20 - cgroup cgroup rw,freezer
";
        let hidden = [
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/cpuset",
            "/sys/fs/cgroup/systemd",
        ];
        assert_eq!(other_cgroup_mounts(mounts), hidden);
    }
}
