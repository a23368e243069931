//! One endpoint over HTTP: client, authentication, and errors that may be shown.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use clawk_core::ports::{ProviderError, Usage};
use clawk_egress::{ClientDeadlines, EgressClient, Request, Response, Url};
use clawk_secrets::SecretResolver;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use crate::attempt::unreadable;
use crate::auth::EndpointAuth;
use crate::draft::shorten;
use crate::fault::AttemptFault;

/// What is read of an error's body, and what is shown of it.
const ERROR_READ_MAX_BYTES: usize = 64 * 1024;
const ERROR_SHOWN_MAX_BYTES: usize = 1024;
/// How long one question about the model may take, and how much of its answer is read.
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
    /// Made at first use: it may read root certificates.
    pub(crate) client: OnceLock<EgressClient>,
}

impl Endpoint {
    /// Posts `body` once (a second time with a fresh token when the first was refused) and returns a success's head.
    pub(crate) async fn post_to(&self, url: Url, body: Bytes) -> Result<Response, AttemptFault> {
        self.post_as(url, HeaderValue::from_static("application/json"), body)
            .await
    }

    /// The same with a body of another media type.
    pub(crate) async fn post_as(
        &self,
        url: Url,
        kind: HeaderValue,
        body: Bytes,
    ) -> Result<Response, AttemptFault> {
        let response = self.send(url.clone(), kind.clone(), body.clone()).await?;
        let refused = response.status() == http::StatusCode::UNAUTHORIZED;
        let response = if refused && self.auth.rejected() {
            self.send(url, kind, body).await?
        } else {
            response
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let headers = response.headers().clone();
        let said = response.beginning(ERROR_READ_MAX_BYTES).await;
        // Secrets go before anything is taken apart or cut: what is cut could no longer be recognised.
        let said = self.resolver.redactor().clean(&String::from_utf8_lossy(&said));
        Err(AttemptFault::of_status(status.as_u16(), &headers, &said))
    }

    /// Asks for the list of models, without a key: any answer says that the endpoint is there, and none is paid for. `last`: what
    /// stands in the path in its place.
    pub(crate) async fn reach(&self, last: &str) -> Result<(), AttemptFault> {
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
        self.client()?.send(request).await?;
        Ok(())
    }

    /// Reads a JSON document at this path of the endpoint's own server, with the endpoint's own key; `None`: there is none. What is sent
    /// is a question about the model, and nothing that is paid for.
    pub(crate) async fn look_up(&self, path: &str, body: Option<Value>) -> Option<Value> {
        // silent-ok throughout: a server that does not say it is an ordinary one
        let mut url = self.url.clone();
        url.set_path(path);
        url.set_query(None);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.auth.apply(&mut headers, &self.resolver).await.ok()?;
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
        let answer = self.client().ok()?.send(request);
        let answer = tokio::time::timeout(LOOK_UP, answer).await.ok()?.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let read = answer.beginning(LOOK_UP_MAX_BYTES);
        let read = tokio::time::timeout(LOOK_UP, read).await.ok()?;
        serde_json::from_slice(&read).ok()
    }

    /// Reads a JSON document with the endpoint's own key.
    pub(crate) async fn get_json(&self, url: Url) -> Result<Value, AttemptFault> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.auth.apply(&mut headers, &self.resolver).await?;
        let request = Request {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
        };
        let response = self.client()?.send(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let said = response.beginning(LOOK_UP_MAX_BYTES).await;
        if !status.is_success() {
            let said = self.resolver.redactor().clean(&String::from_utf8_lossy(&said));
            return Err(AttemptFault::of_status(status.as_u16(), &headers, &said));
        }
        serde_json::from_slice(&said).map_err(unreadable)
    }

    async fn send(&self, url: Url, kind: HeaderValue, body: Bytes) -> Result<Response, AttemptFault> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("text/event-stream, application/json"),
        );
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.auth.apply(&mut headers, &self.resolver).await?;
        let request = Request {
            method: Method::POST,
            url,
            headers,
            body,
        };
        Ok(self.client()?.send(request).await?)
    }

    fn client(&self) -> Result<&EgressClient, AttemptFault> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let env = self.resolver.env();
        let client = EgressClient::for_provider(&self.url, env, self.deadlines, self.max_response_bytes)?;
        Ok(self.client.get_or_init(|| client))
    }

    /// The fault as the kernel is told: with the provider's name, without secrets, short.
    pub(crate) fn error(&self, fault: AttemptFault, usage: Option<Usage>) -> ProviderError {
        let host = self.url.host_str().unwrap_or_default();
        let said = self.resolver.redactor().clean(&fault.message);
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
