//! What a Matrix homeserver names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, Other, ThreadGone};
use crate::platform_kit::refusals::{
    MAY_NOT_WRITE, MessageRefusal, NO_CHAT, NOT_MEMBER, NOT_SOON_MS, OPERATOR, TOO_LONG, refusal_by_words,
};

/// Words of a Matrix homeserver beside `M_FORBIDDEN`, `M_UNKNOWN` and the like.
const MATRIX_WORDS: &[(&str, MessageRefusal)] = &[
    ("relation to unknown event", ThreadGone),
    ("start threads from an event with a relation", ThreadGone),
    ("not in room", Final(NOT_MEMBER)),
    ("not joined", Final(NOT_MEMBER)),
    ("not a member", Final(NOT_MEMBER)),
    ("banned", Final("the bot was banned from the chat")),
    ("permission", Final(MAY_NOT_WRITE)),
    ("power level", Final(MAY_NOT_WRITE)),
    ("unknown room", Final(NO_CHAT)),
    ("event too large", Final(TOO_LONG)),
];

/// What a homeserver's answer means: its `errcode`, and its words where the code has several meanings.
pub(super) fn matrix_refusal(status: u16, errcode: &str, error: &str) -> MessageRefusal {
    if status == 429 || !(400..500).contains(&status) {
        return Other;
    }
    match errcode {
        "M_LIMIT_EXCEEDED" => Later(None),
        "M_RESOURCE_LIMIT_EXCEEDED" => Later(Some(NOT_SOON_MS)),
        "M_TOO_LARGE" => Final(TOO_LONG),
        "M_USER_DEACTIVATED" | "M_USER_SUSPENDED" | "M_USER_LOCKED" | "M_CONSENT_NOT_GIVEN" => {
            Final(OPERATOR)
        }
        "M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN" => Final("the homeserver refuses the bot's token"),
        "M_GUEST_ACCESS_FORBIDDEN" => Final(MAY_NOT_WRITE),
        "M_FORBIDDEN" => match refusal_by_words(MATRIX_WORDS, error) {
            Other => Final(MAY_NOT_WRITE),
            known => known,
        },
        _ => refusal_by_words(MATRIX_WORDS, error),
    }
}

#[cfg(test)]
mod tests {
    use super::{NOT_SOON_MS, matrix_refusal};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Thread, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn a_homeserver_says_it_by_a_code_and_by_words() {
        for (status, errcode, error, cure) in [
            (
                403,
                "M_FORBIDDEN",
                "User @bot:hs not in room !r:hs (None)",
                Dead("not in the chat"),
            ),
            (
                403,
                "M_FORBIDDEN",
                "You don't have permission to post that to the room. user_level (0) < send_level (50)",
                Dead("may not write"),
            ),
            (
                403,
                "M_FORBIDDEN",
                "You are banned from this room",
                Dead("banned"),
            ),
            (403, "M_FORBIDDEN", "", Dead("may not write")),
            (404, "M_NOT_FOUND", "Unknown room", Dead("not there")),
            (413, "M_TOO_LARGE", "event too large", Dead("too long")),
            (400, "M_UNKNOWN", "Can't send relation to unknown event", Thread),
            (
                400,
                "M_UNKNOWN",
                "Cannot start threads from an event with a relation",
                Thread,
            ),
            (
                403,
                "M_RESOURCE_LIMIT_EXCEEDED",
                "This homeserver has hit its Monthly Active User limit",
                Wait(Some(NOT_SOON_MS)),
            ),
            (
                401,
                "M_UNKNOWN_TOKEN",
                "Invalid access token passed.",
                Dead("token"),
            ),
            (
                403,
                "M_USER_DEACTIVATED",
                "This account has been deactivated",
                Dead("operator"),
            ),
            (429, "M_LIMIT_EXCEEDED", "Too Many Requests", ByStatus),
            (500, "M_UNKNOWN", "Unknown room", ByStatus),
            (200, "", "", ByStatus),
        ] {
            let found = matrix_refusal(status, errcode, error);
            assert!(is_cured(found, &cure), "{status} {errcode} {error}: {found:?}");
        }
    }
}
