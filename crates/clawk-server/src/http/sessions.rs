//! `/v1/sessions`: opens, lists and ends sessions.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use clawk_kernel::CraHandle;
use clawk_kernel::carp::{NewSession, SessionView};
use clawk_proto::SessionId;
use http::StatusCode;
use http::header::LOCATION;

use super::HttpApp;
use super::auth::HttpPrincipal;
use super::error::ApiError;
use super::model::{ApiSession, ApiSessionList, CreateSession, ListQuery, SessionFilter};
use crate::access::Scope;

/// Finds a session that the caller may see.
///
/// # Errors
/// 404: the session does not exist or belongs to another token. The answer does not say which.
pub(crate) fn find_visible(
    cra: &CraHandle,
    principal: &HttpPrincipal,
    id: &str,
) -> Result<SessionView, ApiError> {
    let parsed: Option<SessionId> = id.parse().ok(); // silent-ok: what is no id is no session
    parsed
        .and_then(|id| cra.session(id))
        .filter(|view| principal.may_see_session(view.owner.as_deref()))
        .ok_or_else(|| ApiError::no_session(id))
}

/// The page size: 1 to `most`, or `default`.
pub(crate) fn page_limit(given: Option<u32>, default: u32, most: u32) -> Result<usize, ApiError> {
    let wanted = given.unwrap_or(default);
    if wanted == 0 || wanted > most {
        return Err(ApiError::bad_request(
            "invalid_query",
            format!("`limit` is 1 to {most}"),
        ));
    }
    Ok(usize::try_from(wanted).unwrap_or(1000)) // INVARIANT: at most `most`
}

pub(crate) fn bad_query(error: &QueryRejection) -> ApiError {
    ApiError::bad_request("invalid_query", error.body_text())
}

/// Opens a session. It belongs to the token that opens it.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", request_body = CreateSession,
    responses((status = 201, description = "It is open.", body = ApiSession, headers(("Location" = String, description = "Its path.")))),
)]
pub(crate) async fn create_session(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Response, ApiError> {
    principal.require_scope(Scope::Resolve)?;
    let cra = app.cra()?;
    let wanted: CreateSession = super::body::read_json(&app, request).await?;
    let parent = match wanted.parent_session_id {
        Some(parent) => Some(find_visible(&cra, &principal, &parent.to_string())?.id),
        None => None,
    };
    let new = NewSession {
        agent_id: wanted.agent_id,
        goal: wanted.goal,
        parent,
        atlas_id: wanted.atlas_id,
        metadata: wanted.metadata,
        owner: principal.name.to_string(),
        id: None,
    };
    let view = cra.open_session(new).await?;
    let location = format!("/v1/sessions/{}", view.id);
    Ok((
        StatusCode::CREATED,
        [(LOCATION, location)],
        Json(ApiSession::from(view)),
    )
        .into_response())
}

/// The sessions of the caller, the latest first; an admin sees everybody's.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions", params(ListQuery),
    responses((status = 200, description = "The latest first.", body = ApiSessionList)),
)]
pub(crate) async fn list_sessions(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<ApiSessionList>, ApiError> {
    principal.require_scope(Scope::Read)?;
    let Query(query) = query.map_err(|error| bad_query(&error))?;
    let owner = (!principal.is_admin()).then_some(&*principal.name);
    let live = match query.status.unwrap_or_default() {
        SessionFilter::Active => Some(true),
        SessionFilter::Ended => Some(false),
        SessionFilter::All => None,
    };
    let (limit, offset) = (page_limit(query.limit, 20, 100)?, query.offset.unwrap_or(0));
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let (views, total) = app.cra()?.list_sessions(owner, live, (from, limit));
    Ok(Json(ApiSessionList {
        items: views.into_iter().map(ApiSession::from).collect(),
        total,
        limit,
        offset,
    }))
}

/// One session.
#[utoipa::path(
    get, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = uuid::Uuid, Path, description = "The session.")),
    responses((status = 200, description = "It.", body = ApiSession)),
)]
pub(crate) async fn get_session(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
) -> Result<Json<ApiSession>, ApiError> {
    principal.require_scope(Scope::Read)?;
    Ok(Json(find_visible(&app.cra()?, &principal, &id)?.into()))
}

/// Ends a session. Its trace stays.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = uuid::Uuid, Path, description = "The session.")),
    responses((status = 204, description = "It has ended.")),
)]
pub(crate) async fn end_session(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    principal.require_scope(Scope::Resolve)?;
    let cra = app.cra()?;
    let view = find_visible(&cra, &principal, &id)?;
    if view.owner.is_none() {
        return Err(ApiError::forbidden(
            "not_a_cra_session",
            "this is a conversation of the agent's own",
        ));
    }
    cra.close_session(view.id, "completed").await?;
    Ok(StatusCode::NO_CONTENT)
}
