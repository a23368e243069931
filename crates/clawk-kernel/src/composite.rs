//! Composite tools: a skill's workflow in one call. Every check applies to each inner call, too.

use clawk_manifest::model::Skill;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::author::TextAuthor;
use crate::call::{CallerContext, Permit};
use crate::checkpoint::{self, CheckpointWriter, ResumedInnerTurn};
use crate::drive::RunningTurn;
use crate::member::member_of;
use crate::ports::{BoxFuture, RunError, RunOutcome};
use crate::prompt;
use crate::purse::BudgetAccount;
use crate::services::KernelServices;
use crate::skill::{self, RunningSkill, SkillCeiling};
use crate::taint;
use crate::turn::{Effect, Turn, TurnOutcome};
use crate::world_model::{self, SkillPlanResult};

/// Time limit for cancelled work to end after a timeout.
const GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs the skill as an inner turn. Its permissions further limit those of the outer skills.
pub(crate) fn run<'a>(
    calls: &'a KernelServices,
    caller: &'a CallerContext,
    skill: &'a Skill,
    permit: Permit,
    purse: BudgetAccount,
    cancel: &'a CancellationToken,
) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
    Box::pin(run_inner_turn(calls, caller, skill, permit, purse, cancel))
}

#[expect(
    clippy::too_many_lines,
    reason = "an inner turn from its plan to its result, read downward: to split it would hide the order"
)]
async fn run_inner_turn(
    calls: &KernelServices,
    caller: &CallerContext,
    skill: &Skill,
    permit: Permit,
    purse: BudgetAccount,
    cancel: &CancellationToken,
) -> Result<RunOutcome, RunError> {
    let inner = cancel.child_token();
    let site = world_model::ActingSkill {
        calls,
        caller,
        skill,
        purse: &purse,
        cancel: &inner,
    };
    let timeout_ms = permit.timeout_ms();
    let limit = tokio::time::Instant::now() + std::time::Duration::from_millis(timeout_ms);
    let late = || RunError::Timeout {
        timeout_ms,
        obtained: inner_enforcement(),
    };
    let here = (caller.thread, &*caller.context);
    let begun = match checkpoint::resume_composite(calls, here, skill, &permit).await? {
        Some(resumed) => resumed,
        None => {
            let mut planning = Box::pin(world_model::plan_skill(site, permit.arguments()));
            let planned = tokio::select! {
                biased;
                planned = &mut planning => planned?,
                () = tokio::time::sleep_until(limit) => {
                    inner.cancel();
                    let _ended = tokio::time::timeout(GRACE, planning).await; // silent-ok: as below
                    return Err(late());
                }
            };
            drop(planning);
            begin_inner_turn(calls, permit.arguments(), planned)
        }
    };
    let ResumedInnerTurn {
        turn_id,
        mut turn,
        effects,
        requests,
        repaired,
        first,
        planned,
    } = begun;
    let mut ceilings = caller.ceilings.clone();
    let own = SkillCeiling::from_skill(skill, world_model::model_policy(calls, skill));
    ceilings.push(
        own.with_approval()
            .with_fallback(planned.as_ref().and_then(|planned| planned.fallback)),
    );
    let mut base: BTreeSet<String> = caller.context.taint.iter().cloned().collect();
    base.extend(world_model::plan_origin(calls, skill).await);
    let files = prompt::context_files(&*calls.runner, &calls.manifest, None).await;
    base.extend(taint::through(&files.marked));
    let saver = CheckpointWriter::of_call(calls, (&permit, skill), turn_id, (&first, planned.clone()));
    let started_us = calls.clock().monotonic_us();
    let mut joined = RunningSkill::new(Arc::new(skill.clone()), started_us, planned).since_the_start();
    joined.repaired = repaired;
    let provider = calls.models.primary_provider();
    let window = crate::drive::window_tokens(calls, caller.thread.session, provider);
    let mut run = RunningTurn {
        calls,
        thread: caller.thread.child(turn_id),
        turn_id,
        door: "skill",
        role: caller.role,
        provider,
        effort: None,
        system: prompt::system_prompt(&calls.manifest, Some(skill), &[], &files, window),
        volatile: String::new(),
        granted: None,
        only: Some(&skill.tools_required),
        skills: false,
        joined: vec![joined],
        client: &[],
        ceilings,
        depth: caller.depth + 1,
        requests,
        planned: false,
        spent_out: std::sync::atomic::AtomicBool::new(false),
        offered: crate::drive::OfferedTools::default(),
        judged: false,
        notices: crate::watch::NoticeSender::default(),
        purse,
        base,
        context: Arc::clone(&caller.context),
        member: member_of(caller),
        early: std::collections::BTreeMap::new(),
        saver,
        cancel: &inner,
    };
    let mut driven = Box::pin(run.drive_turn(&mut turn, effects));
    let end = tokio::select! {
        biased;
        end = &mut driven => end,
        () = tokio::time::sleep_until(limit) => {
            // Running calls are cancelled and awaited, so that their end is recorded and their use is settled.
            inner.cancel();
            // silent-ok: after the grace time it is dropped, and settled at its reservation
            let _ended = tokio::time::timeout(GRACE, driven).await;
            return Err(late());
        }
    };
    drop(driven);
    let (text, is_error) = match end {
        TurnOutcome::Answered => (turn.last_text().to_owned(), false),
        TurnOutcome::Cancelled => return Err(RunError::Cancelled),
        TurnOutcome::Failed(reason) => (reason, true),
    };
    let mut structured = json!({"skill": skill.name, "tokens": turn.usage().total()});
    if !is_error
        && let (Some(schema), Some(facts)) = (&skill.output_schema, structured.as_object_mut())
        && let Ok(result) = skill::parse_result(schema, &text)
    {
        facts.insert("result".to_owned(), result);
    }
    Ok(RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error,
        structured: Some(structured),
        obtained: inner_enforcement(),
    })
}

/// Begins an inner turn, with its world model's predictions.
fn begin_inner_turn(
    calls: &KernelServices,
    arguments: &Map<String, Value>,
    planned: Option<(SkillPlanResult, String)>,
) -> ResumedInnerTurn {
    let (planned, foretold) = match planned {
        Some((planned, text)) => (Some(planned), format!("\n\n{text}")),
        None => (None, String::new()),
    };
    let input = Value::Object(arguments.clone());
    let first = format!("Run the skill with this input: {input}{foretold}");
    ResumedInnerTurn {
        turn_id: calls.clock().new_uuid(),
        // Its text is that of the outer call, whose provenance is kept beside the conversation.
        turn: Turn::start(Vec::new(), first.clone(), TextAuthor::from_runtime())
            .with_bounds(calls.turn_bounds()),
        effects: vec![Effect::Infer],
        requests: BTreeMap::new(),
        repaired: false,
        first,
        planned,
    }
}

/// The inner turn itself runs nothing. Each inner call reports its sandbox.
fn inner_enforcement() -> ObtainedEnforcement {
    ObtainedEnforcement::in_process("inner-turn")
}
