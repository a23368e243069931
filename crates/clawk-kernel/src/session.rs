//! Sessions: one conversation each, one bounded mailbox each, so that turns are serial by construction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_manifest::model::Role;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::door::{Door, Origin};
use crate::drive;
use crate::error::KernelError;
use crate::event::{Draft, MessageAccepted, MessageRefused, SessionStarted, Thread, digest, kind};
use crate::mailbox::{MAILBOX, Mail, Mailbox, Place, Text};
use crate::notice::Notice;
use crate::ports::{InboxChange, Message};
use crate::purse::{Amount, Purse};
use crate::recover::{self, OpenTurn};
use crate::screen::{self, Look, Spot};
use crate::watch::Watcher;

pub(crate) use crate::watch::Notices;

/// Bytes of one inbound message.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A session's inside.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) id: SessionId,
    pub(crate) door: Door,
    pub(crate) thread: Thread,
    pub(crate) provider: String,
    pub(crate) notices: Notices,
    pub(crate) purse: Purse,
    pub(crate) started_us: u64,
    pub(crate) peer_messages: Vec<String>,
    pub(crate) mailbox: Mailbox,
    /// Messages of a channel come in one at a time.
    pub(crate) arriving: tokio::sync::Mutex<()>,
    /// Opened without a surface: it leaves memory when nothing is said.
    leaves: bool,
    history: Mutex<Vec<Message>>,
    turn: Mutex<CancellationToken>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn history(&self) -> Vec<Message> {
        lock(&self.history).clone()
    }

    pub(crate) fn set_history(&self, messages: Vec<Message>) {
        *lock(&self.history) = messages;
    }

    /// A fresh token for the turn that begins.
    fn begin_turn(&self, agent: &Agent) -> CancellationToken {
        let token = agent.stop.child_token();
        *lock(&self.turn) = token.clone();
        token
    }

    pub(crate) fn cancel_turn(&self) {
        lock(&self.turn).cancel();
    }
}

/// How a session is opened.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) id: Option<SessionId>,
    pub(crate) door: Door,
    pub(crate) provider: String,
    pub(crate) goal: String,
    pub(crate) history: Vec<Message>,
    /// Whose purse its own is a slice of; none: the agent's.
    pub(crate) under: Option<Purse>,
    /// What it has spent before.
    pub(crate) spent: Amount,
    pub(crate) surface: bool,
    pub(crate) peer_messages: Vec<String>,
}

/// Opens a session, records it (a resumed one has its record already), and starts its worker.
pub(crate) async fn open(
    agent: &Arc<Agent>,
    opening: Opening,
) -> Result<(Arc<State>, Option<Watcher>), KernelError> {
    let id = opening.id.unwrap_or_else(|| SessionId(agent.clock().uuid()));
    open_as(agent, opening, id).await
}

/// The same under this id, also where the session is a new one.
pub(crate) async fn open_as(
    agent: &Arc<Agent>,
    opening: Opening,
    id: SessionId,
) -> Result<(Arc<State>, Option<Watcher>), KernelError> {
    let resumed = opening.id.is_some();
    let thread = Thread {
        session: id,
        span: id.0,
        parent: None,
    };
    let above = opening.under.as_ref().unwrap_or(agent.purses.root());
    let purse = agent.purses.session(above, &id.to_string(), agent.scribe.now());
    purse.recall(opening.spent);
    let notices = Notices::new();
    let watcher = opening.surface.then(|| notices.watch(agent.over.clone()));
    let state = Arc::new(State {
        id,
        door: opening.door,
        thread,
        provider: opening.provider,
        notices,
        purse,
        started_us: agent.clock().monotonic_us(),
        peer_messages: opening.peer_messages,
        mailbox: Mailbox::default(),
        arriving: tokio::sync::Mutex::default(),
        leaves: !opening.surface,
        history: Mutex::new(opening.history),
        turn: Mutex::new(CancellationToken::new()),
    });
    if !resumed {
        let payload = SessionStarted {
            agent_hash: agent.agent_hash,
            agent_id: &agent.manifest.identity.name,
            door: state.door.name(),
            goal: &opening.goal,
            role: state.door.role().as_str(),
            run: agent.root.session.0,
        };
        // Later entries of this chain are queued behind it, so there is nothing to wait for here.
        let _ticket =
            agent
                .scribe
                .submit(vec![agent.scribe.entry(&thread, kind::SESSION_STARTED, &payload)])?;
    }
    agent.sessions_lock().insert(id, Arc::clone(&state));
    agent.tracker.spawn(work(Arc::clone(agent), Arc::clone(&state)));
    Ok((state, watcher))
}

