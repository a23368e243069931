//! Delivery of answers to channels: waits, dead letters, repeats, stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clawk_proto::MessageId;

use super::{answered, empty, inbound, parrot, texts};
use crate::ports::Delivery;
use crate::testing::{Rig, ScriptedChannel, ScriptedModel};
use crate::{Kernel, KnownPerson, stop};

/// Conversations, with what each attempt there comes to.
async fn delivered_by(
    rig: &Rig,
    port: ScriptedChannel,
    conversations: &[&str],
) -> (Kernel, Arc<ScriptedChannel>) {
    let kernel = rig.start().await;
    for (n, conversation) in conversations.iter().enumerate() {
        let text = format!("{conversation} {n}");
        kernel
            .submit_message(inbound(conversation, &format!("p{n}"), &text))
            .await
            .unwrap();
        answered(rig, n + 1).await;
    }
    let port = Arc::new(port);
    std::mem::forget(kernel.deliver_channel("chat", Arc::clone(&port) as _));
    (kernel, port)
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_as_long_as_the_platform_says_and_keeps_its_place() {
    let rig = parrot();
    let port = ScriptedChannel::new(|out, _| match (out.text.as_str(), out.attempt) {
        ("re: limited 0", 1) => Delivery::Retry {
            after_ms: Some(45_000),
            reason: "too many requests".to_owned(),
        },
        _ => ScriptedChannel::delivered(),
    });
    let began = tokio::time::Instant::now();
    let (_kernel, port) = delivered_by(&rig, port, &["limited", "limited", "free"]).await;
    tokio::time::sleep(Duration::from_millis(44_000)).await;
    let sent = port.sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(texts(&sent).contains(&"re: free 2"), "others go on");
    empty(&rig).await;
    assert!(began.elapsed() >= Duration::from_secs(45));
    let sent = port.sent();
    let limited: Vec<_> = sent.iter().filter(|out| out.conversation == "limited").collect();
    let order: Vec<&str> = limited.iter().map(|out| out.text.as_str()).collect();
    assert_eq!(
        order,
        ["re: limited 0", "re: limited 0", "re: limited 1"],
        "in order"
    );
    assert!(
        limited.iter().all(|out| !out.repeat),
        "the platform surely had it not"
    );
    assert_eq!(limited[1].attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_delivered_is_a_dead_letter_and_can_be_tried_again() {
    let mut rig = parrot();
    rig.outbox.max_attempts = 3;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let port = ScriptedChannel::new(move |out, _| match out.conversation.as_str() {
        "down" if is_down.load(Ordering::SeqCst) => Delivery::Retry {
            after_ms: None,
            reason: "no route".to_owned(),
        },
        "gone" if is_down.load(Ordering::SeqCst) => Delivery::Failed {
            reason: "the chat was deleted".to_owned(),
        },
        _ => ScriptedChannel::delivered(),
    });
    let (kernel, port) = delivered_by(&rig, port, &["down", "gone", "down"]).await;
    tokio::time::sleep(Duration::from_millis(600_000)).await;
    let rows = kernel.read_outbox(10).await.unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.dead), "{rows:?}");
    let attempts: Vec<u32> = rows.iter().map(|row| row.attempts).collect();
    assert_eq!(attempts, [3, 1, 3], "a refusal for good is not tried again");
    assert_eq!(rows[1].reason.as_deref(), Some("the chat was deleted"));
    // A dead letter outlives the process, and is tried again when somebody says so.
    assert!(
        !kernel
            .retry_delivery(MessageId(uuid::Uuid::nil()), "ann")
            .await
            .unwrap()
    );
    down.store(false, Ordering::SeqCst);
    let before = port.sent().len();
    for row in &rows {
        assert!(kernel.retry_delivery(row.owed.message, "ann").await.unwrap());
    }
    empty(&rig).await;
    assert_eq!(port.sent().len(), before + 3);
    assert!(
        !kernel.retry_delivery(rows[0].owed.message, "ann").await.unwrap(),
        "it is delivered"
    );
}

#[tokio::test(start_paused = true)]
async fn what_may_have_arrived_is_marked_from_then_on() {
    let rig = parrot();
    let port = ScriptedChannel::new(|out, _| match out.attempt {
        1 => Delivery::Unknown {
            reason: "the connection broke".to_owned(),
        },
        2 => Delivery::Retry {
            after_ms: None,
            reason: "busy".to_owned(),
        },
        _ => ScriptedChannel::delivered(),
    });
    let (_kernel, port) = delivered_by(&rig, port, &["room"]).await;
    empty(&rig).await;
    let repeats: Vec<bool> = port.sent().iter().map(|out| out.repeat).collect();
    assert_eq!(repeats, [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_is_given_up_as_unknown() {
    let rig = parrot();
    let port = ScriptedChannel::new(|_, _| ScriptedChannel::delivered()).taking_ms(3_600_000);
    let (kernel, port) = delivered_by(&rig, port, &["room"]).await;
    tokio::time::sleep(Duration::from_millis(crate::outbox::ATTEMPT_MS + 5_000)).await;
    let sent = port.sent();
    assert_eq!((sent.len(), sent[1].repeat), (2, true));
    assert!(kernel.shutdown("test", 10).await || port.sent().len() == 2);
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_network_holds_answers_back_and_a_failed_turn_is_told_without_its_reason() {
    let mut rig = parrot();
    let port = ScriptedChannel::default();
    let kernel = rig.start().await;
    let ann = KnownPerson::admin("test", "ann");
    kernel
        .submit_message(inbound("room", "1", "hello"))
        .await
        .unwrap();
    answered(&rig, 1).await;
    kernel
        .engage_stop(None, stop::Level::NoNetwork, &ann, None)
        .await
        .unwrap();
    let port = Arc::new(port);
    let _deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(port.sent(), []);
    kernel.lift_stop(None, &ann).await.unwrap();
    empty(&rig).await;
    assert_eq!(texts(&port.sent()), ["re: hello"]);
    kernel.shutdown("test", 1000).await;
    // A turn that fails owes its sender a word, and no inside of ours.
    let down = ScriptedModel::new(|_, _| {
        Err(ScriptedModel::fault(
            crate::ports::FaultKind::Auth,
            "no key for https://inside.example",
        ))
    });
    rig.models.insert("model".to_owned(), Arc::new(down));
    let kernel = rig.start().await;
    let taken = kernel
        .submit_message(inbound("room", "2", "hello?"))
        .await
        .unwrap();
    answered(&rig, 2).await;
    let port = Arc::new(ScriptedChannel::default());
    let _deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
    empty(&rig).await;
    let sent = port.sent();
    assert!(sent[0].text.contains("could not be answered"), "{sent:?}");
    assert!(sent[0].text.contains(&taken.message_id.to_string()) && !sent[0].text.contains("inside"));
}
