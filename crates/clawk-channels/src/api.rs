//! A platform's HTTP API: one address that the operator or the vendor wrote down, JSON in and out, outcomes told apart.

use std::fmt;
use std::time::Duration;

use clawk_egress::{ClientDeadlines, DeadlinePhase, EgressClient, EgressError, Request, Url};
use clawk_kernel::ports::Delivery;
use clawk_secrets::EnvironmentSource;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::Value;

use crate::form::MultipartForm;

/// Largest answer of a platform, bytes.
const MAX_ANSWER_BYTES: u64 = 8 << 20;
/// Characters of a platform's own words that are shown.
const SHOWN_CHARS: usize = 300;
/// The longest wait that is read from a header, seconds.
const LONGEST_WAIT_S: f64 = 86_400.0;

/// An API.
#[derive(Clone)]
pub(crate) struct PlatformApi {
    client: EgressClient,
    base: Url,
    headers: HeaderMap,
}

impl fmt::Debug for PlatformApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Api({})", self.base.host_str().unwrap_or_default())
    }
}

/// A platform's answer.
#[derive(Debug)]
pub(crate) struct PlatformResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Null where it is not JSON: an empty body, or a proxy's page beside an error status.
    pub(crate) body: Value,
    /// There is a body, and it is not JSON.
    foreign: bool,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlatformFailure {
    /// Nothing was sent.
    NotSent(String),
    /// It may have arrived.
    Unknown(String),
}

impl PlatformFailure {
    pub(crate) fn reason(self) -> String {
        match self {
            Self::NotSent(reason) | Self::Unknown(reason) => reason,
        }
    }

    /// The outcome for a file when the connection failed during its upload. Nothing was posted yet, so it is safe to try again.
    pub(crate) fn not_uploaded(self) -> Delivery {
        Delivery::Retry {
            after_ms: None,
            reason: format!("its upload: {}", self.reason()),
        }
    }

    pub(crate) fn into_delivery(self) -> Delivery {
        match self {
            Self::NotSent(reason) => Delivery::Retry {
                after_ms: None,
                reason,
            },
            Self::Unknown(reason) => Delivery::Unknown { reason },
        }
    }
}

impl From<EgressError> for PlatformFailure {
    fn from(error: EgressError) -> Self {
        let reason = error.to_string();
        match error {
            EgressError::Refused(_)
            | EgressError::Setup(_)
            | EgressError::Dns { .. }
            | EgressError::Connect(_)
            | EgressError::Tls(_)
            | EgressError::Timeout {
                phase: DeadlinePhase::Connect,
                ..
            } => Self::NotSent(reason),
            EgressError::Timeout { .. }
            | EgressError::TooLarge(_)
            | EgressError::Broken(_)
            | EgressError::Onward(_) => Self::Unknown(reason),
        }
    }
}

