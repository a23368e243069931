//! `web-fetch` and `http-request`, through the guarded client: the plan's hosts, and then the SSRF guard.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use clawk_egress::{
    ClientDeadlines, EgressClient, EgressError, HostAllowList, Request as HttpRequest, Response,
    ScreenVerdict, Url,
};
use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_plan::{Network, ObtainedEnforcement, Plan, Request, SandboxRefusal};
use clawk_proto::place::UrlRefusal as Unfit;
use clawk_secrets::{EnvironmentSource, Secret, SecretRedactor};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BuiltinContext, html};
use crate::call::{ExecutorCall, failure_outcome, success_outcome, truncate_text};
use crate::egress::{EgressProxies, LedgerGuard, host_port};

/// The maximum size of the text that one call returns, in bytes.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// Headers of an answer that the model sees.
const SHOWN_HEADERS: [&str; 8] = [
    "content-type",
    "content-length",
    "location",
    "etag",
    "last-modified",
    "retry-after",
    "link",
    "www-authenticate",
];

/// Cached guarded clients, one per set of rules, because setting up TLS takes milliseconds.
#[derive(Debug, Default)]
pub(crate) struct GuardedClients(Mutex<Vec<(HostAllowList, EgressClient)>>);

impl GuardedClients {
    fn get(&self, rules: &HostAllowList, env: &EnvironmentSource) -> Result<EgressClient, EgressError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = known.iter().find(|(of, _)| of == rules) {
            return Ok(client.clone());
        }
        let client = EgressClient::with_allow_list(rules.clone(), env, ClientDeadlines::default())?;
        if known.len() >= 16 {
            known.remove(0);
        }
        known.push((rules.clone(), client.clone()));
        Ok(client)
    }
}

/// The plan's network part as rules of the guard.
fn network_rules(exits: &EgressProxies, network: &Network) -> HostAllowList {
    HostAllowList {
        max_response_bytes: 8 << 20,
        ..exits.network_rules(network)
    }
}

fn bare_host(url: &Url) -> String {
    url.host_str()
        .unwrap_or_default()
        .trim_matches(['[', ']'])
        .to_owned()
}

pub(super) fn preflight_url(url: &str, plan: &Plan) -> Result<(), SandboxRefusal> {
    plan.check_available()?;
    // An invalid URL reaches nothing; the run reports it to the model.
    let Ok(url) = Url::parse(url) else { return Ok(()) };
    let host = bare_host(&url);
    plan.preflight(&Request::Url {
        host: &host,
        port: url.port_or_known_default().unwrap_or(0),
    })
}

/// A request as a call asks for it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct WebRequest {
    pub(super) url: String,
    #[serde(default)]
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) body: Option<String>,
    #[serde(default)]
    pub(super) raw: bool,
}

/// The key of a declared provider. It is added after the request was screened for secrets, and removed from the answer.
#[derive(Debug)]
pub(super) struct RequestKey<'a> {
    pub(super) name: HeaderName,
    pub(super) value: HeaderValue,
    pub(super) secret: &'a Secret,
}

pub(super) async fn run_fetch(
    call: &ExecutorCall<'_>,
    shared: &BuiltinContext,
) -> Result<RunOutcome, RunError> {
    let args: WebRequest = match call.parse() {
        Ok(args) => args,
        Err(outcome) => return Ok(outcome),
    };
    let raw = args.raw;
    let reply = match send_once(
        call,
        shared,
        WebRequest {
            method: None,
            body: None,
            ..args
        },
        None,
    )
    .await
    {
        Ok(reply) => reply,
        Err(end) => return end,
    };
    let body = String::from_utf8_lossy(&reply.body);
    let is_html = reply.content_type.contains("html");
    if !is_html && body.bytes().take(8 << 10).any(|byte| byte == 0) {
        return Ok(failure_outcome(format!(
            "the answer is binary ({}, {} bytes)",
            reply.content_type,
            reply.body.len()
        )));
    }
    let text = match (is_html && !raw, &body) {
        (true, page) => match html::extract_readable(page) {
            (Some(title), text) => format!("{title}\n\n{text}"),
            (None, text) => text,
        },
        (false, plain) => plain.clone().into_owned(),
    };
    let (shown, truncated) = truncate_text(&text, MAX_TEXT_BYTES);
    let mut facts = reply.facts;
    facts.insert("truncated".to_owned(), Value::Bool(truncated));
    let shown = if reply.ok {
        shown.to_owned()
    } else {
        format!("[status {}]\n{shown}", reply.status)
    };
    Ok(RunOutcome {
        is_error: !reply.ok,
        ..success_outcome(shown, Value::Object(facts))
    })
}

