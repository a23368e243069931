//! When an effect may begin, and when a report may go out.

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::time::{Clock, SystemClock};
use clawk_proto::RequestId;
use tokio::time::{Instant, advance, timeout};

use super::{Claims, PATIENCE, YOUNG};
use crate::peers::bus::VISIBLE_AGAIN;
use crate::queue::sqlite::CkpSqliteBroker;
use crate::queue::{Broker as _, BrokerSubscription};

fn task() -> RequestId {
    RequestId::parse("00000000-0000-4000-8000-000000000001").unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_effect_waits_while_its_host_is_not_heard_and_begins_when_it_holds_the_task_again() {
    let claims = Arc::new(Claims::default());
    let held = claims.hold_task(&task(), "hand");
    assert!(claims.wait_fresh_claim(&task()).await.is_ok());
    advance(YOUNG).await;
    // Cut off for two thirds of the time: nothing begins, and the report may still go out.
    assert!(
        timeout(Duration::from_secs(5), claims.wait_fresh_claim(&task()))
            .await
            .is_err()
    );
    assert!(held.may_report());
    // A sign that the bus heard in time makes it young.
    held.note_heard(Instant::now());
    assert!(claims.wait_fresh_claim(&task()).await.is_ok());
    // One that left after the bus gave the task away proves nothing.
    advance(VISIBLE_AGAIN).await;
    held.note_heard(Instant::now());
    assert!(
        timeout(Duration::from_secs(5), claims.wait_fresh_claim(&task()))
            .await
            .is_err()
    );
    assert!(!held.may_report());
    // The bus gives it to this host again.
    let waiting = {
        let claims = Arc::clone(&claims);
        #[expect(clippy::disallowed_methods, reason = "awaited below")]
        tokio::spawn(async move { claims.wait_fresh_claim(&task()).await.is_ok() })
    };
    tokio::task::yield_now().await;
    let again = claims.hold_task(&task(), "hand");
    assert!(waiting.await.unwrap());
    assert!(again.may_report());
    // Or it never does.
    advance(VISIBLE_AGAIN).await;
    let start = Instant::now();
    assert!(claims.wait_fresh_claim(&task()).await.is_err());
    assert!(start.elapsed() >= PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn whose_effects_have_begun_reports_after_a_cut_and_whose_are_lost_never_does() {
    let claims = Claims::default();
    let held = claims.hold_task(&task(), "hand");
    held.mark_owned();
    advance(VISIBLE_AGAIN * 4).await;
    assert!(held.may_report(), "nobody else can have done anything");
    assert!(claims.hold_task(&task(), "hand").is_owner(), "it stays the owner");
    held.mark_lost();
    assert!(!held.may_report());
    let other = claims.hold_task(&task(), "hand");
    other.mark_lost();
    let start = Instant::now();
    assert!(claims.wait_fresh_claim(&task()).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO, "known at once");
}

#[tokio::test]
async fn of_two_hosts_that_begin_effects_of_one_task_the_bus_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let open = |host: &str| {
        let lane = BrokerSubscription {
            take: "claw.team.hand.inbox".to_owned(),
            shared: false,
            group: "clawk-swarm".to_owned(),
            reader: host.to_owned(),
            ack_wait: VISIBLE_AGAIN,
            at_once: 1,
            puts: Vec::new(),
            dead: "claw.team.dead".to_owned(),
            owners: Some("claw.team.begun".to_owned()),
        };
        CkpSqliteBroker::open(&clock, &folder.path().join("bus.db"), lane).unwrap()
    };
    let (one, two) = (open("one"), open("two"));
    assert_eq!(two.task_owner("t").await.unwrap(), None);
    assert_eq!(one.claim_task("t", "one").await.unwrap(), "one");
    assert_eq!(two.claim_task("t", "two").await.unwrap(), "one");
    assert_eq!(one.claim_task("t", "one").await.unwrap(), "one", "asked again");
    assert_eq!(two.task_owner("t").await.unwrap().as_deref(), Some("one"));
    assert_eq!(two.claim_task("u", "two").await.unwrap(), "two");
}
