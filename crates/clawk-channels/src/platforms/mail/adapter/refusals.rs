//! What a mail server names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later};
use crate::platform_kit::refusals::{
    MessageRefusal, NOT_SOON_MS, SOON_MS, TOO_LARGE, TOO_LONG, refusal_by_words,
};

/// Enhanced status codes (RFC 3463) and words of mail servers. What stands first counts: a limit of the day is told as permanent by some.
const MAIL: &[(&str, MessageRefusal)] = &[
    ("sending limit", Later(Some(NOT_SOON_MS))),
    ("quota exceeded for sending", Later(Some(NOT_SOON_MS))),
    ("too many messages", Later(Some(NOT_SOON_MS))),
    ("5.4.5", Later(Some(NOT_SOON_MS))),
    ("4.2.2", Later(Some(NOT_SOON_MS))),
    ("4.7.", Later(Some(SOON_MS))),
    ("greylist", Later(Some(SOON_MS))),
    ("5.2.3", Final(TOO_LONG)),
    ("5.3.4", Final(TOO_LARGE)),
    ("size limit", Final(TOO_LARGE)),
    ("too large", Final(TOO_LARGE)),
    ("5.2.2", Final("the person's mailbox is full")),
    ("mailbox full", Final("the person's mailbox is full")),
    ("5.2.1", Final("the person's mailbox is closed")),
    ("5.1.1", Final("there is no such mailbox")), // and 5.1.10
    ("5.1.6", Final("the mailbox has moved")),
    ("user unknown", Final("there is no such mailbox")),
    ("no such user", Final("there is no such mailbox")),
    ("5.1.2", Final("there is no such mail domain")),
    ("5.4.4", Final("there is no such mail domain")),
    (
        "5.7.26",
        Final("the receiver wants SPF or DKIM of the sender's domain"),
    ),
    ("5.7.1", Final("the mail server's rules forbid it")),
    ("5.7.0", Final("the mail server's rules forbid it")),
    (
        "relay",
        Final("the mail server does not take mail for this address"),
    ),
];

/// What a mail server's reply means.
pub(super) fn mail_refusal(reply: &str) -> MessageRefusal {
    refusal_by_words(MAIL, reply)
}

#[cfg(test)]
mod tests {
    use super::{NOT_SOON_MS, SOON_MS, mail_refusal};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn a_mail_server_says_it_by_an_enhanced_code_or_in_words() {
        for (reply, cure) in [
            (
                "permanent error (550): 5.1.1 The email account that you tried to reach does not exist",
                Dead("no such mailbox"),
            ),
            (
                "permanent error (550): 5.1.10 RESOLVER.ADR.RecipientNotFound",
                Dead("no such mailbox"),
            ),
            (
                "permanent error (550): No such user here",
                Dead("no such mailbox"),
            ),
            (
                "permanent error (552): 5.2.2 The recipient's inbox is out of storage space",
                Dead("full"),
            ),
            (
                "permanent error (550): 5.2.1 The email account is disabled",
                Dead("closed"),
            ),
            (
                "permanent error (552): 5.3.4 Message size exceeds fixed limit",
                Dead("file is too large"),
            ),
            (
                "permanent error (552): 5.2.3 Your message exceeded Google's message size limits",
                Dead("too long"),
            ),
            (
                "permanent error (550): 5.4.5 Daily user sending limit exceeded",
                Wait(Some(NOT_SOON_MS)),
            ),
            (
                "permanent error (550): 5.7.26 Unauthenticated email is not accepted",
                Dead("SPF"),
            ),
            ("permanent error (554): 5.7.1 Relay access denied", Dead("rules")),
            (
                "permanent error (550): relaying denied",
                Dead("does not take mail"),
            ),
            (
                "transient error (451): 4.7.1 Greylisting in action, please come back later",
                Wait(Some(SOON_MS)),
            ),
            (
                "transient error (452): 4.2.2 mailbox over quota",
                Wait(Some(NOT_SOON_MS)),
            ),
            ("transient error (421): try again later", ByStatus),
            ("permanent error (550): no", ByStatus),
        ] {
            let found = mail_refusal(reply);
            assert!(is_cured(found, &cure), "{reply}: {found:?}");
        }
    }
}
