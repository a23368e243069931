//! What befalls the state: a full disk, a second process, `kill -9` in the middle of a turn.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent::{Agent, PATIENCE, allow, in_order, manifest, of, program, scripted};
use crate::process::{Group, finish, running, until};
use crate::wire::{Wire, text};

/// An agent whose tool `append` adds a line to `effects.txt`, takes its time, and ends.
fn appending(seconds: &str) -> Agent {
    let agent = Agent::new();
    agent.write(
        "script.yaml",
        "scenes:
  - user: append
    steps:
      - call: [{ name: append, arguments: {} }]
      - say: \"It was: {{last_tool_text}}\"
  - steps: [{ say: hello }]
",
    );
    let tools = json!([{ "inline": { "name": "append", "description": "Adds a line", "input_schema": { "type": "object" } } }]);
    let script = format!("cat >/dev/null; echo line >> effects.txt; sleep {seconds}; echo appended");
    let local = format!("[tools.append]\ncommand = ['sh', '-c', '{script}']\n");
    agent.is(&manifest(&scripted(), &tools, &json!([allow("append")])), &local);
    agent
}

fn effects(agent: &Agent) -> usize {
    // Before the first one there is no file.
    std::fs::read_to_string(agent.path("effects.txt")).map_or(0, |text| text.lines().count())
}

/// A limit on the size of a file stands for the disk's end: the write fails, whoever runs the test.
const SHORT_FILES: &str = "trap '' XFSZ; ulimit -f 1500; exec \"$0\" \"$@\"";

/// A small disk of its own, seen by this process alone; what is on it is kept when the agent has ended.
const SMALL_DISK: &str = "mkdir -p state && mount -t tmpfs -o size=3m none state || exit 99
    \"$0\" \"$@\"; code=$?; cp -a state kept; exit $code";

#[test]
fn on_a_full_disk_nothing_is_done_that_is_not_recorded() {
    let agent = appending("0");
    let mut command = agent.command(Path::new("/bin/sh"));
    command.args(["-c", SHORT_FILES]);
    until_full(&agent, command);
}

/// Where a mount is allowed, the disk is a real one; elsewhere the other test's limit stands for it here, too.
#[test]
fn a_real_disk_that_is_full_is_no_different() {
    let agent = appending("0");
    let mut probe = agent.command(Path::new("unshare"));
    probe.args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]);
    let mut command = if finish(&mut probe, PATIENCE).status.success() {
        let mut command = agent.command(Path::new("unshare"));
        command.args(["--mount", "/bin/sh", "-c", SMALL_DISK]);
        command
    } else {
        let mut command = agent.command(Path::new("/bin/sh"));
        command.args(["-c", SHORT_FILES]);
        command
    };
    command.env("LC_ALL", "C");
    until_full(&agent, command);
}

/// Calls until the disk of `command` is full, then again with space.
fn until_full(agent: &Agent, mut command: Command) {
    command.arg(program()).args(["serve", "claw.yaml", "--stdio"]);
    let mut wire = Wire::start(&mut command).shaken();
    let padding = "x".repeat(20_000);
    let mut done = 0;
    let refused = loop {
        assert!(done < 3_000, "the disk never gets full");
        let answer = wire.call("append", &json!({ "padding": format!("{done} {padding}") }));
        if answer["error"].is_object() {
            break answer;
        }
        assert_eq!(text(&answer).trim(), "appended");
        done += 1;
    };
    assert!(done > 0, "it worked before: {refused}");
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let said = refused["error"]["message"].as_str().expect("a message");
    assert!(said.contains("journal"), "it says what failed: {said}");
    let again = wire.call("append", &json!({}));
    assert!(again["error"].is_object(), "it goes on refusing: {again}");
    assert!(
        wire.ask("claw.status", &json!({}))["result"].is_object(),
        "it still answers"
    );
    let effects_then = effects(agent);
    assert!(effects_then >= done);
    wire.close();

    // Space again: all that was said to be done is there, and nothing was done without a decision on record.
    if agent.path("kept").exists() {
        std::fs::remove_dir(agent.path("state")).expect("the disk was mounted there");
        std::fs::rename(agent.path("kept"), agent.path("state")).expect("the same file system");
    }
    let mut wire = Wire::open(agent);
    assert_eq!(text(&wire.call("append", &json!({}))).trim(), "appended");
    assert!(wire.close().success());
    let events = agent.events();
    let approved = of(&events, "action.approved").len() - 1;
    let executed = of(&events, "action.executed").len() - 1;
    assert_eq!(executed, done, "answered calls are recorded");
    assert!(
        effects_then <= approved,
        "{effects_then} effects, {approved} decisions"
    );
    assert_eq!(effects(agent), effects_then + 1, "nothing was done again");
}

