//! `features.reactions`: a message that is worked on is shown to be, and only that one.

use std::sync::Arc;

use serde_json::json;

use crate::fakes::{self, Fake, Said};
use crate::suite::{Stage, direct, sent, until};

fn now(fake: &dyn Fake) -> Vec<String> {
    fake.kept().reactions.lock().unwrap().clone()
}

fn ever(fake: &dyn Fake) -> usize {
    fake.kept().reacted.lock().unwrap().len()
}

async fn while_it_is_worked_on(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({"features": {"reactions": true}})).await;
    let hello = direct(&*fake, 1, 2, "say hello");
    fake.says(&hello).await;
    sent(&fake, 1).await;
    until(|| async { ever(&*fake) == 1 && now(&*fake).is_empty() }).await;
    fake.says(&hello).await;
    until(|| async { stage.report().await.duplicates == 1 }).await;
    assert_eq!(ever(&*fake), 1, "a repetition gets none");
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_message_has_a_reaction_while_it_is_worked_on() {
    while_it_is_worked_on(Arc::new(fakes::telegram::start().await)).await;
    while_it_is_worked_on(Arc::new(fakes::slack::start().await)).await;
    while_it_is_worked_on(Arc::new(fakes::discord::start().await)).await;
    while_it_is_worked_on(Arc::new(fakes::matrix::start().await)).await;
    while_it_is_worked_on(Arc::new(fakes::whatsapp::start().await)).await;
    while_it_is_worked_on(Arc::new(fakes::lark::start().await)).await;
}

/// The admin answers the question that waits.
async fn denied(fake: &Arc<dyn Fake>) {
    let all = fake.sent();
    let asked = all
        .iter()
        .rfind(|sent| sent.text.contains("May this be done?"))
        .unwrap();
    let (_, rest) = asked.text.rsplit_once("no ").unwrap();
    let said = Said {
        n: 77,
        conversation: fake.approvals(),
        direct: true,
        mention: false,
        sender: fake.id(1),
        text: format!("no {}", rest.chars().take(8).collect::<String>()),
    };
    fake.says(&said).await;
}

async fn of_an_earlier_run(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({"features": {"reactions": true}})).await;
    fake.says(&direct(&*fake, 1, 2, "write a file")).await;
    until(|| async { !fake.sent().is_empty() && now(&*fake).len() == 1 }).await;
    // The run that put it is gone, and with it what the platform calls it.
    let stage = stage.reconnected().await;
    assert_eq!(now(&*fake).len(), 1, "it still waits");
    until(|| async { !stage.kernel.pending_questions().is_empty() }).await;
    denied(&fake).await;
    let over = || fake.sent().iter().any(|sent| sent.text.contains("It is over."));
    until(|| async { over() && now(&*fake).is_empty() }).await;
    assert_eq!(ever(&*fake), 1);
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_reaction_of_an_earlier_run_goes_with_the_answer() {
    of_an_earlier_run(Arc::new(fakes::telegram::start().await)).await;
    of_an_earlier_run(Arc::new(fakes::lark::start().await)).await;
    of_an_earlier_run(Arc::new(fakes::matrix::start().await)).await;
}

#[tokio::test]
async fn who_is_not_let_in_gets_no_reaction_and_without_the_feature_nobody_does() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let only = json!({"features": {"reactions": true},
        "access_control": {"mode": "allowlist", "allowed_ids": [fake.id(2)]}});
    let stage = Stage::new(Arc::clone(&fake), only).await;
    for n in 1..20 {
        fake.says(&direct(&*fake, n, 3, "say hello")).await;
    }
    fake.says(&direct(&*fake, 20, 2, "say hello")).await;
    sent(&fake, 1).await;
    until(|| async { ever(&*fake) == 1 && now(&*fake).is_empty() }).await;
    stage.end().await;
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({"features": {"reactions": false}})).await;
    fake.says(&direct(&*fake, 1, 2, "say hello")).await;
    sent(&fake, 1).await;
    until(|| async { stage.report().await.queued == 0 }).await;
    stage.end().await;
    assert_eq!(ever(&*fake), 0);
}

/// A storm: reactions are left out, messages and answers are not, and none stays behind.
#[tokio::test]
async fn a_storm_of_messages_is_answered_and_leaves_no_reaction() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({"features": {"reactions": true}})).await;
    for n in 1..=120 {
        fake.says(&direct(&*fake, n, 2 + n % 7, "say hello")).await;
    }
    sent(&fake, 120).await;
    until(|| async { now(&*fake).is_empty() && stage.report().await.queued == 0 }).await;
    until(|| async { now(&*fake).is_empty() }).await;
    assert_eq!(fake.sent().len(), 120);
    assert!(ever(&*fake) > 0);
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}
