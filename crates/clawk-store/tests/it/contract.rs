//! The contract of the `Journal` port. Every back end runs it; [`Backend`] is what a new one has to give.

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::{
    ANSWER_KEPT_MS, AnswerKey, Batch, EffectChange, EventContent, InboxChange, Journal, JournalError,
    JournalScan, OpenEffect, SpentAmount,
};
use clawk_kernel::purse::BudgetAmount;
use clawk_kernel::time::Timestamp;
use clawk_postgres::{PgDatabase, PgEventQuery, PgReader, PgState, ServingOptions};
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use clawk_secrets::{EnvironmentSource, Secret};
use clawk_store::{Filter, Options, StateDir, StateDirReader};
use clawk_trace::chain::digest_of;
use clawk_trace::event::RawEvent;
use clawk_trace::verify::Verifier;
use uuid::Uuid;

use super::server::Server;
use crate::{entry, one, session, with_content};

/// Where a journal is kept, and the one that is open.
pub(crate) enum Backend {
    Sqlite {
        dir: tempfile::TempDir,
        open: StateDir,
    },
    Postgres {
        server: std::rc::Rc<Server>,
        schema: String,
        open: PgState,
    },
}

/// A database of a server, for whoever serves and for whoever reads.
pub(crate) fn database(server: &Server, schema: &str) -> PgDatabase {
    let options = clawk_postgres::Options {
        password: Some(Secret::new("PG_PASSWORD", Server::PASSWORD)),
        tls: clawk_postgres::TlsMode::Disable,
        schema: schema.to_owned(),
        connect_timeout: Duration::from_secs(30),
        operation_timeout: Duration::from_secs(60),
        ..clawk_postgres::Options::new(Secret::new("url", server.url()))
    };
    PgDatabase::new(options, &EnvironmentSource::Process).unwrap()
}

/// A lease that outlasts a busy machine.
pub(crate) fn serving(host: &str) -> ServingOptions {
    ServingOptions {
        lease: Duration::from_secs(60),
        ..ServingOptions::new("tested", host, 1)
    }
}

impl Backend {
    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = StateDir::open(dir.path(), Options::default()).unwrap();
        Self::Sqlite { dir, open }
    }

    pub(crate) async fn postgres(server: &std::rc::Rc<Server>, schema: &str) -> Self {
        let open = PgState::open(database(server, schema), serving("a"), Some(Duration::ZERO));
        Self::Postgres {
            server: std::rc::Rc::clone(server),
            schema: schema.to_owned(),
            open: open.await.unwrap(),
        }
    }

    pub(crate) fn journal(&self) -> Arc<dyn Journal> {
        match self {
            Self::Sqlite { open, .. } => open.journal(),
            Self::Postgres { open, .. } => open.journal(),
        }
    }

    /// Ends in good order, and begins anew on what is there.
    pub(crate) async fn again(self) -> Self {
        match self {
            Self::Sqlite { dir, open } => {
                open.close();
                let open = StateDir::open(dir.path(), Options::default()).unwrap();
                Self::Sqlite { dir, open }
            }
            Self::Postgres { server, schema, open } => {
                open.close().await;
                drop(open);
                Self::postgres(&server, &schema).await
            }
        }
    }

    /// Whole events, in order of rows.
    async fn events(&self) -> Vec<clawk_proto::trace::SealedEvent> {
        match self {
            Self::Sqlite { dir, .. } => {
                let found = StateDirReader::open(dir.path())
                    .unwrap()
                    .events(Filter::default())
                    .unwrap();
                found.into_iter().map(|stored| stored.event).collect()
            }
            Self::Postgres { server, schema, .. } => {
                let reader = PgReader::new(database(server, schema));
                let found = reader.read_events(PgEventQuery::default()).await.unwrap();
                found.into_iter().map(|stored| stored.event).collect()
            }
        }
    }
}

/// Each back end, empty.
pub(crate) async fn backends() -> [Backend; 2] {
    let server = std::rc::Rc::new(Server::start());
    [Backend::sqlite(), Backend::postgres(&server, "state").await]
}

async fn write(journal: &dyn Journal, batch: Batch) {
    journal
        .submit_batch(batch)
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
}

#[tokio::test]
async fn every_journal_links_the_same_chain() {
    let mut chains = Vec::new();
    for mut backend in backends().await {
        for n in 0..12_u64 {
            let at = session(u128::from(n % 3));
            let batch = Batch {
                entries: vec![entry(at, n), with_content(entry(at, 100 + n), vec![7; 40])],
                ..Batch::default()
            };
            write(&*backend.journal(), batch).await;
            if n == 6 {
                backend = backend.again().await;
            }
        }
        let events = backend.events().await;
        let mut verifier = Verifier::default();
        for (at, event) in (1..).zip(&events) {
            verifier.push(&RawEvent::of_sealed(event), at);
        }
        let report = verifier.finish();
        assert!(report.valid && report.event_count == 24, "{report:?}");
        assert_eq!(report.sessions.len(), 3);
        chains.push(serde_json::to_string(&events).unwrap());
        let journal = backend.journal();
        let rows = journal.list_sessions(10).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.events).sum::<u64>(), 24);
    }
    assert_eq!(chains[0], chains[1], "byte for byte");
}

