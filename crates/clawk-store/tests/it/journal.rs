use std::os::unix::fs::PermissionsExt as _;

use clawk_kernel::kind;
use clawk_kernel::ports::{
    AnswerKey, Batch, EffectChange, InboxChange, Journal as _, JournalEntry, JournalError, JournalScan,
    OpenEffect,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use clawk_store::{Filter, Options, StateDir, StateDirReader, StateError, WriteDurability};
use clawk_trace::canonical::payload_of;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{entry, one, session, with_content};

#[tokio::test]
async fn what_is_later_than_a_time_is_found_also_where_a_clock_was_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path().join("state"), Options::default()).unwrap();
    let journal = state.journal();
    // A thousand minutes, and half an hour back at the six hundredth.
    let minute = |n: i64| Timestamp(1_700_000_000_000_000 + n * 60_000_000);
    let times: Vec<Timestamp> = (0..600).chain(570..1000).map(minute).collect();
    let entries = times.iter().zip(0..).map(|(at, n)| JournalEntry {
        at: *at,
        ..entry(session(1), n)
    });
    let batch = Batch {
        entries: entries.collect(),
        ..Batch::default()
    };
    journal
        .submit_batch(batch)
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    for since in [0, 1, 570, 585, 599, 600, 998, 999, 1000].map(minute) {
        let scan = JournalScan {
            since: Some(since),
            limit: 2000,
            ..JournalScan::default()
        };
        let found = journal.scan_events(scan).await.unwrap();
        let wanted = times.iter().filter(|at| **at >= since).count();
        assert_eq!(found.len(), wanted, "{since}");
    }
    drop(journal);
    state.close();
}

#[tokio::test]
async fn what_was_written_is_read_in_order_and_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path().join("state"), Options::default()).unwrap();
    let journal = state.journal();
    for n in 0..10 {
        let batch = Batch {
            entries: vec![entry(session(1), n), entry(session(2), n)],
            ..Batch::default()
        };
        journal
            .submit_batch(batch)
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    let all = journal.scan_events(JournalScan::default()).await.unwrap();
    assert_eq!(all.len(), 20);
    assert!(all.windows(2).all(|pair| pair[0].row < pair[1].row));
    let only = JournalScan {
        session: Some(session(2)),
        after_row: all[9].row,
        limit: 3,
        ..JournalScan::default()
    };
    let page = journal.scan_events(only).await.unwrap();
    assert_eq!(
        page.iter().map(|e| (e.session, e.sequence)).collect::<Vec<_>>(),
        [5, 6, 7].map(|n| (session(2), n))
    );
    assert_eq!(page[0].payload, "{\"n\":5,\"tool\":\"echo\"}");
    let since = JournalScan {
        since: Some(Timestamp(1_700_000_000_000_008)),
        ..JournalScan::default()
    };
    assert_eq!(journal.scan_events(since).await.unwrap().len(), 4);
    let sessions = journal.list_sessions(10).await.unwrap();
    assert_eq!(sessions.iter().map(|s| s.events).collect::<Vec<_>>(), [10, 10]);

    // From outside, while the agent owns it.
    let reader = StateDirReader::open(state.path()).unwrap();
    let report = reader.verify(None).unwrap();
    assert!(report.valid, "{:?}", report.fault);
    assert_eq!((report.event_count, report.sessions.len()), (20, 2));
    let lines: String = reader
        .events(Filter {
            session: Some(session(1)),
            ..Filter::default()
        })
        .unwrap()
        .iter()
        .map(|stored| serde_json::to_string(&stored.event).unwrap() + "\n")
        .collect();
    assert!(
        clawk_trace::verify(lines.as_bytes()).unwrap().valid,
        "the export verifies without us"
    );
}

#[tokio::test]
async fn kinds_are_found_by_their_index_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let journal = state.journal();
    for n in 0..6 {
        let mut entry = entry(session(1), n);
        entry.kind = if n % 2 == 0 {
            "ckp.provider.completed"
        } else {
            "ckp.custom"
        };
        journal.submit_batch(one(entry)).unwrap();
    }
    journal.flush().await.unwrap();
    for kinds in [
        &["ckp.provider.completed"][..],
        &["ckp.custom"],
        &["ckp.custom", "session.ended"],
    ] {
        let kinds: &'static [&'static str] = Box::leak(kinds.into());
        assert_eq!(
            journal
                .scan_events(JournalScan {
                    kinds,
                    ..JournalScan::default()
                })
                .await
                .unwrap()
                .len(),
            3,
            "{kinds:?}"
        );
    }
    assert_eq!(
        journal.last_row_of("ckp.provider.completed").await.unwrap(),
        Some(5)
    );
    assert_eq!(journal.last_row_of("ckp.custom").await.unwrap(), Some(6));
    assert_eq!(
        journal.last_row_of("ckp.lifecycle.transition").await.unwrap(),
        None
    );
}

