//! `clawk acp`: the agent in an editor, over standard input and output.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clawk_server::{AgentHost, ClientRights, Options};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::serve::cancelled_by_signals;
use crate::compose::{self, LaunchedAgentFactory, ResolvedConfig};
use crate::config::{AllowOutsideArgs, Config};

/// Flags of `clawk acp`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The manifest
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: PathBuf,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    outside: AllowOutsideArgs,
}

const EXAMPLES: &str = "\
Examples:
  clawk acp claw.yaml      an editor that speaks the Agent Client Protocol starts this

The editor's sessions are sessions of the agent; what a rule asks about is asked in the editor, as an exact grant.
Tools, rules and the sandbox are those of the manifest: the editor's own MCP servers and its file access are not used.
Ends at end of input.";

/// Serves one editor until its input ends.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let runtime = compose::build_runtime()?;
    let (args, config) = (args.clone(), config.map(Path::to_owned));
    let serving = runtime.spawn(async move { serve_agent(&args, config.as_deref()).await });
    let code = runtime.block_on(serving)??;
    // A pending read of standard input can't be cancelled and must not delay the exit.
    runtime.shutdown_background();
    Ok(code)
}

async fn serve_agent(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let cancel = cancelled_by_signals()?;
    let config = Config::load(config, Some(&args.manifest))?.with_outside_access(args.outside);
    let blueprint = ResolvedConfig::with_config(&args.manifest, config).await?;
    let launched = LaunchedAgentFactory::new(blueprint, args.state.as_deref(), None).await?;
    let launched = Arc::new(launched.reaching_providers());
    let host = AgentHost::new(Arc::clone(&launched) as _, Options::default());
    host.start_agent(None).await?;
    let (doors, over) = (TaskTracker::new(), CancellationToken::new());
    doors.spawn(launched.control_socket(&host)?.serve(over.clone()));
    let (input, output) = clawk_server::standard_streams();
    let workdir = launched.resolved_config().workdir.clone();
    tokio::select! {
        () = clawk_server::serve_acp(input, output, host.clone(), ClientRights::for_launcher(), workdir, cancel) => {}
        () = host.wait_stop_request() => {}
    }
    host.close("the editor has gone").await;
    over.cancel();
    doors.close();
    launched.close().await;
    Ok(ExitCode::SUCCESS)
}
