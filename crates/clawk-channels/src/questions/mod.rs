//! Questions in the chat (C7). A question about a call or a plan is asked in the conversation that caused it if the sender may answer
//! it, else in `[approvals] to`. An answer counts once, only from an admin, and only where the question was asked.
//!
//! Long because asking, answering and showing the decision share one table of what is open.

mod frame;
mod text;
mod typed;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::Delivery;
use clawk_kernel::sheet::{PreviewReceipt, visible_text};
use clawk_kernel::{
    ApprovalAnswer, ApprovalReply, EntryPoint, GrantScope, Kernel, KnownPerson, Plan, ReplyOutcome, Role,
    WaitingApproval,
};
use clawk_proto::{Digest, RequestId, SessionId};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::frame::MessageFrame;
use self::text::{QuestionText, escape_literal, visible_lines};
pub(crate) use self::typed::TypedAnswer;
use self::words::{
    decision_by, decision_from_record, first_question, id_of, parse, question_words, requester_line,
    waits_no_more,
};
use crate::adapter::{ButtonPress, ChannelAdapter, Decision, OutboundMessage, QuestionMessage};
use crate::handle::SharedChannelHandles;
use crate::markup::dress;
use crate::pairing::new_code;
use crate::split::text_length;

/// How often it is looked whether a question was answered elsewhere, milliseconds.
const LOOK_MS: u64 = 1_000;
/// The steps of a plan come one by one, milliseconds.
const GATHER_MS: u64 = 30;
/// Questions that are remembered after they were decided, so that an old button can be answered.
const REMEMBERED: usize = 1_000;
/// Conversations of which is known who spoke last.
const CALLERS: usize = 10_000;
/// Answers of the past among which a decision is looked for.
const PAST: usize = 100;
/// How long one question may take to be sent, milliseconds.
const SEND_MS: u64 = 30_000;
/// Questions and decisions on their way at a time, on all channels.
const AT_ONCE: usize = 64;
/// The longest wait before a question that was not delivered is sent again, milliseconds; the waits double up to it.
const LONGEST_WAIT_MS: u64 = 60_000;
/// Options of a question that become buttons, and characters of one.
const MAX_CHOICES: usize = 5;
const MAX_LABEL: usize = 60;

/// What became of a press, or of a typed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PressOutcome {
    /// It counts; for the person.
    Taken(String),
    /// It was decided before; for the person.
    Before(String),
    /// Who pressed may not.
    NotAllowed,
    /// No question with this id or code was asked in this conversation.
    Unknown,
}

/// A question that was put into a conversation.
#[derive(Debug, Clone)]
struct OpenQuestion {
    /// What buttons carry.
    id: String,
    /// What is typed.
    code: String,
    /// The call's id, or the plan's.
    asked: RequestId,
    plan: bool,
    /// Digests of the texts that were shown whole.
    shown: Vec<Digest>,
    channel: String,
    conversation: String,
    /// The platform's id of the message.
    sent_as: Option<String>,
    /// What the message says.
    text: QuestionText,
    /// The decision.
    decided: Option<Decision>,
    /// When it was decided.
    decided_at: Option<Instant>,
}

/// All questions of all channels.
#[derive(Debug)]
pub(crate) struct QuestionRegistry {
    kernel: Kernel,
    /// `[approvals] to`.
    targets: Vec<(String, String)>,
    lanes: SharedChannelHandles,
    open: Mutex<Vec<OpenQuestion>>,
    callers: Mutex<HashMap<(String, String), Role>>,
    /// Questions of the agent itself (`ask-user`).
    own: Mutex<Vec<AgentQuestion>>,
    /// Where a question was not delivered.
    trouble: Mutex<HashMap<QuestionLocation, QuestionRetry>>,
    /// Questions about which the conversation that waits for them was told.
    told: Mutex<HashSet<RequestId>>,
    /// Decisions that are to be shown.
    decisions: Mutex<Vec<(OpenQuestion, Decision)>>,
    shows: Notify,
}

