//! `/channels/NAME`: requests of platforms. The platform's signature takes the place of a token.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use super::App;
use super::error::ApiError;
use crate::channels::HookBody;

/// Where they come in.
pub(super) const PREFIX: &str = "/channels/";

/// Hands the request to its channel.
pub(super) async fn receive(State(app): State<App>, Path(name): Path<String>, request: Request) -> Response {
    let Some(channels) = app.host.channels() else {
        return ApiError::not_found("no channel is served").into_response();
    };
    let (parts, body) = request.into_parts();
    let limit = app.options.max_body_bytes;
    let Ok(body) = axum::body::to_bytes(body, limit).await else {
        let message = format!("a body has at most {limit} bytes and comes whole");
        return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).into_response();
    };
    let answer = channels
        .receive(&name, http::Request::from_parts(parts, body))
        .await;
    answer.map(|body| match body {
        HookBody::Whole(bytes) => Body::from(bytes),
        HookBody::Stream(pieces) => {
            let pieces = futures::stream::unfold(pieces, |mut pieces| async {
                let piece = pieces.recv().await?;
                Some((Ok::<_, std::convert::Infallible>(piece), pieces))
            });
            Body::from_stream(pieces)
        }
    })
}
