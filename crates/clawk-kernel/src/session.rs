//! Sessions: one conversation each, one bounded mailbox each, so that turns are serial by construction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::Role;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::door::{Door, Origin};
use crate::drive;
use crate::error::KernelError;
use crate::event::{Draft, MessageAccepted, MessageRefused, SessionStarted, Thread, digest, kind};
use crate::notice::Notice;
use crate::ports::{InboxChange, Message};
use crate::purse::{Amount, Purse};
use crate::recover::OpenTurn;
use crate::screen::{self, Look, Spot};
use crate::watch::Watcher;

pub(crate) use crate::watch::Notices;

/// Messages that wait in one session.
pub const MAILBOX: usize = 32;
/// Bytes of one inbound message.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// What waits in the mailbox.
#[derive(Debug)]
pub(crate) enum Mail {
    Message {
        id: MessageId,
        text: String,
        origin: Origin,
    },
    Resume {
        open: Box<OpenTurn>,
    },
}

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
    history: Mutex<Vec<Message>>,
    turn: Mutex<CancellationToken>,
    mailbox: mpsc::Sender<Mail>,
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
    let (mailbox, inbox) = mpsc::channel(MAILBOX);
    let state = Arc::new(State {
        id,
        door: opening.door,
        thread,
        provider: opening.provider,
        notices,
        purse,
        started_us: agent.clock().monotonic_us(),
        peer_messages: opening.peer_messages,
        history: Mutex::new(opening.history),
        turn: Mutex::new(CancellationToken::new()),
        mailbox,
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
    agent
        .tracker
        .spawn(work(Arc::clone(agent), Arc::clone(&state), inbox));
    Ok((state, watcher))
}

/// One session's worker: mail by mail, until the agent stops.
async fn work(agent: Arc<Agent>, state: Arc<State>, mut inbox: mpsc::Receiver<Mail>) {
    loop {
        let mail = tokio::select! {
            mail = inbox.recv() => mail,
            () = agent.closing.cancelled() => None,
        };
        let Some(mail) = mail else { break };
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
        let working = agent.life.join();
        let cancel = state.begin_turn(&agent);
        match mail {
            Mail::Message { id, text, origin } => {
                drive::turn(&agent, &state, (id, origin), text, &cancel).await;
            }
            Mail::Resume { open } => drive::resume(&agent, &state, *open, &cancel).await,
        }
        drop(working);
    }
    inbox.close();
    // What still waits is not lost: it stays open in the inbox and is answered after the next start.
}

/// A session, as its surface holds it.
#[derive(Debug)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    agent: Arc<Agent>,
    state: Arc<State>,
    /// Its own surface's.
    watcher: Option<Watcher>,
}

impl Session {
    pub(crate) async fn open(agent: &Arc<Agent>, opening: Opening) -> Result<Self, KernelError> {
        let (state, watcher) = open(agent, opening).await?;
        Ok(Self {
            id: state.id,
            agent: Arc::clone(agent),
            state,
            watcher,
        })
    }

    pub(crate) fn inside(&self) -> (&Agent, &State) {
        (&self.agent, &self.state)
    }

    /// Hands in a message. When this returns `Ok`, the message is durable and will end answered or in the dead-letter box.
    ///
    /// # Errors
    /// It was refused: empty, too long, too many waiting, or the agent does not take work. The refusal is recorded.
    pub async fn send(&self, text: impl Into<String>) -> Result<MessageId, KernelError> {
        self.say(Origin::from(self.state.door.clone()), text.into()).await
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

    /// What who opened it may do.
    #[must_use]
    pub fn role(&self) -> Role {
        self.state.door.role()
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
) -> Result<(mpsc::Permit<'s, Mail>, String), KernelError> {
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
    match state.mailbox.try_reserve() {
        Ok(place) => Ok((place, text)),
        Err(_) => Err(KernelError::Refused(format!("{MAILBOX} messages wait already"))), // silent-ok: full or closed, both said so
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
    };
    agent
        .scribe
        .submit_with(drafts, vec![accepted])?
        .durable()
        .await?;
    place.send(Mail::Message { id, text, origin });
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
pub(crate) async fn resume(agent: &Agent, state: &State, open: OpenTurn) -> Result<(), KernelError> {
    let mail = Mail::Resume { open: Box::new(open) };
    match state.mailbox.send(mail).await {
        Ok(()) => Ok(()),
        Err(_) => Err(KernelError::NotReady(agent.life.state())), // silent-ok: closed means stopping
    }
}