/// A question, a channel, a conversation.
type QuestionLocation = (RequestId, String, String);

/// A question that a place did not get.
#[derive(Debug, Clone, Copy)]
struct QuestionRetry {
    tries: u32,
    /// When it is sent again; none: the platform will never take it there.
    again: Option<Instant>,
}

/// What is sent beside everything else: one platform that does not answer holds no other's questions up.
enum QuestionTask {
    Ask(Box<QuestionMessage>, Arc<dyn ChannelAdapter>, QuestionLocation),
    Show(Box<OpenQuestion>, Decision),
    /// Tells a conversation that it waits for somebody elsewhere.
    Tell(Box<OutboundMessage>, Arc<dyn ChannelAdapter>),
}

/// A question of the agent itself, which waits for words.
#[derive(Debug)]
struct AgentQuestion {
    id: String,
    channel: String,
    conversation: String,
    /// Who is asked: whose message the agent is answering. An admin may answer instead.
    sender: String,
    options: Vec<String>,
    answer: oneshot::Sender<String>,
}

impl AgentQuestion {
    fn may_answer(&self, sender: &str, role: Role) -> bool {
        role >= Role::Admin || (role >= Role::User && sender == self.sender)
    }
}

impl QuestionRegistry {
    pub(crate) fn new(kernel: Kernel, targets: Vec<(String, String)>, lanes: SharedChannelHandles) -> Self {
        Self {
            kernel,
            targets,
            lanes,
            open: Mutex::default(),
            callers: Mutex::default(),
            own: Mutex::default(),
            trouble: Mutex::default(),
            told: Mutex::default(),
            decisions: Mutex::default(),
            shows: Notify::new(),
        }
    }

    fn lock_trouble(&self) -> MutexGuard<'_, HashMap<QuestionLocation, QuestionRetry>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_told(&self) -> MutexGuard<'_, HashSet<RequestId>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_decisions(&self) -> MutexGuard<'_, Vec<(OpenQuestion, Decision)>> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_open(&self) -> MutexGuard<'_, Vec<OpenQuestion>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody with this role spoke last in a conversation: what it asks for next is theirs.
    pub(crate) fn note_speaker(&self, channel: &str, conversation: &str, role: Role) {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= CALLERS {
            // Whoever is forgotten counts as what their session's door says, or is asked by `[approvals] to`.
            callers.clear();
        }
        callers.insert((channel.to_owned(), conversation.to_owned()), role);
        drop(callers);
        // What the platform refused there for good, it may take now: some allow an answer to a new message only.
        let refused = |(_, at, there): &QuestionLocation, trouble: &QuestionRetry| {
            trouble.again.is_none() && at == channel && there == conversation
        };
        let mut trouble = self.lock_trouble();
        let before = trouble.len();
        trouble.retain(|place, trouble| !refused(place, trouble));
        if trouble.len() < before {
            self.shows.notify_one();
        }
    }

