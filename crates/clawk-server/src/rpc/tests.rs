//! Connections with less than all rights (R43): what each scope opens, and nothing else.

#![expect(
    clippy::disallowed_methods,
    reason = "tests serve beside themselves, and end with it"
)]

use std::sync::Arc;

use clawk_kernel::Kernel;
use clawk_kernel::ports::BoxFuture;
use clawk_kernel::testing::{Rig, manifest};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use crate::access::{ClientRights, Scope, Token};
use crate::agent::{AgentFactory, InitFailure};
use crate::host::{AgentHost, Options};
use crate::transport::lines;

#[derive(Debug)]
struct Given(Kernel);

impl AgentFactory for Given {
    fn check_manifest<'a>(&'a self, _wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn start_agent<'a>(&'a self, _wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

/// The answers to these requests, in order; the first one is `claw.initialize`'s.
async fn answers(rights: ClientRights, requests: &[(&str, Value)]) -> Vec<Value> {
    let rig = Rig::new(manifest(json!({})));
    let host = AgentHost::new(Arc::new(Given(rig.start().await)), Options::default());
    let (mut to, input) = tokio::io::duplex(1 << 16);
    let (output, from) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(lines::serve(
        input,
        output,
        host,
        rights,
        CancellationToken::new(),
    ));
    let mut lines = BufReader::new(from).lines();
    let hello = json!({"protocolVersion": "0.3.0", "clientInfo": {"name": "t", "version": "1"},
        "manifest": {"kind": "Claw", "metadata": {"name": "t"}}, "capabilities": {}});
    let mut all = Vec::new();
    let first = [("claw.initialize", hello)];
    for (method, params) in first.iter().chain(requests) {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        to.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        let line = lines.next_line().await.unwrap().unwrap();
        all.push(serde_json::from_str(&line).unwrap());
    }
    drop(to);
    serving.await.unwrap();
    all
}

fn token(scopes: &[Scope]) -> ClientRights {
    Token::of_text("ann", "a-token-of-length", scopes.to_vec()).rights()
}

fn requests() -> Vec<(&'static str, Value)> {
    let id = "00000000-0000-4000-8000-000000000001";
    let context = json!({"request_id": id, "identity": "t", "swarm": "s"});
    vec![
        (
            "claw.message.send",
            json!({"text": "hi", "request_id": id, "conversation": "c"}),
        ),
        (
            "claw.tool.call",
            json!({"name": "x", "arguments": {}, "context": context}),
        ),
        ("claw.tool.approve", json!({"request_id": id})),
        (
            "claw.memory.query",
            json!({"store": "s", "query": {"type": "key", "key": "k"}}),
        ),
        ("claw.swarm.discover", json!({"swarm": "s"})),
        ("claw.shutdown", json!({"scope": "host"})),
    ]
}

#[tokio::test]
async fn each_scope_opens_its_own_methods_and_no_other() {
    let needed = [
        Scope::Message,
        Scope::Tool,
        Scope::Approve,
        Scope::Memory,
        Scope::Swarm,
        Scope::Admin,
    ];
    for held in Scope::ALL {
        let all = answers(token(&[held]), &requests()).await;
        assert!(all[0].get("result").is_some(), "{held:?}: {}", all[0]);
        for (wanted, answer) in needed.iter().zip(&all[1..]) {
            let refused = answer["error"]["data"]["reason"] == "scope_missing";
            let may = held == Scope::Admin || held == *wanted;
            assert_eq!(refused, !may, "{held:?} asks for {wanted:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn only_the_control_socket_takes_orders() {
    let order = [("clawk.status", json!({}))];
    for rights in [token(&[Scope::Admin]), ClientRights::for_launcher()] {
        assert_eq!(answers(rights, &order).await[1]["error"]["code"], -32601);
    }
    let status = answers(ClientRights::local_user(1000), &order).await;
    assert_eq!(status[1]["result"]["state"], "READY", "{}", status[1]);
}
