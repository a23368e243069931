//! Measures executions over CRA, governed and durable. The kernel and its journal run in this process, with many executions in
//! flight.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use clawk_carp::Atlas;
use clawk_kernel::carp::NewSession;
use clawk_kernel::testing::{Rig, manifest};
use clawk_kernel::time::SystemClock;
use clawk_kernel::{AtlasSettings, CraHandle, Kernel};
use clawk_proto::SessionId;
use clawk_proto::carp::{CarpExecution, CarpOperation, CarpRequester, CarpTask, ExecutionStatus, Request};
use clawk_store::{Options, StateDir};
use serde_json::{Map, json};
use uuid::Uuid;

const IN_FLIGHT: u32 = 64;

fn atlas() -> Result<Atlas> {
    let manifest = json!({
        "atlas_version": "1.0", "atlas_id": "com.example.measure", "version": "1.0.0", "name": "Measure", "description": "",
        "policies": [
            { "policy_id": "no", "type": "deny", "actions": ["*.delete"] },
            { "policy_id": "asks", "type": "require_approval", "actions": ["fee.*"] },
            { "policy_id": "yes", "type": "allow", "actions": ["note.*"], "conditions": { "agents": ["desk-*"] } },
        ],
        "actions": [{
            "action_id": "note.say", "name": "Say", "description": "Says it", "executor": "tool:echo",
            "parameters_schema": { "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] },
        }],
    });
    Ok(Atlas::in_memory(
        &serde_json::to_vec(&manifest)?,
        &BTreeMap::new(),
    )?)
}

/// Durable executions per second, 64 in flight. With `pure`, the tool has no side effects, so that decision and outcome share one
/// commit.
///
/// # Errors
/// The folder can't be used, or an execution does not succeed.
pub(crate) fn per_second(folder: &Path, executions: u32, pure: bool) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let state = StateDir::open(folder, Options::default())?;
        let rules =
            json!([{ "name": "bench", "rules": [{ "id": "all", "action": "allow", "scope": "all" }] }]);
        let mut rig = Rig::new(manifest(
            json!({ "tools": [{ "name": "echo" }], "policies": rules }),
        ));
        rig.atlases = AtlasSettings {
            loaded: vec![Arc::new(atlas()?)],
            clock_skew_ms: None,
            served: true,
            ..AtlasSettings::default()
        };
        if pure {
            rig.runner.read_only("echo");
        }
        let mut parts = rig.parts();
        parts.journal = state.journal();
        parts.clock = Arc::new(SystemClock::default());
        let kernel = Kernel::start(parts).await?;
        flood(&kernel.cra_handle(), executions / 10).await?;
        let start = Instant::now();
        flood(&kernel.cra_handle(), executions).await?;
        let seconds = start.elapsed().as_secs_f64();
        kernel.shutdown("measured", 5_000).await;
        state.close();
        Ok(f64::from(executions) / seconds)
    })
}

async fn flood(cra: &CraHandle, executions: u32) -> Result<()> {
    let left = Arc::new(AtomicU32::new(executions));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (cra, left) = (cra.clone(), Arc::clone(&left));
        tasks.spawn(async move {
            let new = NewSession {
                agent_id: "desk-1".to_owned(),
                goal: "measure".to_owned(),
                parent: None,
                atlas_id: None,
                metadata: serde_json::Map::new(),
                owner: "bench".to_owned(),
                id: None,
            };
            let session = cra.open_session(new).await?.id;
            let resolution = cra.resolve_request(&request(session, None)).await?.resolution_id;
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
            {
                let answer = cra.execute_action(request(session, Some(resolution))).await?;
                ensure!(answer.status == ExecutionStatus::Success, "{answer:?}");
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Returns a new id. Ids only need to be distinct here.
fn fresh() -> Uuid {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    Uuid::from_u128(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64 | 0x4000 << 48 | 0x8000)
}

fn request(session: SessionId, resolution: Option<Uuid>) -> Request {
    Request {
        carp_version: "1.0".to_owned(),
        request_id: fresh(),
        timestamp: "2026-01-02T03:04:05Z".to_owned(),
        operation: if resolution.is_some() {
            CarpOperation::Execute
        } else {
            CarpOperation::Resolve
        },
        requester: CarpRequester {
            agent_id: "desk-1".to_owned(),
            session_id: session,
            parent_session_id: None,
        },
        task: Some(CarpTask {
            goal: "measure".to_owned(),
            ..CarpTask::default()
        }),
        execution: resolution.map(|resolution_id| CarpExecution {
            resolution_id,
            action_id: "note.say".to_owned(),
            parameters: Map::from_iter([("text".to_owned(), json!("hello"))]),
            idempotency_key: None,
        }),
        atlas_ids: Vec::new(),
        context: Map::new(),
    }
}