#[test]
fn a_second_process_on_the_same_state_is_refused_and_the_first_lives_on() {
    let agent = appending("0");
    let mut wire = Wire::open(&agent);
    let second = agent.clawk(&["run", "claw.yaml", "-m", "append"]);
    assert_eq!(second.status.code(), Some(1), "{second:#?}");
    assert!(
        second.stderr.contains("clawk/real"),
        "it names the state: {second:#?}"
    );
    assert_eq!(effects(&agent), 0);
    assert_eq!(text(&wire.call("append", &json!({}))).trim(), "appended");
    assert!(wire.close().success());
    agent.clawk(&["run", "claw.yaml", "-m", "append"]).ok();
    assert_eq!(effects(&agent), 2);
    agent.events();
}

#[test]
fn a_turn_cut_by_kill_9_is_finished_later_and_its_effect_is_not_repeated() {
    const SLOW: &str = "31.4159";
    let agent = appending(SLOW);
    let mut run = agent.command(program());
    run.args(["run", "claw.yaml", "-m", "append"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut run = Group::spawn(&mut run);
    until(Duration::from_secs(60), "the tool has not begun", || {
        (effects(&agent) == 1).then_some(())
    });
    run.signal(Signal::KILL);
    run.wait(Duration::from_secs(10));
    until(Duration::from_secs(20), "the tool outlives its agent", || {
        running(&format!("sleep {SLOW}")).is_empty().then_some(())
    });

    agent.clawk(&["run", "claw.yaml", "-m", "hello"]).ok();
    assert_eq!(effects(&agent), 1, "the effect is not repeated");
    let events = agent.events();
    in_order(
        &events,
        &["ckp.message.accepted", "action.approved", "ckp.message.resumed"],
    );
    let of_turn = |kind: &str| -> Vec<Value> { of(&events, kind).into_iter().cloned().collect() };
    assert!(
        of_turn("action.executed").is_empty(),
        "nobody knows that it was done"
    );
    let failed = of_turn("action.failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].to_string().contains("unknown"), "{failed:?}");
    let accepted = of_turn("ckp.message.accepted").len();
    let ended = of_turn("ckp.message.answered").len() + of_turn("ckp.message.dead").len();
    assert_eq!((accepted, ended), (2, 2), "every message has its end");
}

#[test]
fn a_served_call_cut_by_kill_9_is_answered_as_unknown_when_it_is_asked_for_again() {
    const SLOW: &str = "32.4159";
    let agent = appending(SLOW);
    let mut wire = Wire::open(&agent);
    let (params, _) = crate::wire::call("append", &json!({}));
    wire.send("claw.tool.call", &params);
    until(Duration::from_secs(60), "the tool has not begun", || {
        (effects(&agent) == 1).then_some(())
    });
    wire.kill();
    until(Duration::from_secs(20), "the tool outlives its agent", || {
        running(&format!("sleep {SLOW}")).is_empty().then_some(())
    });
    let mut wire = Wire::open(&agent);
    let answer = wire.ask("claw.tool.call", &params);
    assert_eq!(answer["error"]["data"]["reason"], "outcome_unknown", "{answer}");
    assert_eq!(effects(&agent), 1, "the effect is not repeated");
    assert!(wire.close().success());
    agent.events();
}
