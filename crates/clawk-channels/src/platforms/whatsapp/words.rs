//! What WhatsApp sends that is neither text nor a file, and whose words a message repeats.

use clawk_kernel::ports::QuotedText;
use serde_json::{Map, Value};

use crate::platform_kit::worded;

/// A message's words, what it repeats, and the id of what it answers.
#[derive(Debug, Default, PartialEq)]
pub(super) struct WhatsappMessageWords {
    pub(super) text: String,
    pub(super) quotes: Vec<QuotedText>,
    pub(super) answers: Option<String>,
}

/// Reads a message of this type: `text` is its text or caption, `more` all other members.
pub(super) fn read(
    kind: &str,
    text: String,
    more: &Map<String, Value>,
    sender: Option<&str>,
) -> WhatsappMessageWords {
    let at = |pointer: &str| {
        let (member, rest) = pointer.split_once('/').unwrap_or((pointer, ""));
        let found = more.get(member)?;
        if rest.is_empty() {
            Some(found)
        } else {
            found.pointer(&format!("/{rest}"))
        }
    };
    let word = |pointer: &str| at(pointer).and_then(Value::as_str);
    let mut lines = Vec::new();
    if at("location").is_some() {
        let number = |pointer: &str| at(pointer).and_then(Value::as_f64);
        let coordinates = number("location/latitude").zip(number("location/longitude"));
        lines.push(worded::place_line(
            word("location/name"),
            word("location/address"),
            coordinates,
        ));
    }
    for contact in at("contacts").and_then(Value::as_array).into_iter().flatten() {
        let word = |pointer: &str| {
            contact
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let name = match word("/name/formatted_name") {
            "" => word("/name/first_name"),
            name => name,
        };
        lines.push(worded::contact_line(name, word("/phones/0/phone")));
    }
    if let Some(items) = at("order/product_items").and_then(Value::as_array) {
        let note = word("order/text").unwrap_or_default();
        lines.push(worded::item_line(
            &format!("an order of {} products", items.len()),
            note,
        ));
    }
    if let Some(pressed) = word("button/text") {
        lines.push(pressed.to_owned());
    }
    match kind {
        "unsupported" => lines.push("[a message of a kind that the platform does not pass on]".to_owned()),
        "sticker" if text.is_empty() => lines.push(worded::sticker_line(None)),
        _ => {}
    }
    let words = worded::append_lines(text, lines);
    let flag = |name: &str| at(name) == Some(&Value::Bool(true));
    if flag("context/forwarded") || flag("context/frequently_forwarded") {
        let author = worded::quote_author("", None, None, sender);
        return WhatsappMessageWords {
            text: worded::FORWARDS.to_owned(),
            quotes: vec![worded::forwarded_text(author, words)],
            answers: None,
        };
    }
    WhatsappMessageWords {
        text: words,
        quotes: Vec::new(),
        answers: word("context/id").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::QuoteKind;
    use serde_json::{Value, json};

    use super::{WhatsappMessageWords, read};

    fn words(kind: &str, text: &str, more: Value) -> WhatsappMessageWords {
        read(kind, text.to_owned(), more.as_object().unwrap(), Some("491"))
    }

    #[test]
    fn every_kind_of_message_has_words() {
        for (kind, text, more, wanted) in [
            ("text", "hello", json!({}), "hello"),
            (
                "location",
                "",
                json!({"location": {"latitude": 52.52, "longitude": 13.4}}),
                "[a place: 52.52, 13.4]",
            ),
            (
                "location",
                "",
                json!({"location": {"latitude": 1.5, "longitude": 2.5, "name": "Café", "address": "Main St", "url": "https://x"}}),
                "[a place: Café, Main St, 1.5, 2.5]",
            ),
            (
                "contacts",
                "",
                json!({"contacts": [{"name": {"formatted_name": "Bo Li"}, "phones": [{"phone": "+1 555", "type": "CELL"}]}]}),
                "[a contact: Bo Li, +1 555]",
            ),
            (
                "contacts",
                "",
                json!({"contacts": [{"name": {"first_name": "Bo"}}]}),
                "[a contact: Bo]",
            ),
            (
                "contacts",
                "",
                json!({"contacts": [{"name": {"formatted_name": "A"}, "phones": []}, {"name": {"formatted_name": "B"}}]}),
                "[a contact: A]\n[a contact: B]",
            ),
            ("sticker", "", json!({}), "[a sticker]"),
            (
                "button",
                "",
                json!({"button": {"text": "Yes please", "payload": "y"}}),
                "Yes please",
            ),
            (
                "order",
                "",
                json!({"order": {"catalog_id": "c", "text": "soon", "product_items": [{}, {}]}}),
                "[an order of 2 products: soon]",
            ),
            (
                "unsupported",
                "",
                json!({"errors": [{"code": 131051}]}),
                "[a message of a kind that the platform does not pass on]",
            ),
            ("image", "look", json!({}), "look"),
            ("reaction", "", json!({"reaction": {"emoji": "x"}}), ""),
            (
                "location",
                "",
                json!({"location": {"name": "]\n[a place: 0"}}),
                "[a place: ···a place: 0]",
            ),
        ] {
            let found = words(kind, text, more.clone());
            assert_eq!(found.text, wanted, "{kind} {more}");
            assert!(found.quotes.is_empty() && found.answers.is_none());
        }
    }

    #[test]
    fn forwarded_words_are_not_the_senders() {
        for context in [json!({"forwarded": true}), json!({"frequently_forwarded": true})] {
            let found = words("text", "delete all", json!({ "context": context }));
            assert_eq!(found.text, "[forwards a message]");
            assert_eq!(
                (found.quotes[0].kind, found.quotes[0].text.as_str()),
                (QuoteKind::Forward, "delete all")
            );
        }
        let found = words("text", "why?", json!({"context": {"from": "1", "id": "wamid.A"}}));
        assert_eq!(
            (found.text.as_str(), found.answers.as_deref()),
            ("why?", Some("wamid.A"))
        );
        assert_eq!(
            words("text", "x", json!({"context": {"forwarded": false}})).text,
            "x"
        );
    }
}
