//! Sessions of CKP over HTTP. Each belongs to the token that began it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::response::Response;

use super::stream::{self, Reader, Streams};
use crate::access::Rights;
use crate::clients::{Client, Ends};
use crate::http::auth::{Access, Principal};
use crate::http::shares::{NoPlace, PlaceGuard, PlaceShares};
use crate::http::{ApiError, App};

/// All of them, and the places of sockets.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    open: Arc<Mutex<HashMap<Arc<str>, Arc<Session>>>>,
    places: PlaceShares,
    most: usize,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    id: Arc<str>,
    rights: Rights,
    client: Client,
    streams: Streams,
    /// The tokens under which it began.
    access: Arc<Access>,
}

impl Sessions {
    /// At most so many, sockets included.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            open: Arc::default(),
            places: PlaceShares::new(most),
            most,
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a session or a socket.
    ///
    /// # Errors
    /// 503: all are taken, or the principal's share is.
    pub(crate) fn place(&self, principal: Option<&Principal>) -> Result<PlaceGuard, ApiError> {
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
        app: &App,
        principal: &Principal,
        access: Arc<Access>,
    ) -> Result<Arc<Session>, ApiError> {
        let place = self.place(Some(principal))?;
        let id: Arc<str> = app.clock.uuid().to_string().into();
        let rights = principal.rights();
        let (open, gone) = (Arc::downgrade(&self.open), Arc::clone(&id));
        let client = Client::open(
            app.host.clone(),
            rights.clone(),
            Ends::Silent,
            (&app.work, &app.over),
            move |_| {
                remove(&open, &gone);
                drop(place);
            },
        );
        Ok(Arc::new(Session {
            id,
            rights,
            streams: Streams::new(Arc::clone(&client.notices)),
            client,
            access,
        }))
    }

    /// From now on it is found by its id.
    pub(super) fn keep(&self, session: &Arc<Session>) {
        self.open().insert(Arc::clone(&session.id), Arc::clone(session));
    }

    /// The session with this id, if it is the caller's. Whose token has other rights by now has none: it ends.
    pub(super) fn find(&self, id: &str, principal: &Principal) -> Option<Arc<Session>> {
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

fn remove(open: &Weak<Mutex<HashMap<Arc<str>, Arc<Session>>>>, id: &str) {
    if let Some(open) = open.upgrade() {
        open.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl Session {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    pub(super) const fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(super) fn end(&self) {
        self.client.end();
    }

    /// The events from a place on, as they come; ends when the tokens are replaced, so that nobody reads on with one that is
    /// gone.
    pub(super) fn follow(&self, reader: Reader) -> Response {
        stream::response(reader, Arc::clone(&self.access))
    }
}
