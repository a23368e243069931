//! One run in a container: its folder, its group, the launch spec, and its result.

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::bundle::{ContainerIdentity, OciBundle, Process};
use super::cgroup::ContainerCgroup;
use super::engine::{ContainerRuntime, guest_uid};
use super::guard::{self, ContainerGuardedCalls};
use super::image::{ImageRootfs, create_private_folder};
use super::seccomp::SeccompEnforcer;
use super::stage::{self, StageOrder};
use super::view::{ContainerView, system_root};
use super::{cgroup, root};
use crate::launch::{EgressServerHandle, LaunchError, LaunchOutcome, Launcher, LimitHit, Spec};
use clawk_plan::level::{CodeOrigin, Level, ObtainedEnforcement, SandboxRefusal};
use clawk_plan::plan::{NetworkMode, Plan};

/// How many processes the supervisor may count above the limits, because it counts the runtime as well: if a group enforces the
/// limits, and if only this count enforces them.
const BESIDE_GROUP: (u64, u64) = (128, 64);
const BESIDE_NONE: (u64, u64) = (24, 16);

/// The prefix of the names of everything that a run creates on the host.
const PREFIX: &str = "clawk-";

/// A run that is prepared or running. Dropping it removes everything that it created.
#[derive(Debug)]
pub(crate) struct ContainerRun {
    /// The spec of the process that the launcher starts: the stage, without isolation, which becomes the runtime.
    pub(crate) spec: Spec,
    folder: PathBuf,
    group: Option<ContainerCgroup>,
    obtained: ObtainedEnforcement,
    door: Option<UnixListener>,
}

