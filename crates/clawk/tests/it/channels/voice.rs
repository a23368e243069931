//! A recording through the program: from the socket to a strict speech server, to the model, and back as sound.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::LONG;
use crate::agent::{Agent, text};
use crate::doors::free;
use crate::serve::Server;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const KEY: &str = "key-of-the-speech-server";
/// What the server speaks.
const SOUND: usize = 70_000;

/// Speech as OpenAI publishes it, on loopback: strict about path, key and fields. It ends with the test's process.
struct Speech {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Speech {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let all = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &all);
            }
        });
        Self { address, seen }
    }
}

fn answer(mut stream: TcpStream, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length, mut key, mut boundary) = (String::new(), 0, false, String::new());
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let lower = line.trim().to_ascii_lowercase();
        if lower.is_empty() {
            break;
        }
        length = lower
            .strip_prefix("content-length: ")
            .map_or(length, |it| it.parse().unwrap());
        key |= line.trim().ends_with(&format!("Bearer {KEY}"));
        if let Some((_, it)) = line.trim().split_once("boundary=") {
            it.clone_into(&mut boundary);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let line = first.trim_end_matches(" HTTP/1.1\r\n").to_owned();
    let (status, kind, told) = match (line.as_str(), key) {
        (_, false) => ("401 Unauthorized", "application/json", b"{}".to_vec()),
        ("POST /v1/audio/transcriptions", _) => heard(&body, &boundary),
        ("POST /v1/audio/speech", _) => spoken(&body),
        _ => ("404 Not Found", "application/json", b"{}".to_vec()),
    };
    seen.lock().unwrap().push(format!("{line} {status}"));
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        told.len()
    )
    .unwrap();
    stream.write_all(&told).unwrap();
}

type Told = (&'static str, &'static str, Vec<u8>);

fn heard(body: &[u8], boundary: &str) -> Told {
    let text = String::from_utf8_lossy(body);
    let parts: Vec<&str> = text.split(&format!("--{boundary}")).collect();
    let wav = b"RIFF";
    let fits = parts.len() == 5
        && parts[1].contains("name=\"model\"\r\n\r\near\r\n")
        && parts[2].contains("name=\"response_format\"\r\n\r\njson\r\n")
        && parts[3].contains("name=\"file\"; filename=\"audio.wav\"")
        && body.windows(4).any(|four| four == wav);
    if fits {
        (
            "200 OK",
            "application/json",
            json!({"text": "good morning"}).to_string().into_bytes(),
        )
    } else {
        ("400 Bad Request", "application/json", b"{}".to_vec())
    }
}

fn spoken(body: &[u8]) -> Told {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let wanted = json!({"model": "ear", "input": "You said good morning.", "voice": "alloy", "response_format": "mp3"});
    if asked == wanted {
        ("200 OK", "audio/mpeg", vec![0xFF; SOUND])
    } else {
        ("400 Bad Request", "application/json", b"{}".to_vec())
    }
}

fn manifest(address: &str) -> String {
    format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: You are tested., autonomy: autonomous }}
  providers:
    - inline: {{ name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: {{ type: none }} }}
    - inline:
        name: speech
        protocol: openai-compatible
        endpoint: "http://{address}/v1"
        model: ear
        capabilities: [audio]
        auth: {{ type: bearer, secret_ref: SPEECH }}
  channels:
    - inline: {{ name: talk, type: voice, transport: websocket, auth: {{ secret_ref: PAGE }}, access_control: {{ mode: open }} }}
"#
    )
}

const SETTINGS: &str = "[channels.talk]\nsettings = { transcribe = \"speech\", speak = \"speech\" }\n";

#[test]
fn a_recording_is_heard_answered_and_spoken_through_the_program() {
    let speech = Speech::start();
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), manifest(&speech.address)).unwrap();
    std::fs::write(
        agent.path("script.yaml"),
        "scenes:\n  - steps:\n      - say: \"You said **{{last_user_text}}**.\"\n",
    )
    .unwrap();
    // Without its providers the channel is refused before anything starts.
    for (settings, word) in [
        ("", "settings.transcribe` is missing"),
        (
            "[channels.talk]\nsettings = { transcribe = \"main\" }\n",
            "does not have `audio`",
        ),
        (
            "[channels.talk]\nsettings = { transcribe = \"nobody\" }\n",
            "which is not declared",
        ),
    ] {
        std::fs::write(agent.path("clawk.toml"), settings).unwrap();
        let output = agent.clawk(["validate", "claw.yaml"]).output().unwrap();
        let told = text(&output.stdout) + &text(&output.stderr);
        assert!(
            told.contains("the agent does not start") && told.contains(word),
            "{told}"
        );
    }
    std::fs::write(agent.path("clawk.toml"), SETTINGS).unwrap();
    agent.clawk(["trust", "."]).assert().success();
    let at = free();
    let _server = Server::with(
        &agent,
        &["claw.yaml", "--listen", &at],
        &[("PAGE", TOKEN), ("SPEECH", KEY)],
    );
    let start = Instant::now();
    while TcpStream::connect(&at).is_err() {
        assert!(start.elapsed() < LONG, "nothing listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/parts/voice.js");
    let url = format!("ws://{at}/channels/talk");
    let output = Command::new("node")
        .args(["--experimental-websocket", script, &url, TOKEN])
        .output()
        .unwrap();
    let told = text(&output.stdout);
    let seen: Value =
        serde_json::from_str(told.trim()).unwrap_or_else(|_| panic!("{told} {}", text(&output.stderr)));
    let wanted = json!({"accepted": {"type": "accepted", "id": "a1"},
        "transcript": {"type": "transcript", "of": "a1", "text": "good morning"},
        "message": {"type": "message", "seq": 1, "of": "a1", "text": "You said **good morning**."},
        "audio": {"type": "audio", "of": "a1", "seq": 1, "media_type": "audio/mpeg"},
        "audio-done": {"type": "audio-done", "seq": 1}, "sound": SOUND, "reason": null});
    assert_eq!(seen, wanted, "{:?}", speech.seen.lock().unwrap());
    let mut all = speech.seen.lock().unwrap().clone();
    all.retain(|line| line.starts_with("POST"));
    assert_eq!(
        all,
        [
            "POST /v1/audio/transcriptions 200 OK",
            "POST /v1/audio/speech 200 OK"
        ]
    );
    let state = agent.state();
    agent
        .clawk(["trace", "verify", "--state", state.to_str().unwrap()])
        .assert()
        .success();
}
