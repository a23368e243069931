//! Checks this host's support for machines by starting one (R32): with KVM first, and with emulation only if the operator allows
//! it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::{Settings, initrd, run};
use crate::container::image::create_private_folder;
use crate::container::locate_program;
use crate::launch::{Launcher, Spec};
use clawk_plan::level::{Level, SandboxRefusal};
use clawk_plan::machine::machine_refusal;
use clawk_plan::plan::{Plan, PlanDefaults, ShellMode};

/// How long a machine may take to start, in milliseconds.
const KVM_MS: u64 = 5_000;
const TCG_MS: u64 = 60_000;

/// The exit code of the probe's program.
const PROBE_CODE: i32 = 42;

const PACKAGES: &str = "install qemu, a kernel and a static busybox (Debian: qemu-system-x86, linux-image-cloud-amd64, busybox-static)";

/// How the machine's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    Kvm,
    /// Emulation; many times slower.
    Tcg,
}

impl Engine {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// A way to start machines that has worked on this host.
#[derive(Debug, Clone)]
pub(crate) struct MachineRuntime {
    pub(super) engine: Engine,
    pub(super) qemu: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) version: String,
    pub(super) initrd: PathBuf,
    /// The path of this program, for the view.
    pub(super) program: PathBuf,
    pub(super) boot_ms: u64,
    /// The mechanisms that enforced the probe.
    pub(crate) mechanisms: Vec<String>,
}

/// Really starts a machine.
pub(super) async fn probe_machine(
    launcher: &Launcher,
    settings: &Settings,
    cache: Option<&Path>,
) -> Result<MachineRuntime, SandboxRefusal> {
    let mut found = locate_parts(launcher, settings, cache)?;
    let mut faults = Vec::new();
    let mut engines = vec![(Engine::Kvm, KVM_MS)];
    if settings.allow_slow {
        engines.push((Engine::Tcg, TCG_MS));
    }
    for (engine, boot_ms) in engines {
        if engine == Engine::Kvm && !Path::new("/dev/kvm").exists() {
            faults.push("kvm: there is no /dev/kvm".to_owned());
            continue;
        }
        (found.engine, found.boot_ms) = (engine, boot_ms);
        match try_it(launcher, &found).await {
            Ok(mechanisms) => {
                found.mechanisms = mechanisms;
                return Ok(found);
            }
            Err(fault) => faults.push(format!("{}: {fault}", engine.as_str())),
        }
    }
    let hint = if settings.allow_slow {
        "see the reason; `clawk doctor` tries again"
    } else {
        "run clawk where KVM boots machines, or set `[sandbox.vm] allow_slow = true` in clawk.toml for slow ones under emulation"
    };
    Err(machine_refusal("qemu", faults.join("; "), hint))
}

/// Finds everything that is needed to start a machine.
fn locate_parts(
    launcher: &Launcher,
    settings: &Settings,
    cache: Option<&Path>,
) -> Result<MachineRuntime, SandboxRefusal> {
    let missing = |what: String| machine_refusal("qemu", what, PACKAGES);
    let (qemu, busybox) = locate_programs(settings)?;
    if !initrd::is_static(&busybox) {
        let text = format!(
            "`{}` needs libraries; a machine starts without any",
            busybox.display()
        );
        return Err(missing(text));
    }
    let (kernel, version, modules) = choose_kernel(settings).map_err(missing)?;
    let program = launcher.program_path().canonicalize().map_err(|error| {
        missing(format!(
            "clawk's own program can't be shown to a machine: {error}"
        ))
    })?;
    let cannot = |error: String| machine_refusal("initrd", error, "see the reason");
    let bytes =
        initrd::build_archive(&busybox, &modules, &program).map_err(|error| cannot(error.to_string()))?;
    let initrd = store_archive(&bytes, cache).map_err(cannot)?;
    Ok(MachineRuntime {
        engine: Engine::Kvm,
        qemu,
        kernel,
        version,
        initrd,
        program,
        boot_ms: KVM_MS,
        mechanisms: Vec::new(),
    })
}

