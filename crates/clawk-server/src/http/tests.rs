//! The API over real sockets: who may what, what is refused, and that nobody is held up by somebody else.

#![expect(
    clippy::disallowed_methods,
    reason = "tests start servers and clients beside themselves"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clawk_carp::Atlas;
use clawk_kernel::ports::{BoxFuture, Journal as _};
use clawk_kernel::testing::{MemJournal, Rig, manifest};
use clawk_kernel::{AtlasSettings, Kernel};
use clawk_proto::SessionId;
use clawk_proto::trace::SealedEvent;
use clawk_trace::VerificationReport;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

mod crowd;
mod oauth;
mod rights;
mod shapes;
mod unread;

use super::{HttpError, HttpListener, HttpOptions, Page, Scope, Token, TraceReader, openapi_document};
use crate::agent::{AgentFactory, InitFailure};
use crate::host::{AgentHost, Options};

#[derive(Debug)]
struct Mem(Arc<MemJournal>);

impl TraceReader for Mem {
    fn page(&self, page: Page) -> BoxFuture<'_, Result<Vec<SealedEvent>, String>> {
        let events = self.0.trace().into_iter().filter(move |event| {
            event.session_id == page.session
                && event.sequence >= page.since
                && (page.kinds.is_empty() || page.kinds.contains(&event.event_type))
        });
        let sealed = events.take(page.limit).map(|event| SealedEvent {
            trace_version: "1.0",
            event_id: event.event_id,
            trace_id: event.trace_id,
            span_id: event.span_id,
            parent_span_id: event.parent_span_id,
            session_id: event.session_id,
            sequence: event.sequence,
            timestamp: event.timestamp,
            event_type: event.event_type,
            payload: serde_json::value::to_raw_value(&event.payload).unwrap(),
            event_hash: event.event_hash,
            previous_event_hash: event.previous_event_hash,
        });
        let sealed = sealed.collect();
        Box::pin(std::future::ready(Ok(sealed)))
    }

    fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.watch_commits()
    }

    fn count(&self, session: SessionId, kinds: Vec<String>) -> BoxFuture<'_, Result<u64, String>> {
        let events = self.0.trace().into_iter();
        let counted = events.filter(|event| {
            event.session_id == session && (kinds.is_empty() || kinds.contains(&event.event_type))
        });
        Box::pin(std::future::ready(Ok(counted.count() as u64)))
    }

    fn verify(&self, session: SessionId) -> BoxFuture<'_, Result<VerificationReport, String>> {
        let events = self
            .0
            .trace()
            .into_iter()
            .filter(|event| event.session_id == session);
        let report = clawk_trace::verify::verify_events(events);
        Box::pin(std::future::ready(Ok(report)))
    }
}

/// An agent that runs already.
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

/// A host without an agent.
fn nobody() -> AgentHost {
    #[derive(Debug)]
    struct Nobody;
    impl AgentFactory for Nobody {
        fn check_manifest<'a>(&'a self, _wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn start_agent<'a>(&'a self, _wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>> {
            Box::pin(std::future::ready(Err(InitFailure::Manifest(Vec::new()))))
        }
    }
    AgentHost::new(Arc::new(Nobody), Options::default())
}

