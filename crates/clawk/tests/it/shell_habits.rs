//! What people type and write by habit, each with the answer that they get: tables that run the real program.

use std::process::Stdio;
use std::time::{Duration, Instant};

use predicates::str::contains;

use crate::agent::{Agent, program, text};

const KEY: &str = "sk-proj-0123456789abcdefghij";

/// Runs clawk and returns the exit code, standard output and standard error.
fn run(agent: &Agent, words: &[&str]) -> (i32, String, String) {
    let output = agent.clawk([]).args(words).output().unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_command_line_that_is_refused_names_the_one_that_was_meant() {
    let agent = Agent::new();
    std::fs::create_dir(agent.path("empty")).unwrap();
    for (words, code, said) in [
        (
            &["secrets", "list"][..],
            2,
            &["no command `secrets`", "clawk login PROVIDER"][..],
        ),
        (
            &["update"],
            2,
            &["does not replace its own program", "clawk upgrade"],
        ),
        (&["new", "x"], 2, &["clawk init DIR"]),
        (&["ask", "x"], 2, &["clawk run CLAW -m TEXT"]),
        (&["status"], 2, &["clawk state info"]),
        (&["usage"], 2, &["clawk budget"]),
        (&["add"], 2, &["clawk mcp add"]),
        (&["help", "run"], 2, &["clawk run --help"]),
        (
            &["claw.yaml"],
            2,
            &["clawk run claw.yaml", "clawk serve claw.yaml"],
        ),
        (
            &["run", "claw.yaml", "hello", "you"],
            2,
            &["-m 'hello you'", "clawk run claw.yaml"],
        ),
        (&["chat", ".", "it's"], 2, &["-m 'it'\\''s'"]),
        (&["channels", "claw.yaml"], 2, &["--agent tested", "--state DIR"]),
        (&["sessions", "."], 2, &["--agent tested"]),
        (&["budget", "claw.yaml"], 2, &["--agent tested"]),
        (&["memory", "list", "."], 2, &["--agent tested"]),
        (&["effects", "./claw.yaml"], 2, &["--agent tested"]),
        (
            &["serve", "claw.yaml", "--listen", "web:80"],
            2,
            &["127.0.0.1:8080", "a port alone"],
        ),
        (
            &["run", "empty", "-m", "x"],
            1,
            &["`empty` is a folder, not a file", "clawk init DIR"],
        ),
        (
            &["run", "clav.yaml", "-m", "x"],
            1,
            &[
                "`clav.yaml` does not exist",
                "beside it: `claw.yaml`, `script.yaml`",
            ],
        ),
        (
            &["validate", "no/where.yaml"],
            1,
            &["there is no folder `no` either"],
        ),
        (
            &["run", "claw.yaml", "--session", "abc", "-m", "x"],
            1,
            &["clawk sessions"],
        ),
    ] {
        let (got, out, err) = run(&agent, words);
        let all = format!("{out}{err}");
        assert_eq!(got, code, "{words:?}: {all}");
        for part in said {
            assert!(all.contains(part), "{words:?} does not say {part:?}:\n{all}");
        }
        assert!(!all.contains("similar subcommand"), "{words:?}: {all}");
    }
    // What clap knows itself stays as it is.
    agent
        .clawk(["--version"])
        .assert()
        .success()
        .stdout(contains("clawk "));
    agent.clawk(["rum"]).assert().code(2).stderr(contains("'run'"));
}

#[test]
fn every_verb_takes_the_folder_in_the_place_of_the_manifest() {
    let agent = Agent::new();
    for words in [
        &["run", ".", "-m", "hello"][..],
        &["chat", ".", "-m", "hello"],
        &["run", "-m", "hello"],
        &["validate"],
        &["validate", "."],
        &["doctor", "."],
        &["config", "."],
        &["mcp", "list", "."],
        &["skill", "list", "."],
        &["policy", "explain", ".", "--tool", "file-read"],
        &["sandbox", "explain", "."],
        &["trust", "."],
    ] {
        let (code, out, err) = run(&agent, words);
        assert_eq!(code, 0, "{words:?}: {out}{err}");
    }
    let (_, _, err) = run(&agent, &["policy", "test", "."]);
    assert!(
        err.contains("`./claw.yaml` has no tests"),
        "the folder's manifest is meant: {err}"
    );
    let (_, out, _) = run(&agent, &["run", ".", "-m", "- x"]);
    assert_eq!(out, "You said **- x**.\n", "a message may begin with a dash");
}

#[test]
fn a_pasted_key_is_refused_printed_nowhere_and_written_nowhere() {
    let places = [
        (
            "claw.yaml",
            "auth: { type: none }",
            format!("auth: {{ type: bearer, secret_ref: {KEY} }}"),
        ),
        ("claw.yaml", "secret_ref: NONE", format!("secret_ref: {KEY}")),
        ("claw.yaml", "model: scripted", format!("model: {KEY}: x")),
        ("clawk.toml", "", format!("[tools.x.secret_env]\nA = \"{KEY}\"\n")),
        (
            "clawk.toml",
            "",
            format!("[channels.here.secrets]\napp = \"{KEY}\"\n"),
        ),
        ("clawk.toml", "", format!("[secrets.{KEY}]\ntools = [\"x\"]\n")),
        ("clawk.toml", "", format!("[secrets.{KEY}]\n")),
        ("clawk.toml", "", format!("[tools.x.secret_env]\nA = {KEY}\n")),
    ];
    for (file, old, new) in places {
        let agent = Agent::new();
        let path = agent.path(file);
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(
            &path,
            if old.is_empty() {
                new.clone()
            } else {
                before.replace(old, &new)
            },
        )
        .unwrap();
        for words in [
            &["run", ".", "-m", "hello"][..],
            &["validate", "."],
            &["doctor", "."],
            &["config", "."],
            &["validate", ".", "--format", "json"],
        ] {
            let (code, out, err) = run(&agent, words);
            assert!(
                !format!("{out}{err}").contains("0123456789"),
                "{words:?} repeats {new:?}:\n{out}{err}"
            );
            assert!(
                code != 0 || words[0] == "config",
                "{words:?} takes {new:?}:\n{out}{err}"
            );
        }
        for entry in walk(&agent.path("")) {
            let is_source = entry == path;
            let held = std::fs::read(&entry).unwrap_or_default();
            let found = held.windows(KEY.len()).any(|part| part == KEY.as_bytes());
            assert_eq!(found, is_source, "{}", entry.display());
        }
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] })
        .collect()
}