impl PlatformApi {
    /// The API at `base`, which ends without a slash. An answer may take `patience`.
    ///
    /// # Errors
    /// The address can't be used, for people.
    pub(crate) fn new(base: &str, env: &EnvironmentSource, patience: Duration) -> Result<Self, String> {
        let url = base.trim_end_matches('/');
        let base = Url::parse(url).map_err(|error| format!("`base_url` can't be read: {error}"))?;
        if !base.username().is_empty() || base.password().is_some() {
            return Err("`base_url` holds a user or a password; write it as a secret".to_owned());
        }
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let deadlines = ClientDeadlines {
            first_byte_ms: patience_ms,
            ..ClientDeadlines::default()
        };
        let client = EgressClient::for_provider(&base, env, deadlines, MAX_ANSWER_BYTES)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            client,
            base,
            headers: HeaderMap::new(),
        })
    }

    /// The same with `Authorization: SCHEME SECRET` on every request.
    ///
    /// # Errors
    /// The secret can't stand in a header.
    pub(crate) fn with_authorization(mut self, scheme: &str, secret: &str) -> Result<Self, String> {
        let value = HeaderValue::from_str(&format!("{scheme} {secret}"));
        let mut value = value.map_err(|_invalid| "the secret can't stand in a header".to_owned())?;
        value.set_sensitive(true);
        self.headers.insert(AUTHORIZATION, value);
        Ok(self)
    }

    /// `Authorization` as every request has it, for files, which may lie on another host.
    pub(crate) fn authorization(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(value) = self.headers.get(AUTHORIZATION) {
            headers.insert(AUTHORIZATION, value.clone());
        }
        headers
    }

    /// With one more header on every request.
    pub(crate) fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// An address below the base. `path` is ours; what comes from outside in it is encoded by the caller.
    pub(crate) fn endpoint_url(&self, path: &str) -> Result<Url, PlatformFailure> {
        let text = if path.is_empty() {
            self.base.to_string()
        } else {
            format!("{}/{path}", self.base.as_str().trim_end_matches('/'))
        };
        Url::parse(&text)
            .map_err(|_invalid| PlatformFailure::NotSent("the request's address can't be made".to_owned()))
    }

    /// One exchange of JSON. A success whose body is not JSON is a fault: something else than the API answered.
    pub(crate) async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<PlatformResponse, PlatformFailure> {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let json = bytes.is_some().then_some("application/json; charset=utf-8");
        let answer = self
            .send_bytes(method, path, json, bytes.unwrap_or_default(), &[])
            .await?;
        if answer.status.is_success() && answer.foreign {
            return Err(PlatformFailure::Unknown("the answer is not JSON".to_owned()));
        }
        Ok(answer)
    }

    /// POST of JSON.
    pub(crate) async fn post_json(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<PlatformResponse, PlatformFailure> {
        self.send_json(Method::POST, path, Some(body)).await
    }

    /// POST of a form with files.
    pub(crate) async fn upload_form(
        &self,
        path: &str,
        form: MultipartForm,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<PlatformResponse, PlatformFailure> {
        let (kind, body) = form.into_request_body().map_err(PlatformFailure::NotSent)?;
        let mut headers = more.to_vec();
        headers.push((CONTENT_TYPE, kind));
        self.send_bytes(Method::POST, path, None, body, &headers).await
    }

    /// One exchange with these bytes. The status alone says what became of it; the answer need not be JSON.
    pub(crate) async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&'static str>,
        body: Vec<u8>,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<PlatformResponse, PlatformFailure> {
        let mut headers = self.headers.clone();
        if let Some(kind) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        headers.extend(more.iter().cloned());
        let request = Request {
            method,
            url: self.endpoint_url(path)?,
            headers,
            body: body.into(),
        };
        let response = self.client.send(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await?;
        let body = serde_json::from_slice(&bytes).ok(); // silent-ok: kept in `foreign`
        Ok(PlatformResponse {
            status,
            headers,
            foreign: body.is_none() && !bytes.trim_ascii().is_empty(),
            body: body.unwrap_or(Value::Null),
        })
    }
}

impl PlatformResponse {
    /// The outcome for a file when the platform refused its upload. Nothing was posted yet, so it is safe to try again.
    pub(crate) fn not_uploaded(&self, why: &str) -> Delivery {
        let reason = bounded_line(&format!("its upload: {} {why}", self.status.as_u16()));
        match self.status.as_u16() {
            408 | 425 | 429 | 500..=599 => Delivery::Retry {
                after_ms: self.retry_after_ms(),
                reason,
            },
            _ => Delivery::Failed { reason },
        }
    }

    /// How long the platform wants to be left alone, milliseconds: its `Retry-After` in seconds.
    pub(crate) fn retry_after_ms(&self) -> Option<u64> {
        let text = self.headers.get(http::header::RETRY_AFTER)?.to_str().ok()?; // silent-ok: then our own wait counts
        seconds_ms(text.trim().parse().ok()?) // silent-ok: a date; our own wait counts
    }

    /// A text of the body.
    pub(crate) fn text(&self, pointer: &str) -> Option<&str> {
        self.body.pointer(pointer)?.as_str()
    }

    /// What became of a message by status alone: 2xx delivered, 408, 425, 429 later, other 4xx never; 5xx later where the same
    /// message twice is one, else unknown.
    pub(crate) fn delivery_by_status(
        &self,
        platform_id: Option<String>,
        idempotent: bool,
        why: &str,
    ) -> Delivery {
        let reason = bounded_line(&format!("{} {why}", self.status.as_u16()));
        match self.status.as_u16() {
            200..=299 => Delivery::Delivered { platform_id },
            408 | 425 | 429 => Delivery::Retry {
                after_ms: self.retry_after_ms(),
                reason,
            },
            500..=599 if !idempotent => Delivery::Unknown { reason },
            500..=599 => Delivery::Retry {
                after_ms: self.retry_after_ms(),
                reason,
            },
            _ => Delivery::Failed { reason },
        }
    }
}

/// Seconds as milliseconds.
pub(crate) fn seconds_ms(seconds: f64) -> Option<u64> {
    if !(0.0..=LONGEST_WAIT_S).contains(&seconds) {
        return None;
    }
    Some(
        Duration::from_secs_f64(seconds)
            .as_millis()
            .try_into()
            .unwrap_or(u64::MAX),
    )
}

/// A platform's own words, in one bounded line.
pub(crate) fn bounded_line(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.trim().chars().take(SHOWN_CHARS).collect()
}
