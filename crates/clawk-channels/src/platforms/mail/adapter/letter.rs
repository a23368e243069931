//! A mail, read: who wrote it, which thread it is of, what it says, which files are beside it, and whether a machine wrote it. Pure.

use std::borrow::Cow;

use bytes::Bytes;
use mail_parser::{Address, HeaderValue, Message, MessageParser, MimeHeaders as _, PartType};
use sha2::{Digest as _, Sha256};

use super::visible_html::visible_text;
use super::vouched::{is_sender_authenticated, raw_headers};
use crate::adapter::{Attachment, AttachmentContent};
use crate::genuine::to_hex;

/// Parts of a mail; more is refused.
const MAX_PARTS: usize = 100;
/// Bytes of the header block; more is refused.
const MAX_HEADER_BYTES: usize = 256 << 10;
/// Bytes of a Message-ID; a longer one is replaced by its digest.
const MAX_ID_BYTES: usize = 400;
/// Ids of a thread that are kept from its start and from its end.
const MAX_REFERENCES: usize = 20;
/// The header that this program writes into its own mail.
pub(super) const LOOP: &str = "X-Clawk-Loop";

/// A mail for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InboundMail {
    /// Message-ID without brackets, or `sha256:` of the raw mail where it has none.
    pub(super) id: String,
    /// The thread: the first id of `References`, else `In-Reply-To`, else [`Self::id`].
    pub(super) thread: String,
    /// All ids of the thread, this one last.
    pub(super) references: Vec<String>,
    /// The address in `From`, in lower case. On its own it is no identity.
    pub(super) from: String,
    /// What the sender calls themselves.
    pub(super) name: Option<String>,
    /// The receiving server vouches for `from`.
    pub(super) vouched: bool,
    pub(super) subject: String,
    pub(super) text: String,
    pub(super) attachments: Vec<Attachment>,
}

/// What a mail is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParsedMail {
    /// For the agent.
    Letter(Box<InboundMail>),
    /// Never answered; the sender's address as far as it can be read, and why.
    Refused { from: String, reason: &'static str },
    /// A report that a mail of ours was not delivered: that mail's id, and the report's own words.
    Bounce { of: String, reason: String },
}

/// Reads a mail. `me` is the agent's own address; `authserv_id` names the server whose verdicts count.
pub(super) fn read(raw: &[u8], me: &str, authserv_id: Option<&str>) -> ParsedMail {
    let refused = |from: &str, reason| ParsedMail::Refused {
        from: from.to_owned(),
        reason,
    };
    let head = raw
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap_or(raw.len());
    if head > MAX_HEADER_BYTES {
        return refused("", "the mail's header block is too large");
    }
    let Some(mail) = MessageParser::default().parse(raw) else {
        return refused("", "the mail can't be read");
    };
    let from = match sender_addresses(&mail).as_slice() {
        [one] => one.clone(),
        [] => return refused("", "the mail names no sender"),
        _ => return refused("", "the mail names several senders"),
    };
    if mail.parts.len() > MAX_PARTS {
        return refused(&from.0, "the mail has too many parts");
    }
    if let Some(bounce) = parse_bounce(&mail) {
        return bounce;
    }
    if let Some(reason) = automation_reason(&mail, &from.0, me) {
        return refused(&from.0, reason);
    }
    if is_encrypted(&mail) {
        return refused(&from.0, "the mail is encrypted");
    }
    let id = mail
        .message_id()
        .map_or_else(|| format!("sha256:{}", to_hex(&Sha256::digest(raw))), sanitize_id);
    let mut references = message_ids(mail.references());
    if references.is_empty() {
        references = message_ids(mail.in_reply_to());
    }
    references.retain(|known| *known != id);
    let thread = references.first().cloned().unwrap_or_else(|| id.clone());
    references.push(id.clone());
    let last = references.len().saturating_sub(MAX_REFERENCES);
    let references = references
        .into_iter()
        .enumerate()
        .filter(|(n, _)| *n < MAX_REFERENCES || *n >= last)
        .map(|(_, id)| id)
        .collect();
    let results = raw_headers(raw, "Authentication-Results");
    ParsedMail::Letter(Box::new(InboundMail {
        vouched: authserv_id.is_some_and(|server| is_sender_authenticated(&results, server, &from.0)),
        id,
        thread,
        references,
        from: from.0,
        name: from.1,
        subject: one_line(mail.subject().unwrap_or_default()),
        text: body_text(&mail),
        attachments: mail.attachments().map(attachment_from_part).collect(),
    }))
}

