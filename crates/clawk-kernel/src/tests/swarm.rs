//! Swarm and memory operations in one process.

use std::sync::Arc;

use clawk_proto::RequestId;
use clawk_proto::method::{
    BroadcastParams, DelegateContext, DelegateParams, DelegateTask, DiscoverParams, MemoryCompactParams,
    MemoryContext, MemoryQuery, MemoryQueryParams, MemoryStoreParams, NewEntry, PeerStatus, ReportParams,
    TaskStatus,
};
use serde_json::{Value, json};

use super::{agent, allow_all, id, rig, rpc};
use crate::error::KernelError;
use crate::ports::ModelMessage;
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, kind};

fn team() -> Value {
    let mut spec = agent(allow_all());
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
        "agents": [{"identity_ref": "lead", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 2}],
        "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {"max_parallel": 3}},
        "aggregation": {"strategy": "merge"}});
    spec["memory"] = json!({"name": "mem", "stores": [{"name": "notes", "type": "conversation"}]});
    spec
}

fn task(n: u32) -> DelegateParams {
    DelegateParams {
        task_id: id(1000 + n),
        task: DelegateTask {
            description: "count the beans".to_owned(),
            input: Some(json!({"beans": 3})),
        },
        context: DelegateContext {
            request_id: id(n),
            swarm: "team".to_owned(),
            member: Some("hand".to_owned()),
            report_token: None,
            limits: None,
            proof: None,
        },
    }
}

async fn reported(rig: &crate::testing::Rig, task: &RequestId) -> String {
    for _ in 0..1000 {
        let found = rig
            .journal
            .events()
            .into_iter()
            .find(|e| e.kind == kind::SWARM_REPORTED && e.payload.contains(task.as_str()));
        if let Some(event) = found {
            return event.payload;
        }
        tokio::task::yield_now().await;
    }
    panic!("no report");
}

#[tokio::test]
async fn a_delegated_task_runs_on_a_peer_session_and_is_reported_once() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    assert!(kernel.delegate_task(session, task(1)).await.unwrap().acknowledged);
    assert!(
        kernel.delegate_task(session, task(1)).await.unwrap().acknowledged,
        "a repetition is the same answer"
    );
    let payload = reported(&rig, &id(1001)).await;
    assert!(
        payload.contains(r#""status":"completed""#) && payload.contains(r#""orphan":false"#),
        "{payload}"
    );
    let delegated = rig
        .journal
        .kinds()
        .iter()
        .filter(|k| *k == kind::SWARM_DELEGATED)
        .count();
    assert_eq!(delegated, 1);
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

/// The tasks that a started agent has going before anybody comes.
async fn at_rest(kernel: &Kernel) -> usize {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    kernel.task_count()
}

/// Waits until no more tasks are going than at rest; how many are.
async fn idle(kernel: &Kernel, rest: usize) -> usize {
    for _ in 0..10_000 {
        if kernel.task_count() <= rest {
            break;
        }
        tokio::task::yield_now().await;
    }
    kernel.task_count()
}

#[tokio::test]
async fn nothing_is_left_of_delegated_turns_and_ended_sessions() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let rest = at_rest(&kernel).await;
    let session = rpc(&kernel).await;
    for n in 1..=20 {
        kernel.delegate_task(session, task(n)).await.unwrap();
        reported(&rig, &id(1000 + n)).await;
        // The peers' sessions are gone with their tasks, workers and all.
        while kernel.list_open_sessions().len() > 1 {
            tokio::task::yield_now().await;
        }
    }
    kernel.end_session(session, "completed").await;
    assert_eq!(idle(&kernel, rest).await, rest, "no worker is left");
    assert!(kernel.list_open_sessions().is_empty());
}

#[tokio::test]
async fn a_session_that_ends_answers_what_waits_and_takes_nothing_more() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let rest = at_rest(&kernel).await;
    let session = kernel
        .open_session(EntryPoint::from_launcher("test"))
        .await
        .unwrap();
    for text in ["one", "two", "three"] {
        session.send_text(text).await.unwrap();
    }
    kernel.end_session(session.id, "completed").await;
    let refused = session.send_text("four").await;
    assert!(
        matches!(refused, Err(KernelError::UnknownSession(_))),
        "{refused:?}"
    );
    assert_eq!(idle(&kernel, rest).await, rest);
    let kinds = rig.journal.kinds();
    let answered = kinds.iter().filter(|kind| *kind == kind::MESSAGE_ANSWERED);
    assert_eq!(answered.count(), 3);
}

/// A peer that writes once and then answers.
fn writer() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(|request, _| {
        let done = request
            .messages
            .iter()
            .any(|m| matches!(m, ModelMessage::ToolResult { .. }));
        Ok(if done {
            says("three beans")
        } else {
            calls(&[("write", json!({"step": 1}))])
        })
    }))
}

fn reports(rig: &Rig) -> Vec<String> {
    let events = rig.journal.events().into_iter();
    let reports = events.filter(|e| e.kind == kind::SWARM_REPORTED);
    reports.map(|e| e.payload).collect()
}

