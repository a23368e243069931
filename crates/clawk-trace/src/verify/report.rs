//! The result of a verification.

use clawk_proto::{Digest, SessionId};
use serde::{Serialize, Serializer};

use crate::canonical::Profile;

/// The fault of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Its own hash does not fit its bytes: it was changed.
    BadHash,
    /// It does not name the hash of the event before.
    BrokenLink,
    /// One or more events before it are missing.
    Gap,
    /// Its sequence was there already.
    Duplicate,
    /// It can't be read, is cut off, or holds what no hash covers.
    Malformed,
    /// A session does not begin with sequence 0 after 64 zeros.
    WrongGenesis,
}

impl FaultKind {
    /// The word in `error` (CRA conformance 2.2 where it names one).
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
    /// What kind.
    pub kind: FaultKind,
    /// For people.
    pub detail: String,
    /// The event's index in the file, from 0: `error_at`.
    pub index: u64,
    /// Its line, from 1.
    pub line: u64,
    /// Its session, if it could be read.
    pub session: Option<SessionId>,
    /// Its sequence, if it could be read.
    pub sequence: Option<u64>,
}

/// One session's chain, as far as it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionReport {
    /// The session.
    pub session_id: SessionId,
    /// Events that hold.
    pub events: u64,
    /// The hash of the last of them.
    pub head: Digest,
    /// The profiles that all of them satisfy.
    pub profiles: Vec<Profile>,
}

/// The outcome of a verification; serialises as DESIGN §6 says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationReport {
    /// Every event holds. An empty trace is valid.
    pub valid: bool,
    /// Events read, those behind a fault included.
    pub event_count: u64,
    /// The first fault.
    pub fault: Option<TraceFault>,
    /// The profiles that all sessions satisfy, as far as they hold; empty for an empty trace.
    pub profiles: Vec<Profile>,
    /// In order of appearance.
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
    /// Takes a fault in that is known from elsewhere, unless there is one already.
    pub fn refuse(&mut self, fault: TraceFault) {
        self.valid = false;
        self.fault.get_or_insert(fault);
    }

    /// Adds a fault that lies behind the last event: what should be there is known from elsewhere.
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
