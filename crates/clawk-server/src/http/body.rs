//! Reads JSON bodies, up to the size limit.

use axum::body::Bytes;
use axum::extract::Request;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use super::HttpApp;
use super::error::ApiError;
use crate::error::shape;

/// Reads the bytes of a JSON body. The content type must be JSON: a page of another origin can't send that without a preflight.
///
/// # Errors
/// 415, 413, or 400 if the body breaks off.
pub(crate) async fn json_bytes(app: &HttpApp, request: Request) -> Result<Bytes, ApiError> {
    json_within(request, app.options.max_body_bytes).await
}

/// As [`json_bytes`], with a limit of `limit` bytes.
///
/// # Errors
/// As [`json_bytes`].
pub(crate) async fn json_within(request: Request, limit: usize) -> Result<Bytes, ApiError> {
    let kind = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok()); // silent-ok: an unreadable type is not JSON
    let kind = kind
        .and_then(|value| value.split(';').next())
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if !json {
        let message = "a body of type `application/json` is wanted";
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            message,
        ));
    }
    axum::body::to_bytes(request.into_body(), limit)
        .await
        .map_err(|error| {
            let too_large = std::error::Error::source(&error)
                .is_some_and(|cause| cause.to_string().contains("length limit exceeded"));
            if too_large {
                let message = format!("a body has at most {limit} bytes");
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
            } else {
                ApiError::bad_request("broken_body", "the body could not be read to its end")
            }
        })
}

/// Reads a JSON object and rejects unknown members.
///
/// # Errors
/// As [`json_bytes`]; 400 with the error and its location.
pub(crate) async fn read_json<T: DeserializeOwned>(app: &HttpApp, request: Request) -> Result<T, ApiError> {
    let bytes = json_bytes(app, request).await?;
    shape::read(&bytes)
        .map_err(|what| ApiError::bad_request("invalid_request", format!("the body is wrong: {what}")))
}
