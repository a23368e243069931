//! Telemetry, through the real binary.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::Value;

use crate::agent::{Agent, text};
use crate::parts;

const CANARY: &str = "canary-5f0c9a7b31";

/// An agent with these exporters, whose script calls tools with the canary as argument, result, unknown tool and error.
fn agent(telemetry: &str) -> Agent {
    let agent = Agent::new();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    std::fs::write(
        agent.path("claw.yaml"),
        format!("{manifest}  telemetry:\n    inline:\n{telemetry}"),
    )
    .unwrap();
    std::fs::write(agent.path("in.txt"), CANARY).unwrap();
    let script = format!(
        r#"
scenes:
  - steps:
      - call: [{{ name: file-read, arguments: {{ path: in.txt }} }}]
      - call: [{{ name: file-read, arguments: {{ path: "{CANARY}.txt" }} }}]
      - call: [{{ name: "{CANARY}\n\"}},x=\"", arguments: {{ a: "{CANARY}" }} }}]
      - say: "{CANARY}"
"#
    );
    std::fs::write(agent.path("script.yaml"), script).unwrap();
    agent
}

fn runs(agent: &Agent) -> String {
    let ran = agent
        .clawk(["run", "claw.yaml", "--state", "state", "-m", CANARY])
        .env("TELEMETRY_KEY", "the-key")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    text(&ran.stderr).clone()
}

/// Bytes as text, for looking for words in it.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(text: &str) -> Vec<Value> {
    let ours = text
        .lines()
        .filter(|line| line.starts_with("{\"clawk_telemetry\":1,"));
    ours.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn named<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["name"] == name).collect()
}

/// Requests as they came: the head and the body of each.
type Received = JoinHandle<Vec<(String, Vec<u8>)>>;

/// Answers each POST with 200; what came, head and body, until `count` did.
fn receiver(count: usize) -> (u16, Received) {
    receiver_at(0, count)
}

fn receiver_at(port: u16, count: usize) -> (u16, Received) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = std::thread::spawn(move || {
        let mut came = Vec::new();
        while came.len() < count {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                head.push_str(&line.to_lowercase());
                line.clear();
            }
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .unwrap();
            let mut body = vec![0; length.trim().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            came.push((head, body));
        }
        came
    });
    (port, served)
}

#[test]
fn a_file_has_each_call_below_its_turn_and_no_content_at_any_setting() {
    for redaction in ["false", "true"] {
        let agent = agent(&format!(
            "      exporters: [{{ type: file, path: t.jsonl }}, {{ type: sqlite, path: t.db }}, {{ type: console }}]
      events: {{ memory_ops: true, swarm_ops: true, planning_ops: true, world_model_ops: true }}
      redaction: {{ strip_arguments: {redaction}, strip_results: {redaction} }}\n"
        ));
        let told = runs(&agent);
        let file = std::fs::read_to_string(agent.path("state/telemetry/t.jsonl")).unwrap();
        let db = std::fs::read(agent.path("state/telemetry/t.db")).unwrap();
        assert!(!file.contains(CANARY) && !lossy(&db).contains(CANARY));
        let found = lines(&file);
        let events = |lines: &[Value]| lines.iter().filter(|line| line["type"] == "event").count();
        assert_eq!(
            events(&found),
            events(&lines(&told)),
            "the console tells the same: {told}"
        );
        assert!(lossy(&db).contains("execute_tool file-read"));
        let turn = named(&found, "invoke_agent tested");
        let calls = named(&found, "execute_tool file-read");
        let (turn, calls) = (turn[0], calls);
        assert_eq!(calls.len(), 2);
        assert_eq!(named(&found, "chat scripted").len(), 4);
        assert_eq!(named(&found, "execute_tool other").len(), 1, "{file}");
        for below in calls.iter().chain(&named(&found, "chat scripted")) {
            assert_eq!(below["parent_span_id"], turn["span_id"]);
            assert_eq!(below["trace_id"], turn["trace_id"]);
        }
        assert_eq!(calls[0]["status"], "ok");
        assert_eq!(calls[1]["status"], "error");
        for part in ["arguments", "result"] {
            let digest = calls[0]["attributes"][format!("clawk.tool.{part}_digest")]
                .as_str()
                .unwrap();
            assert_eq!(digest == "[REDACTED]", redaction == "true");
            assert!(redaction == "true" || digest.starts_with("sha256:"));
        }
        assert!(!named(&found, "lifecycle READY").is_empty());
        assert!(
            !named(&found, "lifecycle STOPPED").is_empty(),
            "the end is flushed"
        );
        let tokens = named(&found, "gen_ai.client.token.usage");
        assert!(!tokens.is_empty() && !named(&found, "gen_ai.execute_tool.duration").is_empty());
        // A second run goes on where the first one ended.
        runs(&agent);
        let again = lines(&std::fs::read_to_string(agent.path("state/telemetry/t.jsonl")).unwrap());
        assert_eq!(named(&again, "execute_tool file-read").len(), 4);
    }
}