    fn lock_own(&self) -> MutexGuard<'_, Vec<AgentQuestion>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the conversation of a session in the agent's own words, and waits for the next thing that is said there, or for a button.
    /// `None`: the session has no conversation on a channel, or it could not be asked there.
    pub(crate) async fn ask_person(
        &self,
        session: SessionId,
        text: &str,
        options: &[String],
    ) -> Option<String> {
        let door = self.kernel.asker_of(session);
        let Some(EntryPoint::Channel {
            channel,
            conversation,
            sender,
            ..
        }) = door.or_else(|| self.kernel.door_of(session))
        else {
            return None;
        };
        let adapter = self.adapter_of(&channel)?;
        let abilities = adapter.capabilities();
        let (Ok(first), Ok(second)) = (new_code(), new_code()) else {
            return None;
        };
        // An agent chose these words, or a server that it asked.
        let mut markdown = visible_lines(text);
        for (n, option) in options.iter().enumerate() {
            markdown.push_str(&format!("\n{}. {}", n + 1, visible_text(option)));
        }
        let dressed = dress(&markdown, abilities.markup);
        if text_length(&dressed, abilities.limit.1) > abilities.limit.0 {
            return None;
        }
        let choices = options.iter().take(MAX_CHOICES).enumerate();
        let id = format!("{first}{second}");
        let asking = QuestionMessage {
            out: OutboundMessage {
                id: format!("question-{id}"),
                conversation: conversation.clone(),
                reply_to: None,
                text: dressed,
                markdown,
                files: Vec::new(),
            },
            question: id.clone(),
            choices: choices
                .map(|(n, option)| {
                    (
                        n.to_string(),
                        visible_text(option).chars().take(MAX_LABEL).collect(),
                    )
                })
                .collect(),
        };
        let (answer, answered) = oneshot::channel();
        {
            let mut own = self.lock_own();
            own.retain(|own| !own.answer.is_closed());
            own.push(AgentQuestion {
                id,
                channel: channel.clone(),
                conversation,
                sender,
                options: options.to_vec(),
                answer,
            });
        }
        match tokio::time::timeout(Duration::from_millis(SEND_MS), adapter.send_question(&asking)).await {
            // The call that asks has a deadline of its own, and drops this with it.
            Ok(Delivery::Delivered { .. } | Delivery::Unknown { .. }) => answered.await.ok(), // silent-ok: the channel ends
            Ok(Delivery::Retry { reason, .. } | Delivery::Failed { reason }) => {
                tracing::warn!(channel, reason, "a question was not delivered");
                None
            }
            Err(_) => None,
        }
    }

    /// Whether a text answers a question of the agent itself: what the person who is asked, or an admin, says next where it was asked.
    /// What anybody else says there is a message.
    pub(crate) fn answer_own_question(
        &self,
        (channel, conversation): (&str, &str),
        sender: &str,
        role: Role,
        text: &str,
    ) -> bool {
        if text.trim().is_empty() {
            return false;
        }
        let mut own = self.lock_own();
        own.retain(|own| !own.answer.is_closed());
        let here = own.iter().position(|own| {
            own.channel == channel && own.conversation == conversation && own.may_answer(sender, role)
        });
        let Some(own) = here.map(|at| own.remove(at)) else {
            return false;
        };
        let number = text.trim().trim_end_matches('.').parse::<usize>().ok(); // silent-ok: words, then
        let option = number.and_then(|number| own.options.get(number.checked_sub(1)?));
        own.answer
            .send(option.cloned().unwrap_or_else(|| text.to_owned()))
            .is_ok()
    }

    /// Takes a button of a question of the agent itself. `None`: the button belongs to another question.
    fn press_own_question(
        &self,
        channel: &str,
        press: &ButtonPress,
        role: Option<Role>,
    ) -> Option<PressOutcome> {
        let mut own = self.lock_own();
        let meant = |own: &AgentQuestion| {
            own.id == press.question && own.channel == channel && own.conversation == press.conversation
        };
        let at = own.iter().position(meant)?;
        let asked = |own: &AgentQuestion| role.is_some_and(|role| own.may_answer(&press.sender, role));
        if !own.get(at).is_some_and(asked) {
            return Some(PressOutcome::NotAllowed);
        }
        let choice = press.choice.parse::<usize>().ok(); // silent-ok: no choice of ours
        let option = own.get(at)?.options.get(choice?).cloned()?;
        let own = own.remove(at);
        Some(match own.answer.send(option.clone()) {
            Ok(()) => PressOutcome::Taken(option),
            Err(_) => PressOutcome::Before("It waits no more.".to_owned()),
        })
    }

