//! `requests_per_minute` of a provider is one rate over all hosts, counted by the model's server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Database, Host, agent, holds};
use crate::counter::Counter;

const REQUESTS: usize = 13;
const SAYS: &str = "All is well.";

/// When a model's server was asked.
type Asked = Arc<Mutex<Vec<Instant>>>;

/// A model that answers everything; its port.
fn model() -> (u16, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Asked::default();
    let own = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = Arc::clone(&own);
            std::thread::spawn(move || answer(&asked, stream));
        }
    });
    (port, asked)
}

fn answer(asked: &Asked, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut length, mut first) = (0, String::new());
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        match line.trim().to_ascii_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            Some(_) => {}
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    if reader.take(length).read_to_end(&mut Vec::new()).is_err() {
        return;
    }
    // A start looks whether the model is there, which is not a request to it.
    if first.starts_with("POST") {
        asked.lock().unwrap().push(Instant::now());
    }
    let chunk = |choice: &Value, usage: &Value| {
        let chunk =
            json!({ "id": "1", "object": "chat.completion.chunk", "choices": [choice], "usage": usage });
        format!("data: {chunk}\n\n")
    };
    let words = json!({ "index": 0, "delta": { "content": SAYS } });
    let end = json!({ "index": 0, "delta": {}, "finish_reason": "stop" });
    let usage = json!({ "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5 });
    let body = format!(
        "{}{}data: [DONE]\n\n",
        chunk(&words, &Value::Null),
        chunk(&end, &usage)
    );
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let _sent = stream.write_all(format!("{head}{body}").as_bytes()); // who asked may be gone
}

#[test]
fn requests_per_minute_of_a_provider_are_exact_over_two_hosts() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let (port, asked) = model();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let scripted = r#"protocol: custom, endpoint: "script:script.yaml", model: scripted,"#;
    let limited = format!(
        r#"protocol: openai-compatible, endpoint: "http://127.0.0.1:{port}/v1", model: m, limits: {{ requests_per_minute: {REQUESTS} }}, retry: {{ max_attempts: 1 }},"#
    );
    assert!(manifest.contains(scripted), "{manifest}");
    std::fs::write(agent.path("claw.yaml"), manifest.replace(scripted, &limited)).unwrap();
    for host in ["a.toml", "b.toml"] {
        let config = std::fs::read_to_string(agent.path(host)).unwrap();
        let config = format!("{config}[providers.main]\nretry_time_ms = 1000\n");
        std::fs::write(agent.path(host), config).unwrap();
    }
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    let began = Instant::now();
    for n in 0..20 {
        first.say(100 + n, &format!("one-{n}"), "hello");
        second.say(10_000 + n, &format!("two-{n}"), "hello");
    }
    let mut answers: Vec<Value> = (0..20).map(|n| first.answer(100 + n)).collect();
    answers.extend((0..20).map(|n| second.answer(10_000 + n)));
    let took = began.elapsed();
    let told = |answer: &&Value| answer["result"]["parts"].to_string().contains(SAYS);
    let done = answers.iter().filter(told).count();
    let times = asked.lock().unwrap().clone();
    println!(
        "{} requests in {} ms, {done} answers",
        times.len(),
        took.as_millis()
    );
    assert_eq!(times.len(), done, "each request is an answer");
    assert!(done >= REQUESTS, "{done}");
    // On a very busy machine the answers take longer than a minute, and places get free. The server's clock and this one's differ by the
    // way of a request.
    for (n, later) in times.iter().enumerate().skip(REQUESTS) {
        let first = times[n - REQUESTS];
        assert!(later.duration_since(first) > Duration::from_secs(50), "{n}");
    }
    let refused = answers.iter().find(|answer| !told(answer)).unwrap();
    assert!(refused.to_string().contains("requests_per_minute"), "{refused}");
    holds(&agent, &database);
}
