//! The key of a request for servers that cache prompts.

use super::{InferenceContext, ModelServices};
use crate::event::digest;

/// Length of a key in hex digits. Some servers accept no more than 64 characters.
const DIGITS: usize = 32;

/// Returns one key for all requests of an agent's session, because they have the same prefix. It is a digest, so that it reveals
/// neither.
pub(super) fn cache_key(models: &ModelServices, place: InferenceContext<'_>) -> String {
    let (agent, session) = (&models.manifest.identity.name, place.thread.session);
    let mut key = digest(format!("prompt cache\n{agent}\n{session}").as_bytes()).to_hex();
    key.truncate(DIGITS);
    key
}
