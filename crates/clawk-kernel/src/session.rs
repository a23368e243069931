//! Sessions: each has one conversation and one bounded mailbox, so that its turns run one after the other.
//!
//! Long because a message is screened, framed, made durable and worked on in one order, which is read from top to bottom.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clawk_events::payload::{
    MessageAccepted, MessageAttached, MessageFramed, MessageRefused, MessageTools, SessionEnded,
    SessionStarted,
};
use clawk_manifest::model::Role;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::attach::{self, AttachedPicture, FrameSource, IncomingMessage, TurnInput};
use crate::author;
use crate::door::{EntryPoint, Origin, RecordedOrigin};
use crate::drive::{self, TurnServices};
use crate::error::KernelError;
use crate::event::{ChainText, Draft, EventWords, JournalWriter, Thread, WordField, canonical, digest};
use crate::hosts;
use crate::judge;
use crate::kernel::ConversationStatus;
use crate::lifecycle::AgentLifecycle;
use crate::mailbox::{MAILBOX, Mailbox, MailboxItem, MailboxSlot, MailboxText};
use crate::member::Member;
use crate::message_frame;
use crate::model_choice::{self, ModelChoice, ModelChoiceError, ModelInUse};
use crate::notice::SessionNotice;
use crate::open_turn::OpenTurn;
use crate::options::InboxLimits;
use crate::ports::{Image, InboxChange, ModelMessage};
use crate::purse::{BudgetAccount, BudgetAmount};
use crate::recover;
use crate::screen::{ScreenedTextKind, ScreeningPass};
use crate::services::KernelServices;
use crate::shown::TurnRecord;
use crate::state::{State, Table};
use crate::watch::{NoticeSender, Watcher};

/// Longest inbound message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The dependencies of sessions.
#[derive(Debug)]
pub(crate) struct SessionServices {
    pub(crate) turns: TurnServices,
    pub(crate) calls: Arc<KernelServices>,
    pub(crate) table: Arc<Table>,
    pub(crate) life: Arc<AgentLifecycle>,
    pub(crate) scribe: JournalWriter,
    /// SHA-256 of the content of `ckp.agent.described`.
    pub(crate) agent_hash: Digest,
    limits: InboxLimits,
    /// One permit per running turn.
    seats: Semaphore,
    /// One permit per message that waits outside the mailboxes.
    beyond: Arc<Semaphore>,
    /// Locked while a conversation's session is searched and opened.
    pub(crate) looking: tokio::sync::Mutex<()>,
}

