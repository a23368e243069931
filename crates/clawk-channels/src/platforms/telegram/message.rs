//! A message of Telegram, and what is made of it: the sender's own words, what it repeats of others with its author, and its files.

use clawk_kernel::ports::{MessageContext, QuoteAuthor, QuoteKind, QuotedText};
use serde::Deserialize;
use serde_json::Value;

use crate::adapter::{Attachment, AttachmentContent};
use crate::plain_name::harmless;
use crate::platform_kit::worded::{self, quoted_text};

/// A message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TelegramMessage {
    pub(super) message_id: i64,
    pub(super) from: Option<User>,
    pub(super) sender_chat: Option<TelegramChat>,
    pub(super) chat: TelegramChat,
    pub(super) message_thread_id: Option<i64>,
    pub(super) is_topic_message: bool,
    pub(super) edit_date: Option<i64>,
    pub(super) media_group_id: Option<String>,
    pub(super) migrate_to_chat_id: Option<i64>,
    pub(super) migrate_from_chat_id: Option<i64>,
    pub(super) text: Option<String>,
    pub(super) caption: Option<String>,
    pub(super) entities: Vec<TelegramTextEntity>,
    pub(super) caption_entities: Vec<TelegramTextEntity>,
    pub(super) reply_to_message: Option<Box<TelegramMessage>>,
    external_reply: Option<ExternalReply>,
    quote: Option<TelegramQuote>,
    forward_origin: Option<ForwardOrigin>,
    forward_from: Option<User>,
    forward_from_chat: Option<TelegramChat>,
    forward_sender_name: Option<String>,
    document: Option<TelegramFile>,
    photo: Vec<TelegramFile>,
    voice: Option<TelegramFile>,
    audio: Option<TelegramFile>,
    video: Option<TelegramFile>,
    video_note: Option<TelegramFile>,
    location: Option<Location>,
    venue: Option<TelegramVenue>,
    contact: Option<TelegramContact>,
    sticker: Option<TelegramSticker>,
    poll: Option<TelegramPoll>,
    dice: Option<TelegramDice>,
    game: Option<TelegramTextItem>,
    checklist: Option<TelegramChecklist>,
    story: Option<Value>,
    forum_topic_created: Option<TelegramTopic>,
}

/// A person or a bot.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    pub(super) id: i64,
    pub(super) is_bot: bool,
    pub(super) first_name: String,
    last_name: Option<String>,
}

/// A chat.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TelegramChat {
    pub(super) id: i64,
    #[serde(rename = "type")]
    pub(super) kind: String,
    title: Option<String>,
    first_name: Option<String>,
}