#[test]
fn what_would_do_nothing_is_said_at_validate() {
    const MOUNT: &str = "  sandbox: { inline: { level: process, capabilities: { filesystem: { mode: scoped, mount_paths: [{ path: PATH, permissions: rw }] }, network: NETWORK } } }\n";
    let box_of = |path: &str, network: &str| MOUNT.replace("PATH", path).replace("NETWORK", network);
    let server = |program: &str| {
        format!(
            "  tools:\n    - inline: {{ name: fs, mcp_source: {{ uri: \"stdio://{program}?arg=x\" }} }}\n"
        )
    };
    let channel = |access: &str| format!("  # channels\n{}", access);
    let closed = "{ mode: deny }";
    let open = "{ mode: allowlist, allowed_hosts: [\"packages.example.org\"] }";
    for (rest, code, silent) in [
        (box_of("./data", closed), "mount-missing", false),
        (box_of("/no/such/folder", closed), "mount-missing", false),
        (box_of(".", closed), "mount-missing", true),
        (
            server("/usr/bin/npx") + &box_of(".", closed),
            "server-unfetched",
            false,
        ),
        (
            server("/usr/bin/uvx") + &box_of(".", "{ mode: allowlist }"),
            "server-unfetched",
            false,
        ),
        (
            server("/opt/uvx/server") + &box_of(".", closed),
            "server-unfetched",
            true,
        ),
        (
            server("/usr/bin/npx") + &box_of(".", open),
            "server-unfetched",
            true,
        ),
        (server("/usr/bin/npx"), "server-unfetched", false),
        (channel(""), "channel-closed", true),
    ] {
        let agent = Agent::new();
        agent.may(&rest);
        let (_, out, err) = run(&agent, &["validate", "."]);
        assert_eq!(!out.contains(code), silent, "{code} for {rest}:\n{out}{err}");
    }
    let agent = Agent::new();
    for (kind, transport, more, silent) in [
        ("telegram", "polling", "", false),
        ("slack", "websocket", "", false),
        ("web", "webhook", "", false),
        ("telegram", "polling", ", access_control: { mode: open }", true),
        ("cron", "stdio", ", trigger: { schedule: \"0 2 * * *\" }", true),
    ] {
        let text = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
        let from = text.find("    - inline: { name: here").unwrap();
        let end = from + text[from..].find('\n').unwrap();
        let line = format!(
            "    - inline: {{ name: here, type: {kind}, transport: {transport}, auth: {{ secret_ref: NONE }}{more} }}"
        );
        std::fs::write(
            agent.path("claw.yaml"),
            format!("{}{line}{}", &text[..from], &text[end..]),
        )
        .unwrap();
        let (_, out, err) = run(&agent, &["validate", "."]);
        assert_eq!(!out.contains("channel-closed"), silent, "{kind}:\n{out}{err}");
    }
}

