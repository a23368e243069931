//! A target's HTTP API: one client, blocking, with every wait bounded.

use std::sync::Arc;

use anyhow::{Context, Result};
use clawk_egress::{Client, Deadlines, Request, Url};
use clawk_secrets::{Env, Secret};
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::Value;
use tokio::runtime::Runtime;

/// The largest answer, bytes.
const ANSWER_BYTES: u64 = 64 * 1024 * 1024;
const DEADLINES: Deadlines = Deadlines {
    connect_ms: 5_000,
    first_byte_ms: 30_000,
    idle_ms: 10_000,
    total_ms: 60_000,
};

/// Who the request is from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Auth {
    /// The token, as `Authorization: Bearer`.
    #[default]
    Bearer,
    /// The token, as `X-API-Key`.
    ApiKey,
    /// A token that nobody gave out.
    Wrong,
    /// No token.
    None,
}

/// An answer.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) text: String,
}

impl Answer {
    /// The body as JSON; null where it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The body as JSON Lines.
    ///
    /// # Errors
    /// A line is no JSON.
    pub(super) fn lines(&self) -> Result<Vec<Value>> {
        self.text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| serde_json::from_str(line).with_context(|| format!("`{line}` is not valid JSON")))
            .collect()
    }
}

/// An API and the token for it.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) base: Url,
    client: Client,
    runtime: Arc<Runtime>,
    token: Option<Secret>,
}

impl Api {
    pub(super) fn new(base: &str, token: Option<Secret>) -> Result<Self> {
        let base = Url::parse(base).with_context(|| format!("`{base}` is not a valid URL"))?;
        Ok(Self {
            client: Client::for_provider(&base, &Env::Process, DEADLINES, ANSWER_BYTES)?,
            runtime: Arc::new(
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?,
            ),
            base,
            token,
        })
    }

    /// Whether the target was given a token, so that it can be asked to refuse others.
    pub(super) const fn guarded(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The headers that say who asks.
    pub(super) fn credentials(&self, auth: Auth) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let bearer = |token: &str| HeaderValue::try_from(format!("Bearer {token}"));
        match (auth, &self.token) {
            (Auth::Bearer, Some(token)) => {
                headers.insert(header::AUTHORIZATION, bearer(token.expose())?);
            }
            (Auth::ApiKey, Some(token)) => {
                headers.insert("x-api-key", HeaderValue::try_from(token.expose())?);
            }
            (Auth::Wrong, _) => {
                headers.insert(header::AUTHORIZATION, bearer("nobody-gave-this-out")?);
            }
            (Auth::Bearer | Auth::ApiKey, None) | (Auth::None, _) => {}
        }
        headers.values_mut().for_each(|value| value.set_sensitive(true));
        Ok(headers)
    }

    /// Sends one request.
    ///
    /// # Errors
    /// No answer.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        auth: Auth,
        accept: Option<&str>,
    ) -> Result<Answer> {
        let url = self
            .base
            .join(path)
            .with_context(|| format!("`{path}` is not a valid path"))?;
        let mut headers = self.credentials(auth)?;
        let mut bytes = Vec::new();
        if let Some(body) = body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            // A string is a body as it is, so that a case can send what is no JSON.
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
            Ok(Answer {
                status,
                content_type,
                text: String::from_utf8_lossy(&bytes).into_owned(),
            })
        })
    }
}
