//! A turn that has begun, or is to begin: with all that it needs to go on.

use std::collections::BTreeMap;

use clawk_proto::{MessageId, RequestId};

use crate::door::Origin;
use crate::purse::BudgetAmount;
use crate::skill::{RunningSkill, SkillCeiling};
use crate::turn::{Effect, Event, Turn};

/// A turn that was interrupted, ready to go on.
#[derive(Debug)]
pub(crate) struct OpenTurn {
    pub(crate) message: MessageId,
    /// Whose message it answers, with exactly the rights that were recorded (R39).
    pub(crate) origin: Origin,
    pub(crate) turn: Turn,
    pub(crate) effects: Vec<Effect>,
    pub(crate) ceilings: Vec<SkillCeiling>,
    /// Skills that joined it, whose budgets hold from there on.
    pub(crate) skills: Vec<RunningSkill>,
    /// What it spent before it was interrupted.
    pub(crate) spent: BudgetAmount,
    pub(crate) resumes: u32,
    /// The ids of calls that were asked for and have not ended, by the model's id: their questions are found by them.
    pub(crate) requests: BTreeMap<String, RequestId>,
    /// Ends of calls that came before that of a call ahead of them, by the model's id.
    pub(crate) early: BTreeMap<String, Event>,
}
