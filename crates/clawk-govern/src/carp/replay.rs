//! The Atlases' data for a replay: which were in force, their sources, and the changes by other sessions.

use std::sync::Arc;

use clawk_carp::{Atlas, InputFaults};
use clawk_events::payload::{AtlasDescribed, AtlasLoaded, AtlasRemoved, CarpLimitsCharged};
use clawk_proto::{Digest, SessionId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::atlases::{self, AtlasUpload};
use super::{AtlasSettings, CarpRuntime, restore};
use crate::catalog::ToolCatalog;
use crate::error::StartError;
use crate::event::{canonical, digest, kind};
use crate::ports::{JournalError, RecordedEvent};

/// The part of an agent's description about the configuration's Atlases and their options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarpFacts {
    /// The Atlases in the configuration's order.
    pub atlases: Vec<AtlasRef>,
    /// The tool that runs actions which name none.
    pub fallback: Option<String>,
    /// Largest context for one turn, in tokens.
    pub max_context_tokens: u64,
    /// Atlases of the API were in force, too.
    pub served: bool,
    /// Actions that no policy mentions were denied.
    pub strict: bool,
    /// Lifetime of a resolution, in seconds.
    pub ttl_seconds: u32,
    /// Judgements record the number of earlier changes (`atlas_changes`). Earlier versions did not.
    #[serde(default)]
    pub counted: bool,
}

/// A reference to an Atlas by its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtlasRef {
    /// Its id.
    pub atlas_id: String,
    /// Digest of the content that [`atlas_of`] reads.
    pub upload_hash: Digest,
    /// Its version.
    pub version: String,
}

impl CarpFacts {
    /// Returns the data to record; `None` without Atlases and without an API that could load some.
    pub fn from_settings(config: &AtlasSettings) -> Option<Self> {
        if config.loaded.is_empty() && !config.served {
            return None;
        }
        let atlases = config.loaded.iter().map(|atlas| AtlasRef {
            atlas_id: atlas.id.to_string(),
            upload_hash: digest(&canonical(&AtlasUpload::from_atlas(atlas))),
            version: atlas.version.to_string(),
        });
        Some(Self {
            atlases: atlases.collect(),
            fallback: config.fallback.clone(),
            max_context_tokens: config.max_context_tokens,
            served: config.served,
            strict: config.strict,
            ttl_seconds: config.ttl_seconds,
            counted: true,
        })
    }

    /// Rebuilds the configuration with these Atlases.
    pub fn to_settings(&self, loaded: Vec<Arc<Atlas>>) -> AtlasSettings {
        AtlasSettings {
            loaded,
            strict: self.strict,
            ttl_seconds: self.ttl_seconds,
            clock_skew_ms: None,
            max_context_tokens: self.max_context_tokens,
            fallback: self.fallback.clone(),
            served: self.served,
        }
    }
}

/// Reads an Atlas from the content of a `ckp.atlas.described` or `ckp.atlas.loaded` event.
///
/// # Errors
/// The content is not a valid Atlas.
pub fn atlas_of(content: &[u8]) -> Result<Atlas, InputFaults> {
    let upload: AtlasUpload = serde_json::from_slice(content)
        .map_err(|error| super::turn::input_fault("", "json", format!("no recorded Atlas: {error}")))?;
    let manifest = serde_json::to_vec(&upload.manifest).unwrap_or_default(); // silent-ok: a value always serialises
    Atlas::in_memory(&manifest, &upload.files)
}

/// Records the sources of the configuration's Atlases. Contents with the same digest are stored once.
pub fn record_facts(carp: &CarpRuntime) -> Result<(), StartError> {
    let thread = carp.root_thread(carp.root.span);
    for atlas in &carp.config.loaded {
        let bytes = canonical(&AtlasUpload::from_atlas(atlas));
        let payload = AtlasDescribed {
            atlas_id: atlas.id.to_string(),
            upload_hash: digest(&bytes),
            version: atlas.version.to_string(),
        };
        let hash = payload.upload_hash;
        let draft = carp.scribe.draft_event(&thread, &payload);
        let _ticket = carp.scribe.submit_drafts(vec![draft.with_content(hash, bytes)])?;
    }
    Ok(())
}

/// An event outside a session that affects it.
#[derive(Debug, Clone)]
pub enum OutsideAtlasEvent {
    /// Another session spent of a limit.
    Charged(CarpLimitsCharged),
    /// An Atlas came.
    Loaded(AtlasUpload),
    /// An Atlas was removed.
    Removed(String),
}

impl OutsideAtlasEvent {
    /// Of an event of the runtime's chain; `None`: it bears on nothing here.
    ///
    /// # Errors
    /// The event can't be read: nobody knows what the session was judged by.
    pub fn read(event: &RecordedEvent, session: SessionId) -> Result<Option<Self>, JournalError> {
        Ok(match event.kind.as_str() {
            kind::CARP_CHARGED => Some(event.read_as::<CarpLimitsCharged>()?)
                .filter(|charged| charged.session_id != session.0)
                .map(Self::Charged),
            kind::ATLAS_LOADED => {
                event.read_as::<AtlasLoaded>()?;
                restore::parse_content::<AtlasUpload>(event).map(Self::Loaded)
            }
            kind::ATLAS_REMOVED => Some(Self::Removed(event.read_as::<AtlasRemoved>()?.atlas_id)),
            _ => None,
        })
    }

    /// Applies the event again. A failure shows in the next resolution.
    pub async fn apply(self, (carp, catalog): (&CarpRuntime, &ToolCatalog), at: crate::time::Timestamp) {
        let outcome = match self {
            Self::Charged(charged) => {
                // silent-ok: clawk's own times are in range
                let at = Timestamp::from_microsecond(at.0).unwrap_or(Timestamp::MIN);
                restore::add_charge(&mut carp.lock_sessions(), &charged, at);
                return;
            }
            Self::Loaded(upload) => atlases::load_atlas((carp, catalog), upload, "replay")
                .await
                .map(drop),
            Self::Removed(id) => atlases::remove(carp, &id, "replay").await,
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a change of Atlases could not be repeated");
        }
    }
}
