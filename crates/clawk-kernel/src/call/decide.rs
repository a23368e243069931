//! What may be done: every layer is asked, the strictest holds (R12, R13).

use clawk_manifest::model::Skill;
use clawk_policy::{Effect, Layer, Layers, Subject, Verdict};
use clawk_proto::Digest;

use super::grant::plan_digest;
use super::standing::Shape;
use super::{Caller, Request};
use crate::agent::Agent;
use crate::catalog::{Described, Entry};
use crate::error::{CallError, DeniedBy};
use crate::roles;
use crate::skill;

/// The verdict of all layers, and which of them refused first.
#[derive(Debug)]
pub(super) struct Judged {
    verdict: Verdict,
    by: DeniedBy,
}

impl Judged {
    fn and(self, by: DeniedBy, further: Verdict) -> Self {
        let refused = self.verdict.effect != Effect::Deny && further.effect == Effect::Deny;
        Self {
            by: if refused { by } else { self.by },
            verdict: self.verdict.stricter(further),
        }
    }

    /// The verdict, unless it is a refusal.
    ///
    /// # Errors
    /// -32011 with the rule and the layer; -32021 when a rule's limit is spent (R16a).
    pub(super) fn permitted(self, tool: &str) -> Result<Verdict, CallError> {
        let Self { verdict, by } = self;
        match verdict.effect {
            Effect::Allow | Effect::AuditOnly | Effect::Ask(_) => Ok(verdict),
            Effect::Deny if verdict.limit_spent => Err(CallError::Quota {
                scope: format!("rule {}", verdict.rule_id.as_deref().unwrap_or("without id")),
                limit_name: "rate_limit".to_owned(),
                limit: 0,
                used: 0,
                wanted: 0,
                resets_at: None,
            }),
            Effect::Deny => Err(denied(tool, &verdict, by)),
        }
    }
}

/// Asks the layers in order.
pub(super) fn decide(
    agent: &Agent,
    caller: &Caller,
    request: &Request,
    tool: &Entry,
    described: &Described,
    parameters: Digest,
    atlas: Option<Verdict>,
) -> Judged {
    let arguments = &request.arguments;
    let subject = Subject {
        tool: &tool.name,
        labels: &described.labels,
        annotations: &described.annotations,
        arguments,
        schema: Some(&described.input_schema),
        workdir: &agent.options.workdir,
        usage: agent.usage(),
    };
    let named = [tool.spec.policy_ref.as_deref(), request.policy.as_deref()];
    let named: Vec<&str> = named.into_iter().flatten().collect();
    let layers = Layers {
        autonomy: agent.manifest.identity.autonomy,
        named: &named,
    };
    let mut judged = Judged {
        verdict: Verdict::allow(),
        by: DeniedBy::Autonomy,
    };
    // What the manifest says, by the same code that explains it; the role stands behind the autonomy (R12).
    for (layer, verdict) in layers.words(&agent.engine, &subject) {
        judged = match layer {
            Layer::Autonomy(_) => {
                Judged { verdict, ..judged }.and(DeniedBy::Role, roles::verdict(caller.role))
            }
            // What it reads was let through to this conversation before; a rule that names it denies it all the same.
            Layer::Rules if tool.reads_output => {
                let verdict = agent.engine.denies_by_name(&tool.name);
                judged.and(DeniedBy::Policy, verdict.unwrap_or_else(Verdict::allow))
            }
            // A rule that refuses the declared tool by its name refuses all that it stands for.
            Layer::Rules => {
                let declared = tool.from.as_ref();
                let refused = declared.and_then(|from| agent.engine.denies_by_name(from));
                let judged = judged.and(DeniedBy::Policy, verdict);
                match refused {
                    Some(refused) => judged.and(DeniedBy::Policy, refused),
                    None => judged,
                }
            }
            Layer::Named(_) => judged.and(DeniedBy::Policy, verdict),
        };
    }
    for ceiling in &caller.ceilings {
        judged = judged.and(
            DeniedBy::Skill,
            ceiling.judge(described, arguments, &agent.options.workdir),
        );
    }
    if let Some(skill) = tool.skill.as_ref().filter(|skill| needs_approval(skill)) {
        judged = judged.and(DeniedBy::Skill, skill::asking(&skill.name));
    }
    if let Some(atlas) = atlas {
        judged = judged.and(DeniedBy::Atlas, atlas);
    }
    // What spares people is a standing grant that a person gave, never a rule (R13).
    if matches!(judged.verdict.effect, Effect::Ask(_)) {
        let shape = Shape {
            session: caller.thread.session,
            tool: &request.tool,
            parameters,
            plan: plan_digest(tool),
            arguments,
            schema: &described.input_schema,
            workdir: &agent.options.workdir,
        };
        if let Some(held) = agent.desk.standing.covering(&shape) {
            judged.verdict.effect = Effect::Allow;
            let why = format!("{} allowed it before (grant {})", held.by, held.id);
            judged.verdict.reason = Some(why.into());
        }
    }
    judged
}

fn needs_approval(skill: &Skill) -> bool {
    skill
        .permissions
        .as_ref()
        .is_some_and(|permissions| permissions.approval_required)
}

/// The refusal of a verdict.
pub(super) fn denied(tool: &str, verdict: &Verdict, by: DeniedBy) -> CallError {
    CallError::Denied {
        tool: tool.chars().take(64).collect(),
        by,
        rule_id: verdict.rule_id.as_deref().map(str::to_owned),
        policy: verdict.policy.as_deref().map(str::to_owned),
        reason: verdict
            .reason
            .as_deref()
            .unwrap_or("a policy rule denies it")
            .to_owned(),
        retry_after_ms: None,
    }
}
