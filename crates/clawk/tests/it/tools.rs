//! Built-in tools by name: what the model is told of them, and `clawk tools`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use predicates::str::contains;
use serde_json::{Value, json};

use crate::agent::Agent;

/// A model's server that answers every request with one word, and gives the bodies that it got.
fn model_server() -> (u16, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                let lower = line.to_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let _ = sender.send(serde_json::from_slice(&body).unwrap_or(Value::Null));
            let said = json!({"id": "1", "object": "chat.completion", "model": "m", "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
            .to_string();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{said}",
                said.len()
            )
            .unwrap();
        }
    });
    (port, receiver)
}

/// The built-ins with the names of their arguments, as `clawk tools` says.
fn builtins(agent: &Agent) -> BTreeMap<String, Vec<String>> {
    let told = agent.clawk(["tools", "--format", "json"]).assert().success();
    let told: Value = serde_json::from_slice(&told.get_output().stdout).unwrap();
    let tools = told["tools"].as_array().unwrap().iter();
    tools
        .map(|tool| {
            (
                tool["name"].as_str().unwrap().to_owned(),
                names(&tool["input_schema"]["properties"]),
            )
        })
        .collect()
}

fn names(properties: &Value) -> Vec<String> {
    let members = properties.as_object().into_iter().flatten();
    let mut names: Vec<String> = members.map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

/// Everything that a built-in may need: stores, a context file, a search provider.
fn manifest(port: u16, tools: &str) -> String {
    format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: p, autonomy: autonomous, context_files: {{ user: USER.md }} }}
  providers:
    - inline: {{ name: main, protocol: openai-compatible, endpoint: "http://127.0.0.1:{port}/v1", model: m, auth: {{ type: none }}, streaming: false }}
  tools: {tools}
  memory: {{ inline: {{ name: memory, stores: [{{ name: notes, type: semantic }}] }} }}
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: {{ mode: scoped, mount_paths: [{{ path: ".", permissions: rw }}] }}
        network: {{ mode: allow-all }}
        shell: {{ mode: full }}
  policies:
    - inline: {{ name: p, rules: [{{ id: all, action: allow, scope: all }}] }}
"#
    )
}

#[test]
fn the_model_gets_the_real_parameters_of_every_built_in() {
    let agent = Agent::new();
    let known = builtins(&agent);
    assert!(
        known.len() >= 19 && known.values().all(|names| names != &["store"]),
        "{known:?}"
    );
    std::fs::write(
        agent.path("clawk.toml"),
        "[tools.web-search.search]\nprovider = \"searxng\"\nurl = \"https://search.example\"\n",
    )
    .unwrap();
    agent.clawk(["trust", "."]).assert().success();
    let spellings: [fn(&str) -> Value; 4] = [
        |name| json!(name),
        |name| json!(name.replace('-', "_")),
        |name| json!({"inline": {"name": name}}),
        |name| json!({"inline": {"name": name, "description": "d", "input_schema": {"type": "object"}}}),
    ];
    for spell in spellings {
        let tools: Vec<Value> = known.keys().map(|name| spell(name)).collect();
        let (port, asked) = model_server();
        let text = manifest(port, &Value::Array(tools.clone()).to_string());
        std::fs::write(agent.path("claw.yaml"), text).unwrap();
        agent
            .clawk(["run", "claw.yaml", "-m", "hello"])
            .assert()
            .success()
            .stdout("ok\n");
        // The server is asked for its models as well, without a body.
        let request = loop {
            let body = asked.recv_timeout(Duration::from_secs(30)).unwrap();
            if body["tools"].is_array() {
                break body;
            }
        };
        let mut given: BTreeMap<String, Value> = request["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| {
                let function = &tool["function"];
                (function["name"].as_str().unwrap().to_owned(), function.clone())
            })
            .collect();
        for (name, arguments) in &known {
            let function = given
                .remove(name)
                .unwrap_or_else(|| panic!("{name} is missing in {tools:?}"));
            assert_eq!(
                &names(&function["parameters"]["properties"]),
                arguments,
                "{name} of {tools:?}"
            );
            assert!(!function["description"].as_str().unwrap().is_empty(), "{name}");
        }
    }
}

#[test]
fn the_tools_are_listed_and_explained() {
    let agent = Agent::new();
    agent
        .clawk(["tools"])
        .assert()
        .success()
        .stdout(contains("file-edit"))
        .stdout(contains("Searches the web and returns titles"));
    agent
        .clawk(["tools", "--tool", "file_edit"])
        .assert()
        .success()
        .stdout(contains("old_text"))
        .stdout(contains("permissions: rw"))
        .stdout(contains("tools: [file-edit]"));
    agent
        .clawk(["tools", "--tool", "read_file"])
        .assert()
        .code(1)
        .stderr(contains("did you mean the built-in `file-read`?"));
    agent
        .clawk(["tools", "claw.yaml"])
        .assert()
        .success()
        .stdout(contains("built-in"))
        .stdout(contains("Writes a file"));
    agent
        .clawk(["tools", "claw.yaml", "--tool", "shell"])
        .assert()
        .code(1)
        .stderr(contains("declares no tool `shell`"));
}