/// Every address of every `From`.
fn sender_addresses(mail: &Message<'_>) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for value in mail.header_values("From") {
        if let HeaderValue::Address(address) = value {
            found.extend(flatten_addresses(address));
        }
    }
    found
}

fn flatten_addresses(address: &Address<'_>) -> Vec<(String, Option<String>)> {
    address
        .iter()
        .map(|one| {
            let email = one.address().unwrap_or_default().trim().to_lowercase();
            (email, one.name().map(one_line))
        })
        .filter(|(email, _)| is_address(email))
        .collect()
}

/// An address that may stand in an envelope: one `@`, no blanks, no control characters, nothing that could end a header.
pub(super) fn is_address(text: &str) -> bool {
    let plain = |c: char| {
        !c.is_whitespace() && !c.is_control() && !matches!(c, '<' | '>' | ',' | ';' | '"' | '\\' | '(' | ')')
    };
    let Some((local, domain)) = text.split_once('@') else {
        return false;
    };
    !local.is_empty()
        && local.len() <= 64
        && !domain.is_empty()
        && domain.len() <= 255
        && !domain.contains('@')
        && text.chars().all(plain)
}

fn sanitize_id(id: &str) -> String {
    let plain: String = id
        .chars()
        .filter(|c| !c.is_control() && !c.is_whitespace() && !matches!(c, '<' | '>'))
        .collect();
    if plain.is_empty() || plain.len() > MAX_ID_BYTES {
        return format!("sha256:{}", to_hex(&Sha256::digest(id.as_bytes())));
    }
    plain
}

fn message_ids(value: &HeaderValue<'_>) -> Vec<String> {
    match value {
        HeaderValue::Text(id) => vec![sanitize_id(id)],
        HeaderValue::TextList(all) => all.iter().take(1_000).map(|id| sanitize_id(id)).collect(),
        _ => Vec::new(),
    }
}

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(300)
        .collect::<String>()
        .trim()
        .to_owned()
}

fn header_text<'m>(mail: &'m Message<'_>, name: &str) -> Option<String> {
    let value: &'m HeaderValue<'_> = mail.header(name.to_owned())?;
    Some(value.as_text().unwrap_or_default().trim().to_ascii_lowercase())
}

/// Why a mail is of a machine, and is never answered (RFC 3834).
fn automation_reason(mail: &Message<'_>, from: &str, me: &str) -> Option<&'static str> {
    if header_text(mail, "Auto-Submitted")
        .is_some_and(|value| value.split(';').next().unwrap_or_default().trim() != "no")
    {
        return Some("a machine wrote the mail (Auto-Submitted)");
    }
    if header_text(mail, "Precedence")
        .is_some_and(|value| matches!(value.as_str(), "bulk" | "junk" | "list" | "auto_reply"))
    {
        return Some("the mail was sent in bulk (Precedence)");
    }
    if ["List-Id", "List-Unsubscribe", "List-Post"]
        .iter()
        .any(|name| mail.header((*name).to_owned()).is_some())
    {
        return Some("the mail comes from a list");
    }
    if ["X-Autoreply", "X-Autorespond"]
        .iter()
        .any(|name| mail.header((*name).to_owned()).is_some())
    {
        return Some("a machine wrote the mail (X-Autoreply)");
    }
    let suppressed = header_text(mail, "X-Auto-Response-Suppress");
    if suppressed.is_some_and(|value| {
        ["all", "autoreply", "oof"]
            .iter()
            .any(|word| value.contains(word))
    }) {
        return Some("the mail wants no automatic answer (X-Auto-Response-Suppress)");
    }
    if header_text(mail, LOOP).is_some() {
        return Some("an agent wrote the mail (X-Clawk-Loop)");
    }
    if header_text(mail, "Return-Path").is_some_and(|value| matches!(value.as_str(), "" | "<>")) {
        return Some("the mail has an empty envelope sender");
    }
    let local = from.split('@').next().unwrap_or_default();
    if matches!(
        local,
        "mailer-daemon" | "postmaster" | "noreply" | "no-reply" | "donotreply" | "do-not-reply"
    ) {
        return Some("the sender's address takes no answers");
    }
    if from.eq_ignore_ascii_case(me) {
        return Some("the mail is the agent's own");
    }
    None
}

fn is_kind(mail: &Message<'_>, kind: &str, subtype: &str) -> bool {
    let Some(found) = mail.content_type() else {
        return false;
    };
    found.ctype().eq_ignore_ascii_case(kind)
        && found
            .subtype()
            .is_some_and(|found| found.eq_ignore_ascii_case(subtype))
}

fn is_encrypted(mail: &Message<'_>) -> bool {
    let wrapped = mail.content_type().is_some_and(|kind| {
        let smime = kind
            .subtype()
            .is_some_and(|sub| matches!(sub.to_ascii_lowercase().as_str(), "pkcs7-mime" | "x-pkcs7-mime"));
        kind.ctype().eq_ignore_ascii_case("application") && smime
    });
    wrapped || is_kind(mail, "multipart", "encrypted")
}

/// A report about a mail of ours (RFC 3464). Anyone can forge one: the caller matches the id against mail that it sent.
fn parse_bounce(mail: &Message<'_>) -> Option<ParsedMail> {
    if !is_kind(mail, "multipart", "report") {
        return None;
    }
    let mut of = None;
    let mut status = String::new();
    for part in &mail.parts {
        let body = part.contents();
        let text = String::from_utf8_lossy(body.get(..body.len().min(16_384)).unwrap_or(body));
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            match name.trim().to_ascii_lowercase().as_str() {
                "message-id" => of = Some(sanitize_id(value.trim())),
                "status" | "action" => status = format!("{status} {}", one_line(value)),
                _ => {}
            }
        }
    }
    Some(ParsedMail::Bounce {
        of: of.unwrap_or_default(),
        reason: one_line(&status),
    })
}

