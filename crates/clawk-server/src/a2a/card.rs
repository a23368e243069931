//! The AgentCard: the agent's name and abilities, from its Identity and its Skills. It contains nothing of the system prompt.

use clawk_kernel::Kernel;
use serde_json::{Value, json};

use super::{PATH, VERSION, old};

/// Builds the card. `host` is the server name that the caller used; `guarded`: a token is required; `pushes`: push notifications
/// are supported.
pub(super) fn agent_card(kernel: &Kernel, host: &str, guarded: bool, pushes: bool) -> Value {
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
    // Capabilities of the Identity that have no Skill of the same name.
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
        "description": agent_description(kernel, manifest.skills.len()),
        "supportedInterfaces": [spoken(VERSION), spoken(old::VERSION)],
        // Clients of A2A 0.3 find the same endpoint by these members.
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

/// The description from the manifest's metadata, or else a sentence with the number of skills.
fn agent_description(kernel: &Kernel, skills: usize) -> String {
    let said = kernel.manifest().metadata.description.clone();
    said.unwrap_or_else(|| format!("An agent with {skills} skills."))
}
