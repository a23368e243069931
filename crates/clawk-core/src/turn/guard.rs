//! The loop guard: a turn that goes in circles ends with an explanation instead of with an empty purse.

use std::collections::BTreeMap;

use clawk_proto::Digest;
use serde_json::{Map, Value};

use crate::canonical::{canonical, digest};

/// Model answers in one turn, unless `[budgets] steps_per_turn` says otherwise.
pub const MAX_STEPS: u32 = 48;
/// The same call with the same answer in one turn, unless `[budgets] repeats_per_turn` says otherwise.
pub const MAX_REPEATS: u32 = 5;
/// The longest cycle that is looked for, calls; and how often in a row makes it one.
const LONGEST_CYCLE: usize = 8;
const CYCLES: usize = 3;

/// The limits of the loop guard for one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Model answers.
    pub steps: u32,
    /// The same call with the same answer; 0: as often as it likes.
    pub repeats: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            steps: MAX_STEPS,
            repeats: MAX_REPEATS,
        }
    }
}

/// Why a turn was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopGuardStop {
    /// `steps`, `repeat` or `cycle`.
    pub guard: &'static str,
    /// For people and for the model.
    pub reason: String,
}

/// The calls of a turn with their answers, as digests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CallTrail {
    seen: BTreeMap<Digest, u32>,
    order: Vec<Digest>,
}

/// What the trail says of one more call.
#[derive(Debug, PartialEq)]
pub(super) enum Finding {
    Fine,
    /// Once more, and the turn ends: the model is told.
    Nearly(String),
    Stop(LoopGuardStop),
}

/// What makes two calls the same.
pub(super) fn call_digest(name: &str, arguments: &Result<Map<String, Value>, String>) -> Digest {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    match arguments {
        Ok(arguments) => bytes.extend(canonical(arguments)),
        Err(raw) => bytes.extend(raw.as_bytes()),
    }
    digest(&bytes)
}

impl CallTrail {
    /// Adds a call and its answer.
    pub(super) fn add(&mut self, tool: &str, call: Digest, answer: &str, bounds: Bounds) -> Finding {
        if bounds.repeats == 0 {
            return Finding::Fine;
        }
        let pair = digest(&[&call.0[..], answer.as_bytes()].concat());
        self.order.push(pair);
        let count = self.seen.entry(pair).or_default();
        *count += 1;
        let count = *count;
        if count >= bounds.repeats {
            return Finding::Stop(LoopGuardStop {
                guard: "repeat",
                reason: format!(
                    "the turn goes in circles: `{tool}` was called {count} times with the same arguments and gave the same answer each time (`[budgets] repeats_per_turn` of clawk.toml); say what should be done differently"
                ),
            });
        }
        if let Some(period) = self.find_cycle() {
            return Finding::Stop(LoopGuardStop {
                guard: "cycle",
                reason: format!(
                    "the turn goes in circles: the same {period} calls, `{tool}` the last of them, came {CYCLES} times in a row with the same answers; say what should be done differently"
                ),
            });
        }
        if count > 1 && count + 1 == bounds.repeats {
            return Finding::Nearly(format!(
                "[this call gave this same answer {count} times in this turn; once more ends the turn]"
            ));
        }
        Finding::Fine
    }

    /// The shortest run of two calls or more that the trail ends with several times.
    fn find_cycle(&self) -> Option<usize> {
        (2..=LONGEST_CYCLE).find(|&period| {
            let Some(from) = self.order.len().checked_sub(period * CYCLES) else {
                return false;
            };
            let tail = self.order.get(from..).unwrap_or_default();
            let (first, rest) = tail.split_at(period.min(tail.len()));
            // One call over and over is no cycle: that is counted by itself.
            first.windows(2).any(|pair| matches!(pair, [a, b] if a != b))
                && rest.chunks(period).all(|chunk| chunk == first)
        })
    }
}
