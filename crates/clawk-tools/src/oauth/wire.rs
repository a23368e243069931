//! Requests to MCP servers and authorization servers. Their URLs come from third parties, so each is checked: it must be https, or
//! an address of the private network that the operator opened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_egress::{ClientDeadlines, EgressClient, EgressError, HostAllowList, HostPattern, Request, Url};
use clawk_kernel::time::Clock;
use clawk_secrets::EnvironmentSource;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::OAuthError;
use super::store::{ClientRegistration, OAuthClientSecret, TokenRecord};

const MAX_ANSWER_BYTES: u64 = 256 << 10;
const ANSWER_MS: u64 = 15_000;

/// Requests metadata and tokens. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct OAuthClient {
    client: EgressClient,
    rules: HostAllowList,
}

/// A grant from an authorization server: tokens and their lifetime.
#[derive(Deserialize)]
pub(super) struct TokenGrant {
    access_token: String,
    token_type: String,
    #[serde(default)]
    refresh_token: Option<String>,
    #[serde(default)]
    expires_in: Option<i64>,
    #[serde(default)]
    scope: Option<String>,
}

impl TokenGrant {
    /// Converts the grant to a stored record. If there is no new refresh token, the old one stays valid.
    pub(super) fn into_record(
        self,
        client: ClientRegistration,
        resource: &str,
        refresh: Option<String>,
        clock: &dyn Clock,
    ) -> TokenRecord {
        let now_s = clock.now().as_millis() / 1000;
        TokenRecord {
            resource: resource.to_owned(),
            client,
            access_token: self.access_token,
            refresh_token: self.refresh_token.or(refresh),
            until_s: self.expires_in.map(|left| now_s.saturating_add(left.max(0))),
            scope: self.scope,
        }
    }
}

/// An HTTP answer that was received completely; its status may be an error.
#[derive(Debug)]
pub(super) struct OAuthResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The JSON body; `null` if it is not JSON.
    pub(super) body: Value,
}

impl OAuthClient {
    /// Creates a client. `private`: addresses of the private network that the operator opened.
    ///
    /// # Errors
    /// The root certificates can't be used.
    pub fn new(private: &[HostPattern], env: &EnvironmentSource) -> Result<Self, EgressError> {
        let everywhere = "*".to_owned().try_into();
        let everywhere =
            everywhere.map_err(|error: clawk_egress::PatternError| EgressError::Setup(error.to_string()))?;
        let rules = HostAllowList {
            hosts: vec![everywhere],
            allow_private: private.to_vec(),
            any_port: true,
            max_redirects: 0,
            max_response_bytes: MAX_ANSWER_BYTES,
            ..HostAllowList::default()
        };
        let deadlines = ClientDeadlines {
            connect_ms: ANSWER_MS,
            first_byte_ms: ANSWER_MS,
            idle_ms: ANSWER_MS,
            total_ms: ANSWER_MS,
        };
        Ok(Self {
            client: EgressClient::with_allow_list(rules.clone(), env, deadlines)?,
            rules,
        })
    }

    /// Parses a URL to which secrets may be sent: https, or an opened address of the private network.
    pub(super) fn safe_url(&self, text: &str) -> Result<Url, OAuthError> {
        let bad = |why: String| {
            OAuthError::Protocol(format!(
                "`{}` can't be used: {why}",
                text.chars().take(200).collect::<String>()
            ))
        };
        let url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
        let target = self
            .rules
            .judge_url(&url)
            .map_err(|refusal| bad(refusal.to_string()))?;
        if url.scheme() != "https" && !target.private {
            return Err(bad("it is not https".to_owned()));
        }
        Ok(url)
    }

    pub(super) async fn send_request(&self, request: Request) -> Result<OAuthResponse, OAuthError> {
        let place = format!(
            "{}{}",
            request.url.host_str().unwrap_or_default(),
            request.url.path()
        );
        let wire = |cause| OAuthError::Wire {
            place: place.clone(),
            cause,
        };
        let answer = self.client.send(request).await.map_err(wire)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let stream = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let body = if stream {
            bytes::Bytes::new()
        } else {
            answer.read_beginning(256 << 10).await
        };
        // silent-ok: callers that need JSON check for `null`
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Ok(OAuthResponse {
            status,
            headers,
            body,
        })
    }

