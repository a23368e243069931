//! What LINE names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, Other};
use crate::platform_kit::refusals::{
    BLOCKED, MessageRefusal, NO_CHAT, NO_RIGHT, NOT_SOON_MS, SOON_MS, TOO_LONG, refusal_by_words,
};

/// Words of LINE's `message`.
const LINE: &[(&str, MessageRefusal)] = &[
    ("monthly limit", Later(Some(NOT_SOON_MS))),
    ("concurrent", Later(Some(SOON_MS))),
    ("rate limit", Later(None)),
    (
        "failed to send",
        Final("the person or the group is not there, or has left the bot"),
    ),
    ("not a friend", Final(BLOCKED)),
    ("not found", Final(NO_CHAT)),
    ("not authorized", Final(NO_RIGHT)),
    ("access to this api is not available", Final(NO_RIGHT)),
    (
        "authentication failed",
        Final("the platform refuses the bot's token"),
    ),
];

/// What LINE's answer means; `details`: the members that it can't take, with its words.
pub(super) fn line_refusal(status: u16, message: &str, details: &str) -> MessageRefusal {
    if !(400..500).contains(&status) || status == 409 {
        return Other;
    }
    if status == 413 || status == 400 && details.to_lowercase().contains("length must be") {
        return Final(TOO_LONG);
    }
    refusal_by_words(LINE, message)
}

#[cfg(test)]
mod tests {
    use super::{NOT_SOON_MS, line_refusal};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn line_says_it_in_words() {
        for (status, message, details, cure) in [
            (
                429,
                "You have reached your monthly limit.",
                "",
                Wait(Some(NOT_SOON_MS)),
            ),
            (
                429,
                "The API rate limit has been exceeded. Try again later.",
                "",
                Wait(None),
            ),
            (400, "Failed to send messages", "", Dead("has left the bot")),
            (
                400,
                "The request body has 1 error(s)",
                "Length must be between 0 and 5000",
                Dead("too long"),
            ),
            (
                400,
                "The request body has 1 error(s)",
                "May not be empty",
                ByStatus,
            ),
            (413, "", "", Dead("too long")),
            (
                403,
                "Access to this API is not available for your account",
                "",
                Dead("lacks a right"),
            ),
            (
                401,
                "Authentication failed. Confirm that the access token in the authorization header is valid.",
                "",
                Dead("token"),
            ),
            (404, "Not found", "", Dead("not there")),
            (409, "The retry key is already accepted", "", ByStatus),
            (500, "Internal server error: not found", "", ByStatus),
            (200, "", "", ByStatus),
        ] {
            let found = line_refusal(status, message, details);
            assert!(is_cured(found, &cure), "{status} {message} {details}: {found:?}");
        }
    }
}
