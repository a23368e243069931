//! A request that two hosts get, when the host that began it ends before it ran.

use clawk_kernel::testing::{Rig, ScriptedModel, manifest};
use clawk_kernel::{AgentDependencies, CallError, EntryPoint, Kernel, KernelError, TalkRequest};
use clawk_postgres::PgState;
use clawk_proto::RequestId;
use clawk_proto::method::{CallContext, ToolCallParams};

use super::fenced::open;
use super::*;

async fn start(rig: &Rig, state: &PgState) -> Kernel {
    let parts = AgentDependencies {
        journal: state.journal(),
        ..rig.parts()
    };
    Kernel::start(parts).await.unwrap()
}

fn id(n: u32) -> RequestId {
    RequestId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap()
}

fn params() -> ToolCallParams {
    ToolCallParams {
        name: "write".to_owned(),
        arguments: serde_json::Map::new(),
        context: CallContext {
            request_id: id(1),
            identity: "tester".to_owned(),
            sandbox: None,
            policy: None,
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_host_did_not_run_runs_on_the_host_that_waits_for_it() {
    let server = Server::start();
    let (first, second) = (open(&server, "a").await, open(&server, "b").await);
    let mut rig = Rig::new(manifest(json!({
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}],
    })));
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::hanging()));
    let (a, b) = (start(&rig, &first).await, start(&rig, &second).await);
    let (at_a, at_b) = (
        a.open_session(EntryPoint::from_launcher("test"))
            .await
            .unwrap()
            .id,
        b.open_session(EntryPoint::from_launcher("test"))
            .await
            .unwrap()
            .id,
    );
    // Who waits for this turn is told when the host stops.
    let asks = a.clone();
    let turn = tokio::spawn(async move {
        let asked = TalkRequest::new("ann", None, "hello".to_owned(), id(2));
        asks.send_message(EntryPoint::from_launcher("test"), asked, &|_, _| ())
            .await
    });
    until("the model is asked", || rig.models["model"].asked().len() == 1).await;

    let holder = Beside::start(&server, "BEGIN; SELECT last_row FROM clawk.journal FOR UPDATE");
    let held =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND wait_event = 'PgSleep'";
    until("the lock", || server.sql(held) == "1").await;
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clawk' AND wait_event_type = 'Lock'";
    let at_first = tokio::spawn(a.call(at_a, params()));
    until("its decision", || server.sql(waiting) == "1").await;
    let at_second = tokio::spawn(b.call(at_b, params()));
    until("the other's", || server.sql(waiting) == "2").await;
    let ends = a.clone();
    let end = tokio::spawn(async move { ends.shutdown("restart", 0).await });
    let told = turn.await.unwrap();
    assert!(matches!(told, Err(KernelError::NotReady(_))), "{told:?}");
    drop(holder);

    let refused = at_first.await.unwrap();
    assert!(matches!(refused, Err(CallError::NotReady { .. })), "{refused:?}");
    let ran = tokio::time::timeout(Duration::from_secs(30), at_second).await;
    assert!(matches!(ran, Ok(Ok(Ok(_)))), "{ran:?}");
    assert_eq!(rig.runner.runs().len(), 1);
    end.await.unwrap();
    b.shutdown("test", 5_000).await;
}
