//! `clawk memory rekey`: encrypts everything again with another key.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clawk_memory::FolderScopeView;
use clawk_recall::seal::SealKeyring;
use clawk_tools::undo;
use serde_json::json;

use crate::compose::{self, ResolvedConfig, UNDO};
use crate::config::Config;
use crate::out::{self, Format, one_line};
use crate::state::StateSelector;
use crate::state::kept::{self, Keys, Options, StateDir, StateError, StateReader};

pub(super) fn run(
    which: &StateSelector,
    from: Option<&str>,
    to: &str,
    (claw, config): (Option<&Path>, Option<&Path>),
    format: Format,
) -> Result<ExitCode> {
    let dir = which.dir()?;
    let Some(references) = StateReader::open(&dir)?.key_references()? else {
        bail!(
            "nothing in `{}` is encrypted, so there is no key to change",
            dir.display()
        );
    };
    // An interrupted earlier run has already written the new reference.
    let recorded = match references.previous {
        Some(previous) if references.current == to => previous,
        Some(_) | None => references.current,
    };
    let from = from.unwrap_or(&recorded);
    let old = kept::key(from).context("the old key is not found")?;
    let new = kept::key(to).context("the new key is not found")?;
    if old == new {
        bail!("`{}` and `{}` name the same key", one_line(from), one_line(to));
    }
    let vault = SealKeyring::new(new).with_older(old);
    let keys = Keys {
        vault: vault.clone(),
        reference: to.to_owned(),
        stores: std::collections::BTreeSet::new(),
    };
    let state = match StateDir::open_with(&dir, Options::default(), Some(keys)) {
        Err(error @ StateError::Locked { .. }) => {
            return Err(error).context("an agent that runs seals with the old key");
        }
        other => other?,
    };
    undo::seal_anew(&dir.join(UNDO), &vault).context("what calls overwrote can't be sealed anew")?;
    clawk_channels::seal_conversations_anew(&dir.join("channels"), &vault)
        .context("the conversations of web pages can't be sealed anew")?;
    let mut folders = FolderScopeView::all(&dir.join("memory"), Some(&Arc::new(vault.clone())))
        .context("the stores in folders can't be read")?;
    for held in &mut folders {
        held.seal_anew()?;
    }
    let servers = compose::runtime()?.block_on(async {
        let servers = match claw {
            Some(claw) => {
                let blueprint = ResolvedConfig::with_config(claw, Config::load(config, Some(claw))?).await?;
                blueprint.seal_anew(Arc::new(vault.clone())).await?
            }
            None => Vec::new(),
        };
        state.forget_previous_key().await?;
        Ok::<_, anyhow::Error>(servers)
    })?;
    state.close();
    if format == Format::Json {
        out::json(&json!({ "from": from, "to": to, "folders": folders.len(), "on_servers": servers }))?;
    } else {
        out::line(&format!(
            "everything that is encrypted is sealed with `{0}` now; write `[memory] encryption_key = \"{0}\"`, and keep the old key as \
             long as you keep backups",
            one_line(to)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
