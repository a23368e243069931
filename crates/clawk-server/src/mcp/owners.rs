//! The owners of MCP sessions: only the token that opened a session can use it, even if another client knows its id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, StatusCode};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use crate::http::ApiError;
use crate::http::auth::HttpPrincipal;

const SESSION: &str = "mcp-session-id";
/// The largest number of open sessions.
const MAX_SESSIONS: usize = 1_024;

/// The owners of the open sessions.
#[derive(Debug)]
pub(super) struct McpSessionOwners {
    sessions: Arc<LocalSessionManager>,
    names: Mutex<HashMap<String, Arc<str>>>,
}

/// The client of a request. It becomes the owner of a session that this request opens.
#[derive(Debug)]
pub(super) struct Claim(Arc<str>);

impl McpSessionOwners {
    pub(super) fn new(sessions: Arc<LocalSessionManager>) -> Self {
        Self {
            sessions,
            names: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<str>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the client owns the session of the request.
    ///
    /// # Errors
    /// The session belongs to another token or does not exist (the answer is the same), or too many are open.
    pub(super) async fn admit_request(
        &self,
        principal: Option<&HttpPrincipal>,
        headers: &HeaderMap,
    ) -> Result<Claim, ApiError> {
        let name = &principal.ok_or_else(ApiError::unauthorized)?.name;
        let mut given = headers.get_all(SESSION).iter();
        match (given.next(), given.next()) {
            (Some(id), None) => {
                let id = id.to_str().unwrap_or_default(); // silent-ok: an unreadable id is nobody's session
                let owner = self.lock().get(id).cloned();
                if owner.as_deref() != Some(&**name) {
                    let message = "there is no such session: initialize one";
                    return Err(ApiError::new(StatusCode::NOT_FOUND, "session_not_found", message));
                }
            }
            (None, _) => self.ensure_capacity().await?,
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request("invalid_request", "two session headers"));
            }
        }
        Ok(Claim(Arc::clone(name)))
    }

    /// Removes ended sessions; fails if too many are left.
    async fn ensure_capacity(&self) -> Result<(), ApiError> {
        let open = self.sessions.sessions.read().await;
        self.lock().retain(|id, _| open.contains_key(id.as_str()));
        if open.len() < MAX_SESSIONS {
            return Ok(());
        }
        let message = format!("{MAX_SESSIONS} MCP sessions are open");
        Err(ApiError::too_many("too_many_sessions", message, 1_000))
    }

    /// Removes a session that its owner has ended.
    pub(super) fn forget_session(&self, headers: &HeaderMap) {
        let id = headers.get(SESSION).and_then(|value| value.to_str().ok()); // silent-ok: our ids are readable
        if let Some(id) = id {
            self.lock().remove(id);
        }
    }

    /// Records the owner of a newly opened session.
    pub(super) fn claim_session(&self, claim: Claim, headers: &HeaderMap) {
        let id = headers.get(SESSION).and_then(|value| value.to_str().ok()); // silent-ok: our ids are readable
        if let Some(id) = id {
            self.lock().entry(id.to_owned()).or_insert(claim.0);
        }
    }
}
