//! Channels of a served agent, as a platform sees them: a program that speaks the line protocol stands for it.

mod bot_api;
mod frames;
mod kills;
mod load;
mod reload;
mod set_up;
mod voice;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::api::post;
use crate::doors::{Local, free};
use crate::serve::Server;

const LONG: Duration = Duration::from_secs(30);
const ADAPTER: &str = include_str!("adapter.py");

/// A manifest whose `custom` channels have this access control, with what stands below `processing` and the like.
fn manifest(channels: &[(&str, &str)], rest: &str) -> String {
    let mut text = String::from(
        r#"claw: "0.3.0"
kind: Claw
metadata: { name: tested, version: "1.0.0" }
spec:
  identity:
    inline: { name: tested, personality: You are tested., autonomy: autonomous }
  providers:
    - inline: { name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: { type: none } }
  sandbox:
    inline:
      name: box
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
  channels:
"#,
    );
    for (name, more) in channels {
        text.push_str(&format!(
            "    - inline: {{ name: {name}, type: custom, transport: stdio, auth: {{ secret_ref: NONE }}, {more} }}\n"
        ));
    }
    text.push_str(rest);
    text
}

/// The platform behind a channel.
struct Platform<'a> {
    agent: &'a Agent,
    name: &'a str,
}

impl Platform<'_> {
    fn says(&self, line: &Value) {
        let mut file = OpenOptions::new()
            .append(true)
            .open(self.agent.path(&format!("{}.in", self.name)))
            .unwrap();
        writeln!(file, "{line}").unwrap();
    }

    fn message(&self, id: &str, conversation: &str, sender: &str, text: &str) {
        self.says(
            &json!({"type": "message", "id": id, "conversation": conversation, "direct": true,
            "sender": {"id": sender, "name": sender}, "text": text}),
        );
    }

    fn got(&self) -> Vec<Value> {
        let text =
            std::fs::read_to_string(self.agent.path(&format!("{}.out", self.name))).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for a line that is meant.
    fn wait(&self, what: &str, meant: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            if let Some(line) = self.got().into_iter().find(&meant) {
                return line;
            }
            assert!(start.elapsed() < LONG, "{what}: {:?}", self.got());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_text(&self, part: &str) -> Value {
        self.wait(part, |line| {
            line["text"].as_str().is_some_and(|text| text.contains(part))
        })
    }
}

/// An agent with such channels, and the platform of each.
fn with(channels: &[(&str, &str)], rest: &str, more: &str) -> Agent {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), manifest(channels, rest)).unwrap();
    std::fs::write(agent.path("adapter.py"), ADAPTER).unwrap();
    let mut config = String::new();
    for (name, _) in channels {
        std::fs::write(agent.path(&format!("{name}.in")), "").unwrap();
        config.push_str(&format!(
            "[channels.{name}]\ncommand = [\"python3\", \"adapter.py\", \"{name}\"]\nsandbox = \"box\"\n{more}\n"
        ));
    }
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    agent
}

const OPEN: &str = "access_control: { mode: open }";