#[test]
fn what_a_tool_lacks_here_is_an_error_of_the_list() {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), manifest(1, "[web-search, file-list]")).unwrap();
    let told = agent
        .clawk(["tools", "claw.yaml", "--format", "json"])
        .assert()
        .code(1);
    let told: Value = serde_json::from_slice(&told.get_output().stdout).unwrap();
    assert_eq!(told["tools"].as_array().unwrap().len(), 2);
    assert!(
        told["errors"][0]
            .as_str()
            .unwrap()
            .contains("[tools.web-search.search]"),
        "{told}"
    );
    agent
        .clawk(["validate", "claw.yaml"])
        .assert()
        .stdout(contains("tools.web-search.search"));
    agent
        .clawk(["run", "claw.yaml", "-m", "x"])
        .assert()
        .code(1)
        .stderr(contains("tools.web-search.search"));
}

#[test]
fn the_page_says_what_the_program_says() {
    let agent = Agent::new();
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/tools.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (name, arguments) in builtins(&agent) {
        let section = page.split(&format!("\n## {name}\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("{name}: run `cargo xtask docs`"));
        let section = section.split("\n## ").next().unwrap();
        for argument in arguments {
            assert!(
                section.contains(&format!("| `{argument}` |")),
                "{name} {argument}: run `cargo xtask docs`"
            );
        }
    }
}

#[test]
fn what_init_writes_is_useful_on_the_first_day() {
    let agent = Agent::new();
    agent.clawk(["init", "day-one", "--yes"]).assert().success();
    let decides = |tool: &str, arguments: Value| {
        let told = agent
            .clawk([
                "policy",
                "explain",
                "day-one/claw.yaml",
                "--tool",
                tool,
                "--format",
                "json",
                "--args",
            ])
            .arg(arguments.to_string())
            .assert()
            .success();
        let told: Value = serde_json::from_slice(&told.get_output().stdout).unwrap();
        told["verdict"]["effect"].as_str().unwrap().to_owned()
    };
    for (tool, arguments, effect) in [
        ("file-list", json!({}), "allow"),
        ("file-read", json!({"path": "notes.txt"}), "allow"),
        ("file-search", json!({"pattern": "x"}), "allow"),
        (
            "file-edit",
            json!({"path": "a", "old_text": "x", "new_text": "y"}),
            "require-approval",
        ),
        (
            "file-write",
            json!({"path": "a", "content": "x"}),
            "require-approval",
        ),
        (
            "web-fetch",
            json!({"url": "https://example.com"}),
            "require-approval",
        ),
        ("memory-query", json!({"store": "notes", "text": "x"}), "allow"),
        ("date", json!({}), "allow"),
    ] {
        assert_eq!(decides(tool, arguments), effect, "{tool}");
    }
    agent
        .clawk(["doctor", "day-one/claw.yaml"])
        .assert()
        .stdout(contains("9 bound"));
    // A schedule needs a conversation.
    let text = std::fs::read_to_string(agent.path("day-one/claw.yaml")).unwrap();
    assert!(!text.contains("    - schedule\n") && text.contains("needs a conversation"));
    agent
        .clawk(["init", "chat", "--yes", "--channel", "telegram", "--no-check"])
        .assert()
        .success();
    let text = std::fs::read_to_string(agent.path("chat/claw.yaml")).unwrap();
    assert!(text.contains("    - schedule\n"), "{text}");
    agent
        .clawk([
            "init",
            "night",
            "--yes",
            "--channel",
            "cron",
            "--setting",
            "schedule=0 2 * * *",
        ])
        .assert()
        .success();
    let text = std::fs::read_to_string(agent.path("night/claw.yaml")).unwrap();
    assert!(!text.contains("    - schedule\n"), "{text}");
}

#[test]
fn a_build_says_what_it_has() {
    let agent = Agent::new();
    for words in [["--version", "-v"], ["-v", "--version"], ["-V", "--verbose"]] {
        let told = agent.clawk(words).assert().success();
        told.stdout(contains("clawk ")).stdout(contains("build: with "));
    }
    let plain = agent.clawk(["--version"]).assert().success();
    assert_eq!(
        plain
            .get_output()
            .stdout
            .iter()
            .filter(|byte| **byte == b'\n')
            .count(),
        1
    );
    agent
        .clawk(["doctor"])
        .assert()
        .stdout(contains("build "))
        .stdout(contains("; without "));
}
