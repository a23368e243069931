//! Free text in the record. A payload stays in the chain forever and unencrypted; an event's content is encrypted in an encrypted
//! state and can be erased. So a payload holds a closed code in place of free text ([`ChainText`]), and the text is the event's
//! content ([`EventWords`]). Records of earlier versions hold the text in the payload; [`payload_with_words`] reads both forms.

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use clawk_events::ChainText;
use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical::{canonical, digest};
use crate::error::CallError;
use crate::ports::EventContent;

/// The payload field with the digest of the content that holds its text.
const WORDS_HASH: &str = "words_hash";
/// The payload field with the digest of the outcome's content.
const RESULT_HASH: &str = "result_hash";
/// Fields of an outcome's payload whose text is in the outcome itself, each with the field whose code replaces it.
const OF_RESULT: [(&str, &str); 2] = [("reason", "by"), ("error_message", "error_code")];

/// A member of a payload whose words are in the content. Closed: a content can't put anything else in a payload's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WordField {
    /// Why.
    Reason,
    /// What a person was shown.
    Shown,
}

impl WordField {
    const fn name(self) -> &'static str {
        match self {
            Self::Reason => "reason",
            Self::Shown => "shown",
        }
    }
}

/// The free text of one event, as its content holds it.
#[derive(Debug, Clone)]
pub struct EventWords {
    digest: Digest,
    bytes: Vec<u8>,
}

impl EventWords {
    /// These words belong in this member of the payload.
    pub fn new(field: WordField, text: &str) -> Self {
        let bytes = canonical(&BTreeMap::from([(field, text)]));
        Self {
            digest: digest(&bytes),
            bytes,
        }
    }

    /// The same where there may be none.
    pub fn of_reason(reason: Option<&str>) -> Option<Self> {
        reason.map(|reason| Self::new(WordField::Reason, reason))
    }

    /// For the payload's `words_hash`.
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// The digest and the bytes of the content.
    pub fn into_content(self) -> (Digest, Vec<u8>) {
        (self.digest, self.bytes)
    }
}

/// A person's reason, as an event that another crate records holds it: the payload has `stand_in` in its `reason` and the content's digest in
/// its `words_hash`.
#[derive(Debug, Clone)]
pub struct RecordedReason {
    /// For the payload's `reason`.
    pub stand_in: ChainText,
    /// The event's content.
    pub content: EventContent,
}

impl RecordedReason {
    /// These words.
    #[must_use]
    pub fn new(reason: &str) -> Self {
        let words = EventWords::new(WordField::Reason, reason);
        Self {
            stand_in: ChainText::IN_CONTENT,
            content: EventContent {
                digest: words.digest,
                bytes: words.bytes,
            },
        }
    }
}

/// For the payload's `words_hash` and for the member that the words belong in, where there may be none.
pub fn stand_in(words: Option<&EventWords>) -> (Option<ChainText>, Option<Digest>) {
    (
        words.map(|_| ChainText::IN_CONTENT),
        words.map(EventWords::digest),
    )
}

/// Returns a payload with the text of its content filled in. If the content was erased, not loaded, or is another one, the code
/// stays. A payload of an earlier version has its text already and is returned unchanged.
#[must_use]
pub fn payload_with_words<'a>(payload: &'a str, content: Option<&[u8]>) -> Cow<'a, str> {
    if !payload.contains(WORDS_HASH) && !payload.contains(RESULT_HASH) {
        return Cow::Borrowed(payload);
    }
    let Ok(mut members) = clawk_events::read_members("", payload) else {
        return Cow::Borrowed(payload); // silent-ok: what is no object has no words
    };
    put_words(&mut members, content);
    serde_json::to_string(&members).map_or(Cow::Borrowed(payload), Cow::Owned)
}

/// Returns the digest of the content that holds a payload's text.
#[must_use]
pub fn words_hash(members: &Map<String, Value>) -> Option<Digest> {
    let member = match of_result(members) {
        Some(_) => RESULT_HASH,
        None => WORDS_HASH,
    };
    Digest::from_hex(members.get(member)?.as_str()?)
}

/// Returns the field of an outcome's payload that holds a code in place of the outcome's text.
fn of_result(members: &Map<String, Value>) -> Option<&'static str> {
    let stands_in = |(member, code): &(&str, &str)| {
        members.get(*member).is_some_and(Value::is_string) && members.get(*member) == members.get(*code)
    };
    OF_RESULT.into_iter().find(stands_in).map(|(member, _)| member)
}

/// Fills the text of a content into a payload.
pub fn put_words(members: &mut Map<String, Value>, content: Option<&[u8]>) {
    let Some(hash) = words_hash(members) else { return };
    members.remove(WORDS_HASH);
    let Some(bytes) = content.filter(|bytes| digest(bytes) == hash) else {
        return;
    };
    if let Some(member) = of_result(members) {
        // silent-ok: a content of another form has no text
        if let Ok(error) = serde_json::from_slice::<CallError>(bytes) {
            members.insert(member.to_owned(), Value::String(error.to_string()));
        }
        return;
    }
    // silent-ok: a content of another form has no text
    let words: BTreeMap<WordField, String> = serde_json::from_slice(bytes).unwrap_or_default();
    for (field, text) in words {
        members.insert(field.name().to_owned(), Value::String(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str = r#"{"answer":"deny","reason":"in_content","words_hash":"HASH"}"#;

    #[test]
    fn words_stand_in_their_place_and_change_nothing_else() {
        let words = EventWords::new(WordField::Reason, "not \"today\"");
        let payload = HELD.replace("HASH", &words.digest().to_string());
        let (_, bytes) = words.into_content();
        let read = payload_with_words(&payload, Some(&bytes));
        assert_eq!(read, r#"{"answer":"deny","reason":"not \"today\""}"#);
        // Erased, another content, and a content that would say more than words.
        let bare = r#"{"answer":"deny","reason":"in_content"}"#;
        assert_eq!(payload_with_words(&payload, None), bare);
        assert_eq!(
            payload_with_words(&payload, Some(b"{\"reason\":\"forged\"}")),
            bare
        );
        let more = br#"{"answer":"approve","reason":"x"}"#;
        let payload = HELD.replace("HASH", &digest(more).to_string());
        assert_eq!(payload_with_words(&payload, Some(more)), bare);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read_as_it_is() {
        let old = r#"{"provider":"main","reason":"the server said so"}"#;
        assert_eq!(payload_with_words(old, None), old);
    }
}
