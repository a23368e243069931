//! What an agent keeps, as the verbs read and change it. This is the one module of the binary that names the store (`cargo xtask tidy`
//! sees to it): whatever keeps a state in another way comes in here, and no verb knows.

pub(crate) use clawk_store::{
    AuditDb, AuditRow, Contents, Delivery, Durability, Erase, Filter, Head, Keys, MAX_FORGOTTEN, MemoryPart,
    Options, Reader, Remembered, Restore, StateDir, StateError, StoredEvent, public_key,
};

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use clawk_recall::seal::Key;
use clawk_secrets::{Env, Resolver};

use crate::config::Config;

/// Keys of encrypted stores that this process has found, by their references.
static KEYS: Mutex<BTreeMap<String, Key>> = Mutex::new(BTreeMap::new());

/// Whoever opens a state directory without its agent finds the key by the reference that is written in it.
pub(crate) fn find_keys() {
    clawk_store::find_keys_by(|reference| key(reference, None).map_err(|error| format!("{error:#}")));
}

/// The agent's own configuration gave this key.
pub(crate) fn remember_key(reference: &str, key: &Key) {
    let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    keys.insert(reference.to_owned(), key.clone());
}

/// The key of this reference: from the environment, `$CLAW_SECRETS_DIR`, or the secrets store of `config`, else of the user's own
/// configuration. What a folder's `clawk.toml` names is never asked: a state directory may have come with the folder.
///
/// # Errors
/// It is not found, or is not a key.
pub(crate) fn key(reference: &str, config: Option<&Path>) -> Result<Key> {
    let known = KEYS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(reference)
        .cloned();
    if let Some(known) = known {
        return Ok(known);
    }
    let config = Config::load(config, None)?;
    let resolver = Resolver::new(&config.settings.secrets_store, &config.folder(), Env::Process)?;
    let key = Key::from_hex(resolver.resolve(reference)?.expose())?;
    remember_key(reference, &key);
    Ok(key)
}
