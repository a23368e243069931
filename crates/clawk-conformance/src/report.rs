//! What came out, for people and for machines.

use std::time::Duration;

use serde::Serialize;

use super::play::{AgentName, VectorFailure};
use super::vector::Vector;

/// The JSON report.
#[derive(Debug, Serialize)]
pub struct CkpReport {
    /// The agent's own name where it told one, else the target as given.
    pub implementation: String,
    /// Its version, as told in `claw.initialize`.
    pub version: Option<String>,
    /// The level that was asked for.
    pub level: u8,
    /// Vectors played.
    pub total: usize,
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// Each vector, in the order they were played.
    pub results: Vec<VectorResult>,
    #[serde(skip)]
    named: bool,
}

/// One vector's result.
#[derive(Debug, Serialize)]
pub struct VectorResult {
    /// The vector's id.
    pub id: String,
    /// The level that requires it.
    pub level: u8,
    /// What it is about.
    pub title: String,
    /// The clause of the specification.
    pub clause: String,
    /// The agent did what the clause wants.
    pub passed: bool,
    /// How long it took, milliseconds.
    pub duration_ms: u64,
    /// Why it failed: what was expected and what came, with the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<VectorFailure>,
}

impl VectorResult {
    pub(super) fn new(vector: &Vector, verdict: Result<(), VectorFailure>, took: Duration) -> Self {
        let failure = verdict.err();
        Self {
            id: vector.id.clone(),
            level: vector.level,
            title: vector.title.clone(),
            clause: vector.clause.clone(),
            passed: failure.is_none(),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            failure,
        }
    }
}

impl CkpReport {
    /// With a version the name is settled; else the agent's own will take its place.
    pub(super) const fn new(implementation: String, version: Option<String>, level: u8) -> Self {
        Self {
            named: version.is_some(),
            implementation,
            version,
            level,
            total: 0,
            passed: 0,
            failed: 0,
            results: Vec::new(),
        }
    }

    /// The first name that the agent gives itself stands.
    pub(super) fn name_agent(&mut self, agent: Option<AgentName>) {
        if let Some(AgentName { name, version }) = agent.filter(|_| !self.named) {
            (self.implementation, self.version, self.named) = (name, Some(version), true);
        }
    }

    pub(super) fn add(&mut self, outcome: VectorResult) {
        self.total += 1;
        if outcome.passed {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        self.results.push(outcome);
    }
}
