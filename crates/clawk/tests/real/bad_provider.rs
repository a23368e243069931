//! Providers that fail in every way: the turn ends in time with the reason, nothing is lost, a fallback takes over.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, allow, in_order, manifest, of};
use crate::turn::last_session;

const FIRST_BYTE_MS: u64 = 700;

/// A server whose path says how it fails; returns its port. It lives as long as the test's process.
fn failing_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client may go at any time.
            std::thread::spawn(move || drop(answer(stream)));
        }
    });
    port
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mode = line.split('/').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    reader.take(length).read_to_end(&mut Vec::new())?;
    let whole = |status: &str, kind: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    let failure = r#"{"error":{"message":"not today","type":"trouble"}}"#;
    let delta = |text: &str| {
        format!(
            "data: {}\n\n",
            json!({ "id": "1", "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": { "content": text } }] })
        )
    };
    let text = match mode.as_str() {
        "hang" => {
            std::thread::sleep(Duration::from_secs(60));
            return Ok(());
        }
        // More is promised than comes.
        "half" => format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n{}",
            delta("This sentence has no")
        ),
        "429" => whole(
            "429 Too Many Requests\r\nretry-after: 1",
            "application/json",
            failure,
        ),
        "500" => whole("500 Internal Server Error", "application/json", failure),
        "garbage" => whole(
            "200 OK",
            "text/event-stream",
            "<html>\u{fffd} data: {{{ nonsense\n\ndata: {]\n\n",
        ),
        _ => {
            let end = json!({ "id": "1", "object": "chat.completion.chunk",
                "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5 } });
            let body = format!("{}data: {end}\n\ndata: [DONE]\n\n", delta("All is well."));
            whole("200 OK", "text/event-stream", &body)
        }
    };
    stream.write_all(text.as_bytes())
}

fn provider(port: u16, mode: &str, fallback: &Value) -> Value {
    json!({ "inline": { "name": format!("p-{mode}"), "protocol": "openai-compatible", "model": "m", "streaming": true,
        "endpoint": format!("http://127.0.0.1:{port}/{mode}/v1"), "auth": { "type": "none" }, "fallback": fallback,
        "retry": { "max_attempts": 2, "backoff": "constant", "initial_delay_ms": 10 } } })
}

/// Mode, the HTTP status that is recorded.
const FAILURES: [(&str, Option<u64>); 5] = [
    ("hang", None),
    ("half", None),
    ("429", Some(429)),
    ("500", Some(500)),
    ("garbage", None),
];

/// What is no answer at all is not asked for again.
fn attempts(mode: &str) -> usize {
    if mode == "garbage" { 1 } else { 2 }
}

fn local(modes: &[&str]) -> String {
    let sections = modes.iter().map(|mode| {
        format!("[providers.p-{mode}]\nfirst_byte_timeout_ms = {FIRST_BYTE_MS}\nretry_time_ms = 1500\n")
    });
    sections.collect()
}

#[test]
fn each_failure_ends_the_turn_with_its_reason_and_is_recorded() {
    let port = failing_server();
    for (mode, status) in FAILURES {
        let agent = Agent::new();
        let providers = json!([provider(port, mode, &json!([]))]);
        agent.is(
            &manifest(&providers, &json!([]), &json!([allow("nothing")])),
            &local(&[mode]),
        );
        let done = agent.clawk(&["run", "claw.yaml", "-m", "Are you well?"]);
        assert_eq!(done.status.code(), Some(1), "{mode}: {done:#?}");
        assert!(done.stderr.contains("turn failed:"), "{mode}: {done:#?}");
        assert!(done.stderr.contains(&format!("p-{mode}")), "{mode}: {done:#?}");
        assert!(done.stderr.contains("chain valid"), "{mode}: {done:#?}");
        let events = last_session(&agent);
        in_order(
            &events,
            &["ckp.message.accepted", "ckp.provider.failed", "session.ended"],
        );
        let failed = of(&events, "ckp.provider.failed");
        assert_eq!(failed.len(), attempts(mode), "{mode}: {failed:?}");
        for attempt in failed {
            assert_eq!(attempt["status"].as_u64(), status, "{mode}: {attempt}");
            assert!(!attempt["reason"].as_str().expect("a reason").is_empty());
        }
        assert!(
            of(&events, "ckp.provider.completed").is_empty(),
            "{mode}: half an answer is none"
        );
        let ended = of(&events, "ckp.message.answered").len() + of(&events, "ckp.message.dead").len();
        assert_eq!(ended, 1, "{mode}: the message has exactly one end");
    }
}

#[test]
fn a_chain_of_failing_providers_ends_at_the_one_that_answers() {
    let port = failing_server();
    let mut modes: Vec<&str> = FAILURES.iter().map(|(mode, _)| *mode).collect();
    modes.push("ok");
    let refs: Vec<Value> = modes[1..]
        .iter()
        .map(|mode| json!({ "provider_ref": format!("p-{mode}") }))
        .collect();
    let providers: Vec<Value> = modes
        .iter()
        .enumerate()
        .map(|(at, mode)| provider(port, mode, &if at == 0 { json!(refs) } else { json!([]) }))
        .collect();
    let agent = Agent::new();
    agent.is(
        &manifest(&json!(providers), &json!([]), &json!([allow("nothing")])),
        &local(&modes),
    );
    let done = agent.clawk(&["run", "claw.yaml", "-m", "Are you well?"]).ok();
    assert_eq!(done.stdout.trim(), "All is well.", "{done:#?}");
    let events = last_session(&agent);
    let failed: Vec<_> = of(&events, "ckp.provider.failed")
        .iter()
        .map(|failed| failed["provider"].as_str().expect("a name").to_owned())
        .collect();
    let mut expected: Vec<String> = modes
        .iter()
        .flat_map(|mode| vec![format!("p-{mode}"); attempts(mode)])
        .collect();
    expected.truncate(9);
    assert_eq!(failed, expected, "in order, none skipped");
    assert_eq!(of(&events, "ckp.provider.completed")[0]["provider"], "p-ok");
}
