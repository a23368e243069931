//! A control group around the runtime's own group. clawk writes its limits and reads them back, whatever the engine does below.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use clawk_plan::plan::Limits;

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The page size. A memory limit may differ by less than this when it is read back, because the kernel rounds it to pages.
const PAGE: u64 = 4096;

/// The group between clawk's and the runtime's, without limits. In it, a fork that clawk's group refuses is seen as one above the
/// limit.
const MIDDLE: &str = "in";

/// The name of the runtime's own group.
const BOX: &str = "box";

/// The control groups that enforce the limits of one run.
#[derive(Debug)]
pub(super) struct ContainerCgroup {
    /// `cgroupsPath` of the bundle.
    pub(super) path: String,
    /// One folder per hierarchy with clawk's limits.
    folders: Vec<PathBuf>,
    /// The other hierarchies, in which the runtime creates folders of the same name.
    stray: Vec<PathBuf>,
    v2: bool,
    max_processes: u64,
    /// Counts the kernel's out-of-memory events with version 1. A kill is counted in the victim's own group, which no longer exists
    /// when clawk reads it.
    notices: Option<OwnedFd>,
}

/// How this host supports control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    V1,
    V2,
}

/// The hierarchies that can limit memory and processes, if clawk may create groups in them.
pub(super) fn kind() -> Option<Kind> {
    let root = Path::new(ROOT);
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let has = |name: &str| controllers.split_ascii_whitespace().any(|word| word == name);
    if has("memory") && has("pids") {
        return Some(Kind::V2);
    }
    let v1 = ["memory/memory.limit_in_bytes", "pids/cgroup.procs"];
    v1.iter().all(|file| root.join(file).exists()).then_some(Kind::V1)
}

/// Whether a hierarchy with these controllers (comma-separated) limits or forbids something.
pub(super) fn has_enforcing_controller(controllers: &str) -> bool {
    let held = |word: &str| matches!(word, "memory" | "pids" | "cpu" | "devices");
    controllers.split(',').any(held)
}

impl ContainerCgroup {
    /// Creates the groups and writes the limits. `beside` is the number of clawk's processes that count with the tool's.
    ///
    /// # Errors
    /// A group can't be created, or a limit does not read back as written.
    pub(super) fn create_groups(kind: Kind, name: &str, limits: &Limits, beside: u64) -> io::Result<Self> {
        let root = Path::new(ROOT);
        let path = format!("/{name}/{MIDDLE}/{BOX}");
        let limits = &Limits {
            max_processes: limits.max_processes.saturating_add(beside),
            ..*limits
        };
        let mut group = Self {
            path,
            folders: Vec::new(),
            stray: Vec::new(),
            v2: kind == Kind::V2,
            max_processes: limits.max_processes,
            notices: None,
        };
        let made = match kind {
            Kind::V2 => group.make_v2(&root.join(name), limits),
            Kind::V1 => group.make_v1(root, name, limits),
        };
        made.map(|()| group) // a half-made group is removed by `drop`
    }

    fn make_v2(&mut self, folder: &Path, limits: &Limits) -> io::Result<()> {
        let _ = fs::write(
            Path::new(ROOT).join("cgroup.subtree_control"),
            "+memory +pids +cpu",
        ); // silent-ok: read back below
        fs::create_dir(folder)?;
        self.folders.push(folder.to_owned());
        let bytes = (limits.memory_mb << 20).to_string();
        write_limit(&folder.join("memory.max"), &bytes)?;
        let _ = fs::write(folder.join("memory.swap.max"), "0"); // silent-ok: no swap here
        write_limit(&folder.join("pids.max"), &limits.max_processes.to_string())?;
        let weight =
            (1 + limits.cpu_shares.saturating_sub(2).saturating_mul(9999) / 262_142).clamp(1, 10_000);
        write_limit(&folder.join("cpu.weight"), &weight.to_string())?;
        fs::write(folder.join("cgroup.subtree_control"), "+memory +pids +cpu")?;
        fs::create_dir(folder.join(MIDDLE))
    }

    fn make_v1(&mut self, root: &Path, name: &str, limits: &Limits) -> io::Result<()> {
        let bytes = limits.memory_mb << 20;
        for controller in ["memory", "pids", "cpu"] {
            let folder = root.join(controller).join(name);
            fs::create_dir(&folder)?;
            self.folders.push(folder.clone());
            match controller {
                "memory" => {
                    write_limit(&folder.join("memory.limit_in_bytes"), &bytes.to_string())?;
                    self.notices = Some(open_oom_counter(&folder)?);
                    let _ = fs::write(folder.join("memory.memsw.limit_in_bytes"), bytes.to_string()); // silent-ok: no swap here
                }
                "pids" => {
                    fs::create_dir(folder.join(MIDDLE))?;
                    write_limit(&folder.join("pids.max"), &limits.max_processes.to_string())?;
                }
                _ => write_limit(&folder.join("cpu.shares"), &limits.cpu_shares.max(2).to_string())?,
            }
        }
        let own = |path: &Path| self.folders.iter().any(|folder| folder == path);
        // The stage shows the runtime only these hierarchies.
        let shown = |entry: &fs::DirEntry| has_enforcing_controller(&entry.file_name().to_string_lossy());
        let others = fs::read_dir(root)?.flatten().filter(shown);
        let others = others.map(|entry| entry.path().join(name));
        self.stray = others.filter(|path| !own(path)).collect();
        Ok(())
    }

