//! What Slack names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, ThreadGone};
use crate::platform_kit::refusals::{
    ARCHIVED, BLOCKED, GONE_PERSON, MAY_NOT_WRITE, MessageRefusal, NO_CHAT, NO_EDIT, NO_FILES, NO_PERSON,
    NO_RIGHT, NOT_MEMBER, NOT_SOON_MS, OPERATOR, SOON_MS, TOO_LARGE, TOO_LONG, refusal_by_key,
};

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
pub(super) fn slack_refusal(error: &str) -> MessageRefusal {
    refusal_by_key(SLACK, &error)
}

#[cfg(test)]
mod tests {
    use super::{NOT_SOON_MS, SOON_MS, slack_refusal};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Thread, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

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
            assert!(
                is_cured(slack_refusal(error), &cure),
                "{error}: {:?}",
                slack_refusal(error)
            );
        }
    }
}
