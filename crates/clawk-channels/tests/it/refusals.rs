//! What platforms refuse, and what becomes of the answer: a dead letter that says why, a later try, another place.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::fakes::{self, CannedAnswer, Fake, answers_once};
use crate::suite::{Stage, direct, sent, until};

struct Refused {
    fake: Arc<dyn Fake>,
    method: &'static str,
    at: &'static str,
    status: u16,
    body: Value,
}

impl Refused {
    async fn once(&self) {
        let canned = CannedAnswer {
            method: self.method,
            at: self.at.to_owned(),
            status: self.status,
            body: self.body.clone(),
        };
        answers_once(&*self.fake, canned);
        self.fake.says(&direct(&*self.fake, 1, 2, "say hello")).await;
    }
}

fn refused(
    fake: Arc<dyn Fake>,
    (method, at): (&'static str, &'static str),
    status: u16,
    body: Value,
) -> Refused {
    Refused {
        fake,
        method,
        at,
        status,
        body,
    }
}

#[tokio::test]
async fn what_nobody_will_ever_get_is_a_dead_letter_that_says_why_in_words() {
    let whatsapp = json!({"error": {"message": "(#131026) Message Undeliverable", "type": "OAuthException", "code": 131_026,
        "error_data": {"messaging_product": "whatsapp", "details": "Message Undeliverable."}}});
    let table = [
        (
            refused(
                Arc::new(fakes::slack::start().await),
                ("POST", "chat.postMessage"),
                200,
                json!({"ok": false, "error": "is_archived"}),
            ),
            "the chat is archived (is_archived)",
        ),
        (
            refused(
                Arc::new(fakes::discord::start().await),
                ("POST", "/messages"),
                403,
                json!({"message": "Cannot send messages to this user", "code": 50_007}),
            ),
            "the person takes no messages of the bot (403 50007: Cannot send messages to this user)",
        ),
        (
            refused(
                Arc::new(fakes::matrix::start().await),
                ("PUT", "/send/m.room.message"),
                413,
                json!({"errcode": "M_TOO_LARGE", "error": "event too large"}),
            ),
            "the message is too long for the platform",
        ),
        (
            refused(
                Arc::new(fakes::whatsapp::start().await),
                ("POST", "/messages"),
                400,
                whatsapp,
            ),
            "the person is not on the platform",
        ),
        (
            refused(
                Arc::new(fakes::line::start().await),
                ("POST", "message/push"),
                400,
                json!({"message": "Failed to send messages"}),
            ),
            "the person or the group is not there",
        ),
        (
            refused(
                Arc::new(fakes::lark::start().await),
                ("POST", "/im/v1/messages"),
                400,
                json!({"code": 230_002, "msg": "Bot/User can NOT be out of the chat."}),
            ),
            "the bot is not in the chat",
        ),
        (
            refused(
                Arc::new(fakes::wechat::start().await),
                ("POST", "message/custom/send"),
                200,
                json!({"errcode": 43_004, "errmsg": "require subscribe"}),
            ),
            "does not follow the account",
        ),
        (
            refused(
                Arc::new(fakes::dingtalk::start().await),
                ("POST", "robot/oToMessages/batchSend"),
                400,
                json!({"code": "staffId.notExisted", "message": "the staffId does not exist", "requestid": "r"}),
            ),
            "the platform knows no such person (400 staffId.notExisted the staffId does not exist)",
        ),
        (
            refused(
                Arc::new(fakes::qq::start().await),
                ("POST", "/messages"),
                400,
                json!({"code": 40_034_101, "message": "the bot is not a member", "err_code": 40_034_101}),
            ),
            "the bot is not in the chat (400 40034101 the bot is not a member)",
        ),
        (
            refused(
                Arc::new(fakes::telegram::start().await),
                ("POST", "/sendMessage"),
                403,
                json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}),
            ),
            "the person has blocked the bot",
        ),
    ];
    for (case, why) in table {
        let stage = Stage::new(Arc::clone(&case.fake), json!({})).await;
        case.once().await;
        until(|| async { stage.report().await.dead == 1 }).await;
        let rows = stage.kernel.read_outbox(10).await.unwrap();
        let reason = rows[0].reason.clone().unwrap_or_default();
        assert!(
            rows[0].dead && reason.contains(why),
            "{}: {reason}",
            case.fake.kind()
        );
        assert_eq!(case.fake.sent().len(), 0, "{}", case.fake.kind());
        stage.end().await;
        assert_eq!(case.fake.faults(), Vec::<String>::new(), "{}", case.fake.kind());
    }
}

