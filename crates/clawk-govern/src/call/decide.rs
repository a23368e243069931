//! The decision on a call: every policy layer judges it, and the strictest verdict counts (R12, R13).

use std::collections::BTreeMap;
use std::path::PathBuf;

use clawk_manifest::model::Skill;
use clawk_policy::path::{CallPaths, RealLocations, paths_to_resolve};
use clawk_policy::{Effect, PolicyLayer, PolicyLayers, PolicySubject, Verdict};
use clawk_proto::Digest;
use serde_json::{Map, Value};

use super::grant::{basis_digest, plan_digest};
use super::standing::{GrantBasis, GrantQuery, resolved_digest};
use super::{CallGovernor, CallerContext, Request};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::error::{CallError, DeniedBy};
use crate::event::{canonical, digest};
use crate::place::{ExcludedPaths, PathSearch};
use crate::ports::InspectedCall;
use crate::roles;
use crate::skill_rights;

/// The combined verdict of all layers, and the first layer that refused.
#[derive(Debug)]
pub(super) struct CombinedVerdict {
    verdict: Verdict,
    by: DeniedBy,
}

impl CombinedVerdict {
    /// Returns the combined verdict.
    pub(super) const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    fn combine_with(self, by: DeniedBy, further: Verdict) -> Self {
        let refused = self.verdict.effect != Effect::Deny && further.effect == Effect::Deny;
        Self {
            by: if refused { by } else { self.by },
            verdict: self.verdict.stricter(further),
        }
    }

    /// Returns the verdict unless it is a refusal.
    ///
    /// # Errors
    /// -32011 with the rule and the layer; -32021 if a rule's limit is used up (R16a).
    pub(super) fn require_permitted(self, tool: &str) -> Result<Verdict, CallError> {
        let Self { verdict, by } = self;
        match verdict.effect {
            Effect::Allow | Effect::AuditOnly | Effect::Ask(_) => Ok(verdict),
            Effect::Deny if verdict.limit_spent => Err(CallError::Quota {
                scope: format!("rule {}", verdict.rule_id.as_deref().unwrap_or("without id")),
                limit_name: verdict.limit.map_or("rate_limit", |spent| spent.name).to_owned(),
                limit: verdict.limit.map_or(0, |spent| spent.limit),
                used: verdict.limit.map_or(0, |spent| spent.used),
                wanted: 0,
                resets_at: None,
                rule_id: verdict.rule_id.as_deref().map(Into::into),
            }),
            Effect::Deny => Err(denied_error(tool, &verdict, by)),
        }
    }
}

/// All that a policy decision examines.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyInput<'a> {
    pub(super) calls: &'a CallGovernor,
    pub(super) caller: &'a CallerContext,
    pub(super) request: &'a Request,
    pub(super) tool: &'a CatalogEntry,
    pub(super) described: &'a DescribedTool,
    /// The programs and servers that the call uses, for standing grants.
    pub(super) basis: GrantBasis,
}

impl<'a> PolicyInput<'a> {
    /// Returns the programs and servers that the call uses, if a standing grant for its tool must be checked against them.
    pub(super) async fn grant_basis(&self) -> GrantBasis {
        let calls = self.calls;
        if calls.desk.standing.of_tool(&self.request.tool).is_none() {
            return GrantBasis::Unseen;
        }
        let look = InspectedCall {
            tool: &self.tool.name,
            arguments: &self.request.arguments,
            plan: &self.tool.plan,
            workdir: &calls.workdir,
        };
        match calls.runner.was_asked(look) {
            Some(asked) => GrantBasis::Recorded { asked },
            None => GrantBasis::Seen(basis_digest(&calls.origin, &calls.runner.stands_on(look).await)),
        }
    }

