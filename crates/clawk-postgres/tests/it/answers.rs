//! How long an answer is found when the clocks of hosts differ: the database's clock counts, and not the times of events.

use clawk_kernel::ports::{ANSWER_KEPT_MS, AnswerKey, Journal as _, JournalEntry};
use clawk_postgres::PgState;
use clawk_proto::SessionId;
use uuid::Uuid;

use super::fenced::open;
use super::*;

fn key(n: u128) -> AnswerKey {
    AnswerKey {
        method: 0,
        request_id: Uuid::from_u128(n).into_bytes(),
    }
}

/// The host answers request `n` in a session of its own, at this time of its clock.
async fn answer(state: &PgState, n: u128, at: Timestamp) {
    let entry = JournalEntry {
        session: SessionId(Uuid::from_u128(n)),
        at,
        event_id: Uuid::from_u128(n),
        span: Uuid::from_u128(0x5000),
        parent: None,
        kind: "ckp.test",
        payload: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
        content: None,
        answers: Some(key(n)),
    };
    let batch = Batch {
        entries: vec![entry],
        ..Batch::default()
    };
    state
        .journal()
        .submit_batch(batch)
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
}

/// How old the answer is, in milliseconds; `None`: it is not found.
async fn age_ms(state: &PgState, n: u128) -> Option<i64> {
    let found = state.journal().answer_to(key(n)).await.unwrap();
    found.map(|answer| answer.age_us.unwrap() / 1000)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_for_its_time_although_the_clocks_of_two_hosts_differ() {
    let server = Server::start();
    let (ahead, behind) = (open(&server, "ahead").await, open(&server, "behind").await);
    let far_ms = 4 * ANSWER_KEPT_MS;
    let kept = -1..ANSWER_KEPT_MS;
    answer(&behind, 1, T0.plus_millis(-far_ms)).await;
    // An answer of the host whose clock is ahead does not put out what the other one has just answered.
    answer(&ahead, 2, T0.plus_millis(far_ms)).await;
    answer(&behind, 3, T0.plus_millis(-far_ms)).await;
    for (state, n) in [(&ahead, 1), (&ahead, 3), (&behind, 2)] {
        let age = age_ms(state, n).await;
        assert!(age.is_some_and(|age| kept.contains(&age)), "{n}: {age:?}");
    }
    // Five minutes of the database are over, for all three.
    server.sql("UPDATE clawk.answers SET at = at - 301000000");
    let age = age_ms(&behind, 2).await;
    assert!(age.is_some_and(|age| age >= ANSWER_KEPT_MS), "{age:?}");
    answer(&behind, 4, T0.plus_millis(-far_ms)).await;
    for n in [1, 2, 3] {
        assert_eq!(age_ms(&ahead, n).await, None, "{n}");
    }
    assert!(age_ms(&ahead, 4).await.is_some());
}
