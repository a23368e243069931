//! SIGHUP: a served agent takes up other channels and policies, or changes nothing.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{LONG, OPEN, Platform, listed, manifest, with};
use crate::agent::Agent;
use crate::doors::free;
use crate::serve::Server;

const SCRIPT: &str = r#"
scenes:
  - user: write
    steps:
      - call: [{ name: file-write, arguments: { path: out.txt, content: "written" } }]
      - any:
          - { when: { error: true }, say: "I was not allowed to." }
          - say: "Written."
  - user: slowly
    steps:
      - say: "At last."
        fault: { delay_ms: 8000 }
  - steps:
      - say: "You said **{{last_user_text}}**."
"#;

/// A tool, and a policy that takes this action on it.
fn judged(action: &str) -> String {
    format!(
        r#"  tools:
    - inline:
        name: file-write
        description: Writes a file
        input_schema:
          type: object
          properties: {{ path: {{ type: string }}, content: {{ type: string }} }}
          required: [path, content]
  policies:
    - inline:
        name: tested
        rules:
          - {{ id: writing, action: {action}, scope: tool, match: {{ name: file-write }}, reason: As the test says }}
"#
    )
}

fn signal(server: &Server, signal: Signal) {
    let id = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    kill_process(id, signal).unwrap();
}

fn names(agent: &Agent) -> Vec<String> {
    let name = |channel: &serde_json::Value| channel["name"].as_str().unwrap().to_owned();
    listed(agent).iter().map(name).collect()
}

#[test]
fn a_hangup_takes_up_channels_and_policies_and_loses_no_message() {
    let agent = with(&[("one", OPEN), ("two", OPEN)], "", "");
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    let write = |channels: &[(&str, &str)], rest: &str| {
        std::fs::write(agent.path("claw.yaml"), manifest(channels, rest)).unwrap();
    };
    write(&[("one", OPEN)], &judged("allow"));
    // Only of the channels that there are.
    let config = std::fs::read_to_string(agent.path("clawk.toml")).unwrap();
    let (first, both) = (config.split("[channels.two]").next().unwrap(), config.as_str());
    std::fs::write(agent.path("clawk.toml"), first).unwrap();
    let mut server = Server::start(&agent, &["claw.yaml", "--listen", &free()]);
    let [one, two] = ["one", "two"].map(|name| Platform { agent: &agent, name });
    one.message("1", "room", "ann", "write");
    one.wait_text("Written.");
    assert_eq!(names(&agent), ["one"]);

    // A message whose turn is under way when the run ends is answered by the next one.
    one.message("2", "other", "eve", "slowly");
    one.wait("taken", |line| line["type"] == "accepted" && line["id"] == "2");
    std::fs::write(agent.path("clawk.toml"), both).unwrap();
    write(&[("one", OPEN), ("two", OPEN)], &judged("deny"));
    signal(&server, Signal::HUP);
    two.message("1", "room", "bob", "write");
    two.wait_text("I was not allowed to.");
    one.wait_text("At last.");
    one.message("3", "room", "ann", "write");
    one.wait_text("I was not allowed to.");
    assert_eq!(names(&agent), ["one", "two"]);
    let answers = |text: &str| {
        let said =
            |line: &&serde_json::Value| line["text"].as_str().is_some_and(|said| said.starts_with(text));
        one.got().iter().filter(said).count()
    };
    assert_eq!((answers("Written."), answers("At last.")), (1, 1));

    // More than that has changed, or it is no manifest at all: the agent goes on as it was.
    let more = judged("allow").replace("Writes a file", "Writes another file");
    for broken in [more.as_str(), "  no_such_member: 1\n"] {
        write(&[("one", OPEN)], broken);
        signal(&server, Signal::HUP);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(names(&agent), ["one", "two"]);
    }
    two.message("2", "room", "bob", "still there");
    two.wait_text("still there");
    // What is refused by a start is refused now, too.
    std::fs::write(
        agent.path("clawk.toml"),
        both.replace("command = [", "sandbox_typo = ["),
    )
    .unwrap();
    write(&[("one", OPEN), ("two", OPEN)], &judged("allow"));
    signal(&server, Signal::HUP);
    std::thread::sleep(Duration::from_millis(700));
    one.message("4", "room", "ann", "and I");
    one.wait_text("and I");

    // Back to one channel.
    std::fs::write(agent.path("clawk.toml"), first).unwrap();
    write(&[("one", OPEN)], &judged("allow"));
    signal(&server, Signal::HUP);
    let start = Instant::now();
    while names(&agent) != ["one"] {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(50));
    }
    signal(&server, Signal::TERM);
    assert!(server.wait().success());
    agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .assert()
        .success();
}
