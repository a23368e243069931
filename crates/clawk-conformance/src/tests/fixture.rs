//! A small agent with the names of `examples/conformance/claw.yaml`, right unless it is told one fault.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::connection::AgentConnection;

/// Serves one conversation.
pub(crate) type Serve = dyn Fn(PipeReader, PipeWriter) + Send + Sync;

/// Starts it in a thread of its own.
pub(crate) fn connect(serve: &Arc<Serve>) -> Result<AgentConnection> {
    let (agent_in, to_agent) = std::io::pipe()?;
    let (from_agent, agent_out) = std::io::pipe()?;
    let serve = Arc::clone(serve);
    thread::spawn(move || serve(agent_in, agent_out));
    Ok(AgentConnection::from_streams(to_agent, from_agent))
}

/// One way of being wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    RefusesManifests,
    TakesAnyManifest,
    TakesNoIdentity,
    TakesRolesInAllowlists,
    TellsNoCapabilities,
    TakesAnyVersion,
    TellsNoVersions,
    TellsNoUptime,
    NeverDrained,
    GoesOnAfterShutdown,
    AnswersNotifications,
    AnswersBroadcasts,
    AnswersUnknownMethods,
    InternalErrorForNoMethod,
    IgnoresBrokenJson,
    HeartbeatInWords,
    HeartbeatWithId,
    SilentHeart,
    EchoesNothing,
    ChecksNoArguments,
    DeniesNothing,
    NoTimeouts,
    ForgetsTheApproved,
    ApprovesWithoutAsking,
    IgnoresDenials,
    NoSandbox,
    NoQuota,
    AnswersTwice,
    DelegatesNothing,
    ForgetsMemories,
    PeersWithoutUri,
    CompactionGrows,
    OldJsonRpc,
}

/// Every fault and the vectors that must fail because of it.
pub(crate) const FAULTS: &[(Fault, &[&str])] = &[
    (Fault::RefusesManifests, &ALL_BUT_REFUSALS),
    (
        Fault::TakesAnyManifest,
        &["TV-L1-02", "TV-L1-03", "TV-L1-09", "TV-L3-04", "TV-L3-05"],
    ),
    (Fault::TakesNoIdentity, &["TV-L1-02"]),
    (Fault::TakesRolesInAllowlists, &["TV-L3-04"]),
    (Fault::TellsNoCapabilities, &["TV-L1-04"]),
    (Fault::TakesAnyVersion, &["TV-L1-05"]),
    (Fault::TellsNoVersions, &["TV-L1-05"]),
    (Fault::TellsNoUptime, &["TV-L1-06"]),
    (Fault::NeverDrained, &["TV-L1-07"]),
    (Fault::GoesOnAfterShutdown, &["TV-L1-07"]),
    (Fault::AnswersNotifications, &["TV-L1-08", "TV-L1-13"]),
    (Fault::AnswersBroadcasts, &["TV-L3-06"]),
    (Fault::AnswersUnknownMethods, &["TV-L1-10"]),
    (Fault::InternalErrorForNoMethod, &["TV-L1-11"]),
    (Fault::IgnoresBrokenJson, &["TV-L1-12"]),
    (Fault::HeartbeatInWords, &["TV-L1-13"]),
    (Fault::HeartbeatWithId, &["TV-L1-13"]),
    (Fault::SilentHeart, &["TV-L1-08", "TV-L1-13"]),
    (Fault::EchoesNothing, &["TV-L2-02"]),
    (Fault::ChecksNoArguments, &["TV-L2-03"]),
    (Fault::DeniesNothing, &["TV-L2-04"]),
    (Fault::NoTimeouts, &["TV-L2-05"]),
    (Fault::ForgetsTheApproved, &["TV-L2-06"]),
    (
        Fault::ApprovesWithoutAsking,
        &["TV-L2-06", "TV-L2-07", "TV-L2-08"],
    ),
    (Fault::IgnoresDenials, &["TV-L2-08"]),
    (Fault::NoSandbox, &["TV-L2-09"]),
    (Fault::NoQuota, &["TV-L2-10"]),
    (Fault::AnswersTwice, &["TV-L2-02"]),
    (Fault::DelegatesNothing, &["TV-L3-02"]),
    (Fault::ForgetsMemories, &["TV-L3-03"]),
    (Fault::PeersWithoutUri, &["TV-L3-07"]),
    (Fault::CompactionGrows, &["TV-L3-08"]),
    (Fault::OldJsonRpc, &EVERYTHING),
];

