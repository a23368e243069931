//! Resource limits by control groups: version 2 if its controllers can be used, otherwise version 1. The group is created below or
//! beside clawk's own group. Without control groups, the supervisor's watcher enforces the limits (R32).

mod name;
mod stale;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

pub(crate) use self::name::GroupName;
pub(crate) use self::stale::{remove_left, remove_stale};
use crate::launch::wire::{ReportedLimit, SandboxOrder};

/// How often creating a group is tried while other processes change groups in the same place.
const TRIES: u32 = 6;

/// The wait after the first failed attempt. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(1);

/// The number of clawk's own processes in the tool's group: the sandbox's first process.
const OWN_PROCESSES: u64 = 1;

/// The mounted control group hierarchies and this process's groups, as lines of `mountinfo` and `cgroup`.
pub(super) struct CgroupHierarchies {
    mounts: String,
    own: String,
    /// A file on which the kernel reports changes of mounts. Without it, the mounts are read each time.
    table: Option<std::fs::File>,
}

impl CgroupHierarchies {
    pub(super) fn read() -> Self {
        let table = std::fs::File::open("/proc/self/mountinfo").ok(); // silent-ok: see the field
        let mut read = Self {
            mounts: String::new(),
            own: String::new(),
            table,
        };
        read.read_mounts();
        read.refresh();
        read
    }

    /// Keeps only the lines of control groups, because the text is read and copied with the process for every sandbox.
    fn read_mounts(&mut self) {
        let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let wanted = all.lines().filter(|line| line.contains(" - cgroup"));
        self.mounts = wanted.collect::<Vec<_>>().join("\n");
    }

    /// Reads again if something may have changed.
    pub(super) fn refresh(&mut self) {
        self.own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let changed = self.table.as_ref().is_none_or(|table| {
            let mut fds = [PollFd::new(table, PollFlags::PRI)];
            let ready = rustix::event::poll(&mut fds, Some(&Timespec::default()));
            let [fd] = fds;
            ready.is_err() || fd.revents().intersects(PollFlags::PRI | PollFlags::ERR)
        });
        if changed {
            self.read_mounts();
        }
    }
}

/// The control groups of one run.
#[derive(Debug, Default)]
pub(super) struct RunCgroups {
    name: GroupName,
    /// The groups' folders, locked for as long as the supervisor lives. The lock shows another clawk that the groups are in use.
    /// This also works from another process namespace, in which the supervisor's process id is not visible.
    #[expect(dead_code, reason = "a lock is held, not read")]
    locks: Vec<OwnedFd>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    unified: bool,
}

impl RunCgroups {
    /// Creates the groups that can be created here, without limits yet. Other mechanisms must enforce the rest.
    pub(super) fn create_groups(hierarchies: &CgroupHierarchies, name: GroupName) -> Self {
        let CgroupHierarchies { mounts, own, .. } = hierarchies;
        let made = Self::create_unified(mounts, own, name.as_str());
        let made = made.unwrap_or_else(|| Self::create_per_controller(mounts, own, name.as_str()));
        Self { name, ..made }
    }

    /// The common name of these groups.
    pub(super) fn name(&self) -> &GroupName {
        &self.name
    }

    /// The same groups for the sandbox's first process, which must not hold the supervisor's locks.
    pub(super) fn without_locks(self) -> Self {
        Self {
            locks: Vec::new(),
            ..self
        }
    }

    fn create_unified(mounts: &str, own: &str, name: &str) -> Option<Self> {
        let top = mount_of(mounts, "cgroup2", None)?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let mut holder = path_below(&top, path);
        // clawk's own group contains processes, so its children can't have controllers, unless it is the root group. Use a sibling
        // then.
        loop {
            let control = std::fs::read_to_string(holder.join("cgroup.subtree_control")).unwrap_or_default();
            let has = |name: &str| control.split_ascii_whitespace().any(|word| word == name);
            let group = holder.join(name);
            let lock = (has("memory") && has("pids"))
                .then(|| make_group(&group))
                .flatten();
            if let Some(lock) = lock {
                let writable = |file: &str| {
                    let path = group.join(file);
                    std::fs::OpenOptions::new().write(true).open(path).is_ok()
                };
                if writable("memory.max") && writable("pids.max") {
                    return Some(Self {
                        name: GroupName::default(),
                        locks: vec![lock],
                        memory: Some(group.clone()),
                        pids: Some(group.clone()),
                        cpu: has("cpu").then_some(group),
                        unified: true,
                    });
                }
                let _ = std::fs::remove_dir(&group); // silent-ok: nothing was in it
            }
            if holder == top || !holder.pop() {
                return None;
            }
        }
    }

