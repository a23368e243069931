//! `/openai/v1` (R44): chat front ends can use the agent. A request adds one message to the caller's conversation. Earlier messages
//! that clawk does not know reach the model as marked data.

mod asked;
mod chat;
mod responses;
mod serve;
mod stream;
#[cfg(test)]
mod tests;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use crate::access::Scope;
use crate::http::auth::HttpPrincipal;
use crate::http::{ApiError, HttpApp};

/// The prefix of all paths.
pub(crate) const PREFIX: &str = "/openai/";

/// Paths whose handlers may wait for a whole turn.
pub(crate) const PATIENT: &[&str] = &["/openai/v1/chat/completions", "/openai/v1/responses"];

/// The routes of the API.
pub(crate) fn routes() -> Router<HttpApp> {
    Router::new()
        .route("/openai/v1/models", get(models))
        .route("/openai/v1/models/{model}", get(model))
        .route("/openai/v1/chat/completions", post(chat::complete_chat))
        .route("/openai/v1/responses", post(responses::create_response))
}

/// Lists the only model: the agent, under its Claw's name.
async fn models(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
) -> Result<Json<Value>, ApiError> {
    let listed = described(&app, &principal)?;
    Ok(Json(json!({"object": "list", "data": [listed]})))
}

async fn model(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    axum::extract::Path(wanted): axum::extract::Path<String>,
) -> Result<Json<Value>, ApiError> {
    let described = described(&app, &principal)?;
    serve::is_agent(&app, &wanted)?;
    Ok(Json(described))
}

fn described(app: &HttpApp, principal: &HttpPrincipal) -> Result<Value, ApiError> {
    if !principal.has_scope(Scope::Message) {
        principal.require_scope(Scope::Read)?;
    }
    let kernel = serve::running_kernel(app)?;
    let status = kernel.status();
    let started = app.clock.now().as_millis() / 1000 - i64::try_from(status.uptime_ms / 1000).unwrap_or(0);
    let name = &kernel.manifest().metadata.name;
    Ok(json!({"id": name, "object": "model", "created": started, "owned_by": "clawk"}))
}