    /// Puts questions into conversations, and shows decisions, until `over` fires.
    pub(crate) async fn run(&self, over: &CancellationToken) {
        let mut asked = self.kernel.subscribe_questions();
        let mut sending = FuturesUnordered::new();
        loop {
            let room = AT_ONCE.saturating_sub(sending.len());
            for work in self.due_tasks(room).await {
                sending.push(self.perform_task(work));
            }
            tokio::select! {
                () = over.cancelled() => break,
                Some(()) = sending.next() => {}
                () = self.shows.notified() => {}
                came = asked.recv() => match came {
                    // Whoever missed some looks at all that wait. The steps of a plan come one by one.
                    Ok(_) | Err(RecvError::Lagged(_)) => tokio::time::sleep(Duration::from_millis(GATHER_MS)).await,
                    // The agent has ended.
                    Err(RecvError::Closed) => break,
                },
                () = tokio::time::sleep(Duration::from_millis(LOOK_MS)), if self.has_waiting() => {}
            }
        }
    }

    /// Whether something is to be looked at again: a question that may be answered elsewhere, or one that is to be sent again.
    fn has_waiting(&self) -> bool {
        let open = self.lock_open().iter().any(|open| open.decided.is_none());
        open || self
            .lock_trouble()
            .values()
            .any(|trouble| trouble.again.is_some())
    }

    /// What is to be sent now, at most `room` of it: questions that were not asked, and decisions.
    async fn due_tasks(&self, room: usize) -> Vec<QuestionTask> {
        let pending = Plan::group_questions(self.kernel.pending_questions());
        let waits = |asked: &RequestId| pending.iter().any(|waiting| id_of(waiting) == asked);
        self.lock_trouble().retain(|(asked, ..), _| waits(asked));
        self.lock_told().retain(waits);
        let mut work = Vec::new();
        for asked in &pending {
            let targets = self.question_targets(asked);
            work.extend(self.waiting_notice(asked, &targets));
            for (channel, conversation) in targets {
                if work.len() >= room {
                    break;
                }
                let place = (id_of(asked).clone(), channel, conversation);
                if self.is_due(&place) {
                    work.extend(self.prepare_question(asked, place));
                }
            }
        }
        self.close_decided_elsewhere(&waits).await;
        let mut decisions = self.lock_decisions();
        let fits = decisions.len().min(room.saturating_sub(work.len()));
        work.extend(
            decisions
                .drain(..fits)
                .map(|(open, decision)| QuestionTask::Show(Box::new(open), decision)),
        );
        work
    }

    /// Whether a question is not asked there yet, and may be now.
    fn is_due(&self, (asked, channel, conversation): &QuestionLocation) -> bool {
        let known = self.lock_open().iter().any(|open| {
            open.asked == *asked
                && open.channel == *channel
                && open.conversation == *conversation
                && open.decided.is_none()
        });
        let place = (asked.clone(), channel.clone(), conversation.clone());
        let trouble = self.lock_trouble().get(&place).copied();
        !known && trouble.is_none_or(|trouble| trouble.again.is_some_and(|at| at <= Instant::now()))
    }

