//! Helpers of this crate's unit tests: plans, calls, a runner for the fixture program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_manifest::model::{Manifest, Metadata};
use clawk_plan::{Plan, PlanDefaults};
use clawk_proto::content::ContentBlock;
use clawk_sandbox::Launcher;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::call::ExecutorCall;
use crate::config::ToolsConfig;
use crate::runner::{ExecutorBinding, Runner};
use crate::{ToolHost, bind_tools};

/// The path of the fixture program, which is built with this package's integration tests.
pub(crate) fn fixture() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let built = test
        .parent()
        .and_then(Path::parent)
        .expect("the target folder")
        .join("clawk-tools-fixture");
    assert!(
        built.exists(),
        "{} is built by `cargo test -p clawk-tools` without `--lib`",
        built.display()
    );
    built
}

pub(crate) fn launcher() -> Launcher {
    Launcher::new(fixture(), vec!["__sandbox".into()])
}

/// The levels at which a file tool can run: inside this process, and in a separate one.
pub(crate) const LEVELS: [&str; 2] = ["none", "process"];

/// A plan with these capabilities at level `process`.
pub(crate) fn plan(capabilities: Value) -> Arc<Plan> {
    plan_at("process", capabilities)
}

pub(crate) fn plan_at(level: &str, capabilities: Value) -> Arc<Plan> {
    let sandbox = json!({"name": "s", "level": level, "capabilities": capabilities});
    Arc::new(Plan::compile(
        Some(&serde_json::from_value(sandbox).expect("a sandbox")),
        &PlanDefaults::default(),
    ))
}

/// A plan with the working directory writable and every command line allowed.
pub(crate) fn open_plan() -> Arc<Plan> {
    open_plan_at("process")
}

pub(crate) fn open_plan_at(level: &str) -> Arc<Plan> {
    plan_at(
        level,
        json!({"filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]},
                "shell": {"mode": "full"}, "network": {"mode": "allow-all", "ssrf_protection": {"enabled": false}}}),
    )
}

pub(crate) fn manifest(tools: Value, dir: &Path) -> Manifest {
    Manifest {
        claw: serde_json::from_value(json!("0.3.0")).expect("a version"),
        metadata: Metadata::default(),
        identity: serde_json::from_value(json!({"name": "a", "personality": "p"})).expect("an identity"),
        providers: Vec::new(),
        channels: Vec::new(),
        tools: serde_json::from_value(tools).expect("tools"),
        skills: Vec::new(),
        memory: None,
        world_models: Vec::new(),
        sandbox: Some(
            serde_json::from_value(json!({"name": "s", "level": "process", "capabilities": {
                "filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]}}}))
            .expect("a sandbox"),
        ),
        further_sandboxes: Vec::new(),
        policies: Vec::new(),
        swarm: None,
        telemetry: None,
        dir: dir.to_path_buf(),
    }
}

pub(crate) fn host(dir: &Path) -> ToolHost {
    ToolHost {
        launcher: launcher(),
        defaults: PlanDefaults::default(),
        secrets: SecretResolver::without_store(EnvironmentSource::from_pairs([
            ("PATH", "/usr/bin:/bin"),
            ("TOKEN_REF", "s3cr3t-value"),
        ])),
        base: dir.to_path_buf(),
        workdir: dir.to_path_buf(),
        own: clawk_plan::RuntimeFiles::empty(),
        ask: None,
        extras: BTreeMap::new(),
        egress: crate::EgressSettings::default(),
        timezone: jiff::tz::TimeZone::UTC,
    }
}

pub(crate) fn runner(tools: Value, config: &str, dir: &Path) -> Runner {
    let config: ToolsConfig = serde_json::from_str(config).expect("a config");
    bind_tools(&manifest(tools, dir), &config, host(dir)).expect("all bound")
}

/// A runner with all built-ins.
pub(crate) fn builtins(dir: &Path) -> Runner {
    builtins_with(dir, crate::EgressSettings::default())
}

/// A runner with all built-ins and this network access.
pub(crate) fn builtins_with(dir: &Path, egress: crate::EgressSettings) -> Runner {
    let tools: Vec<Value> = crate::builtin::BuiltinTool::ALL
        .iter()
        .map(|builtin| json!({"name": builtin.name()}))
        .collect();
    let host = ToolHost { egress, ..host(dir) };
    let mut manifest = manifest(Value::Array(tools), dir);
    if let Some(sandbox) = &mut manifest.sandbox {
        sandbox.capabilities.network.mode = clawk_manifest::model::NetworkMode::AllowAll;
    }
    let config = json!({"web-search": {"search": {"provider": "searxng", "url": "https://search.example"}}});
    let config: ToolsConfig = serde_json::from_value(config).expect("a config");
    bind_tools(&manifest, &config, host).expect("all bound")
}

pub(crate) struct Ran {
    pub(crate) plan: Arc<Plan>,
    pub(crate) timeout_ms: u64,
    pub(crate) cancel: CancellationToken,
    /// The session of the call.
    pub(crate) session: Option<clawk_proto::SessionId>,
}

impl Ran {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            timeout_ms: 20_000,
            cancel: CancellationToken::new(),
            session: None,
        }
    }

    pub(crate) async fn run(
        &self,
        runner: &Runner,
        dir: &Path,
        tool: &str,
        arguments: Value,
    ) -> Result<RunOutcome, RunError> {
        let arguments: Map<String, Value> = serde_json::from_value(arguments).expect("an object");
        let call = ExecutorCall {
            key: None,
            arguments: &runner.sent_arguments(tool, &arguments, "test-request"),
            plan: &self.plan,
            workdir: dir,
            timeout_ms: self.timeout_ms,
            request_id: "a-call",
            marks: &[],
            apart: &clawk_kernel::place::ExcludedPaths::default(),
            tool,
            connections: clawk_kernel::ports::ConnectionCollector::default(),
            stop: self.cancel.child_token(),
        };
        let binding: &ExecutorBinding = &runner.bound_for_tests(tool);
        runner.run_call(binding, call, self.session, &self.cancel).await
    }
}

/// The text that a model would read.
pub(crate) fn text(outcome: &RunOutcome) -> String {
    outcome
        .content
        .iter()
        .map(ContentBlock::as_model_text)
        .collect::<Vec<_>>()
        .join("\n")
}
