//! What a world model proposes: read, bounded, judged by what binds the skill, and weighed. Pure but for the policies' word.

use clawk_manifest::model::{PlanningHorizon, UncertaintyMode, WorldModel, WorldModelParadigm};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ActingSkill, PlanLimits, cut_text};
use crate::call;
use crate::purse::CallBudgetRequest;
use crate::recall::escaped;
use crate::skill::SkillCeiling;

/// Text of one note that is kept and shown, bytes.
const MAX_NOTE_BYTES: usize = 300;
/// How wrong the predictions of a model are taken to be of which nothing is known, thousandths.
const UNKNOWN_ERROR: u64 = 500;

/// One step of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CandidateStep {
    pub(super) tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
}

/// What it is said to cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PredictedCost {
    pub(super) tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) calls: Option<u64>,
}

/// What is foretold of a candidate; each may be missing.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct CandidatePrediction {
    risk: Option<f64>,
    risk_high: Option<f64>,
    cost: Option<PredictedCost>,
    state: Option<String>,
    observation: Option<String>,
}

/// A candidate as it came.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct PlanCandidate {
    pub(super) steps: Vec<CandidateStep>,
    #[serde(flatten)]
    foretold: CandidatePrediction,
}

/// A candidate as it was weighed; the form in the record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct WeighedCandidate {
    /// Steps that a person will be asked about.
    asks: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<PredictedCost>,
    /// Why it is not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) discarded: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observation: Option<String>,
    /// As it counts, thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) risk_permille: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    steps: Vec<CandidateStep>,
    /// The risk as it was told, thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) told_permille: Option<u64>,
}

/// By what candidates are judged.
pub(super) struct CandidateRules<'a> {
    pub(super) site: ActingSkill<'a>,
    pub(super) model: &'a WorldModel,
    pub(super) limits: PlanLimits,
    /// Steps of one candidate.
    pub(super) horizon: usize,
    /// The skill's own.
    pub(super) ceiling: SkillCeiling,
    /// How wrong earlier predictions were, thousandths; none: nothing is known.
    pub(super) errors: Option<u64>,
}

/// The candidates of an answer, at most so many; `None`: it is no list of candidates.
pub(super) fn read(said: &Value, most: usize) -> Option<Vec<PlanCandidate>> {
    let found = said.get("candidates")?.as_array()?;
    let found: Vec<PlanCandidate> = found
        .iter()
        .take(most)
        .filter_map(|one| serde_json::from_value::<PlanCandidate>(one.clone()).ok()) // silent-ok: what is no candidate is none
        .map(PlanCandidate::into_bounded)
        .collect();
    Some(found).filter(|found| !found.is_empty())
}

/// The one that is followed: the least risk, then the fewest questions, then the least cost, then the model's own order.
pub(super) fn best_candidate(weighed: &[WeighedCandidate]) -> Option<usize> {
    let good = weighed
        .iter()
        .enumerate()
        .filter(|(_, one)| one.discarded.is_none());
    let order = |one: &WeighedCandidate| (one.risk_permille, one.asks, one.predicted_tokens());
    good.min_by_key(|(at, one)| (order(one), *at)).map(|(at, _)| at)
}

fn bound_text(text: &mut Option<String>) {
    if let Some(text) = text {
        *text = cut_text(text, MAX_NOTE_BYTES).replace(['\n', '\r'], " ");
    }
}

impl PlanCandidate {
    fn into_bounded(mut self) -> Self {
        for step in &mut self.steps {
            bound_text(&mut step.why);
            bound_text(&mut step.state);
        }
        bound_text(&mut self.foretold.state);
        bound_text(&mut self.foretold.observation);
        self
    }

    /// Nothing is foretold of it.
    pub(super) fn clear_prediction(&mut self) {
        self.foretold = CandidatePrediction::default();
    }

