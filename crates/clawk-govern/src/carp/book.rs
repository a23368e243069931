//! The books of CRA: sessions, their live resolutions, used limits, waiting approvals. Every map is bounded.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use clawk_carp::RateLedger;
use clawk_carp::execute::IssuedResolution;
use clawk_proto::carp::ExecuteResponse;
use clawk_proto::{Digest, SessionId};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::error::CarpError;
use crate::sheet::CallPreview;
use crate::witness::ExactGrant;

/// Largest number of live sessions.
pub const MAX_LIVE: usize = 10_000;
/// Largest number of known sessions: live ones, and the last that have ended.
const MAX_KNOWN: usize = 20_000;
/// Largest number of usable resolutions per session. A further one ends the oldest.
const MAX_RESOLUTIONS: usize = 64;
/// Largest number of remembered request ids per session.
const MAX_REQUESTS: usize = 4_096;
/// Largest number of stored answers with idempotency keys per session.
const MAX_ANSWERS: usize = 256;
/// Largest metadata of a session, in bytes of JSON.
pub const MAX_METADATA_BYTES: usize = 4_096;
/// Largest number of waiting approvals.
const MAX_APPROVALS: usize = 10_000;
/// Largest total size of their texts, in bytes.
const MAX_SHEET_BYTES: usize = 64 << 20;

/// The data for opening a CRA session.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The agent that will send requests; 1–255 characters.
    pub agent_id: String,
    /// The goal; 1–10,000 characters.
    pub goal: String,
    /// Id of the parent session.
    pub parent: Option<SessionId>,
    /// The caller's Atlas. It is only shown and has no effect (a request names its own).
    pub atlas_id: Option<String>,
    /// The caller's metadata, returned unchanged; at most 4,096 bytes of JSON.
    pub metadata: Map<String, Value>,
    /// Owner: the name of the token that opens it.
    pub owner: String,
    /// A fixed id for test harnesses; `None`: a new one.
    pub id: Option<SessionId>,
}

/// A session in the form that is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// Its id, which is also its trace's id.
    pub id: SessionId,
    /// The agent that sends requests.
    pub agent_id: String,
    /// The goal; empty if the journal's content was erased.
    pub goal: String,
    /// The Atlas that its opener named.
    pub atlas_id: Option<String>,
    /// Its opener's metadata.
    pub metadata: Map<String, Value>,
    /// Its owner; `None`: the agent's own conversation.
    pub owner: Option<String>,
    /// Id of the parent session.
    pub parent: Option<SessionId>,
    /// Start time, RFC 3339.
    pub started: String,
    /// End time, RFC 3339.
    pub ended: Option<String>,
    /// Number of usable resolutions.
    pub resolutions: usize,
}

/// The state of an approval for an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// There is no answer yet.
    Pending,
    /// A person approved; the next execution with these parameters runs, once.
    Approved,
    /// A person denied.
    Denied,
}

/// An approval in the form that is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalView {
    /// Its id.
    pub id: Uuid,
    /// The session of the execution.
    pub session: SessionId,
    /// The resolution of the execution.
    pub resolution: Uuid,
    /// Id of the action.
    pub action_id: String,
    /// SHA-256 of the parameters' canonical JSON.
    pub parameters: Digest,
    /// Why the approval is needed.
    pub reason: String,
    /// The policy that requires it.
    pub policy_id: Option<String>,
    /// Its state.
    pub state: ApprovalState,
    /// Time until which it may be answered and used, RFC 3339.
    pub expires_at: String,
    /// The preview that a person reads.
    pub sheet: Arc<CallPreview>,
}

/// An approval request of a CRA client that waits.
#[derive(Debug)]
pub struct PendingCarpApproval {
    /// What the client sees of it.
    pub view: ApprovalView,
    /// When it expires.
    pub expires: Timestamp,
    /// The preconditions of the approval.
    pub shown: ExactGrant,
    /// Who answered, with the reason.
    pub answered_by: Option<(String, Option<String>)>,
}

/// The runtime's data about a session.
#[derive(Debug)]
pub struct CarpSession {
    /// The client's id of its agent.
    pub agent_id: String,
    /// The goal of the session.
    pub goal: String,
    /// The client that owns it.
    pub owner: Option<String>,
    /// The session above it.
    pub parent: Option<SessionId>,
    /// The Atlas that it names.
    pub atlas_id: Option<String>,
    /// The client's own data.
    pub metadata: Map<String, Value>,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    resolutions: VecDeque<IssuedResolution>,
    requests: HashSet<Uuid>,
    request_order: VecDeque<Uuid>,
    answers: VecDeque<(String, Digest, ExecuteResponse)>,
}

