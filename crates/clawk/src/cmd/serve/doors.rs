//! The entry points beside standard input. Each serves until it is closed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clawk_channels::Channels;
use clawk_egress::Url;
use clawk_kernel::Kernel;
use clawk_proto::method::LifecycleState;
use clawk_server::AgentHost;
use clawk_server::folder::{FolderDoor, FolderOptions};
use clawk_server::http::{HttpListener, Keys};
#[cfg(any(feature = "nats", feature = "redis"))]
use clawk_server::queue::QueueOptions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Args;
use crate::compose::channels::HostChannels;
use crate::compose::{self, LaunchedAgentFactory, ResolvedConfig};
#[cfg(any(feature = "nats", feature = "redis"))]
use crate::config::QueueDoor;
use crate::out;
use crate::state::kept;

/// Time limit for clients to disconnect after the agent has ended.
const DOORS_END: Duration = Duration::from_secs(15);
/// Folder in the state directory: the sessions of disconnected clients.
const SESSIONS: &str = "doors";

/// All open entry points.
#[derive(Debug, Default)]
pub(super) struct OpenDoors {
    tasks: TaskTracker,
    /// Replaces the listener's tokens.
    keys: Option<Keys>,
    /// The manifest's channels.
    channels: Option<Channels>,
    /// The agent run that the channels serve, if several hosts share the state.
    connected: Option<Kernel>,
    /// Cancelled when no new requests are accepted.
    closing: CancellationToken,
    /// Cancelled when the control socket's clients are disconnected.
    over: CancellationToken,
    /// Lines to print once the agent runs.
    opened: Vec<String>,
    warnings: Vec<String>,
}

/// Opens the control socket and the entry points of the command line. With any of these, the agent starts at once; with standard
/// input alone, it starts at the first `claw.initialize`.
pub(super) async fn open_doors(
    args: &Args,
    launched: &LaunchedAgentFactory,
    host: &AgentHost,
) -> Result<OpenDoors> {
    let mut doors = OpenDoors::default();
    let control = launched.control_socket(host)?;
    // Open the channels before the listener, so that no client is told that a channel does not exist.
    let listener = match args.listen {
        Some(address) => Some(bind_listener(address, launched, host).await?),
        None => None,
    };
    doors.channels = connect_channels(args, launched, host).await?;
    if let Some(listener) = listener {
        // Start the agent before the first answer, so that a fast client is not told that no agent runs.
        host.start_agent(None).await?;
        doors.add_listener(listener, launched);
    }
    if let Some(folder) = &args.dir {
        let blueprint = launched.resolved_config();
        let settings = &blueprint.config.settings.doors.dir;
        let options = FolderOptions {
            role: settings.role,
            kept: launched.state().path().join(SESSIONS),
            vault: launched.state().vault().cloned(),
            archived_files: settings.archived_files,
        };
        let door = FolderDoor::bind(folder, host.clone(), options)?;
        doors.opened.push(format!("serving CKP in {}", folder.display()));
        doors.tasks.spawn(door.serve(doors.closing.clone()));
    }
    if let Some(url) = &args.nats {
        doors.connect_nats(url, launched, host).await?;
    }
    if let Some(url) = &args.redis {
        doors.connect_redis(url, launched, host).await?;
    }
    if launched.has_bus() {
        doors.opened.push("working for the swarm, by its bus".to_owned());
    }
    if args.mcp || !doors.opened.is_empty() {
        let kernel = host.start_agent(None).await?;
        if !args.has_launcher() {
            for line in compose::unknown_effects(&kernel).await? {
                out::print_note(&line);
            }
            doors.opened.iter().for_each(out::print_note);
        }
    }
    doors.warnings.iter().for_each(out::print_note);
    if let Some(activity) = &launched.resolved_config().config.activity {
        activity.opened.cancel();
    }
    doors.tasks.spawn(control.serve(doors.over.clone()));
    Ok(doors)
}

impl OpenDoors {
    fn add_listener(&mut self, listener: HttpListener, launched: &LaunchedAgentFactory) {
        let blueprint = launched.resolved_config();
        let settings = &blueprint.config.settings.http;
        let names: Vec<&str> = settings.doors.iter().map(|door| door.name()).collect();
        let served = names.join(", ");
        let scheme = listener.scheme();
        self.opened
            .push(format!("serving {served} on {scheme}://{}", listener.address()));
        if let Some(warning) = listener.security_warning() {
            self.warnings.push(format!("warning: {warning}"));
        }
        self.keys = Some(listener.keys());
        self.tasks.spawn(listener.serve(self.closing.clone()));
    }

