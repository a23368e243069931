//! The words of Lark's messages, in and out.

use serde_json::Value;

use crate::adapter::{Attachment, AttachmentContent};
use crate::platform_kit::worded;

/// Text and files of a message.
pub(super) fn read(kind: &str, content: &Value, message: &str) -> (String, Vec<Attachment>) {
    let text = |name: &str| {
        let text = content.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let file = |name: String, media_type: &str, of: &str, key: String| {
        vec![Attachment {
            name,
            media_type: media_type.to_owned(),
            size: None,
            content: AttachmentContent::At(format!("{of} {message} {key}")),
        }]
    };
    match kind {
        "text" => (text("text"), Vec::new()),
        "post" => (post_text(content), Vec::new()),
        "image" => {
            let image = file("an image".to_owned(), "image/jpeg", "image", text("image_key"));
            (String::new(), image)
        }
        "file" | "audio" | "media" => {
            let name = text("file_name");
            let name = if name.is_empty() { kind.to_owned() } else { name };
            (String::new(), file(name, kind, "file", text("file_key")))
        }
        _ => (thing(kind, content), Vec::new()),
    }
}

/// What is neither text nor a file, in words; empty: nothing that a person said.
fn thing(kind: &str, content: &Value) -> String {
    let word = |name: &str| content.get(name).and_then(Value::as_str);
    // Numbers come as texts.
    let number = |name: &str| {
        let found = content.get(name)?;
        found.as_f64().or_else(|| found.as_str()?.parse().ok()) // silent-ok: then the place has its name alone
    };
    match kind {
        "location" => worded::place_line(word("name"), None, number("latitude").zip(number("longitude"))),
        "sticker" => worded::sticker_line(None),
        "share_user" => worded::contact_line("", word("user_id").unwrap_or_default()),
        "share_chat" => worded::item_line("a group's card", word("chat_id").unwrap_or_default()),
        "vote" => {
            let options = content.get("options").and_then(Value::as_array);
            let options = options.into_iter().flatten().filter_map(Value::as_str);
            worded::list_line("a poll", word("topic").unwrap_or_default(), options)
        }
        "todo" => worded::item_line(
            "a task",
            &content.get("summary").map(post_text).unwrap_or_default(),
        ),
        "share_calendar_event" | "calendar" | "general_calendar" => {
            worded::item_line("a calendar entry", word("summary").unwrap_or_default())
        }
        "video_chat" => worded::item_line("a video meeting", word("topic").unwrap_or_default()),
        "hongbao" => worded::item_line("a red packet", word("text").unwrap_or_default()),
        // The platform passes on that messages are forwarded, and not their words.
        "merge_forward" => "[forwards several messages, which the platform does not pass on]".to_owned(),
        "interactive" => worded::item_line("a card", word("title").unwrap_or_default()),
        _ => String::new(),
    }
}

/// The words of a rich text.
fn post_text(content: &Value) -> String {
    let mut lines = vec![
        content
            .get("title")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
    ];
    for line in content
        .get("content")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let words = line.as_array().into_iter().flatten().filter_map(|part| {
            let name = if part.get("tag")?.as_str()? == "at" {
                "user_id"
            } else {
                "text"
            };
            part.get(name)?.as_str()
        });
        lines.push(words.collect());
    }
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

/// Markdown in which nothing names a person: the platform reads `<at …>` in a text.
pub(super) fn harmless(markdown: &str) -> String {
    let mut whole = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once('<') {
        whole.push_str(before);
        let name = after.trim_start_matches('/').get(..2).unwrap_or_default();
        whole.push(if name.eq_ignore_ascii_case("at") {
            '\u{ff1c}'
        } else {
            '<'
        });
        rest = after;
    }
    whole.push_str(rest);
    whole
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::read;

    #[test]
    fn what_is_no_text_becomes_words() {
        for (kind, content, wanted) in [
            ("text", json!({"text": "hello"}), "hello"),
            (
                "location",
                json!({"name": "Café", "latitude": "52.52", "longitude": "13.4"}),
                "[a place: Café, 52.52, 13.4]",
            ),
            (
                "location",
                json!({"latitude": 1.5, "longitude": 2.5}),
                "[a place: 1.5, 2.5]",
            ),
            (
                "location",
                json!({"name": "Café", "latitude": "x"}),
                "[a place: Café]",
            ),
            ("sticker", json!({"file_key": "k"}), "[a sticker]"),
            ("share_user", json!({"user_id": "ou_1"}), "[a contact: ou_1]"),
            ("share_chat", json!({"chat_id": "oc_1"}), "[a group's card: oc_1]"),
            (
                "vote",
                json!({"topic": "Lunch?", "options": ["Pizza", "Soup"]}),
                "[a poll: Lunch? (Pizza / Soup)]",
            ),
            (
                "todo",
                json!({"summary": {"title": "", "content": [[{"tag": "text", "text": "pack"}]]}, "due_time": "1"}),
                "[a task: pack]",
            ),
            (
                "share_calendar_event",
                json!({"summary": "Trip", "start_time": "1"}),
                "[a calendar entry: Trip]",
            ),
            (
                "video_chat",
                json!({"topic": "Standup"}),
                "[a video meeting: Standup]",
            ),
            (
                "hongbao",
                json!({"text": "[red packet]"}),
                "[a red packet: ·red packet·]",
            ),
            (
                "merge_forward",
                json!({"content": "Merged and Forwarded Message"}),
                "[forwards several messages, which the platform does not pass on]",
            ),
            (
                "interactive",
                json!({"title": "Card", "elements": []}),
                "[a card: Card]",
            ),
            ("system", json!({"template": "joined"}), ""),
            ("text", Value::Null, ""),
        ] {
            let (text, files) = read(kind, &content, "om_1");
            assert_eq!((text.as_str(), files.len()), (wanted, 0), "{kind} {content}");
        }
    }
}
