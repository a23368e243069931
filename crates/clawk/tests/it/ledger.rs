//! 1,000 effects at a counting HTTP server, each with a crash before, during and after it, with the real store and the real
//! executor: never twice, and every one of which nobody knows is listed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clawk_kernel::ports::{
    BoxFuture, InspectedCall, ReconcileMethod, RunError, RunOutcome, ToolDescription, ToolRunner,
};
use clawk_kernel::testing::{Rig, manifest};
use clawk_kernel::time::SystemClock;
use clawk_kernel::witness::GrantPrecondition;
use clawk_kernel::{CallError, EntryPoint, Kernel};
use clawk_plan::{Plan, SandboxRefusal};
use clawk_proto::RequestId;
use clawk_proto::method::{CallContext, ToolCallParams};
use clawk_sandbox::Launcher;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use clawk_store::StateDir;
use clawk_tools::{Runner, ToolHost, ToolsConfig, bind_tools};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, program, text};
use crate::counter::Counter;
use crate::stop::until;

const EFFECTS: usize = 1_000;
/// Effects under way when the crash comes.
const AT_ONCE: usize = 25;
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the crash comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// Decided on, and nothing sent.
    Before,
    /// Sent and done; no answer.
    During,
    /// Done and answered; the outcome is not recorded.
    After,
}

/// The real runner, which stops where the crash is to come.
#[derive(Debug)]
struct Stopping {
    inner: Runner,
    point: Option<Point>,
    there: Arc<AtomicUsize>,
}