impl SessionServices {
    pub(crate) fn new(turns: TurnServices, agent_hash: Digest, limits: InboxLimits) -> Self {
        let calls = Arc::clone(&turns.calls);
        Self {
            table: Arc::clone(&calls.table),
            life: Arc::clone(&calls.life),
            scribe: calls.scribe.clone(),
            calls,
            turns,
            agent_hash,
            limits,
            seats: Semaphore::new(limits.turns.clamp(1, Semaphore::MAX_PERMITS)),
            beyond: Arc::new(Semaphore::new(limits.waiting.min(Semaphore::MAX_PERMITS))),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Ends a session: writes its chain's last event and ends its grants.
    pub(crate) async fn end_session(&self, id: SessionId, reason: &str) {
        let Some(state) = self.table.lock_open().remove(&id) else {
            return;
        };
        state.mailbox.end_session();
        self.calls.desk.forget_session(id);
        self.calls.cuts.forget_session(id);
        self.calls.models.pictures.forget_session(id);
        self.calls.models.forms.forget_session(id);
        let duration_ms = self
            .scribe
            .clock()
            .monotonic_us()
            .saturating_sub(state.started_us)
            / 1000;
        let draft = self.scribe.draft_event(
            &state.thread.child(id.0),
            &SessionEnded {
                duration_ms,
                reason: reason.to_owned(),
            },
        );
        if let Err(error) = self.scribe.write(vec![draft]).await {
            tracing::error!(%error, session = %id, "a session's end could not be recorded");
        }
        hosts::release_session(self, id);
    }
}

/// The options for opening a session.
#[derive(Debug)]
pub(crate) struct SessionOpening {
    pub(crate) id: Option<SessionId>,
    pub(crate) door: EntryPoint,
    pub(crate) provider: String,
    pub(crate) goal: String,
    pub(crate) history: Vec<ModelMessage>,
    /// The parent of its budget; `None`: the agent's.
    pub(crate) under: Option<BudgetAccount>,
    /// The amount that it has spent before.
    pub(crate) spent: BudgetAmount,
    pub(crate) surface: bool,
    pub(crate) peer_messages: Vec<String>,
    /// The swarm member whose turns it has, if it is the session of a swarm task.
    pub(crate) member: Option<Arc<Member>>,
}

/// Opens a session, records it (a resumed one is already recorded), and starts its worker.
pub(crate) async fn open_session(
    sessions: &Arc<SessionServices>,
    opening: SessionOpening,
) -> Result<(Arc<State>, Option<Watcher>), KernelError> {
    let id = opening
        .id
        .unwrap_or_else(|| SessionId(sessions.scribe.clock().new_uuid()));
    open_as(sessions, opening, id).await
}

/// Opens a session with this id, new or resumed.
pub(crate) async fn open_as(
    sessions: &Arc<SessionServices>,
    opening: SessionOpening,
    id: SessionId,
) -> Result<(Arc<State>, Option<Watcher>), KernelError> {
    let resumed = opening.id.is_some();
    let thread = Thread {
        session: id,
        span: id.0,
        parent: None,
    };
    let above = opening
        .under
        .as_ref()
        .unwrap_or(sessions.calls.purses.root_account());
    let kept = sessions
        .table
        .kept_purse(id)
        .filter(|_| resumed && opening.under.is_none());
    let purse = kept.unwrap_or_else(|| {
        let purses = &sessions.calls.purses;
        let purse = purses.session_account(above, &id.to_string(), sessions.scribe.now());
        purse.add_earlier_spending(opening.spent);
        purse
    });
    let notices = NoticeSender::new();
    let watcher = opening.surface.then(|| notices.watch(sessions.life.over.clone()));
    let state = Arc::new(State {
        id,
        door: opening.door,
        thread,
        provider: opening.provider,
        notices,
        purse,
        started_us: sessions.scribe.clock().monotonic_us(),
        peer_messages: opening.peer_messages,
        member: opening.member,
        mailbox: Mailbox::default(),
        arriving: tokio::sync::Mutex::default(),
        leaves: !opening.surface,
        history: Mutex::new(opening.history),
        turn: Mutex::new(CancellationToken::new()),
        running: AtomicBool::new(false),
        asker: Mutex::default(),
        model: Mutex::default(),
        // A new session has read nothing, which need not be looked up.
        labels: Mutex::new((!resumed).then(Default::default)),
        context: Mutex::new((!resumed).then(|| sessions.turns.at_start.context.clone())),
    });
    if !resumed {
        let payload = SessionStarted {
            agent_hash: Some(sessions.agent_hash),
            agent_id: sessions.calls.manifest.identity.name.to_string(),
            door: Some(state.door.name().to_owned()),
            fork: None,
            goal: opening.goal.to_string(),
            role: Some(state.door.role().as_str().to_owned()),
            run: Some(sessions.life.root.session.0),
        };
        // Later entries of this chain are queued behind it, so there is nothing to wait for here.
        let _ticket = sessions
            .scribe
            .submit_drafts(vec![sessions.scribe.draft_event(&thread, &payload)])?;
    }
    sessions.table.lock_open().insert(id, Arc::clone(&state));
    sessions
        .life
        .tracker
        .spawn(run_worker(Arc::clone(sessions), Arc::clone(&state)));
    Ok((state, watcher))
}

/// The worker of one session: handles its queue until the agent stops or the session leaves memory.
async fn run_worker(sessions: Arc<SessionServices>, state: Arc<State>) {
    // INVARIANT: nothing begins after a turn that the end of the agent has interrupted, because the record holds turns in their
    // order.
    let closing = &sessions.life.closing;
    loop {
        let mail = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            mail = state.mailbox.next() => match mail {
                Some(mail) => mail,
                None => break,
            },
            () = wait_until_idle(&sessions, &state) => {
                if unload_session(&sessions, &state) {
                    break;
                }
                continue;
            }
        };
        // A frozen session keeps its queue. Messages that wait at the agent's end are resumed after the next start.
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            () = sessions.calls.brake.wait_until_thawed(state.id) => {}
        }
        // The same holds for an agent that can't reach any model.
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            () = sessions.life.wait_until_recovered() => {}
        }
        // The swarm limits its own concurrency. A member that waited here for a seat could block the caller that waits for it.
        let _seat = match &state.member {
            Some(_) => None,
            None => tokio::select! {
                biased;
                () = closing.cancelled() => break,
                seat = sessions.seats.acquire() => Some(seat),
            },
        };
        let working = sessions.life.join_work();
        let cancel = state.begin_turn(&sessions.life.stop);
        state.set_running(!matches!(mail, MailboxItem::Clear { .. }));
        match mail {
            MailboxItem::Message {
                id,
                text,
                images,
                origin,
            } => match text_of(&sessions, text).await {
                Ok((text, frame)) => {
                    let said = TurnInput { text, images, frame };
                    drive::run_new_turn(&sessions.turns, &state, (id, origin), said, &cancel).await;
                }
                // The message stays open in the inbox and is resumed after the next start.
                Err(error) => tracing::error!(%error, message = %id, "a message that waited can't be read"),
            },
            MailboxItem::Resume { open } => drive::resume_turn(&sessions.turns, &state, *open, &cancel).await,
            MailboxItem::Clear { by, done } => {
                // silent-ok: the caller no longer waits
                let _gone =
                    done.send(crate::kernel::commands::clear_conversation(&sessions, &state, &by).await);
            }
        }
        state.set_running(false);
        drop(working);
    }
    // Waiting messages are not lost: they stay open in the inbox and are answered after the next start.
    state.mailbox.close();
}

