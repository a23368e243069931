//! `/v1/resolve`, `/v1/execute`, `/v1/validate`: CARP messages in their own form.

use axum::extract::{Request, State};
use axum::{Extension, Json};
use clawk_carp::message::{self, RequestShape};
use clawk_kernel::CraHandle;
use clawk_proto::carp::{self, CarpOperation, CarpResolution, ExecuteResponse, ValidateResponse};

use super::HttpApp;
use super::auth::HttpPrincipal;
use super::error::ApiError;
use super::sessions::find_visible;
use crate::access::Scope;

/// Reads a CARP request of one operation, in a session that the caller may see.
async fn read(
    app: &HttpApp,
    principal: &HttpPrincipal,
    request: Request,
    operation: CarpOperation,
) -> Result<(CraHandle, carp::Request), ApiError> {
    let cra = app.cra()?;
    let bytes = super::body::json_bytes(app, request).await?;
    let request = message::parse(&bytes, RequestShape::Wire)?;
    if request.operation != operation && operation != CarpOperation::Validate {
        let message = format!("/operation: `{}` is wanted here", operation.name());
        return Err(ApiError::bad_request("wrong_operation", message).for_request(request.request_id));
    }
    let session = request.requester.session_id.to_string();
    find_visible(&cra, principal, &session).map_err(|error| error.for_request(request.request_id))?;
    Ok((cra, request))
}

/// What the agent may see and do for its goal.
#[utoipa::path(
    post, path = "/v1/resolve", tag = "carp", request_body = carp::Request,
    responses((status = 200, description = "The resolution, whatever it decides.", body = CarpResolution)),
)]
pub(crate) async fn resolve_goal(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Json<CarpResolution>, ApiError> {
    principal.require_scope(Scope::Resolve)?;
    let (cra, request) = read(&app, &principal, request, CarpOperation::Resolve).await?;
    let resolution = cra
        .resolve_request(&request)
        .await
        .map_err(|error| ApiError::from(error).for_request(request.request_id))?;
    Ok(Json(resolution))
}

/// Runs one action under a resolution. 403: denied; `pending_approval`: answer `/v1/approvals/{id}`, then execute again.
#[utoipa::path(
    post, path = "/v1/execute", tag = "carp", request_body = carp::Request,
    responses((status = 200, description = "It ran, or waits for a person.", body = ExecuteResponse)),
)]
pub(crate) async fn execute_action(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Json<ExecuteResponse>, ApiError> {
    principal.require_scope(Scope::Execute)?;
    let (cra, request) = read(&app, &principal, request, CarpOperation::Execute).await?;
    let id = request.request_id;
    let response = cra
        .execute_action(request)
        .await
        .map_err(|error| ApiError::from(error).for_request(id))?;
    Ok(Json(response))
}

/// What would stand in the way of a request; nothing happens. An extension: the protocol names the operation, not a path.
#[utoipa::path(
    post, path = "/v1/validate", tag = "carp", request_body = carp::Request,
    responses((status = 200, description = "What is wrong with it.", body = ValidateResponse)),
)]
pub(crate) async fn validate_output(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Json<ValidateResponse>, ApiError> {
    principal.require_scope(Scope::Resolve)?;
    let (cra, request) = read(&app, &principal, request, CarpOperation::Validate).await?;
    Ok(Json(cra.validate_request(&request)))
}
