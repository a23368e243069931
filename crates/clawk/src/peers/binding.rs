//! How a member is reached, for people and `clawk swarm status`.

use std::collections::BTreeMap;

use clawk_egress::Url;
use clawk_manifest::model::{BusBackend, Swarm};
use clawk_swarm::plan::identity_name;

use super::{PeerAddress, PeerConfig};

/// How and where a member is reached.
#[derive(Debug)]
pub(crate) struct MemberBinding {
    /// `in-process`, a key of `[peers.NAME]`, or the Swarm's `backend`.
    pub(crate) way: String,
    /// `local`, the host of an address, or `any` host of a bus.
    pub(crate) host: String,
}

/// The value for a member that may run on any host of a bus.
pub(crate) const ANY: &str = "any";

impl MemberBinding {
    /// Returns the binding of a member in this process.
    pub(crate) fn in_process() -> Self {
        Self {
            way: "in-process".to_owned(),
            host: "local".to_owned(),
        }
    }

    /// Returns whether the member runs in this process.
    pub(crate) fn is_here(&self) -> bool {
        self.way == "in-process"
    }
}

/// Returns how the identity of this reference is reached.
pub(crate) fn resolve_binding(
    peers: &BTreeMap<String, PeerConfig>,
    swarm: &Swarm,
    reference: &str,
) -> MemberBinding {
    let of = |way: &str, host: &str| MemberBinding {
        way: way.to_owned(),
        host: host.to_owned(),
    };
    let at = |way: &str, url: &str| {
        let host = Url::parse(url)
            .ok()
            .and_then(|url| url.host_str().map(str::to_owned)); // silent-ok: a start says what is wrong
        of(way, &host.unwrap_or_default())
    };
    let name = identity_name(reference);
    let peer = peers.get(&name).and_then(|peer| peer.parse_address(&name).ok()); // silent-ok: as above
    match peer {
        Some(PeerAddress::Here) => MemberBinding::in_process(),
        Some(PeerAddress::Manifest(_)) => of("manifest", "local"),
        Some(PeerAddress::Command(_)) => of("command", "local"),
        Some(PeerAddress::Url(url)) => at("url", url),
        Some(PeerAddress::A2a(url)) => at("a2a", url),
        Some(PeerAddress::Bus(url)) => at("bus", url),
        Some(PeerAddress::Swarm) | None => match swarm.coordination.backend {
            BusBackend::InProcess => MemberBinding::in_process(),
            BusBackend::SqliteWal => of("sqlite-wal", ANY),
            BusBackend::Redis => of("redis", ANY),
            BusBackend::Nats => of("nats", ANY),
        },
    }
}
