//! The kernel's promises, each with a test that fails when it is broken.

#![expect(clippy::disallowed_methods, reason = "tests start calls beside themselves")]

mod approvals;
mod at_most_once;
mod atlas;
mod author_ways;
mod authors;
mod bounds;
mod boxes;
mod brought;
mod channels;
mod checkpoints;
mod circumstances;
mod claims;
mod client_tools;
mod compaction;
mod doors;
mod effects;
mod egress;
mod grants;
mod images;
mod injections;
mod kept_state;
mod known;
mod leaves;
mod limits;
mod memory;
mod messages;
mod model_choice;
mod models;
mod order;
mod origin;
mod outputs;
mod plans;
mod poison;
mod poison_ways;
mod projections;
mod purse;
mod recovery;
mod refusals;
mod replays;
mod reuse;
mod screening;
mod shown;
mod skill_bounds;
mod skills;
mod speech;
mod stops;
mod swarm;
mod swarm_afar;
mod swarm_slices;
mod talk;
mod tool_schema;
mod unreadable;
mod values;
mod words;
mod world_models;

use clawk_proto::method::{CallContext, ToolCallParams};
use clawk_proto::{RequestId, SessionId};
use serde_json::{Value, json};

use crate::testing::{Rig, manifest};
use crate::{EntryPoint, Kernel};

/// An agent with a tool `echo` (read-only), a tool `write` (effects), and the given policy rules.
pub(crate) fn agent(rules: Value) -> Value {
    json!({
        "tools": [
            {"name": "echo", "description": "echo", "input_schema": {
                "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
             "annotations": {"readOnlyHint": true}},
            {"name": "write", "description": "write", "input_schema": {"type": "object"}},
        ],
        "policies": [{"name": "policy", "rules": rules}],
    })
}

pub(crate) fn allow_all() -> Value {
    json!([{"id": "allow-all", "action": "allow", "scope": "all"}])
}

pub(crate) fn rig(spec: Value) -> Rig {
    Rig::new(manifest(spec))
}

pub(crate) async fn rpc(kernel: &Kernel) -> SessionId {
    kernel
        .open_session(EntryPoint::from_launcher("test"))
        .await
        .unwrap()
        .id
}

pub(crate) fn id(n: u32) -> RequestId {
    RequestId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap()
}

pub(crate) fn params(tool: &str, arguments: Value, n: u32) -> ToolCallParams {
    ToolCallParams {
        name: tool.to_owned(),
        arguments: arguments.as_object().cloned().unwrap(),
        context: CallContext {
            request_id: id(n),
            identity: "tester".to_owned(),
            sandbox: None,
            policy: None,
        },
    }
}

/// What a test waits for comes long before this; a wall that was taken out makes it fail, not hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(std::time::Duration::from_secs(30), future)
        .await
        .expect("it comes")
}
