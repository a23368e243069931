//! A message from outside. Its result is [`TurnResult`].

use clawk_proto::RequestId;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::attach::AttachedPicture;
use crate::notice::ClientCall;
use crate::ports::ToolOffer;
pub use crate::turn_result::TurnResult;

/// A message from outside.
#[derive(Debug, Clone)]
pub struct TalkRequest {
    /// The owner of the conversation: a token's name, or a user.
    pub owner: String,
    /// Name of the conversation; `None`: a new one.
    pub conversation: Option<String>,
    /// Text of the message.
    pub text: String,
    /// Images of the message.
    pub images: Vec<AttachedPicture>,
    /// Id of the request. The same request is accepted once.
    pub request_id: RequestId,
    /// Earlier messages that the client reports, oldest first (R44). Those that the conversation does not know are shown as data.
    pub earlier: Vec<EarlierMessage>,
    /// The client's own tools. They are offered to the model, but never run here (R44).
    pub tools: Vec<ToolOffer>,
    /// Cancelled when the message is durable.
    pub taken: Option<CancellationToken>,
}

/// An earlier message that a client reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EarlierMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: &'static str,
    /// Text of the message.
    pub text: String,
    /// Calls of the client's tools in it.
    pub calls: Vec<ClientCall>,
    /// Id of the call that it answers.
    pub answers: Option<String>,
}

impl TalkRequest {
    /// Makes a request with a message only.
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

    /// Reports that the message is durable.
    pub(super) fn is_taken(&self) {
        if let Some(taken) = &self.taken {
            taken.cancel();
        }
    }
}