const EVERYTHING: [&str; 31] = [
    "TV-L1-01", "TV-L1-02", "TV-L1-03", "TV-L1-04", "TV-L1-05", "TV-L1-06", "TV-L1-07", "TV-L1-08",
    "TV-L1-09", "TV-L1-10", "TV-L1-11", "TV-L1-12", "TV-L1-13", "TV-L2-01", "TV-L2-02", "TV-L2-03",
    "TV-L2-04", "TV-L2-05", "TV-L2-06", "TV-L2-07", "TV-L2-08", "TV-L2-09", "TV-L2-10", "TV-L3-01",
    "TV-L3-02", "TV-L3-03", "TV-L3-04", "TV-L3-05", "TV-L3-06", "TV-L3-07", "TV-L3-08",
];
/// All but the version and the manifests that must be refused.
const ALL_BUT_REFUSALS: [&str; 25] = [
    "TV-L1-01", "TV-L1-04", "TV-L1-06", "TV-L1-07", "TV-L1-08", "TV-L1-10", "TV-L1-11", "TV-L1-12",
    "TV-L1-13", "TV-L2-01", "TV-L2-02", "TV-L2-03", "TV-L2-04", "TV-L2-05", "TV-L2-06", "TV-L2-07",
    "TV-L2-08", "TV-L2-09", "TV-L2-10", "TV-L3-01", "TV-L3-02", "TV-L3-03", "TV-L3-06", "TV-L3-07",
    "TV-L3-08",
];

struct Agent {
    out: Mutex<PipeWriter>,
    fault: Option<Fault>,
    memories: Mutex<Vec<Value>>,
    /// Calls that wait, by request id: the JSON-RPC id of the call.
    waiting: Mutex<BTreeMap<String, Value>>,
    stopped: Mutex<bool>,
}

/// Serves until the input ends.
pub(crate) fn serve(reader: PipeReader, writer: PipeWriter, fault: Option<Fault>) {
    let agent = Arc::new(Agent {
        out: Mutex::new(writer),
        fault,
        memories: Mutex::default(),
        waiting: Mutex::default(),
        stopped: Mutex::default(),
    });
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        agent.take(&line);
    }
}

impl Agent {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn send(&self, mut message: Value) {
        message["jsonrpc"] = json!(if self.has(Fault::OldJsonRpc) { "1.0" } else { "2.0" });
        let _ = writeln!(self.out.lock().unwrap(), "{message}");
    }

    fn ok(&self, id: &Value, result: Value) {
        self.send(json!({"id": id, "result": result}));
    }

    fn err(&self, id: &Value, code: i64, data: Value) {
        self.send(json!({"id": id, "error": {"code": code, "message": "no", "data": data}}));
    }

