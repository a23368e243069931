//! `/v1/atlases`: lists the Atlases in force; loads and removes those of the API.

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use clawk_kernel::carp::{AtlasView, Origin};
use http::StatusCode;
use http::header::{CONTENT_TYPE, LOCATION};
use serde_json::Value;

use super::HttpApp;
use super::auth::HttpPrincipal;
use super::error::ApiError;
use super::model::{AtlasList, AtlasSummary, LoadAtlas};
use crate::access::Scope;

/// The Atlases in force, by id.
#[utoipa::path(
    get, path = "/v1/atlases", tag = "atlases",
    responses((status = 200, description = "All of them.", body = AtlasList)),
)]
pub(crate) async fn list_atlases(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
) -> Result<Json<AtlasList>, ApiError> {
    principal.require_scope(Scope::Read)?;
    let items: Vec<_> = app.cra()?.atlases().iter().map(atlas_summary).collect();
    let total = items.len();
    Ok(Json(AtlasList { items, total }))
}

/// Loads an Atlas: it governs everybody from now on, and after a restart.
#[utoipa::path(
    post, path = "/v1/atlases", tag = "atlases", request_body = LoadAtlas,
    responses(
        (status = 201, description = "It governs.", body = AtlasSummary, headers(("Location" = String, description = "Its path."))),
        (status = 409, description = "One of its id is loaded.", body = super::model::Error),
    ),
)]
pub(crate) async fn load_atlas(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Response, ApiError> {
    principal.require_scope(Scope::Admin)?;
    let cra = app.cra()?;
    // The body is an Atlas, alone or together with its context files.
    let body: Value = super::body::read_json(&app, request).await?;
    let wanted = if body.get("atlas_version").is_some() || body.get("atlas_id").is_some() {
        LoadAtlas {
            manifest: body,
            files: std::collections::BTreeMap::new(),
        }
    } else {
        serde_json::from_value(body).map_err(|error| {
            ApiError::bad_request("invalid_request", format!("the body is wrong: {error}"))
        })?
    };
    let view = cra
        .load_atlas(wanted.manifest, wanted.files, &principal.name)
        .await?;
    let location = format!("/v1/atlases/{}", view.atlas.id);
    Ok((
        StatusCode::CREATED,
        [(LOCATION, location)],
        Json(atlas_summary(&view)),
    )
        .into_response())
}

/// One Atlas's manifest, as it was loaded; without its context files.
#[utoipa::path(
    get, path = "/v1/atlases/{id}", tag = "atlases", params(("id" = String, Path, description = "The Atlas's id.")),
    responses((status = 200, description = "Its `atlas.json`.", content((Object = "application/json")))),
)]
pub(crate) async fn get_atlas(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    principal.require_scope(Scope::Read)?;
    let views = app.cra()?.atlases();
    let view = views.iter().find(|view| *view.atlas.id == *id).ok_or_else(|| {
        let shown: String = id.chars().take(255).collect();
        ApiError::new(
            StatusCode::NOT_FOUND,
            "atlas_not_found",
            format!("there is no Atlas `{shown}`"),
        )
    })?;
    let manifest = view.atlas.source.manifest.clone();
    Ok(([(CONTENT_TYPE, "application/json")], manifest).into_response())
}

/// Removes an Atlas that came over the API.
#[utoipa::path(
    delete, path = "/v1/atlases/{id}", tag = "atlases", params(("id" = String, Path, description = "The Atlas's id.")),
    responses(
        (status = 204, description = "It governs no more."),
        (status = 409, description = "It stands in the configuration, or others need it.", body = super::model::Error),
    ),
)]
pub(crate) async fn remove_atlas(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    principal.require_scope(Scope::Admin)?;
    app.cra()?.remove(&id, &principal.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn atlas_summary(view: &AtlasView) -> AtlasSummary {
    let atlas = &view.atlas;
    let (loaded_by, loaded_at) = match &view.origin {
        Origin::Configured => (None, None),
        Origin::Uploaded { by, at } => (Some(by.clone()), Some(at.clone())),
    };
    AtlasSummary {
        atlas_id: atlas.id.to_string(),
        version: atlas.version.to_string(),
        name: atlas.name.clone(),
        description: atlas.description.clone(),
        domains: atlas
            .about
            .get("domains")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|domain| domain.as_str().map(str::to_owned))
            .collect(),
        action_count: atlas.actions.len(),
        policy_count: atlas.policies.len(),
        context_pack_count: atlas.packs.len(),
        configured: view.origin == Origin::Configured,
        loaded_by,
        loaded_at,
    }
}
