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

#[expect(clippy::too_many_lines, reason = "one way from beginning to end")]
pub(super) fn run(
    which: &StateSelector,
    from: Option<&str>,
    to: &str,
    (claw, config): (Option<&Path>, Option<&Path>),
    format: Format,
) -> Result<ExitCode> {
    let dir = which.find_dir()?;
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
    let old = kept::load_key(from).context("the old key is not found")?;
    let new = kept::load_key(to).context("the new key is not found")?;
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
    let mut report = state.reseal_report();
    report.add_report(undo::seal_anew(&dir.join(UNDO), &vault));
    report.add_report(clawk_channels::seal_conversations_anew(
        &dir.join("channels"),
        &vault,
    ));
    let (folders, of_folders) = FolderScopeView::seal_all_anew(&dir.join("memory"), &Arc::new(vault.clone()));
    report.add_report(of_folders);
    let servers = compose::build_runtime()?.block_on(async {
        let servers = match claw {
            Some(claw) => {
                let blueprint = ResolvedConfig::with_config(claw, Config::load(config, Some(claw))?).await?;
                blueprint.seal_anew(Arc::new(vault.clone()), &mut report).await?
            }
            None => Vec::new(),
        };
        // What could not be sealed may open with the old key yet: the same command tries it again.
        if report.is_complete() {
            state.forget_previous_key().await?;
        }
        Ok::<_, anyhow::Error>(servers)
    })?;
    state.close();
    let faults = || report.faults().iter();
    if format == Format::Json {
        let unsealed: Vec<_> = faults()
            .map(|fault| json!({ "value": fault.value, "why": fault.why }))
            .collect();
        out::print_json(&json!({
            "from": from, "to": to, "folders": folders, "on_servers": servers,
            "unsealed": unsealed, "unsealed_count": report.fault_count(),
        }))?;
    } else if report.is_complete() {
        out::print_line(format!(
            "everything that is encrypted is sealed with `{0}` now; write `[memory] encryption_key = \"{0}\"`, and keep the old key as \
             long as you keep backups",
            one_line(to)
        ))?;
    }
    if report.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    // The report is the whole answer to a program.
    if format == Format::Json {
        return Ok(ExitCode::FAILURE);
    }
    for fault in faults() {
        out::print_note(format!(
            "not sealed: {}: {}",
            one_line(&fault.value),
            one_line(&fault.why)
        ));
    }
    bail!(
        "{} values are as they were, sealed with the old key, damaged or in plain; everything else is sealed with `{1}`. Write `[memory] \
         encryption_key = \"{1}\"`, keep the old key, remove each value that is named or put it back from a backup, and run this again",
        report.fault_count(),
        one_line(to)
    )
}
