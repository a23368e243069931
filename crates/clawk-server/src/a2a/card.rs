//! The AgentCard: who the agent is and what it can do, from its Identity and its Skills. The prompt is in none of it.

use clawk_kernel::Kernel;
use serde_json::{Value, json};

use super::{PATH, VERSION, old};

/// The card. `host` is what the caller called this server; `guarded`: a token is wanted; `pushes`: push notifications are sent.
pub(super) fn card(kernel: &Kernel, host: &str, guarded: bool, pushes: bool) -> Value {
    let manifest = kernel.manifest();
    let agent = kernel.agent_info();
    let mut skills: Vec<Value> = manifest
        .skills
        .iter()
        .map(|skill| {
            let tags: Vec<&String> = skill.labels.values().collect();
            json!({"id": skill.name, "name": skill.name, "description": skill.description.trim(), "tags": tags})
        })
        .collect();
    // What the Identity announces, where no Skill has that name.
    let announced = manifest.identity.capabilities.iter();
    let announced = announced.filter(|name| !manifest.skills.iter().any(|skill| skill.name == **name));
    skills.extend(
        announced.map(|name| json!({"id": name, "name": name, "description": name, "tags": ["capability"]})),
    );
    let url = format!("http://{host}{PATH}");
    let spoken =
        |version: &str| json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version});
    let mut card = json!({
        "name": agent.name,
        "version": agent.version,
        "description": description(kernel, manifest.skills.len()),
        "supportedInterfaces": [spoken(VERSION), spoken(old::VERSION)],
        // For readers of 0.3, who find the same endpoint by these.
        "protocolVersion": old::VERSION,
        "url": url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": url, "transport": "JSONRPC"}],
        "capabilities": {"streaming": true, "pushNotifications": pushes, "extendedAgentCard": false},
        "defaultInputModes": ["text/plain", "image/png", "image/jpeg", "image/gif", "image/webp"],
        "defaultOutputModes": ["text/plain"],
        "skills": skills,
    });
    if let (true, Some(card)) = (guarded, card.as_object_mut()) {
        card.insert(
            "securitySchemes".into(),
            json!({"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}, "type": "http", "scheme": "Bearer"}}),
        );
        card.insert("security".into(), json!([{"bearer": []}]));
        card.insert(
            "securityRequirements".into(),
            json!([{"schemes": {"bearer": {"list": []}}}]),
        );
    }
    card
}

/// A summary: what the manifest's metadata says, else how many skills there are.
fn description(kernel: &Kernel, skills: usize) -> String {
    let said = kernel.manifest().metadata.description.clone();
    said.unwrap_or_else(|| format!("An agent with {skills} skills."))
}