fn listed(agent: &Agent) -> Vec<Value> {
    let output = agent
        .clawk(["channels", "--agent", "tested", "--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    listed["channels"].as_array().unwrap().clone()
}

fn order(agent: &Agent, args: &[&str]) -> Result<String, String> {
    let mut command = agent.clawk(["channels"]);
    let output = command.args(args).args(["--agent", "tested"]).output().unwrap();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

#[test]
fn five_clients_with_two_channels_among_them_share_an_agent_and_two_are_killed() {
    let agent = with(&[("one", OPEN), ("two", OPEN)], "", "");
    let address = free();
    let mut launcher = Server::start(&agent, &["claw.yaml", "--stdio", "--listen", &address]);
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    assert!(launcher.initialize(&named).get("result").is_some());
    let local = Local::initialized(&agent.state());
    let (one, two) = (
        Platform {
            agent: &agent,
            name: "one",
        },
        Platform {
            agent: &agent,
            name: "two",
        },
    );
    one.message("1", "room", "ann", "first");
    two.message("1", "room", "bob", "second");
    let answer = one.wait_text("first");
    assert_eq!(answer["text"], "You said **first**.");
    assert_eq!(answer["reply_to"], "1");
    two.wait_text("second");
    // The same id on another channel is another message; on its own it is the same.
    one.says(
        &json!({"type": "message", "id": "1", "conversation": "room", "direct": true, "sender": {"id": "ann"},
        "text": "first", "again": true}),
    );
    let listing = |name: &str| {
        listed(&agent)
            .into_iter()
            .find(|channel| channel["name"] == name)
            .unwrap()
    };
    let start = Instant::now();
    while listing("one")["duplicates"] == 0 {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(listing("one")["state"], "ready");
    assert_eq!(
        (&listing("one")["accepted"], &listing("two")["accepted"]),
        (&json!(1), &json!(1))
    );

    // A local client and the program of a channel are killed; the other three go on, and the channel comes back by itself.
    drop(local);
    one.says(&json!({"type": "die"}));
    two.message("2", "room", "bob", "still there?");
    two.wait_text("still there?");
    assert_eq!(
        launcher.ask("claw.status", &json!({}))["result"]["state"],
        "READY"
    );
    let (status, _) = post(
        &address,
        "/v1/sessions",
        &json!({ "agent_id": "ann", "goal": "help" }),
    );
    assert_eq!(status, 201);
    one.message("2", "room", "ann", "and you?");
    one.wait_text("and you?");
    assert!(launcher.end().success());
}

#[test]
fn a_manifest_with_channels_needs_no_flag_and_one_without_any_is_told_so() {
    let agent = with(&[("one", OPEN)], "", "");
    let served = Server::start(&agent, &["claw.yaml"]);
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    one.message("1", "room", "ann", "hello");
    one.wait_text("hello");
    drop(served);
    let alone = Agent::new();
    let refused = alone.clawk(["serve", "claw.yaml"]).output().unwrap();
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("--stdio"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn somebody_unknown_gets_a_code_which_the_owner_approves() {
    let pairing = "access_control: { mode: pairing, pairing: { code_expiry_minutes: 5, max_pending: 2 } }";
    let agent = with(&[("one", pairing)], "", "");
    let served = Server::start(&agent, &["claw.yaml"]);
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    one.message("1", "ann", "ann", "my secret plan");
    let told = one.wait_text("not paired");
    let told = told["text"].as_str().unwrap();
    let code = told.split("owner: ").nth(1).unwrap().get(..8).unwrap().to_owned();
    assert!(
        order(&agent, &["pairing", "list"])
            .unwrap()
            .contains("waiting  ann")
    );
    assert!(
        order(&agent, &["pairing", "approve", "22222222"])
            .unwrap_err()
            .contains("no code")
    );
    // Codes outlive the agent.
    drop(served);
    let _served = Server::start(&agent, &["claw.yaml"]);
    let start = Instant::now();
    while order(&agent, &["pairing", "list"]).is_err() {
        assert!(start.elapsed() < LONG);
    }
    assert!(
        order(&agent, &["pairing", "approve", &code])
            .unwrap()
            .contains("ann is let in by one")
    );
    assert!(order(&agent, &["pairing", "approve", &code]).is_err(), "once");
    one.message("2", "ann", "ann", "hello");
    one.wait_text("You said **hello**");
    assert!(
        order(&agent, &["pairing", "revoke", "ann"])
            .unwrap()
            .contains("not let in")
    );
    one.message("3", "ann", "ann", "again");
    one.wait("refusal", |line| line["type"] == "refused" && line["id"] == "3");
    // What they wrote before is nowhere.
    let traced = agent
        .clawk(["trace", "export", "--agent", "tested", "--all"])
        .output()
        .unwrap();
    assert!(!text(&traced.stdout).contains("my secret plan"));
    for _ in 0..5 {
        assert!(order(&agent, &["pairing", "approve", "33333333"]).is_err());
    }
    assert!(
        order(&agent, &["pairing", "approve", "33333333"])
            .unwrap_err()
            .contains("minute")
    );
}

#[test]
fn length_rate_mention_and_roles_are_judged_before_anything_reads_the_text() {
    let strict = "access_control: { mode: role-based, roles: [{ id: ann, role: user }, { id: eve, role: viewer }] }, \
                  processing: { max_message_length: 20, rate_limit: { messages_per_minute: 2, burst: 1 } }";
    let agent = with(&[("one", strict)], "", "");
    let _served = Server::start(&agent, &["claw.yaml"]);
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    let refused = |id: &str| {
        one.wait(id, |line| line["type"] == "refused" && line["id"] == id)["reason"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    one.message("1", "bob", "bob", "let me in");
    assert!(refused("1").contains("not listed"));
    one.message("2", "ann", "ann", "a text of more than twenty");
    assert!(refused("2").contains("max_message_length"));
    for n in 3..=5 {
        one.message(&n.to_string(), "ann", "ann", &format!("number {n}"));
    }
    assert!(refused("5").contains("rate_limit"));
    one.wait_text("number 4");
    // In a group, what does not name the agent is not for it.
    one.says(&json!({"type": "message", "id": "6", "conversation": "group", "sender": {"id": "eve"}, "text": "among us"}));
    one.says(&json!({"type": "message", "id": "7", "conversation": "group", "mention": true, "sender": {"id": "eve"}, "text": "to you"}));
    one.wait_text("to you");
    assert!(!one.got().iter().any(|line| {
        line["text"]
            .as_str()
            .is_some_and(|text| text.contains("among us"))
    }));
}

#[test]
fn a_file_that_a_program_names_by_its_path_comes_in_and_nothing_beyond_its_folder_does() {
    let agent = with(&[("one", OPEN)], "", "");
    std::fs::write(
        agent.path("script.yaml"),
        "scenes:\n  - steps: [{ say: \"You said: {{last_user_text}}\" }]\n",
    )
    .unwrap();
    std::fs::create_dir(agent.path("shots")).unwrap();
    std::fs::write(agent.path("shots/a.csv"), "a,b\n").unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "a secret").unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), agent.path("shots/link")).unwrap();
    let _served = Server::start(&agent, &["claw.yaml"]);
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    let kept = || {
        let Ok(files) = std::fs::read_dir(agent.path("attachments")) else {
            return Vec::new();
        };
        let read = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        read.collect::<Vec<_>>()
    };
    for (n, path) in [
        "shots/a.csv".to_owned(),
        outside.path().join("secret").display().to_string(),
        "../secret".to_owned(),
        "shots/link".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        one.says(&json!({"type": "message", "id": n.to_string(), "conversation": "room", "direct": true, "sender": {"id": "ann"},
            "text": format!("look at {n}"), "attachments": [{"name": "a.csv", "media_type": "text/csv", "path": path}]}));
        one.wait_text(&format!("look at {n}"));
        assert_eq!(kept(), ["a,b\n"], "{path}");
    }
}

#[test]
fn a_file_goes_out_by_the_tool_and_a_question_that_nobody_hears_is_warned_of() {
    let rest = r#"  tools:
    - inline: { name: channel-send, description: Sends, input_schema: { type: object } }
  policies:
    - inline: { name: tested, rules: [{ id: all, action: ACTION, scope: tool, match: { name: channel-send }, reason: As the test says }] }
"#;
    let agent = with(&[("one", OPEN)], &rest.replace("ACTION", "allow"), "");
    std::fs::write(
        agent.path("script.yaml"),
        "scenes:\n  - user: send\n    steps:\n      - call: [{ name: channel-send, arguments: { text: Here., file: report.csv } }]\n      \
         - any: [{ when: { error: true }, say: \"{{last_tool_text}}\" }, { say: Sent. }]\n",
    )
    .unwrap();
    std::fs::write(agent.path("report.csv"), "a,b\n").unwrap();
    let served = Server::start(&agent, &["claw.yaml"]);
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    one.message("1", "room", "ann", "send it");
    let line = one.wait_text("Here.");
    let file = json!({"name": "report.csv", "media_type": "text/plain", "data": "YSxiCg=="});
    assert_eq!(line["attachments"], json!([file]), "{line}");
    one.wait_text("Sent.");
    drop(served);

    // Whoever writes is no admin, and nobody else is asked.
    let asks = rest.replace("ACTION", "require-approval");
    let warned = |access: &str, config: &str| {
        std::fs::write(agent.path("claw.yaml"), manifest(&[("one", access)], &asks)).unwrap();
        std::fs::write(
            agent.path("clawk.toml"),
            format!("[channels.one]\ncommand = [\"true\"]\nsandbox = \"box\"\n{config}"),
        )
        .unwrap();
        let output = agent.clawk(["validate", "claw.yaml"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stdout));
        text(&output.stdout).contains("question-unheard")
    };
    let ann = "access_control: { mode: allowlist, allowed_ids: [ann] }";
    assert!(warned(OPEN, ""));
    assert!(warned(ann, ""));
    assert!(!warned(ann, "admins = [\"ann\"]\n"));
    assert!(!warned(OPEN, "[approvals]\nto = [\"one:ann\"]\n"));
}
