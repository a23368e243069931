//! A turn in which a real model calls a tool of a real MCP server, under a policy that allows it.

use serde_json::{Value, json};

use crate::agent::{Agent, allow, in_order, manifest, of};
use crate::model::Model;
use crate::parts::{part, stdio};

/// The tool `read-file`, which is the npm filesystem server's `read_text_file` in the agent's folder.
pub(crate) fn read_file(agent: &Agent) -> Value {
    let folder = agent.path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    let server = part("npm/node_modules/.bin/mcp-server-filesystem");
    json!({ "inline": { "name": "read-file", "description": "Read a text file",
        "mcp_source": { "uri": stdio(&server, &[folder]), "tool_name": "read_text_file" },
        "input_schema": { "type": "object", "required": ["path"],
            "properties": { "path": { "type": "string", "description": "For example notes.txt" } } } } })
}

/// Different words for the same wish.
const WORDINGS: [&str; 5] = [
    "Read the file notes.txt",
    "Call read-file with the path notes.txt",
    "What does notes.txt say?",
    "Please show me the text of notes.txt.",
    "Use read-file to open notes.txt.",
];

#[test]
fn a_model_reads_a_file_through_an_mcp_server_that_a_rule_allows() {
    let (model, agent) = (Model::start(), Agent::new());
    agent.write("notes.txt", "The meeting is on Tuesday at nine.\n");
    let tools = json!([read_file(&agent)]);
    agent.is(
        &manifest(
            &model.provider("openai-compatible", true),
            &tools,
            &json!([allow("read-file")]),
        ),
        "",
    );
    let mut said = Vec::new();
    for wording in WORDINGS {
        let done = agent.clawk(&["run", "claw.yaml", "-m", wording]).ok();
        assert!(done.stderr.contains("chain valid"), "{done:#?}");
        // Whatever the model did, its turn is whole.
        let events = last_session(&agent);
        in_order(
            &events,
            &[
                "session.started",
                "ckp.message.accepted",
                "ckp.provider.completed",
                "ckp.message.answered",
                "session.ended",
            ],
        );
        if of(&events, "action.executed")
            .iter()
            .any(|executed| executed["is_error"] == false)
        {
            return judge(&agent, &events, &done.stderr);
        }
        said.push(done);
    }
    panic!(
        "none of {} wordings made the model read the file: {said:#?}",
        WORDINGS.len()
    );
}

/// The events of the latest conversation; those of the agent's own life are left out.
pub(crate) fn last_session(agent: &Agent) -> Vec<Value> {
    let events = agent.events();
    let conversation = events
        .iter()
        .rev()
        .find(|event| event["event_type"] == "ckp.message.accepted");
    let session = conversation.expect("a conversation took place")["session_id"].clone();
    events
        .into_iter()
        .filter(|event| event["session_id"] == session)
        .collect()
}

fn judge(agent: &Agent, events: &[Value], shown: &str) {
    in_order(
        events,
        &[
            "ckp.provider.completed",
            "action.requested",
            "action.approved",
            "action.executed",
            "ckp.provider.completed",
            "ckp.message.answered",
        ],
    );
    for completed in of(events, "ckp.provider.completed") {
        assert_eq!(completed["estimated"], false, "the server counts tokens");
        assert!(completed["input_tokens"].as_u64() > Some(0), "{completed}");
        assert!(completed["output_tokens"].as_u64() > Some(0), "{completed}");
    }
    for approved in of(events, "action.approved") {
        assert_eq!(approved["action_id"], "read-file");
        assert_eq!(
            (&approved["by"], &approved["effect"]),
            (&json!("policy"), &json!("allow"))
        );
        assert_eq!(approved["rule_id"], "allow-read-file");
        let arguments = agent.content(&approved["parameters_hash"]);
        assert!(arguments["path"].is_string(), "they fit the schema: {arguments}");
    }
    for executed in of(events, "action.executed") {
        assert_eq!(
            executed["level"], "process",
            "the level really obtained is recorded"
        );
    }
    assert!(
        of(events, "ckp.approval.requested").is_empty(),
        "nobody was asked"
    );
    assert!(shown.contains("allowed (rule `allow-read-file`)"), "{shown}");
}
