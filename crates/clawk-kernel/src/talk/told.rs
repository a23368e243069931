//! A message from outside, and what its sender is told.

use clawk_proto::{MessageId, RequestId, SessionId};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::attach::AttachedPicture;
use crate::call_summary::TurnCallSummary;
use crate::notice::{ClientCall, TurnStop};
use crate::ports::{ToolOffer, Usage};

/// A message from outside.
#[derive(Debug, Clone)]
pub struct TalkRequest {
    /// Whose conversations these are: a token's name, a user.
    pub owner: String,
    /// Which of them; none: a new one.
    pub conversation: Option<String>,
    /// What is said.
    pub text: String,
    /// Pictures that come with it.
    pub images: Vec<AttachedPicture>,
    /// The same message is taken once.
    pub request_id: RequestId,
    /// What the client says was said before, oldest first (R44). What the conversation does not know of it is shown as data.
    pub earlier: Vec<EarlierMessage>,
    /// The client's own tools: the model is offered them, nobody here runs them (R44).
    pub tools: Vec<ToolOffer>,
    /// Is cancelled when the message is durable.
    pub taken: Option<CancellationToken>,
}

/// A message that a client says was said before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EarlierMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: &'static str,
    /// Its text.
    pub text: String,
    /// The client's calls that it asks for.
    pub calls: Vec<ClientCall>,
    /// The call that it answers.
    pub answers: Option<String>,
}

impl TalkRequest {
    /// A message and nothing else.
    #[must_use]
    pub fn new(owner: &str, conversation: Option<String>, text: String, request_id: RequestId) -> Self {
        Self {
            owner: owner.to_owned(),
            conversation,
            text,
            images: Vec::new(),
            request_id,
            earlier: Vec::new(),
            tools: Vec::new(),
            taken: None,
        }
    }

    /// The message is durable.
    pub(super) fn is_taken(&self) {
        if let Some(taken) = &self.taken {
            taken.cancel();
        }
    }
}

/// The result of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnResult {
    /// What [`TalkRequest::conversation`] takes to go on with it.
    pub conversation: String,
    /// The session that it is.
    pub session: SessionId,
    /// The turn, which is the message's id.
    pub turn: MessageId,
    /// The agent's answer.
    pub text: String,
    /// The client's calls that it ends with: the client runs them, and says what came of it.
    pub calls: Vec<ClientCall>,
    /// How the turn ended.
    pub stop: TurnStop,
    /// Why it could not be finished, for people.
    pub reason: Option<String>,
    /// What the turn did by the record; none where the record has nothing to say.
    pub shown: Option<TurnCallSummary>,
    /// Tokens of the whole turn.
    pub usage: Usage,
}
