//! The verbs that edit an agent: each leaves an agent that validates, and keeps what it did not change.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use predicates::str::contains;

use crate::agent::{Agent, text};

const KEY: &str = "sk-test-abcdefgh0123456789";

/// Makes an agent as `clawk init` does, with comments that must stay.
fn initial(agent: &Agent) {
    std::fs::remove_file(agent.path("claw.yaml")).unwrap();
    std::fs::remove_file(agent.path("script.yaml")).unwrap();
    agent
        .clawk(["init", ".", "--name", "tested", "--provider", "local", "--yes"])
        .assert()
        .success();
}

fn run(agent: &Agent, words: &[&str]) -> (i32, String, String) {
    let output = agent.clawk([]).args(words).output().unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Every file of the folder that is not state, with its text.
fn files(agent: &Agent) -> Vec<(String, String)> {
    let names = [
        "claw.yaml",
        "clawk.toml",
        "policies/standard.yaml",
        "policies/standard.tests.yaml",
    ];
    let read = |name: &str| std::fs::read_to_string(agent.path(name)).unwrap_or_default();
    names
        .iter()
        .map(|name| ((*name).to_owned(), read(name)))
        .collect()
}

fn keeps_lines(before: &str, after: &str) -> bool {
    let mut rest = after.lines().map(str::trim);
    before
        .lines()
        .map(str::trim)
        .all(|line| rest.any(|other| other == line || other == format!("- {line}")))
}

#[test]
fn each_edit_leaves_an_agent_that_validates_and_keeps_every_other_line() {
    let agent = Agent::new();
    initial(&agent);
    std::fs::write(agent.path("server.py"), "").unwrap();
    std::fs::write(
        agent.path("clawk.toml"),
        "# mine\n[run]\nopening = \"hi\" # kept\n",
    )
    .unwrap();
    std::fs::write(
        agent.path("other.json"),
        format!(
            "{{\"mcpServers\": {{\"Git Hub\": {{\"command\": \"/usr/bin/env\", \"args\": [\"x y\"], \"env\": {{\"GH_TOKEN\": \"{KEY}\", \"MODE\": \"ro\"}}}},
              \"web\": {{\"type\": \"http\", \"url\": \"https://mcp.example.net/x\", \"headers\": {{\"Authorization\": \"Bearer {KEY}\"}}}}}}}}"
        ),
    )
    .unwrap();
    for (words, file, said) in [
        (
            &["mcp", "add", "tickets", "https://mcp.example.com/mcp", "--yes"][..],
            "claw.yaml",
            "allowed_hosts: [\"mcp.example.com\"]",
        ),
        (
            &[
                "mcp",
                "add",
                "files",
                "--yes",
                "--env",
                "A=b c",
                "--env",
                "TOKEN",
                "--",
                "./server.py",
                "--root",
                "a b",
            ],
            "claw.yaml",
            "stdio://./server.py?arg=--root&arg=a%20b",
        ),
        (
            &["mcp", "add", "--from", "other.json", "--yes"],
            "clawk.toml",
            "GH_TOKEN = \"GH_TOKEN\"",
        ),
        (
            &["provider", "add", "second", "--vendor", "anthropic", "--yes"],
            "claw.yaml",
            "secret_ref\":\"ANTHROPIC_API_KEY",
        ),
        (
            &[
                "provider",
                "add",
                "lab",
                "--endpoint",
                "https://llm.example.com/v1",
                "--model",
                "m: 1",
                "--yes",
            ],
            "claw.yaml",
            "model: \"m: 1\"",
        ),
        (
            &[
                "channels",
                "add",
                "cron",
                "--name",
                "nightly",
                "--setting",
                "schedule=0 2 * * *",
                "--yes",
            ],
            "claw.yaml",
            "0 2 * * *",
        ),
        (
            &["channels", "add", "telegram", "--no-check", "--yes"],
            "claw.yaml",
            "TELEGRAM_TOKEN",
        ),
    ] {
        let before = files(&agent);
        let (code, out, err) = run(&agent, words);
        assert_eq!(code, 0, "{words:?}: {out}{err}");
        let after = files(&agent);
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            assert!(
                keeps_lines(before, after),
                "{words:?} changed a line of {name}:\n{after}"
            );
        }
        let changed = &after.iter().find(|(name, _)| name == file).unwrap().1;
        assert!(
            changed.contains(said),
            "{words:?}: {file} lacks {said:?}:\n{changed}"
        );
        assert!(out.contains("+ "), "{words:?} shows no difference:\n{out}");
        assert!(
            !format!("{out}{err}{after:?}").contains("abcdefgh0123"),
            "{words:?} repeats a key"
        );
        let (code, out, err) = run(&agent, &["validate", "."]);
        assert_eq!(code, 0, "after {words:?}: {out}{err}");
    }
    let left: Vec<_> = std::fs::read_dir(agent.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        left.iter().all(|name| !name.to_string_lossy().ends_with(".new")),
        "{left:?}"
    );
}