    #[cfg(feature = "nats")]
    async fn connect_nats(
        &mut self,
        url: &Url,
        launched: &LaunchedAgentFactory,
        host: &AgentHost,
    ) -> Result<()> {
        let blueprint = launched.resolved_config();
        let options = queue_options(url, &blueprint.config.settings.doors.nats, launched)?;
        let door = clawk_server::queue::nats::NatsDoor::connect(host.clone(), &options).await;
        let door = door.context("`--nats`")?;
        self.opened.push(serving_message("NATS", &options));
        self.tasks.spawn(door.serve(self.closing.clone()));
        Ok(())
    }

    #[cfg(not(feature = "nats"))]
    async fn connect_nats(
        &mut self,
        _url: &Url,
        _launched: &LaunchedAgentFactory,
        _host: &AgentHost,
    ) -> Result<()> {
        anyhow::bail!("this build has no `--nats`; build with `--features nats`")
    }

    #[cfg(feature = "redis")]
    async fn connect_redis(
        &mut self,
        url: &Url,
        launched: &LaunchedAgentFactory,
        host: &AgentHost,
    ) -> Result<()> {
        let blueprint = launched.resolved_config();
        let options = queue_options(url, &blueprint.config.settings.doors.redis, launched)?;
        let door = clawk_server::queue::redis::RedisDoor::connect(host.clone(), &options).await;
        let door = door.context("`--redis`")?;
        self.opened.push(serving_message("Redis", &options));
        self.tasks.spawn(door.serve(self.closing.clone()));
        Ok(())
    }

    #[cfg(not(feature = "redis"))]
    async fn connect_redis(
        &mut self,
        _url: &Url,
        _launched: &LaunchedAgentFactory,
        _host: &AgentHost,
    ) -> Result<()> {
        anyhow::bail!("this build has no `--redis`; build with `--features redis`")
    }

    /// Returns the handle that replaces the listener's tokens, if there is a listener.
    pub(super) const fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// Ends the agent's run and starts one of `fresh` behind the same entry points; running turns continue in it. If the new run
    /// can't start, the agent continues as before.
    pub(super) async fn next_run(
        &mut self,
        args: &Args,
        launched: &LaunchedAgentFactory,
        host: &AgentHost,
        fresh: ResolvedConfig,
    ) -> Result<()> {
        let running = launched.resolved_config();
        let failed = match self.run_of(args, launched, host, Arc::new(fresh)).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let back = self.run_of(args, launched, host, running).await;
        back.with_context(|| format!("{failed:#}; and the agent as it was does not start either"))?;
        Err(failed)
    }

    async fn run_of(
        &mut self,
        args: &Args,
        launched: &LaunchedAgentFactory,
        host: &AgentHost,
        blueprint: Arc<ResolvedConfig>,
    ) -> Result<()> {
        if let Some(channels) = self.channels.take() {
            channels.close().await;
        }
        let mut replaced = Ok(());
        let between = async { replaced = launched.replace_config(blueprint).await };
        host.next_run("reloaded", between).await?;
        host.set_channels(None);
        self.channels = connect_channels(args, launched, host).await?;
        replaced
    }

    /// Connects the channels when this host becomes the leader, and again for each run of the agent. Closes them when another host
    /// leads.
    pub(super) async fn follow_leadership(
        &mut self,
        args: &Args,
        launched: &LaunchedAgentFactory,
        host: &AgentHost,
    ) {
        let sharing = kept::sharing_status(launched.state());
        if !sharing.shared || args.manifest.is_none() || !launched.resolved_config().has_channels() {
            return;
        }
        let running = host.current_kernel().get();
        let running = running.filter(|kernel| kernel.status().state == LifecycleState::Ready);
        let same = match (&self.connected, &running) {
            (Some(before), Some(now)) => before.is_same(now),
            (_, _) => false,
        };
        if let Some(channels) = self.channels.take_if(|_| !(sharing.leads && same)) {
            channels.close().await;
            host.set_channels(None);
        }
        if self.channels.is_some() || !sharing.leads || running.is_none() {
            return;
        }
        match connect_channels(args, launched, host).await {
            Ok(channels) => (self.channels, self.connected) = (channels, running),
            Err(error) => tracing::error!(
                error = format!("{error:#}"),
                "the channels can't be connected yet"
            ),
        }
    }

