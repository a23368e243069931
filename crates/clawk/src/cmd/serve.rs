//! `clawk serve`: the agent as a service.

mod reload;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clawk_server::http::Keys;
use clawk_server::{Host, Options, Rights};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::compose::{self, Blueprint, Launched, Source, Wired};
use crate::config::Config;
use crate::out;

/// How long work in flight may take when the service ends, milliseconds; with a launcher, which may wait for its answers.
const DRAIN_MS: u64 = 5_000;
const STDIO_DRAIN_MS: u64 = 30_000;
/// How long clients may take to go once the agent has ended.
const DOORS_END: Duration = Duration::from_secs(15);

/// Flags of `clawk serve`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("transport").required(true).multiple(true).args(["stdio", "listen"])))]
pub(crate) struct Args {
    /// The manifest; without one, the manifest that `claw.initialize` brings becomes the agent's
    #[arg(value_name = "CLAW")]
    manifest: Option<PathBuf>,

    /// Speak JSON-RPC on standard input and output, one message a line
    #[arg(long)]
    stdio: bool,

    /// Listen on this address: the CRA API and health, as `[http] doors` says; without a CLAW, the Atlases alone govern
    #[arg(long, value_name = "ADDR", visible_alias = "http")]
    listen: Option<SocketAddr>,

    /// Folders that hold an `atlas.json`, or such files, beside those of `[atlases] paths`
    #[arg(long = "atlas", value_name = "PATH")]
    atlases: Vec<PathBuf>,

    /// Answer actions that nothing runs with their parameters, instead of an error; nothing is done
    #[arg(long)]
    simulate: bool,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Folder that file references of a manifest on the wire may point into; without it they are refused
    #[arg(long, value_name = "DIR", conflicts_with = "manifest")]
    manifest_root: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  clawk serve claw.yaml --stdio      this agent, until end of input or SIGTERM
  clawk serve --stdio                whatever agent the other side initializes
  clawk serve claw.yaml --listen 127.0.0.1:8420
  clawk serve claw.yaml --stdio --listen 127.0.0.1:8420    both at once
  clawk serve --listen 127.0.0.1:8420 --atlas examples/atlas --simulate

Any number of clients share the agent: what one does, the others can see. Processes of the same user speak the
protocol on `control.sock` in the state directory, as `clawk send` does. A client that goes away ends its own
connection only; the end of standard input ends the agent.

Before anything is served, a sandbox of each level that the agent's tools need is started and looked at from
inside. One that this host can't give keeps the agent from starting: the message says what is missing and what
mends it. Of an agent that comes over the wire, `claw.initialize` is refused with -32010.";

/// Serves until the other side ends, or a signal asks to.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let runtime = compose::runtime()?;
    let (args, config) = (args.clone(), config.map(Path::to_owned));
    // On a worker, where its input and its answers wake it without a change of threads.
    let serving = runtime.spawn(async move { serve(&args, config.as_deref()).await });
    let code = runtime.block_on(serving)??;
    // A read of standard input that is under way can't be cancelled; it must not hold up the end.
    runtime.shutdown_background();
    Ok(code)
}

async fn serve(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let (cancel, mut hangups) = (cancelled_by_signals()?, signal(SignalKind::hangup())?);
    let source = match blueprint(args, config).await? {
        Some(blueprint) => {
            if let Some(warning) = &blueprint.warning {
                tracing::warn!("{warning}"); // standard error is quiet unless asked (R25)
            }
            let launched = Launched::new(blueprint, args.state.as_deref(), None).await?;
            Source::Launched(Arc::new(launched))
        }
        None => {
            let config = with_flags(args, Config::load(config, None)?)?;
            let wired = Wired::new(config, args.state.clone(), args.manifest_root.clone());
            Source::Wired(Arc::new(wired))
        }
    };
    let options = Options {
        drain_timeout_ms: if args.stdio { STDIO_DRAIN_MS } else { DRAIN_MS },
        ..Options::default()
    };
    let host = Host::new(source.factory(), options);
    let doors = match source.launched() {
        Some(launched) => open(args, launched, &host).await?,
        None => Doors::default(),
    };
    {
        let mut serving = pin!(stdio(args, &host, cancel.clone()));
        loop {
            tokio::select! {
                () = &mut serving => break,
                () = host.stopping(), if !cancel.is_cancelled() => cancel.cancel(),
                Some(()) = hangups.recv() => {
                    let launched = source.launched().map(|launched| &**launched);
                    reload::reload(args, config, launched, doors.keys.as_ref()).await;
                }
            }
        }
    }
    doors.close(&host).await;
    source.close().await;
    Ok(ExitCode::SUCCESS)
}

