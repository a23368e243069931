//! `clawk serve`: the agent as a service.

mod factory;
mod http;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clawk_server::{AgentFactory, Current, Options};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::compose::{self, Blueprint};
use crate::config::{Config, Outside};
use factory::{Launched, Wired};

/// Flags of `clawk serve`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("transport").required(true).multiple(true).args(["stdio", "http"])))]
pub(crate) struct Args {
    /// The manifest; without one, the manifest that `claw.initialize` brings becomes the agent's
    #[arg(value_name = "CLAW")]
    manifest: Option<PathBuf>,

    /// Speak JSON-RPC on standard input and output, one message a line
    #[arg(long)]
    stdio: bool,

    /// Serve the CRA API on this address; without a CLAW, the Atlases alone govern
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,

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

    #[command(flatten)]
    outside: Outside,
}

const EXAMPLES: &str = "\
Examples:
  clawk serve claw.yaml --stdio      this agent, until end of input or SIGTERM
  clawk serve --stdio                whatever agent the other side initializes
  clawk serve claw.yaml --http 127.0.0.1:8420
  clawk serve --http 127.0.0.1:8420 --atlas examples/atlas --simulate

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
    let cancel = cancelled_by_signals()?;
    let current = Current::default();
    if let Some(address) = args.http {
        return http::serve(args, config, address, current, cancel).await;
    }
    match &args.manifest {
        Some(manifest) => {
            let config = with_flags(args, Config::load(config, Some(manifest))?)?;
            let blueprint = Blueprint::with_config(manifest, config).await?;
            if let Some(warning) = &blueprint.warning {
                tracing::warn!("{warning}"); // standard error is quiet unless asked (R25)
            }
            let launched = Arc::new(Launched::new(blueprint, args.state.as_deref()).await?);
            let over = CancellationToken::new();
            let mut control = pin!(launched.control(&current)?.serve(over.clone()));
            let mut serving = pin!(stdio(Arc::clone(&launched) as _, current, cancel));
            tokio::select! {
                () = &mut serving => {}
                () = &mut control => serving.await,
            }
            over.cancel();
            launched.close().await;
        }
        None => {
            if args.outside.allow_outside && args.manifest_root.is_none() {
                bail!(
                    "`--allow-outside` needs a CLAW or `--manifest-root DIR`: without them no file is read"
                );
            }
            let config = with_flags(args, Config::load(config, None)?)?;
            let wired = Arc::new(Wired::new(config, args.state.clone(), args.manifest_root.clone()));
            stdio(Arc::clone(&wired) as _, current, cancel).await;
            wired.close().await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `--atlas` and `--simulate` beside what the file says.
fn with_flags(args: &Args, mut config: Config) -> Result<Config> {
    for path in &args.atlases {
        // The file's paths are relative to its folder, the command line's to where we are.
        config.settings.atlases.paths.push(std::path::absolute(path)?);
    }
    config.settings.atlases.simulate |= args.simulate;
    Ok(config.outside(args.outside))
}

async fn stdio(factory: Arc<dyn AgentFactory>, current: Current, cancel: CancellationToken) {
    let (input, output) = clawk_server::standard();
    let ended = clawk_server::serve(input, output, factory, current, Options::default(), cancel).await;
    tracing::info!(by = ?ended.by, drained = ended.drained, "the connection has ended");
}

/// SIGTERM, SIGINT and SIGHUP ask for an orderly end; a second one is no different.
fn cancelled_by_signals() -> Result<CancellationToken> {
    let cancel = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let fired = cancel.clone();
    #[expect(
        clippy::disallowed_methods,
        reason = "lives as long as the process and only fires a token"
    )]
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        fired.cancel();
    });
    Ok(cancel)
}
