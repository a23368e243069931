//! The login by a person: in a browser, which returns to a local port (PKCE), or with a code on another device (RFC 8628).

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clawk_egress::Url;
use clawk_kernel::time::Clock;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::OAuthError;
use super::discover::{ProtectedResource, discover_resource};
use super::site::IssuerSite;
use super::store::{ClientRegistration, OAuthClientSecret, TokenRecord, fill_random};
use super::wire::{OAuthClient, OAuthResponse, TokenGrant, error_reason, parse_grant};

/// How long a person may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long the browser's request may take.
const BROWSER: Duration = Duration::from_secs(10);
/// The maximum size of the browser's request, in bytes.
const MAX_REQUEST: usize = 16 << 10;
/// The path to which the browser is redirected.
const BACK: &str = "/callback";
/// The pause between two polls in a login with a code, in seconds.
const POLL_S: u64 = 5;

/// How a person logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginMethod {
    /// In a browser on this machine.
    Browser,
    /// With a code on any device.
    Device,
}

/// The parameters of a login.
#[derive(Debug, Clone)]
pub struct LoginRequest {
    /// The MCP server's URL.
    pub server: Url,
    /// The login method.
    pub way: LoginMethod,
    /// The scope to request; `None`: the scope that the server names.
    pub scope: Option<String>,
    /// The client id, if this program is registered already; `None`: it registers itself.
    pub client_id: Option<String>,
    /// The client secret that belongs to the client id.
    pub client_secret: Option<String>,
    /// Hosts outside the authorization server's site that a person agreed to.
    pub also_hosts: Vec<String>,
}