#[test]
fn a_collector_and_a_webhook_get_batches_with_the_key_and_a_dead_one_loses_nothing() {
    let (port, served) = receiver(2);
    let (hook, hooked) = receiver(1);
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead_port = dead.local_addr().unwrap().port();
    drop(dead);
    let agent = agent(&format!(
        "      exporters:
        - {{ type: otlp, endpoint: \"http://127.0.0.1:{port}/v1/traces\", auth: {{ secret_ref: TELEMETRY_KEY }}, batch: {{ max_size: 1000, flush_interval_ms: 60000 }} }}
        - {{ type: webhook, endpoint: \"http://127.0.0.1:{hook}/hook?{CANARY}\", batch: {{ flush_interval_ms: 60000 }} }}
        - {{ type: webhook, endpoint: \"http://127.0.0.1:{dead_port}/{CANARY}\" }}\n"
    ));
    let told = runs(&agent);
    // What the run shows its own user has the canary; the log of the exporters has not.
    let log: Vec<&str> = told.lines().filter(|line| line.contains("exporter")).collect();
    assert!(!log.iter().any(|line| line.contains(CANARY)), "{told}");
    let came = served.join().unwrap();
    assert!(came[0].0.starts_with("post /v1/traces ") && came[1].0.starts_with("post /v1/metrics "));
    for (head, body) in &came {
        assert!(head.contains("content-type: application/x-protobuf"));
        assert!(head.contains("authorization: bearer the-key"), "{head}");
        assert!(!lossy(body).contains(CANARY) && !lossy(body).contains("the-key"));
    }
    assert!(lossy(&came[0].1).contains("execute_tool file-read"));
    assert!(lossy(&came[1].1).contains("gen_ai.client.token.usage"));
    let (_, body) = &hooked.join().unwrap()[0];
    let lines = lines(&lossy(body));
    assert!(!named(&lines, "execute_tool file-read").is_empty() && !lossy(body).contains(CANARY));
    let kept = std::fs::read_to_string(agent.path("state/telemetry/2-webhook.cursor")).unwrap_or_default();
    assert!(!kept.contains(CANARY), "{kept}");
    let doctor = agent
        .clawk(["doctor", "claw.yaml", "--state", "state"])
        .output()
        .unwrap();
    let checked = text(&doctor.stdout);
    assert!(
        checked.contains("exporter `2-webhook` lags behind: the endpoint cannot be reached"),
        "{checked}"
    );
    assert!(
        !checked
            .lines()
            .any(|line| line.contains("exporter") && line.contains(CANARY))
    );
    // The receiver comes back: the next run delivers what it missed.
    let (back, returned) = receiver_at(dead_port, 1);
    assert_eq!(back, dead_port);
    runs(&agent);
    let first: Vec<Value> = self::lines(&lossy(&returned.join().unwrap()[0].1));
    let of = |lines: &[Value]| named(lines, "execute_tool file-read")[0]["session"].clone();
    let missed = of(&lines);
    let again: Vec<_> = named(&first, "execute_tool file-read")
        .into_iter()
        .filter(|line| line["session"] == missed)
        .collect();
    assert_eq!(again.len(), 2, "{first:?}");
}

/// A real collector; ended when dropped.
struct Collector {
    child: std::process::Child,
    port: u16,
    log: std::path::PathBuf,
}

impl Collector {
    fn start(folder: &std::path::Path) -> Self {
        let packages = parts::part("rotel/lib");
        let mut inside = std::fs::read_dir(packages)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let program = inside.next().unwrap().join("site-packages/rotel/rotel-agent");
        let free = || {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port()
        };
        let (port, other) = (free(), free());
        let log = folder.join("collector.log");
        let out = std::fs::File::create(&log).unwrap();
        let words = "start --exporter blackhole --debug-log traces --debug-log metrics --debug-log-verbosity detailed";
        let child = std::process::Command::new(program)
            .args(words.split(' '))
            .args(["--otlp-http-endpoint", &format!("127.0.0.1:{port}")])
            .args(["--otlp-grpc-endpoint", &format!("127.0.0.1:{other}")])
            .stderr(out.try_clone().unwrap())
            .stdout(out)
            .spawn()
            .unwrap();
        let collector = Self { child, port, log };
        collector.until(|_| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        collector
    }

    /// What it has said, once that is enough.
    fn until(&self, enough: impl Fn(&str) -> bool) -> String {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let said = lossy(&std::fs::read(&self.log).unwrap());
            if enough(&said) {
                return said;
            }
            assert!(std::time::Instant::now() < deadline, "the collector said: {said}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_collector_reads_the_spans_and_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let agent = agent(&format!(
        "      exporters: [{{ type: otlp, endpoint: \"http://127.0.0.1:{}\" }}]\n",
        collector.port
    ));
    runs(&agent);
    let wanted = [
        "invoke_agent tested",
        "chat scripted",
        "execute_tool file-read",
        "gen_ai.usage.input_tokens",
        "gen_ai.client.token.usage",
        "gen_ai.execute_tool.duration",
    ];
    let said = collector.until(|said| wanted.iter().all(|word| said.contains(word)));
    assert!(!said.contains(CANARY));
}
