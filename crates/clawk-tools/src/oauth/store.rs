//! Stored tokens: one encrypted file per server in the state directory (ChaCha20-Poly1305). The key is a separate file beside the
//! key that signs the journal. Whoever can read that key can read the tokens; the token files alone are not enough.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::OAuthError;

const KEY_BYTES: usize = 32;
/// The maximum size of an encrypted file, in bytes.
const MAX_BYTES: u64 = 256 << 10;

/// The registration of this program at an authorization server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientRegistration {
    /// The authorization server's issuer URL.
    pub(crate) issuer: String,
    /// The resource for which tokens are requested.
    pub(crate) resource: String,
    /// The URL of the token endpoint.
    pub(crate) token_endpoint: String,
    pub(crate) id: String,
    pub(crate) secret: Option<OAuthClientSecret>,
    /// Whether the client secret is sent in the form instead of a header.
    pub(crate) in_form: bool,
}

/// A text that debug output never shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct OAuthClientSecret(pub(crate) String);

impl std::fmt::Debug for OAuthClientSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

/// The stored result of one login.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// The MCP server's URL.
    pub resource: String,
    pub(crate) client: ClientRegistration,
    pub(crate) access_token: String,
    pub(crate) refresh_token: Option<String>,
    /// When the access token expires, in seconds since 1970; `None`: unknown.
    pub until_s: Option<i64>,
    /// The granted scope, as the authorization server reports it.
    pub scope: Option<String>,
}

impl TokenRecord {
    /// The authorization server's issuer URL.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.client.issuer
    }

    /// Whether the token can be renewed without a person.
    #[must_use]
    pub const fn is_renewable(&self) -> bool {
        self.refresh_token.is_some()
    }
}

impl std::fmt::Debug for TokenRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({}, {})", self.resource, self.client.issuer)
    }
}

/// The encrypted token files of a state directory.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    key: PathBuf,
}

impl Store {
    /// The store below this state directory. Creates nothing yet.
    #[must_use]
    pub fn of_state(state: &Path) -> Self {
        Self {
            folder: state.join("oauth"),
            key: state.join("keys").join("oauth.key"),
        }
    }

    fn token_file(&self, resource: &str) -> PathBuf {
        let digest: String = Sha256::digest(resource.as_bytes())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.folder.join(format!("{digest}.sealed"))
    }

    /// Reads the tokens of a server.
    ///
    /// # Errors
    /// The file can't be read, or was not encrypted here for this server.
    pub fn read(&self, resource: &str) -> Result<Option<TokenRecord>, OAuthError> {
        let file = self.token_file(resource);
        match fs::metadata(&file) {
            Ok(facts) if facts.len() <= MAX_BYTES => {}
            Ok(_) => return Err(store_error("a file is too large")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(store_error(error)),
        }
        let mut sealed = fs::read(&file).map_err(store_error)?;
        let broken = || store_error(format!("`{}` was not sealed here; log in anew", file.display()));
        if sealed.len() < NONCE_LEN {
            return Err(broken());
        }
        let mut text = sealed.split_off(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(&sealed).map_err(|_| broken())?; // silent-ok: only ever its length
        let key = self.encryption_key(false)?.ok_or_else(broken)?;
        let opened = key.open_in_place(nonce, Aad::from(resource.as_bytes()), &mut text);
        let opened = opened.map_err(|_| broken())?; // silent-ok: it has no reason to tell
        let entry: TokenRecord = serde_json::from_slice(opened).map_err(store_error)?;
        Ok(Some(entry))
    }

    /// Stores the tokens of a server, and replaces earlier ones.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, entry: &TokenRecord) -> Result<(), OAuthError> {
        create_private_folder(&self.folder)?;
        let key = self
            .encryption_key(true)?
            .ok_or_else(|| store_error("there is no key"))?;
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce)?;
        let mut text = serde_json::to_vec(entry).map_err(store_error)?;
        let aad = Aad::from(entry.resource.as_bytes());
        let sealed = key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text);
        sealed.map_err(|_| store_error("it can't be sealed"))?; // silent-ok: it has no reason to tell
        replace_file(&self.token_file(&entry.resource), &[&nonce[..], &text].concat())
    }

    /// Deletes the tokens of a server. Returns false if there were none.
    ///
    /// # Errors
    /// The file can't be removed.
    pub fn forget_token(&self, resource: &str) -> Result<bool, OAuthError> {
        match fs::remove_file(self.token_file(resource)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(store_error(error)),
        }
    }

    fn encryption_key(&self, make: bool) -> Result<Option<LessSafeKey>, OAuthError> {
        let bytes = match fs::read(&self.key) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && make => self.make_key()?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(store_error(error)),
        };
        let open = fs::metadata(&self.key).map_err(store_error)?.permissions().mode() & 0o077;
        if open != 0 {
            return Err(store_error(format!(
                "others may read the key `{}`: `chmod 600`",
                self.key.display()
            )));
        }
        let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes);
        let key = key.map_err(|_| store_error(format!("`{}` is not a key", self.key.display())))?; // silent-ok: only ever its length
        Ok(Some(LessSafeKey::new(key)))
    }

    /// Creates the key. If two processes do this at once, the second one uses the first one's key.
    fn make_key(&self) -> Result<Vec<u8>, OAuthError> {
        create_private_folder(self.key.parent().unwrap_or(&self.key))?;
        let mut bytes = vec![0; KEY_BYTES];
        fill_random(&mut bytes)?;
        let mut file = fs::OpenOptions::new();
        match file.write(true).create_new(true).mode(0o600).open(&self.key) {
            Ok(mut file) => {
                file.write_all(&bytes)
                    .and_then(|()| file.sync_all())
                    .map_err(store_error)?;
                Ok(bytes)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                fs::read(&self.key).map_err(store_error)
            }
            Err(error) => Err(store_error(error)),
        }
    }
}

fn store_error(cause: impl ToString) -> OAuthError {
    OAuthError::Kept(cause.to_string())
}

/// Fills `bytes` with cryptographically secure random bytes.
pub(super) fn fill_random(bytes: &mut [u8]) -> Result<(), OAuthError> {
    SystemRandom::new()
        .fill(bytes)
        .map_err(|_| OAuthError::Protocol("the system gives no random bytes".to_owned())) // silent-ok: it has no reason to tell
}

fn create_private_folder(folder: &Path) -> Result<(), OAuthError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(store_error)
}

fn replace_file(file: &Path, bytes: &[u8]) -> Result<(), OAuthError> {
    let next = file.with_extension("next");
    let _left = fs::remove_file(&next); // silent-ok: of a write that was cut off, if there is one
    let mut open = fs::OpenOptions::new();
    let mut out = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next)
        .map_err(store_error)?;
    out.write_all(bytes)
        .and_then(|()| out.sync_all())
        .map_err(store_error)?;
    fs::rename(&next, file).map_err(store_error)
}
