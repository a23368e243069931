//! Records context files before a turn uses them: those that changed since the session's last record, and those with untrusted
//! text. A replay then shows each turn the same files.

use std::collections::BTreeMap;

use clawk_events::payload::{ContextRead, SessionStarted};
use clawk_proto::{Digest, MessageId};

use super::TurnServices;
use crate::event::{Draft, Thread, digest, kind};
use crate::ports::{JournalError, JournalScan};
use crate::prompt::{self, ContextFiles};
use crate::state::State;
use crate::taint;

/// Digests of context files, by their paths in the manifest; `None`: the file does not exist.
pub(crate) type ContextFileDigests = BTreeMap<String, Option<Digest>>;

/// Records the files that a turn's prompt will contain.
///
/// # Errors
/// The journal can't be written or read.
pub(super) async fn record_context_files(
    turns: &TurnServices,
    state: &State,
    (thread, message): (&Thread, MessageId),
    files: &ContextFiles,
) -> Result<(), JournalError> {
    let scribe = &turns.calls.scribe;
    let mut drafts = changed_file_drafts(turns, state, (thread, message), files).await?;
    if !files.marked.is_empty() {
        drafts.push(taint::read(
            scribe,
            thread,
            (None, Some(message.0)),
            &files.marked,
        ));
    }
    if !drafts.is_empty() {
        let _ticket = scribe.submit_drafts(drafts)?; // the inference, recorded behind it, is waited for
    }
    Ok(())
}

/// Returns the files that differ from the session's record.
async fn changed_file_drafts(
    turns: &TurnServices,
    state: &State,
    (thread, message): (&Thread, MessageId),
    files: &ContextFiles,
) -> Result<Vec<Draft>, JournalError> {
    let calls = &*turns.calls;
    let identity = prompt::prompt_identity(&calls.manifest, state.member.as_deref());
    if identity.context_files.is_empty() {
        return Ok(Vec::new());
    }
    let mut known = match state.context_digests() {
        Some(known) => known,
        None => of_record(turns, state).await?,
    };
    // A file may quote a known secret.
    let scanner = calls.screens.scanner().without_shapes();
    let mut drafts = Vec::new();
    for file in identity.context_files.values() {
        let text = files.texts.get(file);
        let now = text.map(|text| digest(text.as_bytes()));
        if known.insert(file.clone(), now) == Some(now) {
            continue;
        }
        let content = text.map(|text| match scanner.redact(text) {
            Some((redacted, _)) => redacted.into_bytes(),
            None => text.clone().into_bytes(),
        });
        let payload = ContextRead {
            file: file.to_owned(),
            text_hash: content.as_deref().map(digest),
            turn: message.0,
        };
        let draft = calls.scribe.draft_event(thread, &payload);
        drafts.push(match (payload.text_hash, content) {
            (Some(hash), Some(content)) => draft.with_content(hash, content),
            _ => draft,
        });
    }
    state.remember_context(known);
    Ok(drafts)
}

/// Returns the recorded digests of a resumed session's files. Those of another run's agent are unknown, so its files are recorded
/// again.
async fn of_record(turns: &TurnServices, state: &State) -> Result<ContextFileDigests, JournalError> {
    let mut known = ContextFileDigests::new();
    let scan = JournalScan {
        session: Some(state.id),
        kinds: &[kind::SESSION_STARTED, kind::CONTEXT_READ],
        ..JournalScan::default()
    };
    let looked = turns.calls.scribe.read_each(scan, |event| {
        if event.kind == kind::CONTEXT_READ {
            let told: ContextRead = event.read_as()?;
            known.insert(told.file, told.text_hash);
        } else if event.read_as::<SessionStarted>()?.agent_hash == Some(turns.at_start.agent_hash) {
            known.clone_from(&turns.at_start.context);
        }
        Ok(())
    });
    looked.await?;
    Ok(known)
}
