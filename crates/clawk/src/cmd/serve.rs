//! `clawk serve`: runs the agent as a service.

mod doors;
mod reload;

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clawk_egress::Url;
use clawk_sandbox::Launcher;
use clawk_server::{AgentHost, ClientRights, Options};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::activity::{ActivitySettings, LogFormat};
use crate::compose::{self, AgentSource, LaunchedAgentFactory, ResolvedConfig, WireAgentFactory};
use crate::config::{AllowOutsideArgs, Config};
use crate::state::kept;
use crate::{out, trust};
use doors::{OpenDoors, open_doors};

/// Time limit for running work when the service ends, in milliseconds. Used with a launcher, which may wait for the answers.
const DRAIN_MS: u64 = 5_000;
const STDIO_DRAIN_MS: u64 = 30_000;

/// Interval at which a host checks whether it leads, and so runs the channels.
const LEAD: std::time::Duration = std::time::Duration::from_millis(500);

/// Parses `IP:PORT`. A port alone means this machine only.
fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let numeric = text.replace("localhost", "127.0.0.1");
    numeric.parse().map_err(|_| {
        "expected IP:PORT, for example `127.0.0.1:8080`, or a port alone, which then listens on 127.0.0.1 only".to_owned()
    })
}

/// Flags of `clawk serve`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The manifest; without one, `claw.initialize` brings it
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: Option<PathBuf>,

    /// Serve JSON-RPC on standard input and output, one message per line
    #[arg(long)]
    stdio: bool,

    /// Serve MCP on standard input and output: tools, prompts and resources, until the end of input
    #[arg(long, requires = "manifest", conflicts_with = "stdio")]
    mcp: bool,

    /// Listen on this address; `[http] doors` says what is served. Without a CLAW, only Atlases govern
    #[arg(long, value_name = "ADDR", visible_alias = "http", value_parser = parse_listen_address)]
    listen: Option<SocketAddr>,

    /// Serve over files: requests in DIR/inbox, answers in DIR/outbox
    #[arg(long, value_name = "DIR", requires = "manifest")]
    dir: Option<PathBuf>,

    /// Serve over NATS JetStream: requests in `claw.SWARM.AGENT.inbox`, answers in `…outbox`; needs the feature `nats`
    #[arg(long, value_name = "URL", requires = "manifest")]
    nats: Option<Url>,

    /// Serve over Redis Streams, with the same names; needs the feature `redis`
    #[arg(long, value_name = "URL", requires = "manifest")]
    redis: Option<Url>,

    /// Folders with an `atlas.json`, or such files, in addition to `[atlases] paths`
    #[arg(long = "atlas", value_name = "PATH")]
    atlases: Vec<PathBuf>,

    /// Answer an action without an executor with its parameters instead of an error; nothing is done
    #[arg(long)]
    simulate: bool,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Folder into which file references of a manifest from the wire may point; without it, clawk refuses them
    #[arg(long, value_name = "DIR", conflicts_with = "manifest")]
    manifest_root: Option<PathBuf>,

    /// Agree to the programs that the folder's files would run here, without a question
    #[arg(long)]
    trust: bool,

    /// What is written to standard error while the agent works: one line for each fact, without contents [default: `text`; with
    /// `--stdio` and `--mcp`: `off`]
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    #[command(flatten)]
    outside: AllowOutsideArgs,
}

const EXAMPLES: &str = "\
Examples:
  clawk serve claw.yaml --stdio      this agent, until end of input or SIGTERM
  clawk serve --stdio                whatever agent the other side initializes
  clawk serve claw.yaml --mcp        the same as an MCP server, for a client that starts it
  clawk serve claw.yaml --listen 127.0.0.1:8420
  clawk serve claw.yaml --stdio --listen 127.0.0.1:8420    both at once
  clawk serve claw.yaml --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379
  clawk serve claw.yaml --dir /srv/box    by files, for containers that share a folder
  clawk serve --listen 127.0.0.1:8420 --atlas examples/atlas --simulate
  clawk serve claw.yaml              the manifest's channels alone
  clawk serve claw.yaml --log-format json 2>> agent.log    what it does, for programs

Any number of clients share the agent: what one does, the others can see. Processes of the same user speak the
protocol on `control.sock` in the state directory, as `clawk send` does. A client that goes away ends its own
connection only; the end of standard input ends the agent. Channels of the manifest are connected whatever the
flags are; `clawk channels` shows how they are.

Before anything is served, a sandbox of each level that the agent's tools need is started and looked at from
inside. One that this host can't give keeps the agent from starting: the message says what is missing and what
mends it. Of an agent that comes over the wire, `claw.initialize` is refused with -32010.";

/// Serves until the other side ends, or a signal asks to end.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    // Read the path now: at a restart, another file may be in its place.
    let program = std::env::current_exe();
    let runtime = compose::build_runtime()?;
    let (args, config) = (args.clone(), config.map(Path::to_owned));
    // Runs on a worker thread, so that its input and answers wake it without a thread switch.
    let serving = runtime.spawn(async move { serve_agent(&args, config.as_deref()).await });
    let end = runtime.block_on(serving)??;
    // A pending read of standard input can't be cancelled and must not delay the exit.
    runtime.shutdown_background();
    match end {
        ServeEnd::Over(code) => Ok(code),
        ServeEnd::Again => Err(restart_program(&program?)),
    }
}