struct Server {
    keys: super::Keys,
    address: SocketAddr,
    end: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn atlas() -> Value {
    json!({
        "atlas_version": "1.0", "atlas_id": "com.example.desk", "version": "1.0.0", "name": "Desk", "description": "A desk.",
        "policies": [{"policy_id": "no-delete", "type": "deny", "actions": ["*.delete"]},
                     {"policy_id": "ask", "type": "require_approval", "actions": ["fee.*"]}],
        "actions": [
            {"action_id": "note.write", "name": "Write", "description": "writes", "executor": "write"},
            {"action_id": "note.delete", "name": "Delete", "description": "deletes", "executor": "write"},
            {"action_id": "fee.waive", "name": "Waive", "description": "waives", "executor": "write"},
        ],
    })
}

fn tokens() -> Vec<Token> {
    let all = |name: &str, scopes: &[Scope]| {
        Token::of_text(name, &format!("{name}-secret-of-length"), scopes.to_vec())
    };
    vec![
        all("ann", &[Scope::Read, Scope::Resolve, Scope::Execute]),
        all("bob", &[Scope::Read, Scope::Resolve, Scope::Execute]),
        all("eve", &[Scope::Read]),
        all("ops", &[Scope::Admin]),
    ]
}

async fn start(options: HttpOptions) -> Server {
    let spec = json!({
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [{"name": "p", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}],
    });
    let mut rig = Rig::new(manifest(spec));
    let atlas = Atlas::in_memory(&serde_json::to_vec(&atlas()).unwrap(), &Default::default()).unwrap();
    rig.atlases = AtlasSettings {
        loaded: vec![Arc::new(atlas)],
        clock_skew_ms: None,
        served: true,
        ..AtlasSettings::default()
    };
    let host = AgentHost::new(Arc::new(Given(rig.start().await)), Options::default());
    host.start_agent(None).await.unwrap();
    let traces = Arc::new(Mem(Arc::clone(&rig.journal)));
    let at = "127.0.0.1:0".parse().unwrap();
    let http = HttpListener::bind(at, options, host, traces, rig.clock.clone())
        .await
        .unwrap();
    let (address, end, keys) = (http.address(), CancellationToken::new(), http.keys());
    let task = tokio::spawn(http.serve(end.clone()));
    Server {
        keys,
        address,
        end,
        task,
    }
}

async fn guarded() -> Server {
    start(HttpOptions {
        tokens: tokens(),
        ..HttpOptions::default()
    })
    .await
}

impl Server {
    async fn raw(&self, text: &str) -> (u16, String, Value) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let _cut = tokio::time::timeout(Duration::from_secs(20), read)
            .await
            .expect("an answer in time");
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0);
        (
            status,
            head.to_ascii_lowercase(),
            serde_json::from_str(body).unwrap_or(Value::Null),
        )
    }

    async fn send(
        &self,
        who: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
        more: &str,
    ) -> (u16, String, Value) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let token = if who.is_empty() {
            String::new()
        } else {
            format!("authorization: Bearer {who}-secret-of-length\r\n")
        };
        let host = if more.to_ascii_lowercase().contains("host:") {
            ""
        } else {
            "host: localhost\r\n"
        };
        let kind = if body.is_empty() {
            ""
        } else {
            "content-type: application/json\r\n"
        };
        let length = body.len();
        self.raw(&format!(
            "{method} {path} HTTP/1.1\r\n{host}{token}{kind}{more}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ))
        .await
    }

    async fn get(&self, who: &str, path: &str) -> (u16, Value) {
        let (status, _, body) = self.send(who, "GET", path, None, "").await;
        (status, body)
    }

    async fn post(&self, who: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.send(who, "POST", path, Some(body), "").await;
        (status, body)
    }

    async fn session(&self, who: &str) -> String {
        let (status, body) = self
            .post(who, "/v1/sessions", &json!({"agent_id": "desk", "goal": "help"}))
            .await;
        assert_eq!(status, 201, "{body}");
        body["session_id"].as_str().unwrap().to_owned()
    }
}

fn request(session: &str, n: u32, execution: Option<Value>) -> Value {
    let mut request = json!({
        "carp_version": "1.0", "request_id": format!("00000000-0000-4000-8000-{n:012}"),
        "timestamp": "2024-12-28T12:00:00.000Z", "operation": "resolve",
        "requester": {"agent_id": "desk", "session_id": session}, "task": {"goal": "help"},
    });
    if let Some(execution) = execution {
        request["operation"] = json!("execute");
        request["execution"] = execution;
    }
    request
}