/// A name that contains its owner, which is this process's id and start time. So the runs of another process are never removed.
pub(crate) fn fresh_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let pid = std::process::id();
    let born = process_start_time(pid).unwrap_or(0);
    format!("{PREFIX}{pid}-{born}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// When a process started, in clock ticks since boot.
fn process_start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?; // silent-ok: no such process
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// The folder of all runs. It is in memory if possible, because a run's environment may contain secrets.
fn runs_folder() -> PathBuf {
    let user = rustix::process::geteuid();
    let candidates = match user.is_root() {
        true => vec![PathBuf::from("/run/clawk")],
        false => vec![PathBuf::from(format!("/run/user/{}/clawk", user.as_raw()))],
    };
    let fitting = candidates
        .into_iter()
        .find(|path| create_private_folder(path).is_ok());
    fitting.unwrap_or_else(|| std::env::temp_dir().join(format!("clawk-{}", user.as_raw())))
}

/// Removes the remains of runs whose owner was killed.
pub(super) fn remove_stale_runs() {
    for entry in fs::read_dir(runs_folder()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name
            .strip_prefix(PREFIX)
            .unwrap_or_default()
            .split('-')
            .map(str::parse::<u64>);
        let (Some(Ok(pid)), Some(Ok(then))) = (parts.next(), parts.next()) else {
            continue;
        };
        let lives = u32::try_from(pid).ok().and_then(process_start_time) == Some(then);
        if !lives {
            cgroup::remove_stale_groups(&name);
            let _ = fs::remove_dir_all(entry.path()); // silent-ok: the next sweep tries again
        }
    }
}

impl ContainerRun {
    /// Writes the bundle and creates the group. Starts nothing.
    pub(crate) fn prepare(
        launcher: &Launcher,
        spec: &Spec,
        found: &ContainerRuntime,
        image: Option<&ImageRootfs>,
    ) -> Result<Self, LaunchError> {
        let failed = |error: io::Error| spec.setup_error(&format!("its container: {error}"));
        let name = fresh_name();
        let folder = runs_folder().join(&name);
        create_private_folder(&folder).map_err(|error| spec.setup_error(&error.to_string()))?;
        let mut run = Self {
            spec: stage_spec(launcher, spec, &folder, found.cgroup.is_some()),
            folder,
            group: None,
            obtained: ObtainedEnforcement {
                level: Level::Container,
                place: CodeOrigin::Local,
                ..ObtainedEnforcement::default()
            },
            door: None,
        };
        let limits = spec.plan.limits();
        let view = ContainerView::from_spec(spec, image, &run.folder)?;
        let judged = view.guarded_calls(spec, &found.guards)?;
        if let Some(kind) = found.cgroup {
            let beside = u64::from(judged != ContainerGuardedCalls::Nothing);
            run.group = Some(ContainerCgroup::create_groups(kind, &name, limits, beside).map_err(failed)?);
        }
        let listener = run.folder.join(guard::SOCKET);
        let root = match image {
            Some(image) => image.path.clone(),
            None => root::root_of(&run.folder),
        };
        if image.is_none() && !root_user() {
            system_root(&root).map_err(failed)?;
        }
        let cwd = view.working_directory(spec);
        let bundle = OciBundle {
            root: &root,
            binds: &view.binds,
            masks: &view.masks,
            process: oci_process(spec, &cwd),
            limits,
            identity: container_identity(),
            holds: found.holds,
            cgroup: run.group.as_ref().map(|group| group.path.as_str()),
            judged,
            listener: (judged != ContainerGuardedCalls::Nothing).then_some(&*listener),
        };
        let config =
            serde_json::to_vec(&bundle.to_json()).map_err(|error| spec.setup_error(&error.to_string()))?;
        fs::write(run.folder.join("config.json"), config).map_err(failed)?;
        run.door = egress_listener(spec, &run.folder).map_err(failed)?;
        let groups = || {
            run.group
                .as_ref()
                .map_or_else(Vec::new, ContainerCgroup::counting_folders)
        };
        let watch = match judged {
            ContainerGuardedCalls::Nothing => None,
            ContainerGuardedCalls::Changes | ContainerGuardedCalls::All => {
                Some(view.guard_rules(spec, groups())?)
            }
        };
        let covered = (view.masks.len(), judged, view.has_own_files());
        let order = StageOrder {
            runtime: found.path.clone(),
            name,
            filtered: found
                .holds
                .pass_on(&run.folder.join(stage::FILTER))
                .map_err(failed)?,
            watch,
            system: image.is_none().then_some(view.system),
            hierarchies: found.cgroup == Some(cgroup::Kind::V1),
            places: view.places,
            door: run.door.is_some(),
            guest: guest_uid(),
        };
        let order = serde_json::to_vec(&order).map_err(|error| spec.setup_error(&error.to_string()))?;
        fs::write(run.folder.join(stage::ORDER), order).map_err(failed)?;
        run.record_enforcement(spec, found, image, covered);
        Ok(run)
    }

    /// Records the enforced isolation.
    fn record_enforcement(
        &mut self,
        spec: &Spec,
        found: &ContainerRuntime,
        image: Option<&ImageRootfs>,
        (masked, judged, keeps): (usize, ContainerGuardedCalls, bool),
    ) {
        let held = &mut self.obtained.mechanisms;
        held.push(format!("oci:{}", found.name));
        held.push(image.map_or("view:system".to_owned(), |image| {
            format!("view:image:{}", image.digest)
        }));
        held.extend(
            [
                "namespaces",
                "no_new_privs",
                "capabilities:none",
                "seccomp",
                "root:read-only",
            ]
            .map(str::to_owned),
        );
        if found.holds == SeccompEnforcer::Ours {
            held.push("seccomp:passed-on".to_owned());
        }
        held.push(match container_identity() {
            ContainerIdentity::Fixed(uid) => format!("uid:{uid}"),
            ContainerIdentity::Mapped(uid, _) => format!("userns:{uid}"),
        });
        match &self.group {
            Some(group) => held.extend(group.enforced_mechanisms()),
            None => {
                held.extend(["watcher:memory", "watcher:processes"].map(str::to_owned));
                self.obtained.missing.push("cpu_shares".to_owned());
            }
        }
        held.push("rlimit:nofile".to_owned());
        if masked > 0 {
            held.push(format!("mask:{masked}"));
        }
        held.extend(judged.trace_names(keeps).map(str::to_owned));
        if !spec.plan.filesystem().denied.is_empty() && judged != ContainerGuardedCalls::All {
            // A mask covers only what exists. A file that the host creates later in a mount is visible.
            self.obtained
                .missing
                .push("denied_paths:made-by-the-host-meanwhile".to_owned());
        }
        match (spec.plan.network().mode, &self.door) {
            (NetworkMode::Deny, _) => held.push("netns:empty".to_owned()),
            (NetworkMode::Allowlist | NetworkMode::AllowAll, Some(_)) => held.push("netns:proxy".to_owned()),
            (NetworkMode::Allowlist | NetworkMode::AllowAll, None) => {
                held.push("netns:empty".to_owned());
                self.obtained.missing.push("egress:proxy".to_owned());
            }
        }
    }

    /// Passes the container's listening socket to the egress gate. Returns when it is served.
    pub(crate) async fn open_door(&mut self, spec: &Spec) -> Result<Option<EgressServerHandle>, LaunchError> {
        let (Some(door), Some(gate)) = (self.door.take(), &spec.gate) else {
            return Ok(None);
        };
        let failed = |error: io::Error| spec.setup_error(&format!("the way out of its container: {error}"));
        let door = tokio::net::UnixListener::from_std(door).map_err(failed)?;
        let (stream, _) = door.accept().await.map_err(failed)?;
        let stream = stream.into_std().map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        let listener = stage::receive_listener(&stream).map_err(failed)?;
        let keep = gate
            .serve_listener(crate::launch::SandboxListener {
                listener,
                plan: Arc::clone(&spec.plan),
            })
            .map_err(failed)?;
        // The stage waits for this before it becomes the runtime.
        io::Write::write_all(&mut &stream, b"k").map_err(failed)?;
        Ok(Some(keep))
    }

    /// Kills the container's first process, and with it everything in its namespace.
    fn kill_container(&self) {
        let text = fs::read_to_string(self.folder.join("pid")).unwrap_or_default();
        let pid = text.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // silent-ok: it ended meanwhile
        }
    }

    /// Whether the engine kept the container inside clawk's limits.
    pub(crate) fn limits_held(&self) -> bool {
        self.group.as_ref().is_none_or(ContainerCgroup::was_used)
    }

    /// Converts the runtime's end to the tool's end.
    pub(crate) fn finish_outcome(
        &self,
        spec: &Spec,
        outcome: LaunchOutcome,
    ) -> Result<LaunchOutcome, LaunchError> {
        // The runtime writes this file when the tool runs. Without it, nothing of the tool has run.
        if !self.folder.join("pid").exists() && outcome.limit.is_none() {
            return Err(spec.setup_error(&self.start_failure_text(&outcome)));
        }
        let limits = spec.plan.limits();
        let limit = match outcome.limit {
            Some(LimitHit::Memory(_)) => Some(LimitHit::Memory(limits.memory_mb)),
            Some(LimitHit::Processes(_)) => Some(LimitHit::Processes(limits.max_processes)),
            Some(
                other @ (LimitHit::Time(_) | LimitHit::Output(_) | LimitHit::Disk(_) | LimitHit::Files(_)),
            ) => Some(other),
            None => None,
        };
        let group = self.group.as_ref();
        let felt = match group {
            Some(group) if group.memory_hit() => Some(LimitHit::Memory(limits.memory_mb)),
            Some(group) if group.processes_hit() => Some(LimitHit::Processes(limits.max_processes)),
            Some(_) | None => None,
        };
        let limit = match limit {
            None | Some(LimitHit::Output(_)) => felt.or(limit),
            Some(
                LimitHit::Time(_)
                | LimitHit::Memory(_)
                | LimitHit::Processes(_)
                | LimitHit::Disk(_)
                | LimitHit::Files(_),
            ) => limit,
        };
        Ok(LaunchOutcome {
            obtained: self.obtained.clone(),
            limit,
            ..outcome
        })
    }

    pub(crate) fn obtained_enforcement(&self) -> &ObtainedEnforcement {
        &self.obtained
    }

    /// The reason why the runtime started nothing, from its last output.
    pub(crate) fn start_failure_text(&self, outcome: &LaunchOutcome) -> String {
        let log = fs::read_to_string(self.folder.join("log.json")).unwrap_or_default();
        let said = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let said = said.filter(|line| line.get("level").and_then(Value::as_str) == Some("error"));
        let mut said = said.filter_map(|line| line.get("msg").and_then(Value::as_str).map(str::to_owned));
        said.next_back().unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&outcome.stderr);
            format!(
                "the runtime started nothing: {}",
                text.trim().chars().take(500).collect::<String>()
            )
        })
    }
}

