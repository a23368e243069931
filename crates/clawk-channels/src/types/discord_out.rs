//! What goes out to Discord: paths, and the body of a message.

use clawk_kernel::ports::Delivery;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::adapter::Out;
use crate::api::{Answer, seconds_ms, shown};
use crate::genuine::hex;

/// At most 25 characters that are the same for the same message.
pub(super) fn nonce(id: &str) -> String {
    hex(Sha256::digest(id.as_bytes()).get(..12).unwrap_or_default())
}

/// Whether a text is an id of the platform.
pub(super) fn number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The path of a conversation's messages; ids are numbers.
pub(super) fn messages(conversation: &str) -> Result<String, Delivery> {
    if number(conversation) {
        return Ok(format!("channels/{conversation}/messages"));
    }
    Err(Delivery::Failed {
        reason: "the conversation is not a channel's id".to_owned(),
    })
}

/// `path` is where it goes: a thread holds no reply to the message at which it begins.
pub(super) fn message(out: &Out, path: &str) -> Value {
    let mut body = json!({"content": out.text, "nonce": nonce(&out.id), "enforce_nonce": true,
        "allowed_mentions": {"parse": [], "replied_user": false}});
    let begins = |id: &&String| path == format!("channels/{id}/messages");
    let reply = out.reply_to.as_ref().filter(|id| !begins(id));
    if let (Some(reply), Some(body)) = (reply, body.as_object_mut()) {
        let reference = json!({"message_id": reply, "fail_if_not_exists": false});
        body.insert("message_reference".to_owned(), reference);
    }
    body
}

/// The platform refuses because of the message that is answered: it is gone, of another kind, or the bot may not read it.
pub(super) fn refuses_reply(status: u16, body: &Value) -> bool {
    let code = body.get("code").and_then(Value::as_u64);
    let named = body.pointer("/errors/message_reference").is_some();
    (400..500).contains(&status) && (matches!(code, Some(160_002 | 10_008)) || code == Some(50_035) && named)
}

/// Whether a message came after another one: ids are numbers that grow.
pub(super) fn is_later(id: &str, than: &str) -> bool {
    (id.len(), id) > (than.len(), than)
}

pub(super) fn said(answer: &Answer) -> String {
    shown(answer.text("/message").unwrap_or_default())
}

pub(super) fn retry_after(answer: &Answer) -> Option<u64> {
    let given = answer.body.get("retry_after").and_then(Value::as_f64);
    given.and_then(seconds_ms).or_else(|| answer.retry_after_ms())
}