    /// Says where a question was decided elsewhere.
    async fn close_decided_elsewhere(&self, waits: &impl Fn(&RequestId) -> bool) {
        let gone: Vec<RequestId> = {
            let open = self.lock_open();
            open.iter()
                .filter(|open| open.decided.is_none() && !waits(&open.asked))
                .map(|open| open.asked.clone())
                .collect()
        };
        if gone.is_empty() {
            return;
        }
        let past = self.kernel.past_approvals(PAST).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the answers of the past can't be read");
            Vec::new()
        });
        for asked in gone {
            let found = past.iter().rev().find(|past| past.request_id == asked.as_str());
            let decision = found.map_or_else(waits_no_more, decision_from_record);
            self.queue_decision(&asked, &decision);
        }
    }

    async fn perform_task(&self, work: QuestionTask) {
        match work {
            QuestionTask::Ask(asking, adapter, place) => self.send_question(&asking, &*adapter, place).await,
            QuestionTask::Show(open, decision) => self.show_decision(&open, &decision).await,
            QuestionTask::Tell(out, adapter) => send_waiting_notice(&out, &*adapter).await,
        }
    }

    /// Where a question goes.
    fn question_targets(&self, asked: &WaitingApproval) -> Vec<(String, String)> {
        let Some(first) = first_question(asked) else {
            return Vec::new();
        };
        match self.kernel.door_of(first.session) {
            Some(EntryPoint::Channel {
                channel,
                conversation,
                role,
                ..
            }) => {
                let place = (channel, conversation);
                let callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
                let admin = callers.get(&place).copied().unwrap_or(role) == Role::Admin;
                let never = self
                    .lock_trouble()
                    .get(&(id_of(asked).clone(), place.0.clone(), place.1.clone()))
                    .is_some_and(|trouble| trouble.again.is_none());
                if admin && !never {
                    vec![place]
                } else {
                    self.targets.clone()
                }
            }
            // Whoever waits there is asked there.
            Some(EntryPoint::Cli | EntryPoint::Rpc { .. }) => Vec::new(),
            Some(EntryPoint::Peer { .. } | EntryPoint::Unknown { .. }) | None => self.targets.clone(),
        }
    }

    fn adapter_of(&self, channel: &str) -> Option<Arc<dyn ChannelAdapter>> {
        let lanes = self.lanes.get()?.upgrade()?;
        lanes.get(channel)?.adapter.clone()
    }

    /// A question as it is sent there; it is on the list of what is open, so that a press may come before the platform's answer.
    fn prepare_question(&self, asked: &WaitingApproval, place: QuestionLocation) -> Option<QuestionTask> {
        let (_, channel, conversation) = &place;
        let Some(adapter) = self.adapter_of(channel) else {
            tracing::warn!(channel, "a question can't be asked: the channel is not connected");
            self.lock_trouble().insert(
                place,
                QuestionRetry {
                    tries: 0,
                    again: None,
                },
            );
            return None;
        };
        let door = first_question(asked).and_then(|question| self.kernel.door_of(question.session));
        let (Ok(first), Ok(second), Ok(typed)) = (new_code(), new_code(), new_code()) else {
            tracing::error!("no id of a question could be made");
            return None;
        };
        let (text, shown) = question_words(
            asked,
            &*adapter,
            &typed,
            &requester_line(door, (channel, conversation)),
        );
        let choices = if shown.is_empty() {
            Vec::new()
        } else {
            vec![
                ("y".to_owned(), "Approve".to_owned()),
                ("n".to_owned(), "Deny".to_owned()),
            ]
        };
        let asking = QuestionMessage {
            out: OutboundMessage {
                id: format!("question-{first}{second}"),
                conversation: conversation.clone(),
                reply_to: None,
                text: text.render_for(adapter.capabilities()),
                markdown: text.render_markdown(adapter.capabilities()),
                files: Vec::new(),
            },
            question: format!("{first}{second}"),
            choices,
        };
        self.remember_open(OpenQuestion {
            id: asking.question.clone(),
            code: typed,
            asked: id_of(asked).clone(),
            plan: matches!(asked, WaitingApproval::Plan(_)),
            shown,
            channel: channel.clone(),
            conversation: conversation.clone(),
            sent_as: None,
            text,
            decided: None,
            decided_at: None,
        });
        Some(QuestionTask::Ask(Box::new(asking), adapter, place))
    }

    async fn send_question(
        &self,
        asking: &QuestionMessage,
        adapter: &dyn ChannelAdapter,
        place: QuestionLocation,
    ) {
        let (id, channel) = (&asking.question, place.1.clone());
        let sent = tokio::time::timeout(Duration::from_millis(SEND_MS), adapter.send_question(asking)).await;
        let (reason, after_ms, never) = match sent {
            Ok(Delivery::Delivered { platform_id }) => {
                if let Some(open) = self.lock_open().iter_mut().find(|open| open.id == *id) {
                    open.sent_as = platform_id;
                }
                return;
            }
            // It may stand there: its button counts, and a second one would be another question.
            Ok(Delivery::Unknown { reason }) => {
                tracing::warn!(channel, reason, "a question may not have arrived");
                return;
            }
            Err(_) => {
                tracing::warn!(channel, "a question was not sent in time; it may have arrived");
                return;
            }
            Ok(Delivery::Retry { reason, after_ms }) => (reason, after_ms, false),
            Ok(Delivery::Failed { reason }) => (reason, None, true),
        };
        tracing::warn!(channel, reason, never, "a question was not delivered");
        self.lock_open().retain(|open| open.id != *id);
        let mut trouble = self.lock_trouble();
        let tries = trouble.get(&place).map_or(0, |trouble| trouble.tries);
        let own_ms = LOOK_MS.saturating_mul(1 << tries.min(6)).min(LONGEST_WAIT_MS);
        let again = (!never).then(|| Instant::now() + Duration::from_millis(after_ms.unwrap_or(own_ms)));
        trouble.insert(
            place,
            QuestionRetry {
                tries: tries.saturating_add(1),
                again,
            },
        );
    }

    fn remember_open(&self, open: OpenQuestion) {
        let mut all = self.lock_open();
        if all.len() >= REMEMBERED
            && let Some(at) = all.iter().position(|open| open.decided.is_some())
        {
            all.remove(at);
        }
        all.push(open);
    }

    /// Whether a text answers a question by its code: `yes CODE`, `no CODE [reason]`.
    pub(crate) fn is_answer(&self, text: &str) -> bool {
        parse(text).is_some_and(|(_, code, _)| self.lock_open().iter().any(|open| open.code == code))
    }

    /// An answer that was typed; none: it answers nothing that was asked in this conversation.
    pub(crate) async fn answer_typed(
        &self,
        channel: &str,
        conversation: &str,
        sender: &str,
        role: Role,
        text: &str,
    ) -> Option<PressOutcome> {
        let (yes, code, reason) = parse(text)?;
        let open = self.find_open(|open| open.code == code, channel, conversation)?;
        Some(
            self.settle_question(&open, yes, (channel, sender, Some(role)), reason)
                .await,
        )
    }

    /// A button that was pressed.
    pub(crate) async fn answer_press(
        &self,
        channel: &str,
        press: &ButtonPress,
        role: Option<Role>,
    ) -> PressOutcome {
        if let Some(chosen) = self.press_own_question(channel, press, role) {
            return chosen;
        }
        let Some(open) = self.find_open(|open| open.id == press.question, channel, &press.conversation)
        else {
            return PressOutcome::Unknown;
        };
        let yes = match press.choice.as_str() {
            "y" => true,
            "n" => false,
            _ => return PressOutcome::Unknown,
        };
        self.settle_question(&open, yes, (channel, &press.sender, role), press.reason.clone())
            .await
    }

    fn find_open(
        &self,
        meant: impl Fn(&OpenQuestion) -> bool,
        channel: &str,
        conversation: &str,
    ) -> Option<OpenQuestion> {
        let here = self.questions_here(channel, conversation);
        here.into_iter().find(|open| meant(open))
    }

    async fn settle_question(
        &self,
        open: &OpenQuestion,
        yes: bool,
        (channel, sender, role): (&str, &str, Option<Role>),
        reason: Option<String>,
    ) -> PressOutcome {
        if role != Some(Role::Admin) {
            return PressOutcome::NotAllowed;
        }
        if let Some(decision) = &open.decided {
            return PressOutcome::Before(format!("Already decided. {}", decision.text));
        }
        let reply = ApprovalReply {
            answer: if yes {
                ApprovalAnswer::Approve
            } else {
                ApprovalAnswer::Deny
            },
            breadth: GrantScope::Exact,
            person: KnownPerson {
                channel: channel.to_owned(),
                name: sender.to_owned(),
                role: Role::Admin,
            },
            reason,
            seen: PreviewReceipt::Whole(open.shown.clone()),
        };
        let reception = if open.plan {
            let all = self.kernel.reply_plan(&open.asked, None, &reply).await;
            let taken = all.iter().any(|(_, reception)| *reception == ReplyOutcome::Taken);
            let first = all
                .first()
                .map_or(ReplyOutcome::Nothing, |(_, reception)| *reception);
            if taken { ReplyOutcome::Taken } else { first }
        } else {
            self.kernel.reply_to_question(&open.asked, reply).await
        };
        match reception {
            ReplyOutcome::Taken => {
                let word = if yes { "Approved" } else { "Denied" };
                let decision = decision_by((yes, word), sender, channel);
                self.queue_decision(&open.asked, &decision);
                PressOutcome::Taken(decision.text)
            }
            ReplyOutcome::Nothing => PressOutcome::Before("Already decided.".to_owned()),
            ReplyOutcome::NotAllowed => PressOutcome::NotAllowed,
            ReplyOutcome::Unseen => PressOutcome::Before(format!(
                "It hides something that this chat can't show; answer it with `clawk approve {}`.",
                open.asked
            )),
        }
    }

    /// Has the decision shown wherever it was asked. Whoever decided does not wait for that.
    fn queue_decision(&self, asked: &RequestId, decision: &Decision) {
        let mut shown = Vec::new();
        {
            let mut open = self.lock_open();
            let waiting = open
                .iter_mut()
                .filter(|open| open.asked == *asked && open.decided.is_none());
            for open in waiting {
                open.decided = Some(decision.clone());
                open.decided_at = Some(Instant::now());
                shown.push((open.clone(), decision.clone()));
            }
        }
        self.lock_decisions().extend(shown);
        self.shows.notify_one();
    }

    async fn show_decision(&self, open: &OpenQuestion, decision: &Decision) {
        let Some(adapter) = self.adapter_of(&open.channel) else {
            return;
        };
        let abilities = adapter.capabilities();
        let of = open.sent_as.as_deref().filter(|_| abilities.edits);
        let decided = escape_literal(&decision.text, abilities);
        let text = if of.is_some() {
            open.text.clone().with_frame(decided)
        } else {
            QuestionText::default().with_frame(format!("{decided} (question {})", open.code))
        };
        let out = OutboundMessage {
            id: format!("decided-{}", open.id),
            conversation: open.conversation.clone(),
            reply_to: None,
            text: text.render_for(abilities),
            markdown: text.render_markdown(abilities),
            files: Vec::new(),
        };
        let sent = async {
            match of {
                Some(of) => adapter.show_decision(of, &out, decision).await,
                None => adapter.send_message(&out).await,
            }
        };
        match tokio::time::timeout(Duration::from_millis(SEND_MS), sent).await {
            Ok(Delivery::Delivered { .. }) => {}
            Ok(other) => tracing::warn!(?other, "a decision could not be shown"),
            Err(_) => tracing::warn!("a decision could not be shown in time"),
        }
    }
}

