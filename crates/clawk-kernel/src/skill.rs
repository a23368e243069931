//! Skills (CKP §5.5): their description for a model, their requirements, and the limits for tools and permissions while they are
//! active.

use std::path::Path;
use std::sync::Arc;

use clawk_events::shape::SkillEstimates;
use clawk_manifest::model::{Skill, SkillFilesystem};
use clawk_plan::ObtainedEnforcement;
use clawk_policy::path::{CallPaths, RealLocations, RuleRoots};
use clawk_policy::{Approval, Effect, Verdict};
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::call::{CallGovernor, CallerContext};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::output::ResultExcerpt;
use crate::ports::{ModelMessage, RunError, RunOutcome, ToolOffer};
use crate::turn::Turn;
use crate::world_model::{self, SkillFallbackMode, SkillPlanResult};

/// Prefix of the tools by which models invoke skills: `skill-NAME`.
pub(crate) const PREFIX: &str = "skill-";
/// Largest number of a result's faults that the model is told.
const MAX_FAULTS: usize = 8;
/// Longest fault, in characters.
const MAX_FAULT_CHARS: usize = 300;

/// Label with further tools that a skill needs besides its `tools_required`, separated by blanks. They need not be declared: `clawk
/// skill import` lists missing tools here, and the skill is refused until the agent has them.
pub const REQUIRES: &str = "requires-tools";

/// The rights of an active skill: its tools and its permissions. It gets only what its `permissions` block requests.
#[derive(Debug, Clone)]
pub(crate) struct SkillCeiling {
    skill: Arc<str>,
    tools: Arc<[String]>,
    permissions: Option<CeilingPermissions>,
    /// The policy of the skill's world model, which applies to the skill.
    policy: Option<Arc<str>>,
    /// The fallback that applies because the skill has no plan.
    fallback: Option<SkillFallbackMode>,
}

#[derive(Debug, Clone, Copy)]
struct CeilingPermissions {
    network: bool,
    filesystem: SkillFilesystem,
    /// Calls with effects need an approval.
    asks: bool,
}

impl SkillCeiling {
    /// Makes the limits of a skill, with the policy of its world model.
    pub(crate) fn from_skill(skill: &Skill, policy: Option<Arc<str>>) -> Self {
        let permissions = skill.permissions.as_ref().map(|permissions| CeilingPermissions {
            network: permissions.network.unwrap_or(false),
            filesystem: permissions.filesystem.unwrap_or(SkillFilesystem::None),
            asks: permissions.approval_required,
        });
        Self {
            skill: skill.name.as_str().into(),
            tools: needed_tools(skill).collect(),
            permissions,
            policy,
            fallback: None,
        }
    }

    /// Returns the limits after the plan step.
    pub(crate) fn with_plan(mut self, planned: Option<&SkillPlanResult>) -> Self {
        self.fallback = planned.and_then(|planned| planned.fallback);
        self
    }

    /// Returns the policy that calls of the skill must pass in addition.
    pub(crate) fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the limits for a composite tool whose own call a person has approved.
    pub(crate) fn with_approval(mut self) -> Self {
        if let Some(permissions) = &mut self.permissions {
            permissions.asks = false;
        }
        self
    }

    /// Returns whether the tool with this name may run.
    pub(crate) fn allows_tool(&self, tool: &str) -> bool {
        self.tools.iter().any(|own| own == tool)
    }

    /// Returns the verdict on a call: a refusal beyond the limits, or an approval request if the skill's `approval_required`
    /// demands it.
    pub(crate) fn judge_call(
        &self,
        (tool, described): (&CatalogEntry, &DescribedTool),
        arguments: &Map<String, Value>,
        workdir: &Path,
        places: Option<&RealLocations>,
    ) -> Verdict {
        // These only read existing data. An invocation is judged by the tools that its skill needs.
        if tool.reads_output || tool.joins.is_some() {
            return Verdict::allow();
        }
        if !self.allows_tool(&tool.name) && !tool.from.as_deref().is_some_and(|from| self.allows_tool(from)) {
            let why = "is not one of its tools";
            return Verdict::deny(format!(
                "`{}` {why}: the running skill `{}` has {}",
                tool.name,
                self.skill,
                join_names(&self.tools)
            ));
        }
        let unplanned = self.unplanned_verdict(tool, described);
        if unplanned.effect == Effect::Deny {
            return unplanned;
        }
        let Some(permissions) = self.permissions else {
            return unplanned;
        };
        let reason = if described.may_reach_network() && !permissions.network {
            if described.reaches_network() {
                "has no `network` permission".to_owned()
            } else {
                format!(
                    "has no `network` permission, and nothing says that `{}` stays off the network: give it a `category` label or `openWorldHint: false`",
                    tool.name
                )
            }
        } else if described.may_touch_files()
            && !permissions.files_allowed(described, arguments, workdir, places)
        {
            match permissions.filesystem {
                SkillFilesystem::None => "has no `filesystem` permission",
                SkillFilesystem::ReadOnly => "may only read files",
                SkillFilesystem::WriteWorkspace | SkillFilesystem::Full => {
                    "may only touch files in the workspace"
                }
            }
            .to_owned()
        } else if permissions.asks && !described.read_only() {
            return approval_verdict(&self.skill);
        } else {
            return unplanned;
        };
        Verdict::deny(format!("the running skill `{}` {reason}", self.skill))
    }

