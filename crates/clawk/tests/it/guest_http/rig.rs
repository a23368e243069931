//! An agent whose tool is a guest that speaks HTTP, and servers that remember what reached them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::without::{Host, Served, own};

/// `HTTP-request-denied`.
pub(super) const DENIED: &str = "error 15";

const TIMEOUT_MS: u64 = 6_000;

/// The guest as a component: its text, and its types from the WIT beside it.
fn guest() -> Vec<u8> {
    let mut module = wat::parse_str(include_str!("guest.wat")).unwrap();
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve
        .push_source("guest.wit", include_str!("guest.wit"))
        .unwrap();
    let world = resolve.select_world(&[package], Some("guest")).unwrap();
    let utf8 = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut module, &resolve, world, utf8).unwrap();
    let encoder = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&module);
    encoder.unwrap().encode().unwrap()
}

pub(super) struct Rig {
    host: Host,
    served: Served,
}

impl Rig {
    /// May reach these servers by their names.
    pub(super) fn new(webs: &[&Web], config: &str) -> Self {
        let hosts: Vec<String> = webs.iter().map(|web| format!("localhost:{}", web.port)).collect();
        let private = format!("[egress]\nallow_private = {hosts:?}\n{config}");
        Self::with(
            &json!({"mode": "allowlist", "allowed_hosts": hosts}),
            &private,
            &[],
        )
    }

    pub(super) fn with(network: &Value, config: &str, env: &[(&str, &str)]) -> Self {
        let host = Host::new(own());
        std::fs::write(host.beside("guest.wasm"), guest()).unwrap();
        let file = host.beside("clawk.toml");
        let wasm = host.beside("guest.wasm");
        std::fs::write(&file, format!("{config}[tools.shell]\nwasm = {wasm:?}\n")).unwrap();
        let mut served = host.serve_with("", &["--config", file.to_str().unwrap()], env);
        let sandbox = json!({"level": "wasm", "capabilities": {"shell": {"mode": "full"}, "network": network},
            "resource_limits": {"timeout_ms": TIMEOUT_MS, "memory_mb": 16}});
        let answer = served.initialize(&sandbox);
        assert!(answer["result"].is_object(), "{answer}");
        // Compiled before anything is timed.
        served.shell("GET http://nowhere.invalid/ - -");
        Self { host, served }
    }

    /// All that the guest said, or the error instead.
    pub(super) fn ask(&mut self, words: &str) -> String {
        self.served.shell(words).to_string()
    }

    /// The trace, but for the first call's part.
    pub(super) fn end(self) -> Vec<Value> {
        let Self { host, served } = self;
        drop(served);
        let trace = host.trace();
        let events: Vec<Value> = match serde_json::from_str::<Value>(&trace) {
            Ok(Value::Array(events)) => events,
            Ok(one) => one["events"].as_array().cloned().unwrap_or_default(),
            Err(_) => trace
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect(),
        };
        let first = |event: &Value| event.to_string().contains("nowhere.invalid");
        events.into_iter().filter(|event| !first(event)).collect()
    }
}

#[derive(Default)]
struct Seen {
    requests: Mutex<String>,
    hits: AtomicUsize,
    silent: AtomicUsize,
}

/// A server on loopback.
pub(super) struct Web {
    pub(super) port: u16,
    seen: Arc<Seen>,
}

impl Web {
    pub(super) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Seen>::default();
        let kept = Arc::clone(&seen);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = Arc::clone(&kept);
                std::thread::spawn(move || serve(stream, &seen));
            }
        });
        Self { port, seen }
    }

    /// All that arrived, small letters.
    pub(super) fn seen(&self) -> String {
        self.seen.requests.lock().unwrap().to_ascii_lowercase()
    }

    /// Connections that arrived.
    pub(super) fn hits(&self) -> usize {
        self.seen.hits.load(Ordering::SeqCst)
    }

    /// Connections that wait for an answer that never comes.
    pub(super) fn silent(&self) -> usize {
        self.seen.silent.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, seen: &Seen) {
    seen.hits.fetch_add(1, Ordering::SeqCst);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !complete(&text) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend_from_slice(&piece[..read]),
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    seen.requests.lock().unwrap().push_str(&text);
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let body = format!("you said {}\n", text.lines().next().unwrap_or_default());
    let plain = |more: &str| {
        format!(
            "HTTP/1.1 200 OK\r\n{more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    if path == "/silent" {
        seen.silent.fetch_add(1, Ordering::SeqCst);
        let _ = stream.read(&mut piece);
        seen.silent.fetch_sub(1, Ordering::SeqCst);
    } else if let Some(place) = path.strip_prefix("/to/") {
        let head = format!("HTTP/1.1 302 Found\r\nLocation: http://{place}\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
    } else if let Some(length) = path.strip_prefix("/long/") {
        let length: usize = length.parse().unwrap();
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes());
        for _ in 0..length >> 16 {
            if stream.write_all(&[b'x'; 1 << 16]).is_err() {
                return;
            }
        }
    } else if path == "/broken" {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this");
    } else if path == "/forged" {
        let _ = stream.write_all(plain("X-Clawk-Refused: host\r\n").as_bytes());
    } else {
        let _ = stream.write_all(plain("").as_bytes());
    }
}

fn complete(text: &[u8]) -> bool {
    let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&text[..end]).to_ascii_lowercase();
    let body = text.len() - end - 4;
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    if head.contains("transfer-encoding: chunked") {
        return text.ends_with(b"0\r\n\r\n");
    }
    body >= length.unwrap_or(0)
}
