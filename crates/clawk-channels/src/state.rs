//! How a channel is (C12): what `clawk channels` shows.

use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_kernel::time::Timestamp;
use serde::Serialize;

/// How a channel is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Connected.
    Ready,
    /// Not connected now, or only in part; it mends itself.
    #[default]
    Degraded,
    /// A person has to mend it.
    Failed,
}

impl State {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// The current state of one channel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ChannelReport {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its transport.
    pub transport: String,
    /// How it is.
    pub state: State,
    /// Why it is not ready.
    pub reason: Option<String>,
    /// When the last message came in, RFC 3339.
    pub last_in: Option<String>,
    /// When the last message was delivered, RFC 3339.
    pub last_out: Option<String>,
    /// Messages that were taken in this run of the agent.
    pub accepted: u64,
    /// Repetitions of such.
    pub duplicates: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// Messages of groups that were not for the agent.
    pub ignored: u64,
    /// Messages that were delivered.
    pub delivered: u64,
    /// Answers that are owed.
    pub queued: u64,
    /// Answers that could not be delivered.
    pub dead: u64,
}

/// What happens to a channel, counted.
#[derive(Debug, Default)]
pub(crate) struct ChannelStatus(Mutex<ChannelReport>);

impl ChannelStatus {
    pub(crate) fn new(name: &str, kind: &str, transport: &str) -> Self {
        Self(Mutex::new(ChannelReport {
            name: name.to_owned(),
            kind: kind.to_owned(),
            transport: transport.to_owned(),
            reason: Some("it is being connected".to_owned()),
            ..ChannelReport::default()
        }))
    }

    fn lock(&self) -> MutexGuard<'_, ChannelReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current_report(&self) -> ChannelReport {
        self.lock().clone()
    }

    /// Moves; says in the log what changed.
    pub(crate) fn set_state(&self, state: State, reason: Option<String>) {
        let mut now = self.lock();
        if now.state != state || now.reason != reason {
            // What is ready has no reason, and shows none.
            let why = reason.as_deref().unwrap_or_default();
            match state {
                State::Ready => {
                    tracing::info!(target: clawk_kernel::OPERATOR, channel = %now.name, "the channel is ready")
                }
                State::Degraded => {
                    tracing::warn!(target: clawk_kernel::OPERATOR, channel = %now.name, why, "the channel is degraded")
                }
                State::Failed => {
                    tracing::error!(target: clawk_kernel::OPERATOR, channel = %now.name, why, "the channel has failed")
                }
            }
        }
        now.state = state;
        now.reason = reason;
    }

    pub(crate) fn note_inbound(&self, at: Timestamp, what: IngestKind) {
        let mut now = self.lock();
        now.last_in = Some(at.to_string());
        match what {
            IngestKind::Accepted => now.accepted += 1,
            IngestKind::Duplicate => now.duplicates += 1,
            IngestKind::Refused => now.refused += 1,
            IngestKind::Ignored => now.ignored += 1,
        }
    }

    pub(crate) fn note_sent(&self, at: Timestamp) {
        let mut now = self.lock();
        now.last_out = Some(at.to_string());
        now.delivered += 1;
    }
}

/// What became of something that came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IngestKind {
    Accepted,
    Duplicate,
    Refused,
    Ignored,
}
