//! What platforms name as the reason of a refusal, and its cure. Telegram's table stands in [`super::telegram_moves`].
//!
//! Each table has the shapes of its vendor's pages. What no table names is judged by its status.

use clawk_kernel::ports::Delivery;

use self::MessageRefusal::{Final, Later, Other, RepliedGone, ThreadGone};
use crate::api::{PlatformResponse, shown};

/// A quota of a day or a month, or a restriction that people have to lift: tried again after so long.
const NOT_SOON_MS: u64 = 3_600_000;
/// A server that is overloaded or under maintenance.
const SOON_MS: u64 = 60_000;

const NOT_MEMBER: &str = "the bot is not in the chat";
const MAY_NOT_WRITE: &str = "the bot may not write in the chat";
const NO_CHAT: &str = "the chat is not there, or the bot never was in it";
const ARCHIVED: &str = "the chat is archived";
const NO_PERSON: &str = "the platform knows no such person";
const BLOCKED: &str = "the person takes no messages of the bot";
const GONE_PERSON: &str = "the person's account is closed";
const TOO_LONG: &str = "the message is too long for the platform";
const TOO_LARGE: &str = "the file is too large for the platform";
const REJECTED: &str = "the platform's rules for contents reject the message";
const NO_RIGHT: &str = "the bot's token lacks a right that this needs";
const NO_FILES: &str = "the platform takes no files of the bot here";
const OPERATOR: &str = "an operator has to mend the bot's account on the platform";
const NO_EDIT: &str = "the message can't be changed any more";

/// What a refusal of a message means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageRefusal {
    /// The thread is gone, closed, or none can be here: its chat takes the message.
    ThreadGone,
    /// The message that is answered is gone: the answer goes without naming it.
    RepliedGone,
    /// Nothing was sent, and it is tried again: after so long, where the platform does not say.
    Later(Option<u64>),
    /// Nobody will ever get it: why.
    Final(&'static str),
    /// No refusal, or one whose status says enough.
    Other,
}

impl MessageRefusal {
    /// What becomes of the message, once what can be cured is cured. `None`: the status decides.
    pub(super) fn delivery(self, after_ms: Option<u64>, said: &str) -> Option<Delivery> {
        let dead = |why: &str| Delivery::Failed {
            reason: format!("{why} ({})", shown(said)),
        };
        match self {
            Self::Later(otherwise) => Some(Delivery::Retry {
                after_ms: after_ms.or(otherwise),
                reason: shown(said),
            }),
            Self::Final(why) => Some(dead(why)),
            Self::ThreadGone => Some(dead("the thread takes no messages any more")),
            Self::RepliedGone => Some(dead("the message that is answered is gone")),
            Self::Other => None,
        }
    }

    /// The same, where the status is told as well.
    pub(super) fn outcome(self, answer: &PlatformResponse, said: &str) -> Option<Delivery> {
        let said = format!("{} {said}", answer.status.as_u16());
        self.delivery(answer.retry_after_ms(), said.trim_end())
    }
}

fn named<K: PartialEq>(table: &[(K, MessageRefusal)], key: &K) -> MessageRefusal {
    let found = table.iter().find(|(known, _)| known == key);
    found.map_or(MessageRefusal::Other, |(_, refusal)| *refusal)
}

fn worded(table: &[(&str, MessageRefusal)], said: &str) -> MessageRefusal {
    let said = said.to_lowercase();
    let found = table.iter().find(|(words, _)| said.contains(words));
    found.map_or(MessageRefusal::Other, |(_, refusal)| *refusal)
}

