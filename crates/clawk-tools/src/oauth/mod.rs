//! OAuth 2.1 as a client (the MCP authorization specification): a person agrees once in a browser or with a code, the tokens are
//! kept sealed in the state directory, and are renewed when they run out. A server is told a token only if it was made for it.

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
pub use login::{LoginMethod, LoginRequest, login};
pub use store::{Store, TokenRecord};
pub use wire::OAuthClient;

/// A token is renewed so long before its end, seconds.
const EARLY_S: i64 = 30;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum OAuthError {
    /// The server or its authorization server said something that can't be followed.
    #[error("{0}")]
    Protocol(String),
    /// A request failed.
    #[error("{place}: {cause}")]
    Wire {
        /// What was asked for.
        place: String,
        /// Why.
        cause: clawk_egress::EgressError,
    },
    /// The authorization server refused.
    #[error("the authorization server refused: {0}")]
    Refused(String),
    /// What is kept can't be read or written.
    #[error("can't use the stored tokens: {0}")]
    Kept(String),
    /// Nobody agreed in time.
    #[error("the login was not finished within {0} s; start it again")]
    Late(u64),
}

/// The token for one server: as it is kept, renewed where it has run out.
#[derive(Debug)]
pub struct Tokens {
    store: Store,
    web: OAuthClient,
    clock: Arc<dyn Clock>,
    resource: String,
    /// One renewal at a time: a refresh token may hold once only.
    renewing: Mutex<()>,
}

impl Tokens {
    /// For the server at `resource`.
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

    /// The access token, if somebody agreed to one.
    ///
    /// # Errors
    /// What is kept can't be read, or it can't be renewed.
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

    /// Another access token than `old`, which the server refused or which has run out; none where it can't be renewed.
    ///
    /// # Errors
    /// The authorization server can't be reached, or refuses: somebody must agree anew.
    pub async fn renewed(&self, old: &str) -> Result<Option<String>, OAuthError> {
        let _alone = self.renewing.lock().await;
        // Somebody else may have renewed it, or logged in anew, meanwhile.
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
        let granted = self.web.token(&entry.client, &form).await?;
        let fresh = granted.entry(
            entry.client.clone(),
            &self.resource,
            Some(refresh.clone()),
            &*self.clock,
        );
        self.store.write(&fresh)?;
        Ok(Some(fresh.access_token))
    }
}
