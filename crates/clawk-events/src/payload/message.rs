//! Messages: accepted, answered, given up; and the delivery of answers.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::{AddedField, is_false, payloads};
use crate::shape::AuthorKind;
use crate::text::ChainText;

payloads! {
    /// `ckp.message.accepted`. An inbound message was accepted.
    MessageAccepted {
        /// What kind of author wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        author_kind: Option<AuthorKind>,
        /// The channel.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        channel: AddedField<String>,
        /// The conversation on its platform.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        conversation: AddedField<String>,
        /// The conversation is between two.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        direct: AddedField<bool>,
        /// The entry point.
        door: String,
        /// How much the model thinks, where a person chose it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effort: Option<String>,
        /// The message.
        message_id: Uuid,
        /// The platform's ids of the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        platform_ids: Option<Vec<String>>,
        /// The provider that is asked first, where a person chose it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// Origins of words of others that the message repeats.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        repeats: Vec<String>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Who, as the entry point knows them.
        sender: String,
        /// Size in bytes.
        size_bytes: u64,
        /// The task.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        task_id: AddedField<String>,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.message.attached`. A picture of the message that is accepted next; the content is the picture.
    MessageAttached {
        /// Digest of the content.
        content_hash: Digest,
        /// The message.
        message_id: Uuid,
        /// The MIME type.
        mime_type: String,
        /// The name.
        name: Option<String>,
        /// Size in bytes.
        size_bytes: u64,
    }

    /// `ckp.message.framed`. What a model reads before the words of the next message; the content is that text.
    MessageFramed {
        /// Digest of the frame.
        frame_hash: Digest,
        /// The message.
        message_id: Uuid,
        /// Origins of the untrusted text in it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        untrusted: Vec<String>,
    }

    /// `ckp.message.tools`. The client's own tools that came with a message; they are the content.
    MessageTools {
        /// The message.
        message_id: Uuid,
        /// Digest of the tools.
        tools_hash: Digest,
    }

    /// `ckp.client.called`. A call of a client's own tool was handed to the client; it is the content.
    ClientToolCalled {
        /// Digest of the call.
        call_hash: Digest,
        /// The model's id of the call.
        call_id: String,
        /// The tool.
        tool: String,
        /// The turn.
        turn: Uuid,
    }

    /// `ckp.message.refused`. An inbound message was not accepted.
    MessageRefused {
        /// The entry point.
        door: String,
        /// The message.
        message_id: Uuid,
        /// Why.
        reason: ChainText,
        /// Size in bytes.
        size_bytes: u64,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.message.answered`. A message's turn ended.
    MessageAnswered {
        /// The turn had tools that change something.
        #[serde(default, skip_serializing_if = "is_false")]
        could_act: bool,
        /// The model declined to answer.
        #[serde(default, skip_serializing_if = "is_false")]
        declined: bool,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// How the turn ended.
        end: String,
        /// Tokens read.
        input_tokens: u64,
        /// The message.
        message_id: Uuid,
        /// Tokens written.
        output_tokens: u64,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.message.resumed`. An interrupted turn goes on after a restart.
    MessageResumed {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// The message.
        message_id: Uuid,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The turn waited for a person.
        waiting: bool,
    }

    /// `ckp.message.dead`. A message's turn can't be finished; it is in the dead-letter box.
    MessageDead {
        /// The message.
        message_id: Uuid,
        /// Why.
        reason: ChainText,
        /// The cause as a word, where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.claims.judged`. A model looked for sentences of an answer that the record does not support.
    ClaimsJudged {
        /// Duration in milliseconds.
        duration_ms: u64,
        /// What failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
        /// Places in the answer, in bytes, behind sentences that the record does not support.
        marks: Vec<u64>,
        /// The message.
        message_id: Uuid,
        /// The provider.
        provider: String,
        /// Sentences that were looked at.
        sentences: u64,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.conversation.cleared`. A person began anew: earlier messages leave the context and stay on the record.
    ConversationCleared {
        /// Who did it.
        by: String,
        /// How many messages left the context.
        messages: u64,
    }

    /// `ckp.conversation.model`. A person chose which model answers the conversation's next messages, and how much it thinks.
    ConversationModel {
        /// Who did it.
        by: String,
        /// How much it thinks; absent: as its settings say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effort: Option<String>,
        /// The provider that is asked first; absent: the manifest's first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
    }

    /// `ckp.turn.stopped`. The loop guard ended a turn.
    TurnStopped {
        /// Which guard.
        guard: String,
        /// Why.
        reason: ChainText,
        /// The turn.
        turn: Uuid,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.delivery.started`. An answer is about to be sent to its conversation.
    DeliveryStarted {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// The channel.
        channel: String,
        /// The message.
        message_id: Uuid,
        /// The attempt may repeat one whose outcome is unknown.
        repeat: bool,
    }

    /// `ckp.delivery.ended`. An attempt to deliver an answer ended.
    DeliveryEnded {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// The channel.
        channel: String,
        /// Nothing more is tried.
        dead: bool,
        /// The message.
        message_id: Uuid,
        /// When it is tried again, RFC 3339.
        next_at: Option<String>,
        /// The outcome.
        outcome: String,
        /// The platform's id of the delivered message.
        platform_id: Option<String>,
        /// Why.
        reason: Option<ChainText>,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.delivery.requeued`. An answer that could not be delivered is tried again.
    DeliveryRequeued {
        /// Who did it.
        by: String,
        /// The message.
        message_id: Uuid,
    }
}