#[test]
fn an_edit_that_can_not_be_whole_changes_nothing() {
    let agent = Agent::new();
    initial(&agent);
    std::fs::write(agent.path("clawk.toml"), "tools = { a = { env = {} } }\n").unwrap();
    for (words, said) in [
        (&["mcp", "add", "x", "https://a.example/mcp"][..], "--yes"),
        (&["mcp", "add", "x", "https://a.example/mcp", "--dry-run"], ""),
        (
            &["mcp", "add", "file-read", "https://a.example/mcp", "--yes"],
            "already",
        ),
        (
            &["mcp", "add", "no name", "https://a.example/mcp", "--yes"],
            "can't be a name",
        ),
        (&["mcp", "add", "x", "http://a.example/mcp", "--yes"], "https://"),
        (&["mcp", "add", "x", "--yes"], "clawk mcp add x -- PROGRAM"),
        (
            &["mcp", "add", "x", "--yes", "--", "no-such-program-here"],
            "no program `no-such-program-here`",
        ),
        (
            &["mcp", "add", "x", "--yes", "--env", "A=b", "--", "/usr/bin/env"],
            "in another way",
        ),
        (
            &[
                "provider",
                "add",
                "x",
                "--endpoint",
                "llm.example",
                "--model",
                "m",
                "--yes",
            ],
            "not an address",
        ),
        (
            &[
                "provider",
                "add",
                "x",
                "--endpoint",
                "https://a.example",
                "--model",
                "m",
                "--secret-ref",
                KEY,
                "--yes",
            ],
            "not the key itself",
        ),
        (&["channels", "add", "cron", "--yes"], "schedule"),
    ] {
        let before = files(&agent);
        let (code, out, err) = run(&agent, words);
        let shown = words.contains(&"--dry-run");
        assert_eq!(code == 0, shown, "{words:?}: {out}{err}");
        assert!(err.contains(said), "{words:?} does not say {said:?}: {out}{err}");
        assert!(!err.contains("abcdefgh0123"), "{err}");
        assert_eq!(files(&agent), before, "{words:?} changed a file");
    }
    // An agent that is not valid is not edited.
    std::fs::write(agent.path("claw.yaml"), "claw: [\n").unwrap();
    let (code, out, err) = run(&agent, &["provider", "add", "x", "--vendor", "openai", "--yes"]);
    assert_eq!(code, 1, "{out}{err}");
    assert_eq!(
        std::fs::read_to_string(agent.path("claw.yaml")).unwrap(),
        "claw: [\n"
    );
}

#[test]
fn a_policy_that_denies_a_new_server_gets_a_rule_and_a_test() {
    let agent = Agent::new();
    agent.may(
        "  tools:\n    - inline: { name: file-read, description: Reads, input_schema: { type: object } }\n  policies: [\"./mine.yaml\"]\n",
    );
    std::fs::write(
        agent.path("mine.yaml"),
        "claw: \"0.3.0\"\nkind: Policy\nmetadata: { name: mine, version: \"1.0.0\" }\nspec:\n  rules:\n    - { id: reading, action: allow, scope: tool, match: { name: file-read } }\n    # the rest\n    - { id: rest, action: deny, scope: all }\n",
    )
    .unwrap();
    std::fs::write(
        agent.path("mine.tests.yaml"),
        "cases:\n  - { tool: file-read, expect: allow }\n",
    )
    .unwrap();
    agent
        .clawk(["mcp", "add", "tickets", "https://mcp.example.com/mcp", "--yes"])
        .assert()
        .success();
    let policy = std::fs::read_to_string(agent.path("mine.yaml")).unwrap();
    let (rule, rest) = (
        policy.find("ask-before-tickets").unwrap(),
        policy.find("# the rest").unwrap(),
    );
    assert!(rule < rest, "{policy}");
    agent.clawk(["validate", "."]).assert().success();
    let (code, out, err) = run(&agent, &["policy", "test", "."]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains('2'), "the new case is run: {out}");
}

