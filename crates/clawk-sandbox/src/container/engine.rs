//! Chooses the OCI runtime: the first of the list that runs a container on this host, returns its exit code, and keeps it in the
//! group with clawk's limits (R32).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::run::ContainerRun;
use super::seccomp::SeccompEnforcer;
use super::{Settings, cgroup, container_refusal, run};
use crate::launch::{LaunchOutcome, Launcher, Spec};
use clawk_plan::level::{Level, SandboxRefusal};
use clawk_plan::plan::MINIMAL_PATH;
use clawk_plan::plan::{Filesystem, FsMode, Mount, Plan, PlanDefaults};

/// The host user id of a container's tools if the agent is root. No other user has it.
const GUEST_UID: u32 = 1_996_000_000;

/// The time limit of a probe, in milliseconds.
const PROBE_MS: u64 = 15_000;

/// The exit code of the probe's program if the isolation works.
const PROBE_CODE: i32 = 42;

/// Checks the isolation from inside: a runtime that was built without seccomp may ignore the filter and still run.
const PROBE_SCRIPT: &str = r#"
while read -r name value; do
  case $name in
    CapEff:|CapPrm:|CapBnd:) caps=$caps$value ;;
    NoNewPrivs:) sealed=$value ;;
    Seccomp:) filter=$value ;;
    Seccomp_filters:) filters=$value ;;
  esac
done < /proc/self/status
case $caps in *[!0]*) exit 43 ;; esac
[ "$sealed" = 1 ] || exit 44
[ "$filter" = 2 ] || exit 45
[ "${filters:-none}" = "$1" ] || [ "$1" = any ] || exit 46
: > /tmp/probe && chmod 4755 /tmp/probe 2>/dev/null && exit 45
exit 42
"#;

/// Which check of the probe's script failed, from its exit code.
fn got_through(code: Option<i32>) -> Option<&'static str> {
    match code? {
        43 => Some("its container has capabilities"),
        44 => Some("its container can gain privileges"),
        45 => Some("its container is not held by the filter of system calls"),
        46 => Some("its container is not held by our filter and its own"),
        _ => None,
    }
}

/// A runtime that works on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRuntime {
    /// The runtime's name, for the trace.
    pub name: String,
    /// The runtime's program.
    pub path: PathBuf,
    pub(super) cgroup: Option<cgroup::Kind>,
    pub(super) holds: SeccompEnforcer,
    /// Whether a guard can check files in its containers, or the reason why not.
    pub(super) guards: Result<(), String>,
    /// The mechanisms that enforced the probe.
    pub mechanisms: Vec<String>,
}

/// The user that owns an image's files and runs its programs.
pub(super) fn guest_uid() -> u32 {
    if rustix::process::geteuid().is_root() {
        GUEST_UID
    } else {
        rustix::process::geteuid().as_raw()
    }
}

const HINT: &str =
    "install an OCI runtime, for example Debian's package `runc`; `clawk doctor` says what fails";

/// Probes the runtimes in order.
pub(super) async fn probe_runtimes(
    launcher: &Launcher,
    settings: &Settings,
) -> Result<ContainerRuntime, SandboxRefusal> {
    run::remove_stale_runs();
    let mut faults = Vec::new();
    for name in &settings.runtimes {
        let Some(path) = locate_program(name) else {
            faults.push(not_installed(name));
            continue;
        };
        // Root can create groups. For an ordinary user the watcher enforces the limits, which needs no permission.
        let mut kinds = vec![None];
        if rustix::process::geteuid().is_root() {
            kinds.extend(cgroup::kind().map(Some));
        }
        while let Some(cgroup) = kinds.pop() {
            match probe_runtime(launcher, &path, cgroup).await {
                Ok(found) => return Ok(found),
                Err(fault) => faults.extend(fault.map(|fault| format!("`{name}`: {fault}"))),
            }
        }
    }
    Err(container_refusal("oci-runtime", faults.join("; "), HINT))
}

/// The refusal of a probe if none of the runtimes is installed. Starts nothing.
pub(super) fn absent_runtime_refusal(settings: &Settings) -> Option<SandboxRefusal> {
    let names = &settings.runtimes;
    let none = names.iter().all(|name| locate_program(name).is_none());
    none.then(|| {
        let faults: Vec<_> = names.iter().map(|name| not_installed(name)).collect();
        container_refusal("oci-runtime", faults.join("; "), HINT)
    })
}

fn not_installed(name: &str) -> String {
    format!("`{name}` is not installed")
}

/// Probes one runtime with one way to enforce limits: with clawk's filter if that works, otherwise with the runtime's own list. On
/// failure, returns the reasons.
async fn probe_runtime(
    launcher: &Launcher,
    path: &Path,
    cgroup: Option<cgroup::Kind>,
) -> Result<ContainerRuntime, [String; 2]> {
    let way = |holds| ContainerRuntime {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        path: path.to_owned(),
        cgroup,
        holds,
        guards: Ok(()),
        mechanisms: Vec::new(),
    };
    let ours = verify_runtime(launcher, way(SeccompEnforcer::Ours)).await;
    match ours {
        Ok(found) if found.guards.is_ok() => Ok(found),
        Ok(found) => match verify_runtime(launcher, way(SeccompEnforcer::Runtime)).await {
            Ok(other) if other.guards.is_ok() => Ok(other),
            Ok(_) | Err(_) => Ok(found), // silent-ok: what our filter leaves holds more than the list alone
        },
        Err(first) => verify_runtime(launcher, way(SeccompEnforcer::Runtime))
            .await
            .map_err(|second| [first, second]),
    }
}

