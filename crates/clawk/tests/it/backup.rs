//! Backups, as a process: made while the agent runs, restored elsewhere, verified, never half.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::places::StatePlace;
use crate::sealed::{self, OLD, PLANTED, anywhere};
use crate::serve::Server;

fn json_of(agent: &Agent, args: &[&str]) -> Value {
    let done = agent
        .clawk([])
        .args(args)
        .args(["--format", "json"])
        .env("MEMORY_KEY", OLD)
        .env("BACKUP_KEY", OLD)
        .assert()
        .success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn fails(agent: &Agent, args: &[&str]) -> String {
    let done = agent
        .clawk([])
        .args(args)
        .env("MEMORY_KEY", OLD)
        .env("BACKUP_KEY", OLD)
        .assert()
        .failure();
    text(&done.get_output().stderr)
}

#[test]
fn a_running_agent_is_backed_up_and_goes_on_elsewhere() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "first words"])
        .assert()
        .success();
    let mut served = Server::start(&agent, &["claw.yaml", "--stdio"]);
    served.initialize(&json!({ "kind": "Claw", "metadata": { "name": "tested" } }));
    // A new kind of file in a state needs a place in the inventory.
    for entry in std::fs::read_dir(agent.state()).unwrap() {
        let name = std::path::PathBuf::from(entry.unwrap().file_name());
        assert_ne!(StatePlace::of_entry(&name), StatePlace::Unknown, "{name:?}");
    }
    let made = json_of(&agent, &["backup", "one.backup", "--with-keys"]);
    assert_eq!(made["backup"]["keys"], json!(true), "{made}");
    drop(served);
    // The file is a plain archive, and no other.
    let why = fails(&agent, &["backup", "one.backup"]);
    assert!(why.contains("exists"), "{why}");
    let checked = json_of(&agent, &["restore", "one.backup", "--check"]);
    assert_eq!(checked["valid"], json!(true), "{checked}");

    // Over a state that is there: only when told, and what was there is kept.
    let why = fails(&agent, &["restore", "one.backup"]);
    assert!(why.contains("--replace"), "{why}");
    let before = json_of(&agent, &["sessions", "--all", "--agent", "tested"]);
    json_of(&agent, &["restore", "one.backup", "--replace"]);
    let verified = json_of(&agent, &["trace", "verify", "--agent", "tested"]);
    assert_eq!(verified["valid"], json!(true), "{verified}");
    agent
        .clawk(["run", "claw.yaml", "--session", "last", "-m", "second words"])
        .assert()
        .success();
    let after = json_of(&agent, &["sessions", "--agent", "tested"]);
    assert_eq!(after["sessions"][0]["turns"], json!(2), "{before} {after}");

    // Elsewhere.
    let elsewhere = agent.path("elsewhere");
    let place = elsewhere.to_str().unwrap();
    json_of(&agent, &["restore", "one.backup", "--state", place]);
    let verified = json_of(&agent, &["trace", "verify", "--state", place]);
    assert_eq!(verified["valid"], json!(true), "{verified}");
    agent
        .clawk(["run", "claw.yaml", "--state", place, "-m", "here, too"])
        .assert()
        .success();
}

#[test]
fn a_backup_without_keys_says_so_and_goes_on_with_a_new_key() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "first words"])
        .assert()
        .success();
    json_of(&agent, &["backup", "bare.backup"]);
    let private = std::fs::read_to_string(agent.state().join("keys/checkpoint.key")).unwrap();
    let bytes = std::fs::read(agent.path("bare.backup")).unwrap();
    assert!(!bytes.windows(64).any(|part| part == private.trim().as_bytes()));
    let place = agent.path("renewed");
    let place = place.to_str().unwrap();
    let done = agent
        .clawk(["restore", "bare.backup", "--state", place])
        .assert()
        .success();
    assert!(text(&done.get_output().stderr).contains("--new-key"));
    let why = fails(&agent, &["run", "claw.yaml", "--state", place, "-m", "go on"]);
    assert!(why.contains("key"), "{why}");
    json_of(
        &agent,
        &[
            "restore",
            "bare.backup",
            "--state",
            place,
            "--replace",
            "--new-key",
        ],
    );
    agent
        .clawk(["run", "claw.yaml", "--state", place, "-m", "go on"])
        .assert()
        .success();
    let verified = json_of(&agent, &["trace", "verify", "--state", place]);
    assert_eq!(verified["valid"], json!(true), "{verified}");
    assert!(Path::new(place).join("keys/earlier-heads.jsonl").is_file());
}

#[test]
fn an_encrypted_backup_shows_nothing_and_a_damaged_one_restores_nothing() {
    let agent = sealed::agent();
    sealed::said(&agent, ("MEMORY_KEY", OLD), "keep");
    let folder = agent.path("backups");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("sealed.backup");
    let file = file.to_str().unwrap();
    json_of(&agent, &["backup", file, "--encrypt", "BACKUP_KEY"]);
    assert!(anywhere(&folder, PLANTED).is_empty() && anywhere(&folder, "state.db").is_empty());
    let why = fails(&agent, &["restore", file, "--check"]);
    assert!(why.contains("--key"), "{why}");
    json_of(&agent, &["restore", file, "--check", "--key", "BACKUP_KEY"]);

    json_of(&agent, &["backup", "plain.backup"]);
    let whole = std::fs::read(agent.path("plain.backup")).unwrap();
    let place = agent.path("damaged");
    for (name, bytes) in [
        ("cut off", whole[..whole.len() / 2].to_vec()),
        ("without its end", whole[..whole.len() - 4096].to_vec()),
        ("changed", {
            let mut bytes = whole.clone();
            let at = bytes.len() / 3;
            bytes[at] ^= 1;
            bytes
        }),
        ("nothing", Vec::new()),
    ] {
        std::fs::write(agent.path("damaged.backup"), bytes).unwrap();
        let why = fails(
            &agent,
            &["restore", "damaged.backup", "--state", place.to_str().unwrap()],
        );
        assert!(why.contains("backup"), "{name}: {why}");
        assert!(!place.exists(), "{name}");
    }
}

#[test]
fn a_backup_that_is_killed_leaves_no_half_file() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "first words"])
        .assert()
        .success();
    for wait in [1, 5, 10, 20, 40, 80] {
        let mut backup = std::process::Command::new(program());
        let mut child = backup
            .args(["backup", "killed.backup"])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        if agent.path("killed.backup").exists() {
            json_of(&agent, &["restore", "killed.backup", "--check"]);
            std::fs::remove_file(agent.path("killed.backup")).unwrap();
        }
    }
    json_of(&agent, &["backup", "killed.backup"]);
    json_of(&agent, &["restore", "killed.backup", "--check"]);
    assert!(!agent.state().join(".backup").exists());
    assert!(!agent.path(".killed.backup.part").exists());
}