impl CarpSession {
    /// Makes a session without resolutions.
    pub fn new(agent_id: String, goal: String, owner: Option<String>, started: Timestamp) -> Self {
        Self {
            agent_id,
            goal,
            owner,
            parent: None,
            atlas_id: None,
            metadata: Map::new(),
            started,
            ended: None,
            resolutions: VecDeque::new(),
            requests: HashSet::new(),
            request_order: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    fn to_view(&self, id: SessionId, now: Timestamp) -> SessionView {
        SessionView {
            id,
            agent_id: self.agent_id.clone(),
            goal: self.goal.clone(),
            owner: self.owner.clone(),
            parent: self.parent,
            atlas_id: self.atlas_id.clone(),
            metadata: self.metadata.clone(),
            started: format!("{:.6}", self.started),
            ended: self.ended.map(|at| format!("{at:.6}")),
            resolutions: self
                .resolutions
                .iter()
                .filter(|issued| now < issued.expires)
                .count(),
        }
    }

    /// Returns the resolution with this id.
    pub fn find_resolution(&self, id: Uuid) -> Option<&IssuedResolution> {
        self.resolutions.iter().find(|issued| issued.resolution_id == id)
    }

    /// Returns the resolution with this id, for a change.
    pub fn issued_mut(&mut self, id: Uuid) -> Option<&mut IssuedResolution> {
        self.resolutions
            .iter_mut()
            .find(|issued| issued.resolution_id == id)
    }

    /// Adds a resolution, and removes expired ones.
    pub fn add_resolution(&mut self, issued: IssuedResolution, now: Timestamp) {
        self.resolutions.retain(|known| now < known.expires);
        if self.resolutions.len() >= MAX_RESOLUTIONS {
            self.resolutions.pop_front();
        }
        self.resolutions.push_back(issued);
    }

    /// Records a request id. Returns `false` if it was used before.
    pub fn take_request(&mut self, id: Uuid) -> bool {
        if !self.requests.insert(id) {
            return false;
        }
        self.request_order.push_back(id);
        if self.request_order.len() > MAX_REQUESTS
            && let Some(old) = self.request_order.pop_front()
        {
            self.requests.remove(&old);
        }
        true
    }

    /// Returns the answer to an idempotency key.
    ///
    /// # Errors
    /// The key was used for another execution.
    pub fn stored_answer(
        &self,
        key: &str,
        hash: Digest,
    ) -> Result<Option<ExecuteResponse>, ReusedIdempotencyKey> {
        match self.answers.iter().find(|(known, ..)| known == key) {
            Some((_, known, answer)) if *known == hash => Ok(Some(answer.clone())),
            Some(_) => Err(ReusedIdempotencyKey),
            None => Ok(None),
        }
    }

    /// Keeps the answer to an execution for a repeated request.
    pub fn keep_answer(&mut self, key: String, hash: Digest, answer: ExecuteResponse) {
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((key, hash, answer));
    }
}

/// An idempotency key was used for another execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReusedIdempotencyKey;

/// The data of all sessions.
#[derive(Debug, Default)]
pub struct CarpSessions {
    /// The used limits.
    pub ledger: RateLedger,
    sessions: BTreeMap<SessionId, CarpSession>,
    live: usize,
    approvals: HashMap<Uuid, PendingCarpApproval>,
}

impl CarpSessions {
    /// Adds a CRA session.
    ///
    /// # Errors
    /// Too many are live, or the id is in use.
    pub fn open_session(&mut self, id: SessionId, book: CarpSession) -> Result<(), CarpError> {
        if self.sessions.contains_key(&id) {
            return Err(CarpError::Conflict(format!("the session {id} exists already")));
        }
        if self.live >= MAX_LIVE {
            return Err(CarpError::TooMany(format!(
                "{MAX_LIVE} sessions are live; end some"
            )));
        }
        self.insert(id, book);
        Ok(())
    }

    /// Restores a session from the journal, or adds one of the agent's own conversations.
    pub fn insert(&mut self, id: SessionId, book: CarpSession) {
        while self.sessions.len() >= MAX_KNOWN {
            let old = self
                .sessions
                .iter()
                .find(|(_, book)| book.ended.is_some() || book.owner.is_none())
                .map(|(id, _)| *id);
            let Some(old) = old.or_else(|| self.sessions.keys().next().copied()) else {
                break;
            };
            self.remove(old);
        }
        let live = book.owner.is_some() && book.ended.is_none();
        self.remove(id);
        self.sessions.insert(id, book);
        self.live += usize::from(live);
    }

    /// Removes a session.
    pub fn remove(&mut self, id: SessionId) {
        if let Some(book) = self.sessions.remove(&id) {
            self.live -= usize::from(book.owner.is_some() && book.ended.is_none()).min(self.live);
        }
    }

    /// Ends a session.
    pub fn end_session(&mut self, id: SessionId, at: Timestamp) {
        if let Some(book) = self.sessions.get_mut(&id).filter(|book| book.ended.is_none()) {
            book.ended = Some(at);
            book.resolutions.clear();
            book.answers.clear();
            book.requests.clear();
            book.request_order.clear();
            self.live -= usize::from(book.owner.is_some()).min(self.live);
        }
        self.approvals.retain(|_, waiting| waiting.view.session != id);
    }

    /// Returns the session with this id.
    pub fn get(&self, id: SessionId) -> Option<&CarpSession> {
        self.sessions.get(&id)
    }

    /// Returns a session that has not ended.
    pub fn live_session(&mut self, id: SessionId) -> Result<&mut CarpSession, CarpError> {
        self.sessions
            .get_mut(&id)
            .filter(|book| book.ended.is_none())
            .ok_or_else(|| CarpError::UnknownSession(id.to_string()))
    }

    /// Returns the session and the ledger, which `execute::check_execution` needs together.
    pub fn session_and_ledger(&mut self, id: SessionId) -> (Option<&mut CarpSession>, &mut RateLedger) {
        (self.sessions.get_mut(&id), &mut self.ledger)
    }

    /// Returns a session in the form of the API.
    pub fn session_view(&self, id: SessionId, now: Timestamp) -> Option<SessionView> {
        self.sessions.get(&id).map(|book| book.to_view(id, now))
    }

    /// Returns a page of matching sessions, newest first, and the total number.
    pub fn session_views(
        &self,
        wanted: impl Fn(&CarpSession) -> bool,
        (offset, limit): (usize, usize),
        now: Timestamp,
    ) -> (Vec<SessionView>, usize) {
        let mut total = 0;
        let mut views = Vec::new();
        for (id, book) in self.sessions.iter().rev().filter(|(_, book)| wanted(book)) {
            if total >= offset && views.len() < limit {
                views.push(book.to_view(*id, now));
            }
            total += 1;
        }
        (views, total)
    }

    /// Adds an approval request. The same request twice is one.
    pub fn put_question(
        &mut self,
        waiting: PendingCarpApproval,
        now: Timestamp,
    ) -> Result<ApprovalView, CarpError> {
        self.approvals.retain(|_, known| now < known.expires);
        let same = self.approvals.values().find(|known| {
            let (have, want) = (&known.view, &waiting.view);
            (have.session, have.resolution, have.parameters)
                == (want.session, want.resolution, want.parameters)
                && have.action_id == want.action_id
        });
        if let Some(same) = same {
            return Ok(same.view.clone());
        }
        if self.approvals.len() >= MAX_APPROVALS {
            return Err(CarpError::TooMany(format!(
                "{MAX_APPROVALS} questions wait already"
            )));
        }
        let kept = self.approvals.values().map(|known| known.view.sheet.bytes());
        if kept.sum::<usize>() + waiting.view.sheet.bytes() > MAX_SHEET_BYTES {
            return Err(CarpError::TooMany(format!(
                "the texts of the questions that wait take {MAX_SHEET_BYTES} bytes already"
            )));
        }
        let view = waiting.view.clone();
        self.approvals.insert(view.id, waiting);
        Ok(view)
    }

    /// Takes a person's answer to exactly this call, if there is one. A yes is then used up.
    pub fn take_answer(
        &mut self,
        under: &super::ResolutionContext,
        action_id: &str,
        parameters: Digest,
        now: Timestamp,
    ) -> Option<PendingCarpApproval> {
        let id = self.approvals.iter().find(|(_, waiting)| {
            let view = &waiting.view;
            now < waiting.expires
                && view.state != ApprovalState::Pending
                && view.session == under.requester.session_id
                && view.resolution == under.resolution
                && view.parameters == parameters
                && view.action_id == action_id
        });
        let id = id.map(|(id, _)| *id)?;
        self.approvals.remove(&id)
    }

    /// Returns the approval requests that are not expired.
    pub fn approvals(&self, now: Timestamp) -> Vec<ApprovalView> {
        let mut views: Vec<ApprovalView> = self
            .approvals
            .values()
            .filter(|waiting| now < waiting.expires)
            .map(|waiting| waiting.view.clone())
            .collect();
        views.sort_by_key(|view| view.id);
        views
    }

    /// Returns the approval request, if it waits.
    pub fn waiting_approval(
        &mut self,
        id: Uuid,
        now: Timestamp,
    ) -> Result<&mut PendingCarpApproval, CarpError> {
        self.approvals
            .get_mut(&id)
            .filter(|waiting| now < waiting.expires && waiting.view.state == ApprovalState::Pending)
            .ok_or_else(|| CarpError::UnknownApproval(id.to_string()))
    }
}
