//! What Discord names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, Other, RepliedGone, ThreadGone};
use crate::platform_kit::refusals::{
    BLOCKED, MAY_NOT_WRITE, MessageRefusal, NO_CHAT, NO_EDIT, NO_PERSON, NOT_MEMBER, OPERATOR, REJECTED,
    SOON_MS, TOO_LARGE, TOO_LONG, refusal_by_key,
};

/// Discord's `code` of a refused message.
const DISCORD: &[(u64, MessageRefusal)] = &[
    (50_083, ThreadGone),  // archived
    (160_005, ThreadGone), // locked
    (40_058, ThreadGone),  // a post whose author said nothing yet
    (160_002, RepliedGone),
    (10_008, RepliedGone),
    (20_016, Later(None)), // slow mode
    (20_022, Later(None)),
    (20_028, Later(None)),
    (20_029, Later(None)),
    (40_003, Later(Some(SOON_MS))), // direct conversations opened too fast
    (40_006, Later(Some(SOON_MS))),
    (130_000, Later(Some(SOON_MS))),
    (10_003, Final(NO_CHAT)),
    (10_004, Final(NOT_MEMBER)),
    (10_013, Final(NO_PERSON)),
    (40_001, Final("the platform refuses the bot's token")),
    (40_002, Final(OPERATOR)),
    (40_005, Final(TOO_LARGE)),
    (50_045, Final(TOO_LARGE)),
    (50_001, Final(NOT_MEMBER)),
    (50_007, Final(BLOCKED)),
    (50_278, Final(BLOCKED)),
    (50_008, Final(MAY_NOT_WRITE)),
    (50_009, Final(MAY_NOT_WRITE)),
    (50_013, Final(MAY_NOT_WRITE)),
    (50_024, Final(MAY_NOT_WRITE)),
    (50_006, Final("the platform takes no empty message")),
    (50_005, Final(NO_EDIT)),
    (30_046, Final(NO_EDIT)),
    (200_000, Final(REJECTED)),
    (240_000, Final(REJECTED)),
];

/// What Discord's answer means: its `code`, and of a form that it can't take, the member that it names.
pub(super) fn discord_refusal(status: u16, body: &serde_json::Value) -> MessageRefusal {
    if !(400..500).contains(&status) || status == 429 {
        return Other;
    }
    let code = body.get("code").and_then(serde_json::Value::as_u64);
    match code {
        Some(50_035) if body.pointer("/errors/message_reference").is_some() => RepliedGone,
        Some(50_035) if body.pointer("/errors/content").is_some() => Final(TOO_LONG),
        Some(code) => refusal_by_key(DISCORD, &code),
        None if status == 413 => Final(TOO_LARGE),
        None => Other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Final, Other, RepliedGone, SOON_MS, TOO_LARGE, TOO_LONG, discord_refusal};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Reply, Thread, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn discord_says_it_by_a_code() {
        for (status, code, cure) in [
            (400, 50_083, Thread),
            (400, 160_005, Thread),
            (403, 40_058, Thread),
            (400, 160_002, Reply),
            (404, 10_008, Reply),
            (400, 20_016, Wait(None)),
            (403, 40_003, Wait(Some(SOON_MS))),
            (404, 10_003, Dead("not there")),
            (404, 10_004, Dead("not in the chat")),
            (404, 10_013, Dead("no such person")),
            (403, 50_001, Dead("not in the chat")),
            (403, 50_007, Dead("takes no messages")),
            (403, 50_278, Dead("takes no messages")),
            (403, 50_013, Dead("may not write")),
            (413, 40_005, Dead("file is too large")),
            (400, 200_000, Dead("rules for contents")),
            (400, 1, ByStatus),
            (429, 20_028, ByStatus),
            (503, 130_000, ByStatus),
            (200, 0, ByStatus),
        ] {
            let found = discord_refusal(status, &json!({"code": code, "message": "x"}));
            assert!(is_cured(found, &cure), "{status} {code}: {found:?}");
        }
        let form = |member: &str| {
            let errors = json!({ member: {"_errors": [{"code": "BASE_TYPE_MAX_LENGTH", "message": "Must be 2000 or fewer in length."}]} });
            json!({"code": 50_035, "message": "Invalid Form Body", "errors": errors})
        };
        assert_eq!(discord_refusal(400, &form("message_reference")), RepliedGone);
        assert_eq!(discord_refusal(400, &form("content")), Final(TOO_LONG));
        assert_eq!(discord_refusal(400, &form("embeds")), Other);
        assert_eq!(discord_refusal(413, &json!(null)), Final(TOO_LARGE));
    }
}
