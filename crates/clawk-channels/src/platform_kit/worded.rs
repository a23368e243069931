//! What platforms send that is neither text nor a file, in words: one wording for all of them. Each is one line in brackets; nothing in
//! it can end the line or begin another one.

use clawk_kernel::ports::{QuoteAuthor, QuoteKind, QuotedText};

use crate::plain_name::harmless;

/// Options of a poll that are told.
const MAX_ITEMS: usize = 12;
/// What a message says whose words are another's.
pub(crate) const FORWARDS: &str = "[forwards a message]";

/// A place by its name, address and coordinates, as far as they are known.
pub(crate) fn place_line(name: Option<&str>, address: Option<&str>, at: Option<(f64, f64)>) -> String {
    let words = [name, address].into_iter().flatten();
    let mut parts: Vec<String> = words
        .filter(|text| !text.trim().is_empty())
        .map(harmless)
        .collect();
    parts.extend(at.map(|(latitude, longitude)| format!("{latitude}, {longitude}")));
    bracketed_line("a place", &parts.join(", "))
}

/// A contact by its name and number.
pub(crate) fn contact_line(name: &str, number: &str) -> String {
    let parts: Vec<String> = [name.trim(), number.trim()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .map(harmless)
        .collect();
    bracketed_line("a contact", &parts.join(", "))
}

/// A sticker by its emoji or its name.
pub(crate) fn sticker_line(name: Option<&str>) -> String {
    bracketed_line("a sticker", &name.map(harmless).unwrap_or_default())
}

/// A poll, or another list with a title.
pub(crate) fn list_line<'a>(what: &str, title: &str, items: impl IntoIterator<Item = &'a str>) -> String {
    let told: Vec<String> = items.into_iter().take(MAX_ITEMS).map(harmless).collect();
    let told = match told.is_empty() {
        true => String::new(),
        false => format!(" ({})", told.join(" / ")),
    };
    bracketed_line(what, &format!("{}{told}", harmless(title)))
}

/// Anything else by its name.
pub(crate) fn item_line(what: &str, name: &str) -> String {
    bracketed_line(what, &harmless(name))
}

fn bracketed_line(what: &str, told: &str) -> String {
    match told.trim() {
        "" => format!("[{what}]"),
        told => format!("[{what}: {told}]"),
    }
}

/// A text and lines in brackets below it.
pub(crate) fn append_lines(text: String, lines: Vec<String>) -> String {
    let own = (!text.is_empty()).then_some(text);
    own.into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// Words that the sender passes on.
pub(crate) fn forwarded_text(author: QuoteAuthor, words: String) -> QuotedText {
    let words = match words.is_empty() {
        true => "[only files]".to_owned(),
        false => words,
    };
    quoted_text(QuoteKind::Forward, author, words)
}

pub(crate) const fn quoted_text(kind: QuoteKind, author: QuoteAuthor, text: String) -> QuotedText {
    QuotedText { kind, author, text }
}

/// Somebody by what the platform says of them. `me`: the agent's id there; `sender`: the id of who sent the message.
pub(crate) fn quote_author(
    id: &str,
    name: Option<&str>,
    me: Option<&str>,
    sender: Option<&str>,
) -> QuoteAuthor {
    match id {
        "" => unverified_author(name),
        id if me == Some(id) => QuoteAuthor::Agent,
        id if sender == Some(id) => QuoteAuthor::Sender,
        id => QuoteAuthor::Other {
            id: Some(id.to_owned()),
            name: name.map(str::to_owned),
        },
    }
}

/// A request without a member; `None`: it has none of this name.
pub(crate) fn without_member(params: &serde_json::Value, name: &str) -> Option<serde_json::Value> {
    let mut params = params.clone();
    params.as_object_mut()?.remove(name)?;
    Some(params)
}

/// Somebody whom the platform does not vouch for.
pub(crate) fn unverified_author(name: Option<&str>) -> QuoteAuthor {
    QuoteAuthor::Other {
        id: None,
        name: name.map(str::to_owned),
    }
}
