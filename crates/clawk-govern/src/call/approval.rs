//! Approval requests: the waiting calls, the answers, and their lifetime (CKP §9.3.2, R18).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_proto::{Digest, RequestId, SessionId};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, broadcast, oneshot};

use super::standing::GrantStore;
use crate::event::Thread;
use crate::notice::{ApprovalAnswer, ApprovalQuestion};
use crate::roles::KnownPerson;
use crate::sheet::PreviewReceipt;
use crate::witness::ExactGrant;

/// How long an answer that arrives before its request is kept, in milliseconds (R18).
pub(super) const EARLY_ANSWER_MS: u64 = 600_000;
/// Number of requests that a slow listener may be behind.
const QUESTION_BACKLOG: usize = 256;

/// Which later calls a standing grant covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GrantScope {
    /// Calls of the tool with exactly these arguments.
    #[default]
    Exact,
    /// Calls of the tool with paths in the folder that the request offered; exact if it offered none.
    Folder,
}

/// An answer, with the person and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalReply {
    /// The answer, with its lifetime.
    pub answer: ApprovalAnswer,
    /// Scope of a standing grant.
    pub breadth: GrantScope,
    /// The person who answers.
    pub person: KnownPerson,
    /// The person's reason.
    pub reason: Option<String>,
    /// How much of the request the person was shown. A yes to a folded request counts only if it was shown completely.
    pub seen: PreviewReceipt,
}

impl ApprovalReply {
    /// Returns whether the answer is valid for this request. A no is always valid.
    pub fn is_answer_to(&self, question: &ApprovalQuestion) -> bool {
        self.answer == ApprovalAnswer::Deny || question.sheet.admits(&self.seen)
    }

    /// Returns the word for the record of a yes to a folded request.
    pub fn seen_word(&self, question: &ApprovalQuestion) -> Option<&'static str> {
        if self.answer == ApprovalAnswer::Deny || !question.sheet.is_folded() {
            return None;
        }
        match self.seen {
            PreviewReceipt::Short => None,
            PreviewReceipt::Whole(_) => Some("whole"),
            PreviewReceipt::Sent => Some("sent"),
        }
    }
}

/// The outcome of answering a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// The answer counts and is durable.
    Taken,
    /// No request waits for it, or it was answered before (R18).
    Nothing,
    /// The person has no right to answer.
    NotAllowed,
    /// The answer is a yes, but the person has not seen the whole request. The request stays open.
    Unseen,
}

/// An answer on its way to its call, and the channel that reports whether it is durable.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) reply: ApprovalReply,
    pub(super) durable: oneshot::Sender<bool>,
}

/// A request without a running call, left open by an earlier run of the agent.
#[derive(Debug)]
pub struct OpenApproval {
    pub question: ApprovalQuestion,
    pub grant: ExactGrant,
    pub request_hash: Digest,
    pub thread: Thread,
    /// The answer, if there is one. It takes effect when the call comes again.
    pub reply: Option<ApprovalReply>,
}

#[derive(Debug)]
struct PendingCallEntry {
    stage: PendingCallStage,
    /// Number of holders of the entry: the call, and its future before the first poll.
    holders: u32,
}

#[derive(Debug)]
enum PendingCallStage {
    /// The call is in progress and may still ask.
    Working,
    /// The request was made before the call arrived. The call checks the preconditions, then asks.
    Returning(Box<ApprovalQuestion>),
    /// The call waits for the answer to this request.
    Asking(Box<ApprovalQuestion>, oneshot::Sender<Delivery>),
    /// The request was answered. A second answer has no effect.
    Settled,
}

enum ReplyTarget {
    Nothing,
    NotYet,
    Unseen,
    Asking(oneshot::Sender<Delivery>),
}

/// The registry of all calls in progress and their approval requests.
#[derive(Debug)]
pub struct ApprovalRegistry {
    calls: Mutex<BTreeMap<RequestId, PendingCallEntry>>,
    open: Mutex<BTreeMap<RequestId, OpenApproval>>,
    /// Steps of plans whose calls have not ended: number and call id, by plan.
    plans: Mutex<HashMap<RequestId, Vec<(u32, RequestId)>>>,
    /// The standing grants.
    pub standing: GrantStore,
    changed: Notify,
    questions: broadcast::Sender<ApprovalQuestion>,
}

/// A call's entry in the registry. It is removed when this guard is dropped.
#[derive(Debug)]
pub struct PendingCall<'a> {
    desk: &'a ApprovalRegistry,
    request_id: RequestId,
}

impl Default for ApprovalRegistry {
    fn default() -> Self {
        let (questions, _) = broadcast::channel(QUESTION_BACKLOG);
        Self {
            calls: Mutex::default(),
            open: Mutex::default(),
            plans: Mutex::default(),
            standing: GrantStore::default(),
            changed: Notify::new(),
            questions,
        }
    }
}

