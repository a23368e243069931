//! The words of Lark's messages, in and out.

use serde_json::Value;

use crate::adapter::{Attachment, Content};

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
            content: Content::At(format!("{of} {message} {key}")),
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
        _ => (String::new(), Vec::new()),
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