    fn take(self: &Arc<Self>, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            if !self.has(Fault::IgnoresBrokenJson) {
                self.err(&Value::Null, -32700, Value::Null);
            }
            return;
        };
        let params = message["params"].clone();
        match (message["method"].as_str(), message.get("id")) {
            (None, id) => {
                let code = if self.has(Fault::InternalErrorForNoMethod) {
                    -32603
                } else {
                    -32600
                };
                self.err(id.unwrap_or(&Value::Null), code, Value::Null);
            }
            (Some("claw.initialized"), None) => {
                if self.has(Fault::AnswersNotifications) {
                    self.ok(&Value::Null, json!({}));
                }
                self.beat();
            }
            (Some(_), None) => {
                if self.has(Fault::AnswersBroadcasts) {
                    self.err(&Value::Null, -32601, Value::Null);
                }
            }
            (Some(method), Some(id)) => self.request(method, id, &params),
        }
    }

    fn beat(&self) {
        let uptime = if self.has(Fault::HeartbeatInWords) {
            json!("two minutes")
        } else {
            json!(120_000)
        };
        let mut beat = json!({"method": "claw.heartbeat",
            "params": {"state": "READY", "uptime_ms": uptime, "timestamp": "2026-02-22T10:32:00Z"}});
        if self.has(Fault::HeartbeatWithId) {
            beat["id"] = json!(1);
        }
        if self.has(Fault::SilentHeart) {
            // The output ends, so that nobody waits forty seconds for it.
            *self.out.lock().unwrap() = std::io::pipe().unwrap().1;
            return;
        }
        self.send(beat);
    }

    fn request(self: &Arc<Self>, method: &str, id: &Value, params: &Value) {
        match method {
            "claw.initialize" => self.initialize(id, params),
            "claw.status" => {
                let state = if *self.stopped.lock().unwrap() {
                    "STOPPED"
                } else {
                    "READY"
                };
                let quiet = self.has(Fault::TellsNoUptime);
                self.ok(
                    id,
                    if quiet {
                        json!({"state": state})
                    } else {
                        json!({"state": state, "uptime_ms": 5})
                    },
                );
            }
            "claw.shutdown" => {
                *self.stopped.lock().unwrap() = !self.has(Fault::GoesOnAfterShutdown);
                self.ok(id, json!({"drained": !self.has(Fault::NeverDrained)}));
            }
            "claw.tool.call" => self.call(id, params),
            "claw.tool.approve" | "claw.tool.deny" => self.decide(id, params, method == "claw.tool.approve"),
            "claw.swarm.delegate" | "claw.swarm.report" => {
                assert_eq!(
                    params.pointer("/context/swarm").unwrap_or(&json!("test-team")),
                    "test-team"
                );
                self.ok(id, json!({"acknowledged": !self.has(Fault::DelegatesNothing)}));
            }
            "claw.swarm.discover" => {
                let uri = if self.has(Fault::PeersWithoutUri) {
                    "peer-1"
                } else {
                    "claw://local/identity/peer-1"
                };
                self.ok(
                    id,
                    json!({"peers": [{"identity": "peer-1", "uri": uri, "status": "ready"}]}),
                );
            }
            "claw.memory.store" | "claw.memory.query" | "claw.memory.compact" => {
                self.memory(method, id, params)
            }
            _ if self.has(Fault::AnswersUnknownMethods) => self.ok(id, json!({})),
            _ => self.err(id, -32601, Value::Null),
        }
    }

    fn initialize(&self, id: &Value, params: &Value) {
        if params["protocolVersion"]
            .as_str()
            .is_none_or(|it| !it.starts_with("0."))
            && !self.has(Fault::TakesAnyVersion)
        {
            let known = if self.has(Fault::TellsNoVersions) {
                json!({})
            } else {
                json!({"supported": ["0.2.0"]})
            };
            return self.err(id, -32001, known);
        }
        let spec = &params["manifest"]["spec"];
        let control = &spec["channels"][0]["inline"]["access_control"];
        let no_identity = spec["identity"].is_null() && !self.has(Fault::TakesNoIdentity);
        let no_providers = spec["providers"].as_array().is_none_or(Vec::is_empty);
        let roles = control["mode"] == "allowlist" && !control["roles"].is_null();
        let roles = roles && !self.has(Fault::TakesRolesInAllowlists);
        let ids = control["mode"] == "role-based" && !control["allowed_ids"].is_null();
        let bad = (no_identity || no_providers || roles || ids) && !self.has(Fault::TakesAnyManifest);
        if bad || self.has(Fault::RefusesManifests) {
            return self.err(id, -32602, Value::Null);
        }
        let mut result = json!({"protocolVersion": "0.2.0", "agentInfo": {"name": "fixture-agent", "version": "1.2.3"},
            "conformanceLevel": "level-3", "capabilities": {"tools": {}}});
        if self.has(Fault::TellsNoCapabilities) {
            result.as_object_mut().unwrap().remove("capabilities");
        }
        self.ok(id, result);
    }

    fn call(self: &Arc<Self>, id: &Value, params: &Value) {
        assert_eq!(
            params["context"]["identity"], "fixture-agent",
            "the caller's name is the agent's own"
        );
        let content = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        let refuse = |unless: Fault, code| {
            if self.has(unless) {
                self.ok(id, content("done"))
            } else {
                self.err(id, code, Value::Null)
            }
        };
        match params["name"].as_str().unwrap() {
            "echo" => match params["arguments"]["text"].as_str() {
                None => refuse(Fault::ChecksNoArguments, -32602),
                Some(_) if self.has(Fault::EchoesNothing) => self.ok(id, json!({"content": []})),
                Some(text) => {
                    self.ok(id, content(text));
                    if self.has(Fault::AnswersTwice) {
                        self.ok(id, content(text));
                    }
                }
            },
            "destructive-tool" => refuse(Fault::DeniesNothing, -32011),
            "slow-tool" => {
                thread::sleep(Duration::from_millis(100));
                refuse(Fault::NoTimeouts, -32014);
            }
            "network-tool" => {
                assert!(params["arguments"]["url"].is_string());
                refuse(Fault::NoSandbox, -32010);
            }
            "expensive-tool" => refuse(Fault::NoQuota, -32021),
            "approval-tool" if self.has(Fault::ApprovesWithoutAsking) => self.ok(id, content("done")),
            "approval-tool" => self.wait_for_approval(id, params),
            other => panic!("nobody asks for {other}"),
        }
    }

    fn wait_for_approval(self: &Arc<Self>, id: &Value, params: &Value) {
        let request = params["context"]["request_id"].as_str().unwrap().to_owned();
        self.waiting.lock().unwrap().insert(request.clone(), id.clone());
        let agent = Arc::clone(self);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            let timed_out = agent.waiting.lock().unwrap().remove(&request);
            if let Some(id) = timed_out {
                agent.err(&id, -32012, Value::Null);
            }
        });
    }

    fn decide(&self, id: &Value, params: &Value, approved: bool) {
        let call = self
            .waiting
            .lock()
            .unwrap()
            .remove(params["request_id"].as_str().unwrap());
        self.ok(id, json!({"acknowledged": call.is_some()}));
        match call {
            Some(call) if approved && self.has(Fault::ForgetsTheApproved) => {
                self.err(&call, -32603, Value::Null)
            }
            Some(call) if approved || self.has(Fault::IgnoresDenials) => {
                self.ok(
                    &call,
                    json!({"content": [{"type": "text", "text": "done"}], "isError": false}),
                );
            }
            Some(call) => self.err(&call, -32013, Value::Null),
            None => {}
        }
    }

    fn memory(&self, method: &str, id: &Value, params: &Value) {
        assert_eq!(params["store"], "test-store");
        let mut memories = self.memories.lock().unwrap();
        match method {
            "claw.memory.store" => {
                let entries = params["entries"].as_array().unwrap();
                memories.extend(entries.iter().cloned());
                self.ok(id, json!({"stored": entries.len(), "ids": ["m-1"]}));
            }
            "claw.memory.query" if self.has(Fault::ForgetsMemories) => self.ok(id, json!({"entries": []})),
            "claw.memory.query" => self.ok(id, json!({"entries": *memories})),
            _ => {
                let after = if self.has(Fault::CompactionGrows) {
                    memories.len() + 1
                } else {
                    memories.len()
                };
                self.ok(
                    id,
                    json!({"entries_before": memories.len(), "entries_after": after}),
                );
            }
        }
    }
}
