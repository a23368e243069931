//! Finds out where tokens for a server come from: first its protected-resource metadata (RFC 9728), then the authorization server's
//! (RFC 8414, OpenID Connect Discovery). The two must agree.

use clawk_egress::Url;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::OAuthError;
use super::site::IssuerSite;
use super::wire::OAuthClient;

/// A server, and its authorization server.
#[derive(Debug, Clone)]
pub struct ProtectedResource {
    /// The resource for which a token is requested.
    pub resource: String,
    /// The authorization server's issuer URL.
    pub issuer: String,
    /// The scope to request, if the server names one.
    pub scope: Option<String>,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) token_endpoint: String,
    pub(super) registration_endpoint: Option<String>,
    pub(super) device_endpoint: Option<String>,
    /// The supported methods of client authentication.
    pub(super) methods: Vec<String>,
    /// Whether the browser's redirect names the issuer.
    pub(super) names_issuer: bool,
    /// Whether the server supports PKCE with SHA-256.
    pub(super) has_s256: bool,
    /// Whether the scope `offline_access` is needed for a refresh token.
    pub(super) offline: bool,
}

/// Finds out where tokens for the MCP server at `server` come from. `None`: it needs no token. Every endpoint must belong to the
/// issuer's site, or to a host that a person `agreed` to.
///
/// # Errors
/// The server or its authorization server can't be reached, or its metadata is invalid.
pub(super) async fn discover_resource(
    web: &OAuthClient,
    server: &Url,
    agreed: &[String],
) -> Result<Option<ProtectedResource>, OAuthError> {
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "clawk", "version": env!("CARGO_PKG_VERSION")}}});
    let answer = web.post_json(server.clone(), &hello).await?;
    if answer.status != StatusCode::UNAUTHORIZED {
        return Ok(None);
    }
    let challenge = BearerChallenge::read(&answer.headers);
    let found = resource_metadata(web, server, challenge.metadata.as_deref()).await?;
    let (issuer, resource, listed) = match &found {
        Some(metadata) => of_resource(metadata, server)?,
        // Servers of revision 2025-03-26 are their own authorization servers.
        None => (server.origin().ascii_serialization(), canonical_url(server), None),
    };
    let metadata = authorization_metadata(web, &issuer, found.is_some()).await?;
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).map(str::to_owned);
    let list = |name: &str| {
        let all = metadata.get(name).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lacks = || OAuthError::Protocol(format!("the metadata of `{issuer}` names no token endpoint"));
    let names_issuer =
        metadata.get("authorization_response_iss_parameter_supported") == Some(&Value::Bool(true));
    let place = ProtectedResource {
        token_endpoint: text("token_endpoint").ok_or_else(lacks)?,
        authorization_endpoint: text("authorization_endpoint"),
        registration_endpoint: text("registration_endpoint"),
        device_endpoint: text("device_authorization_endpoint"),
        methods: list("token_endpoint_auth_methods_supported"),
        has_s256: list("code_challenge_methods_supported")
            .iter()
            .any(|method| method == "S256"),
        offline: list("scopes_supported")
            .iter()
            .any(|scope| scope == "offline_access"),
        names_issuer,
        scope: challenge.scope.or(listed),
        resource,
        issuer,
    };
    place.check_site(agreed)?;
    Ok(Some(place))
}

impl ProtectedResource {
    /// # Errors
    /// An endpoint is outside the issuer's site.
    pub(super) fn check_site(&self, agreed: &[String]) -> Result<(), OAuthError> {
        let site = IssuerSite {
            issuer: &self.issuer,
            agreed,
        };
        site.check_endpoint("token endpoint", &self.token_endpoint)?;
        let others = [
            ("login page", &self.authorization_endpoint),
            ("registration endpoint", &self.registration_endpoint),
            ("endpoint for device codes", &self.device_endpoint),
        ];
        for (what, endpoint) in others {
            if let Some(endpoint) = endpoint {
                site.check_endpoint(what, endpoint)?;
            }
        }
        Ok(())
    }
}

/// The content of a 401's `WWW-Authenticate` header (RFC 6750, RFC 9728).
#[derive(Debug, Default, PartialEq)]
pub(super) struct BearerChallenge {
    pub(super) metadata: Option<String>,
    pub(super) scope: Option<String>,
}

