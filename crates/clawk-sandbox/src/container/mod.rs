//! Level `container`: an OCI runtime runs a bundle that clawk writes. It does not rely on any default of an engine (CKP §5.7,
//! R32–R36).
//!
//! The launcher's supervisor stays outside: it enforces the time limit, limits the output and reaps processes. Below it,
//! `clawk __oci` ([`stage`]) makes namespaces whose mounts and network end with it, and becomes the runtime. See `bundle` for what
//! is run and `image` for the files.

mod archive;
mod bundle;
mod cgroup;
mod engine;
mod guard;
pub mod image;
mod layer;
mod mask;
mod root;
mod run;
mod seccomp;
pub mod stage;
mod store;
mod view;

use std::path::PathBuf;

pub use engine::ContainerRuntime;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::launch::{EgressServerHandle, LaunchError, LaunchOutcome, Launcher, SandboxedService, Spec};
use clawk_plan::level::{Level, SandboxRefusal};

#[cfg(feature = "vm")]
pub(crate) use engine::locate_program;
use run::ContainerRun;
pub(crate) use run::{fresh_name, known_refusal};

/// The runtimes that are tried, in this order.
pub const RUNTIMES: [&str; 4] = ["runc", "crun", "youki", "runsc"];

/// `[sandbox.container]` of `clawk.toml`: the settings of level `container`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// OCI runtimes to try, as names or full paths. The first one that really runs a container is used.
    pub runtimes: Vec<String>,
    /// A folder in the OCI image layout whose image is the root. Absent: this host's `/usr`, read-only, with a synthetic `/etc`.
    pub image: Option<PathBuf>,
    /// The image in the layout: the value of `org.opencontainers.image.ref.name`. Required if there are several images.
    pub tag: Option<String>,
    /// `docker` or `podman`, as a name or a full path. Its store contains [`Settings::engine_image`].
    pub engine: String,
    /// An image in the engine's store, under the engine's name, instead of a layout.
    pub engine_image: Option<String>,
    /// The digest of the manifest (`sha256:…`), or the id of an engine's image. Another image is refused.
    pub digest: Option<String>,
    /// The maximum unpacked size of an image, in MiB.
    pub max_image_mb: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            runtimes: RUNTIMES.map(str::to_owned).to_vec(),
            image: None,
            engine: "docker".to_owned(),
            engine_image: None,
            tag: None,
            digest: None,
            max_image_mb: 4096,
        }
    }
}

/// The state of this level in one agent: the cached results of probes.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    pub(crate) settings: Settings,
    /// Where unpacked images are cached.
    pub(crate) cache: Option<PathBuf>,
    found: OnceCell<Result<ContainerRuntime, SandboxRefusal>>,
    image: OnceCell<Result<image::ImageRootfs, String>>,
}

impl Backend {
    pub(crate) fn new(settings: Settings, cache: Option<PathBuf>) -> Self {
        Self {
            settings,
            cache,
            ..Self::default()
        }
    }

    /// The probe's result, if there was a probe.
    pub(crate) fn probed_runtime(&self) -> Option<&Result<ContainerRuntime, SandboxRefusal>> {
        self.found.get()
    }

    /// The runtime that really runs containers here. Probed once.
    pub(crate) async fn usable_runtime(
        &self,
        launcher: &Launcher,
    ) -> Result<&ContainerRuntime, SandboxRefusal> {
        let found = self
            .found
            .get_or_init(|| engine::probe_runtimes(launcher, &self.settings))
            .await;
        found.as_ref().map_err(Clone::clone)
    }

    /// The image's unpacked and verified files; `None`: the system view is used.
    pub(crate) async fn image_rootfs(
        &self,
        launcher: &Launcher,
    ) -> Result<Option<&image::ImageRootfs>, SandboxRefusal> {
        if self.settings.image.is_none() && self.settings.engine_image.is_none() {
            return Ok(None);
        }
        let made = self.image.get_or_init(|| self.unpack_image(launcher)).await;
        match made {
            Ok(rootfs) => Ok(Some(rootfs)),
            Err(reason) => Err(container_refusal(
                "image",
                reason,
                "correct `[sandbox.container]` in clawk.toml",
            )),
        }
    }