#[tokio::test]
async fn a_session_from_its_opening_to_its_verified_trace() {
    let server = guarded().await;
    let session = server.session("ann").await;
    let (status, resolution) = server
        .post("ann", "/v1/resolve", &request(&session, 1, None))
        .await;
    assert_eq!(
        (status, &resolution["decision"]["type"]),
        (200, &json!("partial"))
    );
    let id = resolution["resolution_id"].clone();
    let run = |action: &str| Some(json!({"resolution_id": id, "action_id": action, "parameters": {}}));
    let (status, ran) = server
        .post("ann", "/v1/execute", &request(&session, 2, run("note.write")))
        .await;
    assert_eq!((status, &ran["status"]), (200, &json!("success")), "{ran}");
    let (status, denied) = server
        .post("ann", "/v1/execute", &request(&session, 3, run("note.delete")))
        .await;
    assert_eq!(
        (status, &denied["error"]["code"]),
        (403, &json!("action_denied")),
        "{denied}"
    );
    assert_eq!(
        denied["error"]["request_id"],
        "00000000-0000-4000-8000-000000000003"
    );
    let (_, pending) = server
        .post("ann", "/v1/execute", &request(&session, 4, run("fee.waive")))
        .await;
    assert_eq!(pending["status"], "pending_approval", "{pending}");
    let approval = format!(
        "/v1/approvals/{}",
        pending["error"]["details"]["approval_id"].as_str().unwrap()
    );
    let yes = json!({"decision": "approve"});
    assert_eq!(
        server.post("ann", &approval, &yes).await.0,
        403,
        "who executes does not agree to it"
    );
    assert_eq!(server.post("ops", &approval, &yes).await.0, 200);
    let (_, ran) = server
        .post("ann", "/v1/execute", &request(&session, 5, run("fee.waive")))
        .await;
    assert_eq!(ran["status"], "success", "{ran}");
    let trace = format!("/v1/traces/{session}");
    let (status, page) = server
        .get(
            "ann",
            &format!("{trace}?event_type=action.executed,action.denied"),
        )
        .await;
    assert_eq!(
        (status, page["events"].as_array().unwrap().len()),
        (200, 3),
        "{page}"
    );
    let (status, verified) = server
        .send("ann", "POST", &format!("{trace}/verify"), None, "")
        .await
        .fold();
    assert_eq!((status, &verified["valid"]), (200, &json!(true)));
    let (_, head, _) = server
        .send("ann", "GET", &trace, None, "accept: application/x-ndjson\r\n")
        .await;
    assert!(head.contains("content-type: application/x-ndjson"), "{head}");
    let path = format!("/v1/sessions/{session}");
    assert_eq!(server.send("ann", "DELETE", &path, None, "").await.0, 204);
    assert_eq!(server.get("ann", &path).await.1["status"], "ended");
    assert_eq!(server.send("ann", "DELETE", &path, None, "").await.0, 404);
    assert_eq!(
        server
            .post("ann", "/v1/resolve", &request(&session, 6, None))
            .await
            .0,
        404
    );
    assert_eq!(server.get("ann", &trace).await.0, 200, "the trace stays");
}

trait Fold {
    fn fold(self) -> (u16, Value);
}

impl Fold for (u16, String, Value) {
    fn fold(self) -> (u16, Value) {
        (self.0, self.2)
    }
}

#[tokio::test]
async fn bad_input_is_refused_in_so_many_words() {
    let server = start(HttpOptions {
        max_body_bytes: 64 * 1024,
        ..HttpOptions::default()
    })
    .await;
    let session = server.session("").await;
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body = request(&session, 9, None);
        change(&mut body);
        body
    };
    let (status, body) = server
        .post(
            "",
            "/v1/resolve",
            &with(&|body| body["carp_version"] = json!("2.0")),
        )
        .await;
    assert_eq!(
        (status, &body["error"]["details"]["errors"][0]["path"]),
        (400, &json!("/carp_version"))
    );
    let missing = with(&|body| drop(body.as_object_mut().unwrap().remove("task")));
    let (status, body) = server.post("", "/v1/resolve", &missing).await;
    assert_eq!(
        (status, &body["error"]["details"]["errors"][0]["path"]),
        (400, &json!("/task"))
    );
    let huge = json!({"agent_id": "x".repeat(100_000), "goal": "g"});
    let (status, body) = server.post("", "/v1/sessions", &huge).await;
    assert_eq!((status, &body["error"]["code"]), (413, &json!("too_large")));
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    let deep = format!(
        "POST /v1/resolve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{deep}",
        deep.len()
    );
    assert_eq!(server.raw(&deep).await.0, 400);
    assert_eq!(server.get("", "/v1/sessions?limit=0").await.0, 400);
    assert_eq!(server.get("", "/v1/sessions/nonsense").await.0, 404);
    assert_eq!(server.get("", "/nowhere").await.1["error"]["code"], "not_found");
    let (status, head, body) = server.send("", "PUT", "/v1/sessions", None, "").await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (405, &json!("method_not_allowed"))
    );
    assert!(head.contains("allow: "), "{head}");
}

