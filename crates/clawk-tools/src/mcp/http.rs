//! Streamable HTTP over our own client: rmcp's transport asks, `clawk-egress` sends.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use clawk_egress::{Client, EgressError, Request, Response, Url};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    HttpStatusError, StreamableHttpClient, StreamableHttpClientTransport,
    StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Error as SseError, Sse, SseStream};

use crate::oauth::{OAuthError, Tokens};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// Most of a failed answer's body that is looked at, bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// The transport to one endpoint.
pub(super) fn transport(
    client: Client,
    url: &Url,
    headers: &HeaderMap,
    tokens: Option<Arc<Tokens>>,
) -> StreamableHttpClientTransport<Wire> {
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    StreamableHttpClientTransport::with_client(
        Wire {
            client,
            fixed: headers.clone(),
            tokens: tokens.filter(|_| !headers.contains_key(header::AUTHORIZATION)),
        },
        config,
    )
}

/// Our client in rmcp's shape.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    client: Client,
    /// Set by the operator, secrets among them.
    fixed: HeaderMap,
    /// What somebody agreed to with `clawk mcp login`; not where the operator sets a token.
    tokens: Option<Arc<Tokens>>,
}

type WireError = StreamableHttpError<EgressError>;

impl Wire {
    async fn send(
        &self,
        method: Method,
        uri: &str,
        session: Option<&str>,
        custom: HashMap<HeaderName, HeaderValue>,
        body: Bytes,
    ) -> Result<Response, WireError> {
        let url = Url::parse(uri).map_err(|_invalid| unusable("the endpoint is not a valid URL"))?;
        let mut headers = self.fixed.clone();
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(session) = session {
            headers.insert(
                SESSION,
                HeaderValue::from_str(session)
                    .map_err(|_bad| unusable("the session id is not a valid header"))?,
            );
        }
        headers.extend(custom.into_iter().map(|(name, value)| (Some(name), value)));
        let request = Request {
            method,
            url,
            headers,
            body,
        };
        self.with_token(request).await
    }

    /// Sends it with the token that there is. A server that refuses it has done nothing: it is sent once more with a new one.
    async fn with_token(&self, mut request: Request) -> Result<Response, WireError> {
        let mut token = match &self.tokens {
            Some(tokens) => tokens.bearer().await.map_err(no_token)?,
            None => None,
        };
        loop {
            if let Some(token) = &token {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                // silent-ok: the reason would repeat the token
                let mut value = value.map_err(|_| unusable("the token is not a valid header"))?;
                value.set_sensitive(true);
                request.headers.insert(header::AUTHORIZATION, value);
            }
            let answer = self
                .client
                .send(request.clone())
                .await
                .map_err(StreamableHttpError::Client)?;
            let renewed = match (answer.status(), &self.tokens, &token) {
                (StatusCode::UNAUTHORIZED, Some(tokens), Some(old)) => {
                    tokens.renewed(old).await.map_err(no_token)?
                }
                (StatusCode::UNAUTHORIZED, Some(_), None) => None,
                _ => return Ok(answer),
            };
            let renewed = renewed.filter(|fresh| Some(fresh) != token.as_ref());
            token = Some(
                renewed.ok_or_else(|| unusable("it wants a token: agree to one with `clawk mcp login`"))?,
            );
        }
    }
}

fn unusable(text: &'static str) -> WireError {
    StreamableHttpError::UnexpectedServerResponse(Cow::from(text))
}

fn no_token(error: OAuthError) -> WireError {
    StreamableHttpError::UnexpectedServerResponse(Cow::from(error.to_string()))
}

impl StreamableHttpClient for Wire {
    type Error = EgressError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, WireError> {
        let body = Bytes::from(serde_json::to_vec(&message)?);
        let response = self
            .send(Method::POST, &uri, session_id.as_deref(), custom_headers, body)
            .await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let text = |name: &HeaderName| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let session = text(&SESSION);
        let kind = text(&header::CONTENT_TYPE);
        if !status.is_success() {
            // A JSON-RPC error in the body says more than the status.
            let body = response.beginning(MAX_ERROR_BYTES).await;
            return match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
                Ok(error @ ServerJsonRpcMessage::Error(_)) => {
                    Ok(StreamableHttpPostResponse::Json(error, session))
                }
                Ok(_) | Err(_) => Err(HttpStatusError::new(status.as_u16(), None).into()),
            };
        }
        match kind.as_deref() {
            Some(kind) if kind.starts_with("text/event-stream") => {
                Ok(StreamableHttpPostResponse::Sse(events(response), session))
            }
            Some(kind) if kind.starts_with("application/json") => {
                let body = response.bytes().await.map_err(StreamableHttpError::Client)?;
                Ok(StreamableHttpPostResponse::Json(
                    serde_json::from_slice(&body)?,
                    session,
                ))
            }
            _ if !matches!(message, ClientJsonRpcMessage::Request(_)) => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            kind => Err(StreamableHttpError::UnexpectedContentType(
                kind.map(str::to_owned),
            )),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), WireError> {
        self.send(
            Method::DELETE,
            &uri,
            Some(&session_id),
            custom_headers,
            Bytes::new(),
        )
        .await
        .map(drop)
    }

    /// Not opened: nothing that a server tells unasked changes what a governed call may do.
    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, WireError> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

/// The events of a body; the client's size limit bounds them all together.
fn events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let pieces = futures::stream::unfold(Some(response), |response| async move {
        let mut response = response?;
        match response.chunk().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(response))),
            Ok(None) => None,
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    });
    SseStream::from_bytes_stream(pieces).boxed()
}