/// Returns the text and the frame of a message that waited in the journal.
async fn text_of(sessions: &SessionServices, text: MailboxText) -> Result<(String, String), KernelError> {
    match text {
        MailboxText::Here { text, frame } => Ok((text, frame)),
        MailboxText::Kept { text, frame, place } => {
            let frame = match frame {
                Some(frame) => content_text(sessions, frame).await?,
                None => String::new(),
            };
            let text = content_text(sessions, text).await?;
            drop(place);
            Ok((text, frame))
        }
    }
}

async fn content_text(sessions: &SessionServices, digest: Digest) -> Result<String, KernelError> {
    let bytes = sessions.scribe.journal().read_content(digest).await?;
    Ok(bytes.map_or_else(
        || recover::ERASED.to_owned(),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    ))
}

/// Completes when the session has been idle long enough to leave memory. A session that a client opened stays.
async fn wait_until_idle(sessions: &SessionServices, state: &State) {
    if state.leaves {
        tokio::time::sleep(Duration::from_millis(sessions.limits.idle_ms)).await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// Removes the session from memory, unless it is in use. Its chain continues with the next message.
fn unload_session(sessions: &SessionServices, state: &Arc<State>) -> bool {
    let mut open = sessions.table.lock_open();
    let own = open.get(&state.id).is_some_and(|known| Arc::ptr_eq(known, state));
    // The table and this worker hold it. Any other holder may still send a message.
    let holders = if own { 2 } else { 1 };
    if Arc::strong_count(state) > holders || !state.mailbox.close_if_empty() {
        return false;
    }
    if own {
        open.remove(&state.id);
        if let Some(key) = state.door.conversation_key() {
            sessions.table.lock_conversations().remove(&key);
        }
        // Done while the table is locked, so that the next caller takes ownership again.
        hosts::release_session(sessions, state.id);
    }
    true
}

/// A session's handle for clients.
#[derive(Debug)]
pub struct SessionHandle {
    /// Its id.
    pub id: SessionId,
    sessions: Arc<SessionServices>,
    state: Arc<State>,
    /// The entry point of this handle's holder.
    door: EntryPoint,
    /// The watcher of its own client.
    watcher: Option<Watcher>,
}

impl SessionHandle {
    pub(crate) async fn open(
        sessions: &Arc<SessionServices>,
        opening: SessionOpening,
    ) -> Result<Self, KernelError> {
        let (state, watcher) = open_session(sessions, opening).await?;
        Ok(Self {
            id: state.id,
            sessions: Arc::clone(sessions),
            door: state.door.clone(),
            state,
            watcher,
        })
    }

    /// Opens the session with this id.
    pub(crate) async fn open_as(
        sessions: &Arc<SessionServices>,
        opening: SessionOpening,
        id: SessionId,
    ) -> Result<Self, KernelError> {
        let (state, watcher) = open_as(sessions, opening, id).await?;
        Ok(Self {
            id: state.id,
            sessions: Arc::clone(sessions),
            door: state.door.clone(),
            state,
            watcher,
        })
    }

    /// Makes a handle for another client of a loaded session.
    pub(crate) fn join_loaded(sessions: &Arc<SessionServices>, state: Arc<State>, door: EntryPoint) -> Self {
        Self {
            id: state.id,
            sessions: Arc::clone(sessions),
            door,
            watcher: Some(state.notices.watch(sessions.life.over.clone())),
            state,
        }
    }

    pub(crate) fn services_and_state(&self) -> (&SessionServices, &State) {
        (&self.sessions, &self.state)
    }

    /// Chooses which model answers the session's next messages, and how much it thinks: `NAME`, `NAME EFFORT`, `EFFORT` or `default`.
    /// The inner error is for the person: nothing has changed.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn choose_model(
        &self,
        words: &[&str],
    ) -> Result<Result<Option<ModelInUse>, ModelChoiceError>, KernelError> {
        let by = self.door.sender();
        Ok(crate::kernel::keep_model(&self.sessions, &self.state, by, words).await?)
    }

    /// The model that answers the session's next message first.
    #[must_use]
    pub fn model_in_use(&self) -> Option<ModelInUse> {
        model_choice::model_in_use(&self.sessions.calls.models, self.state.model().as_ref())
    }

    /// Hands in a message. When this returns `Ok`, the message is durable and will end answered or in the dead-letter box.
    ///
    /// # Errors
    /// The message was refused: it is empty or too long, too many are waiting, or the agent accepts no work. The refusal is
    /// recorded.
    pub async fn send_text(&self, text: impl Into<String>) -> Result<MessageId, KernelError> {
        self.send_as(
            Origin::from(self.door.clone()),
            IncomingMessage::from(text.into()),
        )
        .await
    }

    /// Sends a recorded message again as its original sender, with the recorded entry point and role, and never with more rights
    /// than this handle's holder. `accepted`: the payload of its `ckp.message.accepted` event.
    ///
    /// # Errors
    /// The errors of [`SessionHandle::send_text`]; the payload is not valid; or the message is an attempt at a swarm task, which belongs
    /// to its run.
    pub async fn send_again(
        &self,
        accepted: &str,
        text: impl Into<String>,
    ) -> Result<MessageId, KernelError> {
        let came: RecordedOrigin = serde_json::from_str(accepted)
            .map_err(|error| KernelError::Refused(format!("its record can't be read: {error}")))?;
        let origin = Origin::from_record(came).said_again(self.door.role());
        if let EntryPoint::Peer { .. } = origin.door {
            let reason = "it is a try of a swarm's task, and belongs to the task's run: give the task again";
            return Err(KernelError::Refused(reason.to_owned()));
        }
        self.send_as(origin, IncomingMessage::from(text.into())).await
    }

    /// Sends a message of another sender than the session's opener.
    pub(crate) async fn send_as(
        &self,
        origin: Origin,
        said: IncomingMessage,
    ) -> Result<MessageId, KernelError> {
        accept_message(&self.sessions, &self.state, origin, said).await
    }

    /// Returns the next notice; `None` when the session has ended, or was opened without a client.
    pub async fn next_notice(&self) -> Option<SessionNotice> {
        self.watcher.as_ref()?.next().await
    }

    /// Adds a watcher, which gets all further notices.
    #[must_use]
    pub fn watch(&self) -> Watcher {
        self.state.notices.watch(self.sessions.life.over.clone())
    }

    /// Returns the role of this handle's holder.
    #[must_use]
    pub fn role(&self) -> Role {
        self.door.role()
    }

    /// Returns the amount that the session and everything it started have spent.
    pub(crate) fn spent_amount(&self) -> BudgetAmount {
        self.state.purse.spent_amount()
    }

    /// Cancels the running turn. The session continues.
    pub fn cancel_turn(&self) {
        self.state.cancel_turn();
    }

    /// Clears the conversation: stops the running turn, and sends no earlier message to a model again, also not after a restart. The
    /// record keeps them.
    ///
    /// # Errors
    /// The session has ended, or the journal can't be written.
    pub async fn clear_conversation(&self) -> Result<(), KernelError> {
        crate::kernel::queue_clearing(&self.sessions, &self.state, self.door.sender()).await
    }

    /// Returns how the conversation stands.
    #[must_use]
    pub fn conversation_status(&self) -> ConversationStatus {
        let spent = self.state.purse.spent_amount();
        ConversationStatus {
            running: self.state.is_running(),
            messages: self.state.history().len(),
            tokens: spent.tokens,
            cost_microusd: spent.cost_microusd,
            calls: spent.calls,
            model: self.model_in_use(),
        }
    }

    /// Returns the summary of the session's last ended turn.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn last_record(&self) -> Result<Option<TurnRecord>, KernelError> {
        let journal = self.sessions.scribe.journal();
        Ok(crate::shown::last_turn_record(&**journal, self.id).await?)
    }
}

