//! The OpenAPI document, generated from the handlers. It is committed as `schema/openapi.json`; a test compares the two.

use axum::Extension;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::auth::HttpPrincipal;
use super::error::ApiError;
use super::{approvals, atlases, carp, health, model, sessions, stream, traces};
use crate::access::Scope;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "clawk: CRA",
        description = "Sessions, CARP resolutions and executions, TRACE, Atlases.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        health::get_health, sessions::create_session, sessions::list_sessions, sessions::get_session, sessions::end_session, carp::resolve_goal, carp::execute_action,
        carp::validate_output, traces::get_trace, traces::verify_trace, stream::stream_trace, atlases::list_atlases, atlases::load_atlas, atlases::get_atlas,
        atlases::remove_atlas, approvals::list_approvals, approvals::get_approval, approvals::answer_approval,
    ),
    components(schemas(model::Error)),
    security(("bearer" = []), ("api_key" = [])),
    modifiers(&CommonResponses),
)]
struct OpenApiDocument;

/// Generates the document.
#[must_use]
pub fn openapi_document() -> Document {
    OpenApiDocument::openapi()
}

/// Handles `GET /v1/openapi.json`.
pub(crate) async fn serve_document(
    Extension(principal): Extension<HttpPrincipal>,
) -> Result<Response, ApiError> {
    principal.require_scope(Scope::Read)?;
    let text = openapi_document()
        .to_json()
        .map_err(|error| ApiError::internal(&error.to_string()))?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// Adds the responses that every operation may give, because of the checks before it.
struct CommonResponses;

impl Modify for CommonResponses {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        let key = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(key));
        for (path, item) in &mut document.paths.paths {
            let named = path.contains('{') || path.ends_with("/stream") || carries_session(path);
            for operation in item_operations(item) {
                add_refusals(operation, path == "/v1/health", named);
            }
        }
    }
}

/// Whether the request body names a session.
fn carries_session(path: &str) -> bool {
    [
        "/v1/resolve",
        "/v1/execute",
        "/v1/validate",
        "/v1/sessions",
        "/v1/atlases",
    ]
    .contains(&path)
}

fn item_operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post, &mut item.delete]
        .into_iter()
        .filter_map(Option::as_mut)
}

fn add_refusals(operation: &mut Operation, open: bool, named: bool) {
    let body = operation.request_body.is_some();
    let everywhere = [
        ("400", "The request is wrong.", !open),
        ("401", "A valid token is wanted.", !open),
        ("403", "This token, this host or this action may not.", true),
        ("404", "There is no such thing.", named),
        ("413", "The body is too large.", body),
        ("415", "A JSON body is wanted.", body),
        ("429", "Too many requests; see Retry-After.", true),
        ("503", "It can't be done now; see Retry-After.", !open),
        ("504", "It took too long.", true),
    ];
    for (status, description, may) in everywhere {
        if may && !operation.responses.responses.contains_key(status) {
            let content = ContentBuilder::new()
                .schema(Some(Ref::from_schema_name("Error")))
                .build();
            let response = ResponseBuilder::new()
                .description(description)
                .content("application/json", content);
            operation
                .responses
                .responses
                .insert(status.to_owned(), response.build().into());
        }
    }
}