/// Checks whether it runs a container, and whether a guard works there.
async fn verify_runtime(
    launcher: &Launcher,
    mut found: ContainerRuntime,
) -> Result<ContainerRuntime, String> {
    found.mechanisms = try_it(launcher, &found).await?;
    found.guards = probe_guard(launcher, &found).await;
    Ok(found)
}

/// Finds an executable program by name in the usual folders, or by path.
pub(crate) fn locate_program(name: &str) -> Option<PathBuf> {
    let runs = |path: &Path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| runs(path));
    }
    MINIMAL_PATH
        .split(':')
        .map(|folder| Path::new(folder).join(name))
        .find(|path| runs(path))
}

/// Runs one container. Also returns whether its limits were enforced.
async fn run_once(
    launcher: &Launcher,
    spec: &Spec,
    found: &ContainerRuntime,
) -> Result<(LaunchOutcome, bool), String> {
    let run = ContainerRun::prepare(launcher, spec, found, None).map_err(|error| error.to_string())?;
    let outcome = Box::pin(launcher.launch(&run.spec))
        .await
        .map_err(|error| error.to_string())?;
    let held = run.limits_held();
    let outcome = run
        .finish_outcome(spec, outcome)
        .map_err(|error| error.to_string())?;
    Ok((outcome, held))
}

/// Checks the guard in a writable folder with one protected name. No file has that name yet, so no cover is possible.
const GUARD_SCRIPT: &str = r#"
(: > free) || exit 47
(: > kept) 2>/dev/null && exit 48
mv free kept 2>/dev/null && exit 48
[ -e kept ] && exit 48
exit 42
"#;

/// Checks whether the runtime passes its containers' calls to a guard.
async fn probe_guard(launcher: &Launcher, found: &ContainerRuntime) -> Result<(), String> {
    let folder = run::create_scratch_folder().map_err(|error| error.to_string())?;
    let (mode, writable) = (FsMode::Scoped, true);
    let filesystem = Filesystem {
        mode,
        mounts: vec![Mount {
            path: folder.path().to_owned(),
            writable,
        }],
        own: vec![folder.path().join("kept")],
        ..Filesystem::default()
    };
    let plan = Plan::for_undeclared(&PlanDefaults::default())
        .at_level(Level::Container)
        .with_filesystem(filesystem);
    let mut spec = Spec::new("/bin/sh", Arc::new(plan));
    spec.args = vec!["-c".to_owned(), GUARD_SCRIPT.to_owned()];
    spec.workdir = Some(folder.path().to_owned());
    spec.timeout_ms = Some(PROBE_MS);
    let (outcome, _) = run_once(launcher, &spec, found).await?;
    match outcome.exit_code {
        Some(PROBE_CODE) => Ok(()),
        Some(47) => Err(format!(
            "under `{}` nobody answered for what it wrote",
            found.name
        )),
        Some(48) => Err(format!(
            "`{}` does not hand its calls over to a guard",
            found.name
        )),
        code => Err(format!(
            "`{}` ended with {code:?} when its calls were to be judged: {}",
            found.name,
            String::from_utf8_lossy(&outcome.stderr).trim()
        )),
    }
}

/// How many filters a container has if it inherits clawk's: that one, and the runtime's.
const OURS_AND_ITS: u32 = 2;

/// How many filters apply to this process, and so to everything that it starts.
fn filters_of_ours() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?; // silent-ok: nothing is known then
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    count.trim().parse().ok() // silent-ok: as above
}

async fn try_it(launcher: &Launcher, found: &ContainerRuntime) -> Result<Vec<String>, String> {
    let plan = Plan::for_undeclared(&PlanDefaults::default()).at_level(Level::Container);
    let mut spec = Spec::new("/bin/sh", Arc::new(plan));
    let filters = match found.holds {
        SeccompEnforcer::Ours => filters_of_ours()
            .map(|ours| (ours + OURS_AND_ITS).to_string())
            .ok_or("this kernel doesn't say how many filters hold a process")?,
        SeccompEnforcer::Runtime => "any".to_owned(),
    };
    spec.args = ["-c", PROBE_SCRIPT, "probe", &filters]
        .map(str::to_owned)
        .to_vec();
    spec.timeout_ms = Some(PROBE_MS);
    let (outcome, held) = run_once(launcher, &spec, found).await?;
    if let Some(fault) = got_through(outcome.exit_code) {
        return Err(fault.to_owned());
    }
    if outcome.exit_code != Some(PROBE_CODE) {
        return Err(format!(
            "its container ended with {:?} and not with {PROBE_CODE}: {}",
            outcome.exit_code,
            String::from_utf8_lossy(&outcome.stderr).trim()
        ));
    }
    if !held {
        return Err(
            "it runs containers outside of the control group that it was given: limits would not hold"
                .to_owned(),
        );
    }
    Ok(outcome.obtained.mechanisms)
}