#[tokio::test]
async fn what_is_limited_is_sent_after_the_platforms_own_wait() {
    let table = [
        refused(
            Arc::new(fakes::slack::start().await),
            ("POST", "chat.postMessage"),
            200,
            json!({"ok": false, "error": "rate_limited"}),
        ),
        refused(
            Arc::new(fakes::discord::start().await),
            ("POST", "/messages"),
            429,
            json!({"message": "You are being rate limited.", "retry_after": 0.05, "global": false}),
        ),
        refused(
            Arc::new(fakes::discord::start().await),
            ("POST", "/messages"),
            400,
            json!({"message": "This action cannot be performed due to slowmode rate limit", "code": 20_016, "retry_after": 0.05}),
        ),
        refused(
            Arc::new(fakes::matrix::start().await),
            ("PUT", "/send/m.room.message"),
            429,
            json!({"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests", "retry_after_ms": 50}),
        ),
        refused(
            Arc::new(fakes::whatsapp::start().await),
            ("POST", "/messages"),
            400,
            json!({"error": {"message": "(#131056) Pair rate limit hit", "code": 131_056}}),
        ),
        refused(
            Arc::new(fakes::line::start().await),
            ("POST", "message/push"),
            429,
            json!({"message": "The API rate limit has been exceeded. Try again later."}),
        ),
        refused(
            Arc::new(fakes::dingtalk::start().await),
            ("POST", "robot/oToMessages/batchSend"),
            403,
            json!({"code": "Forbidden.AccessDenied.QpsLimitForApi", "message": "slower", "requestid": "r"}),
        ),
        // The token lapsed: another one is asked for, at once.
        refused(
            Arc::new(fakes::dingtalk::start().await),
            ("POST", "robot/oToMessages/batchSend"),
            400,
            json!({"code": "token.notExisted", "message": "the token does not exist", "requestid": "r"}),
        ),
        refused(
            Arc::new(fakes::qq::start().await),
            ("POST", "/messages"),
            429,
            json!({"code": 22_013, "message": "too many requests", "err_code": 22_013}),
        ),
        refused(
            Arc::new(fakes::telegram::start().await),
            ("POST", "/sendMessage"),
            429,
            json!({"ok": false, "error_code": 429, "description": "Too Many Requests: retry after 1", "parameters": {"retry_after": 1}}),
        ),
    ];
    for case in table {
        let stage = Stage::new(Arc::clone(&case.fake), json!({})).await;
        case.once().await;
        sent(&case.fake, 1).await;
        until(|| async { stage.report().await.queued == 0 }).await;
        let text = &case.fake.sent()[0].text;
        assert!(
            !text.contains("repeat"),
            "{}: nothing was sent before: {text}",
            case.fake.kind()
        );
        assert_eq!(stage.report().await.dead, 0);
        stage.end().await;
        assert_eq!(case.fake.faults(), Vec::<String>::new(), "{}", case.fake.kind());
    }
}

#[tokio::test]
async fn an_answer_to_a_locked_thread_goes_to_its_channel() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::discord::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    answers_once(
        &*fake,
        CannedAnswer {
            method: "GET",
            at: format!("/channels/{}", fake.direct(2)),
            status: 200,
            body: json!({"id": fake.direct(2), "type": 11, "parent_id": fake.group()}),
        },
    );
    let locked = json!({"message": "Thread is locked", "code": 160_005});
    refused(Arc::clone(&fake), ("POST", "/messages"), 400, locked)
        .once()
        .await;
    sent(&fake, 1).await;
    assert_eq!(fake.sent()[0].conversation, fake.group());
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn an_answer_to_an_upgraded_room_goes_to_the_room_that_took_its_place() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::matrix::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    answers_once(
        &*fake,
        CannedAnswer {
            method: "GET",
            at: "/state/m.room.tombstone".to_owned(),
            status: 200,
            body: json!({"body": "This room has been replaced", "replacement_room": "!new:hs"}),
        },
    );
    answers_once(
        &*fake,
        CannedAnswer {
            method: "GET",
            at: "/state/m.room.create".to_owned(),
            status: 200,
            body: json!({"room_version": "11", "predecessor": {"room_id": fake.direct(2)}}),
        },
    );
    let closed =
        json!({"errcode": "M_FORBIDDEN", "error": "You don't have permission to post that to the room."});
    refused(Arc::clone(&fake), ("PUT", "/send/m.room.message"), 403, closed)
        .once()
        .await;
    sent(&fake, 1).await;
    assert_eq!(fake.sent()[0].conversation, "!new:hs");
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn an_answer_without_what_it_answers_is_sent_without_naming_it() {
    let unknown = json!({"errcode": "M_UNKNOWN", "error": "Can't send relation to unknown event"});
    let context = json!({"error": {"message": "(#131009) Parameter value is not valid", "code": 131_009,
        "error_data": {"messaging_product": "whatsapp", "details": "Param context.message_id is not valid"}}});
    for case in [
        refused(
            Arc::new(fakes::matrix::start().await),
            ("PUT", "/send/m.room.message"),
            400,
            unknown,
        ),
        refused(
            Arc::new(fakes::whatsapp::start().await),
            ("POST", "/messages"),
            400,
            context,
        ),
    ] {
        let stage = Stage::new(Arc::clone(&case.fake), json!({})).await;
        case.once().await;
        sent(&case.fake, 1).await;
        until(|| async { stage.report().await.queued == 0 }).await;
        assert_eq!(stage.report().await.dead, 0, "{}", case.fake.kind());
        stage.end().await;
        assert_eq!(case.fake.faults(), Vec::<String>::new(), "{}", case.fake.kind());
    }
}

#[tokio::test]
async fn an_answer_that_only_a_new_message_allows_waits_for_the_person() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::qq::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let late =
        json!({"code": 40_034_128, "message": "answered too late or too often", "err_code": 40_034_128});
    refused(Arc::clone(&fake), ("POST", "/messages"), 400, late)
        .once()
        .await;
    until(|| async { stage.report().await.dead == 1 }).await;
    let rows = stage.kernel.read_outbox(10).await.unwrap();
    let reason = rows[0].reason.clone().unwrap_or_default();
    assert!(
        reason.starts_with("it waits for the person's next message") && reason.contains("40034128"),
        "{reason}"
    );
    fake.says(&direct(&*fake, 2, 2, "say more")).await;
    sent(&fake, 2).await;
    until(|| async { stage.report().await.dead == 0 }).await;
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}