/// Lets a person log in. `tell` gets what they must read: a URL, or a URL and a code.
///
/// # Errors
/// The server needs no token; nobody agreed in time; or an answer is invalid.
pub async fn run_login(
    web: &OAuthClient,
    asked: &LoginRequest,
    clock: &Arc<dyn Clock>,
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<TokenRecord, OAuthError> {
    let place = discover_resource(web, &asked.server, &asked.also_hosts).await?;
    let place = place.ok_or_else(|| OAuthError::Protocol("the server wants no token".to_owned()))?;
    tell(&format!("{} gives tokens for {}", place.issuer, place.resource));
    for host in &asked.also_hosts {
        tell(&format!("you agreed that {host} belongs to it"));
    }
    let mut scope = asked.scope.clone().or_else(|| place.scope.clone());
    if let Some(scope) = scope
        .as_mut()
        .filter(|scope| place.offline && !scope.split(' ').any(|one| one == "offline_access"))
    {
        scope.push_str(" offline_access");
    }
    let (granted, client) = match asked.way {
        LoginMethod::Browser => browser_login(web, &place, asked, scope.as_deref(), tell).await?,
        LoginMethod::Device => device_login(web, &place, asked, scope.as_deref(), tell).await?,
    };
    let mut entry = granted.into_record(client, &place.resource, None, &**clock);
    entry.scope = entry.scope.or(scope);
    // The entry is stored under the server's own URL, because tokens are looked up by it.
    asked.server.as_str().clone_into(&mut entry.resource);
    Ok(entry)
}

/// The client's registration: as configured, or by registering now (RFC 7591).
async fn register_client(
    web: &OAuthClient,
    place: &ProtectedResource,
    asked: &LoginRequest,
    back: Option<&str>,
) -> Result<ClientRegistration, OAuthError> {
    let of = |id: String, secret: Option<String>, method: Option<&str>| {
        let basic = place.methods.is_empty() || place.methods.iter().any(|one| one == "client_secret_basic");
        ClientRegistration {
            issuer: place.issuer.clone(),
            resource: place.resource.clone(),
            token_endpoint: place.token_endpoint.clone(),
            id,
            secret: secret.filter(|_| method != Some("none")).map(OAuthClientSecret),
            in_form: match method {
                Some(method) => method != "client_secret_basic",
                None => !basic,
            },
        }
    };
    if let Some(id) = &asked.client_id {
        return Ok(of(id.clone(), asked.client_secret.clone(), None));
    }
    let endpoint = place.registration_endpoint.as_deref().ok_or_else(|| {
        OAuthError::Protocol(format!(
            "`{}` lets no program register by itself: register clawk there and give its `--client-id`",
            place.issuer
        ))
    })?;
    let public = place.methods.is_empty() || place.methods.iter().any(|method| method == "none");
    let method = match (public, place.methods.first()) {
        (true, _) | (false, None) => "none",
        (false, Some(method)) if method == "client_secret_post" => "client_secret_post",
        (false, Some(_)) => "client_secret_basic",
    };
    let mut wanted = json!({
        "client_name": "clawk",
        // Without this, OpenID Connect servers assume a web site and refuse a redirect to loopback.
        "application_type": "native",
        "token_endpoint_auth_method": method,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    });
    if let Some(facts) = wanted.as_object_mut() {
        match back {
            Some(back) => facts.insert("redirect_uris".into(), json!([back])),
            None => facts.insert(
                "grant_types".into(),
                json!(["urn:ietf:params:oauth:grant-type:device_code", "refresh_token"]),
            ),
        };
    }
    let answer = web.post_json(web.safe_url(endpoint)?, &wanted).await?;
    let text = |name: &str| answer.body.get(name).and_then(Value::as_str);
    let id = text("client_id").filter(|_| answer.status.is_success());
    let id = id.ok_or_else(|| OAuthError::Refused(format!("registration: {}", error_reason(&answer))))?;
    let method = text("token_endpoint_auth_method").unwrap_or(method);
    Ok(of(
        id.to_owned(),
        text("client_secret").map(str::to_owned),
        Some(method),
    ))
}

fn secret_text() -> Result<String, OAuthError> {
    let mut bytes = [0; 32];
    fill_random(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

async fn browser_login(
    web: &OAuthClient,
    place: &ProtectedResource,
    asked: &LoginRequest,
    scope: Option<&str>,
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<(TokenGrant, ClientRegistration), OAuthError> {
    if !place.has_s256 {
        return Err(OAuthError::Protocol(format!(
            "`{}` does not say that it can do PKCE (S256); without it, a code could be used by somebody else",
            place.issuer
        )));
    }
    let endpoint = place.authorization_endpoint.as_deref();
    let endpoint =
        endpoint.ok_or_else(|| OAuthError::Protocol("there is no authorization endpoint".to_owned()))?;
    let mut address = web.safe_url(endpoint)?;
    let io = |error: std::io::Error| {
        OAuthError::Protocol(format!("no port for the browser to come back to: {error}"))
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(io)?;
    let back = format!(
        "http://127.0.0.1:{}{BACK}",
        listener.local_addr().map_err(io)?.port()
    );
    let client = register_client(web, place, asked, Some(&back)).await?;
    let (verifier, state) = (secret_text()?, secret_text()?);
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    {
        let mut query = address.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &client.id);
        query
            .append_pair("redirect_uri", &back)
            .append_pair("state", &state);
        query
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        query.append_pair("resource", &place.resource);
        if let Some(scope) = scope {
            query.append_pair("scope", scope);
            if scope.split(' ').any(|one| one == "offline_access") {
                query.append_pair("prompt", "consent");
            }
        }
    }
    tell(&format!("open in a browser on this machine:\n  {address}"));
    let late = || OAuthError::Late(PATIENCE.as_secs());
    let back_with = comes_back(&listener, &state, place);
    let code = tokio::time::timeout(PATIENCE, back_with)
        .await
        .map_err(|_| late())??; // silent-ok: told as late
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code.as_str()),
        ("redirect_uri", &back),
        ("code_verifier", &verifier),
        ("resource", &place.resource),
    ];
    Ok((web.request_token(&client, &form).await?, client))
}

/// Waits for the code from the browser. Other requests to the port are answered and ignored.
async fn comes_back(
    listener: &TcpListener,
    state: &str,
    place: &ProtectedResource,
) -> Result<String, OAuthError> {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let serving = async {
            let mut bytes = Vec::new();
            let mut piece = [0; 4096];
            while bytes.len() < MAX_REQUEST && !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut piece).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
                }
            }
            let found = parse_redirect(&String::from_utf8_lossy(&bytes), state, place);
            let (status, words) = match &found {
                None => ("404 Not Found", "Nothing is here."),
                Some(Ok(_)) => ("200 OK", "clawk has what it needs. You can close this page."),
                Some(Err(_)) => ("400 Bad Request", "This did not work. The terminal says why."),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{words}",
                words.len()
            );
            // silent-ok: only the code matters, not whether the browser shows a page
            let _shown = stream.write_all(answer.as_bytes()).await;
            let _flushed = stream.shutdown().await; // silent-ok: as above
            found
        };
        // silent-ok: a request that takes so long does not come from the browser
        if let Ok(Some(found)) = tokio::time::timeout(BROWSER, serving).await {
            return found;
        }
    }
}

