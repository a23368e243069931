//! Screening of messages, memory and peers' text when they arrive.

use clawk_manifest::model::ScanAction;
use clawk_proto::method::{MemoryEntry, NewEntry};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::InjectionClassifier;
use crate::event::canonical;
use crate::screen::{
    InjectionJudge, InjectionSuspicion, ScreeningPass, ScreeningRefusal, action_name, secret_refusal,
};

/// Screens a message from a person or a peer. Returns its storable text, or a refusal.
pub(crate) async fn screen_message(
    classifier: &InjectionClassifier,
    look: &mut ScreeningPass<'_>,
    text: String,
    cancel: &CancellationToken,
) -> Result<String, ScreeningRefusal> {
    let screens = look.screens;
    let scanner = screens.scanner();
    if let Err(finding) = screens.rules.input.check_input(&text) {
        return Err(look.record_fault(&finding, &scanner));
    }
    let text = screen_secrets(look, text).await?;
    match classifier.find_suspicion(look, &text, cancel).await {
        // A person's message is not data, so it is not marked. The person and the trace are told.
        InjectionSuspicion::Passes(_) => Ok(text),
        InjectionSuspicion::Blocked(detail) => Err(injection_refusal(detail)),
    }
}

fn injection_refusal(detail: String) -> ScreeningRefusal {
    let reason = "prompt_injection";
    ScreeningRefusal { reason, detail }
}

/// Handles secrets in incoming text as the policies require.
async fn screen_secrets(look: &mut ScreeningPass<'_>, text: String) -> Result<String, ScreeningRefusal> {
    let (scanner, action) = look.screens.inbound_scan();
    let Some((clean, tally)) = scanner.redact(&text) else {
        return Ok(text);
    };
    look.record_secrets(&tally, action_name(action)).await;
    match action {
        ScanAction::Redact => Ok(clean),
        // Secrets that the operator gave this agent are removed, even if a policy only warns.
        ScanAction::Warn => Ok(scanner
            .without_shapes()
            .redact(&text)
            .map_or(text, |(clean, _told)| clean)),
        ScanAction::Block => Err(secret_refusal(&tally)),
    }
}

/// Validates an incoming JSON value and handles its secrets as the policies require.
pub(crate) async fn value_in(
    look: &mut ScreeningPass<'_>,
    value: &mut Value,
) -> Result<(), ScreeningRefusal> {
    let screens = look.screens;
    if !screens.rules.input.is_empty()
        && let Err(finding) = screens.rules.input.check_json(value, canonical(value).len())
    {
        return Err(look.record_fault(&finding, &screens.scanner()));
    }
    let (scanner, action) = screens.inbound_scan();
    if scanner.is_idle() {
        return Ok(());
    }
    let mut clean = value.clone();
    let tally = scanner.redact_json(&mut clean);
    if tally.is_empty() {
        return Ok(());
    }
    look.record_secrets(&tally, action_name(action)).await;
    match action {
        ScanAction::Redact => *value = clean,
        ScanAction::Warn => known_out(look, value),
        ScanAction::Block => return Err(secret_refusal(&tally)),
    }
    Ok(())
}

/// Screens entries before they are stored.
pub(crate) async fn screen_new_entries(
    look: &mut ScreeningPass<'_>,
    entries: &mut [NewEntry],
) -> Result<(), ScreeningRefusal> {
    for entry in entries {
        let mut value = serde_json::to_value(&*entry).unwrap_or_default(); // silent-ok: plain structs always serialise
        let before = value.clone();
        value_in(look, &mut value).await?;
        if value != before
            && let Ok(clean) = serde_json::from_value(value)
        {
            *entry = clean;
        }
    }
    Ok(())
}

/// Screens found entries before anybody reads them.
pub(crate) async fn screen_found_entries(
    classifier: &InjectionClassifier,
    look: &mut ScreeningPass<'_>,
    entries: &mut [MemoryEntry],
    cancel: &CancellationToken,
) {
    for entry in entries {
        let (scanner, action) = look.screens.outbound_scan();
        let mut found = clawk_policy::leak::LeakTally::default();
        let mut clean = entry.clone();
        for part in [Some(&mut clean.content), clean.metadata.as_mut()]
            .into_iter()
            .flatten()
        {
            found.join(&scanner.redact_json(part));
        }
        if let Some((key, tally)) = clean.key.as_deref().and_then(|key| scanner.redact(key)) {
            clean.key = Some(key);
            found.join(&tally);
        }
        if !found.is_empty() {
            look.record_secrets(&found, action_name(action)).await;
            match action {
                ScanAction::Redact => *entry = clean,
                ScanAction::Block => withhold_entry(entry, &secret_refusal(&found).detail),
                ScanAction::Warn => known_out(look, &mut entry.content),
            }
        }
        let said = match &entry.content {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match classifier.find_suspicion(look, &said, cancel).await {
            InjectionSuspicion::Passes(None) => {}
            InjectionSuspicion::Passes(Some(mark)) => {
                entry.content = Value::String(format!("{mark}\n{said}"))
            }
            InjectionSuspicion::Blocked(detail) => withhold_entry(entry, &detail),
        }
    }
}

/// Removes known secrets, even if a policy only warns.
fn known_out(look: &ScreeningPass<'_>, value: &mut Value) {
    let _told = look.screens.scanner().without_shapes().redact_json(value); // told already, with the others
}

fn withhold_entry(entry: &mut MemoryEntry, why: &str) {
    entry.content = Value::String(format!("[withheld: {why}]"));
    entry.metadata = None;
}

/// Screens a peer's text before it is added to a prompt.
pub(crate) async fn peer_text(
    classifier: &InjectionClassifier,
    look: &mut ScreeningPass<'_>,
    text: String,
    cancel: &CancellationToken,
) -> Result<String, ScreeningRefusal> {
    let screens = look.screens;
    if let Err(finding) = screens.rules.input.check_input(&text) {
        return Err(look.record_fault(&finding, &screens.scanner()));
    }
    let text = screen_secrets(look, text).await?;
    match classifier.find_suspicion(look, &text, cancel).await {
        InjectionSuspicion::Passes(None) => Ok(text),
        InjectionSuspicion::Passes(Some(mark)) => Ok(format!("{mark}\n{text}")),
        InjectionSuspicion::Blocked(detail) => Err(injection_refusal(detail)),
    }
}

/// Removes secrets from a peer's value before it is stored, as from results.
pub(crate) async fn peer_value(look: &mut ScreeningPass<'_>, value: &mut Value) {
    let (scanner, action) = look.screens.outbound_scan();
    if scanner.is_idle() {
        return;
    }
    let mut clean = value.clone();
    let tally = scanner.redact_json(&mut clean);
    if tally.is_empty() {
        return;
    }
    look.record_secrets(&tally, action_name(action)).await;
    match action {
        ScanAction::Redact | ScanAction::Block => *value = clean,
        ScanAction::Warn => known_out(look, value),
    }
}