    /// The folders of the runtime's own group that count processes and memory.
    pub(super) fn counting_folders(&self) -> Vec<PathBuf> {
        let of = |folder: &PathBuf| folder.join(MIDDLE).join(BOX);
        self.folders.iter().map(of).collect()
    }

    /// Whether the container's processes were counted in clawk's group. This proves that the engine put them there.
    pub(super) fn was_used(&self) -> bool {
        let peak = if self.v2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        self.folders
            .iter()
            .filter_map(|folder| read_number(&folder.join(peak), 0))
            .any(|peak| peak > 0)
    }

    /// Whether a process was killed for memory.
    pub(super) fn memory_hit(&self) -> bool {
        let mut count = [0_u8; 8];
        match &self.notices {
            Some(notices) => {
                rustix::io::read(notices, &mut count).is_ok_and(|read| read == 8 && count != [0; 8])
            }
            None => self.has_event("memory.events", "oom_kill"),
        }
    }

    /// Whether the kernel refused a fork because of the process limit.
    pub(super) fn processes_hit(&self) -> bool {
        let mut peaks = self
            .folders
            .iter()
            .filter_map(|folder| read_number(&folder.join(MIDDLE).join("pids.peak"), 0));
        peaks.any(|peak| peak > self.max_processes) || self.has_event("pids.events", "max")
    }

    fn has_event(&self, file: &str, word: &str) -> bool {
        self.folders.iter().any(|folder| {
            let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.any(|(name, count)| name == word && count.trim() != "0")
        })
    }

    pub(super) fn enforced_mechanisms(&self) -> Vec<String> {
        let version = if self.v2 { "cgroup-v2" } else { "cgroup-v1" };
        ["memory", "pids", "cpu"]
            .iter()
            .map(|name| format!("{version}:{name}"))
            .collect()
    }
}

impl Drop for ContainerCgroup {
    fn drop(&mut self) {
        for folder in self.folders.iter().chain(&self.stray) {
            remove(folder);
        }
    }
}

/// A counter of the out-of-memory kills in this group.
fn open_oom_counter(folder: &Path) -> io::Result<OwnedFd> {
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    let counter = rustix::event::eventfd(0, flags)?;
    let control = fs::File::open(folder.join("memory.oom_control"))?;
    fs::write(
        folder.join("cgroup.event_control"),
        format!("{} {}", counter.as_raw_fd(), control.as_raw_fd()),
    )?;
    Ok(counter)
}

/// Removes the groups of a run whose owner died, after killing the processes in them.
pub(super) fn remove_stale_groups(name: &str) {
    let root = Path::new(ROOT);
    let hierarchies = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for folder in hierarchies.chain([root.to_owned()]).map(|path| path.join(name)) {
        if !folder.is_dir() {
            continue;
        }
        for group in [folder.join(MIDDLE).join(BOX), folder.join(MIDDLE), folder.clone()] {
            kill_group(&group);
        }
        remove(&folder);
    }
}

fn kill_group(group: &Path) {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids = text.lines().filter_map(|line| line.parse().ok());
    for pid in pids.filter_map(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // silent-ok: it ended meanwhile
    }
}

/// Removes a group and the runtime's groups below it. Killed processes take a moment to leave.
fn remove(folder: &Path) {
    for _ in 0..50 {
        let _ = fs::remove_dir(folder.join(MIDDLE).join(BOX)); // silent-ok: the runtime removed it
        let _ = fs::remove_dir(folder.join(MIDDLE)); // silent-ok: not there, or the group is busy, see below
        match fs::remove_dir(folder) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                kill_group(&folder.join(MIDDLE).join(BOX));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            Ok(()) | Err(_) => return, // silent-ok: it is not there; else the next sweep tries again
        }
    }
}

/// Writes a limit and reads it back.
fn write_limit(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value)?;
    let wanted = value.parse::<u64>().unwrap_or(0);
    match read_number(file, 0) {
        Some(got) if got.abs_diff(wanted) < PAGE => Ok(()),
        got => Err(io::Error::other(format!(
            "`{}` reads {got:?} after {wanted} was written",
            file.display()
        ))),
    }
}

fn read_number(file: &Path, at: usize) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?; // silent-ok: this kernel does not count it
    text.split_ascii_whitespace().nth(at)?.parse().ok()
}