#[tokio::test]
async fn a_scan_finds_what_it_asks_for() {
    for backend in backends().await {
        let journal = backend.journal();
        for n in 0..10 {
            let mut one_entry = with_content(entry(session(n % 2), u64::try_from(n).unwrap()), vec![1; 9]);
            one_entry.kind = if n < 5 {
                "action.executed"
            } else {
                "ckp.lifecycle.transition"
            };
            write(&*journal, one(one_entry)).await;
        }
        let found = async |scan: JournalScan| {
            let rows = journal.scan_events(scan).await.unwrap();
            rows.iter().map(|event| event.row).collect::<Vec<_>>()
        };
        assert_eq!(found(JournalScan::default()).await, (1..=10).collect::<Vec<_>>());
        let of = Some(session(1));
        assert_eq!(
            found(JournalScan {
                session: of,
                ..JournalScan::default()
            })
            .await,
            [2, 4, 6, 8, 10]
        );
        let kinds = &["ckp.lifecycle.transition"];
        assert_eq!(
            found(JournalScan {
                kinds,
                ..JournalScan::default()
            })
            .await,
            [6, 7, 8, 9, 10]
        );
        assert_eq!(
            found(JournalScan {
                kinds,
                after_row: 8,
                ..JournalScan::default()
            })
            .await,
            [9, 10]
        );
        assert_eq!(
            found(JournalScan {
                limit: 3,
                after_row: 4,
                ..JournalScan::default()
            })
            .await,
            [5, 6, 7]
        );
        let since = Some(Timestamp(1_700_000_000_000_000 + 7));
        assert_eq!(
            found(JournalScan {
                since,
                ..JournalScan::default()
            })
            .await,
            [8, 9, 10]
        );
        assert_eq!(journal.last_row_of("action.executed").await.unwrap(), Some(5));
        assert_eq!(journal.last_row_of("nothing").await.unwrap(), None);
        let page = journal
            .scan_events(JournalScan {
                with_content: true,
                limit: 1,
                ..JournalScan::default()
            })
            .await
            .unwrap();
        assert_eq!(page[0].content.as_ref().unwrap().bytes, vec![1; 9]);
        let digest = digest_of(&[1; 9]);
        assert_eq!(journal.read_content(digest).await.unwrap(), Some(vec![1; 9]));
        assert_eq!(journal.read_content(Digest([1; 32])).await.unwrap(), None);
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn boxes_sums_answers_and_effects_are_kept_with_their_events() {
    for mut backend in backends().await {
        let (at, message) = (session(1), MessageId(Uuid::from_u128(5)));
        let key = AnswerKey {
            method: 0,
            request_id: [9; 16],
        };
        let amount = BudgetAmount {
            tokens: 7,
            calls: 1,
            ..BudgetAmount::default()
        };
        let effect = OpenEffect {
            request_id: RequestId::parse("00000000-0000-4000-8000-000000000007").unwrap(),
            session: at,
            tool: "pay".to_owned(),
            parameters: Digest([3; 32]),
            at: Timestamp(1),
        };
        let mut answering = with_content(entry(at, 1), b"{\"ok\":true}".to_vec());
        answering.answers = Some(key);
        let batch = Batch {
            entries: vec![answering.clone()],
            inbox: vec![InboxChange::Accepted {
                session: at,
                message,
                arrival: None,
            }],
            spent: vec![
                SpentAmount {
                    hour: 4,
                    purse: "agent".into(),
                    amount,
                },
                SpentAmount {
                    hour: 4,
                    purse: "agent".into(),
                    amount,
                },
            ],
            effects: vec![EffectChange::Unknown(effect.clone())],
            ..Batch::default()
        };
        write(&*backend.journal(), batch).await;
        backend = backend.again().await;
        let journal = backend.journal();
        let open = journal.open_messages().await.unwrap();
        assert_eq!((open.len(), open[0].message, open[0].session), (1, message, at));
        assert_eq!(journal.message_session(message).await.unwrap(), Some(at));
        assert_eq!(
            journal.message_session(MessageId(Uuid::nil())).await.unwrap(),
            None
        );
        let spent = journal.spent_since(4).await.unwrap();
        assert_eq!(
            (spent.len(), spent[0].amount.tokens, spent[0].amount.calls),
            (1, 14, 2)
        );
        // What was assumed to be spent is taken off its own hour, and never more than is there.
        let back = |hour: i64, tokens: u64| SpentAmount {
            hour,
            purse: "agent".into(),
            amount: BudgetAmount {
                tokens,
                ..BudgetAmount::default()
            },
        };
        for (unspent, left) in [(back(4, 10), 4), (back(3, 1), 4), (back(4, 9), 0)] {
            let batch = Batch {
                unspent: vec![unspent],
                ..Batch::default()
            };
            write(&*backend.journal(), batch).await;
            let spent = journal.spent_since(0).await.unwrap();
            let sums = (spent.len(), spent[0].amount.tokens, spent[0].amount.calls);
            assert_eq!(sums, (1, left, 2));
        }
        assert!(journal.spent_since(5).await.unwrap().is_empty());
        assert_eq!(
            journal.open_effects().await.unwrap(),
            std::slice::from_ref(&effect)
        );
        let answer = journal.answer_to(key).await.unwrap().unwrap();
        assert_eq!(answer.event.content.unwrap().bytes, b"{\"ok\":true}");
        let other = AnswerKey { method: 1, ..key };
        assert!(journal.answer_to(other).await.unwrap().is_none());
        // The newest answer counts, and one is found for at least its time.
        let mut later = with_content(entry(at, 2), b"2".to_vec());
        later.at = Timestamp(answering.at.0 + ANSWER_KEPT_MS * 1000 - 1);
        later.answers = Some(key);
        let batch = Batch {
            entries: vec![later],
            inbox: vec![InboxChange::Closed {
                message,
                how: "answered",
                reason: None,
                owed: None,
            }],
            effects: vec![EffectChange::Resolved {
                request_id: effect.request_id.clone(),
                session: at,
                parameters: effect.parameters,
            }],
            ..Batch::default()
        };
        write(&*journal, batch).await;
        assert!(journal.open_messages().await.unwrap().is_empty());
        assert!(journal.open_effects().await.unwrap().is_empty());
        let answer = journal.answer_to(key).await.unwrap().unwrap();
        assert_eq!(answer.event.content.unwrap().bytes, b"2");
    }
}

#[tokio::test]
async fn a_batch_nobody_can_verify_and_one_that_is_too_large_are_refused_and_the_rest_goes_on() {
    for backend in backends().await {
        let journal = backend.journal();
        let mut floats = entry(session(1), 1);
        floats.payload = serde_json::value::to_raw_value(&serde_json::json!({"n": 1.5})).unwrap();
        let refused = journal.submit_batch(one(floats)).unwrap_err();
        assert!(matches!(refused, JournalError::Unwritable(_)), "{refused}");
        let huge = EventContent {
            digest: Digest([1; 32]),
            bytes: vec![0; 65 * 1024 * 1024],
        };
        let mut large = entry(session(1), 2);
        large.content = Some(huge);
        let refused = journal.submit_batch(one(large)).unwrap_err();
        assert!(refused.to_string().contains("may wait"), "{refused}");
        let tickets: Vec<_> = (0..500)
            .map(|n| {
                journal
                    .submit_batch(one(entry(session(n % 50), u64::try_from(n).unwrap())))
                    .unwrap()
            })
            .collect();
        let mut seen = journal.watch_commits();
        for ticket in tickets {
            ticket.wait_until_durable().await.unwrap();
        }
        journal.flush().await.unwrap();
        seen.mark_changed();
        assert_eq!(
            journal.scan_events(JournalScan::default()).await.unwrap().len(),
            500
        );
    }
}

#[tokio::test]
async fn texts_from_outside_may_hold_anything() {
    use clawk_kernel::ports::{ConversationKey, InboxArrival};
    for backend in backends().await {
        let journal = backend.journal();
        let key = ConversationKey {
            channel: "chat".to_owned(),
            conversation: "a\0b".to_owned(),
            sender: "'; DROP TABLE events; --".to_owned(),
        };
        let arrival = InboxArrival {
            key: key.clone(),
            platform_ids: vec!["\0".to_owned()],
            at: Timestamp(1),
            kept_until: Timestamp(100),
        };
        let to: SessionId = session(1);
        let message = MessageId(Uuid::from_u128(1));
        let accepted = InboxChange::Accepted {
            session: to,
            message,
            arrival: Some(arrival),
        };
        let batch = Batch {
            inbox: vec![accepted],
            ..Batch::default()
        };
        write(&*journal, batch).await;
        assert_eq!(journal.conversation_session(&key).await.unwrap(), Some(to));
        let found = journal.find_arrival("chat", "\0", Timestamp(99)).await.unwrap();
        assert_eq!(found.unwrap().message, message);
        assert!(
            journal
                .find_arrival("chat", "\0", Timestamp(100))
                .await
                .unwrap()
                .is_none()
        );
    }
}

#[tokio::test]
async fn a_host_whose_lease_was_taken_changes_nothing() {
    let server = std::rc::Rc::new(Server::start());
    let backend = Backend::postgres(&server, "state").await;
    let journal = backend.journal();
    write(&*journal, one(entry(session(1), 1))).await;
    server.sql("UPDATE state.leases SET host = 'b', epoch = epoch + 1");
    let lost = journal
        .submit_batch(one(entry(session(1), 2)))
        .unwrap()
        .wait_until_durable()
        .await;
    assert!(matches!(lost, Err(JournalError::Fenced { .. })), "{lost:?}");
    let lost = journal.submit_batch(one(entry(session(1), 3)));
    assert!(matches!(lost, Err(JournalError::Fenced { .. })), "{lost:?}");
    assert_eq!(
        journal.scan_events(JournalScan::default()).await.unwrap().len(),
        1
    );
    let second = PgState::open(database(&server, "state"), serving("c"), Some(Duration::ZERO)).await;
    assert!(second.is_err(), "the lease is `b`'s");
}