pub(super) async fn run_request(
    call: &ExecutorCall<'_>,
    shared: &BuiltinContext,
) -> Result<RunOutcome, RunError> {
    let args: WebRequest = match call.parse() {
        Ok(args) => args,
        Err(outcome) => return Ok(outcome),
    };
    let reply = match send_once(call, shared, args, None).await {
        Ok(reply) => reply,
        Err(end) => return end,
    };
    let body = String::from_utf8_lossy(&reply.body);
    let (shown, truncated) = truncate_text(&body, MAX_TEXT_BYTES);
    let mut facts = reply.facts;
    facts.insert("truncated".to_owned(), Value::Bool(truncated));
    let text = format!("[status {}]\n{shown}", reply.status);
    Ok(RunOutcome {
        is_error: !reply.ok,
        ..success_outcome(text, Value::Object(facts))
    })
}

/// Adds the enforcement to an outcome, for success and failure.
pub(super) fn add_enforcement(outcome: RunOutcome) -> RunOutcome {
    RunOutcome {
        obtained: ObtainedEnforcement::in_process("egress:guarded"),
        ..outcome
    }
}

/// Sends the request of a search. Asking changes nothing at the provider, so a failure is never of unknown outcome.
pub(super) async fn send_search(
    call: &ExecutorCall<'_>,
    shared: &BuiltinContext,
    request: WebRequest,
    key: Option<RequestKey<'_>>,
) -> Result<FetchedResponse, Result<RunOutcome, RunError>> {
    match send_once(call, shared, request, key).await {
        Err(Err(RunError::Unknown(reason))) => Err(Ok(failure_outcome(reason))),
        other => other,
    }
}

pub(super) struct FetchedResponse {
    pub(super) status: u16,
    pub(super) ok: bool,
    pub(super) content_type: String,
    pub(super) body: bytes::Bytes,
    facts: serde_json::Map<String, Value>,
}

/// Sends one request. The error side is the final result of the call.
async fn send_once(
    call: &ExecutorCall<'_>,
    shared: &BuiltinContext,
    args: WebRequest,
    key: Option<RequestKey<'_>>,
) -> Result<FetchedResponse, Result<RunOutcome, RunError>> {
    let bad = |text: String| Err(Ok(failure_outcome(text)));
    let url = match Url::parse(&args.url) {
        Ok(url) => url,
        Err(error) => return bad(format!("`url` can't be read: {error}")),
    };
    let method = args
        .method
        .unwrap_or_else(|| "GET".to_owned())
        .to_ascii_uppercase();
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return bad("`method` is not a valid HTTP method".to_owned());
    };
    if method == Method::CONNECT || method == Method::TRACE {
        return bad(format!("`method` {method} is not sent"));
    }
    let mut headers = match parse_headers(&args.headers) {
        Ok(headers) => headers,
        Err(name) => return bad(format!("`headers`: `{name}` is not a header that may be set")),
    };
    let (url, body) = screen_request(shared, url, &mut headers, args.body).map_err(Err)?;
    let secrets = put_in(call, shared, &url, &mut headers, key).map_err(Err)?;
    let safe = matches!(method, Method::GET | Method::HEAD | Method::OPTIONS);
    let client = match shared
        .clients
        .get(&network_rules(&shared.exits, call.plan.network()), &shared.env)
    {
        Ok(client) => client,
        Err(error) => return Err(Err(RunError::Unavailable(error.to_string()))),
    };
    let told = LedgerGuard(Arc::default(), &call.connections);
    let request = HttpRequest {
        method,
        url,
        headers,
        body,
    };
    match client.send_told(request, &told.0).await {
        Ok(response) => read(response, safe, &secrets).await,
        Err(error) => Err(outcome_from_error(error, safe)),
    }
}

/// Screens the request for secrets, as for sandboxed tools.
fn screen_request(
    shared: &BuiltinContext,
    mut url: Url,
    headers: &mut HeaderMap,
    body: Option<String>,
) -> Result<(Url, bytes::Bytes), RunError> {
    let body = body.unwrap_or_default().into_bytes();
    let Some(screen) = shared.exits.secret_screen() else {
        return Ok((url, body.into()));
    };
    let look = |what: &str, bytes: &[u8]| {
        let blocked = |what: &str| {
            RunError::Sandbox(SandboxRefusal::Blocked {
                rule: "secret_scanning".to_owned(),
                subject: format!("a secret in {what}"),
                allowed: "requests without secrets in them".to_owned(),
            })
        };
        let (mut screening, mut out) = (screen.begin_scan(), Vec::with_capacity(bytes.len()));
        for screened in [screening.push(bytes, &mut out), screening.finish(&mut out)] {
            if let ScreenVerdict::Blocked(kind) = screened {
                return Err(blocked(&format!("{what} ({kind})")));
            }
        }
        Ok(out)
    };
    let before = url.as_str().as_bytes();
    let after = look("the URL", before)?;
    if after != before {
        let text = String::from_utf8_lossy(&after).into_owned();
        let host = url.host_str().map(str::to_owned);
        url = Url::parse(&text)
            .ok()
            .filter(|url| url.host_str() == host.as_deref())
            .ok_or_else(|| {
                RunError::Sandbox(SandboxRefusal::Blocked {
                    rule: "secret_scanning".to_owned(),
                    subject: "a secret in the URL".to_owned(),
                    allowed: "requests without secrets in them".to_owned(),
                })
            })?;
    }
    for (name, value) in headers.iter_mut() {
        let after = look(&format!("the header `{name}`"), value.as_bytes())?;
        *value = HeaderValue::from_bytes(&after).map_err(|error| RunError::Unavailable(error.to_string()))?;
    }
    Ok((url, look("the body", &body)?.into()))
}

