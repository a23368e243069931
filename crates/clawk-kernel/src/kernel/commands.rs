//! Commands of people about a conversation: clear it, stop the running turn, show its state (R55). No model takes part.

use serde::Serialize;
use tokio::sync::oneshot;

use super::Kernel;
use crate::conversation::{self, ConversationSelector};
use crate::door::EntryPoint;
use crate::error::KernelError;
use crate::event::{ConversationCleared, kind};
use crate::hosts;
use crate::ports::JournalError;
use crate::purse::BudgetAmount;
use crate::session::SessionServices;
use crate::state::State;

/// The state of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConversationStatus {
    /// `true` while a turn runs.
    pub running: bool,
    /// Number of messages and tool results in its context.
    pub messages: usize,
    /// Number of tokens used so far.
    pub tokens: u64,
    /// Cost so far in millionths of a US dollar, as far as prices are known.
    pub cost_microusd: u64,
    /// Number of tool calls.
    pub calls: u64,
    /// The first model: provider and name.
    pub model: Option<(String, String)>,
}

impl Kernel {
    /// Clears the conversation of this entry point: stops the running turn, and sends no earlier message to a model again. The
    /// record keeps them. Returns `false` if it had no message.
    ///
    /// # Errors
    /// The agent accepts no work, another host works on the conversation, or the journal can't be written.
    pub async fn clear_conversation(&self, door: &EntryPoint) -> Result<bool, KernelError> {
        let sessions = &self.agent.sessions;
        let _working = sessions.life.enter().map_err(KernelError::NotReady)?;
        let Some(key) = door.key() else { return Ok(false) };
        let Some(id) = conversation::known(sessions, &key).await? else {
            return Ok(false);
        };
        if hosts::is_elsewhere(sessions, id).await? {
            let why = "another host works on this conversation now; say it again later";
            return Err(JournalError::Away(why.to_owned()).into());
        }
        let state = conversation::open(sessions, door, ConversationSelector::Channel(&key)).await?;
        let (done, told) = oneshot::channel();
        {
            // No message can arrive in between: later messages come after the clearing.
            let _order = state.arriving.lock().await;
            state.cancel_turn();
            if !state.mailbox.clear(door.sender().to_owned(), done) {
                return Err(KernelError::NotReady(sessions.life.state()));
            }
        }
        match told.await {
            Ok(cleared) => Ok(cleared.map(|()| true)?),
            Err(_ended) => Err(KernelError::NotReady(sessions.life.state())),
        }
    }

    /// Stops the running turn in the conversation of this entry point. Returns `false` if none runs here.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn stop_conversation(&self, door: &EntryPoint) -> Result<bool, KernelError> {
        let sessions = &self.agent.sessions;
        let Some(key) = door.key() else { return Ok(false) };
        let id = conversation::known(sessions, &key).await?;
        let Some(state) = id.and_then(|id| sessions.table.get(id)) else {
            return Ok(false);
        };
        let running = state.is_running();
        state.cancel_turn();
        Ok(running)
    }

    /// Returns the state of the conversation of this entry point.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn conversation_status(&self, door: &EntryPoint) -> Result<ConversationStatus, KernelError> {
        let sessions = &self.agent.sessions;
        let primary = sessions.calls.models.primary();
        let model = sessions.calls.manifest.provider(primary);
        let model = model.map(|provider| (provider.name.clone(), provider.model.clone()));
        let mut status = ConversationStatus {
            model,
            ..ConversationStatus::default()
        };
        let Some(key) = door.key() else { return Ok(status) };
        let Some(id) = conversation::known(sessions, &key).await? else {
            return Ok(status);
        };
        let spent: BudgetAmount = match sessions.table.get(id) {
            Some(state) => {
                status.running = state.is_running();
                status.messages = state.history().len();
                state.purse.spent()
            }
            None => {
                let rebuilt = crate::recover::rebuild(&sessions.calls, id).await?;
                status.messages = rebuilt.history.len();
                rebuilt.spent
            }
        };
        status.tokens = spent.tokens;
        status.cost_microusd = spent.cost_microusd;
        status.calls = spent.calls;
        Ok(status)
    }
}

/// Clears the conversation, in its order between the turns.
pub(crate) async fn clear(sessions: &SessionServices, state: &State, by: &str) -> Result<(), JournalError> {
    let payload = ConversationCleared {
        by,
        messages: state.history().len(),
    };
    let draft = sessions
        .scribe
        .entry(&state.thread, kind::CONVERSATION_CLEARED, &payload);
    sessions.scribe.write(vec![draft]).await?;
    state.set_history(Vec::new());
    state.remember_labels(Default::default());
    sessions.calls.cuts.forget(state.id);
    Ok(())
}