    /// Takes what a simulation foretells, in place of what was said before.
    pub(super) fn apply_simulation(&mut self, said: &Value) {
        // silent-ok: what can't be read is missing, and the candidate is judged so
        let said: CandidatePrediction = serde_json::from_value(said.clone()).unwrap_or_default();
        self.foretold = said;
        *self = self.clone().into_bounded();
    }

    /// Why its steps can't be followed, whatever comes of them.
    pub(super) fn steps_fault(&self, rules: &CandidateRules<'_>) -> Option<String> {
        if self.steps.is_empty() {
            return Some("it has no step".to_owned());
        }
        let fixed = rules.model.planning.horizon == Some(PlanningHorizon::Fixed);
        if !fixed && self.steps.len() > rules.horizon {
            return Some(format!(
                "it has {} steps, and the horizon is {}",
                self.steps.len(),
                rules.horizon
            ));
        }
        let foreign = self
            .steps
            .iter()
            .find(|step| !rules.ceiling.allows_tool(&step.tool));
        foreign.map(|step| format!("`{}` is not one of the skill's tools", cut_text(&step.tool, 64)))
    }

    /// What must be foretold and is not.
    pub(super) fn missing_prediction(&self, rules: &CandidateRules<'_>) -> Option<&'static str> {
        let (predicts, told) = (&rules.model.predicts, &self.foretold);
        let upper = rules.model.planning.uncertainty_mode == Some(UncertaintyMode::Bounded);
        let chance = |value: Option<f64>| value.is_some_and(|value| (0.0..=1.0).contains(&value));
        let filled = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.trim().is_empty());
        if predicts.risk && !chance(told.risk) {
            return Some("it foretells no `risk` from 0 to 1");
        }
        if predicts.risk && upper && !(chance(told.risk_high) && told.risk_high >= told.risk) {
            return Some("it foretells no `risk_high` from its `risk` to 1");
        }
        if predicts.cost && told.cost.is_none() {
            return Some("it foretells no `cost`");
        }
        if predicts.state && !filled(&told.state) {
            return Some("it foretells no `state`");
        }
        if predicts.observation && !filled(&told.observation) {
            return Some("it foretells no `observation`");
        }
        let explicit = rules.model.paradigm == WorldModelParadigm::Explicit;
        if explicit && !self.steps.iter().all(|step| filled(&step.state)) {
            return Some("a step has no `state` after it");
        }
        None
    }
}