#[tokio::test]
async fn a_bad_atlas_is_refused_whole() {
    let server = start(HttpOptions::default()).await;
    let mut other = atlas();
    other["atlas_id"] = json!("com.example.other");
    other["actions"] = json!([]);
    let load = |manifest: &Value| json!({"manifest": manifest});
    let outside = |change: &dyn Fn(&mut Value)| {
        let mut manifest = other.clone();
        change(&mut manifest);
        load(&manifest)
    };
    let cyclic = outside(&|atlas| atlas["dependencies"] = json!({"com.example.other": "*"}));
    let (status, body) = server.post("", "/v1/atlases", &cyclic).await;
    assert_eq!(status, 400, "{body}");
    let slow = format!("{}b", "a*".repeat(5_000));
    let slow =
        outside(&|atlas| atlas["policies"] = json!([{"policy_id": "p", "type": "deny", "actions": [slow]}]));
    let (status, body) = server.post("", "/v1/atlases", &slow).await;
    assert_eq!(status, 400, "{body}");
    assert_eq!(server.post("", "/v1/atlases", &load(&atlas())).await.0, 409);
    assert_eq!(
        server
            .send("", "DELETE", "/v1/atlases/com.example.desk", None, "")
            .await
            .0,
        409,
        "configured"
    );
    assert_eq!(server.post("", "/v1/atlases", &load(&other)).await.0, 201);
    assert_eq!(
        server
            .send("", "DELETE", "/v1/atlases/com.example.other", None, "")
            .await
            .0,
        204
    );
    assert_eq!(server.get("", "/v1/atlases/com.example.other").await.0, 404);
}

#[tokio::test]
async fn too_many_requests_are_told_when_to_come_again() {
    let server = start(HttpOptions {
        requests_per_second: 1,
        ..HttpOptions::default()
    })
    .await;
    let mut last = (0, String::new());
    for _ in 0..4 {
        let (status, head, _) = server.send("", "GET", "/v1/sessions", None, "").await;
        last = (status, head);
    }
    assert_eq!(last.0, 429);
    assert!(last.1.contains("retry-after: 1"), "{}", last.1);
}

fn handshake(session: &str) -> String {
    format!(
        "GET /v1/traces/stream?session_id={session} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

#[tokio::test]
async fn a_stream_tells_events_and_one_that_is_not_read_is_cut() {
    let server = start(HttpOptions {
        max_streams: 1,
        stall_ms: 300,
        ..HttpOptions::default()
    })
    .await;
    let session = server.session("").await;
    assert_eq!(
        server
            .get("", &format!("/v1/traces/stream?session_id={session}"))
            .await
            .0,
        426
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(handshake(&session).as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0u8; 4096];
    while !String::from_utf8_lossy(&seen).contains("session.started") {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(read > 0, "closed early: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
    // From here on it reads nothing, and much happens.
    let (status, ..) = server.raw(&handshake(&session)).await;
    assert_eq!(status, 429, "only one stream may be open");
    for n in 0..120 {
        let mut wanted = request(&session, n, None);
        wanted["task"]["goal"] = json!("g".repeat(9_999));
        wanted["context"] = json!({"much": "x".repeat(60_000)});
        assert_eq!(
            server.post("", "/v1/resolve", &wanted).await.0,
            200,
            "others are served"
        );
    }
    let cut = async {
        loop {
            let mut fresh = TcpStream::connect(server.address).await.unwrap();
            fresh.write_all(handshake(&session).as_bytes()).await.unwrap();
            let read = fresh.read(&mut buffer).await.unwrap_or(0);
            if buffer[..read].starts_with(b"HTTP/1.1 101") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), cut)
        .await
        .expect("the stalled stream gave its place free");
    server.end.cancel();
    tokio::time::timeout(Duration::from_secs(20), server.task)
        .await
        .expect("it ends")
        .unwrap();
}

#[test]
fn the_openapi_document_is_the_committed_one() {
    let now = openapi_document().to_pretty_json().unwrap();
    let committed = include_str!("../../../../schema/openapi.json");
    assert!(
        committed.trim_end() == now.trim_end(),
        "schema/openapi.json is not what the code says; write it anew with `clawk schema openapi > schema/openapi.json`"
    );
}

#[test]
fn every_operation_of_the_openapi_document_has_its_own_id() {
    let document: Value = serde_json::from_str(&openapi_document().to_json().unwrap()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<_> = operations
        .map(|operation| operation["operationId"].as_str().expect("an id"))
        .collect();
    let different: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(
        different.len(),
        ids.len(),
        "a generated client would lack one: {ids:?}"
    );
}