/// Returns how `clawk serve` logs; `None`: another verb runs, or a launcher holds standard error and has not asked for a log.
pub(crate) fn served_log_format(matches: &clap::ArgMatches) -> Option<LogFormat> {
    let args = <Args as clap::FromArgMatches>::from_arg_matches(matches.subcommand_matches("serve")?).ok()?; // silent-ok: `main` reads the same flags, and ends with the error
    (!args.has_launcher() || args.log_format.is_some()).then(|| args.activity_format())
}

/// How serving ended.
enum ServeEnd {
    Over(ExitCode),
    /// A restart was requested.
    Again,
}

/// Replaces this process by the program that is now at its path, with the same arguments. Returns only on failure.
#[expect(
    clippy::disallowed_methods,
    reason = "the same process goes on as its successor, at the word of the state's owner: nothing is spawned"
)]
fn restart_program(program: &Path) -> anyhow::Error {
    let mut successor = std::process::Command::new(program);
    let error = successor.args(std::env::args_os().skip(1)).exec();
    anyhow::Error::new(error).context(format!("`{}` can't be started again", program.display()))
}

/// Returns the agent to serve; `None`: the end was requested while this host was on standby.
async fn source(
    args: &Args,
    config: Option<&Path>,
    cancel: &CancellationToken,
) -> Result<Option<AgentSource>> {
    let asked = tokio::select! {
        blueprint = resolve_config(args, config) => blueprint?,
        () = cancel.cancelled() => bail!("nothing was started"),
    };
    Ok(Some(match asked {
        Some(blueprint) => {
            let open = blueprint.config.settings.memory.open_to_all();
            let models = blueprint.model_warnings();
            for warning in blueprint.warning.iter().chain(&open).chain(&models) {
                tracing::warn!("{warning}"); // standard error is quiet unless asked (R25)
            }
            let ask = blueprint.has_channels().then(|| blueprint.ask_by_channel());
            let launched = tokio::select! {
                launched = LaunchedAgentFactory::standing_by(blueprint, args.state.as_deref(), ask) => launched?,
                () = cancel.cancelled() => return Ok(None),
            };
            AgentSource::Launched(Arc::new(launched.reaching_providers()))
        }
        None => {
            if args.outside.allow_outside && args.manifest_root.is_none() {
                bail!(
                    "`--allow-outside` needs a CLAW or `--manifest-root DIR`: without them no file is read"
                );
            }
            let config = with_flags(args, Config::load(config, None)?)?;
            let wired = WireAgentFactory::new(config, args.state.clone(), args.manifest_root.clone());
            AgentSource::Wired(Arc::new(wired))
        }
    }))
}

async fn serve_agent(args: &Args, config: Option<&Path>) -> Result<ServeEnd> {
    let (cancel, mut hangups) = (cancelled_by_signals()?, signal(SignalKind::hangup())?);
    let Some(source) = source(args, config, &cancel).await? else {
        return Ok(ServeEnd::Over(ExitCode::SUCCESS));
    };
    if let Err(error) = check_doors(args, &source) {
        out::print_note(format!("error: {error}"));
        return Ok(ServeEnd::Over(ExitCode::from(2)));
    }
    let launcher = "its launcher holds the connection: start it again from there";
    let options = Options {
        cant_restart: args.has_launcher().then_some(launcher),
        drain_timeout_ms: if args.has_launcher() {
            STDIO_DRAIN_MS
        } else {
            DRAIN_MS
        },
        ..Options::default()
    };
    let host = AgentHost::new(source.factory(), options);
    let mut doors = match source.launched_factory() {
        Some(launched) => open_doors(args, launched, &host).await?,
        None => OpenDoors::default(),
    };
    let mut taken = false;
    {
        let kept = async {
            match source.launched_factory() {
                Some(launched) => kept::wait_while_serving(launched.state(), &host).await,
                None => std::future::pending().await,
            }
        };
        let mut kept = pin!(kept);
        // A state that is not shared needs no polling.
        let shares = source
            .launched_factory()
            .is_some_and(|launched| kept::sharing_status(launched.state()).shared);
        let mut looks = tokio::time::interval(LEAD);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut serving = pin!(serve_stdio(
            args,
            &host,
            source.launched_factory(),
            cancel.clone()
        ));
        loop {
            tokio::select! {
                () = &mut serving => break,
                () = &mut kept, if !taken => {
                    taken = true;
                    cancel.cancel();
                }
                _ = looks.tick(), if shares => {
                    if let Some(launched) = source.launched_factory() {
                        doors.follow_leadership(args, launched, &host).await;
                    }
                }
                () = host.wait_stop_request(), if !cancel.is_cancelled() => cancel.cancel(),
                Some(()) = hangups.recv() => {
                    let launched = source.launched_factory().map(|launched| &**launched);
                    reload::reload_config(args, config, launched, &host, &mut doors).await;
                }
            }
        }
    }
    doors.close(&host).await;
    source.close().await;
    if taken {
        bail!("another host serves the agent now; start this one again, and it stands by");
    }
    Ok(if host.is_restarting() {
        ServeEnd::Again
    } else {
        ServeEnd::Over(ExitCode::SUCCESS)
    })
}

