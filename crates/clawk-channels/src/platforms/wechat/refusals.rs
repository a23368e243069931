//! What WeChat names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::Final;
use crate::platform_kit::refusals::{
    BLOCKED, MessageRefusal, NO_PERSON, NO_RIGHT, REJECTED, TOO_LARGE, TOO_LONG, refusal_by_key,
};

/// `errcode` of WeChat. Times and limits are the adapter's own.
const WECHAT: &[(i64, MessageRefusal)] = &[
    (40_003, Final(NO_PERSON)),
    (43_004, Final("the person does not follow the account any more")),
    (48_001, Final(NO_RIGHT)),
    (48_002, Final(BLOCKED)),
    (45_002, Final(TOO_LONG)),
    (45_001, Final(TOO_LARGE)),
    (45_006, Final(TOO_LARGE)),
    (50_002, Final("the person's account is restricted")),
    (87_014, Final(REJECTED)),
];

/// What WeChat's `errcode` means.
pub(super) fn wechat_refusal(code: i64) -> MessageRefusal {
    refusal_by_key(WECHAT, &code)
}

#[cfg(test)]
mod tests {
    use super::wechat_refusal;
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn wechat_says_it_by_a_code() {
        for (code, cure) in [
            (40_003, Dead("no such person")),
            (43_004, Dead("does not follow")),
            (48_002, Dead("takes no messages")),
            (45_002, Dead("too long")),
            (45_001, Dead("file is too large")),
            (0, ByStatus),
        ] {
            assert!(
                is_cured(wechat_refusal(code), &cure),
                "{code}: {:?}",
                wechat_refusal(code)
            );
        }
    }
}
