//! Skills (CKP §5.5) in a turn: their offer to a model, their invocation, and their result. Their rights are
//! [`crate::skill_rights`].

use std::sync::Arc;

use clawk_manifest::model::Skill;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::call::CallerContext;
use crate::catalog::CatalogEntry;
use crate::output::ResultExcerpt;
use crate::ports::{ModelMessage, RunError, RunOutcome, ToolOffer};
use crate::services::KernelServices;
use crate::skill_rights::join_names;
pub(crate) use crate::skill_rights::{
    PREFIX, SkillCeiling, estimates_of, name_of, needed_tools, skill_description,
};
use crate::turn::Turn;
use crate::world_model::{self, SkillPlanResult};

/// Largest number of a result's faults that the model is told.
const MAX_FAULTS: usize = 8;
/// Longest fault, in characters.
const MAX_FAULT_CHARS: usize = 300;

/// A skill that is active from its invocation to the turn's end.
#[derive(Debug, Clone)]
pub(crate) struct RunningSkill {
    pub(crate) skill: Arc<Skill>,
    pub(crate) started_us: u64,
    /// The model was asked once more for its result.
    pub(crate) repaired: bool,
    /// The plan of its world model.
    pub(crate) planned: Option<SkillPlanResult>,
    /// Tokens and results of the turn when it began.
    since: Option<(u64, usize)>,
}

impl RunningSkill {
    /// Makes a skill that is active from now on.
    pub(crate) fn new(skill: Arc<Skill>, started_us: u64, planned: Option<SkillPlanResult>) -> Self {
        Self {
            skill,
            started_us,
            repaired: false,
            planned,
            since: None,
        }
    }

    /// Counts from the turn's start, because the whole turn belongs to the skill.
    pub(crate) fn since_the_start(mut self) -> Self {
        self.since = Some((0, 0));
        self
    }

    /// Returns the number of the turn's results when it began.
    pub(crate) fn results_before(&self) -> usize {
        self.since.unwrap_or_default().1
    }

    /// Records the turn's counts when the skill begins, once.
    pub(crate) fn mark_start(&mut self, turn: &Turn) {
        self.since
            .get_or_insert((turn.usage().total(), count_results(turn)));
    }

    /// Returns the tokens and calls since then.
    pub(crate) fn usage_since_start(&self, turn: &Turn) -> (u64, usize) {
        let (tokens, calls) = self.since.unwrap_or_default();
        (
            turn.usage().total().saturating_sub(tokens),
            count_results(turn).saturating_sub(calls),
        )
    }
}

fn count_results(turn: &Turn) -> usize {
    let is_result = |message: &&ModelMessage| matches!(message, ModelMessage::ToolResult { .. });
    turn.messages().iter().filter(is_result).count()
}

/// Parses a skill's result by its `output_schema`: the whole text as JSON, else the last fenced block; a text with neither counts
/// as a string.
///
/// # Errors
/// What does not match the schema, as text for the model.
pub(crate) fn parse_result(schema: &Value, text: &str) -> Result<Value, String> {
    let validator = crate::catalog::compile_validator(schema)?;
    let found = json_in(text).unwrap_or_else(|| Value::String(text.to_owned()));
    let faults: Vec<String> = validator
        .iter_errors(&found)
        .take(MAX_FAULTS)
        .map(|fault| {
            let (at, what) = (fault.instance_path().to_string(), fault.to_string());
            let what: String = what.chars().take(MAX_FAULT_CHARS).collect();
            if at.is_empty() {
                what
            } else {
                format!("{at}: {what}")
            }
        })
        .collect();
    match faults.is_empty() {
        true => Ok(found),
        false => Err(faults.join("; ")),
    }
}

/// Returns the JSON of a model's text, or of its last fenced block.
pub(crate) fn json_in(text: &str) -> Option<Value> {
    let parsed = |text: &str| serde_json::from_str::<Value>(text.trim()).ok(); // silent-ok: prose is an ordinary answer
    let fenced = text.rsplit("```").nth(1).map(|block| {
        let block = block.trim_start();
        block.strip_prefix("json").unwrap_or(block)
    });
    parsed(text).or_else(|| fenced.and_then(parsed))
}

