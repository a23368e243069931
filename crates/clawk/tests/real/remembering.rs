//! A store that an MCP server keeps, by a server that was written with the official package.

use serde_json::{Value, json};

use crate::agent::{Agent, manifest, scripted};
use crate::parts::{ours, part, stdio};
use crate::wire::Wire;

/// An agent whose store is kept by this server, in this mode.
fn agent(mode: &str) -> Agent {
    let agent = Agent::new();
    agent.write("script.yaml", "scenes: [{ steps: [{ say: nothing }] }]\n");
    let rules = json!([{"id": "all", "action": "allow", "scope": "all"}]);
    let echo = json!([{"inline": {"name": "echo", "description": "Says it again", "input_schema": {"type": "object"}}}]);
    let mut manifest = manifest(&scripted(), &echo, &rules);
    manifest["spec"]["memory"] = json!({"inline": {"name": "head", "stores": [
        {"name": "notes", "type": "semantic", "backend": "custom", "scope": "global"}]}});
    agent.is(&manifest, "");
    let script = ours("memory_server.py").display().to_string();
    let file = agent.path("shelf.json").display().to_string();
    let server = stdio(&part("clients/bin/python"), &[&script, &file, mode]);
    let local = std::fs::read_to_string(agent.path("clawk.toml")).unwrap_or_default();
    let folder = ours("").display().to_string();
    let memory = format!("{local}\n[memory.notes]\nserver = '{server}'\nread_paths = ['{folder}']\n");
    agent.write("clawk.toml", &memory);
    agent
}

fn store(wire: &mut Wire, id: u32, text: &str) -> Value {
    let context = json!({"request_id": format!("dd0e8400-e29b-41d4-a716-{id:012}"), "identity": "real"});
    let params = json!({"store": "notes", "entries": [{"content": text}], "context": context});
    wire.ask("claw.memory.store", &params)
}

fn query(wire: &mut Wire, text: &str) -> Value {
    let query = json!({"type": "semantic", "text": text});
    wire.ask(
        "claw.memory.query",
        &json!({"store": "notes", "query": query, "context": {"identity": "real"}}),
    )
}

#[test]
fn an_mcp_server_keeps_a_store_for_two_starts_of_an_agent() {
    let agent = agent("");
    let mut wire = Wire::open(&agent);
    let stored = store(&mut wire, 1, "The lamp in the hall is green");
    assert_eq!(stored["result"]["stored"], 1, "{stored}");
    assert!(wire.close().success());
    let shelf = std::fs::read_to_string(agent.path("shelf.json")).expect("the server wrote it");
    assert!(
        shelf.contains("The lamp in the hall is green") && !shelf.contains("origin"),
        "{shelf}"
    );

    let mut wire = Wire::open(&agent);
    let found = query(&mut wire, "lamp");
    assert_eq!(
        found["result"]["entries"][0]["content"], "The lamp in the hall is green",
        "{found}"
    );
    // The same request again is the same entry.
    assert_eq!(
        store(&mut wire, 1, "The lamp in the hall is green")["result"]["ids"],
        stored["result"]["ids"]
    );
    assert_eq!(
        query(&mut wire, "lamp")["result"]["entries"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert!(wire.close().success());

    let said = agent
        .clawk(&["run", "claw.yaml", "-m", "what about the lamp in the hall"])
        .ok();
    assert!(said.stdout.contains("nothing"), "{}", said.stdout);
    let recalled = agent
        .events()
        .into_iter()
        .any(|event| event.to_string().contains("ckp.memory.recalled"));
    assert!(recalled, "a turn recalls what the server keeps");
}

#[test]
fn a_memory_server_that_acknowledges_nothing_is_an_error_that_names_the_store() {
    let agent = agent("vague");
    let mut wire = Wire::open(&agent);
    let refused = store(&mut wire, 1, "The lamp in the hall is green");
    assert_eq!(refused["error"]["code"], -32030, "{refused}");
    assert!(refused.to_string().contains("notes"), "{refused}");
    assert!(wire.close().success());
}
