//! What QQ names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, PersonFirst, StaleToken};
use crate::platform_kit::refusals::{
    BAD_FORM, BLOCKED, MAY_NOT_WRITE, MessageRefusal, NO_CHAT, NO_RIGHT, NOT_MEMBER, NOT_SOON_MS, OPERATOR,
    REJECTED, SOON_MS, TOO_LARGE, TOO_LONG, refusal_by_key,
};

/// QQ's `code`. What waits for a person's review (304023, 304024) is told with a success. That a message came twice is the adapter's own.
const QQ: &[(i64, MessageRefusal)] = &[
    (11_241, StaleToken),
    (11_242, StaleToken),
    (11_243, StaleToken),
    (11_244, StaleToken),
    // Passive answers: the message is too old, was answered too often, or is not one that may be answered; and active ones.
    (22_009, PersonFirst),
    (304_022, PersonFirst),
    (304_026, PersonFirst),
    (304_027, PersonFirst),
    (304_028, PersonFirst),
    (304_045, PersonFirst),
    (304_046, PersonFirst),
    (304_048, PersonFirst),
    (304_049, PersonFirst),
    (304_050, PersonFirst),
    (304_103, PersonFirst),
    (40_034_005, PersonFirst),
    (40_034_024, PersonFirst),
    (40_034_025, PersonFirst),
    (40_034_026, PersonFirst),
    (40_034_027, PersonFirst),
    (40_034_100, PersonFirst),
    (40_034_102, PersonFirst),
    (40_034_105, PersonFirst),
    (40_034_128, PersonFirst),
    (40_054_004, PersonFirst),
    // Faults of a moment, as the vendor says, and limits.
    (11_252, Later(Some(SOON_MS))),
    (11_263, Later(Some(SOON_MS))),
    (11_281, Later(Some(SOON_MS))),
    (20_028, Later(Some(SOON_MS))),
    (22_013, Later(None)),
    (304_006, Later(Some(SOON_MS))),
    (304_016, Later(Some(SOON_MS))),
    (304_018, Later(Some(SOON_MS))),
    (340_067, Later(Some(SOON_MS))),
    (1_100_100, Later(Some(SOON_MS))),
    (1_100_308, Later(Some(SOON_MS))),
    (40_054_006, Later(Some(SOON_MS))),
    (50_055_001, Later(Some(SOON_MS))),
    (50_055_002, Later(Some(SOON_MS))),
    (40_054_002, Later(Some(NOT_SOON_MS))), // muted
    (40_054_016, Later(Some(NOT_SOON_MS))), // taken off line
    (10_001, Final(OPERATOR)),
    (11_251, Final(OPERATOR)),
    (11_261, Final(OPERATOR)),
    (11_275, Final(OPERATOR)),
    (11_254, Final(OPERATOR)),
    (11_265, Final(OPERATOR)),
    (11_253, Final(NO_RIGHT)),
    (11_264, Final(NO_RIGHT)),
    (11_282, Final(NO_RIGHT)),
    (10_003, Final(NO_CHAT)),
    (10_004, Final(NO_CHAT)),
    (304_032, Final(NO_CHAT)),
    (1_100_104, Final(NO_CHAT)),
    (304_034, Final(NOT_MEMBER)),
    (610_007, Final(NOT_MEMBER)),
    (1_100_301, Final(NOT_MEMBER)),
    (1_100_306, Final(NOT_MEMBER)),
    (40_034_101, Final(NOT_MEMBER)),
    (40_054_003, Final(NOT_MEMBER)),
    (1_100_303, Final(MAY_NOT_WRITE)),
    (304_031, Final(BLOCKED)),
    (304_064, Final(BLOCKED)),
    (40_054_013, Final(BLOCKED)),
    (50_006, Final("the platform takes no empty message")),
    (22_006, Final(BAD_FORM)),
    (50_035, Final(BAD_FORM)),
    (304_061, Final(BAD_FORM)),
    (340_069, Final(BAD_FORM)),
    (304_003, Final(NO_ADDRESSES)),
    (40_054_010, Final(NO_ADDRESSES)),
    (304_020, Final(TOO_LARGE)),
    (40_054_007, Final(TOO_LONG)),
    (40_054_018, Final(TOO_LONG)),
    (304_025, Final(REJECTED)),
    (1_100_101, Final(REJECTED)),
    (1_100_103, Final(REJECTED)),
    (40_034_006, Final(REJECTED)),
];

/// What QQ's `code` means.
pub(super) fn qq(code: i64) -> MessageRefusal {
    refusal_by_key(QQ, &code)
}

const NO_ADDRESSES: &str =
    "the platform takes no message with this web address; it has to be registered for the bot";

#[cfg(test)]
mod tests {
    use super::{NOT_SOON_MS, SOON_MS, qq};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Person, Token, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn qq_says_it_by_a_code() {
        for (code, cure) in [
            (11_243, Token),
            (11_244, Token),
            (22_009, Person),
            (304_027, Person),
            (304_103, Person),
            (40_034_005, Person),
            (40_034_024, Person),
            (40_034_100, Person),
            (40_034_105, Person),
            (40_034_128, Person),
            (40_054_004, Person),
            (11_252, Wait(Some(SOON_MS))),
            (22_013, Wait(None)),
            (1_100_308, Wait(Some(SOON_MS))),
            (50_055_001, Wait(Some(SOON_MS))),
            (40_054_002, Wait(Some(NOT_SOON_MS))),
            (40_054_016, Wait(Some(NOT_SOON_MS))),
            (11_253, Dead("lacks a right")),
            (11_265, Dead("operator")),
            (40_034_101, Dead("not in the chat")),
            (40_054_003, Dead("not in the chat")),
            (1_100_104, Dead("not there")),
            (40_054_013, Dead("takes no messages")),
            (304_003, Dead("web address")),
            (40_054_010, Dead("web address")),
            (40_054_007, Dead("too long")),
            (40_034_006, Dead("reject")),
            (1_100_101, Dead("reject")),
            (50_006, Dead("empty")),
            (340_069, Dead("message's form")),
            // It waits for a person's review, and came twice: neither is a refusal.
            (304_023, ByStatus),
            (40_054_005, ByStatus),
            (0, ByStatus),
        ] {
            assert!(is_cured(qq(code), &cure), "{code}: {:?}", qq(code));
        }
    }
}
