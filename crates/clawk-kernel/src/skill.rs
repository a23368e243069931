//! Skills (CKP §5.5): what a model is told of them, and the ceiling that their permissions are while they run.

use std::path::Path;
use std::sync::Arc;

use clawk_manifest::model::{Skill, SkillFilesystem};
use clawk_policy::path::{CallPaths, Places, Roots};
use clawk_policy::{Approval, Effect, Verdict};
use serde_json::{Map, Value, json};

use crate::catalog::Described;
use crate::ports::ToolOffer;

/// Tools by which a model invokes skills are named `skill-NAME`.
pub(crate) const PREFIX: &str = "skill-";

/// A running skill's permissions. What a skill with a `permissions` block does not ask for, it does not get.
#[derive(Debug, Clone)]
pub(crate) struct Ceiling {
    skill: Arc<str>,
    network: bool,
    filesystem: SkillFilesystem,
    /// A person is asked before anything with effects runs under it.
    asks: bool,
}

impl Ceiling {
    /// The ceiling of a skill; without a `permissions` block there is none.
    pub(crate) fn of(skill: &Skill) -> Option<Self> {
        skill.permissions.as_ref().map(|permissions| Self {
            skill: skill.name.as_str().into(),
            network: permissions.network.unwrap_or(false),
            filesystem: permissions.filesystem.unwrap_or(SkillFilesystem::None),
            asks: permissions.approval_required,
        })
    }

    /// The same ceiling under a composite tool, whose own call a person was asked about.
    pub(crate) fn approved(self) -> Self {
        Self { asks: false, ..self }
    }

    /// What the ceiling says of a call: a refusal above it, a question where the skill's `approval_required` wants one.
    pub(crate) fn judge(
        &self,
        described: &Described,
        arguments: &Map<String, Value>,
        workdir: &Path,
        places: Option<&Places>,
    ) -> Verdict {
        let reason = if described.reaches_network() && !self.network {
            "has no `network` permission"
        } else if described.touches_files() && !self.files_allowed(described, arguments, workdir, places) {
            match self.filesystem {
                SkillFilesystem::None => "has no `filesystem` permission",
                SkillFilesystem::ReadOnly => "may only read files",
                SkillFilesystem::WriteWorkspace | SkillFilesystem::Full => {
                    "may only touch files in the workspace"
                }
            }
        } else if self.asks && !described.read_only() {
            return asking(&self.skill);
        } else {
            return Verdict::allow();
        };
        Verdict::deny(format!("the running skill `{}` {reason}", self.skill))
    }

    /// It judges by the places that a call's paths lead to.
    pub(crate) fn judges_places(&self) -> bool {
        self.filesystem == SkillFilesystem::WriteWorkspace
    }

    fn files_allowed(
        &self,
        described: &Described,
        arguments: &Map<String, Value>,
        workdir: &Path,
        places: Option<&Places>,
    ) -> bool {
        match self.filesystem {
            SkillFilesystem::None => false,
            SkillFilesystem::ReadOnly => described.read_only(),
            // A shell's command can name any path: only the full permission covers it.
            SkillFilesystem::WriteWorkspace => {
                described
                    .labels
                    .get("category")
                    .is_none_or(|category| category != "shell")
                    && CallPaths::of(arguments, Some(&described.input_schema), workdir, places)
                        .all_within(&Roots::new(vec![workdir.to_owned()], places))
            }
            SkillFilesystem::Full => true,
        }
    }
}

/// The question that a skill's `approval_required` asks.
pub(crate) fn asking(skill: &str) -> Verdict {
    Verdict {
        effect: Effect::Ask(Approval::default()),
        reason: Some(format!("the skill `{skill}` is declared to need approval").into()),
        ..Verdict::allow()
    }
}

/// The function that a model calls to invoke a skill.
pub(crate) fn offer(skill: &Skill) -> ToolOffer {
    ToolOffer {
        name: format!("{PREFIX}{}", skill.name),
        description: format!(
            "Skill: {} Call this to get its instructions, then follow them.",
            skill.description.trim()
        ),
        input_schema: skill
            .input_schema
            .clone()
            .unwrap_or_else(|| json!({"type": "object"})),
    }
}

/// What the model reads after invoking a skill: its instruction joins the turn.
pub(crate) fn instruction(skill: &Skill, arguments: &Map<String, Value>) -> String {
    format!(
        "Instructions of the skill `{}`:\n{}\n\nInput: {}\nTools it uses: {}",
        skill.name,
        skill.instruction.trim(),
        Value::Object(arguments.clone()),
        skill.tools_required.join(", ")
    )
}
