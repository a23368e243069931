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
        /// Name of the channel.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        channel: AddedField<String>,
        /// The conversation on its platform.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        conversation: AddedField<String>,
        /// The conversation has only two participants.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        direct: AddedField<bool>,
        /// Name of the entry point.
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
        /// The sender, as the entry point identifies them.
        sender: String,
        /// Size in bytes.
        size_bytes: u64,
        /// Id of the task.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        task_id: AddedField<String>,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.message.attached`. An image of the message that is accepted next. The content is the image.
    MessageAttached {
        /// Digest of the content.
        content_hash: Digest,
        /// Id of the message.
        message_id: Uuid,
        /// The MIME type.
        mime_type: String,
        /// The name.
        name: Option<String>,
        /// Size in bytes.
        size_bytes: u64,
    }

    /// `ckp.message.framed`. Text that the model reads before the next message. The content is that text.
    MessageFramed {
        /// Digest of the frame.
        frame_hash: Digest,
        /// Id of the message.
        message_id: Uuid,
        /// Sources of the untrusted text in it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        untrusted: Vec<String>,
    }

    /// `ckp.message.tools`. The client's own tools that came with a message. The content is the tools.
    MessageTools {
        /// Id of the message.
        message_id: Uuid,
        /// Digest of the tools.
        tools_hash: Digest,
    }

    /// `ckp.client.called`. A call of a client's own tool was handed to the client. The content is the call.
    ClientToolCalled {
        /// Digest of the call.
        call_hash: Digest,
        /// The model's id of the call.
        call_id: String,
        /// The tool.
        tool: String,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.message.refused`. An inbound message was rejected.
    MessageRefused {
        /// Name of the entry point.
        door: String,
        /// Id of the message.
        message_id: Uuid,
        /// Why.
        reason: ChainText,
        /// Size in bytes.
        size_bytes: u64,
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.message.answered`. A message's turn ended.
    MessageAnswered {
        /// The turn had tools with side effects.
        #[serde(default, skip_serializing_if = "is_false")]
        could_act: bool,
        /// The model declined to answer.
        #[serde(default, skip_serializing_if = "is_false")]
        declined: bool,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// How the turn ended.
        end: String,
        /// Input tokens.
        input_tokens: u64,
        /// Id of the message.
        message_id: Uuid,
        /// Output tokens.
        output_tokens: u64,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.message.resumed`. An interrupted turn continues after a restart.
    MessageResumed {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Id of the message.
        message_id: Uuid,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The turn waited for a person.
        waiting: bool,
    }

    /// `ckp.message.dead`. A message's turn can't be finished; it is in the dead-letter box.
    MessageDead {
        /// Id of the message.
        message_id: Uuid,
        /// Why.
        reason: ChainText,
        /// The cause as a word, where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.claims.judged`. A model checked an answer for sentences that the record does not support.
    ClaimsJudged {
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The step that failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
        /// Byte offsets in the answer. Each is the end of a sentence that the record does not support.
        marks: Vec<u64>,
        /// Id of the message.
        message_id: Uuid,
        /// Name of the provider.
        provider: String,
        /// Sentences that were looked at.
        sentences: u64,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.conversation.cleared`. A person cleared the conversation. Earlier messages leave the context but stay in the record.
    ConversationCleared {
        /// The identity that did this.
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
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.delivery.started`. An answer is about to be sent to its conversation.
    DeliveryStarted {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Name of the channel.
        channel: String,
        /// Id of the message.
        message_id: Uuid,
        /// The attempt may repeat a delivery whose outcome is unknown.
        repeat: bool,
    }

    /// `ckp.delivery.ended`. An attempt to deliver an answer ended.
    DeliveryEnded {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Name of the channel.
        channel: String,
        /// No further attempt follows.
        dead: bool,
        /// Id of the message.
        message_id: Uuid,
        /// The time of the next attempt, RFC 3339.
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

    /// `ckp.delivery.requeued`. The delivery of an undelivered answer is tried again.
    DeliveryRequeued {
        /// The identity that did this.
        by: String,
        /// Id of the message.
        message_id: Uuid,
    }
}
