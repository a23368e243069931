//! `clawk run` in a terminal.

use crate::agent::{Agent, text};

#[test]
fn a_question_is_answered_with_yes_and_the_file_is_written() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("write");
    terminal.expect("file-write wants to run (rule `writing`)");
    terminal.expect("+ written");
    terminal.expect("hy ▸");
    terminal.line("w");
    terminal.expect("Files are precious");
    terminal.expect("hy ▸");
    terminal.line("y");
    terminal.expect("approved by a person (rule `writing`)");
    terminal.expect("Written.");
    terminal.expect("you ▸");
    assert_eq!(
        std::fs::read_to_string(agent.path("out.txt")).unwrap(),
        "written\n"
    );
    terminal.keys("\x04");
    terminal.expect("chain valid");
    assert!(terminal.end().0.success());
}

#[test]
fn no_keeps_the_file_from_being_written_and_the_reason_is_recorded() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("write");
    terminal.expect("hy ▸");
    terminal.line("perhaps");
    terminal.expect("y, n (and why not, if you like), s, a, v or w");
    terminal.expect("hy ▸");
    terminal.line("n not in this folder");
    terminal.expect("not in this folder");
    terminal.expect("I was not allowed to.");
    terminal.expect("you ▸");
    assert!(!agent.path("out.txt").exists());
    terminal.line("/quit");
    terminal.expect("chain valid");
    assert!(terminal.end().0.success());
}

#[test]
fn yes_for_this_session_spares_the_second_question() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml", "-m", "twice"]);
    terminal.expect("hy ▸");
    terminal.line("s dir");
    terminal.expect("Both are done.");
    terminal.expect("chain valid");
    assert!(terminal.end().0.success());
    assert!(agent.path("one.txt").exists() && agent.path("two.txt").exists());
}

#[test]
fn ctrl_c_cancels_the_turn_and_not_the_program() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("slow");
    terminal.expect("thinking");
    terminal.keys("\x03");
    terminal.expect("turn cancelled");
    terminal.expect("you ▸");
    terminal.line("hello");
    terminal.expect("You said hello.");
    terminal.expect("you ▸");
    terminal.keys("\x03");
    terminal.expect("once more");
    terminal.keys("\x03");
    terminal.expect("chain valid");
    assert!(terminal.end().0.success());
}

#[test]
fn ctrl_c_in_the_one_turn_that_was_asked_for_is_exit_code_130() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml", "-m", "slow"]);
    terminal.expect("thinking");
    terminal.keys("\x03");
    terminal.expect("turn cancelled");
    assert_eq!(terminal.end().0.code(), Some(130));
}

#[test]
fn the_prompt_has_the_commands_of_chats_several_lines_and_files() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("remember me");
    terminal.expect("You said remember me.");
    terminal.expect("you ▸");
    terminal.line("/status");
    terminal.expect("context  2 messages");
    terminal.line("/stopp");
    terminal.expect("did you mean `/stop`?");
    terminal.line("/why");
    terminal.expect("No call was made.");
    terminal.line("/undo");
    terminal.expect("nothing is to be put back");
    terminal.expect("you ▸");
    terminal.line("first of two\\");
    terminal.line("second of two");
    terminal.expect("second of two.");
    terminal.expect("you ▸");
    terminal.line("look at @in.txt");
    terminal.expect("with in.txt (14 bytes)");
    terminal.expect("a line of text");
    terminal.expect("you ▸");
    // Another process can't run the same agent, and says how to reach it.
    let beside = agent.clawk(["run", "claw.yaml", "-m", "hello"]).output().unwrap();
    let said = text(&beside.stderr);
    assert!(
        !beside.status.success() && said.contains("clawk send claw.yaml"),
        "{said}"
    );
    // What is forgotten stays forgotten after a restart.
    terminal.line("/new");
    terminal.expect("has forgotten this conversation");
    terminal.line("/quit");
    assert!(terminal.end().0.success());
    let mut terminal = agent.terminal(&["run", "claw.yaml", "--session", "last"]);
    terminal.expect("you ▸");
    terminal.line("/status");
    terminal.expect("context  0 messages");
    terminal.line("/quit");
    assert!(terminal.end().0.success());
}

#[test]
fn commands_and_history() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("/help");
    terminal.expect("/policy");
    terminal.line("/tools");
    terminal.expect("file-read");
    terminal.line("/policy");
    terminal.expect("whatever no rule matches");
    terminal.line("/nonsense");
    terminal.expect("/help lists them");
    terminal.line("/model nothing high");
    terminal.expect("no model `nothing`");
    terminal.line("/model high");
    terminal.expect("effort high");
    terminal.line("/model default");
    terminal.expect("scripted by main");
    terminal.expect("you ▸");
    terminal.line("remember me");
    terminal.expect("You said remember me.");
    terminal.expect("you ▸");
    terminal.line("/trace");
    terminal.expect("ckp.message.accepted");
    terminal.line("/session");
    terminal.expect("--session");
    terminal.expect("you ▸");
    terminal.keys("\x04");
    assert!(terminal.end().0.success());
    // The history outlives the process: arrow up, over the two commands, brings the sentence back.
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.keys("\x1b[A\x1b[A\x1b[A");
    terminal.expect("remember me");
    terminal.keys("\r");
    terminal.expect("You said remember me.");
    terminal.expect("you ▸");
    terminal.keys("\x04");
    assert!(terminal.end().0.success());
}

