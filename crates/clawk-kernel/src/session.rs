//! Sessions: one conversation each, one bounded mailbox each, so that turns are serial by construction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_manifest::model::Role;
use clawk_proto::{MessageId, SessionId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::drive;
use crate::error::KernelError;
use crate::event::{Draft, MessageAccepted, MessageRefused, SessionStarted, Thread, digest, kind};
use crate::notice::Notice;
use crate::ports::{InboxChange, Message};
use crate::purse::{Amount, Purse};
use crate::recover::OpenTurn;
use crate::screen::{self, Look, Spot};

/// Messages that wait in one session.
pub const MAILBOX: usize = 32;
/// Bytes of one inbound message.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Notices that a surface may be behind.
const NOTICE_BACKLOG: usize = 1024;
/// How long a surface that does not read may hold a turn up, milliseconds; then it misses notices (never the record).
const SLOW_SURFACE_MS: u64 = 5_000;

/// By which door somebody comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// JSON-RPC; the client's name.
    Rpc {
        /// `clientInfo.name`.
        client: String,
    },
    /// The terminal of the process owner.
    Cli,
    /// A peer of a swarm; the task's id.
    Peer {
        /// The peer's identity.
        identity: String,
        /// The task.
        task_id: String,
    },
    /// A channel: somebody whom its access control let in, with a role.
    Channel {
        /// The channel's name.
        channel: String,
        /// The platform's id of the sender.
        sender: String,
        /// By [`crate::admit`].
        role: Role,
    },
}

impl Door {
    /// The word in the trace.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Rpc { .. } => "rpc",
            Self::Cli => "cli",
            Self::Peer { .. } => "peer",
            Self::Channel { .. } => "channel",
        }
    }

    fn sender(&self) -> &str {
        match self {
            Self::Rpc { client } => client,
            Self::Cli => "owner",
            Self::Peer { identity, .. } => identity,
            Self::Channel { sender, .. } => sender,
        }
    }

    /// What who came in by it may do: the owner of the process and the operator at its wire are admins; a peer works for
    /// whoever gave it the task, who came in by one of these.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::Rpc { .. } | Self::Cli | Self::Peer { .. } => Role::Admin,
            Self::Channel { role, .. } => *role,
        }
    }
}

/// The way to a surface; without one, notices go nowhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notices(Option<mpsc::Sender<Notice>>);

impl Notices {
    pub(crate) fn attached(&self) -> bool {
        self.0.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Tells the surface; a surface that doesn't read holds this up for a bounded time.
    pub(crate) async fn send(&self, notice: Notice) {
        if let Some(sender) = &self.0 {
            // silent-ok: a surface that is gone or stuck misses the notice; the journal has the fact
            let _missed = sender
                .send_timeout(notice, Duration::from_millis(SLOW_SURFACE_MS))
                .await;
        }
    }

    /// A piece of text; dropped when the surface is behind.
    pub(crate) fn delta(&self, text: &str) {
        if let Some(sender) = &self.0 {
            let _missed = sender.try_send(Notice::Delta(text.to_owned())); // silent-ok: `Said` has it all
        }
    }
}

/// What waits in the mailbox.
#[derive(Debug)]
pub(crate) enum Mail {
    Message { id: MessageId, text: String },
    Resume { open: Box<OpenTurn> },
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
) -> Result<(Arc<State>, mpsc::Receiver<Notice>), KernelError> {
    let resumed = opening.id.is_some();
    let id = opening.id.unwrap_or_else(|| SessionId(agent.clock().uuid()));
    let thread = Thread {
        session: id,
        span: id.0,
        parent: None,
    };
    let above = opening.under.as_ref().unwrap_or(agent.purses.root());
    let purse = agent.purses.session(above, &id.to_string(), agent.scribe.now());
    purse.recall(opening.spent);
    let (notices, receiver) = mpsc::channel(NOTICE_BACKLOG);
    let (mailbox, inbox) = mpsc::channel(MAILBOX);
    let state = Arc::new(State {
        id,
        door: opening.door,
        thread,
        provider: opening.provider,
        notices: Notices(opening.surface.then_some(notices)),
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
    Ok((state, receiver))
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
            Mail::Message { id, text } => drive::turn(&agent, &state, id, text, &cancel).await,
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
    notices: tokio::sync::Mutex<mpsc::Receiver<Notice>>,
}

impl Session {
    pub(crate) async fn open(agent: &Arc<Agent>, opening: Opening) -> Result<Self, KernelError> {
        let (state, notices) = open(agent, opening).await?;
        Ok(Self {
            id: state.id,
            agent: Arc::clone(agent),
            state,
            notices: tokio::sync::Mutex::new(notices),
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
        accept(&self.agent, &self.state, text.into()).await
    }

    /// The next notice; `None` when the session is over.
    pub async fn next_notice(&self) -> Option<Notice> {
        let mut notices = self.notices.lock().await;
        tokio::select! {
            notice = notices.recv() => notice,
            () = self.agent.over.cancelled() => notices.try_recv().ok(), // silent-ok: empty means over
        }
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
    let spot = match state.door {
        Door::Peer { .. } => Spot::Peer,
        Door::Rpc { .. } | Door::Cli | Door::Channel { .. } => Spot::Message,
    };
    let mut look = Look::new(agent, state.thread, spot, state.door.sender(), &state.notices);
    let screened = screen::message(&mut look, text, &agent.stop.child_token()).await;
    drafts.append(&mut look.drafts);
    let text = screened?;
    match state.mailbox.try_reserve() {
        Ok(place) => Ok((place, text)),
        Err(_) => Err(KernelError::Refused(format!("{MAILBOX} messages wait already"))), // silent-ok: full or closed, both said so
    }
}

/// Takes a message into a session's mailbox, durably, or refuses it, on the record.
pub(crate) async fn accept(agent: &Agent, state: &State, text: String) -> Result<MessageId, KernelError> {
    let working = agent.life.enter().map_err(KernelError::NotReady)?;
    let id = MessageId(agent.clock().uuid());
    let size_bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let mut drafts = Vec::new();
    let (place, text) = match admit(agent, state, text, &mut drafts).await {
        Ok(admitted) => admitted,
        Err(error) => {
            let reason = match &error {
                KernelError::Refused(reason) => reason.clone(),
                other => other.to_string(),
            };
            let payload = MessageRefused {
                door: state.door.name(),
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
    let payload = MessageAccepted {
        door: state.door.name(),
        message_id: id.0,
        sender: state.door.sender(),
        size_bytes,
        text_hash,
    };
    let draft = agent
        .scribe
        .entry(&state.thread, kind::MESSAGE_ACCEPTED, &payload);
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
    place.send(Mail::Message { id, text });
    drop(working);
    Ok(id)
}

/// Queues the rest of an interrupted turn.
pub(crate) async fn resume(agent: &Agent, state: &State, open: OpenTurn) -> Result<(), KernelError> {
    let mail = Mail::Resume { open: Box::new(open) };
    match state.mailbox.send(mail).await {
        Ok(()) => Ok(()),
        Err(_) => Err(KernelError::NotReady(agent.life.state())), // silent-ok: closed means stopping
    }
}
