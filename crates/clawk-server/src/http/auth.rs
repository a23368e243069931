//! Who asks: tokens by digest, compared in constant time; what each may do.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::error::ApiError;

/// The longest token that is looked at, bytes.
const MAX_TOKEN_BYTES: usize = 1_024;
/// The header beside `Authorization: Bearer`.
const API_KEY: &str = "x-api-key";
/// Who asks where no tokens are configured.
pub(crate) const LOCAL: &str = "local";

/// What a token may do. `admin` may everything, and sees every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See its own sessions and their traces, and the Atlases.
    Read,
    /// Open and end sessions, resolve, validate.
    Resolve,
    /// Execute.
    Execute,
    /// Load and remove Atlases, answer approvals, see everything.
    Admin,
}

impl Scope {
    /// The word in `clawk.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Resolve => "resolve",
            Self::Execute => "execute",
            Self::Admin => "admin",
        }
    }
}

/// A token: its digest only.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    name: Arc<str>,
    digest: [u8; 32],
    scopes: Vec<Scope>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, {:?})", self.name, self.scopes)
    }
}

impl Token {
    /// A token whose SHA-256 is known.
    #[must_use]
    pub fn new(name: &str, digest: [u8; 32], scopes: Vec<Scope>) -> Self {
        Self {
            name: name.into(),
            digest,
            scopes,
        }
    }

    /// A token whose text is at hand; only its digest is kept.
    #[must_use]
    pub fn of_text(name: &str, text: &str, scopes: Vec<Scope>) -> Self {
        Self::new(name, Sha256::digest(text.as_bytes()).into(), scopes)
    }

    /// Whose it is: sessions belong to this name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    pub(crate) name: Arc<str>,
    /// Its place among the tokens.
    pub(crate) index: usize,
    scopes: Vec<Scope>,
}

impl Principal {
    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    /// # Errors
    /// 403, which names the scope that is missing.
    pub(crate) fn needs(&self, scope: Scope) -> Result<(), ApiError> {
        if self.is_admin() || self.scopes.contains(&scope) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "scope_missing",
            format!("this token lacks the scope `{}`", scope.name()),
        ))
    }

    /// Whether it sees a session: its own; an admin all.
    pub(crate) fn owns(&self, owner: Option<&str>) -> bool {
        self.is_admin() || owner == Some(&*self.name)
    }
}

/// All tokens.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<Token>);

impl Tokens {
    pub(crate) const fn new(tokens: Vec<Token>) -> Self {
        Self(tokens)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Who sends these headers.
    ///
    /// # Errors
    /// 401: no token, two different ones, or an unknown one; it doesn't say which.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Principal, ApiError> {
        if self.0.is_empty() {
            return Ok(Principal {
                name: LOCAL.into(),
                index: 0,
                scopes: vec![Scope::Admin],
            });
        }
        let presented = presented(headers).ok_or_else(ApiError::unauthorized)?;
        let digest: [u8; 32] = Sha256::digest(presented).into();
        // Every token is looked at, whichever fits: the time says nothing.
        let (mut found, mut at) = (Choice::from(0), u32::MAX);
        for (index, token) in (0u32..).zip(&self.0) {
            let same = token.digest.ct_eq(&digest);
            at.conditional_assign(&index, same);
            found |= same;
        }
        let token = usize::try_from(at).ok().filter(|_| bool::from(found)); // silent-ok: a u32 is a usize
        let token = token.and_then(|index| Some((index, self.0.get(index)?)));
        let (index, token) = token.ok_or_else(ApiError::unauthorized)?;
        Ok(Principal {
            name: Arc::clone(&token.name),
            index,
            scopes: token.scopes.clone(),
        })
    }
}

/// The token's bytes; `None` when there is none, or the two headers disagree.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let mut bearers = headers.get_all(AUTHORIZATION).iter();
    let bearer = bearers.next().map(http::HeaderValue::as_bytes);
    let mut keys = headers.get_all(API_KEY).iter();
    let key = keys.next().map(http::HeaderValue::as_bytes);
    if bearers.next().is_some() || keys.next().is_some() {
        return None;
    }
    let bearer = match bearer {
        Some(value) => {
            let (scheme, rest) = value.split_at_checked(7)?;
            if !scheme.eq_ignore_ascii_case(b"bearer ") {
                return None;
            }
            Some(rest.trim_ascii())
        }
        None => None,
    };
    let token = match (bearer, key) {
        (Some(bearer), Some(key)) => Some(bearer).filter(|_| bearer == key),
        (one, other) => one.or(other),
    };
    token.filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN_BYTES)
}
