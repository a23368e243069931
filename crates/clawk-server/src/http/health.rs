//! `GET /v1/health`.

use axum::Json;
use axum::extract::State;

use super::App;
use super::model::Health;

/// Whether it answers, and what it speaks.
#[utoipa::path(
    get, path = "/v1/health", tag = "health", security(()),
    responses((status = 200, description = "It answers.", body = Health))
)]
pub(crate) async fn health(State(app): State<App>) -> Json<Health> {
    let status = app.current.get().map(|kernel| kernel.status());
    // In ERROR no model can be reached; what this API does needs none.
    let ready = status.is_some_and(|status| matches!(status.state.name(), "READY" | "ERROR"));
    Json(Health {
        status: if ready { "healthy" } else { "starting" }.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        carp_version: clawk_proto::carp::CARP_VERSION.to_owned(),
        trace_version: clawk_proto::trace::TRACE_VERSION.to_owned(),
    })
}