    fn policy_subject<'s>(
        &'s self,
        arguments: &'s Map<String, Value>,
        places: Option<&'s RealLocations>,
    ) -> PolicySubject<'s> {
        PolicySubject {
            tool: &self.tool.name,
            labels: &self.described.labels,
            annotations: &self.described.annotations,
            arguments,
            schema: Some(&self.described.input_schema),
            workdir: &self.calls.workdir,
            usage: self.calls.usage_view(),
            places,
            taint: Some(&self.caller.context.taint),
            values: Some(&self.caller.context.values),
        }
    }

    /// Returns whether other arguments could change the decision.
    pub(super) fn arguments_matter(&self) -> bool {
        let places = self.caller.ceilings.iter().any(|ceiling| ceiling.judges_places());
        places
            || self
                .calls
                .engine
                .arguments_matter(&self.policy_subject(&self.request.arguments, None))
    }

    /// Resolves the call's paths, if the decision depends on them.
    pub(super) async fn resolve_judged_paths(&self) -> Option<RealLocations> {
        let roots = self
            .calls
            .engine
            .path_rule_roots(&self.policy_subject(&self.request.arguments, None));
        let folders = self.calls.desk.standing.of_tool(&self.request.tool);
        let ceilings = self.caller.ceilings.iter().any(|ceiling| ceiling.judges_places());
        if roots.is_empty() && folders.is_none() && !ceilings {
            return None;
        }
        let mut all: BTreeMap<PathBuf, bool> = folders
            .into_iter()
            .flatten()
            .map(|folder| (folder, false))
            .collect();
        all.extend(roots);
        Some(self.resolve_paths(all).await)
    }

    /// Resolves the call's paths.
    pub(super) async fn resolve_paths(&self, mut roots: BTreeMap<PathBuf, bool>) -> RealLocations {
        let Self {
            calls,
            request,
            described,
            ..
        } = *self;
        let workdir = &calls.workdir;
        roots.entry(workdir.clone()).or_default();
        // A grant's folder is already a resolved path.
        let then = |root: &PathBuf| {
            (
                root.clone(),
                calls.catalog.roots.get(root).unwrap_or(root).clone(),
            )
        };
        let search = PathSearch {
            paths: paths_to_resolve(&request.arguments, Some(&described.input_schema), workdir),
            then: roots.keys().map(then).collect(),
            roots,
        };
        let look = InspectedCall {
            tool: &self.tool.name,
            arguments: &request.arguments,
            plan: &self.tool.plan,
            workdir,
        };
        calls.runner.locate_paths(look, search).await
    }

    /// Asks the layers in order.
    pub(super) fn decide_call(
        &self,
        parameters: Digest,
        places: Option<&RealLocations>,
        atlas: Option<Verdict>,
    ) -> CombinedVerdict {
        self.decide_on(&self.request.arguments, parameters, places, atlas)
    }

    fn decide_on(
        &self,
        arguments: &Map<String, Value>,
        parameters: Digest,
        places: Option<&RealLocations>,
        atlas: Option<Verdict>,
    ) -> CombinedVerdict {
        let Self {
            calls,
            caller,
            request,
            tool,
            described,
            ..
        } = *self;
        let subject = self.policy_subject(arguments, places);
        let named = [tool.spec.policy_ref.as_deref(), request.policy.as_deref()];
        let mut named: Vec<&str> = named.into_iter().flatten().collect();
        // A tool that only reads results passed before is not restricted by any plan.
        if !tool.reads_output && tool.joins.is_none() {
            named.extend(
                caller
                    .ceilings
                    .iter()
                    .filter_map(skill_rights::SkillCeiling::policy),
            );
        }
        let layers = PolicyLayers {
            autonomy: caller.effective_autonomy(calls),
            named: &named,
        };
        let mut judged = CombinedVerdict {
            verdict: Verdict::allow(),
            by: DeniedBy::Autonomy,
        };
        // The manifest's layers use the same code that explains decisions. The role comes after the autonomy level (R12).
        for (layer, verdict) in layers.layer_verdicts(&calls.engine, &subject) {
            judged = match layer {
                PolicyLayer::Autonomy(_) => CombinedVerdict { verdict, ..judged }
                    .combine_with(DeniedBy::Role, roles::role_verdict(caller.role)),
                // The result was already shown to this conversation. A rule that names this tool can still deny the call.
                PolicyLayer::Rules if tool.reads_output => {
                    let verdict = calls.engine.denies_call_by_name(&subject);
                    judged.combine_with(DeniedBy::Policy, verdict.unwrap_or_else(Verdict::allow))
                }
                // Reading a skill's instructions has no effect: a rule's decision counts, but without a matching rule the call is
                // not refused.
                PolicyLayer::Rules if tool.joins.is_some() && verdict.rule_id.is_none() => judged,
                // A rule that refuses the declared tool or the action by name refuses every tool that it represents, with this
                // call's own arguments and context.
                PolicyLayer::Rules => {
                    let declared = tool.from.as_deref();
                    let action = Some(request.tool.as_str()).filter(|action| *action != &*tool.name);
                    let others = declared.into_iter().chain(action);
                    let refused = others.filter_map(|tool| {
                        calls
                            .engine
                            .denies_call_by_name(&PolicySubject { tool, ..subject })
                    });
                    refused.fold(
                        judged.combine_with(DeniedBy::Policy, verdict),
                        |judged, refused| judged.combine_with(DeniedBy::Policy, refused),
                    )
                }
                PolicyLayer::Named(_) => judged.combine_with(DeniedBy::Policy, verdict),
            };
        }
        let of_kernel = tool.of_team || tool.joins.is_some();
        if let Some(member) = caller.member.as_ref().filter(|_| !of_kernel)
            && !member.may_use(&tool.name)
        {
            let why = "the task of this member was given without this tool";
            judged = judged.combine_with(DeniedBy::Task, Verdict::deny(why));
        }
        for ceiling in &caller.ceilings {
            judged = judged.combine_with(
                DeniedBy::Skill,
                ceiling.judge_call((tool, described), arguments, &calls.workdir, places),
            );
        }
        if let Some(skill) = tool.skill.as_ref().filter(|skill| needs_approval(skill)) {
            judged = judged.combine_with(DeniedBy::Skill, skill_rights::approval_verdict(&skill.name));
        }
        if let Some(atlas) = atlas {
            judged = judged.combine_with(DeniedBy::Atlas, atlas);
        }
        self.apply_standing_grant(judged, parameters, arguments, places)
    }

    /// Only a person's standing grant removes the need for an approval, never a rule (R13).
    fn apply_standing_grant(
        &self,
        mut judged: CombinedVerdict,
        parameters: Digest,
        arguments: &Map<String, Value>,
        places: Option<&RealLocations>,
    ) -> CombinedVerdict {
        let Self {
            calls,
            caller,
            request,
            tool,
            described,
            basis,
        } = *self;
        if matches!(judged.verdict.effect, Effect::Ask(_)) && !judged.verdict.taint {
            let shape = GrantQuery {
                session: caller.thread.session,
                tool: &request.tool,
                parameters,
                plan: plan_digest(tool),
                basis,
                arguments,
                schema: &described.input_schema,
                workdir: &calls.workdir,
                places,
            };
            if let Some(held) = calls.desk.standing.find_covering(&shape) {
                judged.verdict.effect = Effect::Allow;
                let why = format!("{} allowed it before (grant {})", held.by, held.id);
                judged.verdict.reason = Some(why.into());
            } else if let Some(held) = calls.desk.standing.find_outdated(&shape) {
                let reason = judged
                    .verdict
                    .reason
                    .as_deref()
                    .unwrap_or("a policy rule asks for approval");
                let why = format!(
                    "{reason}; the standing grant {} was given for another manifest, program, server or sandbox than this call's",
                    held.id
                );
                judged.verdict.reason = Some(why.into());
            }
        }
        if judged.verdict.taint && !judged.verdict.is_allowed() {
            let value = calls
                .engine
                .value_reason(&judged.verdict, &self.policy_subject(arguments, places));
            judged.verdict = explain_taint(judged.verdict, value, &caller.context.taint);
        }
        judged
    }

    fn call_paths(&self, places: &RealLocations) -> CallPaths {
        let (arguments, schema) = (&self.request.arguments, &self.described.input_schema);
        CallPaths::from_arguments(arguments, Some(schema), &self.calls.workdir, Some(places))
    }

    /// Returns the digest of the resolved paths if they differ from the paths as written. A grant for exactly this call is bound to
    /// it.
    pub(super) fn resolved_digest(&self, places: &RealLocations) -> Option<Digest> {
        resolved_digest(&self.call_paths(places))
    }

    /// Returns the paths that the call must not touch. Every root folder of a rule is judged as if the call named it.
    pub(super) fn excluded_paths(&self, places: &RealLocations, verdict: &Verdict) -> ExcludedPaths {
        let roots = self
            .calls
            .engine
            .path_rule_roots(&self.policy_subject(&self.request.arguments, None));
        let paths = self.call_paths(places);
        let named: Vec<_> = paths
            .named_paths()
            .iter()
            .chain(paths.known_locations())
            .collect();
        let mut apart = ExcludedPaths::default();
        for (root, place) in places.roots.iter().filter(|(root, _)| roots.contains_key(*root)) {
            let Some(text) = root.to_str() else { continue };
            let arguments = Map::from_iter([("path".to_owned(), Value::from(text))]);
            let parameters = digest(&canonical(&arguments));
            let judged = self.decide_on(&arguments, parameters, Some(places), None);
            let word = judged.verdict();
            let stricter = match word.effect {
                Effect::Allow | Effect::AuditOnly => false,
                Effect::Deny => true,
                // The approval of the call also covers this path.
                Effect::Ask(_) => (&word.policy, &word.rule_id) != (&verdict.policy, &verdict.rule_id),
            };
            let forms = [root, &place.then, &place.now];
            let holds = |path: &&PathBuf| forms.iter().any(|form| path.starts_with(form));
            let into = if stricter && !named.iter().any(holds) {
                &mut apart.out
            } else {
                &mut apart.open
            };
            into.extend(forms.into_iter().cloned());
        }
        apart
    }
}

