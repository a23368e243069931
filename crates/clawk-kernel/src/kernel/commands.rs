//! Commands of people about a conversation: clear it, stop the running turn, show its state (R55). No model takes part.

use clawk_events::count_of;
use clawk_events::payload::{ConversationCleared, ConversationModel};
use serde::Serialize;
use tokio::sync::oneshot;

use super::Kernel;
use crate::conversation::{self, ConversationSelector};
use crate::door::EntryPoint;
use crate::error::KernelError;
use crate::hosts;
use crate::model_choice::{self, ModelChoice, ModelChoiceError, ModelInUse};
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
    /// The model that is asked first.
    pub model: Option<ModelInUse>,
}

impl Kernel {
    /// Clears the conversation of this entry point: stops the running turn, and sends no earlier message to a model again. The
    /// record keeps them. Returns `false` if it had no message.
    ///
    /// # Errors
    /// The agent accepts no work, another host works on the conversation, or the journal can't be written.
    pub async fn clear_conversation(&self, door: &EntryPoint) -> Result<bool, KernelError> {
        let sessions = &self.agent.sessions;
        let _working = sessions.life.begin_work().map_err(KernelError::NotReady)?;
        let Some(key) = door.conversation_key() else {
            return Ok(false);
        };
        let Some(id) = conversation::find_session(sessions, &key).await? else {
            return Ok(false);
        };
        if hosts::is_elsewhere(sessions, id).await? {
            let why = "another host works on this conversation now; say it again later";
            return Err(JournalError::Away(why.to_owned()).into());
        }
        let state =
            conversation::open_conversation(sessions, door, ConversationSelector::Channel(&key)).await?;
        queue_clearing(sessions, &state, door.sender()).await?;
        Ok(true)
    }

    /// Stops the running turn in the conversation of this entry point. Returns `false` if none runs here.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn stop_conversation(&self, door: &EntryPoint) -> Result<bool, KernelError> {
        let sessions = &self.agent.sessions;
        let Some(key) = door.conversation_key() else {
            return Ok(false);
        };
        let id = conversation::find_session(sessions, &key).await?;
        let Some(state) = id.and_then(|id| sessions.table.get(id)) else {
            return Ok(false);
        };
        let running = state.is_running();
        state.cancel_turn();
        Ok(running)
    }

    /// Chooses which model answers the next messages of this door's conversation, and how much it thinks: `NAME`, `NAME EFFORT`,
    /// `EFFORT` or `default`. The inner error is for the person: nothing has changed.
    ///
    /// # Errors
    /// The agent takes no work, another host works on the conversation, or the journal can't be read or written.
    pub async fn choose_model(
        &self,
        door: &EntryPoint,
        words: &[&str],
    ) -> Result<Result<Option<ModelInUse>, ModelChoiceError>, KernelError> {
        let sessions = &self.agent.sessions;
        let _working = sessions.life.begin_work().map_err(KernelError::NotReady)?;
        let Some(key) = door.conversation_key() else {
            return Ok(Err(ModelChoiceError::Words));
        };
        match conversation::find_session(sessions, &key).await? {
            Some(id) if hosts::is_elsewhere(sessions, id).await? => {
                let why = "another host works on this conversation now; say it again later";
                return Err(JournalError::Away(why.to_owned()).into());
            }
            Some(_) => {}
            // No session is opened for words that choose nothing.
            None => {
                if let Err(error) = model_choice::choose_model(&sessions.calls.models, None, words) {
                    return Ok(Err(error));
                }
            }
        }
        let state =
            conversation::open_conversation(sessions, door, ConversationSelector::Channel(&key)).await?;
        Ok(keep_model(sessions, &state, door.sender(), words).await?)
    }

    /// How the conversation of this door stands.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn conversation_status(&self, door: &EntryPoint) -> Result<ConversationStatus, KernelError> {
        let sessions = &self.agent.sessions;
        let models = &sessions.calls.models;
        let mut status = ConversationStatus {
            model: model_choice::model_in_use(models, None),
            ..ConversationStatus::default()
        };
        let Some(key) = door.conversation_key() else {
            return Ok(status);
        };
        let Some(id) = conversation::find_session(sessions, &key).await? else {
            return Ok(status);
        };
        let spent: BudgetAmount = match sessions.table.get(id) {
            Some(state) => {
                status.running = state.is_running();
                status.messages = state.history().len();
                status.model = model_choice::model_in_use(models, state.model().as_ref());
                state.purse.spent_amount()
            }
            None => {
                let rebuilt = crate::recover::rebuild_session(&sessions.calls, id).await?;
                status.messages = rebuilt.history.len();
                status.model = model_choice::model_in_use(models, rebuilt.model.as_ref());
                rebuilt.spent
            }
        };
        status.tokens = spent.tokens;
        status.cost_microusd = spent.cost_microusd;
        status.calls = spent.calls;
        Ok(status)
    }
}

/// Keeps what a person chose: durably, and for the messages that come from now on.
pub(crate) async fn keep_model(
    sessions: &SessionServices,
    state: &State,
    by: &str,
    words: &[&str],
) -> Result<Result<Option<ModelInUse>, ModelChoiceError>, JournalError> {
    let models = &sessions.calls.models;
    let choice = match model_choice::choose_model(models, state.model().as_ref(), words) {
        Ok(choice) => choice,
        Err(error) => return Ok(Err(error)),
    };
    let payload = ConversationModel {
        by: by.to_owned(),
        effort: choice
            .as_ref()
            .and_then(ModelChoice::effort_word)
            .map(str::to_owned),
        provider: choice.as_ref().map(|choice| choice.provider.clone()),
    };
    let draft = sessions.scribe.draft_event(&state.thread, &payload);
    sessions.scribe.write(vec![draft]).await?;
    let in_use = model_choice::model_in_use(models, choice.as_ref());
    state.set_model(choice);
    Ok(Ok(in_use))
}

/// Stops the running turn, and has the conversation begin anew in its place between the turns. Returns when that is recorded.
///
/// # Errors
/// The session has ended, or the journal can't be written.
pub(crate) async fn queue_clearing(
    sessions: &SessionServices,
    state: &State,
    by: &str,
) -> Result<(), KernelError> {
    let (done, told) = oneshot::channel();
    {
        // No message can arrive in between: later messages come after the clearing.
        let _order = state.arriving.lock().await;
        state.cancel_turn();
        if !state.mailbox.push_clear(by.to_owned(), done) {
            return Err(KernelError::NotReady(sessions.life.state()));
        }
    }
    match told.await {
        Ok(cleared) => Ok(cleared?),
        Err(_ended) => Err(KernelError::NotReady(sessions.life.state())),
    }
}

/// Performs a new beginning, in its place between the turns.
pub(crate) async fn clear_conversation(
    sessions: &SessionServices,
    state: &State,
    by: &str,
) -> Result<(), JournalError> {
    let payload = ConversationCleared {
        by: by.to_owned(),
        messages: count_of(state.history().len()),
    };
    let draft = sessions.scribe.draft_event(&state.thread, &payload);
    sessions.scribe.write(vec![draft]).await?;
    state.set_history(Vec::new());
    state.remember_labels(Default::default());
    sessions.calls.cuts.forget_session(state.id);
    Ok(())
}
