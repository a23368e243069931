//! `/.well-known/oauth-protected-resource` (RFC 9728): tells clients where to get a token for this server.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use http::Uri;
use serde_json::{Value, json};

use super::DOORS;
use crate::http::{ApiError, HttpApp};

/// The path of the metadata. A door's path may follow it.
pub(crate) const PATH: &str = "/.well-known/oauth-protected-resource";

/// The routes of the metadata.
pub(crate) fn routes() -> Router<HttpApp> {
    Router::new().route(PATH, get(show_metadata)).route(
        "/.well-known/oauth-protected-resource/{*door}",
        get(show_metadata),
    )
}

/// The door of a request's path; empty for the server itself.
pub(super) fn door_of_path(path: &str) -> &'static str {
    let fits = |door: &&&str| {
        path == **door
            || path
                .strip_prefix(**door)
                .is_some_and(|rest| rest.starts_with('/'))
    };
    let longest = DOORS.iter().filter(fits).max_by_key(|door| door.len());
    longest.copied().unwrap_or_default()
}

async fn show_metadata(State(app): State<HttpApp>, uri: Uri) -> Result<Json<Value>, ApiError> {
    let below = uri
        .path()
        .strip_prefix(PATH)
        .unwrap_or_default()
        .trim_end_matches('/');
    let oauth = app.options.oauth.as_ref();
    let oauth = oauth.filter(|_| below.is_empty() || DOORS.contains(&below));
    let options = &oauth
        .ok_or_else(|| ApiError::not_found("no such path"))?
        .0
        .options;
    let scopes: Vec<&String> = options.scopes.keys().collect();
    Ok(Json(json!({
        "resource": format!("{}{below}", options.resource),
        "authorization_servers": [options.issuer],
        "scopes_supported": scopes,
        "bearer_methods_supported": ["header"],
    })))
}