    fn create_per_controller(mounts: &str, own: &str, name: &str) -> Self {
        let mut locks = Vec::new();
        let mut group = |controller: &str| {
            let top = mount_of(mounts, "cgroup", Some(controller))?;
            let path = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let listed = fields.next()?.split(',').any(|one| one == controller);
                fields.next().filter(|_| listed)
            })?;
            let group = path_below(&top, path).join(name);
            locks.push(make_group(&group)?); // without one, another mechanism holds, and is named
            Some(group)
        };
        let (memory, pids, cpu) = (group("memory"), group("pids"), group("cpu"));
        Self {
            name: GroupName::default(),
            locks,
            memory,
            pids,
            cpu,
            unified: false,
        }
    }

    /// Sets the order's limits. Groups that can't be limited are dropped. Returns true if all groups have their limits.
    pub(super) fn apply_limits(&mut self, order: &SandboxOrder) -> bool {
        let set = |group: &Path, file: &str, value: &str| std::fs::write(group.join(file), value).is_ok();
        let bytes = (order.memory_mb << 20).to_string();
        let most = (order.max_processes + OWN_PROCESSES).to_string();
        let before = self.enforced_mechanisms();
        if self.unified {
            let fits = |group: &PathBuf| {
                let held = set(group, "memory.max", &bytes) && set(group, "pids.max", &most);
                let _ = set(group, "memory.swap.max", "0"); // silent-ok: no swap accounting
                let _ = set(group, "memory.oom.group", "1"); // silent-ok: the supervisor ends the rest
                held
            };
            if let Some(group) = self.memory.take_if(|group| !fits(group)) {
                (self.pids, self.cpu) = (None, None);
                let _ = std::fs::remove_dir(group); // silent-ok: nothing was in it
            }
            let shares = cpu_weight_text(order.cpu_shares);
            // The group itself stays, because the other limits use it too.
            let _ = self.cpu.take_if(|group| !set(group, "cpu.weight", &shares));
        } else {
            let shares = order.cpu_shares.clamp(2, 262_144).to_string();
            for (group, file, value) in [
                (&mut self.memory, "memory.limit_in_bytes", &bytes),
                (&mut self.pids, "pids.max", &most),
                (&mut self.cpu, "cpu.shares", &shares),
            ] {
                if let Some(group) = group.take_if(|group| !set(group, file, value)) {
                    let _ = std::fs::remove_dir(group); // silent-ok: nothing was in it
                }
            }
            if let Some(memory) = &self.memory {
                let _ = set(memory, "memory.memsw.limit_in_bytes", &bytes); // silent-ok: no swap accounting
            }
        }
        self.enforced_mechanisms() == before
    }

    fn all_folders(&self) -> impl Iterator<Item = &PathBuf> {
        let mut all: Vec<&PathBuf> = [&self.memory, &self.pids, &self.cpu]
            .into_iter()
            .flatten()
            .collect();
        all.dedup();
        all.into_iter()
    }

    /// Moves this single-threaded process into the limiting groups of version 1. The process does this itself: then the kernel need
    /// not wait for every CPU, which takes ten milliseconds per group.
    pub(super) fn enter_v1_groups(&self) -> std::io::Result<()> {
        if self.unified {
            return Ok(());
        }
        let weighed = self.cpu.as_ref();
        for group in self.all_folders().filter(|group| Some(*group) != weighed) {
            std::fs::write(group.join("tasks"), "0")?;
        }
        Ok(())
    }

    /// Opens the file through which this process enters the CPU weight group of version 1. It enters later than the other groups,
    /// so that its own preparation does not count for the tool.
    pub(super) fn open_cpu(&self) -> std::io::Result<Option<OwnedFd>> {
        let weighed = self.cpu.as_ref().filter(|_| !self.unified);
        let open = |group: &PathBuf| std::fs::OpenOptions::new().write(true).open(group.join("tasks"));
        Ok(weighed.map(open).transpose()?.map(OwnedFd::from))
    }

    /// Whether no process is moved into the groups from outside.
    pub(super) fn entered_from_inside(&self) -> bool {
        !self.unified
    }

    /// Moves a process into the group of version 2 before it has started anything. If this fails, the group is dropped.
    pub(super) fn take_in(&mut self, pid: Pid) {
        if !self.unified {
            return;
        }
        let text = pid.as_raw_nonzero().to_string();
        for group in [&mut self.memory, &mut self.pids, &mut self.cpu] {
            let refused = |path: &PathBuf| std::fs::write(path.join("cgroup.procs"), &text).is_err();
            if group.as_ref().is_some_and(refused)
                && let Some(path) = group.take()
            {
                let _ = std::fs::remove_dir(path); // silent-ok: shared with another controller that took the process
            }
        }
    }

    /// The limits that the groups enforce, for the trace.
    pub(super) fn enforced_mechanisms(&self) -> Vec<String> {
        let version = if self.unified { "cgroup2" } else { "cgroup1" };
        let named = [("memory", &self.memory), ("pids", &self.pids), ("cpu", &self.cpu)];
        let there = named.into_iter().filter(|(_, group)| group.is_some());
        there.map(|(name, _)| format!("{version}:{name}")).collect()
    }

    pub(super) fn holds_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub(super) fn holds_processes(&self) -> bool {
        self.pids.is_some()
    }

    pub(super) fn holds_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// The limit that was hit so far, if any.
    pub(super) fn limit_hit(&self) -> Option<ReportedLimit> {
        let counted = |path: &Option<PathBuf>, file: &str, key: &str| {
            let text = short_file(&path.as_ref()?.join(file))?; // silent-ok: an old kernel counts less
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().parse::<u64>().ok()
        };
        let oom = if self.unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        if counted(&self.memory, oom, "oom_kill ").is_some_and(|kills| kills > 0) {
            return Some(ReportedLimit::Memory);
        }
        counted(&self.pids, "pids.events", "max ")
            .is_some_and(|refused| refused > 0)
            .then_some(ReportedLimit::Processes)
    }

    /// Deletes the run's control groups.
    pub(super) fn remove(&self) {
        for group in self.all_folders() {
            stale::remove_group(group);
        }
    }
}