/// A part of a text with a meaning.
#[derive(Debug, Deserialize)]
pub(super) struct TelegramTextEntity {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) offset: usize,
    pub(super) length: usize,
    #[serde(default)]
    pub(super) user: Option<User>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramTopic {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramFile {
    file_id: String,
    file_name: Option<String>,
    mime_type: Option<String>,
    file_size: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ForwardOrigin {
    sender_user: Option<User>,
    sender_user_name: Option<String>,
    sender_chat: Option<TelegramChat>,
    chat: Option<TelegramChat>,
    author_signature: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ExternalReply {
    origin: ForwardOrigin,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramQuote {
    text: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Location {
    latitude: f64,
    longitude: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramVenue {
    title: String,
    address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramContact {
    phone_number: String,
    first_name: String,
    last_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramSticker {
    emoji: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramPoll {
    question: String,
    options: Vec<TelegramTextItem>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramDice {
    emoji: String,
    value: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramChecklist {
    title: String,
    tasks: Vec<TelegramTextItem>,
}

/// Something with a text: an option of a poll, a task of a list, a game.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TelegramTextItem {
    #[serde(alias = "title")]
    text: String,
}

/// What a message says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TelegramDecodedMessage {
    /// The sender's own words.
    pub(super) text: String,
    /// Where it was said, and what it repeats.
    pub(super) context: MessageContext,
    /// Its files.
    pub(super) attachments: Vec<Attachment>,
}

impl TelegramDecodedMessage {
    /// Nothing that a person said: a note of the platform, such as "Ann joined".
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.attachments.is_empty()
    }
}

impl User {
    /// First and last name.
    pub(super) fn name(&self) -> String {
        match self.last_name.as_deref().filter(|name| !name.is_empty()) {
            Some(last) => format!("{} {last}", self.first_name),
            None => self.first_name.clone(),
        }
    }
}

impl TelegramMessage {
    /// Takes what was said out of the message. `me`: the bot's id.
    pub(super) fn decode_message(mut self, me: Option<i64>) -> TelegramDecodedMessage {
        let sender = self.from.as_ref().map(|from| from.id);
        let mut quotes = self.quoted_texts(me, sender);
        let words = self.message_words();
        let text = match self.forwarded_by(sender) {
            None => words,
            Some(author) => {
                quotes.push(worded::forwarded_text(author, words));
                worded::FORWARDS.to_owned()
            }
        };
        let attachments: Vec<Attachment> = self.attached_files().map(attachment).collect();
        let topic = self
            .reply_to_message
            .take()
            .and_then(|replied| replied.forum_topic_created);
        let context = MessageContext {
            chat_name: match (self.chat.title.take(), topic) {
                (Some(title), Some(topic)) if !topic.name.is_empty() => {
                    Some(format!("{title}, topic {}", topic.name))
                }
                (title, _) => title,
            },
            edited: self.edit_date.is_some(),
            quotes,
            ..MessageContext::default()
        };
        TelegramDecodedMessage {
            text,
            context,
            attachments,
        }
    }

    /// It has a text or a caption: an edit of one that has none, such as a live place, is nothing that is said.
    pub(super) fn has_words(&self) -> bool {
        self.text.is_some() || self.caption.is_some()
    }

    /// Text, caption, and what is no text, in words.
    fn message_words(&self) -> String {
        let said = self
            .text
            .as_deref()
            .or(self.caption.as_deref())
            .unwrap_or_default();
        worded::append_lines(said.to_owned(), self.describe_extras())
    }

    /// What is neither text nor a file, each as one line in brackets.
    fn describe_extras(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let at = self.location.as_ref().map(|at| (at.latitude, at.longitude));
        match &self.venue {
            Some(venue) => lines.push(worded::place_line(Some(&venue.title), Some(&venue.address), at)),
            None => lines.extend(at.map(|at| worded::place_line(None, None, Some(at)))),
        }
        if let Some(contact) = &self.contact {
            let last = contact.last_name.as_deref().unwrap_or_default();
            let name = format!("{} {last}", contact.first_name);
            lines.push(worded::contact_line(&name, &contact.phone_number));
        }
        if let Some(sticker) = &self.sticker {
            lines.push(worded::sticker_line(sticker.emoji.as_deref()));
        }
        let texts =
            |all: &'_ [TelegramTextItem]| all.iter().map(|item| item.text.clone()).collect::<Vec<_>>();
        if let Some(poll) = &self.poll {
            let options = texts(&poll.options);
            lines.push(worded::list_line(
                "a poll",
                &poll.question,
                options.iter().map(String::as_str),
            ));
        }
        if let Some(dice) = &self.dice {
            lines.push(format!("[{} shows {}]", harmless(&dice.emoji), dice.value));
        }
        if let Some(game) = &self.game {
            lines.push(worded::item_line("a game", &game.text));
        }
        if let Some(list) = &self.checklist {
            let tasks = texts(&list.tasks);
            lines.push(worded::list_line(
                "a checklist",
                &list.title,
                tasks.iter().map(String::as_str),
            ));
        }
        if self.story.is_some() {
            lines.push("[a story, which bots can't see]".to_owned());
        }
        lines
    }

    /// What the message answers: the marked part alone, where there is one.
    fn quoted_texts(&self, me: Option<i64>, sender: Option<i64>) -> Vec<QuotedText> {
        // In a forum, each message of a topic answers the message that made the topic.
        let replied = self.reply_to_message.as_deref();
        let replied = replied.filter(|replied| replied.forum_topic_created.is_none());
        let author = match (replied, &self.external_reply) {
            (Some(replied), _) => match (&replied.sender_chat, &replied.from) {
                (Some(chat), _) => other_chat(chat, None),
                (None, Some(from)) => of_user(from, me, sender),
                (None, None) => worded::unverified_author(None),
            },
            (None, Some(external)) => external.origin.quote_author(me, sender),
            (None, None) => return Vec::new(),
        };
        if let Some(quote) = self.quote.as_ref().filter(|quote| !quote.text.is_empty()) {
            return vec![quoted_text(QuoteKind::Quote, author, quote.text.clone())];
        }
        let Some(replied) = replied else { return Vec::new() };
        let mut words = replied.message_words();
        let files = replied.attached_files().count();
        if files > 0 {
            let gap = if words.is_empty() { "" } else { "\n" };
            words.push_str(&format!(
                "{gap}[with {files} file{}]",
                if files == 1 { "" } else { "s" }
            ));
        }
        match words.is_empty() {
            true => Vec::new(),
            false => vec![quoted_text(QuoteKind::Reply, author, words)],
        }
    }

    /// Whose message is passed on; `None`: the words are the sender's own.
    fn forwarded_by(&self, sender: Option<i64>) -> Option<QuoteAuthor> {
        match (
            &self.forward_origin,
            &self.forward_from,
            &self.forward_from_chat,
            &self.forward_sender_name,
        ) {
            (Some(origin), ..) => Some(origin.quote_author(None, sender)),
            (None, Some(user), ..) => Some(of_user(user, None, sender)),
            (None, None, Some(chat), _) => Some(other_chat(chat, None)),
            (None, None, None, Some(name)) => Some(worded::unverified_author(Some(name))),
            (None, None, None, None) => None,
        }
    }

    fn attached_files(&self) -> impl Iterator<Item = &TelegramFile> {
        let files = [
            &self.document,
            &self.voice,
            &self.audio,
            &self.video,
            &self.video_note,
        ];
        // Of a picture, the largest size comes last.
        files.into_iter().flatten().chain(self.photo.last())
    }
}

impl ForwardOrigin {
    fn quote_author(&self, me: Option<i64>, sender: Option<i64>) -> QuoteAuthor {
        match (
            &self.sender_user,
            self.sender_chat.as_ref().or(self.chat.as_ref()),
        ) {
            (Some(user), _) => of_user(user, me, sender),
            (None, Some(chat)) => other_chat(chat, self.author_signature.as_deref()),
            (None, None) => worded::unverified_author(self.sender_user_name.as_deref()),
        }
    }
}

fn of_user(user: &User, me: Option<i64>, sender: Option<i64>) -> QuoteAuthor {
    if me == Some(user.id) {
        return QuoteAuthor::Agent;
    }
    if sender == Some(user.id) {
        return QuoteAuthor::Sender;
    }
    QuoteAuthor::Other {
        id: Some(user.id.to_string()),
        name: Some(user.name()),
    }
}

fn other_chat(chat: &TelegramChat, signature: Option<&str>) -> QuoteAuthor {
    let title = chat.title.clone().or_else(|| chat.first_name.clone());
    QuoteAuthor::Other {
        id: Some(chat.id.to_string()),
        name: match (title, signature) {
            (Some(title), Some(signature)) => Some(format!("{title}, {signature}")),
            (title, signature) => title.or_else(|| signature.map(str::to_owned)),
        },
    }
}

fn attachment(file: &TelegramFile) -> Attachment {
    Attachment {
        name: file.file_name.clone().unwrap_or_else(|| "a file".to_owned()),
        media_type: file.mime_type.clone().unwrap_or_default(),
        size: file.file_size,
        content: AttachmentContent::At(file.file_id.clone()),
    }
}

#[cfg(test)]
mod tests;
