//! Completes arguments. A prompt's values come from the skill's input schema, a resource template's from what this client may see.

use clawk_manifest::model::Skill;
use rmcp::ErrorData;
use rmcp::model::{CompleteRequestParams, CompleteResult, CompletionInfo, Reference};
use serde_json::Value;

use super::serve::{McpRequestContext, McpServerSession};
use super::{prompts, resources};
use crate::access::Scope;

/// The values that begin with the typed text. Empty for things that this client may not see.
pub(super) async fn complete_argument(
    served: &McpServerSession,
    asking: &McpRequestContext,
    request: CompleteRequestParams,
) -> Result<CompleteResult, ErrorData> {
    let (argument, typed) = (&*request.argument.name, &*request.argument.value);
    let mut values = match &request.r#ref {
        Reference::Prompt(prompt) => {
            asking.require_scope(Scope::Message)?;
            prompts::find_skill(asking, &prompt.name)
                .map_or_else(Vec::new, |skill| allowed_values(skill, argument))
        }
        Reference::Resource(template) => {
            resources::template_values(served, asking, &template.uri, argument).await
        }
        _ => {
            return Err(ErrorData::invalid_params(
                "only prompts and resources have arguments",
                None,
            ));
        }
    };
    values.retain(|value| value.starts_with(typed));
    let total = u32::try_from(values.len()).ok(); // silent-ok: nobody has four billion of them
    let more = values.len() > CompletionInfo::MAX_VALUES;
    values.truncate(CompletionInfo::MAX_VALUES);
    let mut info = CompletionInfo::default();
    (info.values, info.total, info.has_more) = (values, total, Some(more));
    Ok(CompleteResult::new(info))
}

/// The values that a skill's input schema allows for one member.
fn allowed_values(skill: &Skill, argument: &str) -> Vec<String> {
    let schema = skill.input_schema.as_ref();
    let member = schema
        .and_then(|schema| schema.get("properties"))
        .and_then(|properties| properties.get(argument));
    let listed = member
        .and_then(|member| member.get("enum"))
        .and_then(Value::as_array);
    let texts = listed.into_iter().flatten().map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    texts.collect()
}
