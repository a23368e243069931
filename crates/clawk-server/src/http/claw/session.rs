//! Sessions of CKP over HTTP. Each belongs to the token that began it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::response::Response;

use super::stream::{self, ResumableStreamReader, SessionStreams};
use crate::access::ClientRights;
use crate::clients::{ClientConnection, ClientEndPolicy};
use crate::http::auth::{ActiveTokens, HttpPrincipal};
use crate::http::shares::{NoPlace, PlaceGuard, PlaceShares};
use crate::http::{ApiError, HttpApp};

/// All of them, and the places of sockets.
#[derive(Debug, Clone)]
pub(crate) struct CkpHttpSessions {
    open: Arc<Mutex<HashMap<Arc<str>, Arc<CkpHttpSession>>>>,
    places: PlaceShares,
    most: usize,
}

/// One session.
#[derive(Debug)]
pub(crate) struct CkpHttpSession {
    id: Arc<str>,
    rights: ClientRights,
    client: ClientConnection,
    streams: SessionStreams,
    /// The tokens under which it began.
    access: Arc<ActiveTokens>,
}

impl CkpHttpSessions {
    /// At most so many, sockets included.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            open: Arc::default(),
            places: PlaceShares::new(most),
            most,
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<CkpHttpSession>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a session or a socket.
    ///
    /// # Errors
    /// 503: all are taken, or the principal's share is.
    pub(crate) fn place(&self, principal: Option<&HttpPrincipal>) -> Result<PlaceGuard, ApiError> {
        self.places.take(principal).map_err(|none| {
            let most = self.most;
            ApiError::unavailable(match none {
                NoPlace::Full => format!("{most} sessions are open, which is the most"),
                NoPlace::ShareUsedUp => {
                    format!(
                        "this client's share of the {most} sessions is used up; end one, or ask again later"
                    )
                }
            })
        })
    }

    /// A new session. Other requests can't find it yet.
    pub(super) fn begin(
        &self,
        app: &HttpApp,
        principal: &HttpPrincipal,
        access: Arc<ActiveTokens>,
    ) -> Result<Arc<CkpHttpSession>, ApiError> {
        let place = self.place(Some(principal))?;
        let id: Arc<str> = app.clock.uuid().to_string().into();
        let rights = principal.rights();
        let (open, gone) = (Arc::downgrade(&self.open), Arc::clone(&id));
        let client = ClientConnection::open(
            app.host.clone(),
            rights.clone(),
            ClientEndPolicy::Silent,
            (&app.work, &app.over),
            move |_| {
                remove(&open, &gone);
                drop(place);
            },
        );
        Ok(Arc::new(CkpHttpSession {
            id,
            rights,
            streams: SessionStreams::new(Arc::clone(&client.notices)),
            client,
            access,
        }))
    }

    /// From now on it is found by its id.
    pub(super) fn keep(&self, session: &Arc<CkpHttpSession>) {
        self.open().insert(Arc::clone(&session.id), Arc::clone(session));
    }

    /// The session with this id, if it is the caller's. Whose token has other rights by now has none: it ends.
    pub(super) fn find(&self, id: &str, principal: &HttpPrincipal) -> Option<Arc<CkpHttpSession>> {
        let session = self.open().get(id).cloned()?;
        if *session.rights.name() != *principal.name {
            return None;
        }
        if session.rights != principal.rights() {
            session.end();
            self.forget(id);
            return None;
        }
        Some(session)
    }

    pub(super) fn forget(&self, id: &str) {
        self.open().remove(id);
    }
}

fn remove(open: &Weak<Mutex<HashMap<Arc<str>, Arc<CkpHttpSession>>>>, id: &str) {
    if let Some(open) = open.upgrade() {
        open.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl CkpHttpSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) const fn client(&self) -> &ClientConnection {
        &self.client
    }

    pub(super) const fn streams(&self) -> &SessionStreams {
        &self.streams
    }

    pub(super) fn end(&self) {
        self.client.end();
    }

    /// The events from a place on, as they come; ends when the tokens are replaced, so that nobody reads on with one that is
    /// gone.
    pub(super) fn follow(&self, reader: ResumableStreamReader) -> Response {
        stream::response(reader, Arc::clone(&self.access))
    }
}
