//! The test report, for people and for programs.

use std::time::Duration;

use serde::Serialize;

use super::play::{AgentName, VectorFailure};
use super::vector::Vector;

/// The JSON report.
#[derive(Debug, Serialize)]
pub(crate) struct CkpReport {
    /// The agent's own name if it gave one, else the target as given.
    pub(crate) implementation: String,
    /// The agent's version from `claw.initialize`.
    pub(crate) version: Option<String>,
    /// The requested level.
    pub(crate) level: u8,
    pub(crate) total: usize,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) results: Vec<VectorResult>,
    #[serde(skip)]
    named: bool,
}

/// The result of one vector.
#[derive(Debug, Serialize)]
pub(crate) struct VectorResult {
    pub(crate) id: String,
    pub(crate) level: u8,
    pub(crate) title: String,
    pub(crate) clause: String,
    pub(crate) passed: bool,
    pub(crate) duration_ms: u64,
    /// Why it failed: the expected and received values, and the messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<VectorFailure>,
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
    /// Makes a report. With a version the name is final; otherwise the agent's own name replaces it.
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

    /// Sets the name to the first one that the agent gives.
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