/// Largest number of sources that a refusal or an approval request names.
const MAX_SOURCES: usize = 3;

/// Adds the reason to a verdict of a rule about untrusted text: the sources of the text, and the value concerned.
fn explain_taint(verdict: Verdict, value: Option<String>, taint: &[String]) -> Verdict {
    let reason = verdict
        .reason
        .as_deref()
        .unwrap_or("the context holds untrusted text");
    let value = value.map(|value| format!("; {value}")).unwrap_or_default();
    let mut named: Vec<&str> = taint.iter().map(String::as_str).collect();
    named.sort_by_key(|origin| crate::taint::rank(origin));
    named.truncate(MAX_SOURCES);
    let more = if taint.len() > MAX_SOURCES { ", …" } else { "" };
    let named: Vec<String> = named.into_iter().map(crate::taint::words).collect();
    let from = match named.is_empty() {
        true => String::new(),
        false => format!(" (from {}{more})", named.join(", ")),
    };
    let reason = format!("{reason}{value}{from}");
    Verdict {
        reason: Some(reason.into()),
        ..verdict
    }
}

fn needs_approval(skill: &Skill) -> bool {
    skill
        .permissions
        .as_ref()
        .is_some_and(|permissions| permissions.approval_required)
}

/// Returns the error for a refusing verdict.
pub(super) fn denied_error(tool: &str, verdict: &Verdict, by: DeniedBy) -> CallError {
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
