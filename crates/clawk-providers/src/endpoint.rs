//! One HTTP endpoint: its client, its authentication, and error texts that are safe to show.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use clawk_core::ports::{ProviderError, Usage};
use clawk_egress::{ClientDeadlines, EgressClient, Request, Response, Url};
use clawk_secrets::SecretResolver;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use crate::attempt::unreadable_answer;
use crate::auth::EndpointAuth;
use crate::draft::shorten;
use crate::fault::AttemptFault;

/// Largest part of an error's body that is read, in bytes, and the largest part that is shown.
const ERROR_READ_MAX_BYTES: usize = 64 * 1024;
const ERROR_SHOWN_MAX_BYTES: usize = 1024;
/// Time limit for one question about the model, and the largest answer that is read.
const LOOK_UP: Duration = Duration::from_millis(700);
const LOOK_UP_MAX_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) url: Url,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) auth: EndpointAuth,
    pub(crate) resolver: SecretResolver,
    pub(crate) deadlines: ClientDeadlines,
    pub(crate) max_response_bytes: u64,
    /// The embedding model made longer vectors than the manifest wants, so `dimensions` is sent from then on.
    pub(crate) sends_dimensions: AtomicBool,
    /// The HTTP client. It is made at the first use, because that may read root certificates.
    pub(crate) client: OnceLock<EgressClient>,
}

impl Endpoint {
    /// Posts `body` once and returns the head of a successful response. If the server refused the token, a second request follows
    /// with a fresh one.
    pub(crate) async fn post_to(&self, url: Url, body: Bytes) -> Result<Response, AttemptFault> {
        self.post_as(url, HeaderValue::from_static("application/json"), body)
            .await
    }

    /// Like [`Self::post_to`], with a body of another media type.
    pub(crate) async fn post_as(
        &self,
        url: Url,
        kind: HeaderValue,
        body: Bytes,
    ) -> Result<Response, AttemptFault> {
        let response = self.send_request(url.clone(), kind.clone(), body.clone()).await?;
        let refused = response.status() == http::StatusCode::UNAUTHORIZED;
        let response = if refused && self.auth.forget_rejected() {
            self.send_request(url, kind, body).await?
        } else {
            response
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let headers = response.headers().clone();
        let said = response.read_beginning(ERROR_READ_MAX_BYTES).await;
        // Remove secrets before the text is parsed or cut: a secret that is cut in two would not be recognised.
        let said = self
            .resolver
            .redactor()
            .redact_text(&String::from_utf8_lossy(&said));
        Err(AttemptFault::of_status(status.as_u16(), &headers, &said))
    }

    /// Requests the list of models without a key. Any response shows that the endpoint is reachable, and the request costs nothing.
    /// `last` is the end of the endpoint's path, which the list's path replaces.
    pub(crate) async fn check_reachable(&self, last: &str) -> Result<(), AttemptFault> {
        let mut url = self.url.clone();
        let base = url.path().strip_suffix(last).unwrap_or_default();
        let path = format!("{base}/models");
        url.set_path(&path);
        let request = Request {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        self.http_client()?.send(request).await?;
        Ok(())
    }

    /// Reads a JSON document at `path` of the endpoint's server, with the endpoint's key. Returns `None` if there is none. The
    /// request only asks about the model and costs nothing.
    pub(crate) async fn look_up(&self, path: &str, body: Option<Value>) -> Option<Value> {
        // silent-ok throughout: a server without this document is treated as an ordinary one
        let mut url = self.url.clone();
        url.set_path(path);
        url.set_query(None);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.auth
            .apply_to_headers(&mut headers, &self.resolver)
            .await
            .ok()?;
        let (method, body) = match body {
            Some(body) => (Method::POST, Bytes::from(body.to_string())),
            None => (Method::GET, Bytes::new()),
        };
        let request = Request {
            method,
            url,
            headers,
            body,
        };
        let answer = self.http_client().ok()?.send(request);
        let answer = tokio::time::timeout(LOOK_UP, answer).await.ok()?.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let read = answer.read_beginning(LOOK_UP_MAX_BYTES);
        let read = tokio::time::timeout(LOOK_UP, read).await.ok()?;
        serde_json::from_slice(&read).ok()
    }

    /// Reads a JSON document with the endpoint's key.
    pub(crate) async fn get_json(&self, url: Url) -> Result<Value, AttemptFault> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.auth.apply_to_headers(&mut headers, &self.resolver).await?;
        let request = Request {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
        };
        let response = self.http_client()?.send(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let said = response.read_beginning(LOOK_UP_MAX_BYTES).await;
        if !status.is_success() {
            let said = self
                .resolver
                .redactor()
                .redact_text(&String::from_utf8_lossy(&said));
            return Err(AttemptFault::of_status(status.as_u16(), &headers, &said));
        }
        serde_json::from_slice(&said).map_err(unreadable_answer)
    }

    async fn send_request(&self, url: Url, kind: HeaderValue, body: Bytes) -> Result<Response, AttemptFault> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("text/event-stream, application/json"),
        );
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.auth.apply_to_headers(&mut headers, &self.resolver).await?;
        let request = Request {
            method: Method::POST,
            url,
            headers,
            body,
        };
        Ok(self.http_client()?.send(request).await?)
    }

    fn http_client(&self) -> Result<&EgressClient, AttemptFault> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let env = self.resolver.env();
        let client = EgressClient::for_provider(&self.url, env, self.deadlines, self.max_response_bytes)?;
        Ok(self.client.get_or_init(|| client))
    }

    /// Converts the fault to the kernel's error: adds the provider's name, removes secrets, shortens the text.
    pub(crate) fn provider_error(&self, fault: AttemptFault, usage: Option<Usage>) -> ProviderError {
        let host = self.url.host_str().unwrap_or_default();
        let said = self.resolver.redactor().redact_text(&fault.message);
        let mut message = format!(
            "provider `{}` ({host}): {}",
            self.name,
            shorten(&said, ERROR_SHOWN_MAX_BYTES)
        );
        if said.len() > ERROR_SHOWN_MAX_BYTES {
            message.push('…');
        }
        let AttemptFault {
            kind,
            status,
            retry_after_ms,
            cause,
            ..
        } = fault;
        ProviderError {
            kind,
            message,
            status,
            retry_after_ms,
            usage,
            cause: cause.map(Box::new),
        }
    }
}
