//! A real, very small language model behind llama.cpp's server. It often does what it is asked and sometimes does not: tests
//! assert what the protocols say, never words.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::agent::PATIENCE;
use crate::parts::{ours, part};
use crate::process::Group;

/// What an agent calls the model.
pub(crate) const NAME: &str = "smollm2";

/// The server; ends when dropped.
pub(crate) struct Model {
    port: u16,
    _process: Group,
}

impl Model {
    /// Starts it and waits until it answers.
    #[expect(clippy::disallowed_methods, reason = "a test starts the server that it needs")]
    pub(crate) fn start() -> Self {
        let port = free_port();
        let mut process = Group::spawn(
            Command::new(part("py/bin/python"))
                .arg(ours("model_server.py"))
                .arg(part("model.gguf"))
                .arg(port.to_string())
                .arg(ours("chat.jinja"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        let stdout = process.0.stdout.take().expect("piped");
        let (sender, ready) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let line = ready
            .recv_timeout(PATIENCE)
            .expect("the model's server gets ready");
        assert_eq!(line, format!("ready {port}\n"), "the model's server has ended");
        Self {
            port,
            _process: process,
        }
    }

    /// It as an agent's provider.
    pub(crate) fn provider(&self, protocol: &str, streaming: bool) -> Value {
        let path = if protocol == "openai-compatible" {
            "/v1"
        } else {
            ""
        };
        json!([{ "inline": { "name": "small", "protocol": protocol, "model": NAME, "streaming": streaming,
            "endpoint": format!("http://127.0.0.1:{}{path}", self.port), "auth": { "type": "none" } } }])
    }
}

/// A port that nobody had a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}
