//! CKP over Streamable HTTP: statuses, sessions and whose they are, streams that go on where they broke.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::BoxFuture;
use clawk_kernel::time::SystemClock;
use clawk_proto::SessionId;
use clawk_proto::trace::SealedEvent;
use clawk_server::http::{HttpListener, HttpOptions, Keys, Page, Scope, Token, TraceReader};
use clawk_server::{AgentHost, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::agent::Launched;
use crate::wire::{LONG, call, fresh, initialize};

#[derive(Debug)]
struct NoTraces;

impl TraceReader for NoTraces {
    fn page(&self, _: Page) -> BoxFuture<'_, Result<Vec<SealedEvent>, String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::channel(0).1
    }

    fn count(&self, _: SessionId, _: Vec<String>) -> BoxFuture<'_, Result<u64, String>> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn verify(&self, _: SessionId) -> BoxFuture<'_, Result<clawk_trace::VerificationReport, String>> {
        Box::pin(std::future::ready(Err("not here".to_owned())))
    }
}

/// A listener with an agent behind it.
pub(crate) struct Server {
    pub(crate) agent: Arc<Launched>,
    pub(crate) address: SocketAddr,
    pub(crate) keys: Keys,
    pub(crate) end: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

pub(crate) fn tokens() -> Vec<Token> {
    let of = |name: &str, scopes: &[Scope]| {
        Token::of_text(name, &format!("{name}-secret-of-length"), scopes.to_vec())
    };
    vec![
        of("ann", &[Scope::Tool, Scope::Message]),
        of("bob", &[Scope::Tool]),
        of("eve", &[Scope::Read]),
        of("ops", &[Scope::Admin]),
    ]
}

impl Server {
    pub(crate) async fn start(options: HttpOptions) -> Self {
        Self::of(Launched::beating(2, Some(100)), options).await
    }

    pub(crate) async fn of(agent: Arc<Launched>, options: HttpOptions) -> Self {
        let host = AgentHost::new(
            Arc::clone(&agent) as _,
            Options {
                drain_timeout_ms: 500,
                max_message_bytes: 1 << 20,
                ..Options::default()
            },
        );
        host.start_agent(None).await.expect("starts");
        let at = "127.0.0.1:0".parse().expect("an address");
        let clock = Arc::new(SystemClock::default());
        let http = HttpListener::bind(at, options, host, Arc::new(NoTraces), clock)
            .await
            .expect("binds");
        let (address, keys, end) = (http.address(), http.keys(), CancellationToken::new());
        let task = tokio::spawn(http.serve(end.clone()));
        Self {
            agent,
            address,
            keys,
            end,
            task,
        }
    }

    /// Sends one request and reads its head.
    pub(crate) async fn open(&self, method: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        let host = if headers.contains("host:") {
            ""
        } else {
            "host: localhost\r\n"
        };
        let length = body.len();
        let head = format!("{method} /claw HTTP/1.1\r\n{host}{headers}content-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("sent");
        // A server that refuses need not read it all.
        let _sent = stream.write_all(body.as_bytes()).await;
        let mut answer = Answer {
            stream,
            head: String::new(),
            rest: Vec::new(),
        };
        let end = answer.until(b"\r\n\r\n").await;
        answer.head = String::from_utf8(end).expect("text").to_ascii_lowercase();
        answer
    }

    /// A POST of a message that is answered at once.
    async fn post(&self, headers: &str, body: &str) -> (u16, Value, String) {
        let headers = format!("content-type: application/json\r\n{headers}");
        let mut answer = self.open("POST", &headers, body).await;
        let value = answer.body().await;
        (answer.status(), value, answer.head)
    }

    /// A new session of somebody; its header.
    async fn session(&self, who: &str) -> String {
        let (status, value, head) = self
            .post(&bearer(who), &request(1, "claw.initialize", initialize()))
            .await;
        assert_eq!(status, 200, "{value}");
        let id = head
            .lines()
            .find_map(|line| line.strip_prefix("claw-session-id: "));
        format!(
            "claw-session-id: {}\r\n{}",
            id.expect("a session").trim(),
            bearer(who)
        )
    }
}

pub(crate) fn bearer(who: &str) -> String {
    match who {
        "" => String::new(),
        who => format!("authorization: Bearer {who}-secret-of-length\r\n"),
    }
}

pub(crate) fn request(id: u32, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(crate) struct Answer {
    stream: TcpStream,
    head: String,
    rest: Vec<u8>,
}

impl Answer {
    fn status(&self) -> u16 {
        self.head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    }

    /// Everything up to these bytes, and they.
    async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.rest.windows(end.len()).position(|window| window == end) {
                return self.rest.drain(..at + end.len()).collect();
            }
            assert!(
                self.more().await,
                "it ends: {:?}",
                String::from_utf8_lossy(&self.rest)
            );
        }
    }

