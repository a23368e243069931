//! Decides what an agent may do, from policy rules and the autonomy, and explains every decision.
//!
//! *Owns:* the compiled rule set, first-match decisions and their order of strictness, `path_within`, explanations, warnings.
//! *Depends on:* clawk-manifest's validated Policy; nothing that blocks. *Must not know:* I/O, time, randomness: the caller passes
//! in the usage and the working directory. *Start reading at:* [`engine`], then [`rule`], then [`path`]; for people: [`layers`],
//! then [`change`].

pub mod change;
mod confidential;
pub mod engine;
pub mod explain;
mod glob;
mod index;
pub mod injection;
pub mod input;
pub mod layers;
pub mod leak;
pub mod path;
pub mod rule;
pub mod screen;
pub mod source;
pub mod testing;
pub mod value;
mod value_sources;
mod value_text;
mod value_words;
pub mod verdict;

#[cfg(test)]
mod tests;

pub use change::{EditableInputs, VerdictChange, VerdictEdit, VerdictOutcome};
pub use engine::{Engine, HiddenRoots, PolicySubject, UsageView};
pub use explain::{DecisionExplanation, ExplanationStep, WhyNot};
pub use layers::{LayerAnswer, LayeredDecision, PolicyLayer, PolicyLayers};
pub use screen::{InjectionScreening, ScreeningPolicy};
pub use source::{CompileError, PolicyWarning, WarningKind, micro_usd};
pub use value::TARGETS_ANNOTATION;
pub use value_sources::{CONFIDENTIAL_ANNOTATION, LOOKUP_ANNOTATION, ToolResult, ValueSources};
pub use value_words::ValueOrigin;
pub use verdict::{Approval, Effect, SpentLimit, TimeoutDefault, Verdict, autonomy_verdict};
