//! What Lark names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::Final;
use crate::platform_kit::refusals::{
    BLOCKED, GONE_PERSON, MAY_NOT_WRITE, MessageRefusal, NO_CHAT, NO_RIGHT, NOT_MEMBER, OPERATOR, REJECTED,
    TOO_LARGE, TOO_LONG, refusal_by_key,
};

/// Lark's `code`. Threads and limits are the adapter's own.
const LARK: &[(i64, MessageRefusal)] = &[
    (230_002, Final(NOT_MEMBER)),
    (230_006, Final(OPERATOR)),
    (230_013, Final("the app is not there for this person")),
    (230_018, Final(MAY_NOT_WRITE)),
    (230_025, Final(TOO_LONG)),
    (230_027, Final(NO_RIGHT)),
    (230_028, Final(REJECTED)),
    (230_029, Final(GONE_PERSON)),
    (230_034, Final(NO_CHAT)),
    (230_035, Final(MAY_NOT_WRITE)),
    (230_038, Final(MAY_NOT_WRITE)),
    (230_053, Final(BLOCKED)),
    (232_009, Final("the group is deleted")),
    (232_011, Final(NOT_MEMBER)),
    (234_006, Final(TOO_LARGE)),
    (99_991_672, Final(NO_RIGHT)),
];

/// What Lark's `code` means.
pub(super) fn lark_refusal(code: i64) -> MessageRefusal {
    refusal_by_key(LARK, &code)
}

#[cfg(test)]
mod tests {
    use super::lark_refusal;
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn lark_says_it_by_a_code() {
        for (code, cure) in [
            (230_002, Dead("not in the chat")),
            (230_025, Dead("too long")),
            (230_029, Dead("account is closed")),
            (230_035, Dead("may not write")),
            (232_009, Dead("deleted")),
            (234_006, Dead("file is too large")),
            (0, ByStatus),
        ] {
            assert!(
                is_cured(lark_refusal(code), &cure),
                "{code}: {:?}",
                lark_refusal(code)
            );
        }
    }
}
