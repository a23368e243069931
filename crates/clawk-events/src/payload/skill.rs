//! Skills, and the world models that plan for them.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::SkillEstimates;

payloads! {
    /// `ckp.skill.invoked`. A skill's instruction was added to a turn.
    SkillInvoked {
        /// Digest of the arguments.
        arguments_hash: Digest,
        /// The model's id of the call.
        call_id: String,
        /// The skill's estimates from its manifest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        estimates: Option<SkillEstimates>,
        /// The result is an error.
        is_error: bool,
        /// Id of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// Name of the skill.
        skill: String,
        /// Digest of the text.
        text_hash: Digest,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.skill.repaired`. A skill's result did not match its `output_schema`. The model is asked once more.
    SkillRepaired {
        /// Name of the skill.
        skill: String,
        /// Digest of the text.
        text_hash: Digest,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.skill.finished`. A skill ended: its actual use and its estimates.
    SkillFinished {
        /// Number of calls.
        calls: u64,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The skill's estimates from its manifest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        estimates: Option<SkillEstimates>,
        /// The result fits the skill's `output_schema`.
        fits: Option<bool>,
        /// The model was asked once more.
        repaired: bool,
        /// Name of the skill.
        skill: String,
        /// Number of tokens.
        tokens: u64,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.world_model.planned`. What a skill's world model predicted, and what of it is followed; the content is everything
    /// that was weighed.
    WorldModelPlanned {
        /// Plans that were weighed.
        candidates: u64,
        /// Which candidate was chosen.
        choice: Option<u64>,
        /// Candidates that were discarded.
        discarded: u64,
        /// What is used in place of a plan.
        fallback: Option<String>,
        /// Digest of everything that was weighed.
        planned_hash: Digest,
        /// Calls that were predicted.
        predicted_calls: Option<u64>,
        /// Tokens that were predicted.
        predicted_tokens: Option<u64>,
        /// Questions to the world model.
        questions: u32,
        /// The reason, as text.
        reason: Option<String>,
        /// The plan's risk, in thousandths.
        risk_permille: Option<u64>,
        /// Name of the skill.
        skill: String,
        /// How often the world model was asked to plan.
        tries: u32,
        /// Id of the turn.
        turn: Option<Uuid>,
        /// Name of the world model.
        world_model: String,
    }

    /// `ckp.world_model.compared`. The actual result of a plan, compared with the prediction.
    WorldModelCompared {
        /// Number of calls.
        calls: u64,
        /// How far the prediction was off, in thousandths.
        error_permille: u64,
        /// Calls that failed.
        errors: u64,
        /// Digest of everything that was weighed.
        planned_hash: Digest,
        /// Calls that were predicted.
        predicted_calls: Option<u64>,
        /// Tokens that were predicted.
        predicted_tokens: Option<u64>,
        /// Name of the skill.
        skill: String,
        /// Number of tokens.
        tokens: u64,
        /// Id of the turn.
        turn: Uuid,
        /// Name of the world model.
        world_model: String,
    }
}
