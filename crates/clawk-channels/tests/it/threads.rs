//! `features.threads`: a message in a group begins a thread, which is a conversation of its own.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::fakes::{self, Fake, Said};
use crate::suite::{Stage, direct, sent, until};

fn in_group(fake: &dyn Fake, n: u32, person: u32, text: &str) -> Said {
    Said {
        n,
        conversation: fake.group(),
        direct: false,
        mention: true,
        sender: fake.id(person),
        text: text.to_owned(),
    }
}

fn on() -> Value {
    json!({"features": {"threads": true, "reactions": true}})
}

async fn each_its_own(fake: Arc<dyn Fake>) {
    let group = fake.group();
    let stage = Stage::new(Arc::clone(&fake), on()).await;
    let first = in_group(&*fake, 3, 2, "say first");
    fake.says(&first).await;
    sent(&fake, 1).await;
    fake.says(&in_group(&*fake, 4, 3, "say second")).await;
    sent(&fake, 2).await;
    let places: Vec<String> = fake.sent().into_iter().map(|sent| sent.conversation).collect();
    assert_ne!(places[0], group);
    assert_ne!(places[0], places[1]);
    // What is said in the thread is answered there, in its session, and begins no further thread.
    let more = Said {
        conversation: places[0].clone(),
        ..in_group(&*fake, 5, 3, "say more")
    };
    fake.says(&more).await;
    sent(&fake, 3).await;
    let all = fake.sent();
    assert_eq!(all[2].conversation, places[0]);
    assert!(all[2].text.contains("more"), "{all:?}");
    assert_eq!(stage.kernel.list_open_sessions().len(), 2);
    // A repetition is found by its id, also by another process, although it comes from the group.
    until(|| async { stage.report().await.queued == 0 }).await;
    let stage = stage.restarted().await;
    fake.says(&first).await;
    until(|| async { stage.report().await.duplicates > 0 }).await;
    // A direct message is answered where it was said.
    fake.says(&direct(&*fake, 6, 2, "say alone")).await;
    sent(&fake, 4).await;
    assert_eq!(fake.sent()[3].conversation, fake.direct(2));
    assert_eq!(fake.sent().len(), 4);
    until(|| async { fake.kept().reactions.lock().unwrap().is_empty() }).await;
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_message_in_a_group_begins_a_thread_of_its_own() {
    each_its_own(Arc::new(fakes::matrix::start().await)).await;
    each_its_own(Arc::new(fakes::lark::start().await)).await;
    each_its_own(Arc::new(fakes::discord::start().await)).await;
    each_its_own(Arc::new(fakes::slack::start().await)).await;
}

#[tokio::test]
async fn without_the_feature_an_answer_stays_where_it_was_asked() {
    for features in [json!({}), json!({"features": {"threads": false}})] {
        let fake: Arc<dyn Fake> = Arc::new(fakes::matrix::start().await);
        let stage = Stage::new(Arc::clone(&fake), features).await;
        fake.says(&in_group(&*fake, 3, 2, "say first")).await;
        sent(&fake, 1).await;
        assert_eq!(fake.sent()[0].conversation, fake.group());
        stage.end().await;
    }
}

/// The question of a call lands in the thread, and so does the answer, which another process delivers.
#[tokio::test]
async fn a_question_lands_in_the_thread() {
    for fake in [
        Arc::new(fakes::discord::start().await) as Arc<dyn Fake>,
        Arc::new(fakes::lark::start().await),
    ] {
        let stage = Stage::new(Arc::clone(&fake), on()).await;
        // Person 1 is an admin.
        fake.says(&in_group(&*fake, 3, 1, "write a line")).await;
        sent(&fake, 1).await;
        let stage = stage.reconnected().await;
        sent(&fake, 2).await;
        let asked = fake.sent()[1].clone();
        assert!(asked.text.contains("May this be done?"), "{asked:?}");
        assert_ne!(asked.conversation, fake.group());
        assert_eq!(asked.conversation, fake.sent()[0].conversation);
        let yes = &asked
            .buttons
            .iter()
            .find(|(label, _)| label == "Approve")
            .unwrap()
            .1;
        fake.press(yes, &fake.id(1), &asked).await;
        let answer = || {
            fake.sent()
                .into_iter()
                .find(|sent| sent.text.contains("It is over."))
        };
        until(|| async { answer().is_some() }).await;
        assert_eq!(answer().unwrap().conversation, asked.conversation);
        assert_eq!(stage.rig.runner.runs().len(), 1);
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new());
    }
}

/// Who is refused begins no thread; what a bot may not make is answered in the channel.
#[tokio::test]
async fn nobody_else_begins_a_thread_and_without_the_right_the_answer_goes_to_the_channel() {
    let guild = Arc::new(fakes::discord::start().await);
    let fake: Arc<dyn Fake> = Arc::clone(&guild) as _;
    let mut more = on();
    more["access_control"] = json!({"mode": "allowlist", "allowed_ids": [fake.id(2)]});
    let stage = Stage::new(Arc::clone(&fake), more).await;
    fake.says(&in_group(&*fake, 3, 3, "say hello")).await;
    until(|| async { stage.report().await.refused == 1 }).await;
    fake.says(&in_group(&*fake, 4, 2, "say <@42> a **long** story"))
        .await;
    sent(&fake, 1).await;
    let threads = guild.threads();
    assert_eq!(threads.len(), 1, "{threads:?}");
    assert_eq!(
        threads[0],
        (
            "1000004".to_owned(),
            "777".to_owned(),
            "say a **long** story".to_owned()
        )
    );
    guild.refuses_threads();
    fake.says(&in_group(&*fake, 5, 2, "say hello")).await;
    sent(&fake, 2).await;
    assert_eq!(fake.sent()[1].conversation, fake.group());
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}
