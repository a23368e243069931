//! Parses a JSON Web Token and verifies it with one of the issuer's keys. The operator must allow the algorithm, and the key's type
//! must match it. No other header field of the token is trusted.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TokenRefusal;

/// The longest token, bytes.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// An accepted signature algorithm. `none` and algorithms with a shared secret do not exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JwtAlgorithm {
    /// RSA, PKCS #1 v1.5, SHA-256.
    RS256,
    /// RSA, PKCS #1 v1.5, SHA-384.
    RS384,
    /// RSA, PKCS #1 v1.5, SHA-512.
    RS512,
    /// RSA, PSS, SHA-256.
    PS256,
    /// RSA, PSS, SHA-384.
    PS384,
    /// RSA, PSS, SHA-512.
    PS512,
    /// ECDSA, P-256, SHA-256.
    ES256,
    /// ECDSA, P-384, SHA-384.
    ES384,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PublicKeyMaterial {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A public key as the issuer publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuerKey {
    pub(super) id: Option<String>,
    /// The key's only allowed algorithm, if the issuer names one.
    algorithm: Option<JwtAlgorithm>,
    material: PublicKeyMaterial,
}

#[derive(Debug, Deserialize)]
struct JsonWebKey {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    r#use: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok() // silent-ok: what can't be read is no key and no token
}

impl IssuerKey {
    /// Reads a key of a key set. `None`: the key has no use here.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let jwk: JsonWebKey = serde_json::from_value(value.clone()).ok()?; // silent-ok: other keys of the set may do
        if jwk.r#use.as_deref().is_some_and(|r#use| r#use != "sig") {
            return None;
        }
        let part = |text: &Option<String>| decode_base64url(text.as_deref()?);
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => PublicKeyMaterial::Rsa {
                n: part(&jwk.n)?,
                e: part(&jwk.e)?,
            },
            ("EC", Some(curve @ ("P-256" | "P-384"))) => {
                let half = if curve == "P-256" { 32 } else { 48 };
                let (x, y) = (part(&jwk.x)?, part(&jwk.y)?);
                if x.len() != half || y.len() != half {
                    return None;
                }
                let point = [&[4][..], &x, &y].concat();
                if half == 32 {
                    PublicKeyMaterial::P256(point)
                } else {
                    PublicKeyMaterial::P384(point)
                }
            }
            ("OKP", Some("Ed25519")) => PublicKeyMaterial::Ed25519(part(&jwk.x)?),
            _ => return None,
        };
        let algorithm = match jwk.alg {
            None => None,
            Some(name) => Some(serde_json::from_value(Value::String(name)).ok()?), // silent-ok: it is for another use
        };
        Some(Self {
            id: jwk.kid,
            algorithm,
            material,
        })
    }

    /// Whether the key's type matches the algorithm.
    fn fits_algorithm(&self, algorithm: JwtAlgorithm) -> bool {
        use JwtAlgorithm::{ES256, ES384, EdDsa, PS256, PS384, PS512, RS256, RS384, RS512};
        let of_type = match (&self.material, algorithm) {
            (PublicKeyMaterial::Rsa { .. }, RS256 | RS384 | RS512 | PS256 | PS384 | PS512)
            | (PublicKeyMaterial::P256(_), ES256)
            | (PublicKeyMaterial::P384(_), ES384)
            | (PublicKeyMaterial::Ed25519(_), EdDsa) => true,
            (PublicKeyMaterial::Rsa { .. }, ES256 | ES384 | EdDsa)
            | (PublicKeyMaterial::P256(_) | PublicKeyMaterial::P384(_) | PublicKeyMaterial::Ed25519(_), _) => {
                false
            }
        };
        of_type && self.algorithm.is_none_or(|only| only == algorithm)
    }

    fn verify_signature(&self, algorithm: JwtAlgorithm, message: &[u8], mark: &[u8]) -> bool {
        let by = |how: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(how, key).verify(message, mark).is_ok()
        };
        match &self.material {
            PublicKeyMaterial::Rsa { n, e } => {
                let how = match algorithm {
                    JwtAlgorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    JwtAlgorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    JwtAlgorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    JwtAlgorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
                    JwtAlgorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
                    JwtAlgorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
                    JwtAlgorithm::ES256 | JwtAlgorithm::ES384 | JwtAlgorithm::EdDsa => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(how, message, mark).is_ok()
            }
            PublicKeyMaterial::P256(point) => by(&signature::ECDSA_P256_SHA256_FIXED, point),
            PublicKeyMaterial::P384(point) => by(&signature::ECDSA_P384_SHA384_FIXED, point),
            PublicKeyMaterial::Ed25519(point) => by(&signature::ED25519, point),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    typ: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

/// A well-formed token whose signature is not verified yet.
#[derive(Debug)]
pub(crate) struct UnverifiedJwt {
    algorithm: JwtAlgorithm,
    /// The key id in the token's header.
    pub(super) key: Option<String>,
    signed: Vec<u8>,
    claims: Vec<u8>,
    mark: Vec<u8>,
}

impl UnverifiedJwt {
    /// Parses a token's three parts.
    pub(crate) fn read(token: &str, allowed: &[JwtAlgorithm]) -> Result<Self, TokenRefusal> {
        const FORM: TokenRefusal = TokenRefusal::Token("it is not a JSON Web Token");
        if token.len() > MAX_BYTES {
            return Err(TokenRefusal::Token("it is too long"));
        }
        let (signed, mark) = token.rsplit_once('.').ok_or(FORM)?;
        let (head, claims) = signed.split_once('.').ok_or(FORM)?;
        if claims.contains('.') {
            return Err(FORM);
        }
        let part = |text: &str| decode_base64url(text).ok_or(FORM);
        let header: Header = serde_json::from_slice(&part(head)?).map_err(|_| FORM)?; // silent-ok: nobody is told more
        if header.crit.is_some() {
            return Err(TokenRefusal::Token(
                "it asks for an extension that is not known here",
            ));
        }
        let kind = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt", "application/at+jwt"].contains(&kind.as_str()) {
            return Err(TokenRefusal::Token("it is not an access token"));
        }
        // The table does not contain `none` or algorithms with a shared secret.
        let algorithm = serde_json::from_value(Value::String(header.alg)).ok(); // silent-ok: an unknown one is not allowed
        let algorithm = algorithm.filter(|algorithm| allowed.contains(algorithm));
        Ok(Self {
            algorithm: algorithm.ok_or(TokenRefusal::Token("its signature is not of an allowed kind"))?,
            key: header.kid,
            signed: signed.as_bytes().to_vec(),
            claims: part(claims)?,
            mark: part(mark)?,
        })
    }

    /// Whether this key may have signed the token.
    pub(super) fn may_be_of(&self, key: &IssuerKey) -> bool {
        let named = self.key.is_none() || self.key == key.id;
        named && key.fits_algorithm(self.algorithm)
    }

    /// Returns the claims if one of `keys` verifies the signature.
    pub(super) fn verified_claims(&self, keys: &[IssuerKey]) -> Result<Value, TokenRefusal> {
        let verifies = |key: &IssuerKey| {
            self.may_be_of(key) && key.verify_signature(self.algorithm, &self.signed, &self.mark)
        };
        if !keys.iter().any(verifies) {
            return Err(TokenRefusal::Token("no key of the issuer verifies it"));
        }
        let claims: Value = serde_json::from_slice(&self.claims)
            .map_err(|_| TokenRefusal::Token("its claims can't be read"))?; // silent-ok: as above
        Ok(claims)
    }
}
