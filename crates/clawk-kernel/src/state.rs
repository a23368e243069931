//! Open sessions: the state of each, and the table that finds them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::Role;
use clawk_proto::{RequestId, SessionId};
use tokio_util::sync::CancellationToken;

use crate::door::EntryPoint;
use crate::drive::ContextFileDigests;
use crate::event::Thread;
use crate::mailbox::Mailbox;
use crate::member::Member;
use crate::model_choice::ModelChoice;
use crate::ports::{ConversationKey, ModelMessage};
use crate::purse::BudgetAccount;
use crate::watch::NoticeSender;

/// The state of one session.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) id: SessionId,
    pub(crate) door: EntryPoint,
    pub(crate) thread: Thread,
    pub(crate) provider: String,
    pub(crate) notices: NoticeSender,
    pub(crate) purse: BudgetAccount,
    pub(crate) started_us: u64,
    pub(crate) peer_messages: Vec<String>,
    /// The swarm member whose turns it has, if it is the session of a swarm task.
    pub(crate) member: Option<Arc<Member>>,
    pub(crate) mailbox: Mailbox,
    /// Locked while a channel's message arrives, so that messages arrive one at a time.
    pub(crate) arriving: tokio::sync::Mutex<()>,
    /// Opened without a client: the session leaves memory when it is idle.
    pub(crate) leaves: bool,
    pub(crate) history: Mutex<Vec<ModelMessage>>,
    pub(crate) turn: Mutex<CancellationToken>,
    /// `true` while a turn runs.
    pub(crate) running: AtomicBool,
    /// Entry point of the message of the running or last turn.
    pub(crate) asker: Mutex<Option<EntryPoint>>,
    /// Sources of untrusted text that its turns recalled or read from files; `None`: not looked up yet.
    pub(crate) labels: Mutex<Option<BTreeSet<String>>>,
    /// Which model answers, where a person chose one.
    pub(crate) model: Mutex<Option<ModelChoice>>,
    /// What its record says of the context files; `None`: not looked up since it is in memory.
    pub(crate) context: Mutex<Option<ContextFileDigests>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn history(&self) -> Vec<ModelMessage> {
        lock(&self.history).clone()
    }

    pub(crate) fn set_history(&self, messages: Vec<ModelMessage>) {
        *lock(&self.history) = messages;
    }

    pub(crate) fn asker(&self) -> Option<EntryPoint> {
        lock(&self.asker).clone()
    }

    pub(crate) fn set_asker(&self, door: &EntryPoint) {
        *lock(&self.asker) = Some(door.clone());
    }

    pub(crate) fn labels(&self) -> Option<BTreeSet<String>> {
        lock(&self.labels).clone()
    }

    pub(crate) fn remember_labels(&self, labels: BTreeSet<String>) {
        *lock(&self.labels) = Some(labels);
    }

    pub(crate) fn model(&self) -> Option<ModelChoice> {
        lock(&self.model).clone()
    }

    pub(crate) fn set_model(&self, choice: Option<ModelChoice>) {
        *lock(&self.model) = choice;
    }

    pub(crate) fn context_digests(&self) -> Option<ContextFileDigests> {
        lock(&self.context).clone()
    }

    pub(crate) fn remember_context(&self, known: ContextFileDigests) {
        *lock(&self.context) = Some(known);
    }

    /// Adds sources of text that the session's calls read.
    pub(crate) fn add_labels(&self, more: BTreeSet<String>) {
        if let Some(labels) = lock(&self.labels).as_mut() {
            labels.extend(more);
        }
    }

    /// Returns a new cancellation token for a turn that begins.
    pub(crate) fn begin_turn(&self, stop: &CancellationToken) -> CancellationToken {
        let token = stop.child_token();
        *lock(&self.turn) = token.clone();
        token
    }

    pub(crate) fn set_running(&self, running: bool) {
        self.running.store(running, Ordering::Relaxed);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel_turn(&self) {
        lock(&self.turn).cancel();
    }
}

/// The table of open sessions.
#[derive(Debug)]
pub(crate) struct Table {
    /// The agent's own budget.
    root: BudgetAccount,
    open: Mutex<BTreeMap<SessionId, Arc<State>>>,
    /// Sessions of channel conversations.
    conversations: Mutex<HashMap<ConversationKey, SessionId>>,
    /// Sessions with open runs, each with its budget and those runs. A session that is opened again uses the same budget.
    givers: Mutex<HashMap<SessionId, (BudgetAccount, BTreeSet<RequestId>)>>,
}

impl Table {
    pub(crate) fn new(root: BudgetAccount) -> Self {
        Self {
            root,
            open: Mutex::default(),
            conversations: Mutex::default(),
            givers: Mutex::default(),
        }
    }

    pub(crate) fn lock_open(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<State>>> {
        lock(&self.open)
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<Arc<State>> {
        self.lock_open().get(&session).cloned()
    }

    pub(crate) fn lock_conversations(&self) -> MutexGuard<'_, HashMap<ConversationKey, SessionId>> {
        lock(&self.conversations)
    }

    /// Returns a session's budget; the agent's own if the session is not open.
    pub(crate) fn purse_of(&self, session: SessionId) -> BudgetAccount {
        let open = self.lock_open().get(&session).map(|state| state.purse.clone());
        open.unwrap_or_else(|| self.root.clone())
    }

    /// Returns the budget of the session that gave this run. `closed` makes the budget of a session that is not open; without it,
    /// the agent's own pays.
    pub(crate) fn giver_account(
        &self,
        session: SessionId,
        run: &RequestId,
        closed: impl FnOnce() -> Option<BudgetAccount>,
    ) -> BudgetAccount {
        let open = self.lock_open().get(&session).map(|state| state.purse.clone());
        let mut givers = lock(&self.givers);
        if let Some((purse, runs)) = givers.get_mut(&session) {
            runs.insert(run.clone());
            return purse.clone();
        }
        let Some(purse) = open.or_else(closed) else {
            return self.root.clone();
        };
        givers.insert(session, (purse.clone(), BTreeSet::from([run.clone()])));
        purse
    }

    /// Returns the budget of a session with an open run.
    pub(crate) fn kept_purse(&self, session: SessionId) -> Option<BudgetAccount> {
        lock(&self.givers).get(&session).map(|(purse, _)| purse.clone())
    }

    /// Removes a run that has ended.
    pub(crate) fn forget_run(&self, run: &RequestId) {
        lock(&self.givers).retain(|_, (_, runs)| {
            runs.remove(run);
            !runs.is_empty()
        });
    }

    /// Returns the role of the session's opener; the lowest role if the session is not open.
    pub(crate) fn role_of(&self, session: SessionId) -> Role {
        let open = self.lock_open().get(&session).map(|state| state.door.role());
        open.unwrap_or(Role::Viewer)
    }

    /// Returns whether the session belongs to a peer: the swarm's bus, or a member.
    pub(crate) fn is_peers(&self, session: SessionId) -> bool {
        let open = self.lock_open();
        let state = open.get(&session);
        state.is_some_and(|state| matches!(state.door, EntryPoint::Peer { .. }))
    }
}