/// One session's worker: mail by mail, until the agent stops or nobody needs the session in memory.
async fn work(agent: Arc<Agent>, state: Arc<State>) {
    loop {
        let mail = tokio::select! {
            mail = state.mailbox.next() => mail,
            () = agent.closing.cancelled() => break,
            () = idle(&agent, &state) => {
                if leave(&agent, &state) {
                    break;
                }
                continue;
            }
        };
        // A frozen session keeps its mail; what waits when the agent ends is taken up after the next start.
        tokio::select! {
            () = agent.brake.thawed(state.id) => {}
            () = agent.closing.cancelled() => break,
        }
        // So does one whose agent reaches no model.
        tokio::select! {
            () = agent.life.recovered() => {}
            () = agent.closing.cancelled() => break,
        }
        let _seat = tokio::select! {
            seat = agent.seats.acquire() => seat,
            () = agent.closing.cancelled() => break,
        };
        let working = agent.life.join();
        let cancel = state.begin_turn(&agent);
        match mail {
            Mail::Message { id, text, origin } => match text_of(&agent, text).await {
                Ok(text) => drive::turn(&agent, &state, (id, origin), text, &cancel).await,
                // Still open in the inbox: it is taken up after the next start.
                Err(error) => tracing::error!(%error, message = %id, "a message that waited can't be read"),
            },
            Mail::Resume { open } => drive::resume(&agent, &state, *open, &cancel).await,
        }
        drop(working);
    }
    // What still waits is not lost: it stays open in the inbox and is answered after the next start.
    state.mailbox.close();
}

/// The text of a message that had waited.
async fn text_of(agent: &Agent, text: Text) -> Result<String, KernelError> {
    match text {
        Text::Here(text) => Ok(text),
        Text::Kept(digest, _place) => {
            let bytes = agent.scribe.journal().content(digest).await?;
            Ok(bytes.map_or_else(
                || recover::ERASED.to_owned(),
                |bytes| String::from_utf8_lossy(&bytes).into_owned(),
            ))
        }
    }
}

/// Completes when nothing was said for so long that the session may leave memory. One that a surface opened stays.
async fn idle(agent: &Agent, state: &State) {
    if state.leaves {
        tokio::time::sleep(Duration::from_millis(agent.options.inbox.idle_ms)).await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// Takes the session out of memory, unless somebody holds it. Its chain goes on with the next message.
fn leave(agent: &Agent, state: &Arc<State>) -> bool {
    let mut sessions = agent.sessions_lock();
    let own = sessions
        .get(&state.id)
        .is_some_and(|open| Arc::ptr_eq(open, state));
    // The table and this worker hold it; anybody else may still say something.
    let holders = if own { 2 } else { 1 };
    if Arc::strong_count(state) > holders || !state.mailbox.close_if_empty() {
        return false;
    }
    if own {
        sessions.remove(&state.id);
        if let Some(key) = state.door.key() {
            agent.ingress.forget(&key);
        }
    }
    true
}

/// A session, as its surface holds it.
#[derive(Debug)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    agent: Arc<Agent>,
    state: Arc<State>,
    /// By which whoever holds this comes in.
    door: Door,
    /// Its own surface's.
    watcher: Option<Watcher>,
}

impl Session {
    pub(crate) async fn open(agent: &Arc<Agent>, opening: Opening) -> Result<Self, KernelError> {
        let (state, watcher) = open(agent, opening).await?;
        Ok(Self {
            id: state.id,
            agent: Arc::clone(agent),
            door: state.door.clone(),
            state,
            watcher,
        })
    }

    /// Somebody else comes into a session that is in memory.
    pub(crate) fn join(agent: &Arc<Agent>, state: Arc<State>, door: Door) -> Self {
        Self {
            id: state.id,
            agent: Arc::clone(agent),
            door,
            watcher: Some(state.notices.watch(agent.over.clone())),
            state,
        }
    }

    pub(crate) fn inside(&self) -> (&Agent, &State) {
        (&self.agent, &self.state)
    }

    /// Hands in a message. When this returns `Ok`, the message is durable and will end answered or in the dead-letter box.
    ///
    /// # Errors
    /// It was refused: empty, too long, too many waiting, or the agent does not take work. The refusal is recorded.
    pub async fn send(&self, text: impl Into<String>) -> Result<MessageId, KernelError> {
        self.say(Origin::from(self.door.clone()), text.into()).await
    }

    /// The same of somebody else than who opened the session.
    pub(crate) async fn say(&self, origin: Origin, text: String) -> Result<MessageId, KernelError> {
        accept(&self.agent, &self.state, origin, text).await
    }

    /// The next notice; `None` when the session is over, or was opened without a surface.
    pub async fn next_notice(&self) -> Option<Notice> {
        self.watcher.as_ref()?.next().await
    }

    /// One more watcher, told what happens from now on.
    #[must_use]
    pub fn watch(&self) -> Watcher {
        self.state.notices.watch(self.agent.over.clone())
    }

    /// What who holds this may do.
    #[must_use]
    pub fn role(&self) -> Role {
        self.door.role()
    }

    /// What it has spent so far, with all that it started.
    pub(crate) fn spent(&self) -> Amount {
        self.state.purse.spent()
    }

    /// Cancels the turn that runs; the session goes on.
    pub fn cancel_turn(&self) {
        self.state.cancel_turn();
    }

    /// Forgets the conversation so far; the trace keeps it.
    pub fn clear(&self) {
        self.state.set_history(Vec::new());
    }
}

/// A message as it may be kept, with its place in the mailbox; or why not.
async fn admit<'s>(
    agent: &Agent,
    state: &'s State,
    origin: &Origin,
    text: String,
    drafts: &mut Vec<Draft>,
) -> Result<(Place<'s>, String), KernelError> {
    if text.trim().is_empty() {
        return Err(KernelError::Refused("it is empty".to_owned()));
    }
    if text.len() > MAX_MESSAGE_BYTES {
        let reason = format!("it has {} bytes, the limit is {MAX_MESSAGE_BYTES}", text.len());
        return Err(KernelError::Refused(reason));
    }
    let spot = match origin.door {
        Door::Peer { .. } => Spot::Peer,
        Door::Rpc { .. } | Door::Cli | Door::Channel { .. } | Door::Unknown { .. } => Spot::Message,
    };
    let mut look = Look::new(agent, state.thread, spot, origin.door.sender(), &state.notices);
    let screened = screen::message(&mut look, text, &agent.stop.child_token()).await;
    drafts.append(&mut look.drafts);
    let text = screened?;
    match state.mailbox.reserve(&agent.beyond) {
        Some(place) => Ok((place, text)),
        None => Err(KernelError::Refused(format!(
            "{MAILBOX} messages wait in this conversation, and {} beyond them in all; say it again later",
            agent.options.inbox.waiting
        ))),
    }
}

