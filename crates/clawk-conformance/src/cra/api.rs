//! A target's HTTP API: one blocking client with a time limit for every request.

use std::sync::Arc;

use anyhow::{Context, Result};
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_secrets::{EnvironmentSource, Secret};
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Largest response, in bytes.
const ANSWER_BYTES: u64 = 64 * 1024 * 1024;
const DEADLINES: ClientDeadlines = ClientDeadlines {
    connect_ms: 5_000,
    first_byte_ms: 30_000,
    idle_ms: 10_000,
    total_ms: 60_000,
};

/// The credentials of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CraAuth {
    /// The token as `Authorization: Bearer`.
    #[default]
    Bearer,
    /// The token as `X-API-Key`.
    ApiKey,
    /// An invalid token.
    Wrong,
    /// No token.
    None,
}

/// A response.
#[derive(Debug, Clone)]
pub(super) struct CraResponse {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) text: String,
}

impl CraResponse {
    /// Returns the body as JSON; null if it is not JSON.
    pub(super) fn body_json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// Returns the body as JSON Lines.
    ///
    /// # Errors
    /// A line is not JSON.
    pub(super) fn body_lines(&self) -> Result<Vec<Value>> {
        self.text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| serde_json::from_str(line).with_context(|| format!("`{line}` is not valid JSON")))
            .collect()
    }
}

/// An API and its token.
#[derive(Clone)]
pub(super) struct CraApi {
    pub(super) base: Url,
    client: EgressClient,
    runtime: Arc<Runtime>,
    token: Option<Secret>,
}

impl CraApi {
    pub(super) fn new(base: &str, token: Option<Secret>) -> Result<Self> {
        let base = Url::parse(base).with_context(|| format!("`{base}` is not a valid URL"))?;
        Ok(Self {
            client: EgressClient::for_provider(&base, &EnvironmentSource::Process, DEADLINES, ANSWER_BYTES)?,
            runtime: Arc::new(
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?,
            ),
            base,
            token,
        })
    }

    /// Returns whether the target has a token, so that refusals can be tested.
    pub(super) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the headers with the credentials.
    pub(super) fn auth_headers(&self, auth: CraAuth) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let bearer = |token: &str| HeaderValue::try_from(format!("Bearer {token}"));
        match (auth, &self.token) {
            (CraAuth::Bearer, Some(token)) => {
                headers.insert(header::AUTHORIZATION, bearer(token.expose())?);
            }
            (CraAuth::ApiKey, Some(token)) => {
                headers.insert("x-api-key", HeaderValue::try_from(token.expose())?);
            }
            (CraAuth::Wrong, _) => {
                headers.insert(header::AUTHORIZATION, bearer("nobody-gave-this-out")?);
            }
            (CraAuth::Bearer | CraAuth::ApiKey, None) | (CraAuth::None, _) => {}
        }
        headers.values_mut().for_each(|value| value.set_sensitive(true));
        Ok(headers)
    }

    /// Sends one request.
    ///
    /// # Errors
    /// There is no response.
    pub(super) fn send_request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        auth: CraAuth,
        accept: Option<&str>,
    ) -> Result<CraResponse> {
        let url = self
            .base
            .join(path)
            .with_context(|| format!("`{path}` is not a valid path"))?;
        let mut headers = self.auth_headers(auth)?;
        let mut bytes = Vec::new();
        if let Some(body) = body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            // A string is sent unchanged as the body, so that a case can send invalid JSON.
            bytes = match body {
                Value::String(text) => text.clone().into_bytes(),
                other => serde_json::to_vec(other)?,
            };
        }
        if let Some(accept) = accept {
            headers.insert(header::ACCEPT, HeaderValue::try_from(accept)?);
        }
        let request = Request {
            method: Method::from_bytes(method.as_bytes())?,
            url,
            headers,
            body: bytes.into(),
        };
        self.runtime.block_on(async {
            let response = self.client.send(request).await?;
            let status = response.status().as_u16();
            let content_type = response
                .headers()
                .get(header::CONTENT_TYPE)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned();
            let bytes = response.bytes().await?;
            Ok(CraResponse {
                status,
                content_type,
                text: String::from_utf8_lossy(&bytes).into_owned(),
            })
        })
    }
}
