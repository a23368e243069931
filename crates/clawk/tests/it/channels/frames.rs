//! A program talks to a `web` channel over a real WebSocket of `clawk serve`.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::LONG;
use crate::agent::{Agent, text};
use crate::doors::free;
use crate::serve::Server;

const MANIFEST: &str = r#"claw: "0.3.0"
kind: Claw
metadata: { name: tested, version: "1.0.0" }
spec:
  identity:
    inline: { name: tested, personality: You are tested., autonomy: autonomous }
  providers:
    - inline: { name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: { type: none } }
  channels:
    - inline: { name: page, type: web, transport: websocket, auth: { secret_ref: PAGE }, access_control: { mode: open } }
"#;
const SCRIPT: &str = "scenes:\n  - steps:\n      - say: \"You said **{{last_user_text}}**.\"\n";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_program_talks_over_a_websocket_and_a_frame_that_is_none_ends_it() {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), MANIFEST).unwrap();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    let at = free();
    let _server = Server::with(&agent, &["claw.yaml", "--listen", &at], &[("PAGE", TOKEN)]);
    let start = Instant::now();
    while TcpStream::connect(&at).is_err() {
        assert!(start.elapsed() < LONG, "nothing listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/parts/frames.js");
    let url = format!("ws://{at}/channels/page");
    let output = Command::new("node")
        .args(["--experimental-websocket", script, &url, TOKEN])
        .output()
        .unwrap();
    let told = text(&output.stdout);
    let seen: Value =
        serde_json::from_str(told.trim()).unwrap_or_else(|_| panic!("{told} {}", text(&output.stderr)));
    let answer = json!({"type": "message", "seq": 1, "of": "m1",
        "text": "You said **hello there**."});
    let wanted = json!({"protocol": "clawk.v1", "accepted": {"type": "accepted", "id": "m1"}, "answer": answer, "left": 1000,
        "again": answer, "long": 1009, "wrong": 1007, "guess": "refused"});
    assert_eq!(seen, wanted);
}