    async fn more(&mut self) -> bool {
        let mut piece = vec![0; 65536];
        let read = tokio::time::timeout(LONG, self.stream.read(&mut piece)).await;
        let read = read.expect("in time").unwrap_or(0);
        self.rest.extend_from_slice(&piece[..read]);
        read > 0
    }

    /// The body of known length, as JSON.
    async fn body(&mut self) -> Value {
        let length = self
            .head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        while self.rest.len() < length {
            assert!(self.more().await);
        }
        serde_json::from_slice(&self.rest[..length]).unwrap_or(Value::Null)
    }

    /// The next event that carries something: its id and its data. `None`: the stream has ended.
    async fn event(&mut self) -> Option<(String, Value)> {
        loop {
            let text = String::from_utf8_lossy(&self.rest).into_owned();
            if let Some(at) = text.find("data: {")
                && let Some(end) = text[at..].find("\n\n")
            {
                let id = text[..at]
                    .rfind("id: ")
                    .map(|from| text[from + 4..at].trim().to_owned());
                let data = serde_json::from_str(&text[at + 6..at + end]).expect("JSON");
                self.rest.drain(..at + end + 2);
                return Some((id.expect("an id"), data));
            }
            if text.contains("\r\n0\r\n\r\n") || !self.more().await {
                return None;
            }
        }
    }
}

const BOTH: &str = "accept: application/json, text/event-stream\r\n";
const EVENTS: &str = "accept: text/event-stream\r\n";

#[tokio::test]
async fn statuses_say_what_became_of_a_message() {
    let server = Server::start(HttpOptions::default()).await;
    let status = request(2, "claw.status", json!({}));
    let (code, answer, _) = server.post("", &status).await;
    assert_eq!(
        (code, &answer["error"]["data"]["reason"]),
        (400, &json!("not_initialized"))
    );
    let (code, answer, _) = server.post("", "{ no JSON").await;
    assert_eq!(
        (code, &answer["error"]["code"], &answer["id"]),
        (400, &json!(-32700), &Value::Null)
    );
    let mut wrong = initialize();
    wrong["protocolVersion"] = json!("9.0.0");
    let (code, answer, head) = server.post("", &request(3, "claw.initialize", wrong)).await;
    assert_eq!((code, &answer["error"]["code"]), (200, &json!(-32001)));
    assert!(
        !head.contains("claw-session-id"),
        "a refused one begins no session"
    );
    let session = server.session("").await;
    let (code, answer, _) = server.post(&session, &status).await;
    assert_eq!((code, &answer["result"]["state"]), (200, &json!("READY")));
    let told = json!({"jsonrpc": "2.0", "method": "claw.initialized", "params": {}}).to_string();
    let (code, answer, head) = server.post(&session, &told).await;
    assert_eq!((code, answer), (202, Value::Null));
    assert!(head.contains("content-length: 0"), "{head}");
    let batch = format!("[{status},{}]", request(5, "claw.no", json!({})));
    let (code, answer, _) = server.post(&session, &batch).await;
    assert_eq!((code, answer.as_array().map(Vec::len)), (200, Some(2)));
    let unknown = "claw-session-id: 0190c7a0-0000-7000-8000-000000000000\r\n";
    let (code, answer, _) = server.post(unknown, &status).await;
    assert_eq!(
        (code, &answer["error"]["data"]["reason"]),
        (404, &json!("unknown_session"))
    );
    let twice = format!("{session}{session}");
    assert_eq!(server.post(&twice, &status).await.0, 400, "two names are none");
    let long = request(6, "claw.status", json!({"x": "x".repeat(2 << 20)}));
    let (code, answer, _) = server.post(&session, &long).await;
    assert_eq!(
        (code, &answer["error"]["data"]["reason"]),
        (413, &json!("too_long"))
    );
    let plain = server
        .open("POST", &format!("content-type: text/plain\r\n{session}"), &status)
        .await;
    assert_eq!(plain.status(), 415, "a form of another page can't send JSON");
    let html = format!("accept: text/html\r\n{session}");
    assert_eq!(server.post(&html, &status).await.0, 406);
    assert_eq!(server.open("GET", &session, "").await.status(), 406);
    assert_eq!(server.open("DELETE", &session, "").await.status(), 204);
    assert_eq!(server.post(&session, &status).await.0, 404, "it has ended");
    assert_eq!(server.agent.starts(), 1, "the agent goes on");
}

#[tokio::test]
async fn a_page_of_somebody_else_gets_nothing() {
    let server = Server::start(HttpOptions::default()).await;
    let hello = request(1, "claw.initialize", initialize());
    for header in [
        "origin: https://evil.example\r\n",
        "origin: null\r\n",
        "host: evil.example\r\n",
        "host: localhost.evil.example\r\n",
        "host: localhost\r\nhost: evil.example\r\n",
    ] {
        assert_eq!(server.post(header, &hello).await.0, 403, "{header}");
    }
    // Two lengths, or a length and a second one in disguise: no request is smuggled in another's body.
    for smuggled in [
        "content-length: 4\r\n",
        "transfer-encoding: identity\r\n",
        "content-length : 4\r\n",
    ] {
        let answer = server
            .open(
                "POST",
                &format!("content-type: application/json\r\n{smuggled}"),
                &hello,
            )
            .await;
        assert_eq!(answer.status(), 400, "{smuggled}");
    }
}

#[tokio::test]
async fn a_session_is_its_tokens_alone() {
    let server = Server::start(HttpOptions {
        tokens: tokens(),
        ..HttpOptions::default()
    })
    .await;
    let hello = request(1, "claw.initialize", initialize());
    assert_eq!(server.post("", &hello).await.0, 401);
    assert_eq!(server.post(&bearer("mallory"), &hello).await.0, 401);
    let ann = server.session("ann").await;
    let (id, _) = ann.split_once("\r\n").expect("two headers");
    let status = request(2, "claw.status", json!({}));
    for other in ["bob", "ops"] {
        let stolen = format!("{id}\r\n{}", bearer(other));
        assert_eq!(server.post(&stolen, &status).await.0, 404, "{other}");
        assert_eq!(
            server
                .open("GET", &format!("{EVENTS}{stolen}"), "")
                .await
                .status(),
            404
        );
        assert_eq!(server.open("DELETE", &stolen, "").await.status(), 404);
    }
    assert_eq!(server.post(&ann, &status).await.0, 200);
    // The scope decides within the session.
    let eve = server.session("eve").await;
    let (code, answer, _) = server
        .post(&eve, &request(3, "claw.tool.call", call("echo", &fresh())))
        .await;
    assert_eq!(
        (code, &answer["error"]["data"]["reason"]),
        (200, &json!("scope_missing"))
    );
    assert_eq!(server.agent.runs("echo"), 0);
    // Other rights by now: the session that had more ends.
    let mut listening = server.open("GET", &format!("{EVENTS}{ann}"), "").await;
    assert_eq!(listening.status(), 200);
    let fewer = Token::of_text("ann", "ann-secret-of-length", vec![Scope::Read]);
    server.keys.replace_tokens(vec![fewer]).expect("replaced");
    while listening.event().await.is_some() {}
    assert_eq!(server.post(&ann, &status).await.0, 404);
    assert_eq!(server.post(&bearer("bob"), &hello).await.0, 401);
}

#[tokio::test]
async fn an_answer_whose_stream_breaks_is_read_on_where_it_broke() {
    let server = Server::start(HttpOptions::default()).await;
    let session = server.session("").await;
    let id = fresh();
    let headers = format!("content-type: application/json\r\n{EVENTS}{session}");
    let mut first = server
        .open("POST", &headers, &request(7, "claw.tool.call", call("slow", &id)))
        .await;
    assert_eq!(first.status(), 200);
    let hello = first.until(b"\n\n").await;
    let hello = String::from_utf8(hello).expect("text");
    let at = hello
        .split("id: ")
        .nth(1)
        .expect("a place before the first event")
        .trim()
        .to_owned();
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let resume = |place: &str| format!("{EVENTS}last-event-id: {place}\r\n{session}");
    let mut second = server.open("GET", &resume(&at), "").await;
    assert_eq!(second.status(), 200);
    let (place, answer) = second.event().await.expect("the answer");
    assert_eq!(
        (&answer["id"], &answer["result"]["isError"]),
        (&json!(7), &json!(false))
    );
    assert!(second.event().await.is_none(), "its stream has ended");
    assert_eq!(server.agent.runs("slow"), 1);
    // After the last event there is nothing; what never was is gone.
    let mut third = server.open("GET", &resume(&place), "").await;
    assert!(third.event().await.is_none());
    for place in ["9-0", "1-99", "nonsense", ""] {
        assert_eq!(
            server.open("GET", &resume(place), "").await.status(),
            410,
            "{place}"
        );
    }
}

#[tokio::test]
async fn what_answers_nothing_comes_by_the_stream_of_notices() {
    let server = Server::start(HttpOptions::default()).await;
    let session = server.session("").await;
    tokio::time::sleep(Duration::from_millis(350)).await;
    let mut one = server.open("GET", &format!("{EVENTS}{session}"), "").await;
    let (first, beat) = one.event().await.expect("a heartbeat");
    assert_eq!(beat["method"], "claw.heartbeat");
    assert_eq!(first, "0-1", "beats that nobody could hear were not kept");
    let (second, _) = one.event().await.expect("another");
    // A second listener takes the place of the first, from where that was.
    let mut two = server
        .open("GET", &format!("{EVENTS}last-event-id: {first}\r\n{session}"), "")
        .await;
    assert_eq!(two.event().await.expect("it was kept").0, second);
    while one.event().await.is_some() {}
    assert!(two.event().await.is_some(), "the newer one goes on");
    // A browser's EventSource sends no headers of its own.
    let id = session.trim().split(": ").nth(1).expect("an id");
    let mut stream = TcpStream::connect(server.address).await.expect("connects");
    let head = format!("GET /claw?session={id} HTTP/1.1\r\nhost: localhost\r\n{EVENTS}\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).await.expect("an answer");
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_slow_answer_is_streamed_and_a_quick_one_is_not() {
    let server = Server::start(HttpOptions::default()).await;
    let session = server.session("").await;
    let post = |tool: &'static str, wants: &'static str| {
        let headers = format!("content-type: application/json\r\n{wants}{session}");
        let body = request(4, "claw.tool.call", call(tool, &fresh()));
        let server = &server;
        async move { server.open("POST", &headers, &body).await }
    };
    let mut quick = post("slow", BOTH).await;
    assert!(quick.head.contains("application/json"), "{}", quick.head);
    assert_eq!(quick.body().await["id"], 4);
    let slow = post("hang", BOTH).await;
    assert!(slow.head.contains("text/event-stream"), "{}", slow.head);
    // The end of the service ends all of it in time.
    server.end.cancel();
    tokio::time::timeout(LONG, server.task)
        .await
        .expect("it ends")
        .expect("no panic");
}

#[tokio::test]
async fn sessions_have_a_bound() {
    let server = Server::start(HttpOptions {
        max_sessions: 2,
        ..HttpOptions::default()
    })
    .await;
    let (_one, two) = (server.session("").await, server.session("").await);
    let hello = request(1, "claw.initialize", initialize());
    assert_eq!(server.post("", &hello).await.0, 503);
    assert_eq!(server.open("DELETE", &two, "").await.status(), 204);
    for _ in 0..100 {
        if server.post("", &hello).await.0 == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the place of an ended session is not free");
}
