use clawk_kernel::ports::Delivery;
use serde_json::json;

use super::MessageRefusal::{self, Final, Later, Other, RepliedGone, ThreadGone};
use super::*;

/// What is to become of a message.
#[derive(Debug, PartialEq)]
enum Cure {
    Thread,
    Reply,
    /// Tried again after the platform's or our own wait, milliseconds.
    Wait(Option<u64>),
    /// A dead letter whose reason has this word.
    Dead(&'static str),
    ByStatus,
}

fn is_cured(refusal: MessageRefusal, cure: &Cure) -> bool {
    match (refusal, cure) {
        (ThreadGone, Cure::Thread) | (RepliedGone, Cure::Reply) | (Other, Cure::ByStatus) => true,
        (Later(own), Cure::Wait(wanted)) => own == *wanted,
        (Final(why), Cure::Dead(word)) => why.contains(word),
        _ => false,
    }
}

use Cure::{ByStatus, Dead, Reply, Thread, Wait};

#[test]
fn slack_says_what_is_wrong_in_one_word() {
    for (error, cure) in [
        ("thread_not_found", Thread),
        ("restricted_action_thread_locked", Thread),
        ("restricted_action_non_threadable_channel", Thread),
        ("ratelimited", Wait(None)),
        ("rate_limited", Wait(None)),
        ("external_channel_migrating", Wait(Some(SOON_MS))),
        ("message_limit_exceeded", Wait(Some(NOT_SOON_MS))),
        ("channel_not_found", Dead("not there")),
        ("not_in_channel", Dead("not in the chat")),
        ("is_archived", Dead("archived")),
        ("user_disabled", Dead("account is closed")),
        ("messages_tab_disabled", Dead("takes no messages")),
        ("restricted_action_read_only_channel", Dead("may not write")),
        ("restricted_action_thread_only_channel", Dead("threads only")),
        ("msg_too_long", Dead("too long")),
        ("file_upload_size_restricted", Dead("file is too large")),
        ("file_uploads_disabled", Dead("no files")),
        ("missing_scope", Dead("lacks a right")),
        ("token_revoked", Dead("token")),
        ("edit_window_closed", Dead("can't be changed")),
        // Nobody knows how far it came.
        ("internal_error", ByStatus),
        ("fatal_error", ByStatus),
        ("", ByStatus),
    ] {
        assert!(is_cured(slack(error), &cure), "{error}: {:?}", slack(error));
    }
}

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
        let found = discord(status, &json!({"code": code, "message": "x"}));
        assert!(is_cured(found, &cure), "{status} {code}: {found:?}");
    }
    let form = |member: &str| {
        let errors = json!({ member: {"_errors": [{"code": "BASE_TYPE_MAX_LENGTH", "message": "Must be 2000 or fewer in length."}]} });
        json!({"code": 50_035, "message": "Invalid Form Body", "errors": errors})
    };
    assert_eq!(discord(400, &form("message_reference")), RepliedGone);
    assert_eq!(discord(400, &form("content")), Final(TOO_LONG));
    assert_eq!(discord(400, &form("embeds")), Other);
    assert_eq!(discord(413, &json!(null)), Final(TOO_LARGE));
}

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
        let found = matrix(status, errcode, error);
        assert!(is_cured(found, &cure), "{status} {errcode} {error}: {found:?}");
    }
}

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
        let found = whatsapp(code, details);
        assert!(is_cured(found, &cure), "{code} {details}: {found:?}");
    }
}

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
        let found = line(status, message, details);
        assert!(is_cured(found, &cure), "{status} {message} {details}: {found:?}");
    }
}

#[cfg(feature = "mail")]
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
        let found = mail(reply);
        assert!(is_cured(found, &cure), "{reply}: {found:?}");
    }
}

#[test]
fn lark_and_wechat_say_it_by_a_code() {
    for (code, cure) in [
        (230_002, Dead("not in the chat")),
        (230_025, Dead("too long")),
        (230_029, Dead("account is closed")),
        (230_035, Dead("may not write")),
        (232_009, Dead("deleted")),
        (234_006, Dead("file is too large")),
        (0, ByStatus),
    ] {
        assert!(is_cured(lark(code), &cure), "{code}: {:?}", lark(code));
    }
    for (code, cure) in [
        (40_003, Dead("no such person")),
        (43_004, Dead("does not follow")),
        (48_002, Dead("takes no messages")),
        (45_002, Dead("too long")),
        (45_001, Dead("file is too large")),
        (0, ByStatus),
    ] {
        assert!(is_cured(wechat(code), &cure), "{code}: {:?}", wechat(code));
    }
}

#[test]
fn a_refusal_becomes_a_delivery_with_the_platforms_words() {
    let later = Later(Some(SOON_MS));
    let waits = |delivery| match delivery {
        Some(Delivery::Retry { after_ms, .. }) => after_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        waits(later.delivery(Some(7), "slow")),
        Some(7),
        "the platform's own wait counts"
    );
    assert_eq!(waits(later.delivery(None, "slow")), Some(SOON_MS));
    let dead = Final(NOT_MEMBER).delivery(None, "not_in_channel\u{7}").unwrap();
    assert_eq!(
        dead,
        Delivery::Failed {
            reason: "the bot is not in the chat (not_in_channel)".to_owned()
        }
    );
    assert_eq!(Other.delivery(None, "x"), None);
}