impl Drop for ContainerRun {
    fn drop(&mut self) {
        self.kill_container();
        drop(self.group.take());
        let _ = fs::remove_dir_all(&self.folder); // silent-ok: the next sweep tries again
    }
}

/// The socket over which the container's listening socket is received, if there is a gate.
fn egress_listener(spec: &Spec, folder: &Path) -> io::Result<Option<UnixListener>> {
    if spec.gate.is_none() || spec.plan.network().mode == NetworkMode::Deny || !root_user() {
        return Ok(None);
    }
    let listener = UnixListener::bind(folder.join(stage::DOOR))?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

pub(super) fn root_user() -> bool {
    rustix::process::geteuid().is_root()
}

pub(super) fn container_identity() -> ContainerIdentity {
    if root_user() {
        ContainerIdentity::Fixed(guest_uid())
    } else {
        ContainerIdentity::Mapped(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
    }
}

/// The spec of the stage under the launcher's supervisor. It has level `none`, because the container provides the isolation.
fn stage_spec(launcher: &Launcher, spec: &Spec, folder: &Path, grouped: bool) -> Spec {
    let (megabytes, threads) = if grouped { BESIDE_GROUP } else { BESIDE_NONE };
    let limits = spec.plan.limits();
    let limits = clawk_plan::plan::Limits {
        memory_mb: limits.memory_mb.saturating_add(megabytes),
        max_processes: limits.max_processes.saturating_add(threads),
        max_open_files: limits.max_open_files.max(1024),
        ..*limits
    };
    let plan = Plan::clone(&spec.plan).at_level(Level::None).with_limits(limits);
    let mut inner = Spec::new(launcher.program_text(), Arc::new(plan));
    inner.args = vec![stage::MODE.to_owned(), folder.to_string_lossy().into_owned()];
    inner.args.extend(grouped.then(|| stage::HELD.to_owned()));
    inner.env = vec![("PATH".to_owned(), clawk_plan::plan::MINIMAL_PATH.to_owned())];
    inner.stdin.clone_from(&spec.stdin);
    inner.timeout_ms = spec.timeout_ms;
    inner.max_output_bytes = spec.max_output_bytes;
    inner
}

fn oci_process<'a>(spec: &'a Spec, cwd: &'a Path) -> Process<'a> {
    let argv = std::iter::once(spec.program.as_str()).chain(spec.args.iter().map(String::as_str));
    let installed = spec
        .resolve_installation()
        .map(|(_, paths)| paths)
        .unwrap_or_default();
    let further = [spec.read_paths.as_slice(), &installed].concat();
    let mut env: Vec<String> = spec
        .env_inside(&further)
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !spec.env.iter().any(|(name, _)| name == "PATH") {
        env.push(format!("PATH={}", clawk_plan::plan::MINIMAL_PATH));
    }
    Process {
        argv: argv.collect(),
        env,
        cwd,
    }
}

/// The refusal that an earlier probe or check has shown, if any.
pub(crate) fn known_refusal(backend: &super::Backend) -> Option<SandboxRefusal> {
    match backend.probed_runtime() {
        Some(found) => found.as_ref().err().cloned(),
        None => super::engine::absent_runtime_refusal(&backend.settings),
    }
}

/// A folder for a probe, in the folder of runs. It is removed with its content.
pub(super) fn create_scratch_folder() -> io::Result<ScratchFolder> {
    let folder = runs_folder().join(fresh_name());
    create_private_folder(&folder).map_err(io::Error::other)?;
    Ok(ScratchFolder(folder))
}

/// A temporary folder; see [`create_scratch_folder`].
#[derive(Debug)]
pub(super) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // silent-ok: the next sweep tries again
    }
}