/// Parses the browser's request. `None` if it is not the expected one. A request with another `state` is ignored, because another
/// web page may have sent it.
fn parse_redirect(
    request: &str,
    state: &str,
    place: &ProtectedResource,
) -> Option<Result<String, OAuthError>> {
    let target = request.strip_prefix("GET ")?.split(' ').next()?;
    let url = Url::parse(&format!("http://127.0.0.1{target}")).ok()?; // silent-ok: then it is not the browser's
    if url.path() != BACK {
        return None;
    }
    let of = |name: &str| {
        url.query_pairs()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    if of("state").as_deref() != Some(state) {
        return None;
    }
    let issuer = of("iss");
    if issuer.as_ref().is_some_and(|issuer| *issuer != place.issuer)
        || (place.names_issuer && issuer.is_none())
    {
        return Some(Err(OAuthError::Protocol(
            "the answer comes from another authorization server".to_owned(),
        )));
    }
    if let Some(error) = of("error") {
        let words: String = format!("{error} {}", of("error_description").unwrap_or_default());
        let words: String = words
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(300)
            .collect();
        return Some(Err(OAuthError::Refused(words)));
    }
    Some(of("code").ok_or_else(|| OAuthError::Protocol("the answer brings no code".to_owned())))
}

async fn device_login(
    web: &OAuthClient,
    place: &ProtectedResource,
    asked: &LoginRequest,
    scope: Option<&str>,
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<(TokenGrant, ClientRegistration), OAuthError> {
    let endpoint = place.device_endpoint.as_deref();
    let endpoint =
        endpoint.ok_or_else(|| OAuthError::Protocol(format!("`{}` gives no device codes", place.issuer)))?;
    let client = register_client(web, place, asked, None).await?;
    let mut form = vec![("resource", place.resource.as_str())];
    form.extend(scope.map(|scope| ("scope", scope)));
    let answer = web.post_form(endpoint, &client, &form).await?;
    let text = |name: &str| answer.body.get(name).and_then(Value::as_str);
    let (code, user, address) = match (text("device_code"), text("user_code"), text("verification_uri")) {
        (Some(code), Some(user), Some(address)) if answer.status.is_success() => (code, user, address),
        _ => return Err(OAuthError::Refused(error_reason(&answer))),
    };
    let site = IssuerSite {
        issuer: &place.issuer,
        agreed: &asked.also_hosts,
    };
    site.check_endpoint("page for codes", address)?;
    tell(&format!("open {address} on any device and enter {user}"));
    let number = |name: &str| answer.body.get(name).and_then(Value::as_u64);
    let patience = Duration::from_secs(number("expires_in").unwrap_or(PATIENCE.as_secs())).min(PATIENCE);
    let mut wait = Duration::from_secs(number("interval").unwrap_or(POLL_S).clamp(1, 60));
    let form = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", code),
        ("resource", place.resource.as_str()),
    ];
    let polling = async {
        loop {
            tokio::time::sleep(wait).await;
            let answer: OAuthResponse = web.post_form(&client.token_endpoint, &client, &form).await?;
            match answer.body.get("error").and_then(Value::as_str) {
                Some("authorization_pending") => {}
                Some("slow_down") => wait += Duration::from_secs(POLL_S),
                Some(_) | None => return parse_grant(&answer),
            }
        }
    };
    let granted = tokio::time::timeout(patience, polling).await;
    let granted = granted.map_err(|_| OAuthError::Late(patience.as_secs()))??; // silent-ok: told as late
    Ok((granted, client))
}

#[cfg(test)]
pub(super) fn returned_for_tests(
    request: &str,
    state: &str,
    place: &ProtectedResource,
) -> Option<Result<String, OAuthError>> {
    parse_redirect(request, state, place)
}