/// The README's first command, with the scripted model whatever else runs on this machine.
#[test]
fn the_first_example_reads_asks_writes_and_proves() {
    let agent = Agent::new();
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hello");
    for file in ["claw.yaml", "clawk.toml", "notes.txt", "script.yaml"] {
        let text = std::fs::read_to_string(example.join(file)).unwrap();
        std::fs::write(
            agent.path(file),
            text.replace("auto:script.yaml", "script:script.yaml"),
        )
        .unwrap();
    }
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("Please sum up notes.txt for me.");
    terminal.expect("→ file-read path: \"notes.txt\"");
    terminal.expect("allowed (rule `reading-is-fine`)");
    terminal.expect("file-write wants to run (rule `ask-before-writing`)");
    terminal.expect("+ # Meeting in short");
    terminal.expect("hy ▸");
    terminal.line("y");
    terminal.expect("approved by a person");
    terminal.expect("Done. The summary is in summary.md:");
    terminal.expect("you ▸");
    terminal.line("/quit");
    terminal.expect("chain valid");
    assert!(terminal.end().0.success());
    assert!(agent.path("summary.md").exists());
    agent
        .clawk(["trace", "verify", "--agent", "hello"])
        .assert()
        .success();
}

/// An answer that comes by another way settles the question in the terminal.
#[test]
fn a_question_may_be_answered_from_another_terminal() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("write");
    terminal.expect("hy ▸");
    let listed = agent
        .clawk(["approvals", "--format", "json"])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let id = listed["approvals"][0]["request_id"].as_str().unwrap();
    agent.clawk(["approve", id]).assert().success();
    terminal.expect("press Enter");
    terminal.line("");
    terminal.expect("Written.");
    terminal.expect("you ▸");
    assert!(agent.path("out.txt").exists());
    terminal.keys("\x04");
    assert!(terminal.end().0.success());
}

/// `clawk run` without a terminal.
fn running(agent: &Agent, message: &str) -> std::process::Child {
    std::process::Command::new(crate::agent::program())
        .args(["run", "claw.yaml", "-m", message])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

fn recorded(agent: &Agent, kind: &str) -> Vec<String> {
    let Ok(reader) = clawk_store::StateDirReader::open(agent.state()) else {
        return Vec::new();
    };
    let events = reader.events(clawk_store::Filter::default()).unwrap_or_default();
    let events = events
        .into_iter()
        .filter(|stored| stored.event.event_type == kind);
    events
        .map(|stored| stored.event.payload.get().to_owned())
        .collect()
}

#[test]
fn a_turn_that_sigterm_met_while_the_model_thinks_goes_on_as_after_a_kill() {
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::TERM, Signal::KILL] {
        let agent = Agent::new();
        let child = running(&agent, "slow");
        crate::stop::until("the model is asked", || {
            !recorded(&agent, "ckp.provider.requested").is_empty()
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        if signal == Signal::TERM {
            assert_eq!(output.status.code(), Some(143));
            let told = crate::agent::text(&output.stderr);
            assert!(told.contains("goes on when the agent is started again"), "{told}");
        }
        assert_eq!(recorded(&agent, "ckp.message.answered"), Vec::<String>::new());
        let script = std::fs::read_to_string(agent.path("script.yaml")).unwrap();
        std::fs::write(agent.path("script.yaml"), script.replace("30000", "1")).unwrap();
        let again = running(&agent, "hello").wait_with_output().unwrap();
        let told = crate::agent::text(&again.stderr);
        assert!(again.status.success(), "{told}");
        assert!(told.contains("a turn that was cut off goes on"), "{told}");
        // The answer of the turn that went on is told once, by this run or the next.
        let next = running(&agent, "hello").wait_with_output().unwrap();
        let told = told + &crate::agent::text(&next.stderr);
        assert_eq!(told.matches("A long answer begins").count(), 1, "{told}");
        let owed = agent
            .clawk(["outbox", "list", "--agent", "tested"])
            .output()
            .unwrap();
        assert_eq!(crate::agent::text(&owed.stdout), "nothing is owed\n");
        let answers = recorded(&agent, "ckp.message.answered");
        assert_eq!(answers.len(), 3, "{answers:?}");
        assert!(
            answers
                .iter()
                .all(|payload| payload.contains(r#""end":"answered""#)),
            "{answers:?}"
        );
    }
}

#[test]
fn init_on_a_terminal_offers_the_agent_of_the_tutorial() {
    let agent = Agent::new();
    let mut terminal = agent.terminal(&["init", "first"]);
    terminal.expect("What do you want to start with?");
    terminal.expect("tutorial: The agent of the tutorial");
    terminal.keys("\x1b[B\r");
    terminal.expect("wrote first/policies/tutorial.tests.yaml");
    terminal.expect("next:");
    assert!(terminal.end().0.success());
    let made = std::fs::read_to_string(agent.path("first/claw.yaml")).unwrap();
    let shown = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tutorial/claw.yaml"),
    );
    assert_eq!(made, shown.unwrap());
}
