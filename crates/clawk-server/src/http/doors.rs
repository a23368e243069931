//! The routes of the listener's doors (R42).

use axum::Router;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use super::{HttpApp, approvals, atlases, carp, claw, health, openapi, sessions, stream, traces};

/// A group of paths that the listener serves (R42).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpDoor {
    /// `/claw` and `/claw/ws`: CKP.
    Claw,
    /// `/v1/…`: the CRA API.
    Cra,
    /// `/healthz` and `/readyz`.
    Health,
    /// `/openai/v1/…`: the agent for chat front ends.
    Openai,
    /// `/mcp`: the agent as an MCP server.
    Mcp,
    /// `/a2a` and `/.well-known/agent-card.json`: the agent for other agents.
    A2a,
}

impl HttpDoor {
    /// All doors.
    pub const ALL: [Self; 6] = [
        Self::Claw,
        Self::Cra,
        Self::Health,
        Self::Openai,
        Self::Mcp,
        Self::A2a,
    ];
    /// The doors that are open if `[http] doors` is not set.
    pub const DEFAULT: [Self; 3] = [Self::Claw, Self::Cra, Self::Health];

    /// The door's name in `clawk.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claw => "claw",
            Self::Cra => "cra",
            Self::Health => "health",
            Self::Openai => "openai",
            Self::Mcp => "mcp",
            Self::A2a => "a2a",
        }
    }

    /// The door's routes. The listener's guard runs before them: Host, Origin, token, rate, deadline.
    pub(super) fn routes(self) -> Router<HttpApp> {
        match self {
            Self::Claw => claw::routes(),
            Self::Cra => cra_routes(),
            Self::Health => Router::new()
                .route("/healthz", get(health::liveness_probe))
                .route("/readyz", get(health::readiness_probe)),
            Self::Openai => crate::openai::routes(),
            Self::Mcp => crate::mcp::routes(),
            Self::A2a => crate::a2a::routes(),
        }
    }

    /// Paths that need no token: they reveal nothing, or check the token themselves.
    pub(super) const fn open_paths(self) -> &'static [&'static str] {
        match self {
            // The socket checks the token itself, and reports an error by a close code.
            Self::Claw => &["/claw/ws"],
            Self::Cra => &["/v1/health"],
            Self::Health => &["/healthz", "/readyz"],
            Self::A2a => &[crate::a2a::CARD],
            Self::Openai | Self::Mcp => &[],
        }
    }

    /// Paths whose handlers set their own time limit, because they wait for a turn.
    pub(super) const fn patient_paths(self) -> &'static [&'static str] {
        match self {
            Self::Claw | Self::Cra | Self::Health => &[],
            Self::Openai => crate::openai::PATIENT,
            Self::Mcp => crate::mcp::PATIENT,
            Self::A2a => crate::a2a::PATIENT,
        }
    }
}

/// The routes of the CRA API.
fn cra_routes() -> Router<HttpApp> {
    Router::new()
        .route("/v1/health", get(health::get_health))
        .route(
            "/v1/sessions",
            get(sessions::list_sessions).post(sessions::create_session),
        )
        .route(
            "/v1/sessions/{id}",
            get(sessions::get_session).delete(sessions::end_session),
        )
        .route("/v1/resolve", post(carp::resolve_goal))
        .route("/v1/execute", post(carp::execute_action))
        .route("/v1/validate", post(carp::validate_output))
        .route("/v1/traces/stream", get(stream::stream_trace))
        .route("/v1/traces/{session_id}", get(traces::get_trace))
        .route("/v1/traces/{session_id}/verify", post(traces::verify_trace))
        .route(
            "/v1/atlases",
            get(atlases::list_atlases).post(atlases::load_atlas),
        )
        .route(
            "/v1/atlases/{id}",
            get(atlases::get_atlas).delete(atlases::remove_atlas),
        )
        .route("/v1/approvals", get(approvals::list_approvals))
        .route(
            "/v1/approvals/{id}",
            get(approvals::get_approval).post(approvals::answer_approval),
        )
        .route("/v1/openapi.json", get(openapi::serve_document))
}