/// Checks a message. Returns its storable form and its place in the mailbox, or why it is refused.
async fn admit_message<'s>(
    sessions: &SessionServices,
    state: &'s State,
    origin: &Origin,
    IncomingMessage {
        text,
        images,
        setting,
    }: &IncomingMessage,
    drafts: &mut Vec<Draft>,
) -> Result<(MailboxSlot<'s>, TurnInput, BTreeSet<String>), KernelError> {
    if text.trim().is_empty() && images.is_empty() {
        return Err(KernelError::Refused("it is empty".to_owned()));
    }
    if text.len() > MAX_MESSAGE_BYTES {
        let reason = format!("it has {} bytes, the limit is {MAX_MESSAGE_BYTES}", text.len());
        return Err(KernelError::Refused(reason));
    }
    let images = attach::collect_images(images, |name| sessions.calls.screens.without_known(name))?;
    let spot = match origin.door {
        EntryPoint::Peer { .. } => ScreenedTextKind::Peer,
        EntryPoint::Rpc { .. }
        | EntryPoint::Cli
        | EntryPoint::Channel { .. }
        | EntryPoint::Unknown { .. } => ScreenedTextKind::Message,
    };
    let mut look = ScreeningPass::new(
        &sessions.calls.screens,
        state.thread,
        spot,
        origin.door.sender(),
        &state.notices,
    );
    let screened = screen_message(sessions, &mut look, text, setting).await;
    drafts.append(&mut look.drafts);
    let (text, setting) = screened?;
    let frame = match setting {
        FrameSource::Recorded(frame) => frame,
        FrameSource::Given(context) => {
            let time = (sessions.scribe.now(), sessions.calls.timezone.as_ref());
            message_frame::write_frame(time, &origin.door, &context)
        }
    };
    match state.mailbox.reserve_slot(&sessions.beyond) {
        Some(place) => Ok((
            place,
            TurnInput {
                text,
                images,
                frame: frame.text,
            },
            frame.untrusted,
        )),
        None if state.mailbox.has_ended() => Err(KernelError::UnknownSession(state.id.to_string())),
        None => Err(KernelError::Full(format!(
            "{MAILBOX} messages wait in this conversation, and {} beyond them in all; say it again later",
            sessions.limits.waiting
        ))),
    }
}

