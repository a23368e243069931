//! Atlases that come and go while the agent runs. What comes over the API is kept in the journal and taken up again.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_carp::atlas::Executor;
use clawk_carp::fault::CarpFault;
use clawk_carp::{Atlas, InputFaults};
use clawk_events::payload::{AtlasLoaded, AtlasRemoved};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::CarpError;
use super::{CarpRuntime, LoadedAtlases};
use crate::catalog::ToolCatalog;
use crate::event::{canonical, digest};

/// Atlases that may be loaded together.
const MAX_ATLASES: usize = 1_000;

/// Where an Atlas comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configuration; it can't be removed over the API.
    Configured,
    /// The API: who, and when.
    Uploaded {
        /// The token's name.
        by: String,
        /// RFC 3339.
        at: String,
    },
}

/// An Atlas as it is shown.
#[derive(Debug, Clone)]
pub struct AtlasView {
    /// The Atlas.
    pub atlas: Arc<Atlas>,
    /// Where it comes from.
    pub origin: Origin,
    /// Actions that nothing here runs.
    pub unbound: Vec<String>,
}

/// What came over the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AtlasUpload {
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) manifest: Value,
}

impl AtlasUpload {
    /// What an Atlas was read from.
    pub(crate) fn of(atlas: &Atlas) -> Self {
        Self {
            files: atlas.source.files.clone(),
            // silent-ok: an Atlas was read from JSON
            manifest: serde_json::from_str(&atlas.source.manifest).unwrap_or_default(),
        }
    }

    /// The Atlas, checked.
    pub(crate) fn atlas(&self) -> Result<Atlas, InputFaults> {
        let bytes = serde_json::to_vec(&self.manifest).unwrap_or_default(); // silent-ok: a value always serialises
        let atlas = Atlas::in_memory(&bytes, &self.files)?;
        opens_nothing(&atlas)?;
        Ok(atlas)
    }
}

/// An endpoint or a server is opened by the configuration, never by what comes over the API.
fn opens_nothing(atlas: &Atlas) -> Result<(), InputFaults> {
    let mut faults = InputFaults::default();
    for (at, action) in atlas.actions.iter().enumerate() {
        let outside = match &action.executor {
            Some(Executor::Http(_)) => "an HTTP endpoint",
            Some(Executor::Mcp { .. }) => "an MCP server",
            Some(Executor::Tool(_)) | None => continue,
        };
        faults.errors.push(CarpFault {
            path: format!("/actions/{at}/executor"),
            code: "executor".to_owned(),
            message: format!(
                "an Atlas from the API can't open {outside}; name it in `[atlases] paths` of clawk.toml"
            ),
        });
    }
    if faults.errors.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

/// All Atlases in force, by id.
pub(crate) fn views((carp, catalog): (&CarpRuntime, &ToolCatalog)) -> Vec<AtlasView> {
    let loaded = carp.loaded();
    let atlases = loaded.set.atlases().iter();
    atlases
        .map(|atlas| view((carp, catalog), &loaded, atlas))
        .collect()
}

pub(crate) fn view(
    (carp, catalog): (&CarpRuntime, &ToolCatalog),
    loaded: &LoadedAtlases,
    atlas: &Arc<Atlas>,
) -> AtlasView {
    let unbound = atlas
        .actions
        .iter()
        .filter(|action| carp.tool_of(action, catalog).is_none());
    AtlasView {
        unbound: unbound.map(|action| action.shown.action_id.to_string()).collect(),
        origin: loaded
            .origins
            .get(&atlas.id)
            .cloned()
            .unwrap_or(Origin::Configured),
        atlas: Arc::clone(atlas),
    }
}

/// Loads an Atlas beside the others: all are compiled together, or nothing changes.
pub(crate) async fn load(
    (carp, catalog): (&CarpRuntime, &ToolCatalog),
    upload: AtlasUpload,
    by: &str,
) -> Result<AtlasView, CarpError> {
    let _one = carp.changing.lock().await;
    let atlas = Arc::new(upload.atlas().map_err(CarpError::Invalid)?);
    let before = carp.loaded();
    if before.origins.contains_key(&atlas.id) {
        return Err(CarpError::Conflict(format!(
            "the Atlas `{}` is loaded already; remove it first",
            atlas.id
        )));
    }
    if before.origins.len() >= MAX_ATLASES {
        return Err(CarpError::TooMany(format!(
            "{MAX_ATLASES} Atlases are loaded; remove some"
        )));
    }
    let at = carp.scribe.now().to_string();
    let after = with(carp, &before, &atlas, by, &at)?;
    let bytes = canonical(&upload);
    let payload = AtlasLoaded {
        atlas_id: atlas.id.to_string(),
        by: by.to_owned(),
        upload_hash: digest(&bytes),
        version: atlas.version.to_string(),
    };
    let hash = payload.upload_hash;
    let thread = carp.root(carp.uuid());
    let draft = carp.scribe.entry(&thread, &payload).content(hash, bytes);
    carp.scribe.write(vec![draft]).await?;
    let view = view((carp, catalog), &after, &atlas);
    carp.replace(after);
    Ok(view)
}

/// Removes an Atlas that came over the API.
pub(crate) async fn remove(carp: &CarpRuntime, id: &str, by: &str) -> Result<(), CarpError> {
    let _one = carp.changing.lock().await;
    let before = carp.loaded();
    match before.origins.get(id) {
        None => return Err(CarpError::UnknownAtlas(vec![id.chars().take(255).collect()])),
        Some(Origin::Configured) => {
            return Err(CarpError::Conflict(format!(
                "the Atlas `{id}` stands in the configuration"
            )));
        }
        Some(Origin::Uploaded { .. }) => {}
    }
    let after = without(carp, &before, id)
        .map_err(|cause| CarpError::Conflict(format!("the Atlas `{id}` is needed: {cause}")))?;
    let payload = AtlasRemoved {
        atlas_id: id.to_owned(),
        by: by.to_owned(),
    };
    let thread = carp.root(carp.uuid());
    carp.scribe
        .write(vec![carp.scribe.entry(&thread, &payload)])
        .await?;
    carp.replace(after);
    Ok(())
}

pub(crate) fn with(
    carp: &CarpRuntime,
    before: &LoadedAtlases,
    atlas: &Arc<Atlas>,
    by: &str,
    at: &str,
) -> Result<LoadedAtlases, clawk_carp::set::SetError> {
    let mut atlases = before.set.atlases().to_vec();
    atlases.push(Arc::clone(atlas));
    let mut origins = before.origins.clone();
    let origin = Origin::Uploaded {
        by: by.to_owned(),
        at: at.to_owned(),
    };
    origins.insert(Arc::clone(&atlas.id), origin);
    LoadedAtlases::new(atlases, origins, before.changes + 1, &carp.config)
}

pub(crate) fn without(
    carp: &CarpRuntime,
    before: &LoadedAtlases,
    id: &str,
) -> Result<LoadedAtlases, clawk_carp::set::SetError> {
    let kept = before.set.atlases().iter().filter(|atlas| *atlas.id != *id);
    let mut origins = before.origins.clone();
    origins.remove(id);
    LoadedAtlases::new(kept.cloned().collect(), origins, before.changes + 1, &carp.config)
}

/// After a change of before that changes nothing now: it counts all the same.
pub(crate) fn as_before(
    carp: &CarpRuntime,
    before: &LoadedAtlases,
) -> Result<LoadedAtlases, clawk_carp::set::SetError> {
    let (atlases, origins) = (before.set.atlases().to_vec(), before.origins.clone());
    LoadedAtlases::new(atlases, origins, before.changes + 1, &carp.config)
}
