//! Questions to people: who asks, who answers, and for how long (CKP §9.3.2, R18).

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

/// How long an answer that came before its question waits for it, milliseconds (R18).
pub(crate) const EARLY_ANSWER_MS: u64 = 600_000;
/// Questions that a slow listener may be behind.
const QUESTION_BACKLOG: usize = 256;

/// The later calls that a standing answer covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GrantScope {
    /// The tool with exactly these arguments.
    #[default]
    Exact,
    /// The tool with paths in the folder that the question offered; exact where it offered none.
    Folder,
}

/// An answer with who gave it and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalReply {
    /// Yes or no, and for how long.
    pub answer: ApprovalAnswer,
    /// For standing answers.
    pub breadth: GrantScope,
    /// Who.
    pub person: KnownPerson,
    /// Their words.
    pub reason: Option<String>,
    /// How much of the question they were given. A yes to a folded question counts only with the whole of it.
    pub seen: PreviewReceipt,
}

impl ApprovalReply {
    /// Whether it counts as an answer to this question: a no always does.
    pub(crate) fn counts(&self, question: &ApprovalQuestion) -> bool {
        self.answer == ApprovalAnswer::Deny || question.sheet.admits(&self.seen)
    }

    /// For the record of a yes to a question that was folded.
    pub(crate) fn seen_word(&self, question: &ApprovalQuestion) -> Option<&'static str> {
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

/// The result of giving an answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// It counts, and is durable.
    Taken,
    /// Nothing asks for it, or it was answered before (R18).
    Nothing,
    /// Who answered may not.
    NotAllowed,
    /// It is a yes, and the question hides something that who answered has not seen. It waits on.
    Unseen,
}

/// An answer on its way to its call, and the way back: whether it is durable.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) reply: ApprovalReply,
    pub(super) durable: oneshot::Sender<bool>,
}

/// A question that no running call holds: an earlier run of the agent left it open.
#[derive(Debug)]
pub(crate) struct OpenApproval {
    pub(crate) question: ApprovalQuestion,
    pub(crate) grant: ExactGrant,
    pub(crate) request_hash: Digest,
    pub(crate) thread: Thread,
    /// Answered already; it counts when the call comes again.
    pub(crate) reply: Option<ApprovalReply>,
}

#[derive(Debug)]
struct PendingCallEntry {
    stage: PendingCallStage,
    /// Who holds it: the call, and its future before the first poll.
    holders: u32,
}

#[derive(Debug)]
enum PendingCallStage {
    /// The call is on its way; it may yet ask.
    Working,
    /// Its question was put before it came; it looks whether all is as it was, and asks then.
    Returning(Box<ApprovalQuestion>),
    /// It waits for this answer.
    Asking(Box<ApprovalQuestion>, oneshot::Sender<Delivery>),
    /// It was answered; a second answer changes nothing.
    Settled,
}

enum ReplyTarget {
    Nothing,
    NotYet,
    Unseen,
    Asking(oneshot::Sender<Delivery>),
}

/// All calls in progress and their questions.
#[derive(Debug)]
pub(crate) struct ApprovalRegistry {
    calls: Mutex<BTreeMap<RequestId, PendingCallEntry>>,
    open: Mutex<BTreeMap<RequestId, OpenApproval>>,
    /// The steps of plans whose calls have not ended: plan and number.
    plans: Mutex<HashMap<RequestId, Vec<(u32, RequestId)>>>,
    pub(crate) standing: GrantStore,
    changed: Notify,
    questions: broadcast::Sender<ApprovalQuestion>,
}

