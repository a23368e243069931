//! The words and files of an event of Matrix.

use clawk_kernel::ports::{QuoteKind, QuotedText};
use serde_json::Value;

use crate::adapter::{Attachment, AttachmentContent};
use crate::platform_kit::worded;

/// What a person said.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MatrixMessageContent {
    pub(super) text: String,
    pub(super) attachments: Vec<Attachment>,
    /// The message that it answers, as the sender's program repeats it.
    pub(super) answered: Option<QuotedText>,
}

/// Reads an event of this type. `None`: no person said anything.
pub(super) fn read(kind: &str, content: &Value, is_answer: bool) -> Option<MatrixMessageContent> {
    let text = |pointer: &str| content.pointer(pointer).and_then(Value::as_str);
    let body = text("/body").unwrap_or_default();
    let only = |text: String| {
        Some(MatrixMessageContent {
            text,
            ..MatrixMessageContent::default()
        })
    };
    match kind {
        "m.room.message" => {}
        "m.sticker" => return only(worded::sticker_line(Some(body).filter(|body| !body.is_empty()))),
        "m.poll.start" | "org.matrix.msc3381.poll.start" => return only(poll(content)?),
        _ => return None,
    }
    match text("/msgtype")? {
        // Bots speak in notices, and no bot answers one.
        "m.notice" => None,
        "m.text" | "m.emote" => {
            let (answered, own) = if is_answer { fallback(body) } else { (None, body) };
            Some(MatrixMessageContent {
                text: own.to_owned(),
                attachments: Vec::new(),
                answered,
            })
        }
        "m.location" => {
            let uri = text("/geo_uri").unwrap_or_default();
            only(worded::place_line(Some(body), None, coordinates(uri)))
        }
        "m.image" | "m.file" | "m.audio" | "m.video" => {
            // With a name beside it, the body is what was said of it.
            let caption = text("/filename").filter(|name| *name != body).map(|_| body);
            let attachment = Attachment {
                name: text("/filename").unwrap_or(body).to_owned(),
                media_type: text("/info/mimetype").unwrap_or_default().to_owned(),
                size: content.pointer("/info/size").and_then(Value::as_u64),
                content: text("/url").map_or(AttachmentContent::Absent, |url| {
                    AttachmentContent::At(url.to_owned())
                }),
            };
            Some(MatrixMessageContent {
                text: caption.unwrap_or_default().to_owned(),
                attachments: vec![attachment],
                answered: None,
            })
        }
        _ => None,
    }
}

/// Older programs repeat what is answered in front of the answer: `> <@who:where> words`, and an empty line. Anybody can write that,
/// so that it is nobody's words for sure.
fn fallback(body: &str) -> (Option<QuotedText>, &str) {
    let mut rest = body;
    let mut repeated = Vec::new();
    while let Some(line) = rest.strip_prefix('>') {
        let (line, after) = line.split_once('\n').unwrap_or((line, ""));
        repeated.push(line.strip_prefix(' ').unwrap_or(line));
        rest = after;
    }
    let rest = rest.strip_prefix('\n').unwrap_or(rest);
    if repeated.is_empty() || rest.trim().is_empty() {
        return (None, body);
    }
    let words = repeated.join("\n");
    let (name, words) = match words.strip_prefix("* ").unwrap_or(&words).strip_prefix('<') {
        Some(named) => match named.split_once("> ") {
            Some((name, words)) => (Some(name.to_owned()), words.to_owned()),
            None => (None, words),
        },
        None => (None, words),
    };
    let author = worded::unverified_author(name.as_deref());
    (Some(worded::quoted_text(QuoteKind::Reply, author, words)), rest)
}

/// `geo:52.52,13.40;u=35`.
fn coordinates(uri: &str) -> Option<(f64, f64)> {
    let (place, _) = uri
        .strip_prefix("geo:")?
        .split_once(';')
        .unwrap_or((uri.strip_prefix("geo:")?, ""));
    let mut numbers = place.split(',').map(|number| number.trim().parse::<f64>().ok()); // silent-ok: then the place has its name alone
    Some((numbers.next()??, numbers.next()??))
}

