//! The result of a verification.

use clawk_proto::{Digest, SessionId};
use serde::{Serialize, Serializer};

use crate::canonical::Profile;

/// The fault of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The event's hash does not match its bytes: it was changed.
    BadHash,
    /// The event does not name the previous event's hash.
    BrokenLink,
    /// One or more events before it are missing.
    Gap,
    /// Its sequence number occurred before.
    Duplicate,
    /// The event can't be parsed, is cut off, or has members that no hash covers.
    Malformed,
    /// The session does not begin with sequence number 0 and 64 zeros.
    WrongGenesis,
}

impl FaultKind {
    /// The code in `error` (that of CRA conformance 2.2 if it has one).
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::BadHash => "hash_mismatch",
            Self::BrokenLink => "chain_broken",
            Self::Gap => "sequence_gap",
            Self::Duplicate => "sequence_duplicate",
            Self::Malformed => "malformed",
            Self::WrongGenesis => "invalid_genesis",
        }
    }
}

/// The first fault of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The detail, for people.
    pub detail: String,
    /// The event's index in the file, from 0: `error_at`.
    pub index: u64,
    /// The line number, from 1.
    pub line: u64,
    /// Its session, if it could be read.
    pub session: Option<SessionId>,
    /// Its sequence, if it could be read.
    pub sequence: Option<u64>,
}

/// The valid part of one session's chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionReport {
    /// The session.
    pub session_id: SessionId,
    /// The number of valid events.
    pub events: u64,
    /// The hash of the last valid event.
    pub head: Digest,
    /// The profiles that all these events satisfy.
    pub profiles: Vec<Profile>,
}

/// The result of a verification; it serialises as in DESIGN §6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationReport {
    /// Whether every event is valid. An empty trace is valid.
    pub valid: bool,
    /// The number of events read, including those after a fault.
    pub event_count: u64,
    /// The first fault.
    pub fault: Option<TraceFault>,
    /// The profiles that the valid parts of all sessions satisfy; empty for an empty trace.
    pub profiles: Vec<Profile>,
    /// The sessions, in order of appearance.
    pub sessions: Vec<SessionReport>,
}

impl VerificationReport {
    pub(super) fn new(
        event_count: u64,
        fault: Option<TraceFault>,
        profiles: Vec<Profile>,
        sessions: Vec<SessionReport>,
    ) -> Self {
        let profiles = if sessions.is_empty() { Vec::new() } else { profiles };
        Self {
            valid: fault.is_none(),
            event_count,
            fault,
            profiles,
            sessions,
        }
    }
}

impl VerificationReport {
    /// Adds a fault that another check has found, unless there is one already.
    pub fn add_fault(&mut self, fault: TraceFault) {
        self.valid = false;
        self.fault.get_or_insert(fault);
    }

    /// Adds a fault after the last event: another source shows which events are missing.
    pub fn refuse_end(&mut self, kind: FaultKind, detail: String, session: SessionId, sequence: u64) {
        let (index, line) = (self.event_count, self.event_count + 1);
        self.valid = false;
        self.fault = Some(TraceFault {
            kind,
            detail,
            index,
            line,
            session: Some(session),
            sequence: Some(sequence),
        });
    }
}

impl Serialize for VerificationReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WireReport<'a> {
            valid: bool,
            event_count: u64,
            error: Option<&'static str>,
            error_at: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            kind: Option<FaultKind>,
            #[serde(skip_serializing_if = "Option::is_none")]
            detail: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            line: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            session_id: Option<SessionId>,
            #[serde(skip_serializing_if = "Option::is_none")]
            sequence: Option<u64>,
            profiles: &'a [Profile],
            sessions: &'a [SessionReport],
        }
        let fault = self.fault.as_ref();
        WireReport {
            valid: self.valid,
            event_count: self.event_count,
            error: fault.map(|f| f.kind.code()),
            error_at: fault.map(|f| f.index),
            kind: fault.map(|f| f.kind),
            detail: fault.map(|f| f.detail.as_str()),
            line: fault.map(|f| f.line),
            session_id: fault.and_then(|f| f.session),
            sequence: fault.and_then(|f| f.sequence),
            profiles: &self.profiles,
            sessions: &self.sessions,
        }
        .serialize(serializer)
    }
}
