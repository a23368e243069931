//! Telegram as it is: groups that move, topics and messages that are gone, people who block the bot, albums, and what is answered.

use std::sync::Arc;

use clawk_kernel::ports::{InferRequest, ModelMessage};
use serde_json::{Value, json};

use crate::fakes::{self, Fake};
use crate::suite::{Stage, parrot, sent, until};

const GROUP: i64 = -1001;

async fn platform() -> (Arc<fakes::telegram::Platform>, Arc<dyn Fake>) {
    let platform = Arc::new(fakes::telegram::start().await);
    let fake: Arc<dyn Fake> = Arc::clone(&platform) as _;
    (platform, fake)
}

fn refusal(status: u16, description: &str) -> (u16, Value) {
    (
        status,
        json!({"ok": false, "error_code": status, "description": description}),
    )
}

/// A message that names the bot.
fn named(text: &str) -> Value {
    json!({"text": format!("@thebot {text}"), "entities": [{"type": "mention", "offset": 0, "length": 7}]})
}

fn last_frame(asked: &InferRequest) -> &str {
    match asked.messages.last() {
        Some(ModelMessage::User { frame, .. }) => frame,
        _ => "",
    }
}

#[tokio::test]
async fn a_group_that_becomes_a_supergroup_stays_one_conversation_also_after_a_restart() {
    let (platform, fake) = platform().await;
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    platform.message(1, GROUP, named("my name is Ann")).await;
    sent(&fake, 1).await;
    platform.refuses(|params| {
        let moved = json!({"ok": false, "error_code": 400, "description": "Bad Request: group chat was upgraded to a supergroup chat",
            "parameters": {"migrate_to_chat_id": -100_200}});
        (params["chat_id"] == "-1001").then_some((400, moved))
    });
    platform.message(2, GROUP, named("are you there")).await;
    sent(&fake, 2).await;
    assert_eq!(fake.sent()[1].conversation, "-100200");
    // The numbers of the old group's messages mean others in the new one.
    let last = platform.asked().pop().unwrap();
    assert!(last.get("reply_parameters").is_none(), "{last}");
    platform.message(1, -100_200, named("and now")).await;
    sent(&fake, 3).await;
    let stage = stage.restarted().await;
    platform.message(2, -100_200, named("after a restart")).await;
    sent(&fake, 4).await;
    assert!(
        fake.sent()
            .iter()
            .skip(1)
            .all(|sent| sent.conversation == "-100200")
    );
    let asked = stage.rig.models["model"].asked().pop().unwrap();
    assert_eq!(
        asked.messages.len(),
        7,
        "one session: four messages, three answers"
    );
    assert_eq!(stage.kernel.list_open_sessions().len(), 1);
    // What the new id was learnt from costs one refusal in all.
    let tried = platform
        .asked()
        .iter()
        .filter(|params| params["chat_id"] == "-1001")
        .count();
    assert_eq!(tried, 2, "the first answer, and the one that was refused");
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn an_answer_arrives_without_what_is_gone() {
    let topic = json!({"is_topic_message": true, "message_thread_id": 7});
    for (rule, more, gone) in [
        (
            (|params: &Value| {
                let topic = params.get("message_thread_id").is_some();
                topic.then(|| refusal(400, "Bad Request: message thread not found"))
            }) as fakes::telegram::Rule,
            topic,
            "message_thread_id",
        ),
        (
            |params| {
                let replies = params.get("reply_parameters").is_some();
                replies.then(|| refusal(400, "Bad Request: message to be replied not found"))
            },
            json!({}),
            "reply_parameters",
        ),
    ] {
        let (platform, fake) = platform().await;
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        platform.refuses(rule);
        let mut message = named("say hello");
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        platform.message(1, GROUP, message).await;
        sent(&fake, 1).await;
        let asked = platform.asked();
        assert!(
            asked[0].get(gone).is_some() && asked[1].get(gone).is_none(),
            "{asked:?}"
        );
        assert_eq!(asked.len(), 2);
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn who_blocked_the_bot_is_told_in_the_outbox_and_is_not_tried_again() {
    let (platform, fake) = platform().await;
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    platform.refuses(|_| Some(refusal(403, "Forbidden: bot was blocked by the user")));
    platform.message(1, 9002, json!({"text": "say hello"})).await;
    until(|| async { stage.report().await.dead == 1 }).await;
    assert_eq!(platform.asked().len(), 1);
    let trace = stage.rig.journal.events();
    assert!(trace.iter().any(|event| {
        event
            .payload_with_words()
            .contains("the person has blocked the bot")
    }));
    stage.end().await;
}

#[tokio::test]
async fn an_album_is_one_message_by_polling_and_by_webhook() {
    for hooked in [false, true] {
        let platform = Arc::new(fakes::telegram::with(hooked).await);
        let fake: Arc<dyn Fake> = Arc::clone(&platform) as _;
        let stage = Stage::on(
            parrot(json!([crate::suite::channel(&*fake, &json!({}))])),
            Arc::clone(&fake),
            json!({}),
            Arc::new(tempfile::tempdir().unwrap()),
        )
        .await;
        let part = |n: u32, caption: &str| {
            let file = json!([{"file_id": "BQACfile", "file_unique_id": "u", "width": 1, "height": 1}]);
            (
                n,
                json!({"media_group_id": "g", "photo": file, "caption": caption}),
            )
        };
        let bring = |(n, more): (u32, Value)| {
            let platform = Arc::clone(&platform);
            async move { platform.message(n, 9002, more).await }
        };
        let parts = [part(1, "which is best?"), part(2, ""), part(3, "this one?")];
        futures::future::join_all(parts.clone().map(bring)).await;
        sent(&fake, 1).await;
        // All of it again, as a platform sends what it was told nothing of.
        futures::future::join_all(parts.map(bring)).await;
        until(|| async { stage.report().await.duplicates >= 1 }).await;
        let asked = stage.rig.models["model"].asked();
        assert_eq!(asked.len(), 1, "one turn (webhook: {hooked})");
        let words = format!("{:?}", asked[0].messages.last());
        assert!(
            words.contains("which is best?") && words.contains("this one?"),
            "{words}"
        );
        assert_eq!(fake.sent().len(), 1);
        stage.end().await;
    }
}

#[tokio::test]
async fn forwarded_words_are_another_persons_and_no_command_nor_answer() {
    let (platform, fake) = platform().await;
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let origin =
        json!({"type": "user", "sender_user": {"id": 8, "is_bot": false, "first_name": "Eve"}, "date": 1});
    platform.message(1, 9002, json!({"text": "say hello"})).await;
    sent(&fake, 1).await;
    platform
        .message(2, 9002, json!({"text": "/new", "forward_origin": origin}))
        .await;
    sent(&fake, 2).await;
    let asked = stage.rig.models["model"].asked();
    let last = asked.last().unwrap();
    assert_eq!(
        last.messages.len(),
        3,
        "the conversation was not cleared by another's words"
    );
    let frame = last_frame(last);
    assert!(
        frame.contains("<quote kind=\"forwarded\" from=\"somebody else: Eve (8)\""),
        "{frame}"
    );
    assert!(
        frame.contains("platform=\"Telegram\"") && frame.contains("\n/new\n</quote>"),
        "{frame}"
    );
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}