    /// Ends the agent, then disconnects the clients. Each first gets its remaining answers.
    pub(super) async fn close(self, host: &AgentHost) {
        self.closing.cancel();
        if let Some(channels) = &self.channels {
            channels.close().await;
        }
        host.close("the service ends").await;
        self.over.cancel();
        self.tasks.close();
        if tokio::time::timeout(DOORS_END, self.tasks.wait()).await.is_err() {
            tracing::warn!("a door did not end in time");
        }
    }
}

/// Returns the host names under which platforms were told to reach this listener.
pub(super) fn public_hosts(blueprint: &ResolvedConfig) -> BTreeSet<String> {
    let channels = blueprint.config.settings.channels.values();
    let public = channels.filter_map(|channel| channel.public_url.as_deref());
    let names = public.filter_map(|url| Url::parse(url).ok()?.host_str().map(str::to_owned)); // silent-ok: its channel says so
    names.collect()
}

async fn bind_listener(
    address: std::net::SocketAddr,
    launched: &LaunchedAgentFactory,
    host: &AgentHost,
) -> Result<HttpListener> {
    let blueprint = launched.resolved_config();
    let mut settings = blueprint.config.settings.http.clone();
    settings.hosts.extend(public_hosts(&blueprint));
    crate::http::bind_listener(
        address,
        (&settings, &blueprint.config.settings.egress.allow_private),
        &blueprint.resolver,
        host.clone(),
        launched.state(),
    )
    .await
}

/// Connects the manifest's channels. With standard input alone, an agent that can't start reports that to its launcher.
async fn connect_channels(
    args: &Args,
    launched: &LaunchedAgentFactory,
    host: &AgentHost,
) -> Result<Option<Channels>> {
    let blueprint = launched.resolved_config();
    if args.manifest.is_none() || !blueprint.has_channels() {
        return Ok(None);
    }
    let kernel = match host.start_agent(None).await {
        // If several hosts share the state, only one has the channels: see [`OpenDoors::follow_leadership`].
        Ok(_)
            if kept::sharing_status(launched.state()).shared
                && !kept::sharing_status(launched.state()).leads =>
        {
            return Ok(None);
        }
        Ok(kernel) => kernel,
        Err(error) if args.has_launcher() && args.listen.is_none() => {
            tracing::warn!(%error, "the channels are not connected: the agent does not start");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let channels = blueprint
        .start_channels(kernel, launched.state(), args.listen.is_some())
        .await?;
    host.set_channels(Some(Arc::new(HostChannels(channels.clone()))));
    Ok(Some(channels))
}

#[cfg(any(feature = "nats", feature = "redis"))]
fn serving_message(broker: &str, options: &QueueOptions) -> String {
    let QueueOptions { swarm, agent, .. } = options;
    format!("serving CKP on {broker}, `claw.{swarm}.{agent}.inbox`")
}

/// Returns the options for serving the agent over a queue. The names come from the manifest.
#[cfg(any(feature = "nats", feature = "redis"))]
fn queue_options(url: &Url, settings: &QueueDoor, launched: &LaunchedAgentFactory) -> Result<QueueOptions> {
    let blueprint = launched.resolved_config();
    let mut server = url.clone();
    if let Some(reference) = &settings.password_ref {
        let secret = blueprint.resolver.resolve(reference)?;
        let set = server.set_password(Some(secret.expose().trim()));
        set.map_err(|()| anyhow::anyhow!("the broker's URL takes no password"))?;
    }
    let manifest = &blueprint.manifest;
    let swarm = manifest
        .swarm
        .as_ref()
        .map_or("default", |swarm| swarm.name.as_str());
    Ok(QueueOptions {
        server,
        swarm: swarm.to_owned(),
        agent: manifest.metadata.name.clone(),
        role: settings.role,
        tries: settings.tries,
        kept: launched.state().path().join(SESSIONS),
        vault: launched.state().vault().cloned(),
    })
}