impl BearerChallenge {
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let values = values.filter_map(|value| value.to_str().ok()); // silent-ok: an unreadable one says nothing
        let bearer = values.filter_map(|value| {
            let (scheme, rest) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case("bearer ").then_some(rest)
        });
        let mut challenge = Self::default();
        for (name, value) in bearer.flat_map(parse_parameters) {
            match name.as_str() {
                "resource_metadata" => challenge.metadata = Some(value),
                "scope" => challenge.scope = Some(value),
                _ => {}
            }
        }
        challenge
    }
}

/// Parses `name="value", name=value`. A quoted value may contain commas.
fn parse_parameters(mut text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => match quoted.split_once('"') {
                Some((value, after)) => (value, after),
                None => (quoted, ""),
            },
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        all.push((name, value.trim().to_owned()));
        text = after;
    }
    all
}

/// The server's URL in canonical form, without parts that do not identify it.
pub(super) fn canonical_url(server: &Url) -> String {
    let mut url = server.clone();
    url.set_fragment(None);
    let text = url.to_string();
    match url.path() {
        "/" if url.query().is_none() => text.trim_end_matches('/').to_owned(),
        _ => text,
    }
}

/// The server's metadata: from the URL in its 401, else from the well-known URLs.
async fn resource_metadata(
    web: &OAuthClient,
    server: &Url,
    told: Option<&str>,
) -> Result<Option<Value>, OAuthError> {
    const PATH: &str = "/.well-known/oauth-protected-resource";
    if let Some(told) = told {
        let url = web.safe_url(told)?;
        // If a server could name another server's metadata, it could get tokens for that server.
        if url.origin() != server.origin() {
            return Err(OAuthError::Protocol(format!(
                "`{told}` is not at the server's origin"
            )));
        }
        let found = web.get(url).await?;
        return found
            .map(Some)
            .ok_or_else(|| OAuthError::Protocol(format!("there is no metadata at `{told}`")));
    }
    let path = server.path().trim_end_matches('/');
    for place in [format!("{PATH}{path}"), PATH.to_owned()] {
        let mut url = server.clone();
        url.set_path(&place);
        url.set_query(None);
        if let Some(found) = web.get(url).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Issuer, resource and scopes of a server's metadata.
fn of_resource(metadata: &Value, server: &Url) -> Result<(String, String, Option<String>), OAuthError> {
    let resource = metadata.get("resource").and_then(Value::as_str);
    let resource =
        resource.ok_or_else(|| OAuthError::Protocol("the server's metadata has no `resource`".to_owned()))?;
    let named =
        Url::parse(resource).map_err(|error| OAuthError::Protocol(format!("`{resource}`: {error}")))?;
    let (whole, part) = (
        server.path().trim_end_matches('/'),
        named.path().trim_end_matches('/'),
    );
    let below = whole == part || whole.strip_prefix(part).is_some_and(|rest| rest.starts_with('/'));
    if named.origin() != server.origin() || !below {
        return Err(OAuthError::Protocol(format!(
            "the server's metadata is of another resource, `{resource}`: a token for that one is not asked for"
        )));
    }
    let servers = metadata.get("authorization_servers").and_then(Value::as_array);
    let issuer = servers.and_then(|all| all.first()).and_then(Value::as_str);
    let issuer =
        issuer.ok_or_else(|| OAuthError::Protocol("the server names no authorization server".to_owned()))?;
    let scopes = metadata
        .get("scopes_supported")
        .and_then(Value::as_array)
        .map(|all| {
            let all: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
            all.join(" ")
        });
    Ok((
        issuer.to_owned(),
        resource.to_owned(),
        scopes.filter(|scopes| !scopes.is_empty()),
    ))
}

/// The authorization server's metadata. Its issuer must match.
async fn authorization_metadata(web: &OAuthClient, issuer: &str, named: bool) -> Result<Value, OAuthError> {
    let base = web.safe_url(issuer)?;
    let path = base.path().trim_end_matches('/').to_owned();
    let places = [
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
        format!("{path}/.well-known/openid-configuration"),
    ];
    for place in places {
        let mut url = base.clone();
        url.set_path(&place);
        let Some(metadata) = web.get(url).await? else {
            continue;
        };
        let says = metadata.get("issuer").and_then(Value::as_str).unwrap_or_default();
        if named && says.trim_end_matches('/') != issuer.trim_end_matches('/') {
            return Err(OAuthError::Protocol(format!(
                "the metadata of `{issuer}` says that it is `{says}`"
            )));
        }
        return Ok(metadata);
    }
    Err(OAuthError::Protocol(format!("`{issuer}` publishes no metadata")))
}
