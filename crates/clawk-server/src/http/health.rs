//! `GET /v1/health`, `/healthz`, `/readyz`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::HttpApp;
use super::model::{CheckStatus, Health, HealthCheck, HealthStatus};

/// Whether it takes requests, and what it speaks.
#[utoipa::path(
    get, path = "/v1/health", tag = "health", security(()),
    responses((status = 200, description = "It answers.", body = Health))
)]
pub(crate) async fn get_health(State(app): State<HttpApp>) -> Json<Health> {
    let kernel = app.host.current_kernel().get();
    let state = kernel.as_ref().map(|kernel| kernel.status());
    let agent = match &state {
        Some(status) if status.state.name() == "READY" => check(CheckStatus::Pass, "READY".to_owned()),
        // No model is reachable, but this API needs none.
        Some(status) if status.state.name() == "ERROR" => {
            check(CheckStatus::Warn, "ERROR: no provider can be reached".to_owned())
        }
        Some(status) => check(CheckStatus::Fail, status.state.name().to_owned()),
        None => check(CheckStatus::Fail, "no agent runs yet".to_owned()),
    };
    let stop = match kernel
        .as_ref()
        .and_then(|kernel| kernel.active_stops().into_iter().next())
    {
        Some(stop) => check(
            CheckStatus::Warn,
            format!("an emergency stop is in force: {}", stop.level.name()),
        ),
        None => check(CheckStatus::Pass, "none is in force".to_owned()),
    };
    let worst = [agent.status, stop.status]
        .into_iter()
        .fold(HealthStatus::Healthy, |worst, one| {
            worst.max(match one {
                CheckStatus::Pass => HealthStatus::Healthy,
                CheckStatus::Warn => HealthStatus::Degraded,
                CheckStatus::Fail => HealthStatus::Unhealthy,
            })
        });
    Json(Health {
        status: worst,
        uptime_seconds: state.map_or(0, |status| status.uptime_ms / 1000),
        checks: BTreeMap::from([("agent", agent), ("stop", stop)]),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        carp_version: clawk_proto::carp::CARP_VERSION.to_owned(),
        trace_version: clawk_proto::trace::TRACE_VERSION.to_owned(),
    })
}

/// `/healthz`: the process is alive.
pub(crate) async fn liveness_probe() -> StatusCode {
    StatusCode::OK
}

/// `/readyz`: the agent is READY.
pub(crate) async fn readiness_probe(State(app): State<HttpApp>) -> StatusCode {
    let status = app.host.current_kernel().get().map(|kernel| kernel.status());
    if status.is_some_and(|status| status.state.name() == "READY") {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

const fn check(status: CheckStatus, message: String) -> HealthCheck {
    HealthCheck { status, message }
}
