//! SIGHUP: reloads tokens, channels and policies. On an error it changes nothing and reports the reason.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clawk_manifest::model::Manifest;
use clawk_server::AgentHost;
use serde_json::Value;

use super::doors::{OpenDoors, public_hosts};
use super::{Args, is_reachable, resolve_config};
use crate::compose::{LaunchedAgentFactory, ResolvedConfig};
use crate::config::Settings;
use crate::out;

/// Tables of `clawk.toml` that a new run of the agent reloads.
const OF_A_RUN: [&str; 2] = ["channels", "approvals"];

/// Reads `clawk.toml` and the manifest again, and checks everything before it changes anything. New tokens apply at once. Changed
/// channels or policies need a new run of the agent, because a run is recorded with the policies that govern it.
pub(super) async fn reload_config(
    args: &Args,
    config: Option<&Path>,
    launched: Option<&LaunchedAgentFactory>,
    host: &AgentHost,
    doors: &mut OpenDoors,
) {
    let told = match try_reload(args, config, launched, host, doors).await {
        Ok(told) => format!("reloaded: {told}"),
        Err(error) => format!("not reloaded; the old settings stay in force: {error:#}"),
    };
    if args.has_launcher() {
        tracing::warn!("{told}"); // standard error is quiet unless asked (R25)
    } else {
        out::print_note(&told);
    }
}

async fn try_reload(
    args: &Args,
    config: Option<&Path>,
    launched: Option<&LaunchedAgentFactory>,
    host: &AgentHost,
    doors: &mut OpenDoors,
) -> Result<String> {
    let launched = launched.context("there is no manifest to read again: the agent came over the wire")?;
    let fresh = resolve_config(args, config)
        .await?
        .context("there is no manifest to read again")?;
    let running = launched.resolved_config();
    let parts = new_parts(&running, &fresh)?;
    let tokens = match doors.keys() {
        Some(_) => fresh.config.settings.http.resolve_tokens(&fresh.resolver)?,
        None => Vec::new(),
    };
    let count = tokens.len();
    if !parts.is_empty() {
        if !is_reachable(args, launched, &fresh) {
            bail!("nothing would reach the agent any more");
        }
        if args.listen.is_some() && public_hosts(&fresh) != public_hosts(&running) {
            bail!("a channel's `public_url` names another host; that takes effect at the next start");
        }
        let fresh = fresh.continue_from(&running);
        launched.check_start(&fresh).await?;
        doors.next_run(args, launched, host, fresh).await?;
    }
    if let Some(keys) = doors.keys() {
        keys.replace_tokens(tokens)?;
    }
    Ok(match (parts.as_slice(), doors.keys()) {
        ([], Some(_)) => format!("{count} tokens are in force"),
        ([], None) => "nothing has changed".to_owned(),
        (parts, _) => format!("a new run has begun with the new {}", parts.join(" and ")),
    })
}

/// Returns the reloadable parts that differ between the running and the fresh configuration.
///
/// # Errors
/// Another part differs, which only a restart can apply.
fn new_parts(running: &ResolvedConfig, fresh: &ResolvedConfig) -> Result<Vec<&'static str>> {
    let tables = changed_settings(&running.config.settings, &fresh.config.settings)?;
    if let Some(key) = tables.iter().find(|key| !OF_A_RUN.contains(&key.as_str())) {
        bail!("`{key}` in clawk.toml has changed; that takes effect at the next start");
    }
    let (was, is) = (&*running.manifest, &*fresh.manifest);
    let but_these = Manifest {
        policies: was.policies.clone(),
        channels: was.channels.clone(),
        ..is.clone()
    };
    if but_these != *was {
        bail!(
            "more of the manifest has changed than its channels and policies; that takes effect at the next start"
        );
    }
    let mut parts = Vec::new();
    if was.channels != is.channels || tables.iter().any(|key| OF_A_RUN.contains(&key.as_str())) {
        parts.push("channels");
    }
    if was.policies != is.policies {
        parts.push("policies");
    }
    Ok(parts)
}

/// Returns the tables and keys that differ, without the tokens.
fn changed_settings(running: &Settings, fresh: &Settings) -> Result<Vec<String>> {
    let told = |settings: &Settings| -> Result<Value> {
        let mut value = serde_json::to_value(settings)?;
        if let Some(http) = value.get_mut("http").and_then(Value::as_object_mut) {
            http.remove("tokens");
        }
        Ok(value)
    };
    let (running, fresh) = (told(running)?, told(fresh)?);
    let keys = running.as_object().into_iter().chain(fresh.as_object());
    let mut differ: Vec<String> = keys
        .flat_map(serde_json::Map::keys)
        .filter(|key| running.get(key.as_str()) != fresh.get(key.as_str()))
        .cloned()
        .collect();
    differ.sort_unstable();
    differ.dedup();
    Ok(differ)
}
