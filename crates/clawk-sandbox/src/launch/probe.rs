//! Probes whether this host can isolate a tool, by really starting a sandbox (R32), once at start-up.

use std::sync::Arc;

use super::{LaunchError, LaunchOutcome, Launcher, Spec};
use clawk_plan::level::{Level, SandboxRefusal};
use clawk_plan::plan::{Plan, PlanDefaults};
use clawk_plan::probed::{self, ProbeResult};

/// The time limit of the probe, in milliseconds.
const PROBE_MS: u64 = 10_000;

impl Launcher {
    /// Starts a sandbox, checks its isolation from inside, and stores the result for [`Plan::check_available`].
    ///
    /// # Errors
    /// The missing mechanism, and how to fix it.
    pub(super) async fn probe_process(&self) -> ProbeResult {
        if let Some(found) = probed::probe_result() {
            return found.clone();
        }
        probed::remember_result(self.probe_uncached().await).clone()
    }

    /// Probes again without storing the result: for `clawk doctor`.
    ///
    /// # Errors
    /// The missing mechanism, and how to fix it.
    pub async fn probe_uncached(&self) -> ProbeResult {
        let plan = Plan::for_undeclared(&PlanDefaults::default());
        let mut spec = Spec::new(super::OWN_PROGRAM, Arc::new(plan));
        spec.timeout_ms = Some(PROBE_MS);
        match self.launch_as(&spec, true).await {
            Ok(outcome) if outcome.is_success() => Ok(outcome.obtained),
            Ok(outcome) => Err(unavailable_refusal(&describe_end(&outcome))),
            Err(LaunchError::Refused(SandboxRefusal::Setup { reason, .. })) => {
                Err(unavailable_refusal(&reason))
            }
            Err(LaunchError::Refused(refusal)) => Err(refusal),
            Err(error) => Err(unavailable_refusal(&error.to_string())),
        }
    }
}

fn describe_end(outcome: &LaunchOutcome) -> String {
    match &outcome.limit {
        Some(limit) => format!("probe: it was {limit}"),
        None => format!(
            "probe: it ended with code {:?}, signal {:?}",
            outcome.exit_code, outcome.signal
        ),
    }
}

/// Names of mechanisms in reports of a failed start.
const WALLS: [&str; 15] = [
    "landlock",
    "seccomp",
    "namespaces",
    "user namespace",
    "an id map",
    "tmpfs",
    "proc",
    "pivot_root",
    "mounts",
    "privileges",
    "rlimits",
    "pidfd",
    "cgroup",
    "root",
    "the root",
];

/// Converts a report to a refusal if it names a missing mechanism; `None` if the reason is another one.
pub(super) fn wall_refusal(reason: &str) -> Option<SandboxRefusal> {
    let (name, _) = reason.split_once(": ")?;
    WALLS.contains(&name).then(|| unavailable_refusal(reason))
}

/// How to fix it, as far as known. The most common reason is a container engine's own filter.
fn mechanism_hint(mechanism: &str) -> &'static str {
    match mechanism {
        "landlock" => {
            "Linux 5.19 or later with `landlock` in the boot parameter `lsm=`; inside a container, a seccomp profile that lets its calls through"
        }
        "seccomp" => "a kernel with seccomp filters and user notification (Linux 5.9 or later)",
        "namespaces" | "user namespace" | "an id map" => {
            "namespaces must be allowed: `sysctl user.max_user_namespaces`, `kernel.apparmor_restrict_unprivileged_userns=0`; inside a container, a seccomp profile that lets `unshare` through"
        }
        "mounts" | "tmpfs" | "proc" | "pivot_root" | "the root" => {
            "Linux 5.12 or later; inside a container, a seccomp profile that lets `mount_setattr`, `open_tree`, `move_mount`, `fsopen` and `pivot_root` through, and a `/proc` without masks"
        }
        "privileges" | "root" => "run clawk as an ordinary user, or as root with root's capabilities",
        _ => "`clawk doctor` says what this host can enforce; the operator may allow level `none`",
    }
}

/// A report such as `landlock: this kernel has none` names its mechanism.
fn unavailable_refusal(reason: &str) -> SandboxRefusal {
    let (mechanism, missing) = match reason.split_once(": ") {
        // A place of the view that can't be made.
        Some((name, _)) if name.starts_with('/') => ("mounts", reason),
        Some((name, rest)) if name.len() < 60 => (name, rest),
        _ => ("box", reason),
    };
    let (missing, hint) = match missing.split_once("; ") {
        Some((missing, hint)) => (missing, hint),
        None => (missing, mechanism_hint(mechanism)),
    };
    SandboxRefusal::Unavailable {
        level: Level::Process,
        mechanism: mechanism.to_owned(),
        missing: missing.to_owned(),
        hint: hint.to_owned(),
    }
}
