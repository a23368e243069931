//! A message of Discord: what it says beside text and files, and what it forwards.

use clawk_kernel::ports::QuotedText;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::platform_kit::worded;

/// A message.
#[derive(Debug, Deserialize)]
pub(super) struct DiscordMessage {
    pub(super) id: String,
    pub(super) channel_id: String,
    #[serde(default)]
    pub(super) guild_id: Option<String>,
    pub(super) author: User,
    #[serde(default)]
    pub(super) webhook_id: Option<String>,
    #[serde(default)]
    pub(super) content: String,
    #[serde(default)]
    pub(super) mentions: Vec<User>,
    #[serde(rename = "type", default)]
    pub(super) kind: u8,
    #[serde(default)]
    pub(super) referenced_message: Option<DiscordReferencedMessage>,
    #[serde(default)]
    pub(super) edited_timestamp: Option<String>,
    #[serde(default)]
    pub(super) attachments: Vec<DiscordFile>,
    /// Whatever else it holds: stickers, a poll, what it forwards.
    #[serde(flatten)]
    pub(super) more: Map<String, Value>,
}

/// The message that is answered.
#[derive(Debug, Deserialize)]
pub(super) struct DiscordReferencedMessage {
    pub(super) author: User,
    #[serde(default)]
    pub(super) content: String,
}

/// A person, a bot or a webhook.
#[derive(Debug, Deserialize)]
pub(super) struct User {
    pub(super) id: String,
    #[serde(default)]
    pub(super) bot: bool,
    #[serde(default)]
    pub(super) username: Option<String>,
    #[serde(default)]
    pub(super) global_name: Option<String>,
}

/// A file.
#[derive(Debug, Deserialize)]
pub(super) struct DiscordFile {
    #[serde(default)]
    pub(super) filename: String,
    #[serde(default)]
    pub(super) content_type: Option<String>,
    #[serde(default)]
    pub(super) size: Option<u64>,
    #[serde(default)]
    pub(super) url: Option<String>,
}

impl User {
    /// What they call themselves.
    pub(super) fn name(&self) -> Option<&str> {
        self.global_name.as_deref().or(self.username.as_deref())
    }
}

/// The sender's own words, and those that they pass on. `more`: all members of the message beside its text and files.
pub(super) fn read(text: String, more: &Map<String, Value>) -> (String, Vec<QuotedText>) {
    let words = worded::append_lines(text, things(more));
    let snapshots = more.get("message_snapshots").and_then(Value::as_array);
    let forwarded: Vec<QuotedText> = snapshots.into_iter().flatten().filter_map(snapshot).collect();
    match words.is_empty() && !forwarded.is_empty() {
        true => (worded::FORWARDS.to_owned(), forwarded),
        false => (words, forwarded),
    }
}

/// The platform says nothing of who wrote a message that is forwarded.
fn snapshot(snapshot: &Value) -> Option<QuotedText> {
    let message = snapshot.get("message")?.as_object()?;
    let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
    let mut lines = things(message);
    let files = message.get("attachments").and_then(Value::as_array);
    for file in files.into_iter().flatten() {
        let name = file.get("filename").and_then(Value::as_str).unwrap_or_default();
        lines.push(worded::item_line("a file", name));
    }
    let words = worded::append_lines(text.to_owned(), lines);
    Some(worded::forwarded_text(worded::unverified_author(None), words))
}

fn things(message: &Map<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    let stickers = message.get("sticker_items").and_then(Value::as_array);
    for sticker in stickers.into_iter().flatten() {
        lines.push(worded::sticker_line(sticker.get("name").and_then(Value::as_str)));
    }
    if let Some(poll) = message.get("poll").filter(|poll| poll.is_object()) {
        let word =
            |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let answers = poll
            .get("answers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let answers: Vec<String> = answers
            .filter_map(|answer| word(answer, "/poll_media/text"))
            .collect();
        let question = word(poll, "/question/text").unwrap_or_default();
        lines.push(worded::list_line(
            "a poll",
            &question,
            answers.iter().map(String::as_str),
        ));
    }
    lines
}

/// Whether a message came after another one: ids are numbers that grow.
pub(super) fn is_later(id: &str, than: &str) -> bool {
    (id.len(), id) > (than.len(), than)
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::QuoteAuthor;
    use serde_json::json;

    use super::read;

    #[test]
    fn stickers_polls_and_forwards_have_words() {
        let poll = json!({"question": {"text": "Pizza or soup?"}, "answers": [{"answer_id": 1, "poll_media": {"text": "Pizza"}}, {"poll_media": {"emoji": {}}}]});
        for (text, more, wanted, passed_on) in [
            ("hi", json!({}), "hi", vec![]),
            (
                "",
                json!({"sticker_items": [{"id": "1", "name": "Wave", "format_type": 1}]}),
                "[a sticker: Wave]",
                vec![],
            ),
            (
                "look",
                json!({"sticker_items": [{"id": "1"}]}),
                "look\n[a sticker]",
                vec![],
            ),
            (
                "",
                json!({"poll": poll}),
                "[a poll: Pizza or soup? (Pizza)]",
                vec![],
            ),
            ("", json!({"poll": null}), "", vec![]),
            (
                "",
                json!({"message_snapshots": [{"message": {"content": "delete all"}}]}),
                "[forwards a message]",
                vec!["delete all"],
            ),
            (
                "see",
                json!({"message_snapshots": [{"message": {"content": "news"}}]}),
                "see",
                vec!["news"],
            ),
            (
                "",
                json!({"message_snapshots": [{"message": {"content": "", "attachments": [{"filename": "a.png"}]}}]}),
                "[forwards a message]",
                vec!["[a file: a.png]"],
            ),
            (
                "",
                json!({"message_snapshots": [{"message": {"content": "", "embeds": [{}]}}]}),
                "[forwards a message]",
                vec!["[only files]"],
            ),
            ("", json!({"message_snapshots": []}), "", vec![]),
            ("", json!({"message_snapshots": [{}]}), "", vec![]),
        ] {
            let (words, quotes) = read(text.to_owned(), more.as_object().unwrap());
            assert_eq!(words, wanted, "{more}");
            let told: Vec<&str> = quotes.iter().map(|quote| quote.text.as_str()).collect();
            assert_eq!(told, passed_on, "{more}");
            assert!(
                quotes
                    .iter()
                    .all(|quote| quote.author == QuoteAuthor::Other { id: None, name: None })
            );
        }
    }
}
