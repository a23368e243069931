//! `[peers]` and `[swarm]` of `clawk.toml`: the swarm members on other hosts or in other processes, and the bus that carries their
//! tasks.

mod binding;
mod bus;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_client::AgentAddress;
use clawk_kernel::Role;
use clawk_kernel::ports::{BoxFuture, RemoteResult, RemoteTask, RetryReason, RunError, TokenKey};
use clawk_kernel::time::{Clock, SystemClock};
use clawk_kernel::witness::digest_of;
use clawk_manifest::Manifest;
use clawk_manifest::model::{BusBackend, Swarm};
use clawk_secrets::SecretResolver;
use clawk_server::peers::{BusKind, BusOptions, ForeignMember, ForeignOptions, LinkOptions, RemoteMembers};
use clawk_swarm::Plan;
use clawk_swarm::limit::LocalLimits;
use clawk_swarm::plan::identity_name;
use clawk_tools::{A2aAgent, A2aStep};
use clawk_trace::checkpoint::PublicKey;
use clawk_trace::proof;
use serde::{Deserialize, Serialize};

use crate::config::Config;

pub(crate) use binding::{ANY, MemberBinding, resolve_binding};
use bus::bus_url;
pub(crate) use bus::swarm_bus_fault;

/// Folder in the state directory: the states of peers that this host starts.
const STATES: &str = "peers";
/// File in the state directory: the key of report tokens.
const KEY: &str = "keys/swarm";
/// File in the state directory: the bus of `sqlite-wal`.
const BUS: &str = "swarm.db";

/// `[swarm]`: swarm settings that the manifest does not have.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SwarmConfig {
    /// Address of the bus: `nats://…` or `redis://…`, by the Swarm's `backend`. With `sqlite-wal` a file's path, relative to the
    /// configuration's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// Identities whose tasks this host takes from the bus; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serve: Option<Vec<String>>,
    /// See [`LocalLimits`].
    retry_delay_ms: Option<u64>,
    max_depth: Option<u32>,
    max_waiting: Option<usize>,
}

impl SwarmConfig {
    /// Returns the local limits.
    pub(crate) fn local_limits(&self) -> LocalLimits {
        let usual = LocalLimits::default();
        LocalLimits {
            retry_delay_ms: self.retry_delay_ms.unwrap_or(usual.retry_delay_ms),
            max_depth: self.max_depth.unwrap_or(usual.max_depth),
            max_waiting: self.max_waiting.unwrap_or(usual.max_waiting),
        }
    }
}

/// `[peers.NAME]`: an identity other than the Claw's own. Exactly one of the first six keys is set.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeerConfig {
    /// An Identity document: the member runs in this process. Relative to the configuration's folder, as all paths here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<PathBuf>,
    /// Another manifest. This host starts it as a separate process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) manifest: Option<PathBuf>,
    /// Command of a CKP agent that uses its standard streams. This host starts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<Vec<String>>,
    /// Address of a remote CKP agent: `http://`, `https://`, `ws://` or `wss://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// Base address of a remote A2A agent, under which its card is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) a2a: Option<String>,
    /// A CKP agent behind queues: `nats://HOST:PORT` or `redis://HOST:PORT`, with `#SWARM/AGENT` if its names differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bus: Option<String>,
    /// The peer's public signing key: `ed25519:` and 64 hexadecimal digits (the peer's host prints it with `clawk swarm key`). For
    /// a member on the Swarm's own bus, and for the host that delegates tasks, only this key is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Reference to the token that the peer requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The peer gets at most these tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<Vec<String>>,
    /// Time limit for one attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
}