/// Slack's `error`. What it says of a failure inside (`internal_error`, `fatal_error`) is in no table: nobody knows how far it came.
const SLACK: &[(&str, MessageRefusal)] = &[
    ("thread_not_found", ThreadGone),
    ("cannot_reply_to_message", ThreadGone),
    ("restricted_action_thread_locked", ThreadGone),
    ("restricted_action_non_threadable_channel", ThreadGone),
    ("ratelimited", Later(None)),
    ("rate_limited", Later(None)),
    ("message_limit_exceeded", Later(Some(NOT_SOON_MS))),
    ("external_channel_migrating", Later(Some(SOON_MS))),
    ("team_added_to_org", Later(Some(SOON_MS))),
    ("org_level_email_display_disabled", Final(MAY_NOT_WRITE)),
    ("channel_not_found", Final(NO_CHAT)),
    ("channel_is_archived", Final(ARCHIVED)),
    ("is_archived", Final(ARCHIVED)),
    ("is_inactive", Final(ARCHIVED)),
    ("not_in_channel", Final(NOT_MEMBER)),
    ("user_not_found", Final(NO_PERSON)),
    ("user_disabled", Final(GONE_PERSON)),
    ("cannot_dm_bot", Final("bots get no messages of bots")),
    ("messages_tab_disabled", Final(BLOCKED)),
    ("restricted_action", Final(MAY_NOT_WRITE)),
    ("restricted_action_read_only_channel", Final(MAY_NOT_WRITE)),
    (
        "restricted_action_thread_only_channel",
        Final("the chat takes messages in threads only"),
    ),
    ("channel_type_not_supported", Final(MAY_NOT_WRITE)),
    ("no_permission", Final(MAY_NOT_WRITE)),
    ("access_denied", Final(MAY_NOT_WRITE)),
    ("team_access_not_granted", Final(NO_RIGHT)),
    ("ekm_access_denied", Final(MAY_NOT_WRITE)),
    ("enterprise_is_restricted", Final(NO_RIGHT)),
    ("org_login_required", Final(OPERATOR)),
    ("invalid_auth", Final("the platform refuses the bot's token")),
    ("not_authed", Final("the platform refuses the bot's token")),
    ("account_inactive", Final("the platform refuses the bot's token")),
    ("token_revoked", Final("the platform refuses the bot's token")),
    ("token_expired", Final("the platform refuses the bot's token")),
    ("missing_scope", Final(NO_RIGHT)),
    ("not_allowed_token_type", Final(NO_RIGHT)),
    ("msg_too_long", Final(TOO_LONG)),
    ("no_text", Final("the platform takes no empty message")),
    (
        "invalid_blocks",
        Final("the platform can't read the message's form"),
    ),
    ("msg_blocks_too_long", Final(TOO_LONG)),
    ("too_many_attachments", Final(TOO_LONG)),
    ("message_not_found", Final(NO_EDIT)),
    ("cant_update_message", Final(NO_EDIT)),
    ("edit_window_closed", Final(NO_EDIT)),
    ("file_upload_size_restricted", Final(TOO_LARGE)),
    ("file_too_large", Final(TOO_LARGE)),
    ("file_uploads_disabled", Final(NO_FILES)),
    ("file_uploads_except_images_disabled", Final(NO_FILES)),
    ("slack_connect_file_upload_sharing_blocked", Final(NO_FILES)),
    ("slack_connect_blocked_file_type", Final(NO_FILES)),
    ("blocked_file_type", Final(NO_FILES)),
    (
        "storage_limit_reached",
        Final("the workspace has no room for files"),
    ),
];

/// What Slack's `error` means.
pub(super) fn slack(error: &str) -> MessageRefusal {
    named(SLACK, &error)
}

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
pub(super) fn discord(status: u16, body: &serde_json::Value) -> MessageRefusal {
    if !(400..500).contains(&status) || status == 429 {
        return Other;
    }
    let code = body.get("code").and_then(serde_json::Value::as_u64);
    match code {
        Some(50_035) if body.pointer("/errors/message_reference").is_some() => RepliedGone,
        Some(50_035) if body.pointer("/errors/content").is_some() => Final(TOO_LONG),
        Some(code) => named(DISCORD, &code),
        None if status == 413 => Final(TOO_LARGE),
        None => Other,
    }
}

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
pub(super) fn matrix(status: u16, errcode: &str, error: &str) -> MessageRefusal {
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
        "M_FORBIDDEN" => match worded(MATRIX_WORDS, error) {
            Other => Final(MAY_NOT_WRITE),
            known => known,
        },
        _ => worded(MATRIX_WORDS, error),
    }
}

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
pub(super) fn whatsapp(code: i64, details: &str) -> MessageRefusal {
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
    named(WHATSAPP, &code)
}

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
pub(super) fn line(status: u16, message: &str, details: &str) -> MessageRefusal {
    if !(400..500).contains(&status) || status == 409 {
        return Other;
    }
    if status == 413 || status == 400 && details.to_lowercase().contains("length must be") {
        return Final(TOO_LONG);
    }
    worded(LINE, message)
}

/// Enhanced status codes (RFC 3463) and words of mail servers. What stands first counts: a limit of the day is told as permanent by some.
#[cfg(feature = "mail")]
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
#[cfg(feature = "mail")]
pub(super) fn mail(reply: &str) -> MessageRefusal {
    worded(MAIL, reply)
}

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
pub(super) fn lark(code: i64) -> MessageRefusal {
    named(LARK, &code)
}

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
pub(super) fn wechat(code: i64) -> MessageRefusal {
    named(WECHAT, &code)
}

#[cfg(test)]
mod tests;