impl ToolRunner for Stopping {
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        self.inner.describe_tool(tool)
    }

    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        dir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.inner.preflight_call(tool, arguments, plan, dir)
    }

    fn run<'a>(
        &'a self,
        permit: clawk_kernel::call::Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            if self.point == Some(Point::Before) {
                self.there.fetch_add(1, Ordering::SeqCst);
                return std::future::pending().await;
            }
            let outcome = self.inner.run(permit, cancel).await;
            if self.point == Some(Point::After) {
                assert!(outcome.is_ok(), "{outcome:?}");
                self.there.fetch_add(1, Ordering::SeqCst);
                return std::future::pending().await;
            }
            outcome
        })
    }

    fn preview_call<'a>(
        &'a self,
        look: InspectedCall<'a>,
    ) -> BoxFuture<'a, clawk_kernel::sheet::ExecutorPreview> {
        self.inner.preview_call(look)
    }

    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        self.inner.stands_on(look)
    }

    fn reconcile_method(&self, tool: &str) -> ReconcileMethod {
        self.inner.reconcile_method(tool)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// One life of the agent. Its end is a crash: every task is dropped where it stands.
struct Life {
    runtime: Option<Runtime>,
    kernel: Option<Kernel>,
    state: StateDir,
    there: Arc<AtomicUsize>,
}

impl Life {
    fn begin(dir: &Path, url: &str, point: Option<Point>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let mut rig = Rig::new(manifest(json!({
            "tools": [{"name": "order", "description": "orders", "timeout_ms": 60_000, "input_schema": {"type": "object"}}],
            "policies": [{"name": "p", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}]})));
        rig.workdir = dir.to_path_buf();
        let tools: ToolsConfig =
            serde_json::from_value(json!({"order": {"http": {"url": format!("{url}/orders")}}})).unwrap();
        let host = ToolHost {
            launcher: Launcher::new(program(), vec!["__sandbox".into()]),
            defaults: clawk_plan::PlanDefaults::default(),
            secrets: SecretResolver::without_store(EnvironmentSource::from_pairs([(
                "PATH",
                "/usr/bin:/bin",
            )])),
            base: dir.to_path_buf(),
            workdir: dir.to_path_buf(),
            ask: None,
            extras: BTreeMap::new(),
            egress: clawk_tools::EgressSettings::default(),
            own: clawk_plan::RuntimeFiles::empty(),
            timezone: jiff::tz::TimeZone::UTC,
        };
        let there = Arc::new(AtomicUsize::new(0));
        let runner = Stopping {
            inner: bind_tools(&rig.manifest, &tools, host).unwrap(),
            point,
            there: Arc::clone(&there),
        };
        let state = StateDir::open(dir.join("state"), clawk_store::Options::default()).unwrap();
        let mut parts = rig.parts();
        parts.runner = Arc::new(runner);
        parts.journal = state.journal();
        parts.clock = Arc::new(SystemClock::default());
        let kernel = runtime.block_on(Kernel::start(parts)).unwrap();
        Self {
            runtime: Some(runtime),
            kernel: Some(kernel),
            state,
            there,
        }
    }

    fn kernel(&self) -> &Kernel {
        self.kernel.as_ref().unwrap()
    }

    /// Asks for all of them at once.
    fn ask(&self, wanted: &[(RequestId, String)]) -> Vec<tokio::task::JoinHandle<Result<(), CallError>>> {
        let runtime = self.runtime.as_ref().unwrap();
        let session = runtime
            .block_on(self.kernel().open_session(EntryPoint::Cli))
            .unwrap()
            .id;
        let calls = wanted.iter().map(|(request_id, id)| {
            let params = ToolCallParams {
                name: "order".to_owned(),
                arguments: json!({"id": id}).as_object().cloned().unwrap(),
                context: CallContext {
                    request_id: request_id.clone(),
                    identity: "t".to_owned(),
                    sandbox: None,
                    policy: None,
                },
            };
            let call = self.kernel().call(session, params);
            runtime.spawn(async move { call.await.map(drop) })
        });
        calls.collect()
    }

    fn crash(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
        self.kernel = None;
        self.state.close();
    }
}

#[test]
fn no_effect_of_a_thousand_is_done_twice_wherever_the_crash_comes() {
    let agent = Agent::new();
    let counter = Counter::start(None);
    let dir = agent.path("");
    let mut asked: Vec<(RequestId, String)> = Vec::new();
    let mut last: Vec<(RequestId, String)> = Vec::new();
    for point in [Point::Before, Point::During, Point::After] {
        counter.hold(point == Point::During);
        for batch in 0..EFFECTS / AT_ONCE {
            let wanted: Vec<(RequestId, String)> = (0..AT_ONCE)
                .map(|n| {
                    let n = batch * AT_ONCE + n;
                    (RequestId::from(uuid::Uuid::now_v7()), format!("{point:?}-{n}"))
                })
                .collect();
            let life = Life::begin(&dir, &counter.url, Some(point));
            // Whoever asks again is told that nobody knows; nothing is sent.
            let again = life.ask(&last);
            for call in again {
                let outcome = life.runtime.as_ref().unwrap().block_on(call).unwrap();
                assert!(matches!(outcome, Err(CallError::Unknown { .. })), "{outcome:?}");
            }
            let before = counter.hits().len();
            let calls = life.ask(&wanted);
            until("all of them are there", || match point {
                Point::Before | Point::After => life.there.load(Ordering::SeqCst) == AT_ONCE,
                Point::During => counter.hits().len() == before + AT_ONCE,
            });
            drop(calls);
            life.crash();
            asked.extend(wanted.clone());
            last = wanted;
        }
    }
    counter.hold(false);
    let life = Life::begin(&dir, &counter.url, None);
    let open = life
        .runtime
        .as_ref()
        .unwrap()
        .block_on(life.kernel().open_effects())
        .unwrap();
    assert_eq!(open.len(), 3 * EFFECTS, "every unknown one is in the ledger");
    life.crash();
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "never twice");
    assert_eq!(counts.len(), 2 * EFFECTS, "the first thousand never left");
    // As a person sees it.
    let state = dir.join("state");
    let listed = agent
        .clawk(["effects", "--unknown", "--format", "json", "--state"])
        .arg(&state)
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut listed: Vec<&str> = listed["effects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["request_id"].as_str().unwrap())
        .collect();
    let mut asked: Vec<&str> = asked.iter().map(|(id, _)| id.as_str()).collect();
    listed.sort_unstable();
    asked.sort_unstable();
    assert_eq!(listed, asked);
}