    pub(super) async fn get(&self, url: Url) -> Result<Option<Value>, OAuthError> {
        let request = Request {
            method: Method::GET,
            url,
            headers: HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]),
            body: bytes::Bytes::new(),
        };
        let answer = self.send_request(request).await?;
        Ok((answer.status.is_success() && answer.body.is_object()).then_some(answer.body))
    }

    pub(super) async fn post_json(&self, url: Url, body: &Value) -> Result<OAuthResponse, OAuthError> {
        let mut request = Request::post(url, "application/json", body.to_string());
        request.headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        self.send_request(request).await
    }

    /// Posts a form to one of the authorization server's endpoints, with the client's authentication.
    pub(super) async fn post_form(
        &self,
        endpoint: &str,
        client: &ClientRegistration,
        form: &[(&str, &str)],
    ) -> Result<OAuthResponse, OAuthError> {
        let url = self.safe_url(endpoint)?;
        let mut pairs = url::encode_form(form);
        let mut headers = HeaderMap::from_iter([
            (
                CONTENT_TYPE,
                HeaderValue::from_static("application/x-www-form-urlencoded"),
            ),
            (ACCEPT, HeaderValue::from_static("application/json")),
        ]);
        match &client.secret {
            Some(OAuthClientSecret(secret)) if !client.in_form => {
                let pair = format!(
                    "{}:{}",
                    url::percent_encode(&client.id),
                    url::percent_encode(secret)
                );
                let value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)));
                let mut value = value.map_err(|error| OAuthError::Protocol(error.to_string()))?;
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
            secret => {
                pairs.push_str(&format!("&client_id={}", url::percent_encode(&client.id)));
                if let Some(OAuthClientSecret(secret)) = secret {
                    pairs.push_str(&format!("&client_secret={}", url::percent_encode(secret)));
                }
            }
        }
        self.send_request(Request {
            method: Method::POST,
            url,
            headers,
            body: pairs.into(),
        })
        .await
    }

    /// Sends a request to the token endpoint.
    pub(super) async fn request_token(
        &self,
        client: &ClientRegistration,
        form: &[(&str, &str)],
    ) -> Result<TokenGrant, OAuthError> {
        let answer = self.post_form(&client.token_endpoint, client, form).await?;
        parse_grant(&answer)
    }
}

/// Parses the grant in a token endpoint's answer.
pub(super) fn parse_grant(answer: &OAuthResponse) -> Result<TokenGrant, OAuthError> {
    if !answer.status.is_success() {
        return Err(OAuthError::Refused(error_reason(answer)));
    }
    let granted: TokenGrant = serde_json::from_value(answer.body.clone())
        .map_err(|_| OAuthError::Protocol("the answer holds no access token".to_owned()))?; // silent-ok: its reason may quote it
    if !granted.token_type.eq_ignore_ascii_case("bearer") {
        return Err(OAuthError::Protocol("the token is not a bearer token".to_owned()));
    }
    Ok(granted)
}

/// The text of a protocol error: its code and description.
pub(super) fn error_reason(answer: &OAuthResponse) -> String {
    let text = |name: &str| answer.body.get(name).and_then(Value::as_str).unwrap_or_default();
    let words = format!("{} {}", text("error"), text("error_description"));
    let words: String = words
        .trim()
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect();
    match words.is_empty() {
        true => format!("it answers with {}", answer.status),
        false => words,
    }
}

/// Encoding of texts for URLs and forms.
pub(super) mod url {
    /// Encodes a text as one form value.
    pub(in crate::oauth) fn percent_encode(text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }

    /// Encodes pairs as a form.
    pub(in crate::oauth) fn encode_form(pairs: &[(&str, &str)]) -> String {
        let pairs = pairs
            .iter()
            .map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}
