//! The result of a message from outside.

use clawk_proto::{MessageId, SessionId};

use crate::call_summary::TurnCallSummary;
use crate::notice::{ClientCall, TurnStop};
use crate::ports::Usage;

/// The result of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnResult {
    /// The value of `TalkRequest::conversation` that continues the conversation.
    pub conversation: String,
    /// Its session.
    pub session: SessionId,
    /// Id of the turn, which is the message's id.
    pub turn: MessageId,
    /// The agent's answer.
    pub text: String,
    /// The client's calls at the end of the turn. The client runs them and sends the results.
    pub calls: Vec<ClientCall>,
    /// How the turn ended.
    pub stop: TurnStop,
    /// Why it could not be finished, as text for people.
    pub reason: Option<String>,
    /// Summary of the turn's recorded calls; `None` if there is nothing to report.
    pub shown: Option<TurnCallSummary>,
    /// Tokens of the whole turn.
    pub usage: Usage,
}