/// Accepts a message into a session's mailbox durably, or refuses and records it.
pub(crate) async fn accept_message(
    sessions: &SessionServices,
    state: &State,
    origin: Origin,
    said: IncomingMessage,
) -> Result<MessageId, KernelError> {
    let id = MessageId(sessions.scribe.clock().new_uuid());
    accept_as(sessions, state, id, origin, said).await
}

/// Accepts a message with this id, which names one message forever.
pub(crate) async fn accept_as(
    sessions: &SessionServices,
    state: &State,
    id: MessageId,
    mut origin: Origin,
    said: IncomingMessage,
) -> Result<MessageId, KernelError> {
    let working = sessions.life.begin_work().map_err(KernelError::NotReady)?;
    // What is played again says what held for it.
    origin.model = origin.model.or_else(|| state.model());
    let size_bytes = u64::try_from(said.text.len()).unwrap_or(u64::MAX);
    let mut drafts = Vec::new();
    let (place, taken, untrusted) = match admit_message(sessions, state, &origin, &said, &mut drafts).await {
        Ok(admitted) => admitted,
        // The platform sends the message again, so its sender is not told, and no end is recorded.
        Err(error @ KernelError::Full(_)) if matches!(origin.door, EntryPoint::Channel { .. }) => {
            return Err(error);
        }
        // The judge was interrupted with the agent. Nothing is known about the message, and it may be sent again.
        Err(_) if sessions.life.stop.is_cancelled() => {
            return Err(KernelError::NotReady(sessions.life.state()));
        }
        Err(error) => {
            let reason = match &error {
                KernelError::Refused(reason) | KernelError::Full(reason) => reason.clone(),
                other => other.to_string(),
            };
            let words = EventWords::new(WordField::Reason, &reason);
            let payload = MessageRefused {
                door: origin.door.name().to_owned(),
                message_id: id.0,
                reason: ChainText::IN_CONTENT,
                size_bytes,
                words_hash: Some(words.digest()),
            };
            let draft = sessions.scribe.draft_event(&state.thread, &payload);
            drafts.push(draft.with_words(words));
            sessions.scribe.write(drafts).await?;
            return Err(error);
        }
    };
    let text_hash = digest(taken.text.as_bytes());
    drafts.extend(attachment_drafts(
        sessions,
        state,
        id,
        taken.images.iter().zip(said.images),
    ));
    drafts.extend(frame_draft(sessions, state, (id, &taken.frame), untrusted));
    let draft = accepted_draft(sessions, state, (id, &origin), (size_bytes, text_hash));
    drafts.push(draft.with_content(text_hash, taken.text.clone().into_bytes()));
    if !origin.tools.is_empty() {
        let bytes = canonical(&origin.tools);
        let payload = MessageTools {
            message_id: id.0,
            tools_hash: digest(&bytes),
        };
        let tools = sessions.scribe.draft_event(&state.thread, &payload);
        drafts.push(tools.with_content(payload.tools_hash, bytes));
    }
    let accepted = InboxChange::Accepted {
        session: state.id,
        message: id,
        arrival: origin.inbox_arrival(sessions.scribe.now()),
    };
    sessions
        .scribe
        .submit_with(drafts, vec![accepted])?
        .wait_until_durable()
        .await?;
    place.put_message(id, taken, text_hash, origin);
    drop(working);
    Ok(id)
}