/// Takes a message into a session's mailbox, durably, or refuses it, on the record.
pub(crate) async fn accept(
    agent: &Agent,
    state: &State,
    origin: Origin,
    text: String,
) -> Result<MessageId, KernelError> {
    let id = MessageId(agent.clock().uuid());
    accept_as(agent, state, id, origin, text).await
}

/// The same under this id: it names one message for ever.
pub(crate) async fn accept_as(
    agent: &Agent,
    state: &State,
    id: MessageId,
    origin: Origin,
    text: String,
) -> Result<MessageId, KernelError> {
    let working = agent.life.enter().map_err(KernelError::NotReady)?;
    let size_bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let mut drafts = Vec::new();
    let (place, text) = match admit(agent, state, &origin, text, &mut drafts).await {
        Ok(admitted) => admitted,
        Err(error) => {
            let reason = match &error {
                KernelError::Refused(reason) => reason.clone(),
                other => other.to_string(),
            };
            let payload = MessageRefused {
                door: origin.door.name(),
                message_id: id.0,
                reason: &reason,
                size_bytes,
            };
            drafts.push(agent.scribe.entry(&state.thread, kind::MESSAGE_REFUSED, &payload));
            agent.scribe.write(drafts).await?;
            return Err(error);
        }
    };
    let text_hash = digest(text.as_bytes());
    let draft = accepted(agent, state, (id, &origin), (size_bytes, text_hash));
    drafts.push(draft.content(text_hash, text.clone().into_bytes()));
    let accepted = InboxChange::Accepted {
        session: state.id,
        message: id,
        arrival: origin.arrival(agent.scribe.now()),
    };
    agent
        .scribe
        .submit_with(drafts, vec![accepted])?
        .durable()
        .await?;
    place.fill(id, text, text_hash, origin);
    drop(working);
    Ok(id)
}

/// The record of a message that is taken: with the whole door (R39).
fn accepted(
    agent: &Agent,
    state: &State,
    (id, origin): (MessageId, &Origin),
    (size_bytes, text_hash): (u64, Digest),
) -> Draft {
    let (channel, conversation, direct) = origin
        .channel()
        .map_or((None, None, None), |(channel, conversation, direct)| {
            (Some(channel), Some(conversation), Some(direct))
        });
    let payload = MessageAccepted {
        channel,
        conversation,
        direct,
        door: origin.door.name(),
        message_id: id.0,
        platform_ids: &origin.platform_ids,
        role: origin.role.as_str(),
        sender: origin.door.sender(),
        size_bytes,
        task_id: origin.task_id(),
        text_hash,
    };
    agent
        .scribe
        .entry(&state.thread, kind::MESSAGE_ACCEPTED, &payload)
}

/// Queues the rest of an interrupted turn.
pub(crate) fn resume(agent: &Agent, state: &State, open: OpenTurn) -> Result<(), KernelError> {
    if state.mailbox.resume(open) {
        Ok(())
    } else {
        Err(KernelError::NotReady(agent.life.state()))
    }
}