fn poll(content: &Value) -> Option<String> {
    let poll = ["m.poll", "m.poll.start", "org.matrix.msc3381.poll.start"];
    let poll = poll.iter().find_map(|name| content.get(*name))?;
    let wording = |value: &Value| {
        let plain = ["/org.matrix.msc1767.text", "/body", "/m.text/0/body", "/m.text"];
        let found = plain.iter().find_map(|pointer| value.pointer(pointer)?.as_str());
        found.unwrap_or_default().to_owned()
    };
    let question = poll.get("question").map(&wording).unwrap_or_default();
    let answers = poll
        .get("answers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let answers: Vec<String> = answers.map(&wording).collect();
    Some(worded::list_line(
        "a poll",
        &question,
        answers.iter().map(String::as_str),
    ))
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::QuoteAuthor;
    use serde_json::{Value, json};

    use super::read;

    fn text(kind: &str, content: Value) -> Option<String> {
        read(kind, &content, false).map(|read| read.text)
    }

    #[test]
    fn every_kind_of_event_has_words_or_is_nobodys() {
        let say = |msgtype: &str, body: &str| json!({"msgtype": msgtype, "body": body});
        for (kind, content, wanted) in [
            ("m.room.message", say("m.text", "hello"), Some("hello")),
            ("m.room.message", say("m.emote", "waves"), Some("waves")),
            ("m.room.message", say("m.notice", "bot"), None),
            (
                "m.room.message",
                json!({"msgtype": "m.location", "body": "Home", "geo_uri": "geo:52.52,13.4;u=35"}),
                Some("[a place: Home, 52.52, 13.4]"),
            ),
            (
                "m.room.message",
                json!({"msgtype": "m.location", "body": "", "geo_uri": "geo:1.5,-2"}),
                Some("[a place: 1.5, -2]"),
            ),
            (
                "m.room.message",
                json!({"msgtype": "m.location", "body": "Home", "geo_uri": "geo:x"}),
                Some("[a place: Home]"),
            ),
            (
                "m.sticker",
                json!({"body": "thumbs up", "url": "mxc://a/b"}),
                Some("[a sticker: thumbs up]"),
            ),
            ("m.sticker", json!({}), Some("[a sticker]")),
            (
                "m.poll.start",
                json!({"m.poll": {"question": {"m.text": [{"body": "Pizza?"}]}, "answers": [{"m.text": [{"body": "Yes"}]}]}}),
                Some("[a poll: Pizza? (Yes)]"),
            ),
            (
                "org.matrix.msc3381.poll.start",
                json!({"org.matrix.msc3381.poll.start": {"question": {"org.matrix.msc1767.text": "Soup?"}, "answers": [{"org.matrix.msc1767.text": "No"}]}}),
                Some("[a poll: Soup? (No)]"),
            ),
            ("m.poll.start", json!({}), None),
            ("m.reaction", json!({}), None),
            ("m.room.member", json!({"body": "x", "msgtype": "m.text"}), None),
            ("m.room.message", json!({"body": "no type"}), None),
        ] {
            assert_eq!(text(kind, content.clone()).as_deref(), wanted, "{kind} {content}");
        }
        let file = read(
            "m.room.message",
            &json!({"msgtype": "m.image", "body": "look", "filename": "a.png", "url": "mxc://a/b"}),
            false,
        );
        let file = file.unwrap();
        assert_eq!(
            (file.text.as_str(), file.attachments[0].name.as_str()),
            ("look", "a.png")
        );
    }

    #[test]
    fn what_an_old_program_repeats_is_not_the_senders() {
        for (body, own, name, repeated) in [
            (
                "> <@zoe:x> the lamp\n\nwhy?",
                "why?",
                Some("@zoe:x"),
                Some("the lamp"),
            ),
            (
                "> <@zoe:x> one\n> two\n\nwhy?\nnow",
                "why?\nnow",
                Some("@zoe:x"),
                Some("one\ntwo"),
            ),
            ("> * <@zoe:x> waves\n\nhi", "hi", Some("@zoe:x"), Some("waves")),
            ("> no name\n\nhi", "hi", None, Some("no name")),
            ("> all is quoted", "> all is quoted", None, None),
            ("plain", "plain", None, None),
        ] {
            let read = read(
                "m.room.message",
                &json!({"msgtype": "m.text", "body": body}),
                true,
            )
            .unwrap();
            assert_eq!(read.text, own);
            assert_eq!(
                read.answered.as_ref().map(|quote| quote.text.as_str()),
                repeated,
                "{body}"
            );
            if let Some(quote) = read.answered {
                let name = name.map(str::to_owned);
                assert_eq!(quote.author, QuoteAuthor::Other { id: None, name });
            }
        }
        // Who answers nothing may quote with the same signs: it is all their own.
        assert_eq!(
            text(
                "m.room.message",
                json!({"msgtype": "m.text", "body": "> <@a:x> b\n\nc"})
            )
            .as_deref(),
            Some("> <@a:x> b\n\nc")
        );
    }
}