/// Screens the message's text and the text that it repeats, each as text from outside.
async fn screen_message(
    sessions: &SessionServices,
    look: &mut ScreeningPass<'_>,
    text: &str,
    setting: &FrameSource,
) -> Result<(String, FrameSource), KernelError> {
    let cancel = sessions.life.stop.child_token();
    let classifier = &sessions.calls.classifier;
    let text = judge::screen_message(classifier, look, text.to_owned(), &cancel).await?;
    let mut setting = setting.clone();
    if let FrameSource::Given(context) = &mut setting {
        for quote in &mut context.quotes {
            let words = std::mem::take(&mut quote.text);
            quote.text = judge::screen_message(classifier, look, words, &cancel).await?;
        }
    }
    Ok((text, setting))
}

/// Returns the event of a message's frame, which comes before the message. The text that it repeats is in the session's context
/// from here on.
fn frame_draft(
    sessions: &SessionServices,
    state: &State,
    (id, frame): (MessageId, &str),
    untrusted: BTreeSet<String>,
) -> Option<Draft> {
    if frame.is_empty() {
        return None;
    }
    let origins: Vec<String> = untrusted.iter().cloned().collect();
    let payload = MessageFramed {
        frame_hash: digest(frame.as_bytes()),
        message_id: id.0,
        untrusted: origins.to_vec(),
    };
    state.add_labels(untrusted);
    let draft = sessions.scribe.draft_event(&state.thread, &payload);
    Some(draft.with_content(payload.frame_hash, frame.as_bytes().to_vec()))
}

