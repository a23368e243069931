//! The server of a Swarm's bus: whether this build and `clawk.toml` name one that fits the manifest.

use anyhow::{Context as _, Result};
use clawk_egress::Url;
use clawk_manifest::Manifest;
use clawk_manifest::model::{BusBackend, MessagePassing};

use super::PeerContext;
use crate::config::{QueueDoor, Settings};

/// Returns the URL of the bus server, without its password.
///
/// # Errors
/// This build has no such client, or `[swarm] url` does not fit the back end. The error says so, with the cure.
fn declared_bus_url(settings: &Settings, backend: BusBackend) -> Result<Option<Url>, String> {
    let (schemes, built) = match backend {
        BusBackend::InProcess | BusBackend::SqliteWal => return Ok(None),
        BusBackend::Redis => (["redis", "rediss"], cfg!(feature = "redis")),
        BusBackend::Nats => (["nats", "tls"], cfg!(feature = "nats")),
    };
    let name = backend.as_str();
    if !built {
        return Err(format!(
            "this build of clawk leaves out `{name}`, the backend of the Swarm; build with `--features {name}`, or use a shipped build \
             (`cargo xtask dist`)"
        ));
    }
    let about = || {
        let [scheme, other] = schemes;
        format!(
            "`[swarm] url` of clawk.toml: the Swarm's backend is `{name}`, so it is the URL of one (`{scheme}://HOST` or `{other}://HOST`)"
        )
    };
    let url = settings.swarm.url.as_deref().ok_or_else(about)?;
    let url = Url::parse(url).ok().filter(|url| schemes.contains(&url.scheme())); // silent-ok: said below
    let url = url.ok_or_else(about)?;
    if url.password().is_some() {
        return Err(
            "`[swarm] url` of clawk.toml holds a password: name it by `password_ref` in `[doors.nats]` or `[doors.redis]`"
                .to_owned(),
        );
    }
    Ok(Some(url))
}

/// Returns why the bus of the manifest's Swarm can't be used, as far as the configuration shows. Nothing is connected, and no secret
/// is asked for.
pub(crate) fn swarm_bus_fault(manifest: &Manifest, settings: &Settings) -> Option<String> {
    let swarm = manifest.swarm.as_ref()?;
    let backend = swarm.coordination.backend;
    let shares = swarm.coordination.message_passing == MessagePassing::SharedMemory;
    if shares && backend != BusBackend::InProcess {
        return Some(format!(
            "the Swarm `{}`: `message_passing: shared-memory` is served with the backend `in-process` only",
            swarm.name
        ));
    }
    declared_bus_url(settings, backend).err()
}

/// Returns the URL of the bus server, with its password.
///
/// # Errors
/// `[swarm] url` does not fit the back end, or its password can't be resolved.
pub(super) fn bus_url(place: PeerContext<'_>, backend: BusBackend, door: &QueueDoor) -> Result<Url> {
    let url = declared_bus_url(&place.config.settings, backend).map_err(anyhow::Error::msg)?;
    let mut url = url.with_context(|| format!("the backend `{}` has no server", backend.as_str()))?;
    if let Some(reference) = &door.password_ref {
        let secret = place.resolver.resolve(reference)?;
        let set = url.set_password(Some(secret.expose().trim()));
        set.map_err(|()| anyhow::anyhow!("`[swarm] url` of clawk.toml takes no password"))?;
    }
    Ok(url)
}