/// What it says: plain text, else what a person sees of its HTML. What was quoted or hidden is named, and left out.
fn body_text(mail: &Message<'_>) -> String {
    let shown = match mail.text_part(0).map(|part| &part.body) {
        Some(PartType::Html(html)) => Some(visible_text(html)),
        Some(_) | None => None,
    };
    let (body, hid) = match shown {
        Some((text, hid)) => (Cow::Owned(text), hid),
        None => (mail.body_text(0).unwrap_or_default(), false),
    };
    let mut lines = Vec::new();
    let mut quoted = 0_usize;
    for line in body.lines() {
        if line.trim_start().starts_with('>') {
            quoted += 1;
            continue;
        }
        lines.push(line.trim_end());
    }
    let mut said = lines.join("\n").trim().to_owned();
    if quoted > 0 {
        said.push_str(&format!("\n[{quoted} quoted lines of earlier mail are left out]"));
    }
    if hid {
        said.push_str("\n[hidden parts of the mail are left out]");
    }
    said
}

fn attachment_from_part(part: &mail_parser::MessagePart<'_>) -> Attachment {
    let data = Bytes::copy_from_slice(part.contents());
    let media_type = part.content_type().map_or_else(
        || "application/octet-stream".to_owned(),
        |kind| format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("octet-stream")).to_ascii_lowercase(),
    );
    Attachment {
        name: part.attachment_name().unwrap_or("a file").to_owned(),
        media_type,
        size: u64::try_from(data.len()).ok(), // silent-ok: no mail is larger
        content: AttachmentContent::Here(data),
    }
}

#[cfg(test)]
mod tests {
    use super::{ParsedMail, is_address, read};
    use crate::adapter::AttachmentContent;

    const ME: &str = "agent@example.test";

    fn letter(mail: &str) -> super::InboundMail {
        match read(mail.replace('\n', "\r\n").as_bytes(), ME, Some("mx.test")) {
            ParsedMail::Letter(letter) => *letter,
            other => panic!("{other:?}"),
        }
    }

