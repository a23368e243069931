//! The rights of skills (CKP §5.5): what they need, and the limits for tools and permissions while they are active.

use std::path::Path;
use std::sync::Arc;

use clawk_events::shape::SkillEstimates;
use clawk_manifest::model::{Skill, SkillFilesystem};
use clawk_policy::path::{CallPaths, RealLocations, RuleRoots};
use clawk_policy::{Approval, Effect, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::catalog::{CatalogEntry, DescribedTool};

/// Prefix of the tools by which models invoke skills: `skill-NAME`.
pub const PREFIX: &str = "skill-";

/// Label with further tools that a skill needs besides its `tools_required`, separated by blanks. They need not be declared: `clawk
/// skill import` lists missing tools here, and the skill is refused until the agent has them.
pub const REQUIRES: &str = "requires-tools";

/// The rights of a skill without a plan, until the turn ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkillFallbackMode {
    /// Only calls without effects run.
    Conservative,
    /// Calls with effects need an approval.
    Escalate,
}

impl SkillFallbackMode {
    /// Returns the word of the trace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conservative => "conservative",
            Self::Escalate => "escalate",
        }
    }
}

/// The rights of an active skill: its tools and its permissions. It gets only what its `permissions` block requests.
#[derive(Debug, Clone)]
pub struct SkillCeiling {
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
    pub fn from_skill(skill: &Skill, policy: Option<Arc<str>>) -> Self {
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

    /// Returns the limits after the plan step, with its fallback if there is no plan.
    pub fn with_fallback(mut self, fallback: Option<SkillFallbackMode>) -> Self {
        self.fallback = fallback;
        self
    }

    /// Returns the policy that calls of the skill must pass in addition.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the limits for a composite tool whose own call a person has approved.
    pub fn with_approval(mut self) -> Self {
        if let Some(permissions) = &mut self.permissions {
            permissions.asks = false;
        }
        self
    }

    /// Returns the skill's name.
    pub fn skill_name(&self) -> &str {
        &self.skill
    }

    /// Returns whether the tool with this name may run.
    pub fn allows_tool(&self, tool: &str) -> bool {
        self.tools.iter().any(|own| own == tool)
    }

    /// Returns the verdict on a call: a refusal beyond the limits, or an approval request if the skill's `approval_required`
    /// demands it.
    pub fn judge_call(
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
    pub fn judges_places(&self) -> bool {
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
pub fn join_names(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Returns every tool that a skill needs: its `tools_required`, then those of its label.
pub fn needed_tools(skill: &Skill) -> impl Iterator<Item = String> {
    let label = skill.labels.get(REQUIRES).map(String::as_str).unwrap_or_default();
    let named: Vec<String> = label.split_whitespace().map(str::to_owned).collect();
    skill.tools_required.iter().cloned().chain(named)
}

/// Returns the tool name by which a model invokes the skill.
pub fn name_of(skill: &Skill) -> String {
    format!("{PREFIX}{}", skill.name)
}

/// Returns the skill's estimates as text; `None`: it has none.
pub fn estimate_text(skill: &Skill) -> Option<String> {
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
pub fn estimates_of(skill: &Skill) -> Option<SkillEstimates> {
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

/// Returns the verdict for a skill's `approval_required`.
pub fn approval_verdict(skill: &str) -> Verdict {
    Verdict {
        effect: Effect::Ask(Approval::default()),
        reason: Some(format!("the skill `{skill}` is declared to need approval").into()),
        ..Verdict::allow()
    }
}

/// Returns a skill's description for a model before its invocation, without the instructions.
pub fn skill_description(skill: &Skill) -> String {
    let estimated = estimate_text(skill)
        .map(|said| format!(" It takes {said}."))
        .unwrap_or_default();
    format!(
        "Skill: {} Call this to get its instructions, then follow them.{estimated}",
        skill.description.trim()
    )
}
