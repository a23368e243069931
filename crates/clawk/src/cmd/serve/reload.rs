//! SIGHUP: takes up new tokens, or changes nothing and says why.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clawk_manifest::model::Manifest;
use clawk_server::http::Keys;
use serde_json::Value;

use super::{Args, blueprint};
use crate::compose::Launched;
use crate::config::Settings;
use crate::out;

/// Reads `clawk.toml` and the manifest again. Everything is checked before anything is changed.
pub(super) async fn reload(
    args: &Args,
    config: Option<&Path>,
    launched: Option<&Launched>,
    keys: Option<&Keys>,
) {
    let told = match attempt(args, config, launched, keys).await {
        Ok(tokens) => format!("reloaded: {tokens} tokens are in force"),
        Err(error) => format!("not reloaded, nothing is changed: {error:#}"),
    };
    if args.launched() {
        tracing::warn!("{told}"); // standard error is quiet unless asked (R25)
    } else {
        out::note(&told);
    }
}

async fn attempt(
    args: &Args,
    config: Option<&Path>,
    launched: Option<&Launched>,
    keys: Option<&Keys>,
) -> Result<usize> {
    let (Some(launched), Some(keys)) = (launched, keys) else {
        bail!("only the tokens of a listener can be reloaded, and there is no `--listen`");
    };
    let fresh = blueprint(args, config)
        .await?
        .context("there is no manifest to read again")?;
    let running = launched.blueprint();
    let settings = &fresh.config.settings;
    if let Some(key) = differing(&running.config.settings, settings)? {
        bail!("`{key}` in clawk.toml has changed; that takes effect at the next start");
    }
    if *fresh.manifest != *running.manifest {
        let but_policies = Manifest {
            policies: running.manifest.policies.clone(),
            ..(*fresh.manifest).clone()
        };
        // The record names the agent with the policies that judge, so that a replay has them: they hold for a whole run.
        let what = if but_policies == *running.manifest {
            "policies of the manifest have"
        } else {
            "the manifest has"
        };
        bail!("{what} changed; that takes effect at the next start");
    }
    let tokens = settings.http.tokens(&fresh.resolver)?;
    let count = tokens.len();
    keys.replace(tokens)?;
    Ok(count)
}

/// The first table or key, beside the tokens, that is not the same in both.
fn differing(running: &Settings, fresh: &Settings) -> Result<Option<String>> {
    let told = |settings: &Settings| -> Result<Value> {
        let mut value = serde_json::to_value(settings)?;
        if let Some(http) = value.get_mut("http").and_then(Value::as_object_mut) {
            http.remove("tokens");
        }
        Ok(value)
    };
    let (running, fresh) = (told(running)?, told(fresh)?);
    let keys = running.as_object().into_iter().chain(fresh.as_object());
    let differs = |key: &&String| running.get(key.as_str()) != fresh.get(key.as_str());
    Ok(keys.flat_map(serde_json::Map::keys).find(differs).cloned())
}
