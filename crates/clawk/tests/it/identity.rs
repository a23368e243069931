//! The identity of a state, as a process: a manifest that moved, was copied or renamed finds its state, or asks; and what was spent
//! and what is stopped, over all states.

use serde_json::Value;

use crate::agent::{Agent, text};

fn remembers(agent: &Agent, claw: &str) -> usize {
    let done = agent
        .clawk(["sessions", "--format", "json", "--agent", "tested"])
        .assert()
        .success();
    let listed: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let _ = claw;
    listed["sessions"].as_array().unwrap().len()
}

fn fails(agent: &Agent, args: &[&str]) -> String {
    let done = agent.clawk([]).args(args).assert().failure();
    text(&done.get_output().stderr)
}

fn json(agent: &Agent, args: &[&str]) -> Value {
    let done = agent
        .clawk([])
        .args(args)
        .args(["--format", "json"])
        .assert()
        .success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

#[test]
fn a_moved_manifest_finds_its_state_again() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let id = json(&agent, &["state", "list"])["states"][0]["id"].clone();
    assert!(id.is_string(), "{id}");
    std::fs::create_dir(agent.path("moved")).unwrap();
    for file in ["claw.yaml", "script.yaml", "in.txt"] {
        std::fs::rename(agent.path(file), agent.path("moved").join(file)).unwrap();
    }
    let claw = agent.path("moved/claw.yaml");
    let claw = claw.to_str().unwrap();
    for verb in [
        vec!["run", claw, "-m", "hello"],
        vec!["serve", claw],
        vec!["send", claw, "hello"],
    ] {
        let why = fails(&agent, &verb);
        assert!(
            why.contains("which is gone") && why.contains("clawk state adopt"),
            "{verb:?}: {why}"
        );
    }
    // Nothing was begun meanwhile.
    assert_eq!(
        json(&agent, &["state", "list"])["states"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let listed = json(&agent, &["state", "list"]);
    assert_eq!(listed["states"][0]["manifest_exists"], false, "{listed}");
    agent
        .clawk(["state", "adopt", "tested", "--claw", claw])
        .assert()
        .success();
    agent.clawk(["run", claw, "-m", "again"]).assert().success();
    assert_eq!(remembers(&agent, claw), 2);
    assert_eq!(json(&agent, &["state", "list"])["states"][0]["id"], id);

    // Under another name it is the same agent, or another one: that is asked, too.
    let renamed = std::fs::read_to_string(claw)
        .unwrap()
        .replace("name: tested", "name: desk");
    std::fs::write(claw, renamed).unwrap();
    let why = fails(&agent, &["run", claw, "-m", "hello"]);
    assert!(why.contains("clawk state adopt"), "{why}");
    agent
        .clawk(["state", "adopt", "tested", "--claw", claw])
        .assert()
        .success();
    agent.clawk(["run", claw, "-m", "renamed"]).assert().success();
    assert_eq!(remembers(&agent, claw), 3);
}

#[test]
fn a_question_on_a_terminal_decides_whose_state_it_is() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    std::fs::create_dir(agent.path("moved")).unwrap();
    for file in ["claw.yaml", "script.yaml", "in.txt"] {
        std::fs::rename(agent.path(file), agent.path("moved").join(file)).unwrap();
    }
    let claw = agent.path("moved/claw.yaml");
    let claw = claw.to_str().unwrap();
    let mut terminal = agent.terminal(&["run", claw, "-m", "hello"]);
    terminal.expect("Enter: stop ▸");
    std::thread::sleep(std::time::Duration::from_millis(700));
    terminal.line("");
    let (code, said) = terminal.end();
    assert!(!code.success(), "{said}");
    assert_eq!(remembers(&agent, claw), 1);
    let mut terminal = agent.terminal(&["run", claw, "-m", "hello"]);
    terminal.expect("Enter: stop ▸");
    std::thread::sleep(std::time::Duration::from_millis(700));
    terminal.line("1");
    terminal.expect("chain valid");
    terminal.end();
    assert_eq!(remembers(&agent, claw), 2);
}

#[test]
fn a_stop_of_all_reaches_every_agent_and_yesterday_is_one_command() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    std::fs::create_dir(agent.path("other")).unwrap();
    std::fs::copy(agent.path("script.yaml"), agent.path("other/script.yaml")).unwrap();
    let other = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    std::fs::write(
        agent.path("other/claw.yaml"),
        other.replace("name: tested", "name: second"),
    )
    .unwrap();
    agent
        .clawk(["run", "other/claw.yaml", "-m", "hello"])
        .assert()
        .success();

    let spent = json(&agent, &["budget", "--agent", "tested", "--day", "today"]);
    assert_eq!(spent["by"], "model");
    assert_eq!(spent["total"]["requests"], 1, "{spent}");
    let people = json(
        &agent,
        &["budget", "--agent", "tested", "--by", "person", "--since", "1h"],
    );
    assert_eq!(people["rows"].as_array().unwrap().len(), 1, "{people}");
    assert_ne!(people["rows"][0]["name"], "nobody", "{people}");
    let before = json(&agent, &["budget", "--agent", "tested", "--day", "yesterday"]);
    assert_eq!(before["total"]["requests"], 0, "{before}");
    let shown = json(
        &agent,
        &["trace", "show", "--agent", "tested", "--until", "yesterday"],
    );
    assert_eq!(shown.as_array().unwrap().len(), 0, "{shown}");
    let shown = json(
        &agent,
        &["trace", "show", "--agent", "tested", "--since", "today"],
    );
    assert!(!shown.as_array().unwrap().is_empty());

    let stopped = json(&agent, &["stop", "--all", "--reason", "drill"]);
    assert_eq!(stopped["agents"].as_array().unwrap().len(), 2, "{stopped}");
    for name in ["tested", "second"] {
        let status = json(&agent, &["stop", "--status", "--agent", name]);
        assert_eq!(status["stops"][0]["reason"], "drill", "{name}: {status}");
    }
    agent.clawk(["stop", "--lift", "--all"]).assert().success();
    let status = json(&agent, &["stop", "--status", "--agent", "second"]);
    assert_eq!(status["stops"].as_array().unwrap().len(), 0, "{status}");
}
