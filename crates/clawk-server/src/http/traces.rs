//! `/v1/traces/{session_id}`: reads the events of a session and verifies their chain.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use clawk_proto::SessionId;
use clawk_proto::trace::SealedEvent;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use super::auth::HttpPrincipal;
use super::error::ApiError;
use super::model::{ChainFault, ChainVerification, Trace, TracePage, TraceQuery};
use super::sessions::{bad_query, find_visible, page_limit};
use super::{HttpApp, Page};
use crate::access::Scope;

const NDJSON: &str = "application/x-ndjson";

/// Finds a session whose trace the caller may read. An admin may read every chain.
pub(crate) async fn readable_session(
    app: &HttpApp,
    principal: &HttpPrincipal,
    id: &str,
) -> Result<SessionId, ApiError> {
    principal.require_scope(Scope::Read)?;
    let refusal = match find_visible(&app.cra()?, principal, id) {
        Ok(view) => return Ok(view.id),
        Err(refusal) => refusal,
    };
    let parsed: Option<SessionId> = id.parse().ok(); // silent-ok: what is no id is no session
    let Some(session) = parsed.filter(|_| principal.is_admin()) else {
        return Err(refusal);
    };
    let first = Page {
        session,
        since: 0,
        kinds: Vec::new(),
        limit: 1,
    };
    let found = app
        .traces
        .page(first)
        .await
        .map_err(|cause| ApiError::internal(&cause))?;
    if found.is_empty() {
        Err(refusal)
    } else {
        Ok(session)
    }
}

/// The first sequence number after the given one; 0 for `None`.
pub(crate) fn sequence_after(since: Option<u64>) -> u64 {
    since.map_or(0, |since| since.saturating_add(1))
}

/// The events of a session, in order; as NDJSON when that is what `Accept` asks for.
#[utoipa::path(
    get, path = "/v1/traces/{session_id}", tag = "traces",
    params(("session_id" = uuid::Uuid, Path, description = "The session."), TraceQuery),
    responses((status = 200, description = "One page.", content(
        (TracePage = "application/json"),
        (String = "application/x-ndjson"),
    ))),
)]
pub(crate) async fn get_trace(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
    query: Result<Query<TraceQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let session = readable_session(&app, &principal, &id).await?;
    let Query(query) = query.map_err(|error| bad_query(&error))?;
    let limit = page_limit(query.limit, 100, 1000)?;
    let kinds = query
        .event_type
        .as_deref()
        .unwrap_or_default()
        .split(',')
        .map(str::trim);
    let kinds: Vec<String> = kinds
        .filter(|kind| !kind.is_empty())
        .take(32)
        .map(str::to_owned)
        .collect();
    let page = Page {
        session,
        since: sequence_after(query.since_sequence),
        kinds: kinds.clone(),
        limit,
    };
    let (events, total) = tokio::try_join!(app.traces.page(page), app.traces.count(session, kinds))
        .map_err(|cause| ApiError::internal(&cause))?;
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default(); // silent-ok: unreadable asks for nothing
    if accept.contains(NDJSON) {
        return trace_lines(&events);
    }
    Ok(Json(Trace {
        session_id: session.0,
        trace_id: session.0,
        last_sequence: events.last().map(|last| last.sequence),
        events,
        total,
    })
    .into_response())
}

fn trace_lines(events: &[SealedEvent]) -> Result<Response, ApiError> {
    let mut out = Vec::new();
    for event in events {
        serde_json::to_writer(&mut out, event).map_err(|error| ApiError::internal(&error.to_string()))?;
        out.push(b'\n');
    }
    Ok((StatusCode::OK, [(CONTENT_TYPE, NDJSON)], out).into_response())
}

/// Verifies the chain from its first event. A chain that does not hold is an answer, not an error.
#[utoipa::path(
    post, path = "/v1/traces/{session_id}/verify", tag = "traces",
    params(("session_id" = uuid::Uuid, Path, description = "The session.")),
    responses((status = 200, description = "Whether it holds.", body = ChainVerification)),
)]
pub(crate) async fn verify_trace(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
) -> Result<Json<ChainVerification>, ApiError> {
    let session = readable_session(&app, &principal, &id).await?;
    let report = app
        .traces
        .verify(session)
        .await
        .map_err(|cause| ApiError::internal(&cause))?;
    let head = report
        .sessions
        .iter()
        .find(|one| one.session_id == session)
        .map(|one| one.head.to_hex());
    Ok(Json(ChainVerification {
        session_id: session.0,
        valid: report.valid,
        event_count: report.event_count,
        errors: report
            .fault
            .iter()
            .map(|fault| ChainFault {
                sequence: fault.index,
                error: fault.kind.code().to_owned(),
                details: fault.detail.to_string(),
            })
            .collect(),
        head,
    }))
}
