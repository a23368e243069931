//! Many watchers, one of which does not read.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{BACKLOG, NoticeSender, SLOW_MS};
use crate::notice::SessionNotice;

fn said(text: &str) -> SessionNotice {
    SessionNotice::Said(text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn every_watcher_is_told_everything_in_order() {
    let (notices, over) = (NoticeSender::new(), CancellationToken::new());
    assert!(!notices.attached());
    let (one, two) = (notices.watch(over.clone()), notices.watch(over.clone()));
    assert!(notices.attached());
    notices.delta("a");
    notices.send(said("ab")).await;
    for watcher in [&one, &two] {
        assert_eq!(watcher.next().await, Some(SessionNotice::Delta("a".to_owned())));
        assert_eq!(watcher.next().await, Some(said("ab")));
    }
    drop(one);
    notices.send(said("c")).await;
    over.cancel();
    assert_eq!(two.next().await, Some(said("c")));
    assert_eq!(two.next().await, None);
    drop(two);
    assert!(!notices.attached());
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_misses_pieces_first_and_is_told() {
    let notices = NoticeSender::new();
    let slow = notices.watch(CancellationToken::new());
    let start = Instant::now();
    for _ in 0..BACKLOG + 10 {
        notices.delta("x");
    }
    for n in 0..5 {
        notices.send(said(&n.to_string())).await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "pieces hold nothing up");
    assert_eq!(slow.next().await, Some(SessionNotice::Missed(15)));
    let mut heard = Vec::new();
    while heard.len() < 5 {
        if let Some(SessionNotice::Said(text)) = slow.next().await {
            heard.push(text);
        }
    }
    assert_eq!(heard, ["0", "1", "2", "3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_is_stuck_holds_a_turn_up_once_and_the_others_miss_nothing() {
    let notices = NoticeSender::new();
    let over = CancellationToken::new();
    let stuck = notices.watch(over.clone());
    let lively = notices.watch(over);
    let start = Instant::now();
    let count = 2 * BACKLOG;
    let hear = async {
        for n in 0..count {
            assert_eq!(lively.next().await, Some(said(&n.to_string())));
        }
    };
    let tell = async {
        for n in 0..count {
            notices.send(said(&n.to_string())).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(hear, tell);
    assert_eq!(start.elapsed(), Duration::from_millis(SLOW_MS), "held up once");
    let missed = u64::try_from(count - BACKLOG).unwrap();
    assert_eq!(stuck.next().await, Some(SessionNotice::Missed(missed)));
    assert_eq!(stuck.next().await, Some(said("0")));
    // It has caught up: from now on it is told again.
    for _ in 1..BACKLOG {
        stuck.next().await;
    }
    notices.send(said("again")).await;
    assert_eq!(stuck.next().await, Some(said("again")));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_goes_away_lets_the_turn_go_on_at_once() {
    let notices = NoticeSender::new();
    let gone = notices.watch(CancellationToken::new());
    for n in 0..BACKLOG {
        notices.send(said(&n.to_string())).await;
    }
    let start = Instant::now();
    let leave = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(gone);
    };
    tokio::join!(notices.send(said("more")), leave);
    assert_eq!(start.elapsed(), Duration::from_millis(5));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_turn_reaches_even_a_watcher_that_was_stuck() {
    let notices = NoticeSender::new();
    let stuck = notices.watch(CancellationToken::new());
    for n in 0..=BACKLOG {
        notices.send(said(&n.to_string())).await;
    }
    let end = SessionNotice::TurnEnded {
        message: clawk_proto::MessageId(uuid::Uuid::nil()),
        end: crate::notice::TurnEnd::Answered,
        stop: crate::notice::TurnStop::Answered,
        usage: crate::ports::Usage::default(),
    };
    notices.send(end.clone()).await;
    let mut last = None;
    for _ in 0..=BACKLOG {
        last = stuck.next().await;
    }
    assert_eq!(last, Some(end));
}
