//! Questions to people: who asks, who answers, and for how long (CKP §9.3.2, R18).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_proto::{RequestId, SessionId};
use tokio::sync::{Notify, broadcast, oneshot};

use crate::notice::{Answer, Question};

/// How long an answer that came before its question waits for it, milliseconds (R18).
pub(crate) const EARLY_ANSWER_MS: u64 = 600_000;
/// Questions that a slow listener may be behind.
const QUESTION_BACKLOG: usize = 256;

/// An answer with who gave it and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) by: String,
    pub(crate) reason: Option<String>,
}

#[derive(Debug)]
struct Place {
    stage: Stage,
    /// Who holds it: the call, and its future before the first poll.
    holders: u32,
}

#[derive(Debug)]
enum Stage {
    /// The call is on its way; it may yet ask.
    Working,
    /// It waits for this answer.
    Asking(Box<Question>, oneshot::Sender<Answered>),
    /// It was answered; a second answer changes nothing.
    Settled,
}

/// All calls in progress and their questions.
#[derive(Debug)]
pub(crate) struct Desk {
    calls: Mutex<HashMap<RequestId, Place>>,
    grants: Mutex<BTreeMap<SessionId, HashSet<String>>>,
    changed: Notify,
    questions: broadcast::Sender<Question>,
}

/// A call's place at the desk; it leaves when dropped.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    desk: &'a Desk,
    request_id: RequestId,
}

impl Default for Desk {
    fn default() -> Self {
        let (questions, _) = broadcast::channel(QUESTION_BACKLOG);
        Self {
            calls: Mutex::default(),
            grants: Mutex::default(),
            changed: Notify::new(),
            questions,
        }
    }
}

impl Desk {
    fn calls(&self) -> MutexGuard<'_, HashMap<RequestId, Place>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call, before anything else is done for it.
    pub(crate) fn sit(&self, request_id: &RequestId) -> Seat<'_> {
        self.hold(request_id);
        Seat {
            desk: self,
            request_id: request_id.clone(),
        }
    }

    /// Holds a call's place; [`Self::release`] gives it up.
    pub(crate) fn hold(&self, request_id: &RequestId) {
        let mut calls = self.calls();
        calls
            .entry(request_id.clone())
            .or_insert(Place {
                stage: Stage::Working,
                holders: 0,
            })
            .holders += 1;
    }

    /// Gives a place up; the last holder clears it.
    pub(crate) fn release(&self, request_id: &RequestId) {
        let mut calls = self.calls();
        if let Some(place) = calls.get_mut(request_id) {
            place.holders -= 1;
            if place.holders == 0 {
                calls.remove(request_id);
                self.changed.notify_waiters();
            }
        }
    }

    fn set(&self, request_id: &RequestId, stage: Stage) {
        if let Some(place) = self.calls().get_mut(request_id) {
            place.stage = stage;
        }
        self.changed.notify_waiters();
    }

    /// Takes an answer. Waits while the call works and has not asked; `false` when nothing asks for it.
    pub(crate) async fn answer(&self, request_id: &RequestId, answered: Answered) -> bool {
        let deadline = tokio::time::Instant::now() + Duration::from_millis(EARLY_ANSWER_MS);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, so that no change between the two is missed.
            changed.as_mut().enable();
            {
                let mut calls = self.calls();
                let Some(place) = calls.get_mut(request_id) else {
                    return false;
                };
                match std::mem::replace(&mut place.stage, Stage::Settled) {
                    Stage::Settled => return false,
                    Stage::Working => place.stage = Stage::Working,
                    Stage::Asking(_, sender) => return sender.send(answered).is_ok(),
                }
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return false;
            }
        }
    }

    /// What waits for an answer now.
    pub(crate) fn pending(&self) -> Vec<Question> {
        let mut found: Vec<Question> = self
            .calls()
            .values()
            .filter_map(|place| match &place.stage {
                Stage::Asking(question, _) => Some((**question).clone()),
                Stage::Working | Stage::Settled => None,
            })
            .collect();
        found.sort_by_key(|question| question.expires_at);
        found
    }

    /// Every question from now on.
    pub(crate) fn questions(&self) -> broadcast::Receiver<Question> {
        self.questions.subscribe()
    }

    /// A person said "for this session" to this tool before (R13).
    pub(crate) fn granted(&self, session: SessionId, tool: &str) -> bool {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        grants.get(&session).is_some_and(|tools| tools.contains(tool))
    }

    pub(crate) fn grant(&self, session: SessionId, tool: &str) {
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        grants.entry(session).or_default().insert(tool.to_owned());
    }

    /// The session is over; its grants with it.
    pub(crate) fn forget(&self, session: SessionId) {
        self.grants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&session);
    }
}

impl Seat<'_> {
    /// Puts the question; the receiver gets the answer.
    pub(crate) fn ask(&self, question: Question) -> oneshot::Receiver<Answered> {
        let (sender, receiver) = oneshot::channel();
        self.desk.set(
            &self.request_id,
            Stage::Asking(Box::new(question.clone()), sender),
        );
        // silent-ok: nobody listening to the broadcast is an ordinary state; the question is in `pending` as well
        let _listeners = self.desk.questions.send(question);
        receiver
    }

    /// The question lapsed.
    pub(crate) fn settle(&self) {
        self.desk.set(&self.request_id, Stage::Settled);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.desk.release(&self.request_id);
    }
}