/// A call's place at the desk; it leaves when dropped.
#[derive(Debug)]
pub(crate) struct PendingCall<'a> {
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
    fn calls(&self) -> MutexGuard<'_, BTreeMap<RequestId, PendingCallEntry>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call, before anything else is done for it.
    pub(crate) fn sit(&self, request_id: &RequestId) -> PendingCall<'_> {
        self.hold(request_id);
        PendingCall {
            desk: self,
            request_id: request_id.clone(),
        }
    }

    /// Holds a call's place; [`Self::release`] gives it up.
    pub(crate) fn hold(&self, request_id: &RequestId) {
        let mut calls = self.calls();
        calls
            .entry(request_id.clone())
            .or_insert(PendingCallEntry {
                stage: PendingCallStage::Working,
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

    fn set(&self, request_id: &RequestId, stage: PendingCallStage) {
        if let Some(place) = self.calls().get_mut(request_id) {
            place.stage = stage;
        }
        self.changed.notify_waiters();
    }

    fn open_ones(&self) -> MutexGuard<'_, BTreeMap<RequestId, OpenApproval>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<RequestId, Vec<(u32, RequestId)>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens questions whose calls are not here: of an earlier run of the agent, or of a plan. All are there before the
    /// first is told.
    pub(crate) fn reopen(&self, all: Vec<OpenApproval>) {
        let mut questions = Vec::with_capacity(all.len());
        for open in all {
            let question = &open.question;
            if let Some(step) = &question.step {
                let place = (step.number, question.request_id.clone());
                let mut plans = self.plans();
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
            // silent-ok: nobody listening is an ordinary state; the question is in `pending` as well
            let _listeners = self.questions.send(question);
        }
    }

    /// The steps of a plan whose calls have not ended, in order; none: there is no such plan.
    pub(crate) fn steps(&self, plan: &RequestId) -> Vec<(u32, RequestId)> {
        self.plans().get(plan).cloned().unwrap_or_default()
    }

    /// A call has ended, or never comes: its question is no more. What was open of it.
    pub(crate) fn close(&self, request_id: &RequestId) -> Option<OpenApproval> {
        self.plans().retain(|_, steps| {
            steps.retain(|(_, id)| id != request_id);
            !steps.is_empty()
        });
        self.open_ones().remove(request_id)
    }

    /// Whether this call's question is open and has no answer yet.
    pub(crate) fn waits(&self, request_id: &RequestId) -> bool {
        let open = self.open_ones();
        open.get(request_id).is_some_and(|open| open.reply.is_none())
    }

    /// Which of these calls have an open question, and those without an answer.
    pub(crate) fn open_of(&self, ids: &[RequestId]) -> (bool, Vec<ApprovalQuestion>) {
        let open = self.open_ones();
        let found: Vec<&OpenApproval> = ids.iter().filter_map(|id| open.get(id)).collect();
        let unanswered = found.iter().filter(|open| open.reply.is_none());
        (
            !found.is_empty(),
            unanswered.map(|open| open.question.clone()).collect(),
        )
    }

    /// The call of an open question is here again.
    pub(super) fn take_up(&self, request_id: &RequestId) -> Option<OpenApproval> {
        // Both at once: at no time is the question in neither list.
        let mut all = self.open_ones();
        let open = all.remove(request_id)?;
        if open.reply.is_none() {
            let question = Box::new(open.question.clone());
            self.set(request_id, PendingCallStage::Returning(question));
        }
        Some(open)
    }

    /// What the request of an open question was.
    pub(super) fn open_request(&self, request_id: &RequestId) -> Option<Digest> {
        self.open_ones().get(request_id).map(|open| open.request_hash)
    }

    /// Gives an open question its answer; `now_us` is of the monotonic clock.
    ///
    /// # Errors
    /// There is none, it lapsed, it has one; or the answer is a yes of who has not seen it whole.
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
        if !reply.counts(&open.question) {
            return Err(ReplyOutcome::Unseen);
        }
        open.reply = Some(reply.clone());
        Ok((open.thread, open.question.clone()))
    }

    /// The answer to an open question could not be kept.
    pub(super) fn unsettle_open(&self, request_id: &RequestId) {
        if let Some(open) = self.open_ones().get_mut(request_id) {
            open.reply = None;
        }
    }

    /// Takes an answer; [`ReplyOutcome::Taken`] when it is durable. Waits while the call works and has not asked.
    pub(crate) async fn answer(&self, request_id: &RequestId, reply: ApprovalReply) -> ReplyOutcome {
        let deadline = tokio::time::Instant::now() + Duration::from_millis(EARLY_ANSWER_MS);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, so that no change between the two is missed.
            changed.as_mut().enable();
            match self.take_question(request_id, &reply) {
                ReplyTarget::Nothing => return ReplyOutcome::Nothing,
                ReplyTarget::Unseen => return ReplyOutcome::Unseen,
                ReplyTarget::NotYet => {}
                ReplyTarget::Asking(sender) => {
                    let (durable, kept) = oneshot::channel();
                    let sent = sender.send(Delivery { reply, durable });
                    // silent-ok: a call that is gone keeps nothing
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
        let mut calls = self.calls();
        let Some(place) = calls.get_mut(request_id) else {
            return ReplyTarget::Nothing;
        };
        match std::mem::replace(&mut place.stage, PendingCallStage::Settled) {
            PendingCallStage::Settled => ReplyTarget::Nothing,
            stage @ (PendingCallStage::Working | PendingCallStage::Returning(_)) => {
                place.stage = stage;
                ReplyTarget::NotYet
            }
            PendingCallStage::Asking(question, sender) if !reply.counts(&question) => {
                place.stage = PendingCallStage::Asking(question, sender);
                ReplyTarget::Unseen
            }
            PendingCallStage::Asking(_, sender) => ReplyTarget::Asking(sender),
        }
    }

    /// What waits for an answer now, by the monotonic clock.
    pub(crate) fn pending(&self, now_us: u64) -> Vec<ApprovalQuestion> {
        let open = self.open_ones();
        let mut found: Vec<ApprovalQuestion> = self
            .calls()
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
        found.sort_by_key(|question| (question.expires_at, question.number()));
        found
    }

    /// Every question from now on.
    pub(crate) fn questions(&self) -> broadcast::Receiver<ApprovalQuestion> {
        self.questions.subscribe()
    }

    /// A question of a call on another host.
    pub(crate) fn announce(&self, question: ApprovalQuestion) {
        // silent-ok: nobody listening is an ordinary state; the question is in `pending` as well
        let _listeners = self.questions.send(question);
    }

    /// The session is over; its grants with it.
    pub(crate) fn forget(&self, session: SessionId) {
        self.standing.forget(session);
    }
}

impl PendingCall<'_> {
    /// Puts the question; the receiver gets the answer.
    pub(super) fn ask(&self, question: ApprovalQuestion) -> oneshot::Receiver<Delivery> {
        let (sender, receiver) = oneshot::channel();
        self.desk.set(
            &self.request_id,
            PendingCallStage::Asking(Box::new(question.clone()), sender),
        );
        // silent-ok: nobody listening to the broadcast is an ordinary state; the question is in `pending` as well
        let _listeners = self.desk.questions.send(question);
        receiver
    }

    /// The question lapsed.
    pub(crate) fn settle(&self) {
        self.desk.set(&self.request_id, PendingCallStage::Settled);
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.desk.release(&self.request_id);
    }
}
