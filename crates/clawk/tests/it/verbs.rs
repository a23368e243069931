//! Verbs without a terminal.

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::agent::{Agent, text};

#[test]
fn every_verb_shows_an_example_in_its_help() {
    let agent = Agent::new();
    let help = text(&agent.clawk(["--help"]).assert().success().get_output().stdout);
    let verbs: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.len() >= 9, "{verbs:?}");
    for verb in verbs {
        agent
            .clawk([verb, "--help"])
            .assert()
            .success()
            .stdout(contains("Example"));
    }
}

#[test]
fn usage_errors_are_exit_code_2() {
    let agent = Agent::new();
    agent.clawk(["no-such-verb"]).assert().code(2);
    agent.clawk(["send"]).assert().code(2);
    agent
        .clawk(["serve", "claw.yaml"])
        .assert()
        .code(2)
        .stderr(contains("--stdio"));
}

#[test]
fn one_turn_prints_the_answer_and_nothing_else_on_standard_output() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success()
        .stdout("You said **hello**.\n")
        .stderr(contains("trace: ").and(contains("chain valid")));
}

#[test]
fn the_line_about_the_trace_can_be_pasted() {
    let agent = Agent::new();
    let shown = text(
        &agent
            .clawk(["run", "claw.yaml", "-m", "read"])
            .assert()
            .success()
            .get_output()
            .stderr,
    );
    let look = shown.rsplit_once("look at it: ").unwrap().1.trim();
    let words: Vec<&str> = look.split(' ').collect();
    assert_eq!(words[0], crate::agent::program().to_str().unwrap());
    assert_eq!(words[1..3], ["trace", "show"]);
    agent
        .clawk(["trace", "show", words[3], words[4], words[5], words[6]])
        .assert()
        .success()
        .stdout(contains("file-read"));
}

#[test]
fn the_last_session_is_the_conversation_and_not_the_lifecycle() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let export = agent
        .clawk(["trace", "export", "--agent", "tested", "--session", "last"])
        .assert()
        .success();
    let lines = text(&export.get_output().stdout);
    assert!(
        lines.contains("ckp.message.answered") && !lines.contains("ckp.lifecycle.transition"),
        "{lines}"
    );
}

#[test]
fn standard_input_is_one_message() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml"])
        .write_stdin("two\nlines\n")
        .assert()
        .success()
        .stdout("You said **two\nlines**.\n");
}

#[test]
fn tool_calls_are_shown_with_verdict_and_rule() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "read"])
        .assert()
        .success()
        .stdout(contains("a line of text"))
        .stderr(
            contains("→ file-read path: \"in.txt\"")
                .and(contains("allowed (rule `reading`)"))
                .and(contains("· sandbox process")),
        );
    agent
        .clawk(["trace", "export"])
        .assert()
        .success()
        .stdout(contains("\"level\":\"process\"").and(contains("checks:filesystem")));
}

#[test]
fn without_a_terminal_a_question_is_answered_with_no_and_says_why() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "write"])
        .assert()
        .success()
        .stdout(contains("I was not allowed to."))
        .stderr(contains("there is no terminal to ask").and(contains("rule `writing`")));
    assert!(!agent.path("out.txt").exists());
}

#[test]
fn approve_never_answers_every_question_with_no() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "write", "--approve", "never"])
        .assert()
        .success()
        .stderr(contains("`--approve never` answers every question with no"));
    assert!(!agent.path("out.txt").exists());
}

#[test]
fn a_failed_turn_is_exit_code_1_with_the_cause() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "broken"])
        .assert()
        .code(1)
        .stderr(contains("no such model"));
}

#[test]
fn an_invalid_manifest_is_shown_with_its_place() {
    let agent = Agent::new();
    std::fs::write(
        agent.path("bad.yaml"),
        "claw: \"0.3.0\"\nkind: Claw\nmetadata: {name: x}\nspec: {identty: 1}\n",
    )
    .unwrap();
    agent
        .clawk(["run", "bad.yaml", "-m", "x"])
        .assert()
        .code(1)
        .stderr(contains("bad.yaml:4").and(contains("identty")));
}

#[test]
fn a_second_process_on_the_same_state_is_refused() {
    let agent = Agent::new();
    let mut first = std::process::Command::new(crate::agent::program())
        .args(["serve", "claw.yaml", "--stdio"])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let lock = agent.state().join("control.sock");
    while !lock.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .code(1)
        .stderr(contains("in use by process"));
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success(), "end of input is an orderly end");
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
}

#[test]
fn a_session_can_be_taken_up_again() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let before = sessions(&agent);
    agent
        .clawk(["run", "claw.yaml", "-m", "again", "--session", "last"])
        .assert()
        .success();
    let after = sessions(&agent);
    let grown = |(id, events): &(String, u64)| after.iter().any(|(now, more)| now == id && more > events);
    assert!(before.iter().any(grown), "{before:?} {after:?}");
    agent
        .clawk(["run", "claw.yaml", "-m", "x", "--session", "nonsense"])
        .assert()
        .code(1)
        .stderr(contains("clawk sessions"));
}

