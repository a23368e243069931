//! Skills in a turn: their invocation over the call path, their result, and their actual use.

use std::sync::Arc;

use clawk_events::count_of;
use clawk_events::payload::{SkillFinished, SkillInvoked, SkillRepaired};
use clawk_manifest::model::Skill;
use serde_json::{Map, Value};

use super::RunningTurn;
use crate::call::call;
use crate::event::{canonical, digest};
use crate::prompt;
use crate::roles;
use crate::skill::{self, RunningSkill, SkillCeiling};
use crate::turn::{Effect, Event, Turn, TurnOutcome};
use crate::world_model::{self, SkillPlanResult};

impl RunningTurn<'_> {
    /// Returns the skill that this name invokes here.
    pub(crate) fn find_skill(&self, name: &str) -> Option<Arc<Skill>> {
        if !self.skills || !roles::may_trigger(self.role) || self.calls.catalog.get(name).is_some() {
            return None;
        }
        self.calls.catalog.of_skill(name)?.joins.clone()
    }

    /// Invokes a skill: returns its instructions, and limits tools and permissions from here on.
    pub(super) async fn invoke_skill(
        &mut self,
        call_id: String,
        skill: Arc<Skill>,
        arguments: Map<String, Value>,
    ) -> Event {
        let name = skill::name_of(&skill);
        let arguments_hash = digest(&canonical(&arguments));
        let request_id = self.request_id(&call_id);
        let (caller, request) = self
            .call_request(call_id.clone(), name.clone(), arguments, request_id.clone())
            .await;
        let outcome = call(self.calls, &caller, request, self.cancel).await;
        let told = prompt::result_text(&outcome, skill::result_excerpt(self.calls, &name));
        let is_error = told.is_error;
        if !is_error {
            let (now, started_us) = (self.calls.scribe.now(), self.calls.clock().monotonic_us());
            let structured = outcome
                .as_ref()
                .ok()
                .and_then(|result| result.structured_content.as_ref());
            let planned = SkillPlanResult::from_structured(structured);
            let policy = world_model::model_policy(self.calls, &skill);
            self.ceilings.push(
                SkillCeiling::from_skill(&skill, policy)
                    .with_fallback(planned.as_ref().and_then(|planned| planned.fallback)),
            );
            self.purse = self.calls.purses.skill_account(&self.purse, &skill.name, now);
            self.joined
                .push(RunningSkill::new(Arc::clone(&skill), started_us, planned));
        }
        let payload = SkillInvoked {
            arguments_hash,
            call_id: call_id.to_string(),
            estimates: skill::estimates_of(&skill),
            is_error,
            request_id: Some(request_id.as_str().to_owned()),
            skill: skill.name.to_string(),
            text_hash: digest(told.text.as_bytes()),
            turn: self.turn_id,
        };
        let scribe = &self.calls.scribe;
        let draft = scribe.draft_event(&self.thread, &payload);
        let draft = draft.with_content(payload.text_hash, told.text.clone().into_bytes());
        if let Err(error) = scribe.write(vec![draft]).await {
            return Event::Failed(error.to_string());
        }
        Event::CallDone {
            call_id,
            text: told.text,
            is_error,
            from_tool: true,
        }
    }

    /// Ends the active skills of a turn. The last one with an `output_schema` must give a matching result; otherwise the model is
    /// asked once more.
    ///
    /// # Errors
    /// The turn's end. `Ok`: the effects before the end.
    pub(super) async fn close_skills(
        &mut self,
        turn: &mut Turn,
        end: TurnOutcome,
    ) -> Result<Vec<Effect>, TurnOutcome> {
        if self.joined.is_empty() || end == TurnOutcome::Cancelled {
            return Err(end);
        }
        let owing = self
            .joined
            .iter()
            .rposition(|joined| joined.skill.output_schema.is_some());
        let owing = owing.filter(|_| end == TurnOutcome::Answered && !turn.is_declined());
        let mut fits = None;
        let mut end = end;
        if let Some(joined) = owing.and_then(|at| self.joined.get_mut(at))
            && let Some(schema) = &joined.skill.output_schema
        {
            let found = skill::parse_result(schema, turn.last_text());
            fits = Some(found.is_ok());
            if let Err(fault) = found {
                if !joined.repaired {
                    joined.repaired = true;
                    let skill = Arc::clone(&joined.skill);
                    return self.repair_result(turn, &skill, &fault).await;
                }
                end = TurnOutcome::Failed(format!(
                    "the result of the skill `{}` does not fit its `output_schema`, after one more try: {fault}",
                    joined.skill.name
                ));
            }
        }
        for (at, joined) in self.joined.iter().enumerate() {
            self.record_skill_usage(joined, turn, fits.filter(|_| owing == Some(at)));
            let where_it_ran = (self.thread, self.turn_id, self.door);
            world_model::record_experience((self.calls, &self.context), where_it_ran, joined, turn).await;
        }
        Err(end)
    }

    async fn repair_result(
        &self,
        turn: &mut Turn,
        skill: &Skill,
        fault: &str,
    ) -> Result<Vec<Effect>, TurnOutcome> {
        let text = skill::repair_prompt(skill, fault);
        let payload = SkillRepaired {
            skill: skill.name.to_string(),
            text_hash: digest(text.as_bytes()),
            turn: self.turn_id,
        };
        let scribe = &self.calls.scribe;
        let draft = scribe.draft_event(&self.thread, &payload);
        let draft = draft.with_content(payload.text_hash, text.clone().into_bytes());
        match scribe.write(vec![draft]).await {
            Ok(()) => Ok(turn.ask_again(text)),
            Err(error) => Err(TurnOutcome::Failed(error.to_string())),
        }
    }

    /// Records a skill's actual use and its estimates.
    fn record_skill_usage(&self, joined: &RunningSkill, turn: &Turn, fits: Option<bool>) {
        let (tokens, calls) = joined.usage_since_start(turn);
        let since_us = self
            .calls
            .clock()
            .monotonic_us()
            .saturating_sub(joined.started_us);
        let payload = SkillFinished {
            calls: count_of(calls),
            duration_ms: since_us / 1000,
            estimates: skill::estimates_of(&joined.skill),
            fits,
            repaired: joined.repaired,
            skill: joined.skill.name.to_string(),
            tokens,
            turn: self.turn_id,
        };
        let scribe = &self.calls.scribe;
        let draft = scribe.draft_event(&self.thread, &payload);
        if let Err(error) = scribe.submit_drafts(vec![draft]) {
            tracing::warn!(%error, "what a skill took could not be recorded");
        }
    }
}
