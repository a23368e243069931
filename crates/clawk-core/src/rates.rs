//! `rate_limits.tool_calls_per_minute` (CKP §5.8, R16a): how many calls may begin in a minute, over the whole agent. Of several
//! policies the strictest counts. A start rebuilds the window from the journal. The use of models is limited by budgets instead.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::Policy;

use crate::error::{CallError, DeniedBy};
use crate::time::Timestamp;

/// Length of the window in milliseconds.
const MINUTE_MS: i64 = 60_000;

/// The window of one agent.
#[derive(Debug)]
pub struct CallRateWindow {
    bound: Option<CallRateBound>,
    calls: Mutex<VecDeque<Timestamp>>,
}

/// A limit, with the policy that sets it.
#[derive(Debug)]
struct CallRateBound {
    calls_per_minute: u64,
    policy: String,
}

impl CallRateWindow {
    /// The rates of these policies; nothing is counted yet.
    pub fn new(policies: &[Policy]) -> Self {
        let bounds = policies.iter().filter_map(|policy| {
            Some(CallRateBound {
                calls_per_minute: policy.rate_limits.tool_calls_per_minute?,
                policy: policy.name.clone(),
            })
        });
        Self {
            bound: bounds.min_by_key(|bound| bound.calls_per_minute),
            calls: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Timestamp>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far back the journal must be read; `None`: nothing is limited.
    pub fn window_ms(&self) -> Option<i64> {
        self.bound.as_ref().map(|_| MINUTE_MS)
    }

    /// How many calls a minute holds; `None`: nothing is limited.
    pub fn per_minute(&self) -> Option<u64> {
        self.bound.as_ref().map(|bound| bound.calls_per_minute)
    }

    /// The refusal of a call where all hosts together have used the minute up.
    pub fn rate_exceeded(&self, tool: &str, wait_ms: u64) -> CallError {
        let bound = self.bound.as_ref();
        CallError::Denied {
            tool: tool.chars().take(64).collect(),
            by: DeniedBy::Rate,
            rule_id: None,
            policy: bound.map(|bound| bound.policy.clone()),
            reason: format!(
                "`tool_calls_per_minute` is {}, and they are used up",
                bound.map_or(0, |bound| bound.calls_per_minute)
            ),
            retry_after_ms: Some(wait_ms.saturating_add(1)),
        }
    }

    /// A call that was let pass before this process began.
    pub fn restore_call(&self, at: Timestamp) {
        self.lock().push_back(at);
    }

    /// Takes one place in the minute.
    ///
    /// # Errors
    /// -32011 with the wait, when the minute is full.
    pub fn take_call(&self, tool: &str, now: Timestamp) -> Result<(), CallError> {
        let mut calls = self.lock();
        self.check_rate(&mut calls, tool, now)?;
        if self.bound.is_some() {
            calls.push_back(now);
        }
        Ok(())
    }

    /// Checks whether there is a place, without taking it.
    ///
    /// # Errors
    /// As [`CallRateWindow::take_call`].
    pub fn has_room(&self, tool: &str, now: Timestamp) -> Result<(), CallError> {
        self.check_rate(&mut self.lock(), tool, now)
    }

    fn check_rate(
        &self,
        calls: &mut VecDeque<Timestamp>,
        tool: &str,
        now: Timestamp,
    ) -> Result<(), CallError> {
        let Some(bound) = &self.bound else {
            return Ok(());
        };
        while calls.front().is_some_and(|at| now.0 - at.0 >= MINUTE_MS * 1000) {
            calls.pop_front();
        }
        let taken = u64::try_from(calls.len()).unwrap_or(u64::MAX);
        if taken < bound.calls_per_minute {
            return Ok(());
        }
        let oldest = calls.front().copied().unwrap_or(now);
        let wait_us = (oldest.0 + MINUTE_MS * 1000 - now.0).max(1000);
        Err(CallError::Denied {
            tool: tool.chars().take(64).collect(),
            by: DeniedBy::Rate,
            rule_id: None,
            policy: Some(bound.policy.clone()),
            reason: format!(
                "`tool_calls_per_minute` is {}, and they are used up",
                bound.calls_per_minute
            ),
            retry_after_ms: Some(u64::try_from(wait_us.div_euclid(1000)).unwrap_or(1) + 1),
        })
    }
}
