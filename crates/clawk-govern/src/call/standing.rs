//! Standing grants (R13): after one, a person is not asked again for the same call. A grant comes from a person's answer, covers
//! only what that person saw, is listed, and can be revoked.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_policy::path::{CallPaths, RealLocations, RuleRoots};
use clawk_proto::{Digest, SessionId};
use serde_json::{Map, Value};

use crate::event::{canonical, digest};
use crate::time::Timestamp;

/// Largest number of grants. A further one ends the oldest.
const MAX_GRANTS: usize = 1024;

/// How long a standing grant is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantLifetime {
    /// Until this session ends.
    Session(SessionId),
    /// Until it is revoked.
    Always,
}

impl GrantLifetime {
    /// Returns the lifetime's word in the trace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Always => "always",
        }
    }
}

/// A standing grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingGrant {
    /// Id with which the grant is revoked.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// Lifetime of the grant.
    pub lasting: GrantLifetime,
    /// The grant covers calls whose paths, as written and resolved, are all in this folder; `None`: calls with exactly the
    /// arguments that were shown. The folder is a resolved path.
    pub folder: Option<PathBuf>,
    /// Digest of the resolved paths of those arguments, if they differed from the paths as written.
    pub led: Option<Digest>,
    /// Digest of those arguments.
    pub parameters: Digest,
    /// Digest of the sandbox plan that was shown.
    pub plan: Digest,
    /// Digest of the manifest, and of the programs, scripts, servers and endpoints that the call used. `None`: an earlier version
    /// gave the grant without recording them; it covers nothing.
    pub basis: Option<Digest>,
    /// The person who gave it.
    pub by: String,
    /// First line of the text that the person was shown.
    pub shown: String,
    /// Time of the grant.
    pub at: Timestamp,
}

/// The preconditions of a call that a standing grant compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum GrantBasis {
    /// They were not examined, because this tool has no standing grant.
    #[default]
    Unseen,
    /// Digest of their current state.
    Seen(Digest),
    /// This is a replay: they can't be examined, and the record says whether a person was asked.
    Recorded { asked: bool },
}

/// The properties of a call that a standing grant compares.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantQuery<'a> {
    pub(super) session: SessionId,
    pub(super) tool: &'a str,
    pub(super) parameters: Digest,
    pub(super) plan: Digest,
    pub(super) basis: GrantBasis,
    pub(super) arguments: &'a Map<String, Value>,
    pub(super) schema: &'a Value,
    pub(super) workdir: &'a Path,
    /// The call's resolved paths.
    pub(super) places: Option<&'a RealLocations>,
}

impl GrantQuery<'_> {
    fn call_paths(&self) -> CallPaths {
        CallPaths::from_arguments(self.arguments, Some(self.schema), self.workdir, self.places)
    }
}

/// Returns the digest of a call's resolved paths if they differ from the paths as written.
pub(super) fn resolved_digest(paths: &CallPaths) -> Option<Digest> {
    let elsewhere = paths.redirected_paths();
    (!elsewhere.is_empty()).then(|| digest(&canonical(&elsewhere)))
}

impl StandingGrant {
    fn covers_call(&self, call: &GrantQuery<'_>) -> bool {
        let stands = match call.basis {
            GrantBasis::Unseen => false,
            GrantBasis::Seen(basis) => self.basis == Some(basis) && self.plan == call.plan,
            // A replay's plan does not know the own files of the original machine.
            GrantBasis::Recorded { asked } => !asked,
        };
        stands && self.is_for(call)
    }

    /// Returns whether the grant is for such a call, without comparing programs, servers and the sandbox.
    fn is_for(&self, call: &GrantQuery<'_>) -> bool {
        let session = match self.lasting {
            GrantLifetime::Session(session) => session == call.session,
            GrantLifetime::Always => true,
        };
        session
            && self.tool == call.tool
            && match &self.folder {
                None => self.parameters == call.parameters && self.led == resolved_digest(&call.call_paths()),
                Some(folder) => call
                    .call_paths()
                    .all_within(&RuleRoots::new(vec![folder.clone()], call.places)),
            }
    }
}

/// All standing grants.
#[derive(Debug, Default)]
pub struct GrantStore(Mutex<Vec<StandingGrant>>);

impl GrantStore {
    fn lock(&self) -> MutexGuard<'_, Vec<StandingGrant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the grant that covers a call, if there is one.
    pub(super) fn find_covering(&self, call: &GrantQuery<'_>) -> Option<StandingGrant> {
        self.lock().iter().find(|held| held.covers_call(call)).cloned()
    }

    /// Returns a grant for such a call that no longer covers it, because it was given for another manifest, program, server or
    /// sandbox.
    pub(super) fn find_outdated(&self, call: &GrantQuery<'_>) -> Option<StandingGrant> {
        self.lock().iter().find(|held| held.is_for(call)).cloned()
    }

    pub fn add(&self, held: StandingGrant) {
        let mut all = self.lock();
        all.retain(|other| other.id != held.id);
        if all.len() >= MAX_GRANTS {
            all.remove(0);
        }
        all.push(held);
    }

    /// Removes a grant. Returns whether it existed.
    pub fn remove(&self, id: &str) -> bool {
        let mut all = self.lock();
        let before = all.len();
        all.retain(|held| held.id != id);
        all.len() < before
    }

    /// Returns the folders of this tool's grants that have one; `None`: the tool has no grant.
    pub(super) fn of_tool(&self, tool: &str) -> Option<Vec<PathBuf>> {
        let all = self.lock();
        let mut of_tool = all.iter().filter(|held| held.tool == tool).peekable();
        of_tool.peek()?;
        Some(of_tool.filter_map(|held| held.folder.clone()).collect())
    }

    pub fn contains(&self, id: &str) -> bool {
        self.lock().iter().any(|held| held.id == id)
    }

    /// Removes the grants of a session that has ended.
    pub fn forget_session(&self, session: SessionId) {
        self.lock()
            .retain(|held| held.lasting != GrantLifetime::Session(session));
    }

    pub fn list_grants(&self) -> Vec<StandingGrant> {
        self.lock().clone()
    }
}
