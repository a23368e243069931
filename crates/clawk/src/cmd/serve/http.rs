//! `clawk serve --http`: CRA over HTTP, with a claw or with Atlases alone.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clawk_server::{AgentFactory as _, Current};
use tokio_util::sync::CancellationToken;

use super::factory::Launched;
use super::{Args, stdio, with_flags};
use crate::compose::{self, Blueprint};
use crate::config::Config;
use crate::out;

/// How long the end waits for what is in flight, milliseconds.
const DRAIN_MS: u64 = 5_000;

/// Serves until a signal, or the other side of `--stdio`, ends it.
pub(super) async fn serve(
    args: &Args,
    config: Option<&Path>,
    address: SocketAddr,
    current: Current,
    cancel: CancellationToken,
) -> Result<ExitCode> {
    let config = with_flags(args, Config::load(config, args.manifest.as_deref())?)?;
    let mut blueprint = match &args.manifest {
        Some(manifest) => Blueprint::with_config(manifest, config).await?,
        None if args.stdio => {
            bail!("`--http` beside `--stdio` needs a CLAW: which agent would the API be of?")
        }
        None => Blueprint::of_atlases(config).await?,
    };
    blueprint.atlases.served = true;
    if let Some(warning) = &blueprint.warning {
        tracing::warn!("{warning}");
    }
    let (settings, secrets) = (blueprint.config.settings.http.clone(), blueprint.resolver.clone());
    let launched = Arc::new(Launched::new(blueprint, args.state.as_deref()).await?);
    let http = crate::http::bind(address, &settings, &secrets, current.clone(), launched.state()).await?;
    if !args.stdio {
        // With `--stdio`, `claw.initialize` starts it; until then the API answers 503.
        let kernel = launched.start(None).await?;
        for line in compose::unknown_effects(&kernel).await? {
            out::note(&line);
        }
        current.set(kernel);
        out::note(&format!("serving CRA on http://{}", http.address()));
    }
    if let Some(warning) = http.warning() {
        out::note(&format!("warning: {warning}"));
    }
    let over = CancellationToken::new();
    let mut control = pin!(launched.control(&current)?.serve(over.clone()));
    let mut serving = pin!(async {
        if args.stdio {
            let ended = cancel.child_token();
            let mut http = pin!(http.serve(ended.clone()));
            let mut lines = pin!(stdio(Arc::clone(&launched) as _, current.clone(), cancel.clone()));
            tokio::select! {
                () = &mut lines => {}
                () = &mut http => lines.await,
            }
            ended.cancel();
        } else {
            http.serve(cancel.clone()).await;
        }
    });
    tokio::select! {
        () = &mut serving => {}
        () = &mut control => serving.await,
    }
    if let Some(kernel) = current.get() {
        kernel.shutdown("the service ends", DRAIN_MS).await;
    }
    over.cancel();
    launched.close().await;
    Ok(ExitCode::SUCCESS)
}