    async fn unpack_image(&self, launcher: &Launcher) -> Result<image::ImageRootfs, String> {
        let settings = &self.settings;
        let cache = self.cache.clone().unwrap_or_else(std::env::temp_dir);
        let max_bytes = settings.max_image_mb << 20;
        let (layout, tag, digest) = match (&settings.image, &settings.engine_image) {
            (Some(_), Some(_)) => return Err("both `image` and `engine_image` are given".to_owned()),
            (Some(layout), None) => (layout.clone(), settings.tag.clone(), settings.digest.clone()),
            (None, Some(image)) => {
                let stored = store::EngineImage {
                    engine: &settings.engine,
                    image,
                    id: settings.digest.as_deref(),
                    max_bytes,
                };
                let layout = store::ensure_layout(launcher, &stored, &cache.join("engine-images")).await?;
                (layout, None, None)
            }
            (None, None) => return Err("no image is given".to_owned()),
        };
        let wanted = image::ImageRequest {
            layout,
            tag,
            digest,
            max_bytes,
            owner: engine::guest_uid(),
        };
        let cache = cache.join("images");
        tokio::task::spawn_blocking(move || image::unpack_image(&wanted, &cache))
            .await
            .unwrap_or_else(|error| Err(image::ImageError::Broken(error.to_string())))
            .map_err(|error| error.to_string())
    }
}

/// Runs a program in a new container.
pub(crate) async fn launch_container(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<LaunchOutcome, LaunchError> {
    let mut run = prepare_run(launcher, backend, spec).await?;
    let inner = run.spec.clone();
    let running = launcher.launch(&inner);
    let opened = run.open_door(spec);
    let mut running = std::pin::pin!(running);
    let early = {
        let mut opened = std::pin::pin!(opened);
        tokio::select! {
            biased;
            ended = &mut running => Err(ended),
            kept = &mut opened => Ok(kept?),
        }
    };
    let _kept = match early {
        Err(ended) => return run.finish_outcome(spec, ended?),
        Ok(kept) => kept,
    };
    let ended = running.await;
    run.finish_outcome(spec, ended?)
}

/// Starts a service in a new container.
pub(crate) async fn start_service(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<SandboxedService, LaunchError> {
    let mut run = prepare_run(launcher, backend, spec).await?;
    let inner = run.spec.clone();
    let service = launcher.start_service(&inner).await?;
    let opening = tokio::time::timeout(std::time::Duration::from_millis(DOOR_MS), run.open_door(spec));
    let kept = opening
        .await
        .unwrap_or_else(|_| Err(spec.setup_error("the way out of its container did not open in time")))?;
    let obtained = run.obtained_enforcement().clone();
    let mut keep: Vec<EgressServerHandle> = vec![Box::new(run)];
    keep.extend(kept);
    Ok(service.with_enclosure(obtained, keep))
}

/// How long the stage may take to pass on the listening socket, in milliseconds.
const DOOR_MS: u64 = 10_000;

async fn prepare_run(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<ContainerRun, LaunchError> {
    match spec.plan.runtime() {
        Some("apple-container") => {
            let missing = "`apple-container` runs on macOS only";
            return Err(
                container_refusal("apple-container", missing, "leave `runtime` out of the Sandbox").into(),
            );
        }
        // The manifest names it because it is stronger, so no other runtime may be used.
        Some("gvisor") if backend.settings.runtimes != ["runsc"] => {
            let missing = "`runtime: gvisor` needs gVisor's `runsc` and nothing else";
            let hint = "install gVisor and set `[sandbox.container] runtimes = [\"runsc\"]`";
            return Err(container_refusal("gvisor", missing, hint).into());
        }
        Some(_) | None => {}
    }
    let found = backend.usable_runtime(launcher).await?;
    if rustix::fs::access(&found.path, rustix::fs::Access::EXEC_OK).is_err() {
        let missing = format!(
            "`{}` was there when the agent started, and is not now",
            found.name
        );
        return Err(container_refusal(
            "oci-runtime",
            missing,
            "install it again, or start the agent anew",
        )
        .into());
    }
    let rootfs = backend.image_rootfs(launcher).await?;
    ContainerRun::prepare(launcher, spec, found, rootfs)
}

pub(crate) fn container_refusal(mechanism: &str, missing: impl Into<String>, hint: &str) -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level: Level::Container,
        mechanism: mechanism.to_owned(),
        missing: missing.into(),
        hint: hint.to_owned(),
    }
}

#[cfg(test)]
mod tests;
