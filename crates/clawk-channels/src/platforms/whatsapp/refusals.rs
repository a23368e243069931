//! What WhatsApp names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, RepliedGone};
use crate::platform_kit::refusals::{
    BLOCKED, MessageRefusal, NO_RIGHT, NOT_SOON_MS, OPERATOR, SOON_MS, TOO_LARGE, TOO_LONG, refusal_by_key,
};

/// WhatsApp's `error.code`. Limits of 24 hours and tokens are the adapter's own.
const WHATSAPP: &[(i64, MessageRefusal)] = &[
    (2, Later(Some(SOON_MS))),
    (4, Later(None)),
    (80_007, Later(None)),
    (130_429, Later(None)),
    (131_056, Later(None)),
    (131_016, Later(Some(SOON_MS))),
    (131_057, Later(Some(NOT_SOON_MS))),
    (368, Later(Some(NOT_SOON_MS))),
    (131_031, Later(Some(NOT_SOON_MS))),
    (131_048, Later(Some(NOT_SOON_MS))),
    (3, Final(NO_RIGHT)),
    (10, Final(NO_RIGHT)),
    (131_005, Final(NO_RIGHT)),
    (33, Final("the bot's phone number is not there any more")),
    (133_010, Final("the bot's phone number is not registered")),
    (131_045, Final("the bot's phone number is not registered")),
    (131_037, Final(OPERATOR)),
    (131_042, Final(OPERATOR)),
    (131_021, Final("the person is the bot itself")),
    (
        131_026,
        Final("the person is not on the platform, or takes no messages of the bot"),
    ),
    (
        131_030,
        Final("the person is not on the list of numbers that the app may write to"),
    ),
    (131_049, Final("the platform chose not to deliver it")),
    (131_050, Final(BLOCKED)),
    (130_472, Final("the platform chose not to deliver it")),
    (
        130_497,
        Final("the platform delivers nothing to this person's country"),
    ),
    (131_051, Final("the platform does not take messages of this kind")),
    (131_052, Final("the platform can't read the file")),
    (131_053, Final("the platform can't read the file")),
];

/// What WhatsApp's `code` means. `details` says which parameter it does not take.
pub(super) fn whatsapp_refusal(code: i64, details: &str) -> MessageRefusal {
    let invalid = matches!(code, 100 | 131_008 | 131_009);
    let details = details.to_lowercase();
    if invalid && (details.contains("message_id") || details.contains("context")) {
        return RepliedGone;
    }
    if invalid && (details.contains("at most") || details.contains("too long")) {
        return Final(TOO_LONG);
    }
    if invalid && details.contains("size") {
        return Final(TOO_LARGE);
    }
    refusal_by_key(WHATSAPP, &code)
}

#[cfg(test)]
mod tests {
    use super::{NOT_SOON_MS, SOON_MS, whatsapp_refusal};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Reply, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn whatsapp_says_it_by_a_code_and_names_the_parameter() {
        for (code, details, cure) in [
            (131_009, "Param context.message_id is not valid", Reply),
            (
                100,
                "Param text['body'] must be at most 4096 characters long.",
                Dead("too long"),
            ),
            (
                100,
                "Image file size exceeds the limit of 5 MB",
                Dead("file is too large"),
            ),
            (100, "Unsupported post request", ByStatus),
            (131_056, "", Wait(None)),
            (130_429, "", Wait(None)),
            (131_016, "", Wait(Some(SOON_MS))),
            (2, "", Wait(Some(SOON_MS))),
            (131_048, "", Wait(Some(NOT_SOON_MS))),
            (368, "", Wait(Some(NOT_SOON_MS))),
            (131_026, "", Dead("not on the platform")),
            (131_030, "", Dead("list of numbers")),
            (131_049, "", Dead("chose not to")),
            (131_050, "", Dead("takes no messages")),
            (130_497, "", Dead("country")),
            (133_010, "", Dead("not registered")),
            (10, "", Dead("lacks a right")),
            // Something went wrong inside.
            (131_000, "", ByStatus),
            (1, "", ByStatus),
        ] {
            let found = whatsapp_refusal(code, details);
            assert!(is_cured(found, &cure), "{code} {details}: {found:?}");
        }
    }
}
