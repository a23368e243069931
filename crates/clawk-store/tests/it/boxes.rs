//! Conversations, platforms' ids and the outbox on SQLite, beside the naive ones of the kernel's tests: the same changes, the same
//! answers, also after a restart.

use clawk_kernel::ports::{
    Batch, ConversationKey, InboxArrival, InboxChange, Journal, OutboxChange, OutboxRow, OwedAnswer,
};
use clawk_kernel::testing::MemJournal;
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, SessionId};
use clawk_store::{Options, StateDir, StateDirReader, WriteDurability};
use uuid::Uuid;

use crate::session;

const DAY: i64 = 86_400_000_000;

fn message(n: u64) -> MessageId {
    MessageId(Uuid::from_u128(u128::from(n) + 1))
}

fn key(n: u64) -> ConversationKey {
    ConversationKey {
        channel: format!("chat {}", n % 2),
        conversation: format!("room {}", n % 5),
        sender: if n.is_multiple_of(3) {
            "ann".to_owned()
        } else {
            String::new()
        },
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// One random step of a life: a message comes, is answered or fails, an attempt begins or ends.
fn step(dice: &mut u64, n: u64) -> Batch {
    let at = Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap() * DAY / 8);
    let of = random(dice, n + 1);
    let accepted = InboxChange::Accepted {
        session: session(u128::from(n % 7)),
        message: message(n),
        arrival: Some(InboxArrival {
            key: key(n),
            platform_ids: vec![format!("p{}", random(dice, 40)), format!("q{n}")],
            at,
            kept_until: Timestamp(at.0 + 7 * DAY),
        }),
    };
    let owed = OwedAnswer {
        message: message(of),
        session: session(1),
        channel: key(of).channel,
        conversation: key(of).conversation,
        sender: "ann".to_owned(),
        reply_to: of.is_multiple_of(2).then(|| format!("p{of}")),
        text: (!of.is_multiple_of(4)).then_some(Digest([u8::try_from(of % 250).unwrap(); 32])),
    };
    let closed = InboxChange::Closed {
        message: message(of),
        how: if of.is_multiple_of(4) { "dead" } else { "answered" },
        reason: of.is_multiple_of(4).then(|| "why".to_owned()),
        owed: Some((owed, at)),
    };
    let message = message(of);
    let reason = "busy".to_owned();
    let (inbox, outbox) = match random(dice, 8) {
        0..=2 => (vec![accepted], Vec::new()),
        3..=4 => (vec![accepted, closed], Vec::new()),
        5 => (vec![accepted], vec![OutboxChange::Begun { message }]),
        6 => {
            let next_at = Timestamp(at.0 + i64::try_from(random(dice, 1000)).unwrap());
            let doubt = random(dice, 2) == 0;
            let again = OutboxChange::Again {
                message,
                next_at,
                doubt,
                reason,
            };
            (vec![accepted], vec![again])
        }
        _ => {
            let changes = [
                OutboxChange::Delivered { message },
                OutboxChange::Dead { message, reason },
                OutboxChange::Requeued { message, at },
            ];
            let at = usize::try_from(random(dice, 3)).unwrap();
            (vec![accepted], changes.get(at..=at).unwrap().to_vec())
        }
    };
    Batch {
        inbox,
        outbox,
        ..Batch::default()
    }
}

type Answers = (
    Vec<OutboxRow>,
    Vec<Vec<OutboxRow>>,
    Vec<Option<MessageId>>,
    Vec<Option<SessionId>>,
);

async fn answers(journal: &dyn Journal, now: Timestamp) -> Answers {
    let mut seen = Vec::new();
    for channel in ["chat 0", "chat 1"] {
        for id in (0..40).map(|n| format!("p{n}")) {
            let found = journal.find_arrival(channel, &id, now).await.unwrap();
            seen.push(found.map(|found| found.message));
        }
    }
    let mut conversations = Vec::new();
    for n in 0..30 {
        conversations.push(journal.conversation_session(&key(n)).await.unwrap());
    }
    let mut heads = Vec::new();
    for channel in ["chat 0", "chat 1"] {
        let mut rows = journal.owed_answers(channel, 100).await.unwrap();
        // Of those that are due at the same moment, any may come first.
        rows.sort_by_key(|row| (row.next_at, row.owed.message));
        heads.push(rows);
    }
    (
        journal.read_outbox(1000).await.unwrap(),
        heads,
        seen,
        conversations,
    )
}

/// The same life on PostgreSQL.
#[tokio::test]
async fn on_postgresql_the_projections_answer_as_the_naive_ones_do() {
    let server = std::rc::Rc::new(crate::server::Server::start());
    for seed in 0..3 {
        let mut dice = seed;
        let naive = MemJournal::default();
        let mut closed = Vec::new();
        let mut backend = crate::contract::Backend::postgres(&server, &format!("s{seed}")).await;
        for n in 0..160 {
            let mut batch = step(&mut dice, n);
            batch.inbox.retain(|change| match change {
                InboxChange::Closed { message, .. } => {
                    let first = !closed.contains(message);
                    closed.push(*message);
                    first
                }
                InboxChange::Accepted { .. } => true,
            });
            naive
                .submit_batch(batch.clone())
                .unwrap()
                .wait_until_durable()
                .await
                .unwrap();
            backend
                .journal()
                .submit_batch(batch)
                .unwrap()
                .wait_until_durable()
                .await
                .unwrap();
            if n % 40 == 39 {
                backend = backend.again().await;
                let now = Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap() * DAY / 8);
                let found = answers(&*backend.journal(), now).await;
                assert_eq!(found, answers(&naive, now).await, "seed {seed}, step {n}");
            }
        }
    }
}

#[tokio::test]
async fn the_projections_answer_as_the_naive_ones_do() {
    let options = Options {
        durability: WriteDurability::Relaxed,
        ..Options::default()
    };
    for seed in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let mut dice = seed;
        let naive = MemJournal::default();
        let mut closed = Vec::new();
        let mut state = StateDir::open(dir.path(), options).unwrap();
        for n in 0..160 {
            let mut batch = step(&mut dice, n);
            // The kernel ends a message once.
            batch.inbox.retain(|change| match change {
                InboxChange::Closed { message, .. } => {
                    let first = !closed.contains(message);
                    closed.push(*message);
                    first
                }
                InboxChange::Accepted { .. } => true,
            });
            naive
                .submit_batch(batch.clone())
                .unwrap()
                .wait_until_durable()
                .await
                .unwrap();
            state
                .journal()
                .submit_batch(batch)
                .unwrap()
                .wait_until_durable()
                .await
                .unwrap();
            if n % 40 == 39 {
                state.close();
                state = StateDir::open(dir.path(), options).unwrap();
                let now = Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap() * DAY / 8);
                let found = answers(&*state.journal(), now).await;
                assert_eq!(found, answers(&naive, now).await, "seed {seed}, step {n}");
                assert_eq!(
                    StateDirReader::open(dir.path()).unwrap().outbox(1000).unwrap(),
                    found.0
                );
            }
        }
        state.close();
    }
}