#[tokio::test]
async fn a_restart_goes_on_with_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let state = StateDir::open(dir.path(), Options::default()).unwrap();
        for n in 0..5 {
            state
                .journal()
                .submit_batch(one(entry(session(1), round * 5 + n)))
                .unwrap();
        }
        state.close();
        let refused = state.journal().submit_batch(one(entry(session(1), 99)));
        assert!(matches!(refused, Err(JournalError::Unwritable(_))));
    }
    let report = StateDirReader::open(dir.path()).unwrap().verify(None).unwrap();
    assert_eq!((report.valid, report.event_count), (true, 15));
}

#[tokio::test]
async fn the_inbox_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let journal = state.journal();
    let message = |n| MessageId(Uuid::from_u128(n));
    for n in 0..4 {
        let inbox = vec![InboxChange::Accepted {
            session: session(1),
            message: message(n),
            arrival: None,
        }];
        let entries = vec![entry(session(1), u64::try_from(n).unwrap())];
        journal
            .submit_batch(Batch {
                entries,
                inbox,
                ..Batch::default()
            })
            .unwrap();
    }
    let closed = |n, how, reason: Option<&str>| InboxChange::Closed {
        message: message(n),
        how,
        reason: reason.map(str::to_owned),
        owed: None,
    };
    let inbox = vec![
        closed(0, "answered", None),
        closed(2, "refused", Some("too large")),
    ];
    journal
        .submit_batch(Batch {
            inbox,
            ..Batch::default()
        })
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    let open: Vec<_> = journal
        .open_messages()
        .await
        .unwrap()
        .iter()
        .map(|open| open.message)
        .collect();
    assert_eq!(open, [message(1), message(3)]);
}

#[tokio::test]
async fn a_second_owner_is_refused_with_the_first_ones_pid() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path().join("s"), Options::default()).unwrap();
    let mode = std::fs::metadata(state.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let error = StateDir::open(state.path(), Options::default()).unwrap_err();
    assert!(matches!(error, StateError::Locked { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    assert!(text.contains(&state.path().display().to_string()), "{text}");
    state.close();
    StateDir::open(state.path(), Options::default()).unwrap();
}

#[tokio::test]
async fn commits_are_grouped_when_many_wait() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let journal = state.journal();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..64 {
        let journal = journal.clone();
        workers.spawn(async move {
            for n in 0..20 {
                journal
                    .submit_batch(one(entry(session(worker), n)))
                    .unwrap()
                    .wait_until_durable()
                    .await
                    .unwrap();
            }
        });
    }
    workers.join_all().await;
    let stats = state.stats();
    assert_eq!(stats.entries, 64 * 20);
    assert!(stats.commits * 4 < stats.entries, "{stats:?}");
}

#[tokio::test]
async fn a_full_queue_refuses_and_names_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        queue_entries: 8,
        ..Options::default()
    };
    let state = StateDir::open(dir.path(), options).unwrap();
    let journal = state.journal();
    let entries: Vec<_> = (0..9).map(|n| entry(session(1), n)).collect();
    let refused = journal.submit_batch(Batch {
        entries,
        ..Batch::default()
    });
    assert!(
        matches!(refused, Err(JournalError::Full { limit: 8 })),
        "{refused:?}"
    );
    journal
        .submit_batch(one(entry(session(1), 0)))
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    assert_eq!(
        journal.scan_events(JournalScan::default()).await.unwrap()[0].sequence,
        0,
        "nothing of the refused batch was taken"
    );
}

#[tokio::test]
async fn a_payload_that_nobody_could_verify_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    for payload in ["{\"b\":1,\"a\":2}", "{\"a\":1.5}", "{ }", "[]"] {
        let mut entry = entry(session(1), 0);
        entry.payload = RawValue::from_string(payload.to_owned()).unwrap();
        assert!(state.journal().submit_batch(one(entry)).is_err(), "{payload}");
    }
}