#[test]
fn yaml_mistakes_are_told_in_plain_words_with_the_cure() {
    for (old, new, said) in [
        ("  identity:", "\tidentity:", "a tab stands in the indentation"),
        (
            "      level: process",
            "     level: process",
            "deeper than `level` above it (5), which has a value already",
        ),
        (
            "description: Waits",
            "description: Waits: long",
            "put the value between quotes: `description: \"…\"`",
        ),
        ("  tools:", "  tools", "neither `key: value` nor an item"),
        ("description: Waits", "description: @all", "`description: \"@…\"`"),
        ("description: Waits", "description: \"Waits", "no closing \""),
        (
            "  tools:",
            "  mcpServers: { a: { command: npx } }\n  tools:",
            "clawk mcp add --from FILE",
        ),
        (
            "        name: sleep",
            "        name: sleep\n        command: npx",
            "clawk mcp add NAME -- COMMAND",
        ),
    ] {
        let agent = Agent::new();
        let path = agent.path("claw.yaml");
        let before = std::fs::read_to_string(&path).unwrap();
        assert!(before.contains(old), "{old}");
        std::fs::write(&path, before.replacen(old, new, 1)).unwrap();
        let (code, out, err) = run(&agent, &["validate"]);
        assert_eq!(code, 1, "{new}: {out}{err}");
        assert!(
            out.contains(said) && out.contains("help: "),
            "{new} does not say {said:?}:\n{out}{err}"
        );
    }
}

#[test]
fn a_run_beside_a_served_agent_names_send_and_send_reaches_it() {
    let agent = Agent::new();
    let mut served = std::process::Command::new(program())
        .args(["start", "claw.yaml", "--listen", "0"])
        .env_clear()
        .envs(agent.environment())
        .current_dir(agent.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !agent.state().join("control.sock").exists() {
        assert!(Instant::now() < until, "the agent does not come up");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, out, err) = run(&agent, &["run", ".", "-m", "hello"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let line = err
        .lines()
        .find_map(|line| line.split("say it there: `").nth(1))
        .unwrap_or_else(|| panic!("{err}"));
    let words: Vec<&str> = line.trim_end_matches('`').split(' ').collect();
    assert_eq!(words[..2], ["clawk", "send"], "{err}");
    agent
        .clawk(["send", words[2], "hello"])
        .assert()
        .success()
        .stdout(contains("You said **hello**."));
    served.kill().unwrap();
    served.wait().unwrap();
}
