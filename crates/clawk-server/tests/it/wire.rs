//! A client at the other end of the lines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use clawk_server::{AgentHost, ClientRights, ConnectionEnd, Options, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::Launched;

/// No answer of these tests takes longer, however busy the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    pub(crate) agent: Arc<Launched>,
    pub(crate) cancel: CancellationToken,
    pub(crate) host: AgentHost,
    to: Option<DuplexStream>,
    from: Lines<BufReader<DuplexStream>>,
    serving: JoinHandle<ConnectionEnd>,
    /// Read, but not asked for yet.
    seen: VecDeque<Value>,
    next_id: u64,
}

impl Client {
    pub(crate) fn connect(agent: Arc<Launched>) -> Self {
        Self::with(
            agent,
            Options {
                drain_timeout_ms: 500,
                ..Options::default()
            },
        )
    }

    pub(crate) fn with(agent: Arc<Launched>, options: Options) -> Self {
        let (to, input) = tokio::io::duplex(256 * 1024);
        let (output, from) = tokio::io::duplex(64 * 1024);
        let cancel = CancellationToken::new();
        let host = AgentHost::new(Arc::clone(&agent) as _, options);
        let rights = ClientRights::for_launcher();
        let serving = tokio::spawn(serve(input, output, host.clone(), rights, cancel.clone()));
        Self {
            agent,
            cancel,
            host,
            to: Some(to),
            from: BufReader::new(from).lines(),
            serving,
            seen: VecDeque::new(),
            next_id: 1000,
        }
    }

    /// Another client of the same host, with the rights of a local user.
    pub(crate) fn beside(&self) -> Self {
        let (to, input) = tokio::io::duplex(256 * 1024);
        let (output, from) = tokio::io::duplex(64 * 1024);
        let cancel = CancellationToken::new();
        let rights = ClientRights::local_user(1000);
        let serving = tokio::spawn(serve(input, output, self.host.clone(), rights, cancel.clone()));
        Self {
            agent: Arc::clone(&self.agent),
            cancel,
            host: self.host.clone(),
            to: Some(to),
            from: BufReader::new(from).lines(),
            serving,
            seen: VecDeque::new(),
            next_id: 5000,
        }
    }

    /// Connected and initialized at `level`.
    pub(crate) async fn ready(level: u8) -> Self {
        let mut client = Self::connect(Launched::new(level));
        client.initialize().await;
        client
    }

    pub(crate) async fn initialize(&mut self) -> Value {
        let answer = self.ask("claw.initialize", initialize()).await;
        assert!(answer.get("result").is_some(), "{answer}");
        answer
    }

    /// Sends bytes as they are.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        let sent = self.to.as_mut().expect("open").write_all(bytes);
        tokio::time::timeout(LONG, sent)
            .await
            .expect("the server reads")
            .expect("the server is there");
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    /// Sends a request and gives its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.answer(id).await
    }

    /// The result of a request that must succeed.
    pub(crate) async fn result(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// The code and the data of a request that must fail.
    pub(crate) async fn error(&mut self, method: &str, params: Value) -> (i64, Value) {
        let mut answer = self.ask(method, params).await;
        assert!(answer.get("result").is_none(), "{method}: {answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{answer}"
        );
        (
            answer["error"]["code"].as_i64().expect("a code"),
            answer["error"]["data"].take(),
        )
    }

    /// The next message, of any kind.
    pub(crate) async fn next(&mut self) -> Value {
        match self.seen.pop_front() {
            Some(message) => message,
            None => self.read().await.expect("the server goes on"),
        }
    }

    async fn read(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(LONG, self.from.next_line())
            .await
            .expect("an answer in time")
            .expect("readable");
        line.map(|line| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")))
    }

    /// The answer to a request, whatever comes before it.
    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        self.first(|message| message["id"] == id).await
    }

    /// The next notification of a method.
    pub(crate) async fn notification(&mut self, method: &str) -> Value {
        self.first(|message| message["method"] == method && message.get("id").is_none())
            .await
    }

    pub(crate) async fn first(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.seen.iter().position(&wanted) {
            return self.seen.remove(at).expect("it is there");
        }
        loop {
            let message = self.read().await.expect("the server goes on");
            if wanted(&message) {
                return message;
            }
            self.seen.push_back(message);
        }
    }

    /// What has come by the time that a status behind everything is answered, without that status.
    pub(crate) async fn so_far(&mut self) -> Vec<Value> {
        self.ask("claw.status", json!({})).await;
        self.seen.drain(..).collect()
    }

    pub(crate) async fn state(&mut self) -> String {
        self.result("claw.status", json!({})).await["state"]
            .as_str()
            .expect("a state")
            .to_owned()
    }

    pub(crate) fn end_input(&mut self) {
        self.to = None;
    }

    /// Ends the input and reads to the end.
    pub(crate) async fn finish(mut self) -> (Vec<Value>, ConnectionEnd) {
        self.end_input();
        let mut rest: Vec<Value> = self.seen.drain(..).collect();
        while let Some(message) = self.read().await {
            rest.push(message);
        }
        (
            rest,
            tokio::time::timeout(LONG, self.serving)
                .await
                .expect("it ends")
                .expect("no panic"),
        )
    }

    /// Goes away without reading.
    pub(crate) async fn vanish(self) -> ConnectionEnd {
        drop((self.to, self.from));
        tokio::time::timeout(LONG, self.serving)
            .await
            .expect("it ends")
            .expect("no panic")
    }
}

/// Params of `claw.initialize`.
pub(crate) fn initialize() -> Value {
    json!({
        "protocolVersion": "0.2.0",
        "clientInfo": {"name": "tests", "version": "1.0.0"},
        "manifest": {"kind": "Claw", "metadata": {"name": "tester"}},
        "capabilities": {},
    })
}

/// A request id like no other.
pub(crate) fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Params of `claw.tool.call`.
pub(crate) fn call(tool: &str, request_id: &str) -> Value {
    json!({"name": tool, "arguments": {"text": "hi"}, "context": {"request_id": request_id, "identity": "tester"}})
}
