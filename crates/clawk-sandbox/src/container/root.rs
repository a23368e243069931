//! What the stage makes in its own mount namespace, so that nothing of it has to be removed: a file system in memory for the
//! runtime's state, the mounts' places and the system's root; and the system's programs in that root, each by a mount of our own.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::cgroup::shows;
use super::stage::{StageOrder, set_attributes};
use super::view::system_root;

/// Where it is mounted, in a run's folder.
const INSIDE: &str = "t";

/// A folder's places and the runtime's state need no more.
const OPTIONS: &str = "mode=0700,size=16m";

/// The folder in memory of a run; an ordinary user's stage can mount nothing, and has it on disk.
pub(super) fn inside(folder: &Path) -> PathBuf {
    folder.join(INSIDE)
}

/// Where the system's root is made.
pub(super) fn root_of(folder: &Path) -> PathBuf {
    inside(folder).join("root")
}

/// Makes it.
pub(super) fn make(folder: &Path, order: &StageOrder) -> io::Result<()> {
    let inside = inside(folder);
    fs::create_dir(&inside)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("clawk", &inside, "tmpfs", flags, Some(&*nul(OPTIONS)?))?;
    if let Some(system) = &order.system {
        let root = root_of(folder);
        fs::create_dir(&root)?;
        system_root(&root)?;
        for path in system {
            show(path, &root).map_err(|error| io::Error::other(format!("`{}`: {error}", path.display())))?;
        }
    }
    Ok(())
}

/// Mounts a part of the host below `root` by its own name, read-only.
fn show(path: &Path, root: &Path) -> io::Result<()> {
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
    put(&tree, &at)
}

/// A mount of this place alone, which lies nowhere yet.
pub(super) fn copy_of(source: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(rustix::mount::open_tree(
        source,
        "",
        flags | OpenTreeFlags::AT_EMPTY_PATH,
    )?)
}

/// Puts it there.
pub(super) fn put(tree: &OwnedFd, at: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(
        tree,
        "",
        rustix::fs::CWD,
        at,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Takes hierarchies of control groups that hold no limit of ours out of this mount namespace: the runtime makes a group in each
/// that it sees.
pub(super) fn hide_other_hierarchies() -> io::Result<()> {
    for place in others(&fs::read_to_string("/proc/self/mountinfo")?) {
        rustix::mount::unmount(place, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Those that limit memory and processes, weigh the time, or forbid devices stay.
fn others(mounts: &str) -> Vec<&str> {
    let other = |line: &&str| {
        let Some((_, kind)) = line.split_once(" - ") else {
            return false;
        };
        let mut words = kind.split(' ');
        match words.next() {
            Some("cgroup2") => true,
            Some("cgroup") => !shows(words.nth(1).unwrap_or_default()),
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

fn nul(text: &str) -> io::Result<std::ffi::CString> {
    std::ffi::CString::new(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::others;

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
        assert_eq!(others(mounts), hidden);
    }
}
