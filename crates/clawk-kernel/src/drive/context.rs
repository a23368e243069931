//! Context files on the record before a turn uses them: those that changed since the session's record last told of them, and those that
//! hold untrusted text. So a replay shows each turn the files as they were.

use std::collections::BTreeMap;

use clawk_events::payload::{ContextRead, SessionStarted};
use clawk_proto::{Digest, MessageId};

use super::TurnServices;
use crate::event::{Draft, Thread, digest, kind};
use crate::ports::{JournalError, JournalScan};
use crate::prompt::{self, ContextFiles};
use crate::state::State;
use crate::taint;

/// Digests of context files, by their paths in the manifest; `None`: the file is not there.
pub(crate) type ContextFileDigests = BTreeMap<String, Option<Digest>>;

/// Tells the record of the files that a turn's prompt is about to hold.
///
/// # Errors
/// The journal can't be written or read.
pub(super) async fn note(
    turns: &TurnServices,
    state: &State,
    (thread, message): (&Thread, MessageId),
    files: &ContextFiles,
) -> Result<(), JournalError> {
    let scribe = &turns.calls.scribe;
    let mut drafts = changed(turns, state, (thread, message), files).await?;
    if !files.marked.is_empty() {
        drafts.push(taint::read(
            scribe,
            thread,
            (None, Some(message.0)),
            &files.marked,
        ));
    }
    if !drafts.is_empty() {
        let _ticket = scribe.submit(drafts)?; // the inference, recorded behind it, is waited for
    }
    Ok(())
}

/// The files that are not what the session's record says of them.
async fn changed(
    turns: &TurnServices,
    state: &State,
    (thread, message): (&Thread, MessageId),
    files: &ContextFiles,
) -> Result<Vec<Draft>, JournalError> {
    let calls = &*turns.calls;
    let identity = prompt::identity(&calls.manifest, state.member.as_deref());
    if identity.context_files.is_empty() {
        return Ok(Vec::new());
    }
    let mut known = match state.context() {
        Some(known) => known,
        None => of_record(turns, state).await?,
    };
    // A file may quote a secret that is known here.
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
        let draft = calls.scribe.entry(thread, &payload);
        drafts.push(match (payload.text_hash, content) {
            (Some(hash), Some(content)) => draft.content(hash, content),
            _ => draft,
        });
    }
    state.remember_context(known);
    Ok(drafts)
}

/// What the record of a session that is taken up says of the files. Of another run's agent nothing is known here: its files are told anew.
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
