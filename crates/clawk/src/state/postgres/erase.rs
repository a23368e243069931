//! Erases content of a state on a server, on the record. The rules are the same as for a state in a directory.

use std::collections::{BTreeMap, BTreeSet};

use clawk_events::payload::{AtlasLoaded, AtlasRemoved};
use clawk_events::{EventError, kind};
use clawk_kernel::ports::{Batch, JournalError, JournalScan, RecordedEvent};
use clawk_kernel::time::Clock;
use clawk_postgres::{ContentRemoval, ErasedReference, PgReader, PgStateError};
use clawk_proto::{Digest, SessionId};
use clawk_store::{ErasureResult, ErasureSelection, redaction_entries};

use super::dir::RemoteState;

/// Number of rows that one commit of an expiry examines.
const EXPIRY_ROWS: i64 = 2000;
/// Event types for loading and removing Atlases.
const ATLASES: [&str; 2] = [kind::ATLAS_LOADED, kind::ATLAS_REMOVED];

pub(super) async fn erase_contents(
    remote: &RemoteState,
    what: ErasureSelection,
    (reason, by): (&str, &str),
    clock: &dyn Clock,
) -> Result<ErasureResult, JournalError> {
    let reader = remote.reader();
    let found = plan_erasure(&reader, what).await;
    let (gone, mut erased, removal) = found.map_err(|error| JournalError::Unreadable(error.to_string()))?;
    erased.contents = u64::try_from(removal.digests.len()).unwrap_or(u64::MAX);
    let record = Batch {
        entries: redaction_entries(&gone, what, reason, by, clock)?,
        ..Batch::default()
    };
    remote.state.remove(record, removal).await?;
    Ok(erased)
}

type ErasurePlan = (BTreeMap<SessionId, Vec<Digest>>, ErasureResult, ContentRemoval);

async fn plan_erasure(reader: &PgReader, what: ErasureSelection) -> Result<ErasurePlan, PgStateError> {
    let upto = reader.last_row().await?;
    let (mut mark, mut more) = (None, false);
    let candidates: Vec<ErasedReference> = match what {
        ErasureSelection::Before(time) => {
            let (due, last, again) = reader.expired_events(time, EXPIRY_ROWS).await?;
            (mark, more) = (last, again);
            due
        }
        ErasureSelection::Session(session) => reader.with_content(Some(session), None, None).await?,
        ErasureSelection::Event(session, sequence) => {
            let of_event = reader.with_content(Some(session), Some(sequence), None).await?;
            match of_event.first() {
                Some((_, _, digest)) => reader.with_content(Some(session), None, Some(*digest)).await?,
                None => Vec::new(),
            }
        }
        // Refers to content named in this session; it is erased everywhere.
        ErasureSelection::Digest(session, digest) => {
            reader.with_content(Some(session), None, Some(digest)).await?
        }
    };
    let (of, before) = match what {
        ErasureSelection::Session(session) | ErasureSelection::Event(session, _) => (Some(session), None),
        ErasureSelection::Digest(..) => (None, None),
        ErasureSelection::Before(time) => (None, Some(time)),
    };
    let digests: BTreeSet<Digest> = candidates.iter().map(|(_, _, digest)| *digest).collect();
    let all: Vec<Digest> = digests.iter().copied().collect();
    let elsewhere = reader.referred_elsewhere(&all, of, before, upto).await?;
    let in_force = atlases_in_force(reader).await?;
    let mut erased = ErasureResult {
        more,
        ..ErasureResult::default()
    };
    let mut going = BTreeSet::new();
    for digest in digests {
        if in_force.contains(&digest) {
            erased.in_force += 1;
        } else if elsewhere.contains(&digest) {
            erased.kept += 1;
        } else if reader.stored_content(digest).await?.is_some() {
            going.insert(digest);
        }
    }
    let mut gone: BTreeMap<SessionId, Vec<Digest>> = BTreeMap::new();
    let mut left = going.clone();
    for (_, session, digest) in &candidates {
        if left.remove(digest) {
            gone.entry(*session).or_default().push(*digest);
        }
    }
    let removal = ContentRemoval {
        digests: going.into_iter().collect(),
        upto,
        mark,
    };
    Ok((gone, erased, removal))
}

/// Returns the error for an unreadable event on which the result depends.
fn unreadable_event(event: &RecordedEvent, error: &EventError) -> PgStateError {
    PgStateError::Broken(format!(
        "event {} of session {} can't be read: {error}",
        event.sequence, event.session
    ))
}

/// Returns the contents from which the next start reloads Atlases of the API. They must not be erased, because the Atlases would no
/// longer govern.
async fn atlases_in_force(reader: &PgReader) -> Result<BTreeSet<Digest>, PgStateError> {
    let mut loaded: BTreeMap<String, Digest> = BTreeMap::new();
    let mut after_row = 0;
    loop {
        let page = reader
            .recorded_events(&JournalScan {
                after_row,
                kinds: &ATLASES,
                with_content: true,
                limit: 100,
                ..JournalScan::default()
            })
            .await?;
        let Some(last) = page.last() else { break };
        after_row = last.row;
        for event in &page {
            // An unreadable event might load an Atlas by the content to erase. Then nothing is erased.
            if event.kind == kind::ATLAS_REMOVED {
                let removed = AtlasRemoved::read(&event.kind, &event.payload);
                loaded.remove(&removed.map_err(|error| unreadable_event(event, &error))?.atlas_id);
            } else if let Some(content) = &event.content {
                let atlas = AtlasLoaded::read(&event.kind, &event.payload);
                let atlas = atlas.map_err(|error| unreadable_event(event, &error))?;
                loaded.insert(atlas.atlas_id, content.digest);
            }
        }
    }
    Ok(loaded.into_values().collect())
}