/// Returns the request to the model to correct its result.
pub(crate) fn repair_prompt(skill: &Skill, fault: &str) -> String {
    let schema = skill.output_schema.clone().unwrap_or_default();
    format!(
        "[clawk] The result of the skill `{}` does not fit its output schema: {fault}\nAnswer once more with the result as JSON \
         alone, by this schema: {schema}",
        skill.name
    )
}

/// Runs a call of `skill-NAME`: returns its instructions, unless the agent or an active skill lacks one of its tools, and the plan
/// of its world model if it names one.
pub(crate) async fn join_skill(
    calls: &KernelServices,
    caller: &CallerContext,
    tool: &CatalogEntry,
    arguments: &Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<RunOutcome, RunError> {
    let Some(skill) = &tool.joins else {
        return Err(RunError::Unavailable("it is not a skill".to_owned()));
    };
    let has = |name: &str| {
        let declared = calls.catalog.iter().any(|entry| *entry.name == *name);
        let known = declared || calls.catalog.get(name).is_some();
        known && caller.member.as_ref().is_none_or(|member| member.may_use(name))
    };
    let lacking: Vec<String> = needed_tools(skill).filter(|name| !has(name)).collect();
    if !lacking.is_empty() {
        let why = format!(
            "the skill `{}` needs tools that this agent lacks: {}",
            skill.name,
            join_names(&lacking)
        );
        return Err(RunError::Unavailable(why));
    }
    for ceiling in &caller.ceilings {
        let above: Vec<String> = needed_tools(skill)
            .filter(|name| !ceiling.allows_tool(name))
            .collect();
        if !above.is_empty() {
            return Err(RunError::Unavailable(format!(
                "the skill `{}` runs until this turn ends and has no {}, which `{}` needs; invoke it in the next turn",
                ceiling.skill_name(),
                join_names(&above),
                skill.name
            )));
        }
    }
    let mut content = vec![ContentBlock::text(skill_instruction(skill, arguments))];
    let purse = calls
        .purses
        .skill_account(&caller.purse, &skill.name, calls.scribe.now());
    let site = world_model::ActingSkill {
        calls,
        caller,
        skill,
        purse: &purse,
        cancel,
    };
    let planned = world_model::plan_skill(site, arguments).await?;
    let structured = planned.map(|(planned, text)| {
        content.push(ContentBlock::text(text));
        json!({ "plan": planned })
    });
    Ok(RunOutcome {
        content,
        is_error: false,
        structured,
        obtained: ObtainedEnforcement::in_process("skill"),
    })
}

/// Returns how much of the call's end a model reads: instructions are never shortened.
pub(crate) fn result_excerpt(calls: &KernelServices, tool: &str) -> ResultExcerpt {
    let is_skill = tool.starts_with(PREFIX) && calls.catalog.get(tool).is_none();
    match is_skill && calls.catalog.of_skill(tool).is_some() {
        true => ResultExcerpt::Ends(usize::MAX),
        false => calls.shown,
    }
}

/// Returns the function that a model calls to invoke a skill.
pub(crate) fn skill_offer(skill: &Skill) -> ToolOffer {
    ToolOffer {
        name: name_of(skill),
        description: skill_description(skill),
        input_schema: skill
            .input_schema
            .clone()
            .unwrap_or_else(|| json!({"type": "object"})),
    }
}

/// Returns the text after an invocation: the skill's instructions, which become part of the turn.
pub(crate) fn skill_instruction(skill: &Skill, arguments: &Map<String, Value>) -> String {
    let result = match &skill.output_schema {
        None => String::new(),
        Some(schema) => format!("\nEnd with its result as JSON, by this schema: {schema}"),
    };
    let tools: Vec<String> = needed_tools(skill).collect();
    format!(
        "Instructions of the skill `{}`:\n{}\n\nInput: {}\nTools it uses, and no others until this turn ends: {}{result}",
        skill.name,
        skill.instruction.trim(),
        Value::Object(arguments.clone()),
        tools.join(", ")
    )
}
