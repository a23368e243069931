//! The checks of every request: origin, client, rate and time limit.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use http::header::{AUTHORIZATION, CACHE_CONTROL, EXPECT, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

use super::auth::HttpPrincipal;
use super::connections::ConnectionSeat;
use super::error::{ApiError, ChallengedRequest, ErrorDialect, finish_refusal};
use super::limit::RequestSource;
use super::unread::{SharedBody, finish_unread_body};
use super::{HttpApp, HttpAppInner, auth, hooks};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Checks Host, Origin, token and rate; then runs the handler within its deadline.
pub(crate) async fn guard_request(State(app): State<HttpApp>, mut request: Request, next: Next) -> Response {
    let id = app.clock.new_uuid();
    let dialect = ErrorDialect::for_path(request.uri().path());
    let path = request.uri().path().to_owned();
    let presented = request.headers().contains_key(AUTHORIZATION);
    let expects_continue = request.headers().contains_key(EXPECT);
    let body = SharedBody::new(std::mem::take(request.body_mut()));
    *request.body_mut() = Body::new(body.clone());
    let admitted = admit_request(&app, &mut request).await;
    let over = request
        .extensions()
        .get::<HttpPrincipal>()
        .and_then(|principal| auth::token_deadline(&app, principal));
    let response = match admitted {
        Err(refusal) => refusal.into_response(),
        Ok(()) if is_patient(&app, &request) => next.run(request).await,
        Ok(()) => {
            let limit = Duration::from_millis(app.options.deadline_ms);
            match tokio::time::timeout(limit, next.run(request)).await {
                Ok(response) => response,
                Err(_) => {
                    let message = format!(
                        "not answered within {} ms; what was begun goes on",
                        app.options.deadline_ms
                    );
                    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "deadline", message).into_response()
                }
            }
        }
    };
    let asked = ChallengedRequest {
        oauth: app.options.oauth.as_ref(),
        path: &path,
        presented,
    };
    let mut response = finish_refusal(response, id, dialect, &asked);
    finish_unread_body(body, expects_continue, &mut response).await;
    let streamed = response.body().size_hint().exact().is_none();
    if over.is_some() && streamed {
        response = response.map(|body| ends_with_token(body, over));
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        headers.insert(REQUEST_ID, value);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Whether the handler waits for a turn, with its own time limit.
fn is_patient(app: &HttpApp, request: &Request) -> bool {
    let path = request.uri().path();
    let mut doors = app.options.doors.iter();
    doors.any(|door| door.patient_paths().contains(&path))
}

async fn admit_request(app: &HttpApp, request: &mut Request) -> Result<(), ApiError> {
    let host = check_host(app, request.headers(), request.uri())?;
    check_origin(app, request.headers(), &host)?;
    let access = app.access();
    let seat = request.extensions().get::<Arc<ConnectionSeat>>().cloned();
    let stranger = RequestSource::Stranger(seat.as_ref().map(|seat| seat.address()));
    let path = request.uri().path();
    let mut doors = app.options.doors.iter();
    let open = path.starts_with(hooks::PREFIX)
        || path.starts_with(crate::oauth::PATH)
        || doors.any(|door| door.open_paths().contains(&path));
    let principal = match auth::authenticate_headers(app, &access, request.headers()).await {
        Ok(principal) => Some(principal),
        Err(_) if open => None,
        Err(refusal) => {
            access.limiter.take_request(stranger).map_err(rate_limited)?;
            return Err(refusal);
        }
    };
    let source = principal
        .as_ref()
        .map_or(stranger, |principal| RequestSource::Known(principal.index));
    access.limiter.take_request(source).map_err(rate_limited)?;
    if let Some(seat) = seat {
        seat.keep_for(principal.as_ref());
    }
    if let Some(principal) = principal {
        request.extensions_mut().insert(principal);
    }
    request.extensions_mut().insert(access);
    Ok(())
}

/// Ends a streamed body when the token of its request expires.
fn ends_with_token(body: Body, over: Option<tokio::time::Instant>) -> Body {
    let pieces = futures::stream::unfold(body.into_data_stream(), move |mut pieces| async move {
        tokio::select! {
            biased;
            () = auth::wait_until(over) => None,
            piece = pieces.next() => piece.map(|piece| (piece, pieces)),
        }
    });
    Body::from_stream(pieces)
}

fn rate_limited(wait_ms: u64) -> ApiError {
    ApiError::too_many("rate_limited", "too many requests", wait_ms)
}

/// Checks that `Host` names this server. Otherwise a foreign page could reach us through DNS rebinding.
fn check_host(app: &HttpAppInner, headers: &HeaderMap, uri: &Uri) -> Result<String, ApiError> {
    let refused = |shown: &str| {
        let shown: String = shown.chars().take(100).collect();
        ApiError::forbidden(
            "host_refused",
            format!("`{shown}` is not a name of this server; see `[http] hosts`"),
        )
    };
    let mut given = headers.get_all(HOST).iter();
    let host = match given.next() {
        Some(value) => Some(value.to_str().map_err(|_| refused("(unreadable)"))?), // silent-ok: the bytes help nobody
        None => None,
    };
    if given.next().is_some() {
        return Err(refused("(two Host headers)"));
    }
    // `POST http://other/…`: the request line also names a server, which must be the same one (RFC 9112 §3.2.2).
    let named = match (host, uri.authority().map(http::uri::Authority::as_str)) {
        (Some(host), Some(target)) if !host.eq_ignore_ascii_case(target) => return Err(refused(target)),
        (Some(host), Some(_) | None) => host,
        (None, Some(target)) => target,
        (None, None) => return Err(refused("(no Host header)")),
    };
    let name = without_port(named);
    let configured = app
        .options
        .hosts
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name));
    let open = !app.loopback && app.options.hosts.is_empty();
    if open || configured || (app.loopback && is_loopback_name(name)) {
        return Ok(named.to_ascii_lowercase());
    }
    Err(refused(named))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

fn is_loopback_name(name: &str) -> bool {
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let bare = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    bare.parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
}

/// Checks the browser's `Origin`: this server, or a configured origin.
fn check_origin(app: &HttpAppInner, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or("(unreadable)"); // silent-ok: such an origin fits nothing
        let own = origin
            .split_once("://")
            .is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
        let configured = app
            .options
            .origins
            .iter()
            .any(|known| known.eq_ignore_ascii_case(origin));
        if !own && !configured {
            let shown: String = origin.chars().take(100).collect();
            let message = format!("pages of `{shown}` may not call this server; see `[http] origins`");
            return Err(ApiError::forbidden("origin_refused", message));
        }
    }
    Ok(())
}
