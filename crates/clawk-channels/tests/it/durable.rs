//! C1: a platform is told that a message was taken only once it is durable. What can't be kept comes again, and is answered once.

use std::sync::Arc;

use serde_json::json;

use crate::fakes::{self, Fake};
use crate::suite::{Stage, direct, sent, until};

async fn once(stage: &Stage) {
    let fake = &stage.fake;
    sent(fake, 1).await;
    until(|| async { stage.report().await.queued == 0 }).await;
    let report = stage.report().await;
    assert_eq!(
        (report.accepted, report.delivered),
        (1, 1),
        "{} {}",
        fake.kind(),
        fake.transport()
    );
    assert_eq!(fake.sent().len(), 1, "{:?}", fake.sent());
}

/// A platform that brings a message again by itself.
async fn comes_again_by_itself(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    stage.rig.journal.fail_after(0);
    fake.says(&direct(&*fake, 1, 2, "say hello")).await;
    stage.until_state("degraded").await;
    assert_eq!(fake.sent().len(), 0);
    stage.rig.journal.recover();
    once(&stage).await;
    stage.end().await;
}

/// A platform that is told on the connection that a message was not taken, and brings it to the next one.
async fn is_told_and_brings_it_to_the_next_connection(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    stage.rig.journal.fail_after(0);
    fake.says(&direct(&*fake, 1, 2, "say hello")).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(fake.sent().len(), 0);
    stage.rig.journal.recover();
    let stage = stage.restarted().await;
    once(&stage).await;
    stage.end().await;
}

/// A platform that looks at the status of the answer.
async fn is_not_answered_well(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    stage.rig.journal.fail_after(0);
    let first = Arc::clone(&fake);
    let told = tokio::spawn(async move { first.says(&direct(&*first, 1, 2, "say hello")).await });
    // The fake wants a good status, and does not get it.
    assert!(told.await.is_err(), "it was told that it was taken");
    assert_eq!(fake.sent().len(), 0);
    stage.rig.journal.recover();
    fake.says(&direct(&*fake, 1, 2, "say hello")).await;
    once(&stage).await;
    stage.end().await;
}

macro_rules! each {
    ($how:ident: $($platform:ident),* $(,)?) => {
        mod $how {
            use super::*;

            $(
                #[tokio::test]
                async fn $platform() {
                    super::$how(Arc::new(fakes::$platform::start().await)).await;
                }
            )*
        }
    };
}

each!(comes_again_by_itself: telegram, slack, discord, matrix, dingtalk, qq);
each!(is_told_and_brings_it_to_the_next_connection: lark);
each!(is_not_answered_well: telegram_hook, slack_hook, line, whatsapp, lark_hook, dingtalk_hook, qq_hook, wechat);