/// How a peer is reached.
enum PeerAddress<'a> {
    Here,
    Manifest(&'a Path),
    Command(&'a [String]),
    Url(&'a str),
    A2a(&'a str),
    Bus(&'a str),
    /// Over the Swarm's own bus, with a key.
    Swarm,
}

impl PeerConfig {
    fn parse_address(&self, name: &str) -> Result<PeerAddress<'_>> {
        let ways = [
            self.identity.as_ref().map(|_| PeerAddress::Here),
            self.manifest.as_deref().map(PeerAddress::Manifest),
            self.command.as_deref().map(PeerAddress::Command),
            self.url.as_deref().map(PeerAddress::Url),
            self.a2a.as_deref().map(PeerAddress::A2a),
            self.bus.as_deref().map(PeerAddress::Bus),
        ];
        let mut given = ways.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(way), None) => Ok(way),
            (None, _) if self.key.is_some() && self.token.is_none() && self.tools.is_none() => {
                Ok(PeerAddress::Swarm)
            }
            _ => bail!(
                "`[peers.{name}]` of clawk.toml needs exactly one of `identity`, `manifest`, `command`, `url`, `a2a` and `bus`"
            ),
        }
    }

    /// Returns the peer's public signing key.
    fn public_key(&self, name: &str) -> Result<Option<PublicKey>> {
        let Some(text) = &self.key else { return Ok(None) };
        let key = proof::read(text).with_context(|| {
            format!("`[peers.{name}] key` of clawk.toml is not a key (example: `ed25519:` and 64 hexadecimal digits)")
        })?;
        match self.parse_address(name)? {
            PeerAddress::Here => bail!(
                "`[peers.{name}]` of clawk.toml: `identity` works in this process, where nothing is signed; leave `key` out"
            ),
            PeerAddress::A2a(_) => {
                bail!("`[peers.{name}]` of clawk.toml: an agent of A2A signs nothing; leave `key` out")
            }
            PeerAddress::Manifest(_)
            | PeerAddress::Command(_)
            | PeerAddress::Url(_)
            | PeerAddress::Bus(_)
            | PeerAddress::Swarm => Ok(Some(key)),
        }
    }

    /// Returns the command that a start would run for the peer.
    pub(crate) fn command_words(&self) -> Option<Vec<String>> {
        let manifest = self.manifest.as_ref();
        let manifest =
            manifest.map(|path| vec!["clawk".to_owned(), "serve".to_owned(), path.display().to_string()]);
        self.command.clone().or(manifest)
    }
}

/// Quotes one word for a shell.
fn quote_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Joins words to a shell command line.
fn command_line(words: &[String]) -> String {
    words
        .iter()
        .map(|word| quote_word(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The parts of a resolved configuration that peers need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerContext<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) config: &'a Config,
    pub(crate) resolver: &'a SecretResolver,
    pub(crate) state: &'a Path,
}

/// Returns the key of report tokens. It is made once for each state directory.
///
/// # Errors
/// The key can't be read or written.
pub(crate) fn token_key(state: &Path) -> Result<TokenKey> {
    kept_key(state, KEY).map(TokenKey)
}

/// Returns a key of 32 random bytes from a file in the state directory (mode 0600). Creates the file if it is missing.
///
/// # Errors
/// The file can't be written.
pub(crate) fn kept_key(state: &Path, name: &str) -> Result<[u8; 32]> {
    let path = state.join(name);
    let about = || format!("can't keep a key in `{}`", path.display());
    if let Ok(bytes) = fs::read(&path)
        && let Ok(key) = <[u8; 32]>::try_from(bytes.as_slice())
    {
        return Ok(key);
    }
    let clock = SystemClock::default();
    let mut key = [0_u8; 32];
    for part in key.chunks_mut(8) {
        part.copy_from_slice(&clock.random_u64().to_le_bytes());
    }
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(about)?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .with_context(about)?;
    file.write_all(&key)
        .and_then(|()| file.sync_all())
        .with_context(about)?;
    Ok(key)
}

/// Connects the members outside this process; `None` if there are none.
///
/// # Errors
/// A binding is not valid, or the bus can't be reached.
pub(crate) async fn connect_remote_members(
    place: PeerContext<'_>,
    key: &TokenKey,
) -> Result<Option<Arc<RemoteMembers>>> {
    let (mut links, mut foreign) = (BTreeMap::new(), BTreeMap::new());
    for (name, peer) in &place.config.settings.peers {
        if let PeerAddress::A2a(url) = peer.parse_address(name)? {
            foreign.insert(name.clone(), foreign_options(place, name, peer, url)?);
        } else if let Some(options) = link_options(place, name, peer)? {
            links.insert(name.clone(), options);
        }
    }
    let bound = |name: &str| links.contains_key(name) || foreign.contains_key(name);
    let keys = peer_keys(place)?;
    let bus = bus_options(place, key, &bound, &keys)?;
    if links.is_empty() && foreign.is_empty() && bus.is_none() {
        return Ok(None);
    }
    let at = bus.as_ref().map(|bus| place_of(&bus.kind)).unwrap_or_default();
    let peers = RemoteMembers::new(links, foreign, bus, keys).await;
    Ok(Some(peers.with_context(|| {
        format!("the swarm's bus {at} (`[swarm] url` of clawk.toml) can't be reached")
    })?))
}

/// Returns a bus address without its password.
fn place_of(kind: &BusKind) -> String {
    match kind {
        BusKind::Nats(url) | BusKind::Redis(url) => {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            format!("at `{}{port}`", url.host_str().unwrap_or_default())
        }
        BusKind::File(path) => format!("in `{}`", path.display()),
    }
}

/// Returns the keys of `[peers]`, by table name.
fn peer_keys(place: PeerContext<'_>) -> Result<BTreeMap<String, PublicKey>> {
    let mut keys = BTreeMap::new();
    for (name, peer) in &place.config.settings.peers {
        let Some(key) = peer.public_key(name)? else {
            continue;
        };
        let own = |swarm: &Swarm| swarm.coordination.backend == BusBackend::InProcess;
        if matches!(peer.parse_address(name)?, PeerAddress::Swarm)
            && place.manifest.swarm.as_ref().is_none_or(own)
        {
            bail!(
                "`[peers.{name}]` of clawk.toml: a `key` alone is for members of a Swarm whose backend is `sqlite-wal`, `redis` or `nats`; say how the peer is reached"
            );
        }
        keys.insert(name.clone(), key);
    }
    Ok(keys)
}

fn link_options(place: PeerContext<'_>, name: &str, peer: &PeerConfig) -> Result<Option<LinkOptions>> {
    let folder = place.config.folder();
    let about = || format!("`[peers.{name}]` of clawk.toml");
    let target = match peer.parse_address(name)? {
        PeerAddress::Here | PeerAddress::A2a(_) | PeerAddress::Swarm => return Ok(None),
        PeerAddress::Manifest(path) => {
            let state = place.state.join(STATES).join(name);
            let program = std::env::current_exe().context("this program can't find itself")?;
            let words = [
                program.display().to_string(),
                "serve".to_owned(),
                folder.join(path).display().to_string(),
                "--stdio".to_owned(),
                "--state".to_owned(),
                state.display().to_string(),
            ];
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&state)
                .with_context(about)?;
            AgentAddress::Command(command_line(&words))
        }
        PeerAddress::Command([]) => bail!("{}: `command` names no program", about()),
        // A foreign program gets none of this process's variables, because they include keys.
        PeerAddress::Command(words) => {
            AgentAddress::Command(format!("env -i {KEPT} {}", command_line(words)))
        }
        PeerAddress::Url(url) => match AgentAddress::parse(url).with_context(about)? {
            target @ (AgentAddress::Http(_) | AgentAddress::WebSocket(_)) => target,
            _ => bail!("{}: `url` is `http://`, `https://`, `ws://` or `wss://`", about()),
        },
        PeerAddress::Bus(url) => {
            let swarm = place
                .manifest
                .swarm
                .as_ref()
                .map_or("default", |swarm| &swarm.name);
            let whole = if url.contains('#') {
                url.to_owned()
            } else {
                format!("{url}#{swarm}/{name}")
            };
            match AgentAddress::parse(&whole).with_context(about)? {
                target @ (AgentAddress::Nats(_) | AgentAddress::Redis(_)) => target,
                _ => bail!("{}: `bus` is `nats://`, `tls://` or `redis://`", about()),
            }
        }
    };
    let token = peer
        .token
        .as_ref()
        .map(|reference| place.resolver.resolve(reference));
    Ok(Some(LinkOptions {
        target,
        name: format!("clawk {}", place.manifest.identity.name),
        token: token.transpose().with_context(about)?,
        tools: peer.tools.clone(),
        timeout_ms: peer.timeout_ms,
    }))
}

fn foreign_options(
    place: PeerContext<'_>,
    name: &str,
    peer: &PeerConfig,
    url: &str,
) -> Result<ForeignOptions> {
    let about = || format!("`[peers.{name}]` of clawk.toml");
    if peer.tools.is_some() {
        bail!(
            "{}: `tools` can't be told to an agent of A2A, which uses what it has; leave it out",
            about()
        );
    }
    let token = peer
        .token
        .as_ref()
        .map(|reference| place.resolver.resolve(reference));
    let token = token.transpose().with_context(about)?;
    let agent = A2aAgent::new(url, token.as_ref(), place.resolver.env());
    let agent = agent.map_err(anyhow::Error::msg).with_context(about)?;
    Ok(ForeignOptions {
        member: Arc::new(Member(Arc::new(agent))),
        timeout_ms: peer.timeout_ms,
    })
}

/// An A2A agent as a swarm member.
#[derive(Debug)]
struct Member(Arc<A2aAgent>);

impl ForeignMember for Member {
    fn run_task<'a>(&'a self, errand: &'a RemoteTask) -> BoxFuture<'a, RemoteResult> {
        Box::pin(async move {
            let mut waits = RemoteTaskGuard {
                agent: Arc::clone(&self.0),
                task: None,
            };
            // An agent that could not be reached has used no tokens.
            let mut unused = Some(0);
            let reached = |step: A2aStep<'_>| {
                unused = None;
                if let A2aStep::Begun(task) = step {
                    waits.task = Some(task.to_owned());
                }
            };
            let ended = self
                .0
                .run_task(&errand.id.to_string(), &errand.text, reached)
                .await;
            if ended.is_ok() {
                waits.task = None;
            }
            let lost = |why, error: RunError| RemoteResult::Lost {
                why,
                message: error.to_string(),
                tokens: unused,
            };
            match ended {
                Ok(end) if end.state == "completed" => RemoteResult::Answered {
                    text: end.text,
                    tokens: None,
                },
                Ok(end) => RemoteResult::Refused {
                    reason: end.state.chars().take(32).collect(),
                    message: end.text.chars().take(300).collect(),
                    tokens: None,
                },
                Err(error @ RunError::Unavailable(_)) => lost(RetryReason::Unreached, error),
                Err(error @ RunError::Timeout { .. }) => lost(RetryReason::Timeout, error),
                Err(error) => lost(RetryReason::Crashed, error),
            }
        })
    }
}