#[tokio::test]
async fn stored_answers_are_found_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: WriteDurability::Relaxed,
        ..Options::default()
    };
    let key = |n: u128| AnswerKey {
        method: 0,
        request_id: Uuid::from_u128(n * 0x9e37_79b9_7f4a_7c15_1234_5678).into_bytes(),
    };
    let state = StateDir::open(dir.path(), options).unwrap();
    for n in 0..10_000_u64 {
        let mut entry = with_content(entry(session(1), n), n.to_string().into_bytes());
        entry.answers = Some(key(u128::from(n)));
        state.journal().submit_batch(one(entry)).unwrap();
        if n % 2000 == 0 {
            state.journal().flush().await.unwrap();
        }
    }
    state.journal().flush().await.unwrap();
    for again in [false, true] {
        if again {
            state.close();
        }
        let other = again.then(|| StateDir::open(dir.path(), options).unwrap());
        let journal = other.as_ref().unwrap_or(&state).journal();
        for n in [0, 4095, 4096, 9_999] {
            let found = journal.answer_to(key(n)).await.unwrap().expect("an answer");
            assert_eq!(found.event.content.unwrap().bytes, n.to_string().into_bytes());
        }
        assert!(journal.answer_to(key(10_001)).await.unwrap().is_none());
        let other_method = AnswerKey { method: 1, ..key(1) };
        assert!(journal.answer_to(other_method).await.unwrap().is_none());
        if let Some(other) = other {
            // How long the machine was off is not known: what is there counts from the first answer. Six minutes after it the old
            // ones may go, the new ones are there.
            for n in 10_100..30_000_u64 {
                let mut entry = entry(session(1), n);
                let late_ms = if n < 20_000 { 360_000 } else { 720_000 };
                entry.at = entry.at.plus_millis(late_ms);
                entry.answers = Some(key(u128::from(n)));
                journal.submit_batch(one(entry)).unwrap();
                if n % 2000 == 0 {
                    journal.flush().await.unwrap();
                }
            }
            journal.flush().await.unwrap();
            assert!(journal.answer_to(key(29_999)).await.unwrap().is_some());
            assert!(journal.answer_to(key(0)).await.unwrap().is_none());
            other.close();
        }
    }
}

fn effect(n: u8, at: SessionId, parameters: u8) -> OpenEffect {
    OpenEffect {
        request_id: RequestId::parse(&format!("00000000-0000-4000-8000-0000000000{n:02}")).unwrap(),
        session: at,
        tool: "order".to_owned(),
        parameters: Digest([parameters; 32]),
        at: Timestamp(1),
    }
}

#[tokio::test]
async fn unknown_effects_of_one_request_id_stand_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path().join("state"), Options::default()).unwrap();
    let journal = state.journal();
    let change = async |effects: Vec<EffectChange>| {
        let batch = Batch {
            effects,
            ..Batch::default()
        };
        journal
            .submit_batch(batch)
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
        journal.open_effects().await.unwrap()
    };
    let all = [
        effect(1, session(1), 1),
        effect(1, session(2), 1),
        effect(1, session(1), 2),
    ];
    // One of them twice: the same effect, told again.
    let told = all.iter().chain(&all[..1]).cloned().map(EffectChange::Unknown);
    assert_eq!(change(told.collect()).await, all);
    let known = EffectChange::Resolved {
        request_id: all[1].request_id.clone(),
        session: all[1].session,
        parameters: all[1].parameters,
    };
    assert_eq!(change(vec![known]).await, [all[0].clone(), all[2].clone()]);
    state.close();
}

/// The contents of others are not even opened: they can't be.
#[tokio::test]
async fn one_run_of_ten_thousand_is_read_without_the_contents_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path().join("state"), Options::default()).unwrap();
    let journal = state.journal();
    let of = |run: u64, kind: &'static str, n: u64| {
        let payload = serde_json::json!({ "run": format!("run-{run:05}"), "swarm": "team" });
        let entry = JournalEntry {
            kind,
            payload: payload_of(&payload).unwrap(),
            ..entry(session(1), n)
        };
        with_content(entry, format!("{kind} of {run}").into_bytes())
    };
    for group in 0..20 {
        let runs = (0..500).map(|at| group * 500 + at);
        let entries = runs.flat_map(|run| {
            [
                of(run, kind::SWARM_RUN, 2 * run),
                of(run, kind::SWARM_ENDED, 2 * run + 1),
            ]
        });
        let batch = Batch {
            entries: entries.collect(),
            ..Batch::default()
        };
        journal
            .submit_batch(batch)
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    let scan = |run: u64| JournalScan {
        kinds: &[kind::SWARM_RUN, kind::SWARM_ENDED],
        says: Some(format!("\"run\":\"run-{run:05}\"")),
        with_content: true,
        ..JournalScan::default()
    };
    for run in [0, 4_321, 9_999] {
        let found = journal.scan_events(scan(run)).await.unwrap();
        let contents: Vec<_> = found
            .iter()
            .map(|event| event.content.as_ref().unwrap().bytes.clone())
            .collect();
        let wanted = [kind::SWARM_RUN, kind::SWARM_ENDED].map(|kind| format!("{kind} of {run}").into_bytes());
        assert_eq!(contents, wanted);
    }
    assert!(journal.scan_events(scan(10_000)).await.unwrap().is_empty());
    drop(journal);
    state.close();
    crate::forge(
        &dir.path().join("state"),
        "UPDATE events SET content = x'00' WHERE instr(payload, 'run-04321') = 0",
    );
    let reader = StateDirReader::open(dir.path().join("state")).unwrap();
    assert_eq!(reader.recorded_events(&scan(4_321)).unwrap().len(), 2);
    assert!(
        reader.recorded_events(&scan(4_322)).is_err(),
        "a changed content is read"
    );
}
