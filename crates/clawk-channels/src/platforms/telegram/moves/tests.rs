use serde_json::json;

use super::{TelegramGroupMoves, TelegramRefusal, refusal};

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn every_refusal_has_its_cure() {
    use TelegramRefusal::{Final, Markup, NotModified, Other, RepliedGone, ThreadGone};
    let table = [
        (400, "Bad Request: message thread not found", ThreadGone),
        (400, "Bad Request: TOPIC_CLOSED", ThreadGone),
        (400, "Bad Request: TOPIC_DELETED", ThreadGone),
        (400, "Bad Request: message to be replied not found", RepliedGone),
        (400, "Bad Request: replied message not found", RepliedGone),
        (400, "Bad Request: REPLY_MESSAGE_ID_INVALID", RepliedGone),
        (
            400,
            "Bad Request: can't parse entities: Unsupported start tag \"x\" at byte offset 0",
            Markup,
        ),
        (400, "Bad Request: can\u{2019}t parse entities", Markup),
        (
            400,
            "Bad Request: message is not modified: specified new message content is the same",
            NotModified,
        ),
        (
            403,
            "Forbidden: bot was blocked by the user",
            Final("the person has blocked the bot"),
        ),
        (
            403,
            "Forbidden: user is deactivated",
            Final("the person's account is deleted"),
        ),
        (
            403,
            "Forbidden: bot was kicked from the supergroup chat",
            Final("the bot was removed from the chat"),
        ),
        (
            403,
            "Forbidden: bot is not a member of the channel chat",
            Final("the bot is not in the chat"),
        ),
        (
            403,
            "Forbidden: the group chat was deleted",
            Final("the group is deleted"),
        ),
        (
            400,
            "Bad Request: chat not found",
            Final("the chat is not there, or the bot never was in it"),
        ),
        (
            400,
            "Bad Request: PEER_ID_INVALID",
            Final("the chat is not there, or the bot never was in it"),
        ),
        (
            403,
            "Forbidden: bot can't initiate conversation with a user",
            Final("the person has to write to the bot first"),
        ),
        (
            403,
            "Forbidden: bot can't send messages to bots",
            Final("bots get no messages of bots"),
        ),
        (
            400,
            "Bad Request: not enough rights to send text messages to the chat",
            Final("the bot may not write in the chat"),
        ),
        (
            400,
            "Bad Request: CHAT_WRITE_FORBIDDEN",
            Final("the bot may not write in the chat"),
        ),
        (
            400,
            "Bad Request: message is too long",
            Final("the message is too long for the platform"),
        ),
        (
            413,
            "Request Entity Too Large",
            Final("the file is too large for the platform"),
        ),
        (
            400,
            "Bad Request: user not found",
            Final("the platform knows no such person"),
        ),
        (400, "Bad Request: message text is empty", Other),
        (429, "Too Many Requests: retry after 5", Other),
        (500, "Internal Server Error: chat not found", Other),
        (200, "", Other),
    ];
    for (status, description, wanted) in table {
        let body = json!({"ok": false, "error_code": status, "description": description});
        assert_eq!(refusal(status, &body), wanted, "{status} {description}");
    }
    let moved = json!({
        "ok": false, "error_code": 400, "description": "Bad Request: group chat was upgraded to a supergroup chat",
        "parameters": {"migrate_to_chat_id": -100_200}
    });
    assert_eq!(refusal(400, &moved), TelegramRefusal::Moved(-100_200));
}

#[test]
fn a_group_keeps_its_first_id_however_often_it_moves() {
    let moves = TelegramGroupMoves::default();
    assert_eq!(
        (moves.current_id("-1").as_str(), moves.first_id("-1").as_str()),
        ("-1", "-1")
    );
    moves.add_move("-1", "-1001");
    moves.add_move("-1001", "-1002");
    // An old note that comes late, or a loop, changes nothing for the worse.
    moves.add_move("-1002", "-1");
    moves.add_move("-5", "-5");
    assert_eq!(moves.current_id("-1"), "-1002");
    assert_eq!(moves.first_id("-1002"), "-1");
    assert_eq!(moves.first_id("-7"), "-7");
}