/// The agent of the manifest, or of the Atlases alone; none: it comes over the wire.
async fn blueprint(args: &Args, config: Option<&Path>) -> Result<Option<Blueprint>> {
    let load = || with_flags(args, Config::load(config, args.manifest.as_deref())?);
    let mut blueprint = match (&args.manifest, args.listen) {
        (Some(manifest), _) => Blueprint::with_config(manifest, load()?).await?,
        (None, Some(_)) if args.stdio => {
            bail!("`--listen` beside `--stdio` needs a CLAW: which agent would be behind the address?")
        }
        (None, Some(_)) => Blueprint::of_atlases(load()?).await?,
        (None, None) => return Ok(None),
    };
    blueprint.atlases.served |= args.listen.is_some();
    Ok(Some(blueprint))
}

/// The doors beside standard input: they serve by themselves until they are closed.
#[derive(Debug, Default)]
struct Doors {
    tasks: TaskTracker,
    /// Replaces the listener's tokens.
    keys: Option<Keys>,
    /// The listener takes nothing new.
    listening: CancellationToken,
    /// The control socket's clients are let go.
    over: CancellationToken,
}

/// Opens the control socket and the listener; behind a listener the agent starts at once, behind standard input alone with
/// the first `claw.initialize`.
async fn open(args: &Args, launched: &Launched, host: &Host) -> Result<Doors> {
    let mut doors = Doors::default();
    let control = launched.control(host)?;
    if let Some(address) = args.listen {
        let blueprint = launched.blueprint();
        let settings = &blueprint.config.settings.http;
        let listener = crate::http::bind(
            address,
            settings,
            &blueprint.resolver,
            host.clone(),
            launched.state(),
        )
        .await?;
        let kernel = host.start(None).await?;
        if !args.stdio {
            for line in compose::unknown_effects(&kernel).await? {
                out::note(&line);
            }
            out::note(&format!("serving CRA on http://{}", listener.address()));
        }
        if let Some(warning) = listener.warning() {
            out::note(&format!("warning: {warning}"));
        }
        doors.keys = Some(listener.keys());
        doors.tasks.spawn(listener.serve(doors.listening.clone()));
    }
    doors.tasks.spawn(control.serve(doors.over.clone()));
    Ok(doors)
}

impl Doors {
    /// Ends the agent, then lets the clients go: each gets the answers that the agent still had for it.
    async fn close(self, host: &Host) {
        self.listening.cancel();
        host.close("the service ends").await;
        self.over.cancel();
        self.tasks.close();
        if tokio::time::timeout(DOORS_END, self.tasks.wait()).await.is_err() {
            tracing::warn!("a door did not end in time");
        }
    }
}

/// `--atlas` and `--simulate` beside what the file says.
fn with_flags(args: &Args, mut config: Config) -> Result<Config> {
    for path in &args.atlases {
        // The file's paths are relative to its folder, the command line's to where we are.
        config.settings.atlases.paths.push(std::path::absolute(path)?);
    }
    config.settings.atlases.simulate |= args.simulate;
    Ok(config)
}

/// The launcher's connection, whose end is the end of the host; without one, until the host ends.
async fn stdio(args: &Args, host: &Host, cancel: CancellationToken) {
    if !args.stdio {
        return cancel.cancelled().await;
    }
    let (input, output) = clawk_server::standard();
    let ended = clawk_server::serve(input, output, host.clone(), Rights::launcher(), cancel).await;
    tracing::info!(by = ?ended.by, drained = ended.drained, "the launcher's connection has ended");
}

/// SIGTERM and SIGINT ask for an orderly end; a second one is no different.
fn cancelled_by_signals() -> Result<CancellationToken> {
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
