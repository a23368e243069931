//! A server of raw bytes, and what the tests share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clawk_core::ports::{
    CompletionDelta, InferRequest, ModelCompletion, ModelMessage, ModelProvider, ProviderError, ToolOffer,
    ToolUse,
};
use clawk_providers::{ProviderConfig, ProviderFactory, ScriptAccess};
use clawk_secrets::{EnvironmentSource, SecretResolver};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub(crate) const CANARY: &str = "sk-canary-7Qx/93+lm";

/// What the server does with one connection, after it has read the whole request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// Sends these bytes and closes.
    Bytes(Vec<u8>),
    /// Sends these bytes in pieces of so many.
    Pieces(Vec<u8>, usize),
    /// Sends these bytes, then nothing more.
    Hold(Vec<u8>),
}

pub(crate) struct Server {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    closed: Arc<Mutex<usize>>,
    _task: AbortOnDropHandle<()>,
}

impl Server {
    /// Answers each connection with the next reply; the last one again and again.
    pub(crate) async fn start(replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(Mutex::new(0));
        let (seen, gone) = (Arc::clone(&requests), Arc::clone(&closed));
        #[expect(clippy::disallowed_methods, reason = "a test's server, ended with its handle")]
        let task = tokio::spawn(async move {
            let mut replies = replies.into_iter().peekable();
            let mut last = Reply::Bytes(Vec::new());
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                last = replies.next().unwrap_or(last);
                serve(stream, &last, &seen, &gone).await;
            }
        });
        Self {
            port,
            requests,
            closed,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Heads (lower case) and bodies so far.
    pub(crate) fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until the client has dropped a held connection.
    pub(crate) async fn dropped(&self) {
        for _ in 0..200 {
            if *self.closed.lock().unwrap() > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the connection is still open");
    }
}

async fn serve(
    mut stream: TcpStream,
    reply: &Reply,
    seen: &Mutex<Vec<(String, Value)>>,
    gone: &Mutex<usize>,
) {
    let mut bytes = Vec::new();
    let body_at = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..body_at]).to_lowercase();
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    while bytes.len() < body_at + length.unwrap_or(0) {
        stream.read_buf(&mut bytes).await.unwrap();
    }
    let text = String::from_utf8_lossy(&bytes[body_at..]).into_owned();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    seen.lock().unwrap().push((head, body));
    // A client that has gone is a test's own business.
    match reply {
        Reply::Bytes(bytes) => drop(stream.write_all(bytes).await),
        Reply::Pieces(bytes, size) => {
            for piece in bytes.chunks(*size) {
                drop(stream.write_all(piece).await);
                drop(stream.flush().await);
                tokio::task::yield_now().await;
            }
        }
        Reply::Hold(bytes) => {
            drop(stream.write_all(bytes).await);
            let mut rest = [0; 1];
            drop(stream.read(&mut rest).await);
            *gone.lock().unwrap() += 1;
        }
    }
    drop(stream.shutdown().await);
}

/// A response with a length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) fn whole(body: &Value) -> Vec<u8> {
    answer("200 OK", "content-type: application/json\r\n", &body.to_string())
}

/// A stream that ends with the connection.
pub(crate) fn stream(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n{body}")
        .into_bytes()
}

/// A stream in HTTP chunks: its end can be told from a break.
pub(crate) fn chunked_stream(body: &str) -> Vec<u8> {
    let mut out = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in body.as_bytes().chunks(61) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

pub(crate) fn spec(protocol: &str, endpoint: &str, streaming: bool) -> Value {
    json!({
        "name": "main", "protocol": protocol, "endpoint": endpoint, "model": "test-model", "streaming": streaming,
        "auth": { "type": "bearer", "secret_ref": "KEY" },
    })
}

pub(crate) fn quick() -> ProviderConfig {
    ProviderConfig {
        first_byte_timeout_ms: 400,
        idle_timeout_ms: 400,
        total_timeout_ms: 3_000,
        ..ProviderConfig::default()
    }
}

pub(crate) fn factory(config: ProviderConfig, scripts: PathBuf) -> ProviderFactory {
    let env = EnvironmentSource::from_pairs([("KEY", CANARY), ("PAIR", &format!("the-id:{CANARY}"))]);
    let config = BTreeMap::from([("main".to_owned(), config)]);
    ProviderFactory::new(
        SecretResolver::without_store(env),
        config,
        ScriptAccess::Inside(scripts),
    )
}

pub(crate) fn provider(spec: Value, config: ProviderConfig) -> Arc<dyn ModelProvider> {
    factory(config, PathBuf::from("/nonexistent"))
        .build_provider(&serde_json::from_value(spec).unwrap())
        .unwrap()
}

pub(crate) fn user(text: &str) -> InferRequest {
    InferRequest {
        system: "Be brief.".to_owned(),
        messages: vec![ModelMessage::User {
            text: text.to_owned(),
            images: Vec::new(),
            frame: String::new(),
            author: clawk_core::author::TextAuthor::from_runtime(),
        }],
        tools: vec![ToolOffer {
            name: "file-read".to_owned(),
            description: "Reads a file.".to_owned(),
            input_schema: json!({ "type": "object", "properties": { "path": { "type": "string" } } }),
        }],
        max_output_tokens: 100,
        ..InferRequest::default()
    }
}

/// A conversation with every kind of message.
pub(crate) fn long() -> InferRequest {
    let mut request = user("read two files");
    let call = |id: &str, arguments| ToolUse {
        id: id.to_owned(),
        name: "file-read".to_owned(),
        arguments,
    };
    let path = json!({ "path": "a" }).as_object().cloned().unwrap();
    request.messages.push(ModelMessage::Assistant {
        text: String::new(),
        calls: vec![call("fn.x:0", Ok(path)), call("c1", Err("{bad".to_owned()))],
        state: None,
    });
    let result = |id: &str, text: &str, is_error| ModelMessage::ToolResult {
        call_id: id.to_owned(),
        text: text.to_owned(),
        is_error,
        from_tool: true,
    };
    request.messages.extend([
        result("fn.x:0", "contents of a", false),
        result("c1", "bad arguments", true),
    ]);
    request
}

/// The answer, and all that was told on the way.
pub(crate) async fn ask(
    provider: &Arc<dyn ModelProvider>,
    request: &InferRequest,
) -> (Result<ModelCompletion, ProviderError>, String) {
    let told = Mutex::new(String::new());
    let on_delta = |delta: CompletionDelta<'_>| match delta {
        CompletionDelta::Text(text) => told.lock().unwrap().push_str(text),
        CompletionDelta::Call(name) => told.lock().unwrap().push_str(&format!("<{name}>")),
        CompletionDelta::Thought(_) => {}
    };
    let answer = provider
        .infer(request, &on_delta, &CancellationToken::new())
        .await;
    (answer, told.into_inner().unwrap())
}

pub(crate) async fn fault(provider: &Arc<dyn ModelProvider>, request: &InferRequest) -> ProviderError {
    let error = ask(provider, request)
        .await
        .0
        .expect_err("the attempt should fail");
    let shown = format!("{error} {error:?} {provider:?}");
    assert!(
        !shown.contains(CANARY) && !shown.contains("canary"),
        "a secret is shown: {shown}"
    );
    assert!(error.message.len() < 1200, "{} bytes", error.message.len());
    error
}
