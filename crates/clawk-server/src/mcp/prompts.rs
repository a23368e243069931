//! Skills as prompts: `skill-NAME`.

use std::collections::BTreeMap;

use clawk_manifest::model::Skill;
use rmcp::ErrorData;
use rmcp::model::{GetPromptRequestParams, GetPromptResponse, GetPromptResult, ListPromptsResult};
use serde_json::{Value, json};

use super::serve::{McpRequestContext, from_json};
use crate::access::Scope;

const PREFIX: &str = "skill-";

fn require_message_scope(asking: &McpRequestContext) -> Result<(), ErrorData> {
    asking.require_scope(Scope::Message)
}

/// The skill of a prompt.
pub(super) fn find_skill<'a>(asking: &'a McpRequestContext, prompt: &str) -> Option<&'a Skill> {
    let name = prompt.strip_prefix(PREFIX)?;
    asking.kernel.manifest().skill(name)
}

/// All prompts. Empty for a client that may not talk to the agent.
pub(super) fn list_prompts(asking: &McpRequestContext) -> Result<ListPromptsResult, ErrorData> {
    if require_message_scope(asking).is_err() {
        return from_json(json!({"prompts": []}));
    }
    let prompts: Vec<Value> = asking
        .kernel
        .manifest()
        .skills
        .iter()
        .map(describe_prompt)
        .collect();
    from_json(json!({"prompts": prompts}))
}

fn describe_prompt(skill: &Skill) -> Value {
    json!({
        "name": format!("{PREFIX}{}", skill.name),
        "description": skill.description.trim(),
        "arguments": prompt_arguments(skill),
    })
}

/// The arguments of a prompt, which are text: the members of the skill's input.
fn prompt_arguments(skill: &Skill) -> Vec<Value> {
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
    require_message_scope(asking)?;
    let skill = find_skill(asking, &request.name).ok_or_else(|| {
        let shown: String = request.name.chars().take(100).collect();
        ErrorData::invalid_params(format!("there is no prompt `{shown}`"), None)
    })?;
    let given: BTreeMap<String, Value> = request.arguments.into_iter().flatten().collect();
    for argument in prompt_arguments(skill) {
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
    let result: GetPromptResult = from_json(json!({
        "description": skill.description.trim(),
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }))?;
    Ok(result.into())
}