/// A task that a caller waits for. Dropping it before the end cancels the task at the other agent.
struct RemoteTaskGuard {
    agent: Arc<A2aAgent>,
    task: Option<String>,
}

impl Drop for RemoteTaskGuard {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let agent = Arc::clone(&self.agent);
        #[expect(clippy::disallowed_methods, reason = "ends within the deadline of a cancel")]
        tokio::spawn(async move { agent.cancel_task(&task).await });
    }
}

/// The environment of a program of `[peers.NAME] command`, in shell syntax.
const KEPT: &str = r#"PATH="$PATH" HOME="$HOME" LANG="${LANG:-C}""#;

/// Returns the identities that work over the bus, and the concurrency limit of each.
fn bus_identities(
    place: PeerContext<'_>,
    plan: &Plan,
    bound: &dyn Fn(&str) -> bool,
) -> BTreeMap<String, usize> {
    let mut identities: BTreeMap<String, usize> = BTreeMap::new();
    for who in plan
        .all_seats()
        .filter(|who| plan.delegable_seats(*who).is_empty() && plan.askable_seats(*who).is_empty())
    {
        let Some(seat) = plan.seat(who).filter(|_| who != plan.head) else {
            continue;
        };
        let name = identity_name(&seat.identity);
        if name != place.manifest.identity.name && !bound(&name) {
            *identities.entry(name).or_default() += 1;
        }
    }
    if !plan.limits.sequential {
        identities
            .values_mut()
            .for_each(|at_once| *at_once = plan.limits.max_parallel);
    }
    identities
}

