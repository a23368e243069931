//! Swarm and memory operations in one process.

use clawk_proto::RequestId;
use clawk_proto::method::{
    BroadcastParams, DelegateContext, DelegateParams, DiscoverParams, MemoryCompactParams, MemoryContext,
    MemoryQuery, MemoryQueryParams, MemoryStoreParams, NewEntry, PeerStatus, ReportParams, Task, TaskStatus,
};
use serde_json::{Value, json};

use super::{agent, allow_all, id, rig, rpc};
use crate::error::KernelError;
use crate::kind;

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
        task: Task {
            description: "count the beans".to_owned(),
            input: Some(json!({"beans": 3})),
        },
        context: DelegateContext {
            request_id: id(n),
            swarm: "team".to_owned(),
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
    assert!(kernel.delegate(session, task(1)).await.unwrap().acknowledged);
    assert!(
        kernel.delegate(session, task(1)).await.unwrap().acknowledged,
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
    };
    assert!(kernel.report(session, report).await.unwrap().acknowledged);
    assert!(reported(&rig, &id(77)).await.contains(r#""orphan":true"#));
    let mut lost = task(2);
    lost.context.swarm = "nobody".to_owned();
    assert!(matches!(
        kernel.delegate(session, lost).await,
        Err(KernelError::UnknownSwarm { .. })
    ));
}

#[tokio::test]
async fn peers_are_found_and_hear_broadcasts() {
    let rig = rig(team());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let peers = kernel.discover(&DiscoverParams::default()).unwrap().peers;
    assert_eq!(peers.len(), 3);
    assert_eq!(
        (peers[0].uri.as_str(), peers[0].status),
        ("claw://local/identity/lead", PeerStatus::Ready)
    );
    assert_eq!(
        kernel
            .discover(&DiscoverParams {
                swarm: Some("x".to_owned())
            })
            .unwrap()
            .peers,
        []
    );
    let message = json!({"type": "context-update", "data": "New dataset"});
    kernel
        .broadcast(
            session,
            BroadcastParams {
                swarm: "team".to_owned(),
                message,
            },
        )
        .await
        .unwrap();
    kernel.delegate(session, task(3)).await.unwrap();
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
