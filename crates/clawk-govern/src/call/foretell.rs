//! Predicts what will become of a planned call. It asks nobody, reserves nothing and records nothing, and nothing can run because
//! of it. The real call still takes the whole path.

use clawk_policy::Effect;
use clawk_proto::RequestId;
use serde_json::{Map, Value};

use super::decide::PolicyInput;
use super::standing::GrantBasis;
use super::{CallGovernor, CallerContext, Request, check_arguments, decide, tool_of};
use crate::error::{CallError, DeniedBy};
use crate::event::{canonical, digest};
use crate::skill_rights::SkillCeiling;

/// Returns whether a person will be asked. For a step without arguments, the prediction uses only rules that do not depend on
/// arguments.
///
/// # Errors
/// The reason why the call will be refused.
pub async fn predict_approval(
    calls: &CallGovernor,
    caller: &CallerContext,
    ceiling: &SkillCeiling,
    (tool, arguments): (&str, Option<&Map<String, Value>>),
) -> Result<bool, CallError> {
    let mut caller = caller.clone();
    caller.ceilings.push(ceiling.clone());
    let request = Request {
        tool: tool.to_owned(),
        arguments: arguments.cloned().unwrap_or_default(),
        request_id: RequestId::from(calls.clock().new_uuid()),
        identity: calls.manifest.identity.name.clone(),
        sandbox: None,
        policy: None,
        under: None,
        converted: Vec::new(),
    };
    let tool = tool_of(calls, &caller, &request, None).await?;
    let described = calls.describe_tool(&tool).await?;
    if arguments.is_some() {
        check_arguments(&described, &request)?;
    } else if let Some(verdict) = calls.engine.denies_by_name(&request.tool) {
        return Err(decide::denied_error(&request.tool, &verdict, DeniedBy::Policy));
    }
    let case = PolicyInput {
        calls,
        caller: &caller,
        request: &request,
        tool: &tool,
        described: &described,
        basis: GrantBasis::default(),
    };
    if arguments.is_none() && case.arguments_matter() {
        return Ok(false);
    }
    let places = match arguments {
        Some(_) => case.resolve_judged_paths().await,
        None => None,
    };
    let judged = case.decide_call(digest(&canonical(&request.arguments)), places.as_ref(), None);
    let verdict = judged.require_permitted(&request.tool)?;
    Ok(matches!(verdict.effect, Effect::Ask(_)))
}