impl CandidateRules<'_> {
    /// A candidate, judged.
    pub(super) async fn weigh_candidate(&self, mut candidate: PlanCandidate) -> WeighedCandidate {
        let fault = candidate
            .steps_fault(self)
            .or_else(|| candidate.missing_prediction(self).map(str::to_owned));
        // Looks only so far ahead.
        candidate.steps.truncate(self.horizon);
        let risk_permille = self.counted_risk(&candidate.foretold);
        let told_permille = candidate
            .foretold
            .risk
            .map(to_permille)
            .filter(|_| risk_permille.is_some());
        let mut asks = 0;
        let mut discarded = fault
            .or_else(|| self.too_risky(risk_permille))
            .or_else(|| self.too_costly(&candidate.foretold));
        if discarded.is_none() {
            for step in &candidate.steps {
                match self.needs_approval(step).await {
                    Ok(asked) => asks += usize::from(asked),
                    Err(why) => {
                        discarded = Some(why);
                        break;
                    }
                }
            }
        }
        let CandidatePrediction {
            cost,
            state,
            observation,
            ..
        } = candidate.foretold;
        let predicts = &self.model.predicts;
        WeighedCandidate {
            asks,
            cost: cost.filter(|_| predicts.cost),
            discarded,
            observation: observation.filter(|_| predicts.observation),
            risk_permille,
            state: state.filter(|_| predicts.state),
            steps: candidate.steps,
            told_permille,
        }
    }

    /// The risk as it counts: the upper bound, or raised by how wrong the model was before.
    fn counted_risk(&self, told: &CandidatePrediction) -> Option<u64> {
        let risk = told.risk.filter(|_| self.model.predicts.risk)?;
        let counts = match self.model.planning.uncertainty_mode {
            Some(UncertaintyMode::Bounded) => told.risk_high.unwrap_or(1.0),
            Some(UncertaintyMode::Calibrated | UncertaintyMode::None) | None => risk,
        };
        let counts = to_permille(counts);
        let calibrated = self.model.planning.uncertainty_mode == Some(UncertaintyMode::Calibrated);
        let error = self.errors.unwrap_or(UNKNOWN_ERROR).min(1000);
        Some(match calibrated {
            true => counts + (1000 - counts) * error / 1000,
            false => counts,
        })
    }

    fn too_risky(&self, risk: Option<u64>) -> Option<String> {
        let most = self.limits.max_risk_percent * 10;
        let above = risk.filter(|risk| *risk > most)?;
        Some(format!(
            "its risk is {above} of 1000, and at most {most} is followed"
        ))
    }

    /// More than is left to spend.
    fn too_costly(&self, told: &CandidatePrediction) -> Option<String> {
        let tokens = told.cost.filter(|_| self.model.predicts.cost)?.tokens;
        let ActingSkill {
            calls, skill, purse, ..
        } = self.site;
        let wanted = CallBudgetRequest {
            tool: &skill.name,
            skill: None,
            tokens,
            timeout_ms: 0,
            bytes_out: 0,
            provider: calls.models.primary_provider(),
        };
        let room = calls.purses.call(purse, wanted, calls.scribe.now());
        room.err()
            .map(|_| format!("it would cost {tokens} tokens, and fewer are left"))
    }

    /// Whether a person will be asked about the step.
    ///
    /// # Errors
    /// Who refuses it.
    async fn needs_approval(&self, step: &CandidateStep) -> Result<bool, String> {
        let ActingSkill { calls, caller, .. } = self.site;
        call::predict_approval(
            calls,
            caller,
            &self.ceiling,
            (&step.tool, step.arguments.as_ref()),
        )
        .await
        .map_err(|error| {
            let why = error.to_string();
            format!("a step is refused: {}", cut_text(&why, MAX_NOTE_BYTES))
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what fits"
)]
fn to_permille(chance: f64) -> u64 {
    (chance * 1000.0).round().clamp(0.0, 1000.0) as u64
}

impl WeighedCandidate {
    /// Tokens that were foretold.
    pub(super) fn predicted_tokens(&self) -> Option<u64> {
        self.cost.map(|cost| cost.tokens)
    }

    /// Calls that were foretold: said, or counted.
    pub(super) fn predicted_calls(&self) -> Option<u64> {
        let counted = u64::try_from(self.steps.len()).unwrap_or(u64::MAX);
        Some(self.cost.and_then(|cost| cost.calls).unwrap_or(counted))
    }

    /// Its tools, in order.
    pub(super) fn tool_names(&self) -> Vec<String> {
        self.steps.iter().map(|step| step.tool.clone()).collect()
    }

    /// As a model reads it: nothing in it can close the element that it stands in.
    pub(super) fn render_steps(&self) -> String {
        let mut text = String::new();
        for (number, step) in (1..).zip(&self.steps) {
            text.push_str(&format!("{number}. {}", escaped(&step.tool)));
            if let Some(arguments) = &step.arguments {
                let arguments = Value::Object(arguments.clone()).to_string();
                text.push_str(&format!(" {}", escaped(cut_text(&arguments, MAX_NOTE_BYTES))));
            }
            for note in [&step.why, &step.state].into_iter().flatten() {
                text.push_str(&format!(" ({})", escaped(note)));
            }
            text.push('\n');
        }
        for (name, note) in [("state", &self.state), ("observation", &self.observation)] {
            if let Some(note) = note {
                text.push_str(&format!("{name}: {}\n", escaped(note)));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
