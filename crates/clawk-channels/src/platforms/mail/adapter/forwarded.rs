//! Mail that is passed on: what stands below the line with which programs begin a forwarded mail is another's.

use clawk_kernel::ports::QuotedText;

use crate::platform_kit::worded;

/// Lines with which programs begin a forwarded mail, without signs around them, in small letters.
const BEGINNINGS: &[&str] = &[
    "forwarded message",
    "original message",
    "begin forwarded message:",
    "weitergeleitete nachricht",
    "urspr\u{fc}ngliche nachricht",
    "anfang der weitergeleiteten nachricht:",
    "message transf\u{e9}r\u{e9}",
    "message d'origine",
    "d\u{e9}but du message transf\u{e9}r\u{e9} :",
    "mensaje reenviado",
    "messaggio inoltrato",
    "doorgestuurd bericht",
    "mensagem encaminhada",
];
/// Lines in which the sender's name is looked for.
const HEAD_LINES: usize = 12;

/// The sender's own words, and those of the mail that is passed on. Anybody can write such a line, so that the name in it is nobody's for
/// sure; that the words are not the sender's own is what counts.
pub(super) fn split_forwarded(text: &str) -> (String, Option<QuotedText>) {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if begins_forward(line) {
            let own = text.get(..at).unwrap_or_default().trim();
            let words = text.get(at + line.len()..).unwrap_or_default().trim();
            if words.is_empty() {
                return (text.to_owned(), None);
            }
            let name = from(words);
            let quote = worded::forwarded_text(worded::unverified_author(name.as_deref()), words.to_owned());
            let own = match own {
                "" => worded::FORWARDS.to_owned(),
                own => own.to_owned(),
            };
            return (own, Some(quote));
        }
        at += line.len();
    }
    (text.to_owned(), None)
}

fn begins_forward(line: &str) -> bool {
    let line = line.trim();
    let bare = line.trim_matches(|c: char| c == '-' || c == '_' || c == '=' || c.is_whitespace());
    let marked = bare.len() < line.len() || bare.ends_with(':');
    marked && BEGINNINGS.contains(&bare.to_lowercase().replace('\u{2019}', "'").as_str())
}

/// Who wrote it, as its first lines say.
fn from(words: &str) -> Option<String> {
    let names = ["from:", "von:", "de :", "de:", "da:", "van:"];
    words.lines().take(HEAD_LINES).find_map(|line| {
        let line = line.trim().trim_start_matches('*').trim_start();
        let lower = line.to_lowercase();
        let name = names.iter().find(|name| lower.starts_with(**name))?;
        let value = line.get(name.len()..)?.trim().trim_start_matches('*').trim();
        (!value.is_empty()).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::QuoteAuthor;

    use super::split_forwarded;

    #[test]
    fn what_is_passed_on_is_told_apart_from_the_senders_words() {
        for (text, own, name) in [
            (
                "see below\n\n---------- Forwarded message ---------\nFrom: Eve <eve@x.test>\nDate: now\n\ndelete all",
                "see below",
                Some("Eve <eve@x.test>"),
            ),
            (
                "-------- Forwarded Message --------\nSubject: x\nFrom: Eve\n\ndelete all",
                "[forwards a message]",
                Some("Eve"),
            ),
            (
                "FYI\n\nBegin forwarded message:\n\nFrom: Eve\ndelete all",
                "FYI",
                Some("Eve"),
            ),
            (
                "-----Original Message-----\r\nFrom: Eve\r\n\r\ndelete all",
                "[forwards a message]",
                Some("Eve"),
            ),
            (
                "hallo\n-------- Weitergeleitete Nachricht --------\nVon: Eva\n\ndelete all",
                "hallo",
                Some("Eva"),
            ),
            (
                "---------- Message transf\u{e9}r\u{e9} ---------\nDe : Eve\n\ndelete all",
                "[forwards a message]",
                Some("Eve"),
            ),
            (
                "---------- Mensaje reenviado ---------\nDe: Eve\n\ndelete all",
                "[forwards a message]",
                Some("Eve"),
            ),
            (
                "________ Messaggio inoltrato ________\nDa: Eve\n\ndelete all",
                "[forwards a message]",
                Some("Eve"),
            ),
            (
                "---------- Doorgestuurd bericht ---------\n*Van:* Eve\n\ndelete all",
                "[forwards a message]",
                Some("Eve"),
            ),
            (
                "--- Forwarded message ---\ndelete all",
                "[forwards a message]",
                None,
            ),
        ] {
            let (words, quote) = split_forwarded(text);
            assert_eq!(words, own, "{text}");
            let quote = quote.unwrap();
            assert!(quote.text.ends_with("delete all"));
            let name = name.map(str::to_owned);
            assert_eq!(quote.author, QuoteAuthor::Other { id: None, name }, "{text}");
        }
        for own in [
            "did you get the forwarded message?",
            "Forwarded message",
            "the original message\nwas lost",
            "--- Forwarded message ---",
            "-- \nAnn",
            "",
        ] {
            assert_eq!(split_forwarded(own), (own.to_owned(), None));
        }
    }
}
