//! Skills as prompts: `skill-NAME`.

use std::collections::BTreeMap;

use clawk_manifest::model::Skill;
use rmcp::ErrorData;
use rmcp::model::{GetPromptRequestParams, GetPromptResponse, GetPromptResult, ListPromptsResult};
use serde_json::{Value, json};

use super::serve::{McpRequestContext, shaped};
use crate::access::Scope;

const PREFIX: &str = "skill-";

fn may(asking: &McpRequestContext) -> Result<(), ErrorData> {
    asking.needs(Scope::Message)
}

/// The skill of a prompt.
pub(super) fn skill<'a>(asking: &'a McpRequestContext, prompt: &str) -> Option<&'a Skill> {
    let name = prompt.strip_prefix(PREFIX)?;
    asking.kernel.manifest().skill(name)
}

/// All prompts. Empty for a client that may not talk to the agent.
pub(super) fn list(asking: &McpRequestContext) -> Result<ListPromptsResult, ErrorData> {
    if may(asking).is_err() {
        return shaped(json!({"prompts": []}));
    }
    let prompts: Vec<Value> = asking.kernel.manifest().skills.iter().map(described).collect();
    shaped(json!({"prompts": prompts}))
}

fn described(skill: &Skill) -> Value {
    json!({
        "name": format!("{PREFIX}{}", skill.name),
        "description": skill.description.trim(),
        "arguments": arguments(skill),
    })
}

/// The arguments of a prompt, which are text: the members of the skill's input.
fn arguments(skill: &Skill) -> Vec<Value> {
    let schema = skill.input_schema.as_ref();
    let required = schema
        .and_then(|schema| schema.get("required"))
        .and_then(Value::as_array);
    let members = schema
        .and_then(|schema| schema.get("properties"))
        .and_then(Value::as_object);
    members
        .into_iter()
        .flatten()
        .map(|(name, member)| {
            let needed = required.is_some_and(|all| all.iter().any(|one| one == name));
            json!({"name": name, "description": member.get("description"), "required": needed})
        })
        .collect()
}

/// The skill's instruction with its input, as a message for the client's model.
pub(super) fn get(
    asking: &McpRequestContext,
    request: GetPromptRequestParams,
) -> Result<GetPromptResponse, ErrorData> {
    may(asking)?;
    let skill = skill(asking, &request.name).ok_or_else(|| {
        let shown: String = request.name.chars().take(100).collect();
        ErrorData::invalid_params(format!("there is no prompt `{shown}`"), None)
    })?;
    let given: BTreeMap<String, Value> = request.arguments.into_iter().flatten().collect();
    for argument in arguments(skill) {
        let name = argument.get("name").and_then(Value::as_str).unwrap_or_default();
        if argument.get("required") == Some(&Value::Bool(true)) && !given.contains_key(name) {
            return Err(ErrorData::invalid_params(
                format!("the argument `{name}` is missing"),
                None,
            ));
        }
    }
    let text = format!(
        "Instructions of the skill `{}`:\n{}\n\nInput: {}\nTools it uses: {}",
        skill.name,
        skill.instruction.trim(),
        json!(given),
        skill.tools_required.join(", ")
    );
    let result: GetPromptResult = shaped(json!({
        "description": skill.description.trim(),
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }))?;
    Ok(result.into())
}
