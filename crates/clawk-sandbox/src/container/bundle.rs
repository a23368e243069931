//! The bundle's `config.json`: no capabilities, no network, a read-only root, and the mounts of the plan. Pure.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::guard::ContainerGuardedCalls;
use super::seccomp::{self, SeccompEnforcer};
use clawk_plan::plan::Limits;

/// One mount of the plan or of the system view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerBind {
    /// The path that the runtime mounts: on the host, or below the stage's folder.
    pub(super) source: PathBuf,
    pub(super) target: PathBuf,
    pub(super) writable: bool,
}

/// The process to run.
#[derive(Debug)]
pub(super) struct Process<'a> {
    pub(super) argv: Vec<&'a str>,
    pub(super) env: Vec<String>,
    pub(super) cwd: &'a Path,
}

/// How the container's user maps to a host user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerIdentity {
    /// The agent is root: the tool has this user id on the host and inside, without any capabilities.
    Fixed(u32),
    /// The agent is this user. Inside a user namespace it looks like root; on the host it is this user.
    Mapped(u32, u32),
}

/// Everything that the bundle contains.
#[derive(Debug)]
pub(super) struct OciBundle<'a> {
    pub(super) root: &'a Path,
    pub(super) binds: &'a [ContainerBind],
    pub(super) masks: &'a [PathBuf],
    pub(super) process: Process<'a>,
    pub(super) limits: &'a Limits,
    pub(super) identity: ContainerIdentity,
    pub(super) cgroup: Option<&'a str>,
    /// Which filter applies, which calls wait for the guard, and where the runtime passes on the guard's descriptor.
    pub(super) holds: SeccompEnforcer,
    pub(super) judged: ContainerGuardedCalls,
    pub(super) listener: Option<&'a Path>,
}

impl OciBundle<'_> {
    /// The JSON document.
    pub(super) fn to_json(&self) -> Value {
        let (uid, gid) = match self.identity {
            ContainerIdentity::Fixed(uid) => (uid, uid),
            ContainerIdentity::Mapped(..) => (0, 0),
        };
        let nobody: [&str; 0] = [];
        let files = self.limits.max_open_files;
        let mut config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": {"uid": uid, "gid": gid, "umask": 0o022},
                "args": self.process.argv,
                "env": self.process.env,
                "cwd": self.process.cwd,
                "capabilities": {"bounding": nobody, "effective": nobody, "permitted": nobody, "inheritable": nobody, "ambient": nobody},
                "rlimits": [
                    {"type": "RLIMIT_NOFILE", "hard": files, "soft": files},
                    {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
                ],
                "noNewPrivileges": true,
                "oomScoreAdj": 500,
            },
            "root": {"path": self.root, "readonly": true},
            "hostname": "sandbox",
            "mounts": self.mounts_json(),
            "linux": self.linux_json(),
        });
        if let ContainerIdentity::Mapped(uid, gid) = self.identity
            && let Some(linux) = config.get_mut("linux").and_then(Value::as_object_mut)
        {
            linux.insert(
                "uidMappings".to_owned(),
                json!([{"containerID": 0, "hostID": uid, "size": 1}]),
            );
            linux.insert(
                "gidMappings".to_owned(),
                json!([{"containerID": 0, "hostID": gid, "size": 1}]),
            );
        }
        config
    }

    fn mounts_json(&self) -> Vec<Value> {
        let memory = format!("size={}m", self.limits.memory_mb);
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=64k"]}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777", memory]}),
            json!({"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "noexec", "mode=1777", memory]}),
        ];
        for bind in self.binds {
            let right = if bind.writable { "rw" } else { "ro" };
            mounts.push(json!({
                "destination": bind.target,
                "type": "bind",
                "source": bind.source,
                "options": ["bind", "nosuid", "nodev", "rprivate", right],
            }));
        }
        mounts
    }

    fn linux_json(&self) -> Value {
        let mut kinds = vec!["pid", "ipc", "uts", "mount"];
        if matches!(self.identity, ContainerIdentity::Mapped(..)) {
            // An ordinary user's stage makes no network namespace; the runtime makes it inside its user namespace.
            kinds.extend(["user", "network"]);
        }
        let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
        let always = [
            "/proc/acpi",
            "/proc/asound",
            "/proc/kcore",
            "/proc/keys",
            "/proc/latency_stats",
            "/proc/timer_list",
            "/proc/timer_stats",
            "/proc/sched_debug",
            "/proc/scsi",
            "/proc/interrupts",
            "/proc/kallsyms",
            "/sys",
        ];
        let masked: Vec<PathBuf> = always
            .iter()
            .map(PathBuf::from)
            .chain(self.masks.iter().cloned())
            .collect();
        let mut linux = json!({
            "namespaces": namespaces,
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "maskedPaths": masked,
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "rootfsPropagation": "rprivate",
            "seccomp": seccomp::seccomp_profile(self.holds, self.judged, self.listener),
        });
        if let (Some(path), Some(map)) = (self.cgroup, linux.as_object_mut()) {
            map.insert("cgroupsPath".to_owned(), json!(path));
        }
        linux
    }
}
