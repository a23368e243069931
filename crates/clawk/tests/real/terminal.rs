//! `clawk run` on a real terminal with a real model.

use serde_json::json;

use crate::agent::{Agent, ask, in_order, manifest, of};
use crate::approval::current_time;
use crate::model::Model;
use crate::turn::last_session;

const PROMPT: &str = "you ▸";

/// Different words for the same wish.
const WORDINGS: [&str; 5] = [
    "What time is it in Europe/Paris?",
    "Call current-time with timezone Europe/Paris",
    "Tell me the current time in Asia/Tokyo.",
    "What is the time in UTC now?",
    "Use current-time to find the time in America/New_York.",
];

#[test]
fn a_model_asks_the_time_and_a_person_at_the_terminal_lets_it() {
    let (model, agent) = (Model::start(), Agent::new());
    let providers = model.provider("openai-compatible", true);
    let tools = json!([current_time()]);
    agent.is(&manifest(&providers, &tools, &json!([ask("current-time")])), "");
    let mut terminal = agent.terminal(&["run", "claw.yaml", "--trust"]);
    terminal.expect(PROMPT);
    let mut asked = false;
    for wording in WORDINGS {
        terminal.line(wording);
        // The line stands there twice: as typed, and the next prompt comes behind the answer.
        while terminal.either(&["wants to run (rule `ask-current-time`)", PROMPT]) == 0 {
            terminal.expect("hy ▸");
            terminal.line("y");
            terminal.expect("approved by a person (rule `ask-current-time`)");
            asked = true;
        }
        if asked {
            break;
        }
    }
    assert!(
        asked,
        "none of {} wordings made the model ask the time",
        WORDINGS.len()
    );
    terminal.keys("\x04");
    let (status, shown) = terminal.end();
    assert!(status.success() && shown.contains("chain valid"), "{shown}");

    let events = last_session(&agent);
    in_order(
        &events,
        &[
            "ckp.provider.completed",
            "action.requested",
            "ckp.approval.requested",
            "ckp.approval.answered",
            "action.approved",
            "action.executed",
            "ckp.message.answered",
            "session.ended",
        ],
    );
    let answered = &of(&events, "ckp.approval.answered")[0];
    assert_eq!(answered["answer"], "approve");
    assert_eq!(answered["by"], "terminal:tester", "who answered is recorded");
    let approved = &of(&events, "action.approved")[0];
    assert_eq!(approved["by"], "terminal:tester");
    assert_eq!(approved["rule_id"], "ask-current-time");
    assert!(agent.content(&approved["parameters_hash"])["timezone"].is_string());
}

#[test]
fn ctrl_c_while_the_model_speaks_ends_the_turn_and_ctrl_d_the_program() {
    let (model, agent) = (Model::start(), Agent::new());
    let providers = model.provider("openai-compatible", true);
    // Long enough that the model still speaks when the keys arrive, on any processor.
    let bounds = "[providers.small]\nmax_output_tokens = 4000\n";
    agent.is(
        &manifest(&providers, &json!([]), &json!([ask("nothing")])),
        bounds,
    );
    let mut terminal = agent.terminal(&["run", "claw.yaml", "--trust"]);
    terminal.expect(PROMPT);
    terminal.line("Write a long story about a river and a town, in many paragraphs.");
    terminal.expect("thinking");
    // A word of the story: the model is speaking.
    terminal.expect(" the ");
    terminal.keys("\x03");
    terminal.expect("turn cancelled");
    terminal.expect(PROMPT);
    terminal.keys("\x04");
    let (status, shown) = terminal.end();
    assert!(status.success() && shown.contains("chain valid"), "{shown}");
    let events = last_session(&agent);
    assert_eq!(of(&events, "ckp.message.answered")[0]["end"], "cancelled");
}