#[test]
fn the_list_of_sessions_says_what_each_was_about() {
    let agent = Agent::new();
    for message in ["hello", "what is \u{1b}[31mnew"] {
        agent
            .clawk(["run", "claw.yaml", "-m", message])
            .assert()
            .success();
    }
    let list = |args: &[&str]| {
        let out = agent.clawk(["sessions"]).args(args).assert().success();
        String::from_utf8(out.get_output().stdout.clone()).unwrap()
    };
    let people = list(&[]);
    let lines: Vec<&str> = people.lines().collect();
    assert_eq!(lines.len(), 4, "{people}");
    assert!(lines[0].ends_with("1 turn  what is ·[31mnew"), "{people}");
    assert!(lines[1].contains("cli · "), "{people}");
    assert!(lines[2].ends_with("1 turn  hello"), "{people}");
    assert_eq!(list(&["--limit", "1"]).lines().count(), 2);
    let all = list(&["--all"]);
    assert_eq!(
        (list(&["list"]), list(&["list", "--all"])),
        (people.clone(), all.clone())
    );
    assert!(all.lines().count() == 8 && all.contains("runtime · "), "{all}");
    let json: Value = serde_json::from_str(&list(&["--format", "json"])).unwrap();
    let first = &json["sessions"][1];
    assert_eq!(
        (&first["turns"], &first["door"], &first["opening"]),
        (&Value::from(1), &Value::from("cli"), &Value::from("hello"))
    );
}

