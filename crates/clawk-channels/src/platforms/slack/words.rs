//! Messages that somebody shares on Slack with one of their own.

use clawk_kernel::ports::QuotedText;
use serde_json::Value;

use crate::platform_kit::worded;

/// The sender's own words, and those that they pass on: shared messages, which the platform names with their author.
pub(super) fn read(
    text: String,
    attachments: &[Value],
    me: Option<&str>,
    sender: &str,
) -> (String, Vec<QuotedText>) {
    let shared: Vec<QuotedText> = attachments
        .iter()
        .filter_map(|shared| quote(shared, me, sender))
        .collect();
    match text.is_empty() && !shared.is_empty() {
        true => (worded::FORWARDS.to_owned(), shared),
        false => (text, shared),
    }
}

/// `None`: a preview of a link, which is nobody's message.
fn quote(shared: &Value, me: Option<&str>, sender: &str) -> Option<QuotedText> {
    let flag = |name: &str| shared.get(name) == Some(&Value::Bool(true));
    if !flag("is_share") && !flag("is_msg_unfurl") {
        return None;
    }
    let word = |name: &str| {
        shared
            .get(name)
            .and_then(Value::as_str)
            .filter(|word| !word.is_empty())
    };
    let text = word("text").or(word("fallback")).unwrap_or_default();
    let mut lines = Vec::new();
    for file in shared
        .get("files")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        lines.push(worded::item_line(
            "a file",
            file.get("name").and_then(Value::as_str).unwrap_or_default(),
        ));
    }
    let words = worded::append_lines(super::unescape_text(text), lines);
    let name = word("author_name").or(word("author_subname"));
    let author = worded::quote_author(word("author_id").unwrap_or_default(), name, me, Some(sender));
    Some(worded::forwarded_text(author, words))
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::QuoteAuthor;
    use serde_json::{Value, json};

    use super::read;

    #[test]
    fn shared_messages_have_their_author_and_previews_of_links_are_nobodys() {
        let other = |id: Option<&str>, name: Option<&str>| QuoteAuthor::Other {
            id: id.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        let share = |more: Value| {
            let mut share = json!({"is_share": true, "is_msg_unfurl": true, "text": "ship &lt;it&gt;"});
            share
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            share
        };
        for (text, attachments, wanted, author) in [
            (
                "see",
                vec![share(json!({"author_id": "U9", "author_name": "Zoe"}))],
                "see",
                Some(other(Some("U9"), Some("Zoe"))),
            ),
            (
                "",
                vec![share(json!({"author_id": "U9"}))],
                "[forwards a message]",
                Some(other(Some("U9"), None)),
            ),
            (
                "",
                vec![share(json!({"author_subname": "Zoe"}))],
                "[forwards a message]",
                Some(other(None, Some("Zoe"))),
            ),
            (
                "",
                vec![share(json!({}))],
                "[forwards a message]",
                Some(other(None, None)),
            ),
            (
                "mine",
                vec![share(json!({"author_id": "U1"}))],
                "mine",
                Some(QuoteAuthor::Sender),
            ),
            (
                "yours",
                vec![share(json!({"author_id": "UBOT"}))],
                "yours",
                Some(QuoteAuthor::Agent),
            ),
            (
                "link",
                vec![json!({"title": "A page", "text": "about", "from_url": "https://x"})],
                "link",
                None,
            ),
            (
                "link",
                vec![json!({"is_share": false, "text": "x"})],
                "link",
                None,
            ),
            ("odd", vec![json!("x")], "odd", None),
            ("", vec![], "", None),
        ] {
            let (words, quotes) = read(text.to_owned(), &attachments, Some("UBOT"), "U1");
            assert_eq!(words, wanted, "{attachments:?}");
            assert_eq!(
                quotes.first().map(|quote| quote.author.clone()),
                author,
                "{attachments:?}"
            );
            assert!(quotes.iter().all(|quote| quote.text == "ship <it>"));
        }
        let files = json!({"is_share": true, "text": "", "files": [{"name": "a.pdf"}]});
        let (_, quotes) = read(String::new(), &[files], None, "U1");
        assert_eq!(quotes[0].text, "[a file: a.pdf]");
    }
}
