//! `GET /v1/health`, `/healthz`, `/readyz`.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::App;
use super::model::Health;

/// Whether it answers, and what it speaks.
#[utoipa::path(
    get, path = "/v1/health", tag = "health", security(()),
    responses((status = 200, description = "It answers.", body = Health))
)]
pub(crate) async fn health(State(app): State<App>) -> Json<Health> {
    let status = app.host.current().get().map(|kernel| kernel.status());
    let ready = status.is_some_and(|status| status.state.name() == "READY");
    Json(Health {
        status: if ready { "healthy" } else { "starting" }.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        carp_version: clawk_proto::carp::CARP_VERSION.to_owned(),
        trace_version: clawk_proto::trace::TRACE_VERSION.to_owned(),
    })
}

/// The process answers.
pub(crate) async fn alive() -> StatusCode {
    StatusCode::OK
}

/// The agent is READY.
pub(crate) async fn ready(State(app): State<App>) -> StatusCode {
    let status = app.host.current().get().map(|kernel| kernel.status());
    if status.is_some_and(|status| status.state.name() == "READY") {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