/// The paths of qemu and busybox, if both are installed. Starts nothing.
pub(super) fn locate_programs(settings: &Settings) -> Result<(PathBuf, PathBuf), SandboxRefusal> {
    if !cfg!(target_arch = "x86_64") {
        let hint = "set the Sandbox's `level` to `container` or `process`";
        return Err(machine_refusal("qemu", "machines are made on x86-64 only", hint));
    }
    let program = |name: &str| {
        locate_program(name)
            .ok_or_else(|| machine_refusal("qemu", format!("`{name}` is not installed"), PACKAGES))
    };
    Ok((program(&settings.qemu)?, program("busybox")?))
}

type Kernel = (PathBuf, String, PathBuf);

/// The configured kernel; otherwise the newest installed one, cloud kernels first.
fn choose_kernel(settings: &Settings) -> Result<Kernel, String> {
    if let Some(path) = &settings.kernel {
        let path = path
            .canonicalize()
            .map_err(|error| format!("the kernel `{}`: {error}", path.display()))?;
        let (version, modules) = initrd::modules_of(&path).ok_or_else(|| {
            format!(
                "the kernel `{}` is not called `vmlinuz-VERSION`, or its modules are not in `../lib/modules/VERSION`",
                path.display()
            )
        })?;
        return Ok((path, version, modules));
    }
    let mut all: Vec<Kernel> = fs::read_dir("/boot")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let (version, modules) = initrd::modules_of(&path)?;
            Some((path, version, modules))
        })
        .collect();
    all.sort_by_key(|(_, version, _)| (version.contains("cloud"), version.clone()));
    all.pop().ok_or_else(|| {
        "there is no kernel with its modules in /boot, and `[sandbox.vm] kernel` names none".to_owned()
    })
}

/// Stores the archive in a file named by its content.
fn store_archive(bytes: &[u8], cache: Option<&Path>) -> Result<PathBuf, String> {
    let folder = match cache {
        Some(cache) => cache.join("vm"),
        None => std::env::temp_dir().join(format!("clawk-vm-{}", rustix::process::geteuid().as_raw())),
    };
    create_private_folder(&folder).map_err(|error| error.to_string())?;
    let owner = std::os::unix::fs::MetadataExt::uid(&folder.metadata().map_err(|error| error.to_string())?);
    if owner != rustix::process::geteuid().as_raw() {
        return Err(format!("`{}` is somebody else's", folder.display()));
    }
    let digest = hex::encode(Sha256::digest(bytes));
    let path = folder.join(format!("initrd-{digest}.cpio"));
    let whole = fs::read(&path).is_ok_and(|there| there == bytes);
    if !whole {
        let part = folder.join(format!(".{digest}-{}", std::process::id()));
        fs::write(&part, bytes)
            .and_then(|()| fs::rename(&part, &path))
            .map_err(|error| format!("`{}`: {error}", path.display()))?;
    }
    path.canonicalize().map_err(|error| error.to_string())
}

/// The smallest complete run: a program of the view returns its exit code.
async fn try_it(launcher: &Launcher, found: &MachineRuntime) -> Result<Vec<String>, String> {
    let defaults = PlanDefaults {
        shell: ShellMode::Restricted,
        ..PlanDefaults::default()
    };
    let plan = Plan::for_undeclared(&defaults).at_level(Level::Vm);
    let mut spec = Spec::new("/bin/sh", Arc::new(plan));
    spec.args = vec!["-c".to_owned(), format!("exit {PROBE_CODE}")];
    spec.timeout_ms = Some(found.boot_ms.saturating_add(KVM_MS));
    let outcome = Box::pin(run::run(launcher, found, &spec))
        .await
        .map_err(|error| error.to_string())?;
    if outcome.exit_code == Some(PROBE_CODE) {
        return Ok(outcome.obtained.mechanisms);
    }
    Err(format!(
        "its machine ended with {:?} and not with {PROBE_CODE}{}",
        outcome.exit_code,
        outcome
            .limit
            .map(|limit| format!(": {limit}"))
            .unwrap_or_default()
    ))
}
