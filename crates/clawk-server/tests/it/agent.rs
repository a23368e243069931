//! Agents for the tests: one manifest per level, and tools that do as their names say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use clawk_kernel::ports::{BoxFuture, RunError};
use clawk_kernel::testing::{Behaviour, Rig};
use clawk_kernel::time::SystemClock;
use clawk_kernel::{Kernel, StartError};
use clawk_manifest::{WireOptions, from_value};
use clawk_server::{AgentFactory, InitFailure, ManifestFault};
use serde_json::{Value, json};

/// The manifest of an agent that reaches `level`. Tools: `echo` (needs `text`), `slow` (50 ms), `hang` (until cancelled),
/// `broken` (fails), `lost` (outcome unknown), `forbidden` (a rule denies), `ask` and `ask-hang` (a rule asks).
pub(crate) fn manifest(level: u8, beat_ms: Option<u64>) -> Value {
    let mut manifest = json!({
        "claw": "0.2.0",
        "kind": "Claw",
        "metadata": {"name": "tester", "version": "1.2.3"},
        "spec": {
            "identity": {"inline": {"personality": "A test agent.", "autonomy": "autonomous"}},
            "providers": [{"inline": {"protocol": "openai-compatible", "endpoint": "http://localhost:11434/v1",
                "model": "llama3", "auth": {"type": "none"}}}],
        },
    });
    if let Some(ms) = beat_ms {
        manifest["metadata"]["annotations"] = json!({"heartbeat_interval_ms": ms});
    }
    let spec = &mut manifest["spec"];
    if level >= 2 {
        let tool = |name: &str, required: Value| {
            json!({"inline": {"name": name, "description": name, "input_schema":
                {"type": "object", "properties": {"text": {"type": "string"}}, "required": required}}})
        };
        let mut tools = vec![tool("echo", json!(["text"]))];
        for name in ["slow", "hang", "broken", "lost", "forbidden", "ask", "ask-hang"] {
            tools.push(tool(name, json!([])));
        }
        let approval = json!({"timeout_seconds": 300});
        spec["tools"] = json!(tools);
        spec["channels"] =
            json!([{"inline": {"type": "cli", "transport": "stdio", "auth": {"secret_ref": "T"}}}]);
        spec["sandbox"] = json!({"inline": {"level": "none"}});
        spec["policies"] = json!([{"inline": {"rules": [
            {"id": "no", "action": "deny", "scope": "tool", "match": {"name": "forbidden"}},
            {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "ask*"}, "approval": approval},
            {"id": "yes", "action": "allow", "scope": "all"},
        ]}}]);
    }
    if level >= 3 {
        spec["skills"] = json!([{"inline": {"name": "s", "description": "s", "tools_required": ["echo"], "instruction": "s"}}]);
        spec["memory"] =
            json!({"inline": {"stores": [{"name": "context", "type": "conversation", "backend": "sqlite"}]}});
        spec["swarm"] = json!({"inline": {
            "topology": "peer-to-peer",
            "name": "team",
            "agents": [{"identity_ref": "tester", "role": "peer"}],
            "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {"max_parallel": 3}},
            "aggregation": {"strategy": "merge"},
        }});
    }
    manifest
}

/// An agent launched with [`manifest`]; what comes on the wire only passes or is refused, by its name.
#[derive(Debug)]
pub(crate) struct Launched {
    rig: Rig,
    starts: AtomicUsize,
    last: Mutex<Option<Kernel>>,
}

impl Launched {
    pub(crate) fn new(level: u8) -> Arc<Self> {
        Self::beating(level, None)
    }

    pub(crate) fn beating(level: u8, beat_ms: Option<u64>) -> Arc<Self> {
        let loaded = from_value(&manifest(level, beat_ms), &WireOptions::default());
        let rig = Rig::new(
            loaded
                .manifest
                .unwrap_or_else(|| panic!("{:?}", loaded.diagnostics)),
        );
        rig.runner.set("slow", Behaviour::Sleep(50));
        rig.runner.set("hang", Behaviour::Sleep(3_600_000));
        rig.runner.set("ask-hang", Behaviour::Sleep(3_600_000));
        rig.runner.set("broken", Behaviour::Fail("it broke".into()));
        rig.runner.set(
            "lost",
            Behaviour::Error(RunError::Unknown("the line went dead".into())),
        );
        Arc::new(Self {
            rig,
            starts: AtomicUsize::new(0),
            last: Mutex::new(None),
        })
    }

    /// How many runs were started.
    pub(crate) fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }

    /// How often a tool ran.
    pub(crate) fn runs(&self, tool: &str) -> usize {
        self.rig
            .runner
            .runs()
            .iter()
            .filter(|(name, _)| name == tool)
            .count()
    }

    /// The run that was started last.
    pub(crate) fn kernel(&self) -> Kernel {
        self.last.lock().unwrap().clone().expect("a run was started")
    }
}

fn name(wire: &Value) -> &str {
    wire["metadata"]["name"].as_str().unwrap_or_default()
}

impl AgentFactory for Launched {
    fn check_manifest<'a>(&'a self, wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>> {
        let fault = |path: &str| ManifestFault {
            path: path.into(),
            message: "is required".into(),
            code: "missing".into(),
        };
        let judged = match (wire, name(wire)) {
            (Value::String(uri), _) => Err(InitFailure::Unresolvable {
                uri: uri.clone(),
                reason: "no such claw is known here".into(),
            }),
            (_, "invalid") => Err(InitFailure::Manifest(vec![
                fault("/spec/identity"),
                fault("/spec/providers"),
            ])),
            _ => Ok(()),
        };
        Box::pin(std::future::ready(judged))
    }

    fn start_agent<'a>(&'a self, wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>> {
        Box::pin(async move {
            if wire.is_some_and(|wire| name(wire) == "unserved") {
                return Err(InitFailure::Start(StartError::Unserved(vec![
                    "tool `x` has no executor".into(),
                ])));
            }
            let mut parts = self.rig.parts();
            parts.clock = Arc::new(SystemClock::default());
            let kernel = Kernel::start(parts).await?;
            self.starts.fetch_add(1, Ordering::SeqCst);
            *self.last.lock().unwrap() = Some(kernel.clone());
            Ok(kernel)
        })
    }
}
