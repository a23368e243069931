//! After a restart: restores sessions, resolutions, used limits, and Atlases of the API from the journal.

use std::sync::Arc;

use clawk_carp::execute::IssuedResolution;
use clawk_carp::rate::{BucketSpend, RateLimitBucket};
use clawk_events::payload::{
    AtlasLoaded, AtlasRemoved, CarpLimitsCharged, CarpResolutionIssued, CarpSessionOpened,
};
use clawk_proto::SessionId;
use jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::CarpRuntime;
use super::atlases::{self, AtlasUpload, Origin};
use super::book::{CarpSession, CarpSessions};
use super::event::{CarpSessionDescription, StoredResolution};
use crate::error::StartError;
use crate::event::kind;
use crate::ports::{JournalScan, RecordedEvent};

/// Events read at a time.
const PAGE: usize = 1_000;

/// Restores the data in the journal. Without Atlases and without CRA there is none.
///
/// # Errors
/// The journal can't be read, or an earlier Atlas is not compatible with the configuration's.
pub async fn restore_state(carp: &CarpRuntime) -> Result<(), StartError> {
    if !carp.config.served && carp.is_empty() {
        return Ok(());
    }
    let mut scan = JournalScan {
        kinds: &[
            kind::CARP_SESSION,
            kind::CARP_ISSUED,
            kind::CARP_CHARGED,
            kind::ATLAS_LOADED,
            kind::ATLAS_REMOVED,
            kind::SESSION_ENDED,
        ],
        limit: PAGE,
        with_content: true,
        ..JournalScan::default()
    };
    let at = carp.now();
    loop {
        let page = carp.scribe.journal().scan_events(scan.clone()).await?;
        for event in &page {
            apply_event(carp, event, at)?;
        }
        match page.last() {
            Some(last) if page.len() == PAGE => scan.after_row = last.row,
            Some(_) | None => return Ok(()),
        }
    }
}

/// Applies another host's event: see [`restore_state`].
///
/// # Errors
/// An Atlas that was loaded there over the API can't be loaded here.
pub fn apply_remote_event(carp: &CarpRuntime, event: &RecordedEvent) -> Result<(), StartError> {
    if !carp.config.served && carp.is_empty() {
        return Ok(());
    }
    apply_event(carp, event, carp.now())
}

fn apply_event(carp: &CarpRuntime, event: &RecordedEvent, now: Timestamp) -> Result<(), StartError> {
    let at = Timestamp::from_microsecond(event.at.0).unwrap_or(Timestamp::MIN); // silent-ok: dates of ours are in range
    let served = carp.config.served;
    match event.kind.as_str() {
        kind::CARP_SESSION if served => {
            let opened: CarpSessionOpened = event.read_as()?;
            let about = opened
                .about_hash
                .and_then(|_| parse_content::<CarpSessionDescription>(event));
            let (goal, metadata) = match about {
                Some(about) => (about.goal, about.metadata),
                None if opened.about_hash.is_some() => Default::default(),
                None => (event_text(event), serde_json::Map::new()),
            };
            let mut book = CarpSession::new(opened.agent_id, goal, Some(opened.owner), at);
            book.parent = opened.parent_session_id.map(SessionId);
            book.atlas_id = opened.atlas_id;
            book.metadata = metadata;
            carp.lock_sessions().insert(SessionId(opened.session_id), book);
        }
        kind::SESSION_ENDED => carp.lock_sessions().end_session(event.session, at),
        kind::CARP_ISSUED if served => {
            event.read_as::<CarpResolutionIssued>()?;
            if let Some(kept) = parse_content::<StoredResolution>(event) {
                let issued = IssuedResolution::new(&kept.request, &kept.resolution, at);
                let mut books = carp.lock_sessions();
                // silent-ok: a session that has ended has no live resolutions
                if let Ok(book) = books.live_session(kept.request.requester.session_id) {
                    book.take_request(kept.request.request_id);
                    book.add_resolution(issued, now);
                }
            }
        }
        kind::CARP_CHARGED => {
            let charged: CarpLimitsCharged = event.read_as()?;
            add_charge(&mut carp.lock_sessions(), &charged, at);
        }
        kind::ATLAS_LOADED if served => restore_atlas(carp, event)?,
        kind::ATLAS_REMOVED if served => {
            let before = carp.loaded_atlases();
            // What stands in the configuration by now governs, whatever was removed over the API before.
            let removed: AtlasRemoved = event.read_as()?;
            let after = match before.origins.get(removed.atlas_id.as_str()) {
                Some(Origin::Uploaded { .. }) => atlases::without_atlas(carp, &before, &removed.atlas_id),
                Some(Origin::Configured) | None => atlases::as_before(carp, &before),
            };
            carp.replace_atlases(after.map_err(unserved_error)?);
        }
        _ => {}
    }
    Ok(())
}

/// What was spent was spent, whatever the limit is now.
pub(super) fn add_charge(books: &mut CarpSessions, charged: &CarpLimitsCharged, at: Timestamp) {
    let spends: Vec<BucketSpend> = charged
        .spends
        .iter()
        .map(|spent| BucketSpend {
            bucket: RateLimitBucket {
                key: spent.key.as_str().into(),
                limit: u64::MAX,
                window_seconds: spent.window_seconds,
            },
            amount: spent.amount,
        })
        .collect();
    if let Err(error) = books.ledger.spend(&charged.agent_id, &spends, at) {
        tracing::warn!(%error, "a charge of before could not be taken up");
    }
}

/// Restores an Atlas. If it can't be restored, the agent does not start, because it would be ungoverned.
fn restore_atlas(carp: &CarpRuntime, event: &RecordedEvent) -> Result<(), StartError> {
    let before = carp.loaded_atlases();
    let known: AtlasLoaded = event.read_as()?;
    if before.origins.contains_key(known.atlas_id.as_str()) {
        let after = atlases::as_before(carp, &before).map_err(unserved_error)?;
        carp.replace_atlases(after);
        return Ok(());
    }
    let upload = parse_content::<AtlasUpload>(event).ok_or_else(|| {
        unserved_error(format!(
            "the content of `{} {}` was erased; name a copy of it in `[atlases] paths` of clawk.toml, which then takes its place",
            known.atlas_id, known.version
        ))
    })?;
    let atlas = Arc::new(upload.parse_atlas().map_err(unserved_error)?);
    let after = atlases::with_atlas(carp, &before, &atlas, &known.by, &event.at.to_string())
        .map_err(unserved_error)?;
    carp.replace_atlases(after);
    Ok(())
}

fn unserved_error(cause: impl std::fmt::Display) -> StartError {
    StartError::Unserved(vec![format!(
        "an Atlas that came over the API can't be loaded again: {cause}"
    )])
}

pub(super) fn parse_content<T: DeserializeOwned>(event: &RecordedEvent) -> Option<T> {
    let bytes = &event.content.as_ref()?.bytes;
    serde_json::from_slice(bytes).ok() // silent-ok: erased content is an ordinary state
}

fn event_text(event: &RecordedEvent) -> String {
    let bytes = event.content.as_ref().map(|content| content.bytes.clone());
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_default() // silent-ok: erased content is an ordinary state
}