#[test]
fn a_skill_is_imported_into_the_agent_or_not_at_all() {
    let agent = Agent::new();
    initial(&agent);
    std::fs::create_dir_all(agent.path("pdf/scripts")).unwrap();
    std::fs::write(
        agent.path("pdf/SKILL.md"),
        "---\nname: pdf\ndescription: Reads PDF files\n---\nRun scripts/read.sh\n",
    )
    .unwrap();
    std::fs::write(agent.path("pdf/scripts/read.sh"), "#!/bin/sh\necho hello\n").unwrap();
    let before = files(&agent);
    let (code, out, err) = run(
        &agent,
        &["skill", "import", "pdf", "--output", "skills/pdf.yaml", "--write"],
    );
    assert_eq!(code, 1, "without an answer: {out}{err}");
    assert_eq!(files(&agent), before);
    assert!(!agent.path("skills/pdf.yaml").exists(), "its files are gone, too");
    let (code, out, err) = run(
        &agent,
        &[
            "skill",
            "import",
            "pdf",
            "--output",
            "skills/pdf.yaml",
            "--write",
            "--yes",
        ],
    );
    assert_eq!(code, 0, "{out}{err}");
    agent.clawk(["validate", "."]).assert().success();
    agent
        .clawk(["skill", "list", "."])
        .assert()
        .success()
        .stdout(contains("pdf"));
    agent.clawk(["policy", "test", "."]).assert().success();
}

/// A server that lists one model to who has the key.
fn model_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = vec![0; 8192];
            let read = stream.read(&mut asked).unwrap_or(0);
            let asked = String::from_utf8_lossy(&asked[..read]).to_string();
            let good = asked.contains(&format!("Bearer {KEY}"));
            let (status, body) = if good {
                ("200 OK", "{\"data\": [{\"id\": \"big-1\"}]}")
            } else {
                ("401 Unauthorized", "{\"error\": {\"message\": \"bad key\"}}")
            };
            let _ = stream.write_all(
                format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
                    .as_bytes(),
            );
        }
    });
    port
}

#[test]
fn a_key_is_tested_kept_private_and_used() {
    let agent = Agent::new();
    initial(&agent);
    let endpoint = format!("http://127.0.0.1:{}/v1", model_server());
    agent
        .clawk([
            "provider",
            "add",
            "lab",
            "--endpoint",
            &endpoint,
            "--model",
            "big-1",
            "--secret-ref",
            "LAB_KEY",
            "--yes",
        ])
        .assert()
        .success();
    agent
        .clawk(["provider", "test", "lab"])
        .assert()
        .code(1)
        .stdout(contains("LAB_KEY"));
    let kept = agent.path("config/clawk/secrets/LAB_KEY");
    for wrong in ["sk-wrong-0123456789abcdef\n", "\n", "two words\n"] {
        let output = agent.clawk(["login", "lab"]).write_stdin(wrong).output().unwrap();
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success() && !kept.exists(), "{wrong:?}: {said}");
        assert!(!said.contains("wrong-0123"), "{said}");
    }
    let output = agent
        .clawk(["login", "lab"])
        .write_stdin(format!("\"{KEY}\"\n"))
        .output()
        .unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("accepts the key") && !said.contains("abcdefgh0123"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), KEY);
    assert_eq!(
        std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777,
        0o600
    );
    agent
        .clawk(["provider", "test", "lab"])
        .assert()
        .success()
        .stdout(contains("offers `big-1`"));
    agent
        .clawk(["login", "main"])
        .write_stdin("x")
        .assert()
        .code(1)
        .stderr(contains("needs no key"));
    agent
        .clawk(["login", "nobody"])
        .write_stdin("x")
        .assert()
        .code(1)
        .stderr(contains("`main`"));
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o644)).unwrap();
    agent
        .clawk(["provider", "test", "lab"])
        .assert()
        .code(1)
        .stdout(contains("chmod 600"));
}

#[test]
fn a_key_that_is_typed_is_not_shown() {
    let agent = Agent::new();
    initial(&agent);
    let endpoint = format!("http://127.0.0.1:{}/v1", model_server());
    agent
        .clawk([
            "provider",
            "add",
            "lab",
            "--endpoint",
            &endpoint,
            "--model",
            "big-1",
            "--secret-ref",
            "LAB_KEY",
            "--yes",
        ])
        .assert()
        .success();
    let mut terminal = agent.terminal(&["login", "lab"]);
    terminal.expect("hidden");
    terminal.line(KEY);
    terminal.expect("kept `LAB_KEY`");
    let (status, shown) = terminal.end();
    assert!(status.success(), "{shown}");
    assert!(!shown.contains("abcdefgh"), "{shown}");
    assert!(agent.path("config/clawk/secrets/LAB_KEY").is_file());
}