/// Opens the bus of the manifest's Swarm; `None`: its members run in this process.
fn bus_options(
    place: PeerContext<'_>,
    key: &TokenKey,
    bound: &dyn Fn(&str) -> bool,
    keys: &BTreeMap<String, PublicKey>,
) -> Result<Option<BusOptions>> {
    let Some(swarm) = &place.manifest.swarm else {
        return Ok(None);
    };
    if let Some(fault) = swarm_bus_fault(place.manifest, &place.config.settings) {
        bail!("{fault}");
    }
    let (config, doors) = (&place.config.settings.swarm, &place.config.settings.doors);
    let (kind, role) = match swarm.coordination.backend {
        BusBackend::InProcess => return Ok(None),
        BusBackend::SqliteWal => {
            let given = config.url.as_ref().map(|path| place.config.folder().join(path));
            (
                BusKind::File(given.unwrap_or_else(|| place.state.join(BUS))),
                Role::User,
            )
        }
        BusBackend::Redis => (
            BusKind::Redis(bus_url(place, BusBackend::Redis, &doors.redis)?),
            doors.redis.role,
        ),
        BusBackend::Nats => (
            BusKind::Nats(bus_url(place, BusBackend::Nats, &doors.nats)?),
            doors.nats.role,
        ),
    };
    let plan = Plan::from_manifest(swarm, &place.manifest.identity.name, config.local_limits())
        .map_err(anyhow::Error::msg)?;
    let identities = bus_identities(place, &plan, bound);
    let unknown = config
        .serve
        .iter()
        .flatten()
        .find(|name| !identities.contains_key(*name));
    if let Some(name) = unknown {
        bail!(
            "`[swarm] serve` of clawk.toml: no member of the Swarm `{}` that works by its bus has the identity `{name}`",
            swarm.name
        );
    }
    let giver = plan
        .seat(plan.head)
        .map_or_else(|| plan.claw.clone(), |seat| identity_name(&seat.identity));
    let giver = keys.get(&giver).map(|key| (giver.clone(), key.clone()));
    let serve = config.serve.clone();
    let serve = serve.unwrap_or_else(|| identities.keys().cloned().collect());
    // This host would sign the member's reports with its own key, and they would be refused.
    if let Some(name) = serve.iter().find(|name| keys.contains_key(*name)) {
        bail!(
            "`[peers.{name}] key` of clawk.toml says that another host works for `{name}`, and this one does, too; leave `{name}` out of `[swarm] serve`"
        );
    }
    let host = digest_of(&[b"clawk host".as_slice(), &key.0].concat()).to_hex();
    Ok(Some(BusOptions {
        kind,
        swarm: swarm.name.clone(),
        host: host.chars().take(16).collect(),
        serve,
        identities,
        role,
        giver,
        clock: Arc::new(SystemClock::default()) as Arc<dyn Clock>,
    }))
}