    /// Returns the verdict on a call of a skill without a plan.
    fn unplanned_verdict(&self, tool: &CatalogEntry, described: &DescribedTool) -> Verdict {
        let Some(fallback) = self.fallback.filter(|_| !described.read_only()) else {
            return Verdict::allow();
        };
        let why = format!(
            "the running skill `{}` has no plan of its world model, and `{}` is not said to be without effects",
            self.skill, tool.name
        );
        match fallback {
            SkillFallbackMode::Conservative => Verdict::deny(why),
            SkillFallbackMode::Escalate => Verdict {
                effect: Effect::Ask(Approval::default()),
                reason: Some(why.into()),
                ..Verdict::allow()
            },
        }
    }

    /// Returns whether the verdict depends on the call's resolved paths.
    pub(crate) fn judges_places(&self) -> bool {
        let held =
            |permissions: CeilingPermissions| permissions.filesystem == SkillFilesystem::WriteWorkspace;
        self.permissions.is_some_and(held)
    }
}

impl CeilingPermissions {
    fn files_allowed(
        &self,
        described: &DescribedTool,
        arguments: &Map<String, Value>,
        workdir: &Path,
        places: Option<&RealLocations>,
    ) -> bool {
        match self.filesystem {
            SkillFilesystem::None => false,
            SkillFilesystem::ReadOnly => described.read_only(),
            // A shell command can name any path, and an unlabelled tool may use any file. Only the full permission covers them.
            SkillFilesystem::WriteWorkspace => {
                described.names_its_files()
                    && CallPaths::from_arguments(arguments, Some(&described.input_schema), workdir, places)
                        .all_within(&RuleRoots::new(vec![workdir.to_owned()], places))
            }
            SkillFilesystem::Full => true,
        }
    }
}

/// Returns names as text for people.
fn join_names(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Returns every tool that a skill needs: its `tools_required`, then those of its label.
pub(crate) fn needed_tools(skill: &Skill) -> impl Iterator<Item = String> {
    let label = skill.labels.get(REQUIRES).map(String::as_str).unwrap_or_default();
    let named: Vec<String> = label.split_whitespace().map(str::to_owned).collect();
    skill.tools_required.iter().cloned().chain(named)
}

/// Returns the tool name by which a model invokes the skill.
pub(crate) fn name_of(skill: &Skill) -> String {
    format!("{PREFIX}{}", skill.name)
}

/// Returns the skill's estimates as text; `None`: it has none.
pub(crate) fn estimate_text(skill: &Skill) -> Option<String> {
    let SkillEstimates {
        calls,
        duration_ms,
        tokens,
    } = estimates_of(skill)?;
    let tokens = tokens.map(|tokens| format!("{tokens} tokens"));
    let time = duration_ms.map(|ms| format!("{} s", ms.div_ceil(1000)));
    let calls = calls.map(|calls| format!("{calls} tool calls"));
    let parts: Vec<String> = [tokens, time, calls].into_iter().flatten().collect();
    Some(format!("about {}", parts.join(", ")))
}

/// The skill's estimates; none: it has none.
pub(crate) fn estimates_of(skill: &Skill) -> Option<SkillEstimates> {
    let said = &skill.estimates;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "clamped to what fits; the shape allows no negative number"
    )]
    let duration_ms = said
        .avg_duration_seconds
        .map(|seconds| (seconds * 1000.0).clamp(0.0, 9e12) as u64);
    let found = SkillEstimates {
        calls: said.avg_tool_calls,
        duration_ms,
        tokens: said.avg_tokens,
    };
    let any = found.calls.or(found.duration_ms).or(found.tokens);
    any.map(|_| found)
}

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
    calls: &CallGovernor,
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
                ceiling.skill,
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
pub(crate) fn result_excerpt(calls: &CallGovernor, tool: &str) -> ResultExcerpt {
    let is_skill = tool.starts_with(PREFIX) && calls.catalog.get(tool).is_none();
    match is_skill && calls.catalog.of_skill(tool).is_some() {
        true => ResultExcerpt::Ends(usize::MAX),
        false => calls.shown,
    }
}

/// Returns the verdict for a skill's `approval_required`.
pub(crate) fn approval_verdict(skill: &str) -> Verdict {
    Verdict {
        effect: Effect::Ask(Approval::default()),
        reason: Some(format!("the skill `{skill}` is declared to need approval").into()),
        ..Verdict::allow()
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

/// Returns a skill's description for a model before its invocation, without the instructions.
pub(crate) fn skill_description(skill: &Skill) -> String {
    let estimated = estimate_text(skill)
        .map(|said| format!(" It takes {said}."))
        .unwrap_or_default();
    format!(
        "Skill: {} Call this to get its instructions, then follow them.{estimated}",
        skill.description.trim()
    )
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
