//! The key of a request for servers that keep a cache of prompts.

use super::{InferenceContext, ModelServices};
use crate::event::digest;

/// Hex digits of a key: some servers take no more than 64 characters.
const DIGITS: usize = 32;

/// One key for all requests of an agent's session: what they begin with is the same. A digest, so that it tells nothing of either.
pub(super) fn cache_key(models: &ModelServices, place: InferenceContext<'_>) -> String {
    let (agent, session) = (&models.manifest.identity.name, place.thread.session);
    let mut key = digest(format!("prompt cache\n{agent}\n{session}").as_bytes()).to_hex();
    key.truncate(DIGITS);
    key
}