impl ApprovalRegistry {
    fn lock_calls(&self) -> MutexGuard<'_, BTreeMap<RequestId, PendingCallEntry>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call. This is the first step of a call.
    pub fn register_call(&self, request_id: &RequestId) -> PendingCall<'_> {
        self.hold_call(request_id);
        PendingCall {
            desk: self,
            request_id: request_id.clone(),
        }
    }

    /// Adds a holder to a call's entry. [`Self::release_call`] removes it.
    pub fn hold_call(&self, request_id: &RequestId) {
        let mut calls = self.lock_calls();
        calls
            .entry(request_id.clone())
            .or_insert(PendingCallEntry {
                stage: PendingCallStage::Working,
                holders: 0,
            })
            .holders += 1;
    }

    /// Removes a holder. With the last holder the entry is removed.
    pub fn release_call(&self, request_id: &RequestId) {
        let mut calls = self.lock_calls();
        if let Some(place) = calls.get_mut(request_id) {
            place.holders -= 1;
            if place.holders == 0 {
                calls.remove(request_id);
                self.changed.notify_waiters();
            }
        }
    }

    fn set_stage(&self, request_id: &RequestId, stage: PendingCallStage) {
        if let Some(place) = self.lock_calls().get_mut(request_id) {
            place.stage = stage;
        }
        self.changed.notify_waiters();
    }

    fn open_ones(&self) -> MutexGuard<'_, BTreeMap<RequestId, OpenApproval>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_plans(&self) -> MutexGuard<'_, HashMap<RequestId, Vec<(u32, RequestId)>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens requests whose calls are not here: those of an earlier run, or of a plan. All are registered before the first is
    /// announced.
    pub fn reopen_questions(&self, all: Vec<OpenApproval>) {
        let mut questions = Vec::with_capacity(all.len());
        for open in all {
            let question = &open.question;
            if let Some(step) = &question.step {
                let place = (step.number, question.request_id.clone());
                let mut plans = self.lock_plans();
                let steps = plans.entry(step.plan.clone()).or_default();
                steps.push(place);
                steps.sort();
            }
            if open.reply.is_none() {
                questions.push(question.clone());
            }
            self.open_ones().insert(question.request_id.clone(), open);
        }
        for question in questions {
            // silent-ok: having no listener is normal; the request is also in `pending`
            let _listeners = self.questions.send(question);
        }
    }

    /// Returns the steps of a plan whose calls have not ended, in order; empty: the plan does not exist.
    pub fn plan_steps(&self, plan: &RequestId) -> Vec<(u32, RequestId)> {
        self.lock_plans().get(plan).cloned().unwrap_or_default()
    }

    /// Removes the request of a call that has ended or never comes. Returns the open request.
    pub fn close_question(&self, request_id: &RequestId) -> Option<OpenApproval> {
        self.lock_plans().retain(|_, steps| {
            steps.retain(|(_, id)| id != request_id);
            !steps.is_empty()
        });
        self.open_ones().remove(request_id)
    }

    /// Returns whether this call's request is open and unanswered.
    pub fn is_waiting(&self, request_id: &RequestId) -> bool {
        let open = self.open_ones();
        open.get(request_id).is_some_and(|open| open.reply.is_none())
    }

    /// Returns whether any of these calls has an open request, and the unanswered requests.
    pub fn open_of(&self, ids: &[RequestId]) -> (bool, Vec<ApprovalQuestion>) {
        let open = self.open_ones();
        let found: Vec<&OpenApproval> = ids.iter().filter_map(|id| open.get(id)).collect();
        let unanswered = found.iter().filter(|open| open.reply.is_none());
        (
            !found.is_empty(),
            unanswered.map(|open| open.question.clone()).collect(),
        )
    }

    /// Takes the open request of a call that has come again.
    pub(super) fn take_up(&self, request_id: &RequestId) -> Option<OpenApproval> {
        // Change both lists at once, so that the request is always in one of them.
        let mut all = self.open_ones();
        let open = all.remove(request_id)?;
        if open.reply.is_none() {
            let question = Box::new(open.question.clone());
            self.set_stage(request_id, PendingCallStage::Returning(question));
        }
        Some(open)
    }

    /// Returns the request digest of an open request.
    pub(super) fn open_request(&self, request_id: &RequestId) -> Option<Digest> {
        self.open_ones().get(request_id).map(|open| open.request_hash)
    }

    /// Answers an open request; `now_us` is monotonic time in microseconds.
    ///
    /// # Errors
    /// There is no request, it has expired or already has an answer; or the answer is a yes and the person has not seen the whole
    /// request.
    pub(super) fn settle_open(
        &self,
        request_id: &RequestId,
        reply: &ApprovalReply,
        now_us: u64,
    ) -> Result<(Thread, ApprovalQuestion), ReplyOutcome> {
        let mut all = self.open_ones();
        let open = all.get_mut(request_id).ok_or(ReplyOutcome::Nothing)?;
        if open.reply.is_some() || open.question.until_us < now_us {
            return Err(ReplyOutcome::Nothing);
        }
        if !reply.is_answer_to(&open.question) {
            return Err(ReplyOutcome::Unseen);
        }
        open.reply = Some(reply.clone());
        Ok((open.thread, open.question.clone()))
    }

    /// Removes an answer that could not be stored.
    pub(super) fn unsettle_open(&self, request_id: &RequestId) {
        if let Some(open) = self.open_ones().get_mut(request_id) {
            open.reply = None;
        }
    }

    /// Takes an answer and returns [`ReplyOutcome::Taken`] when it is durable. Waits if the call is in progress and has not asked
    /// yet.
    pub async fn answer_question(&self, request_id: &RequestId, reply: ApprovalReply) -> ReplyOutcome {
        let deadline = tokio::time::Instant::now() + Duration::from_millis(EARLY_ANSWER_MS);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before looking, so that no change in between is missed.
            changed.as_mut().enable();
            match self.take_question(request_id, &reply) {
                ReplyTarget::Nothing => return ReplyOutcome::Nothing,
                ReplyTarget::Unseen => return ReplyOutcome::Unseen,
                ReplyTarget::NotYet => {}
                ReplyTarget::Asking(sender) => {
                    let (durable, kept) = oneshot::channel();
                    let sent = sender.send(Delivery { reply, durable });
                    // silent-ok: a call that is gone can't store the answer
                    return if sent.is_ok() && kept.await.unwrap_or(false) {
                        ReplyOutcome::Taken
                    } else {
                        ReplyOutcome::Nothing
                    };
                }
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return ReplyOutcome::Nothing;
            }
        }
    }

    fn take_question(&self, request_id: &RequestId, reply: &ApprovalReply) -> ReplyTarget {
        let mut calls = self.lock_calls();
        let Some(place) = calls.get_mut(request_id) else {
            return ReplyTarget::Nothing;
        };
        match std::mem::replace(&mut place.stage, PendingCallStage::Settled) {
            PendingCallStage::Settled => ReplyTarget::Nothing,
            stage @ (PendingCallStage::Working | PendingCallStage::Returning(_)) => {
                place.stage = stage;
                ReplyTarget::NotYet
            }
            PendingCallStage::Asking(question, sender) if !reply.is_answer_to(&question) => {
                place.stage = PendingCallStage::Asking(question, sender);
                ReplyTarget::Unseen
            }
            PendingCallStage::Asking(_, sender) => ReplyTarget::Asking(sender),
        }
    }

    /// Returns the requests that now wait for an answer, by monotonic time.
    pub fn pending_questions(&self, now_us: u64) -> Vec<ApprovalQuestion> {
        let open = self.open_ones();
        let mut found: Vec<ApprovalQuestion> = self
            .lock_calls()
            .values()
            .filter_map(|place| match &place.stage {
                PendingCallStage::Asking(question, _) | PendingCallStage::Returning(question) => {
                    Some((**question).clone())
                }
                PendingCallStage::Working | PendingCallStage::Settled => None,
            })
            .collect();
        let waiting = open
            .values()
            .filter(|open| open.reply.is_none() && open.question.until_us > now_us);
        found.extend(waiting.map(|open| open.question.clone()));
        drop(open);
        found.sort_by_key(|question| (question.expires_at, question.step_number()));
        found
    }

    /// Subscribes to every request from now on.
    pub fn subscribe_questions(&self) -> broadcast::Receiver<ApprovalQuestion> {
        self.questions.subscribe()
    }

    /// Announces a request of a call on another host.
    pub fn announce_question(&self, question: ApprovalQuestion) {
        // silent-ok: having no listener is normal; the request is also in `pending`
        let _listeners = self.questions.send(question);
    }

    /// Removes the grants of a session that has ended.
    pub fn forget_session(&self, session: SessionId) {
        self.standing.forget_session(session);
    }
}

impl PendingCall<'_> {
    /// Makes the request. The receiver gets the answer.
    pub(super) fn put_question(&self, question: ApprovalQuestion) -> oneshot::Receiver<Delivery> {
        let (sender, receiver) = oneshot::channel();
        self.desk.set_stage(
            &self.request_id,
            PendingCallStage::Asking(Box::new(question.clone()), sender),
        );
        // silent-ok: having no listener is normal; the request is also in `pending`
        let _listeners = self.desk.questions.send(question);
        receiver
    }

    /// Marks the request as expired.
    pub fn mark_settled(&self) {
        self.desk.set_stage(&self.request_id, PendingCallStage::Settled);
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.desk.release_call(&self.request_id);
    }
}
