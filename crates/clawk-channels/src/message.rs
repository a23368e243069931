//! What goes between a platform and the pipelines, as data: messages, files, questions, requests, and what a platform can. It imports
//! neither a platform nor a pipeline.

use bytes::Bytes;
use clawk_kernel::ports::{MessageContext, SocketFrame};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::sync::mpsc;

use crate::kinds;
use crate::plain_name::harmless;

/// The prefix of a scheduled run's id. The platform has no such message, so an answer cannot reply to it.
pub(crate) const RUN: &str = "schedule:";

/// How a platform counts the length of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthUnit {
    /// Unicode characters.
    Chars,
    /// UTF-16 units.
    Utf16,
    /// Bytes of UTF-8.
    Bytes,
}

/// What a platform makes of Markdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkupFormat {
    /// It shows Markdown itself, or whoever gets it does.
    Markdown,
    /// Telegram's HTML.
    TelegramHtml,
    /// Slack's mrkdwn.
    Mrkdwn,
    /// WhatsApp's marks.
    Whatsapp,
    /// HTML for a page of our own: only tags that we write, links to web and mail addresses.
    Html,
    /// Plain text.
    Plain,
}

/// How a platform marks a block of code, in which nothing else is markup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeBlock {
    /// A fence of CommonMark: as many backticks as the text needs.
    Fence,
    /// Three backticks, ended by the next three whatever stands between: Slack, Discord, WhatsApp, Lark, DingTalk.
    ThreeBackticks,
    /// An element of HTML; the text in it is escaped.
    Element,
    /// There is none. Each line of a call begins with a bar.
    Lines,
}

/// What a platform can.
#[derive(Debug, Clone, Copy)]
pub struct PlatformCapabilities {
    /// The longest message, and what is counted.
    pub limit: (usize, LengthUnit),
    /// Its markup.
    pub markup: MarkupFormat,
    /// How it marks code.
    pub code: CodeBlock,
    /// A message that is sent again under the same [`OutboundMessage::id`] is the same message.
    pub idempotent: bool,
    /// It shows buttons under a question.
    pub buttons: bool,
    /// A sent message can be changed.
    pub edits: bool,
    /// It shows that somebody writes.
    pub typing: bool,
    /// It shows that a message was read.
    pub receipts: bool,
    /// How files go out.
    pub files: FileSupport,
}

/// How a platform takes files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSupport {
    /// It takes none from us: why, for people.
    Nothing(&'static str),
    /// In the message: [`crate::ChannelAdapter::send_message`] sends those of [`OutboundMessage::files`].
    Inside,
    /// As messages of their own: [`crate::ChannelAdapter::send_file`].
    Beside,
}

impl PlatformCapabilities {
    /// Nothing but plain text of this length.
    #[must_use]
    pub const fn plain_text(max: usize, unit: LengthUnit) -> Self {
        Self {
            limit: (max, unit),
            markup: MarkupFormat::Plain,
            code: CodeBlock::Lines,
            idempotent: false,
            buttons: false,
            edits: false,
            typing: false,
            receipts: false,
            files: FileSupport::Nothing("this version sends none there"),
        }
    }
}

/// A message as an adapter decodes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlatformMessage {
    /// The platform's ids of the message; where one message can come as two events, both.
    pub ids: Vec<String>,
    /// The chat, room, thread or mail thread.
    pub conversation: String,
    /// Nobody else is in it.
    pub direct: bool,
    /// The agent is named or replied to, or it is a command.
    pub mention: bool,
    /// The platform's id of the sender; `None`: the platform does not vouch for any (C3a), which only `open` lets in.
    pub sender: Option<String>,
    /// What the sender calls themselves. It decides nothing.
    pub sender_name: Option<String>,
    /// What was said.
    pub text: String,
    /// Files beside it.
    pub attachments: Vec<Attachment>,
    /// What the platform says of it beside the text. The platform's and the sender's names are put in by the inlet.
    pub context: MessageContext,
    /// The platform's id of the message that it answers, where the platform does not repeat its words; they are looked up by the inlet.
    pub answers: Option<String>,
    /// Days for which the ids are remembered; 7 when absent.
    pub remembered_days: Option<u32>,
}

/// The prefix of an edit's id. An edit can't be answered, marked as read or reacted to.
pub(crate) const EDIT: &str = "edit:";

/// A file beside a message, by what the platform says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachment {
    /// Its name, as its sender gave it.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Bytes, where the platform says.
    pub size: Option<u64>,
    /// Where its bytes are.
    pub content: AttachmentContent,
}

/// Where the bytes of an attachment are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AttachmentContent {
    /// The adapter can't get them. The model reads the file's name, type and size.
    #[default]
    Absent,
    /// They came with the message.
    Here(Bytes),
    /// [`crate::ChannelAdapter::fetch_attachment`] takes this. It is called only for a sender who was let in.
    At(String),
}

/// A file that goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutFile {
    /// Its name: one path component without control characters.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its bytes.
    pub data: Bytes,
}

impl OutFile {
    /// A file by its name, which may be a path, and its bytes. Its type is told by the bytes, else by nothing.
    #[must_use]
    pub fn new(name: &str, data: Bytes) -> Self {
        let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
        let plain = harmless(last);
        let plain = plain.trim().trim_start_matches('.');
        Self {
            name: if plain.is_empty() { "file" } else { plain }.to_owned(),
            media_type: kinds::detect_type(&data)
                .unwrap_or("application/octet-stream")
                .to_owned(),
            data,
        }
    }

