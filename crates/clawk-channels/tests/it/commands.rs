//! Commands in a chat: misspelt ones, answers to questions by command, and what a person is told who waits for somebody else.

use std::sync::Arc;

use serde_json::json;

use crate::fakes::{self, Fake, Said};
use crate::suite::{Stage, direct, until};

fn told(fake: &dyn Fake, place: &str, words: &str) -> usize {
    let there = |sent: &&crate::fakes::Sent| sent.conversation == place && sent.text.contains(words);
    fake.sent().iter().filter(there).count()
}

#[tokio::test]
async fn a_misspelt_command_is_asked_back_and_reaches_no_model() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let place = fake.direct(2);
    fake.says(&direct(&*fake, 1, 2, "/stopp")).await;
    until(|| async { told(&*fake, &place, "Did you mean") == 1 }).await;
    fake.says(&direct(&*fake, 2, 2, "/stopp the presses")).await;
    until(|| async { stage.rig.models["model"].asked().len() == 1 }).await;
    assert_eq!(stage.rig.journal.inbox().len(), 1, "the word alone began no turn");
    stage.end().await;
}

#[tokio::test]
async fn who_waits_for_an_admin_is_told_once_and_the_admin_answers_by_command() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let (place, to) = (fake.direct(2), fake.approvals());
    assert_ne!(place, to);
    let by_admin = |n: u32, text: &str| Said {
        n,
        conversation: to.clone(),
        direct: true,
        mention: false,
        sender: fake.id(1),
        text: text.to_owned(),
    };
    fake.says(&by_admin(1, "/approve")).await;
    until(|| async { told(&*fake, &to, "No question waits here") == 1 }).await;
    fake.says(&direct(&*fake, 2, 2, "write a line")).await;
    until(|| async { told(&*fake, &to, "May this be done?") == 1 }).await;
    until(|| async { told(&*fake, &place, "I wait for an admin") == 1 }).await;
    // Who asked sees that it waits, and may not answer.
    fake.says(&direct(&*fake, 3, 2, "/status")).await;
    until(|| async { told(&*fake, &place, "waits for an admin's answer") == 1 }).await;
    fake.says(&direct(&*fake, 4, 2, "/approve")).await;
    until(|| async { told(&*fake, &place, "You may not do that here") == 1 }).await;
    assert_eq!(stage.rig.runner.runs(), []);
    fake.says(&by_admin(5, "/approve")).await;
    until(|| async { stage.rig.runner.runs().len() == 1 }).await;
    until(|| async { told(&*fake, &place, "It is over.") == 1 }).await;
    // A moment later the next question needs its code, or the beginning of it.
    fake.says(&direct(&*fake, 6, 2, "write another line")).await;
    until(|| async { told(&*fake, &to, "another line") == 1 }).await;
    fake.says(&by_admin(7, "/deny not today")).await;
    until(|| async { told(&*fake, &to, "decided here a moment ago") == 1 }).await;
    let asked = fake
        .sent()
        .into_iter()
        .rfind(|sent| sent.text.contains("another line"))
        .unwrap();
    let code: String = asked.text.split("no ").last().unwrap().chars().take(3).collect();
    fake.says(&by_admin(8, &format!("/deny {code} not today"))).await;
    until(|| async { told(&*fake, &place, "It is over.") == 2 }).await;
    assert_eq!(stage.rig.runner.runs().len(), 1, "denied");
    assert_eq!(
        told(&*fake, &place, "I wait for an admin"),
        2,
        "once for each question"
    );
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}