/// Inserts the secrets that are bound to this tool and host into the headers that their bindings name (R37). They are removed from
/// the answer.
fn put_in(
    call: &ExecutorCall<'_>,
    shared: &BuiltinContext,
    url: &Url,
    headers: &mut HeaderMap,
    key: Option<RequestKey<'_>>,
) -> Result<SecretRedactor, RunError> {
    let (to, secure) = (host_port(url), url.scheme() == "https");
    let mut secrets = Vec::new();
    for (binding, value) in shared.exits.secret_headers(call.tool, &to.host, to.port, secure) {
        let unfit = |_error| {
            RunError::Unavailable(format!(
                "the secret `{}` can't be a header",
                binding.secret.name()
            ))
        };
        let name = HeaderName::from_bytes(binding.header.as_bytes())
            .map_err(|error| RunError::Unavailable(error.to_string()))?;
        let mut value = HeaderValue::from_str(&value).map_err(unfit)?;
        value.set_sensitive(true);
        headers.insert(name, value);
        secrets.push(&binding.secret);
    }
    if let Some(RequestKey {
        name,
        mut value,
        secret,
    }) = key
    {
        value.set_sensitive(true);
        headers.insert(name, value);
        secrets.push(secret);
    }
    Ok(SecretRedactor::new(secrets))
}

async fn read(
    response: Response,
    safe: bool,
    secrets: &SecretRedactor,
) -> Result<FetchedResponse, Result<RunOutcome, RunError>> {
    let status = response.status();
    let text = |name: &str| {
        response
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(|text| secrets.redact_text(text))
    };
    let content_type = text("content-type").unwrap_or_else(|| "without a content type".to_owned());
    let shown: serde_json::Map<String, Value> = SHOWN_HEADERS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), Value::String(text(name)?))))
        .collect();
    let mut url = response.url().clone();
    url.set_query(None);
    let mut facts = serde_json::Map::new();
    facts.insert("status_code".to_owned(), json!(status.as_u16()));
    facts.insert("url".to_owned(), Value::String(url.to_string()));
    facts.insert("headers".to_owned(), Value::Object(shown));
    let body = response
        .bytes()
        .await
        .map_err(|error| outcome_from_error(error, safe))?;
    let body = if secrets.is_empty() {
        body
    } else {
        let (mut clean, mut out) = (secrets.redact_stream(), Vec::with_capacity(body.len()));
        clean.push(&body, &mut out);
        clean.finish(&mut out);
        out.into()
    };
    facts.insert("bytes".to_owned(), json!(body.len()));
    Ok(FetchedResponse {
        status: status.as_u16(),
        ok: !status.is_client_error() && !status.is_server_error(),
        content_type,
        body,
        facts,
    })
}

/// Converts a failed exchange to the call's result: refused by the guard, surely without effect, or of unknown outcome.
fn outcome_from_error(error: EgressError, safe: bool) -> Result<RunOutcome, RunError> {
    let text = error.to_string();
    match error {
        // The first server has processed the request. Its effect remains, even if following the redirect failed.
        EgressError::Onward(_) if !safe => Err(RunError::Unknown(text)),
        EgressError::Onward(error) => outcome_from_error(*error, safe),
        EgressError::Refused(Unfit::Redirects(_) | Unfit::Downgrade) => Ok(failure_outcome(text)),
        EgressError::Refused(refusal) => Err(RunError::Sandbox(SandboxRefusal::Blocked {
            rule: match refusal {
                Unfit::Host(_) => "network.allowed_hosts",
                _ => "network.ssrf_protection",
            }
            .to_owned(),
            subject: refusal.to_string(),
            allowed: "public addresses of the hosts in `network.allowed_hosts`".to_owned(),
        })),
        EgressError::Setup(_) => Err(RunError::Unavailable(text)),
        EgressError::Dns { .. } | EgressError::Connect(_) | EgressError::Tls(_) => Ok(failure_outcome(text)),
        EgressError::Timeout { .. } | EgressError::TooLarge(_) | EgressError::Broken(_) if safe => {
            Ok(failure_outcome(text))
        }
        EgressError::Timeout { .. } | EgressError::TooLarge(_) | EgressError::Broken(_) => {
            Err(RunError::Unknown(text))
        }
    }
}

fn parse_headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let bad = || name.clone();
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_invalid| bad())?;
        if [
            header::HOST,
            header::CONTENT_LENGTH,
            header::TRANSFER_ENCODING,
            header::CONNECTION,
        ]
        .contains(&parsed)
        {
            return Err(bad());
        }
        headers.insert(parsed, HeaderValue::from_str(value).map_err(|_invalid| bad())?);
    }
    Ok(headers)
}