/// Returns the events of a message's images, which come before the message, each with its bytes.
fn attachment_drafts<'a>(
    sessions: &SessionServices,
    state: &State,
    id: MessageId,
    images: impl Iterator<Item = (&'a Image, AttachedPicture)>,
) -> Vec<Draft> {
    let draft = |(image, attached): (&Image, AttachedPicture)| {
        let payload = MessageAttached {
            content_hash: image.digest,
            message_id: id.0,
            mime_type: image.mime_type.to_string(),
            name: image.name.as_deref().map(str::to_owned),
            size_bytes: image.size_bytes,
        };
        let draft = sessions.scribe.draft_event(&state.thread, &payload);
        draft.with_content(image.digest, attached.data)
    };
    images.map(draft).collect()
}

/// Returns the event of an accepted message, with the complete entry point (R39).
fn accepted_draft(
    sessions: &SessionServices,
    state: &State,
    (id, origin): (MessageId, &Origin),
    (size_bytes, text_hash): (u64, Digest),
) -> Draft {
    let (channel, conversation, direct) = origin
        .channel()
        .map_or((None, None, None), |(channel, conversation, direct)| {
            (Some(channel), Some(conversation), Some(direct))
        });
    let kind = origin.author_kind;
    let payload = MessageAccepted {
        author_kind: Some(kind.unwrap_or_else(|| author::kind_of(&origin.door, &sessions.calls.manifest))),
        channel: channel.map(str::to_owned).into(),
        conversation: conversation.map(str::to_owned).into(),
        direct: direct.into(),
        door: origin.door.name().to_owned(),
        effort: origin
            .model
            .as_ref()
            .and_then(ModelChoice::effort_word)
            .map(str::to_owned),
        message_id: id.0,
        platform_ids: Some(origin.platform_ids.clone()),
        provider: origin.model.as_ref().map(|model| model.provider.clone()),
        repeats: origin.repeats.iter().cloned().collect(),
        role: Some(origin.role.as_str().to_owned()),
        sender: origin.door.sender().to_owned(),
        size_bytes,
        task_id: origin.task_id().map(str::to_owned).into(),
        text_hash,
    };
    sessions.scribe.draft_event(&state.thread, &payload)
}

/// Queues the rest of an interrupted turn.
pub(crate) fn queue_resumed_turn(
    sessions: &SessionServices,
    state: &State,
    open: OpenTurn,
) -> Result<(), KernelError> {
    if state.mailbox.push_resumed_turn(open) {
        Ok(())
    } else {
        Err(KernelError::NotReady(sessions.life.state()))
    }
}