    /// Whether platforms show it as a picture.
    #[must_use]
    pub fn is_picture(&self) -> bool {
        matches!(self.media_type.as_str(), "image/jpeg" | "image/png")
    }
}

/// Somebody pressed a button, or answered a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ButtonPress {
    /// The question's own id, as [`QuestionMessage::question`] gave it.
    pub question: String,
    /// The choice's id.
    pub choice: String,
    /// Why, in the person's words.
    pub reason: Option<String>,
    /// The platform's id of who pressed.
    pub sender: String,
    /// Where.
    pub conversation: String,
}

/// One message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundMessage {
    /// Unique; the same again is the same message.
    pub id: String,
    /// Where to.
    pub conversation: String,
    /// The platform's id of the message that it answers.
    pub reply_to: Option<String>,
    /// In the platform's own markup, within its limit.
    pub text: String,
    /// The same as Markdown.
    pub markdown: String,
    /// Files, only where [`PlatformCapabilities::files`] is [`FileSupport::Inside`].
    pub files: Vec<OutFile>,
}

/// A question with choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionMessage {
    /// The message.
    pub out: OutboundMessage,
    /// An opaque id of at most 24 bytes, which comes back with a press.
    pub question: String,
    /// Choices: id (at most 8 bytes) and label.
    pub choices: Vec<(String, String)>,
}

impl QuestionMessage {
    /// What a button carries: the question and the choice, at most 33 bytes.
    #[must_use]
    pub fn button_data(&self, choice: &str) -> String {
        format!("{}:{choice}", self.question)
    }
}

/// What a button carried, taken apart.
#[must_use]
pub fn carried(data: &str) -> Option<(&str, &str)> {
    data.split_once(':')
}

/// A request to `/channels/NAME`: nothing of it is checked yet.
#[derive(Debug, Clone)]
pub struct HookRequest {
    /// The method.
    pub method: Method,
    /// The query, raw.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The raw body.
    pub body: Bytes,
}

impl HookRequest {
    /// A header's text. `None` when it is missing, stands there twice, or is not text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.get_all(name).iter();
        let value = all.next()?.to_str().ok()?; // silent-ok: bytes that are not text match nothing
        all.next().is_none().then_some(value)
    }
}

/// The answer to a [`HookRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookReply {
    /// HTTP status.
    pub status: u16,
    /// Content type; none without a body.
    pub content_type: Option<&'static str>,
    /// Body.
    pub body: String,
}

impl HookReply {
    /// A status alone.
    #[must_use]
    pub const fn empty(status: u16) -> Self {
        Self {
            status,
            content_type: None,
            body: String::new(),
        }
    }

    /// JSON.
    #[must_use]
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self {
            status,
            content_type: Some("application/json"),
            body: value.to_string(),
        }
    }

    /// Why it was refused, for whoever sets the platform up; says nothing that a stranger could use.
    #[must_use]
    pub fn refusal(status: u16, reason: &str) -> Self {
        Self::json(status, &serde_json::json!({ "error": reason }))
    }
}

/// How a question was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Approved or denied; `None`: it waits no more.
    pub yes: Option<bool>,
    /// The person who decided. `None` if the question timed out.
    pub by: Option<String>,
    /// The same in words.
    pub text: String,
}

/// A WebSocket that the listener opens for whoever asked for it.
#[derive(Debug)]
pub struct HookWebSocket {
    /// The subprotocol that was agreed on.
    pub protocol: &'static str,
    /// The longest frame that is taken, bytes; a longer one closes the socket with 1009.
    pub max_frame_bytes: usize,
    /// What the program says. The listener drops it when the program is gone.
    pub heard: mpsc::Sender<SocketFrame>,
    /// What it is told. The socket closes when the sender is dropped.
    pub said: mpsc::Receiver<SocketFrame>,
}

/// What [`crate::ChannelAdapter::serve_hook`] answers: a reply with further headers, a stream, or a WebSocket.
#[derive(Debug)]
pub struct HookResponse {
    /// Status, content type and body.
    pub reply: HookReply,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body comes piece by piece; [`HookReply::body`] is not used. The receiver's end closes the stream.
    pub stream: Option<mpsc::Receiver<Bytes>>,
    /// The request asked for a WebSocket, and gets it. [`HookResponse::reply`] is not used.
    pub talk: Option<HookWebSocket>,
}

impl From<HookReply> for HookResponse {
    fn from(reply: HookReply) -> Self {
        Self {
            reply,
            headers: Vec::new(),
            stream: None,
            talk: None,
        }
    }
}

/// Why listening ended. It begins again after a wait, unless the channel ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelDisconnect {
    /// For people; no secret in it.
    pub reason: String,
    /// Only a person can mend it (a wrong token): it is tried again rarely.
    pub fatal: bool,
    /// The platform wants to be left alone for so long, milliseconds.
    pub after_ms: Option<u64>,
}

impl ChannelDisconnect {
    /// It may be well again soon.
    pub fn temporary(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            fatal: false,
            after_ms: None,
        }
    }

    /// How listening ended: without an error, the agent ends.
    #[must_use]
    pub fn from_result(listened: Result<(), Self>) -> Self {
        listened
            .err()
            .unwrap_or_else(|| Self::temporary("the agent ends"))
    }

    /// A person has to mend it.
    pub fn fatal(reason: impl Into<String>) -> Self {
        Self {
            fatal: true,
            ..Self::temporary(reason)
        }
    }
}

/// Whether a platform has a message already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryLookup {
    /// It does: its id there.
    Yes(Option<String>),
    /// It surely does not.
    No,
    /// Its history can't be read.
    CantKnow,
}
