//! OAuth 2.1 client (MCP authorization specification). A person agrees once, in a browser or with a code. The tokens are stored
//! encrypted in the state directory, and are renewed when they expire. A token is sent only to the server for which it was issued.

#[cfg(test)]
mod attacks;
mod discover;
mod login;
mod site;
mod store;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use clawk_kernel::time::Clock;
use tokio::sync::Mutex;

pub use discover::ProtectedResource;
pub use login::{LoginMethod, LoginRequest, run_login};
pub use store::{Store, TokenRecord};
pub use wire::OAuthClient;

/// How long before its expiry a token is renewed, in seconds.
const EARLY_S: i64 = 30;

/// The reason why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum OAuthError {
    /// The server or its authorization server sent something invalid.
    #[error("{0}")]
    Protocol(String),
    /// A request failed.
    #[error("{place}: {cause}")]
    Wire {
        /// The URL of the request.
        place: String,
        /// The cause of the failure.
        cause: clawk_egress::EgressError,
    },
    /// The authorization server refused.
    #[error("the authorization server refused: {0}")]
    Refused(String),
    /// The stored tokens can't be read or written.
    #[error("can't use the stored tokens: {0}")]
    Kept(String),
    /// Nobody agreed within this many seconds.
    #[error("the login was not finished within {0} s; start it again")]
    Late(u64),
}

/// The token for one server. It is read from the store, and renewed if it has expired.
#[derive(Debug)]
pub struct Tokens {
    store: Store,
    web: OAuthClient,
    clock: Arc<dyn Clock>,
    resource: String,
    /// Only one renewal at a time, because a refresh token may be valid only once.
    renewing: Mutex<()>,
}

impl Tokens {
    /// The tokens for the server at `resource`.
    #[must_use]
    pub fn new(store: Store, web: OAuthClient, clock: Arc<dyn Clock>, resource: &str) -> Self {
        Self {
            store,
            web,
            clock,
            resource: resource.to_owned(),
            renewing: Mutex::default(),
        }
    }

    /// The access token; `None` if nobody has logged in.
    ///
    /// # Errors
    /// The stored token can't be read, or can't be renewed.
    pub async fn bearer(&self) -> Result<Option<String>, OAuthError> {
        let Some(entry) = self.store.read(&self.resource)? else {
            return Ok(None);
        };
        let now_s = self.clock.now().as_millis() / 1000;
        let over = entry.until_s.is_some_and(|until| now_s + EARLY_S >= until);
        if !over || entry.refresh_token.is_none() {
            return Ok(Some(entry.access_token));
        }
        self.renewed(&entry.access_token).await
    }

    /// Replaces the access token `old`, which the server refused or which has expired. `None` if it can't be renewed.
    ///
    /// # Errors
    /// The authorization server can't be reached, or refuses: a person must log in again.
    pub async fn renewed(&self, old: &str) -> Result<Option<String>, OAuthError> {
        let _alone = self.renewing.lock().await;
        // Another process may have renewed it or logged in again in the meantime.
        let Some(entry) = self.store.read(&self.resource)? else {
            return Ok(None);
        };
        if entry.access_token != old {
            return Ok(Some(entry.access_token));
        }
        let Some(refresh) = entry.refresh_token.clone() else {
            return Ok(None);
        };
        let mut form = vec![
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh.as_str()),
        ];
        form.push(("resource", &entry.client.resource));
        let granted = self.web.request_token(&entry.client, &form).await?;
        let fresh = granted.into_record(
            entry.client.clone(),
            &self.resource,
            Some(refresh.clone()),
            &*self.clock,
        );
        self.store.write(&fresh)?;
        Ok(Some(fresh.access_token))
    }
}