fn sessions(agent: &Agent) -> Vec<(String, u64)> {
    let out = agent
        .clawk(["sessions", "--format", "json"])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let value: Value = serde_json::from_slice(&out).unwrap();
    let rows = value["sessions"].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["session"].as_str().unwrap().to_owned(),
            row["events"].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn what_init_writes_is_valid_and_runs() {
    let agent = Agent::new();
    agent.clawk(["init", "fresh", "--yes"]).assert().success();
    let text = std::fs::read_to_string(agent.path("fresh/claw.yaml")).unwrap();
    assert!(text.starts_with("# yaml-language-server: $schema=./claw.schema.json\n"));
    assert!(agent.path("fresh/claw.schema.json").exists());
    // It remembers: the second session's prompt holds what the first one was told.
    for said in ["My cat is called Ferdinand", "What is the name of my cat?"] {
        agent
            .clawk(["run", "fresh/claw.yaml", "-m", said])
            .assert()
            .success();
    }
    agent
        .clawk(["sessions", "prompt", "last", "--turn", "1", "--agent", "fresh"])
        .assert()
        .success()
        .stdout(contains("recalled memory").and(contains("My cat is called Ferdinand\n</entry>")));
    for provider in ["anthropic", "openai", "local"] {
        for autonomy in ["observer", "supervised", "autonomous"] {
            let folder = format!("{provider}-{autonomy}");
            agent
                .clawk([
                    "init",
                    &folder,
                    "--provider",
                    provider,
                    "--autonomy",
                    autonomy,
                    "--yes",
                ])
                .assert()
                .success();
            let manifest = format!("{folder}/claw.yaml");
            // Reads the manifest, and says that there is no key: nothing is sent anywhere.
            agent
                .clawk(["doctor", &manifest])
                .assert()
                .stdout(contains(format!("`{folder}`")));
        }
    }
    agent
        .clawk(["init", "fresh", "--yes"])
        .assert()
        .code(1)
        .stderr(contains("exists already"));
}

#[test]
fn doctor_finds_nothing_wrong_here_and_what_is_wrong_elsewhere() {
    let agent = Agent::new();
    let out = agent
        .clawk(["doctor", "claw.yaml", "--format", "json"])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let value: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(value["ok"], true);
    let page = include_str!("../../../../docs/reference/doctor.md");
    for check in value["checks"].as_array().unwrap() {
        let id = check["id"].as_str().unwrap();
        assert!(
            page.contains(&format!("`{id}`")),
            "docs/reference/doctor.md does not name `{id}`"
        );
    }
    std::fs::write(
        agent.path("clawk.toml"),
        "[tools.sleep.http]\nurl = \"no address\"\n",
    )
    .unwrap();
    agent
        .clawk(["doctor", "claw.yaml"])
        .assert()
        .code(1)
        .stdout(contains("FAIL  tools").and(contains("sleep")));
    std::fs::write(agent.path("clawk.toml"), "\nno_such_key = 1\n").unwrap();
    agent
        .clawk(["doctor", "claw.yaml"])
        .assert()
        .code(1)
        .stdout(contains("FAIL  config").and(contains("line 2")));
}

#[test]
fn config_says_what_is_in_force_and_from_where() {
    let agent = Agent::new();
    std::fs::write(agent.path("clawk.toml"), "durability = \"relaxed\"\n").unwrap();
    agent.clawk(["config", "claw.yaml"]).assert().success().stdout(
        contains("durability = \"relaxed\"\n").and(contains("sandbox.allow_none = false  # default")),
    );
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    agent
        .clawk(["config", "--config", "gone.toml"])
        .assert()
        .code(1)
        .stderr(contains("gone.toml"));
}

#[test]
fn completions_and_manual_pages_know_the_verbs() {
    let agent = Agent::new();
    agent
        .clawk(["completions", "bash"])
        .assert()
        .success()
        .stdout(contains("doctor"));
    agent
        .clawk(["man"])
        .assert()
        .success()
        .stdout(contains(".TH clawk"));
    agent.clawk(["man", "--dir", "pages"]).assert().success();
    assert!(agent.path("pages/clawk-run.1").exists());
}

#[test]
fn a_dead_letter_is_listed_and_can_be_said_again() {
    let agent = Agent::new();
    agent
        .clawk(["dead-letters", "list"])
        .assert()
        .code(1)
        .stderr(contains("no agent has run here yet"));
    agent.clawk(["run", "claw.yaml", "-m", "broken"]).assert().code(1);
    let out = agent
        .clawk(["dead-letters", "list", "--format", "json"])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let value: Value = serde_json::from_slice(&out).unwrap();
    let letter = &value["dead_letters"][0];
    assert_eq!(letter["text"], "broken");
    assert!(
        letter["reason"].as_str().unwrap().contains("no such model"),
        "{letter}"
    );
    // The model is mended; what was said is said again, in its session.
    let script = std::fs::read_to_string(agent.path("script.yaml")).unwrap();
    std::fs::write(
        agent.path("script.yaml"),
        script.replace("user: broken", "user: no-longer"),
    )
    .unwrap();
    let id = letter["message"].as_str().unwrap();
    agent
        .clawk(["dead-letters", "replay", id, "claw.yaml"])
        .assert()
        .success()
        .stdout("You said **broken**.\n")
        .stderr(contains(letter["session"].as_str().unwrap()));
}

/// What a start refuses for this machine's sake, `validate` warns of and `doctor` fails by the same word; nothing is executed.
#[test]
fn what_this_machine_lacks_is_one_word_for_validate_doctor_and_start() {
    let agent = Agent::new();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let unbound = manifest.replace("name: sleep\n", "name: no-executor\n");
    let unscripted = manifest.replace("script:script.yaml", "script:gone.yaml");
    let mut cases = vec![(unbound, "tools"), (unscripted, "provider")];
    if cfg!(not(feature = "wasm")) {
        cases.push((manifest.replace("level: process", "level: wasm"), "not-in-build"));
    }
    if cfg!(not(feature = "vm")) {
        cases.push((manifest.replace("level: process", "level: vm"), "not-in-build"));
    }
    for (text, word) in cases {
        std::fs::write(agent.path("claw.yaml"), text).unwrap();
        std::fs::write(
            agent.path("clawk.toml"),
            "[secrets_store]\ncommand = [\"touch\", \"executed\"]\n[secrets.KEY]\ntools = [\"file-read\"]\nhosts = [\"example.com\"]\n",
        )
        .unwrap();
        let (_, validated) = crate::trace::json(&agent, &["validate", "claw.yaml", "--format", "json"]);
        // What another build can do is an error; what another machine can do is a warning.
        let (list, valid) = match word {
            "not-in-build" => ("errors", false),
            _ => ("warnings", true),
        };
        let codes: Vec<&str> = validated[list]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| found["code"].as_str().unwrap())
            .collect();
        assert_eq!((codes, &validated["valid"]), (vec![word], &Value::Bool(valid)));
        assert!(!agent.path("executed").exists(), "validate executed a program");
        std::fs::remove_file(agent.path("clawk.toml")).unwrap();
        let output = agent
            .clawk(["doctor", "claw.yaml", "--format", "json"])
            .output()
            .unwrap();
        let checks: Value = serde_json::from_slice(&output.stdout).unwrap();
        // A level above `process` is no fault of the machine's until a manifest asks for it.
        let id = if valid { word } else { "build" };
        let failed = |check: &Value| check["id"] == id && check["status"] != "ok";
        assert!(
            checks["checks"].as_array().unwrap().iter().any(failed),
            "{checks:#}"
        );
        agent
            .clawk(["run", "claw.yaml", "-m", "hello"])
            .assert()
            .code(1)
            .stderr(contains(format!("[{word}]")));
        std::fs::write(agent.path("claw.yaml"), &manifest).unwrap();
    }
}

/// A build without a feature knows the verb, does nothing, and names the feature.
#[cfg(not(feature = "conformance"))]
#[test]
fn a_verb_that_is_left_out_names_its_feature() {
    for words in [
        &["conformance"][..],
        &["conformance", "ckp", "--target", "x"],
        &["conformance", "--help"],
    ] {
        assert_cmd::Command::new(env!("CARGO_BIN_EXE_clawk"))
            .args(words)
            .assert()
            .code(1)
            .stdout("")
            .stderr(contains("leaves out `conformance").and(contains("--features conformance")));
    }
}
