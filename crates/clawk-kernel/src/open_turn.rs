//! A turn that has begun, or is to begin: with all that it needs to go on.

use std::collections::BTreeMap;

use clawk_proto::{MessageId, RequestId};

use crate::door::Origin;
use crate::purse::BudgetAmount;
use crate::skill::{RunningSkill, SkillCeiling};
use crate::turn::{Effect, Event, Turn};

/// An interrupted turn, ready to continue.
#[derive(Debug)]
pub(crate) struct OpenTurn {
    pub(crate) message: MessageId,
    /// The origin of its message, with exactly the recorded rights (R39).
    pub(crate) origin: Origin,
    pub(crate) turn: Turn,
    pub(crate) effects: Vec<Effect>,
    pub(crate) ceilings: Vec<SkillCeiling>,
    /// Skills that were added to it. Their budgets apply from then on.
    pub(crate) skills: Vec<RunningSkill>,
    /// The amount spent before the interruption.
    pub(crate) spent: BudgetAmount,
    pub(crate) resumes: u32,
    /// The request ids of calls without an end, by the model's id. Their approval requests are found by them.
    pub(crate) requests: BTreeMap<String, RequestId>,
    /// Ends of calls that came before the end of an earlier call, by the model's id.
    pub(crate) early: BTreeMap<String, Event>,
}