/// Sends a notice once. Whoever misses it sees the same with `/status`.
async fn send_waiting_notice(out: &OutboundMessage, adapter: &dyn ChannelAdapter) {
    match tokio::time::timeout(Duration::from_millis(SEND_MS), adapter.send_message(out)).await {
        Ok(Delivery::Delivered { .. }) => {}
        Ok(other) => tracing::debug!(?other, "a notice of waiting was not delivered"),
        Err(_) => tracing::debug!("a notice of waiting was not delivered in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::{AgentQuestion, Role, oneshot};

    #[test]
    fn a_question_of_the_agent_is_answered_by_whom_it_asks_or_by_an_admin() {
        let own = AgentQuestion {
            id: "q".to_owned(),
            channel: "chat".to_owned(),
            conversation: "group".to_owned(),
            sender: "ann".to_owned(),
            options: Vec::new(),
            answer: oneshot::channel().0,
        };
        for (sender, role, counts) in [
            ("ann", Role::User, true),
            ("ann", Role::Admin, true),
            ("ann", Role::Viewer, false),
            ("boss", Role::Admin, true),
            ("bob", Role::User, false),
            ("bob", Role::Viewer, false),
            ("ann ", Role::User, false),
            ("", Role::User, false),
            ("Ann", Role::User, false),
            ("(unverified)", Role::User, false),
        ] {
            assert_eq!(own.may_answer(sender, role), counts, "{sender:?} {role}");
        }
    }
}