/// Checks that the agent of this configuration has an entry point or a channel.
fn is_reachable(args: &Args, launched: &LaunchedAgentFactory, blueprint: &ResolvedConfig) -> bool {
    args.has_door() || blueprint.has_channels() || launched.has_bus()
}

/// Checks that the agent has an entry point or a channel.
fn check_doors(args: &Args, source: &AgentSource) -> Result<()> {
    let launched = source.launched_factory();
    if args.has_door()
        || launched.is_some_and(|launched| is_reachable(args, launched, &launched.resolved_config()))
    {
        return Ok(());
    }
    bail!(
        "nothing would reach the agent: give `--stdio`, `--mcp`, `--listen ADDR`, `--dir DIR`, `--nats URL` or `--redis URL`, or \
         declare channels, or a Swarm with a bus, in the manifest"
    )
}

/// Returns the agent of the manifest, or of the Atlases alone; `None`: a client sends it.
async fn resolve_config(args: &Args, config: Option<&Path>) -> Result<Option<ResolvedConfig>> {
    let load = || with_flags(args, Config::load(config, args.manifest.as_deref())?);
    let mut blueprint = match (&args.manifest, args.listen) {
        (Some(manifest), _) => {
            // With a protocol on standard input, the terminal must not be used for questions.
            let asks = !args.stdio && io::stdin().is_terminal() && trust::can_ask_user();
            // The launcher's first process takes some milliseconds to start, the same time as reading the manifest.
            let ahead = Launcher::default();
            ahead.start_fork_server();
            let blueprint = ResolvedConfig::with_config(manifest, load()?).await?;
            blueprint
                .launched_by(ahead)
                .with_consent(args.trust, asks)
                .await?
        }
        (None, Some(_)) if args.stdio => {
            bail!("`--listen` beside `--stdio` needs a CLAW: which agent would be behind the address?")
        }
        (None, Some(_)) => ResolvedConfig::of_atlases(load()?).await?,
        (None, None) => return Ok(None),
    };
    blueprint.atlases.served |= args.listen.is_some();
    Ok(Some(blueprint))
}

/// Adds `--atlas` and `--simulate` to the file's settings.
fn with_flags(args: &Args, mut config: Config) -> Result<Config> {
    for path in &args.atlases {
        // Paths in the file are relative to its folder; paths on the command line to the current directory.
        config.settings.atlases.paths.push(std::path::absolute(path)?);
    }
    config.settings.atlases.simulate |= args.simulate;
    config.settings.doors.dir.served = args.dir.as_deref().map(std::path::absolute).transpose()?;
    config.activity = match args.activity_format() {
        LogFormat::Off => None,
        format => Some(ActivitySettings {
            format,
            opened: CancellationToken::new(),
        }),
    };
    Ok(config.with_outside_access(args.outside))
}

impl Args {
    /// Returns whether the command line names an entry point.
    const fn has_door(&self) -> bool {
        let queues = self.nats.is_some() || self.redis.is_some();
        self.stdio || self.mcp || self.listen.is_some() || self.dir.is_some() || queues
    }

    /// Returns the format of the activity log. A launcher may show standard error to a person or read it, so it gets none unless
    /// asked (R25).
    fn activity_format(&self) -> LogFormat {
        let usual = if self.has_launcher() {
            LogFormat::Off
        } else {
            LogFormat::Text
        };
        self.log_format.unwrap_or(usual)
    }

    /// Returns whether a launcher uses standard input. Standard error is then quiet by default (R25).
    pub(super) const fn has_launcher(&self) -> bool {
        self.stdio || self.mcp
    }
}

/// Serves the launcher's connection, whose end ends the host. Without a launcher, waits until the host ends.
async fn serve_stdio(
    args: &Args,
    host: &AgentHost,
    launched: Option<&Arc<LaunchedAgentFactory>>,
    cancel: CancellationToken,
) {
    if !args.has_launcher() {
        return cancel.cancelled().await;
    }
    let (input, output) = clawk_server::standard_streams();
    if let (true, Some(launched)) = (args.mcp, launched) {
        let traces = crate::http::trace_reader(launched.state());
        return clawk_server::serve_mcp(
            input,
            output,
            host.clone(),
            traces,
            ClientRights::for_launcher(),
            cancel,
        )
        .await;
    }
    let ended = clawk_server::serve(input, output, host.clone(), ClientRights::for_launcher(), cancel).await;
    tracing::info!(by = ?ended.by, drained = ended.drained, "the launcher's connection has ended");
}

/// SIGTERM and SIGINT request a normal end. A second signal changes nothing.
pub(crate) fn cancelled_by_signals() -> Result<CancellationToken> {
    let cancel = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let fired = cancel.clone();
    #[expect(
        clippy::disallowed_methods,
        reason = "lives as long as the process and only fires a token"
    )]
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        fired.cancel();
    });
    Ok(cancel)
}