    fn refused(mail: &str) -> &'static str {
        match read(mail.replace('\n', "\r\n").as_bytes(), ME, Some("mx.test")) {
            ParsedMail::Refused { reason, .. } => reason,
            other => panic!("{mail}: {other:?}"),
        }
    }

    #[test]
    fn a_thread_is_its_first_message_and_subjects_join_nothing() {
        let first = letter(
            "From: Ann <Ann@Corp.test>\nSubject: =?utf-8?q?Caf=C3=A9?=\nMessage-ID: <a@corp.test>\n\nHello\n",
        );
        assert_eq!(
            (first.id.as_str(), first.thread.as_str()),
            ("a@corp.test", "a@corp.test")
        );
        assert_eq!(
            (first.from.as_str(), first.subject.as_str()),
            ("ann@corp.test", "Café")
        );
        assert!(!first.vouched, "no server said anything");
        let later = letter(
            "From: ann@corp.test\nSubject: Café\nMessage-ID: <c@corp.test>\nReferences: <a@corp.test> <b@corp.test>\nIn-Reply-To: <b@corp.test>\n\n> old\nNew\n",
        );
        assert_eq!(later.thread, "a@corp.test");
        assert_eq!(later.references, ["a@corp.test", "b@corp.test", "c@corp.test"]);
        assert_eq!(later.text, "New\n[1 quoted lines of earlier mail are left out]");
        let same = letter("From: ann@corp.test\nSubject: Re: Café\nMessage-ID: <d@corp.test>\n\nNew\n");
        assert_eq!(same.thread, "d@corp.test");
        let none = letter("From: ann@corp.test\n\nNew\n");
        assert!(none.id.starts_with("sha256:"), "{}", none.id);
    }

    #[test]
    fn what_a_machine_wrote_is_never_answered() {
        for (header, word) in [
            ("Auto-Submitted: auto-replied", "Auto-Submitted"),
            ("Auto-Submitted: auto-generated; x=1", "Auto-Submitted"),
            ("Precedence: bulk", "Precedence"),
            ("List-Id: <x.test>", "list"),
            ("X-Auto-Response-Suppress: OOF, AutoReply", "Suppress"),
            ("X-Clawk-Loop: other@bot.test", "X-Clawk-Loop"),
            ("Return-Path: <>", "envelope"),
        ] {
            let reason = refused(&format!(
                "From: ann@corp.test\nMessage-ID: <a@x>\n{header}\n\nhi\n"
            ));
            assert!(reason.contains(word), "{header}: {reason}");
        }
        for from in ["MAILER-DAEMON@x.test", "no-reply@x.test", "Agent@Example.test"] {
            refused(&format!("From: {from}\nMessage-ID: <a@x>\n\nhi\n"));
        }
        letter("From: ann@corp.test\nAuto-Submitted: no\nMessage-ID: <a@x>\n\nhi\n");
    }

    #[test]
    fn several_senders_are_nobody_and_a_name_is_no_address() {
        assert_eq!(
            refused("From: a@corp.test, b@corp.test\n\nhi\n"),
            "the mail names several senders"
        );
        assert_eq!(
            refused("From: a@corp.test\nFrom: b@corp.test\n\nhi\n"),
            "the mail names several senders"
        );
        let letter = letter("From: \"boss@corp.test\" <evil@x.test>\n\nhi\n");
        assert_eq!(letter.from, "evil@x.test");
        assert!(!is_address("a@b\r\nBcc: c@d"));
        assert!(!is_address("a@b@c"));
    }

    #[test]
    fn a_bounce_names_the_mail_that_did_not_arrive_and_is_no_letter() {
        let mail = "From: MAILER-DAEMON@x.test\nContent-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: text/plain\n\nSorry\n--b\nContent-Type: message/delivery-status\n\nFinal-Recipient: rfc822; a@x\nAction: failed\nStatus: 5.1.1\n\n--b\nContent-Type: text/rfc822-headers\n\nMessage-ID: <clawk.1@example.test>\n--b--\n";
        match read(mail.replace('\n', "\r\n").as_bytes(), ME, None) {
            ParsedMail::Bounce { of, reason } => {
                assert_eq!(of, "clawk.1@example.test");
                assert!(reason.contains("5.1.1"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_come_with_their_bytes() {
        let mail = "From: ann@corp.test\nMessage-ID: <a@x>\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\nSee\n--b\nContent-Type: application/pdf\nContent-Disposition: attachment; filename=\"../../x\"\nContent-Transfer-Encoding: base64\n\naGVsbG8=\n--b--\n";
        let letter = letter(mail);
        assert_eq!(letter.text, "See");
        assert_eq!(letter.attachments.len(), 1);
        assert_eq!(
            letter.attachments[0].content,
            AttachmentContent::Here(bytes::Bytes::from_static(b"hello"))
        );
    }
}
