//! Sessions of CKP over HTTP. Each session belongs to the token that began it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::response::Response;

use super::stream::{self, ResumableStreamReader, SessionStreams};
use crate::access::ClientRights;
use crate::clients::{ClientConnection, ClientEndPolicy};
use crate::http::auth::{ActiveTokens, HttpPrincipal};
use crate::http::shares::{NoPlace, PlaceGuard, PlaceShares};
use crate::http::{ApiError, HttpApp};

/// All sessions, and the places that sessions and sockets take.
#[derive(Debug, Clone)]
pub(crate) struct CkpHttpSessions {
    open: Arc<Mutex<HashMap<Arc<str>, Arc<CkpHttpSession>>>>,
    places: PlaceShares,
    most: usize,
}

/// One CKP session.
#[derive(Debug)]
pub(crate) struct CkpHttpSession {
    id: Arc<str>,
    rights: ClientRights,
    client: ClientConnection,
    streams: SessionStreams,
    /// The tokens that were in force when it began.
    access: Arc<ActiveTokens>,
}

impl CkpHttpSessions {
    /// `most` limits sessions and sockets together.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            open: Arc::default(),
            places: PlaceShares::new(most),
            most,
        }
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<CkpHttpSession>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a session or a socket.
    ///
    /// # Errors
    /// 503: no place is free, or the client has used up its share.
    pub(crate) fn place(&self, principal: Option<&HttpPrincipal>) -> Result<PlaceGuard, ApiError> {
        self.places.take_place(principal).map_err(|none| {
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

    /// Begins a session. Other requests can't find it yet.
    pub(super) fn begin_session(
        &self,
        app: &HttpApp,
        principal: &HttpPrincipal,
        access: Arc<ActiveTokens>,
    ) -> Result<Arc<CkpHttpSession>, ApiError> {
        let place = self.place(Some(principal))?;
        let id: Arc<str> = app.clock.new_uuid().to_string().into();
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

    /// Makes the session findable by its id.
    pub(super) fn add_session(&self, session: &Arc<CkpHttpSession>) {
        self.lock_open()
            .insert(Arc::clone(&session.id), Arc::clone(session));
    }

    /// The session with this id, if the caller owns it. If the token's rights have changed since, the session ends.
    pub(super) fn find_session(&self, id: &str, principal: &HttpPrincipal) -> Option<Arc<CkpHttpSession>> {
        let session = self.lock_open().get(id).cloned()?;
        if *session.rights.name() != *principal.name {
            return None;
        }
        if session.rights != principal.rights() {
            session.end_session();
            self.forget_session(id);
            return None;
        }
        Some(session)
    }

    pub(super) fn forget_session(&self, id: &str) {
        self.lock_open().remove(id);
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

    pub(super) fn end_session(&self) {
        self.client.end_connection();
    }

    /// The events from a position on, as a stream. It ends when the tokens are replaced, so that nobody continues to read with a
    /// revoked token.
    pub(super) fn follow_stream(&self, reader: ResumableStreamReader) -> Response {
        stream::stream_response(reader, Arc::clone(&self.access))
    }
}
