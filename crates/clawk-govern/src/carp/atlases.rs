//! Atlases that are loaded and removed while the agent runs. Those of the API are stored in the journal and restored at a start.

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

/// Largest number of Atlases loaded together.
const MAX_ATLASES: usize = 1_000;

/// The origin of an Atlas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configuration. The API can't remove it.
    Configured,
    /// The API.
    Uploaded {
        /// Name of the token that loaded it.
        by: String,
        /// Time, RFC 3339.
        at: String,
    },
}

/// An Atlas in the form that is shown.
#[derive(Debug, Clone)]
pub struct AtlasView {
    /// The Atlas.
    pub atlas: Arc<Atlas>,
    /// Its origin.
    pub origin: Origin,
    /// Actions without an executor here.
    pub unbound: Vec<String>,
}

/// An Atlas from the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtlasUpload {
    /// Text of each file by its path.
    pub files: BTreeMap<String, String>,
    /// The Atlas itself, as JSON.
    pub manifest: Value,
}

impl AtlasUpload {
    /// Returns the source text of an Atlas.
    pub fn from_atlas(atlas: &Atlas) -> Self {
        Self {
            files: atlas.source.files.clone(),
            // silent-ok: an Atlas was read from JSON
            manifest: serde_json::from_str(&atlas.source.manifest).unwrap_or_default(),
        }
    }

    /// Returns the validated Atlas.
    pub fn parse_atlas(&self) -> Result<Atlas, InputFaults> {
        let bytes = serde_json::to_vec(&self.manifest).unwrap_or_default(); // silent-ok: a value always serialises
        let atlas = Atlas::in_memory(&bytes, &self.files)?;
        opens_nothing(&atlas)?;
        Ok(atlas)
    }
}

/// Checks that an Atlas of the API uses no endpoint or server. Only the configuration may open these.
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

/// Returns all Atlases in force, by id.
pub fn atlas_views((carp, catalog): (&CarpRuntime, &ToolCatalog)) -> Vec<AtlasView> {
    let loaded = carp.loaded_atlases();
    let atlases = loaded.set.atlases().iter();
    atlases
        .map(|atlas| atlas_view((carp, catalog), &loaded, atlas))
        .collect()
}

/// Returns an Atlas in the form of the API.
pub fn atlas_view(
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

/// Loads a further Atlas. All are compiled together, or nothing changes.
pub async fn load_atlas(
    (carp, catalog): (&CarpRuntime, &ToolCatalog),
    upload: AtlasUpload,
    by: &str,
) -> Result<AtlasView, CarpError> {
    let _one = carp.changing.lock().await;
    let atlas = Arc::new(upload.parse_atlas().map_err(CarpError::Invalid)?);
    let before = carp.loaded_atlases();
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
    let after = with_atlas(carp, &before, &atlas, by, &at)?;
    let bytes = canonical(&upload);
    let payload = AtlasLoaded {
        atlas_id: atlas.id.to_string(),
        by: by.to_owned(),
        upload_hash: digest(&bytes),
        version: atlas.version.to_string(),
    };
    let hash = payload.upload_hash;
    let thread = carp.root_thread(carp.new_uuid());
    let draft = carp
        .scribe
        .draft_event(&thread, &payload)
        .with_content(hash, bytes);
    carp.scribe.write(vec![draft]).await?;
    let view = atlas_view((carp, catalog), &after, &atlas);
    carp.replace_atlases(after);
    Ok(view)
}

/// Removes an Atlas of the API.
pub async fn remove(carp: &CarpRuntime, id: &str, by: &str) -> Result<(), CarpError> {
    let _one = carp.changing.lock().await;
    let before = carp.loaded_atlases();
    match before.origins.get(id) {
        None => return Err(CarpError::UnknownAtlas(vec![id.chars().take(255).collect()])),
        Some(Origin::Configured) => {
            return Err(CarpError::Conflict(format!(
                "the Atlas `{id}` stands in the configuration"
            )));
        }
        Some(Origin::Uploaded { .. }) => {}
    }
    let after = without_atlas(carp, &before, id)
        .map_err(|cause| CarpError::Conflict(format!("the Atlas `{id}` is needed: {cause}")))?;
    let payload = AtlasRemoved {
        atlas_id: id.to_owned(),
        by: by.to_owned(),
    };
    let thread = carp.root_thread(carp.new_uuid());
    carp.scribe
        .write(vec![carp.scribe.draft_event(&thread, &payload)])
        .await?;
    carp.replace_atlases(after);
    Ok(())
}

/// Returns the Atlases with one more.
pub fn with_atlas(
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

/// Returns the Atlases without this one.
pub fn without_atlas(
    carp: &CarpRuntime,
    before: &LoadedAtlases,
    id: &str,
) -> Result<LoadedAtlases, clawk_carp::set::SetError> {
    let kept = before.set.atlases().iter().filter(|atlas| *atlas.id != *id);
    let mut origins = before.origins.clone();
    origins.remove(id);
    LoadedAtlases::new(kept.cloned().collect(), origins, before.changes + 1, &carp.config)
}

/// Counts an earlier change that has no effect now.
pub fn as_before(
    carp: &CarpRuntime,
    before: &LoadedAtlases,
) -> Result<LoadedAtlases, clawk_carp::set::SetError> {
    let (atlases, origins) = (before.set.atlases().to_vec(), before.origins.clone());
    LoadedAtlases::new(atlases, origins, before.changes + 1, &carp.config)
}
