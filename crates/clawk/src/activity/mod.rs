//! The activity log: one line for each fact of the journal that an operator wants to see. `clawk serve` writes it to standard error
//! while it works, `clawk logs` reads the same lines from a state.
//!
//! A line has numbers, ids, fixed words, and names that the operator declared. It has no words of a person, a model, a tool or a
//! server.

mod describe;
mod follow;
mod json_log;
mod line;
#[cfg(test)]
mod tests;

pub(crate) use describe::ActivityDescriber;
pub(crate) use follow::{ActivityFollower, ActivitySettings};
pub(crate) use json_log::JsonLogFormatter;
pub(crate) use line::{ActivityLevel, ActivityPlace, LogFormat};