/// Creates a group and locks it. While other processes change groups in the same place, the kernel may refuse for a moment.
fn make_group(group: &Path) -> Option<OwnedFd> {
    let mut wait = FIRST_WAIT;
    for _ in 0..TRIES {
        match make_and_lock(group) {
            Ok(lock) => return Some(lock),
            Err(
                Errno::NOENT | Errno::NODEV | Errno::BUSY | Errno::EXIST | Errno::WOULDBLOCK | Errno::INTR,
            ) => {
                // If the parent folder does not exist, waiting does not help.
                if !group.parent().is_some_and(Path::is_dir) {
                    return None;
                }
                std::thread::sleep(wait);
                wait = wait.saturating_mul(2);
            }
            Err(_) => return None, // silent-ok: another mechanism holds, and is named
        }
    }
    None
}

fn make_and_lock(group: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdir(group, Mode::from_raw_mode(0o755))?;
    let folder = rustix::fs::open(group, stale::FOLDER, Mode::empty())?;
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockShared) {
        // Another clawk that removes stale groups has it locked: the folder will be gone soon.
        Err(error @ (Errno::WOULDBLOCK | Errno::INTR)) => Err(error),
        // If groups can't be locked here, nobody can lock them to remove them either.
        Ok(()) | Err(_) => Ok(folder),
    }
}

/// The beginning of a kernel file, with one read, because every answer waits for it.
fn short_file(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?; // silent-ok: there is no such file
    let mut text = vec![0; 1024];
    let read = rustix::io::read(&fd, &mut text).ok()?; // silent-ok: as above
    text.truncate(read);
    String::from_utf8(text).ok()
}

/// Converts CPU shares to a weight: 1024 shares are a weight of 100.
fn cpu_weight_text(shares: u64) -> String {
    (shares.saturating_mul(100) / 1024).clamp(1, 10_000).to_string()
}

fn path_below(top: &Path, path: &str) -> PathBuf {
    top.join(path.trim_start_matches('/'))
}

/// The path where a hierarchy is mounted.
fn mount_of(mounts: &str, kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split_ascii_whitespace();
        let fits = right.next()? == kind
            && controller.is_none_or(|wanted| {
                right
                    .nth(1)
                    .is_some_and(|options| options.split(',').any(|option| option == wanted))
            });
        let point = left.split_ascii_whitespace().nth(4)?;
        fits.then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_share_of_the_processor_becomes_a_weight() {
        let weights = [1, 512, 1024, 4096, u64::MAX].map(super::cpu_weight_text);
        assert_eq!(weights, ["1", "50", "100", "400", "10000"]);
    }
}