/// Waits until nothing of the journal's is open, then stops.
async fn settled(rig: &Rig, kernel: &Kernel, tasks: usize) {
    for _ in 0..10_000 {
        if reports(rig).len() >= tasks && rig.journal.inbox().iter().all(|(_, end)| end.is_some()) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(kernel.shutdown("test", 5_000).await, "nothing is left in flight");
}

#[tokio::test]
async fn a_task_that_a_crash_met_at_any_event_goes_on_and_is_reported_once() {
    let mut rig = rig(team());
    rig.models.insert("model".to_owned(), writer());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let message = json!("Beans are green");
    let swarm = "team".to_owned();
    kernel
        .broadcast_message(session, BroadcastParams { swarm, message })
        .await
        .unwrap();
    kernel.delegate_task(session, task(1)).await.unwrap();
    reported(&rig, &id(1001)).await;
    let kinds = rig.journal.kinds();
    let taken = kinds.iter().position(|k| k == kind::SWARM_DELEGATED).unwrap();
    for stop in taken + 1..=kinds.len() {
        let place = format!("stopped at {stop} ({})", kinds[stop - 1]);
        let begun = kinds[..stop]
            .iter()
            .filter(|k| *k == kind::ACTION_APPROVED)
            .count();
        let mut after = rig.clone();
        after.journal = Arc::new(rig.journal.cut(stop));
        after.runner = Arc::default();
        after.models.insert("model".to_owned(), writer());
        let kernel = after.start().await;
        settled(&after, &kernel, 1).await;
        let [report] = &reports(&after)[..] else {
            panic!("{place}: {:?}", reports(&after));
        };
        assert!(
            report.contains(r#""status":"completed""#) && report.contains(r#""orphan":false"#),
            "{place}: {report}"
        );
        assert_eq!(begun + after.runner.runs().len(), 1, "{place}");
        // Who goes on knows what it had been told, and is the same peer.
        for request in after.models["model"].asked() {
            assert!(request.system.contains("Beans are green"), "{place}");
        }
        let heard = after.journal.events().into_iter();
        let heard: Vec<String> = heard
            .filter(|e| e.kind == kind::MESSAGE_ACCEPTED)
            .map(|e| e.payload)
            .collect();
        assert_eq!(heard.len(), 1, "{place}");
        assert!(heard[0].contains(r#""sender":"hand-1""#), "{place}: {heard:?}");
        assert!(clawk_trace::verify_events(after.journal.trace()).valid, "{place}");
    }
}

#[tokio::test]
async fn a_task_that_a_stop_interrupts_is_not_told_failed_but_goes_on() {
    let mut rig = rig(team());
    let before = Arc::new(ScriptedModel::new(|_, _| Ok(calls(&[("write", json!({}))]))));
    rig.models.insert("model".to_owned(), before);
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.delegate_task(session, task(1)).await.unwrap();
    while rig.runner.runs().is_empty() {
        tokio::task::yield_now().await;
    }
    kernel.shutdown("test", 0).await;
    assert_eq!(reports(&rig), Vec::<String>::new());
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::saying("three beans")));
    let kernel = rig.start().await;
    settled(&rig, &kernel, 1).await;
    assert_eq!(reports(&rig).len(), 1);
    assert!(
        reports(&rig)[0].contains(r#""status":"completed""#),
        "{:?}",
        reports(&rig)
    );
}

#[tokio::test]
async fn what_peers_were_told_outlives_a_restart() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let (swarm, message) = ("team".to_owned(), json!("New dataset"));
    kernel
        .broadcast_message(session, BroadcastParams { swarm, message })
        .await
        .unwrap();
    assert!(kernel.shutdown("test", 5_000).await);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    for n in [1, 2, 3, 4] {
        kernel.delegate_task(session, task(n)).await.unwrap();
        reported(&rig, &id(1000 + n)).await;
    }
    let asked = rig.models["model"].asked().into_iter();
    let told: Vec<bool> = asked
        .map(|request| request.system.contains("New dataset"))
        .collect();
    assert!(
        told[0] && told.iter().filter(|told| **told).count() <= 3,
        "{told:?}"
    );
}

#[tokio::test]
async fn r22_orphans_are_recorded_and_unknown_swarms_refused() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let report = ReportParams {
        task_id: id(77),
        status: TaskStatus::Partial,
        result: json!({}),
        token_usage: None,
        duration_ms: None,
        cost_microusd: None,
        report_token: None,
        proof: None,
    };
    assert!(kernel.report_task(session, report).await.unwrap().acknowledged);
    assert!(reported(&rig, &id(77)).await.contains(r#""orphan":true"#));
    let mut lost = task(2);
    lost.context.swarm = "nobody".to_owned();
    assert!(matches!(
        kernel.delegate_task(session, lost).await,
        Err(KernelError::UnknownSwarm { .. })
    ));
}

#[tokio::test]
async fn the_wire_names_every_peer_by_its_canonical_uri() {
    for named in ["lead", "claw://identity/lead", "claw://local/identity/lead"] {
        let mut spec = team();
        spec["swarm"]["agents"][0]["identity_ref"] = json!(named);
        let kernel = rig(spec).start().await;
        let peers = kernel
            .discover_peers(&DiscoverParams::default())
            .await
            .unwrap()
            .peers;
        assert_eq!(peers[0].uri, "claw://local/identity/lead", "{named}");
    }
}

#[tokio::test]
async fn peers_are_found_and_hear_broadcasts() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let peers = kernel
        .discover_peers(&DiscoverParams::default())
        .await
        .unwrap()
        .peers;
    assert_eq!(peers.len(), 3);
    assert_eq!(
        (peers[0].uri.as_str(), peers[0].status),
        ("claw://local/identity/lead", PeerStatus::Ready)
    );
    assert_eq!(
        kernel
            .discover_peers(&DiscoverParams {
                swarm: Some("x".to_owned())
            })
            .await
            .unwrap()
            .peers,
        []
    );
    let message = json!({"type": "context-update", "data": "New dataset"});
    kernel
        .broadcast_message(
            session,
            BroadcastParams {
                swarm: "team".to_owned(),
                message,
            },
        )
        .await
        .unwrap();
    kernel.delegate_task(session, task(3)).await.unwrap();
    reported(&rig, &id(1003)).await;
    let asked = rig.models["model"].asked();
    assert!(asked[0].system.contains("New dataset") && asked[0].system.contains("data from other agents"));
}

#[tokio::test]
async fn memory_is_stored_once_found_and_compacted() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let entry = NewEntry {
        content: json!("Project deadline is March 15"),
        key: None,
        metadata: None,
    };
    let store = MemoryStoreParams {
        store: "notes".to_owned(),
        entries: vec![entry],
        context: MemoryContext { request_id: id(5) },
    };
    let first = kernel.memory_store(session, store.clone()).await.unwrap();
    assert_eq!((first.stored, first.ids.len()), (1, 1));
    assert_eq!(kernel.memory_store(session, store).await.unwrap(), first);
    let query = MemoryQueryParams {
        store: "notes".to_owned(),
        query: MemoryQuery::Semantic {
            text: "deadline".to_owned(),
            top_k: None,
        },
    };
    assert_eq!(
        kernel.memory_query(session, query).await.unwrap().entries.len(),
        1
    );
    let unknown = MemoryQueryParams {
        store: "nope".to_owned(),
        query: MemoryQuery::Key {
            key: "k".to_owned(),
            top_k: None,
        },
    };
    assert!(matches!(
        kernel.memory_query(session, unknown).await,
        Err(KernelError::UnknownStore { .. })
    ));
    let compacted = kernel
        .memory_compact(
            session,
            MemoryCompactParams {
                store: "notes".to_owned(),
            },
        )
        .await
        .unwrap();
    assert!(compacted.entries_after <= compacted.entries_before);
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_kept() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let entry = NewEntry {
        content: json!("secret plan"),
        key: None,
        metadata: None,
    };
    let store = MemoryStoreParams {
        store: "notes".to_owned(),
        entries: vec![entry],
        context: MemoryContext { request_id: id(6) },
    };
    rig.journal.fail_after(0);
    assert!(matches!(
        kernel.memory_store(session, store.clone()).await,
        Err(KernelError::Journal(_))
    ));
    rig.journal.recover();
    let query = MemoryQueryParams {
        store: "notes".to_owned(),
        query: MemoryQuery::Semantic {
            text: "plan".to_owned(),
            top_k: None,
        },
    };
    assert_eq!(
        kernel.memory_query(session, query).await.unwrap().entries.len(),
        0
    );
    assert_eq!(kernel.memory_store(session, store).await.unwrap().stored, 1);
}

/// A client that comes back after a long time asks for one run; the journal has many.
#[tokio::test]
async fn whoever_asks_for_an_old_run_reads_no_other() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    for n in 1..=40 {
        kernel.delegate_task(session, task(n)).await.unwrap();
        reported(&rig, &id(1000 + n)).await;
    }
    let ended = || {
        rig.journal
            .kinds()
            .iter()
            .filter(|k| *k == kind::SWARM_ENDED)
            .count()
    };
    while ended() < 40 {
        tokio::task::yield_now().await;
    }
    let before = rig.journal.scanned();
    // Another request for the same run.
    let mut again = task(7);
    again.context.request_id = id(500);
    assert!(
        kernel
            .delegate_task(session, again.clone())
            .await
            .unwrap()
            .acknowledged
    );
    let read = rig.journal.scanned() - before;
    assert_eq!(read, 2, "the run and its end, of 80 events of runs");
    // The id of an old run with another task is still refused.
    again.context.request_id = id(501);
    again.task.description = "count the peas".to_owned();
    let refused = kernel.delegate_task(session, again).await;
    assert!(
        matches!(refused, Err(KernelError::RequestIdReused(_))),
        "{refused:?}"
    );
}
