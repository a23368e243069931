//! How people use an agent in a shell: pipes, words that begin with a dash, a folder for its manifest; and keys that stand where their
//! name belongs.

use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;

use crate::agent::Agent;

#[test]
fn a_message_may_begin_with_a_dash() {
    let agent = Agent::new();
    for words in ["- milk", "--help me", "-1 + 2", "-m", "--", "-"] {
        agent
            .clawk(["run", "claw.yaml", "-m", words])
            .assert()
            .success()
            .stdout(format!("You said **{words}**.\n"));
    }
}

#[test]
fn what_is_piped_in_follows_the_message() {
    let agent = Agent::new();
    for (piped, said) in [
        ("the data\n", "sum up\n\nthe data"),
        ("\u{feff}one\r\ntwo\r\n", "sum up\n\none\ntwo"),
        ("", "sum up"),
        ("\n\n", "sum up"),
    ] {
        agent
            .clawk(["run", "claw.yaml", "-m", "sum up"])
            .write_stdin(piped)
            .assert()
            .success()
            .stdout(format!("You said **{said}**.\n"));
    }
    // A file is as good as a pipe; `/dev/null` is none.
    std::fs::write(agent.path("data.txt"), "of a file\n").unwrap();
    for (file, said) in [("data.txt", "sum up\n\nof a file"), ("/dev/null", "sum up")] {
        let mut run = std::process::Command::new(crate::agent::program());
        let out = run
            .args(["run", "claw.yaml", "-m", "sum up"])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stdin(std::fs::File::open(agent.path("").join(file)).unwrap())
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out.stdout),
            format!("You said **{said}**.\n")
        );
    }
    agent
        .clawk(["run", "claw.yaml"])
        .write_stdin("\u{feff}hi\r\n")
        .assert()
        .success()
        .stdout("You said **hi**.\n");
}

#[test]
fn a_folder_stands_for_its_manifest() {
    let agent = Agent::new();
    agent
        .clawk(["run", ".", "-m", "hi"])
        .assert()
        .success()
        .stdout("You said **hi**.\n");
    agent.clawk(["validate", "."]).assert().success();
    std::fs::create_dir(agent.path("empty")).unwrap();
    agent.clawk(["run", "empty", "-m", "hi"]).assert().code(1);
}

/// How the agent's provider says that it needs no key.
const NO_KEY: &str = "{ type: none }";

/// Keys that people paste where the name of the secret belongs.
const KEYS: &[&str] = &[
    "sk-proj-0a1B2c3D4e5F6g7H8i9J",
    "ghp_0123456789abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "0123456789abcdef0123456789abcdef",
];

#[test]
fn a_key_in_the_place_of_its_name_is_refused_and_shown_nowhere() {
    for key in KEYS {
        let agent = Agent::new();
        let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
        assert!(manifest.contains(NO_KEY), "{manifest}");
        let pasted = manifest.replacen(NO_KEY, &format!("{{ type: bearer, secret_ref: {key} }}"), 1);
        std::fs::write(agent.path("claw.yaml"), pasted).unwrap();
        for verb in [
            ["validate", "claw.yaml"].as_slice(),
            &["validate", "claw.yaml", "--format", "json"],
            &["run", "claw.yaml", "-m", "hi"],
            &["doctor", "claw.yaml"],
            &["doctor", "claw.yaml", "--format", "json"],
        ] {
            let mut command = agent.clawk([]);
            command
                .args(verb)
                .assert()
                .failure()
                .stdout(contains(*key).not())
                .stderr(contains(*key).not());
        }
        agent
            .clawk(["validate", "claw.yaml"])
            .assert()
            .failure()
            .stdout(contains("looks like the secret itself"));
        // And nothing was written of it.
        let state = agent.path("state");
        let found = std::process::Command::new("grep")
            .args(["-rl", key])
            .arg(&state)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
}

#[test]
fn doctor_says_what_is_odd_about_a_key_and_not_the_key() {
    let agent = Agent::new();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let manifest = manifest.replacen(NO_KEY, "{ type: bearer, secret_ref: MY_KEY }", 1);
    std::fs::write(agent.path("claw.yaml"), manifest).unwrap();
    for (value, word) in [
        ("\"tok-quoted\"", "quotes"),
        ("'tok-quoted'", "quotes"),
        ("tok\nquoted", "control character"),
        ("Bearer tok-quoted", "Bearer"),
    ] {
        let out = agent
            .clawk(["doctor", "claw.yaml"])
            .env("MY_KEY", value)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            said.contains("MY_KEY") && said.contains(word),
            "{value:?}: {said}"
        );
        assert!(!said.contains("quoted"), "{said}");
    }
}
