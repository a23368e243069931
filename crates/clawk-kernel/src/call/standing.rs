//! Standing grants (R13): what spares a person the same question again. They come from what a person answered, cover what
//! that person saw and nothing wider, are listed and can be revoked.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_policy::path::{CallPaths, RealLocations, RuleRoots};
use clawk_proto::{Digest, SessionId};
use serde_json::{Map, Value};

use crate::event::{canonical, digest};
use crate::time::Timestamp;

/// Grants that stand at a time; a further one ends the oldest.
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
    /// The word in the trace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Always => "always",
        }
    }
}

/// A standing grant, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingGrant {
    /// What revokes it.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// Until when.
    pub lasting: GrantLifetime,
    /// Every path of the call within this folder, by its words and by where it leads; `None`: exactly the arguments that were
    /// shown. It is the place itself: no link was on the way to it.
    pub folder: Option<PathBuf>,
    /// Where the paths of those arguments led, if a link or another name led them elsewhere than they say.
    pub led: Option<Digest>,
    /// The digest of those arguments.
    pub parameters: Digest,
    /// The sandbox plan that was shown.
    pub plan: Digest,
    /// The manifest that the agent ran, and the programs, scripts, servers and endpoints that the call acted through. `None`: an
    /// earlier version gave the grant without looking at them; it covers nothing.
    pub basis: Option<Digest>,
    /// Who gave it.
    pub by: String,
    /// The first line that the person was shown.
    pub shown: String,
    /// When.
    pub at: Timestamp,
}

/// What a call acts through, as a standing grant looks at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum GrantBasis {
    /// The facts were not examined, because this tool has no standing grant.
    #[default]
    Unseen,
    /// As it is now.
    Seen(Digest),
    /// This is a replay: the facts can't be examined, and the record says whether a person was asked.
    Recorded { asked: bool },
}

/// A call, as a standing grant looks at it.
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
    /// Where its paths lead.
    pub(super) places: Option<&'a RealLocations>,
}

impl GrantQuery<'_> {
    fn paths(&self) -> CallPaths {
        CallPaths::of(self.arguments, Some(self.schema), self.workdir, self.places)
    }
}

/// Where a call's paths lead, if that is elsewhere than they say.
pub(super) fn led(paths: &CallPaths) -> Option<Digest> {
    let elsewhere = paths.elsewhere();
    (!elsewhere.is_empty()).then(|| digest(&canonical(&elsewhere)))
}

impl StandingGrant {
    fn covers(&self, call: &GrantQuery<'_>) -> bool {
        let stands = match call.basis {
            GrantBasis::Unseen => false,
            GrantBasis::Seen(basis) => self.basis == Some(basis) && self.plan == call.plan,
            // The plan of a replay knows nothing of that machine's own files.
            GrantBasis::Recorded { asked } => !asked,
        };
        stands && self.is_for(call)
    }

    /// It was given for such a call, whatever the call acts through, and whatever encloses it by now.
    fn is_for(&self, call: &GrantQuery<'_>) -> bool {
        let session = match self.lasting {
            GrantLifetime::Session(session) => session == call.session,
            GrantLifetime::Always => true,
        };
        session
            && self.tool == call.tool
            && match &self.folder {
                None => self.parameters == call.parameters && self.led == led(&call.paths()),
                Some(folder) => call
                    .paths()
                    .all_within(&RuleRoots::new(vec![folder.clone()], call.places)),
            }
    }
}

/// All that stand.
#[derive(Debug, Default)]
pub(crate) struct GrantStore(Mutex<Vec<StandingGrant>>);

impl GrantStore {
    fn lock(&self) -> MutexGuard<'_, Vec<StandingGrant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The grant that covers a call, if one does.
    pub(super) fn covering(&self, call: &GrantQuery<'_>) -> Option<StandingGrant> {
        self.lock().iter().find(|held| held.covers(call)).cloned()
    }

    /// A grant that was given for such a call and does not cover it, because it was given for another manifest, program, server or sandbox.
    pub(super) fn outdated(&self, call: &GrantQuery<'_>) -> Option<StandingGrant> {
        self.lock().iter().find(|held| held.is_for(call)).cloned()
    }

    pub(crate) fn add(&self, held: StandingGrant) {
        let mut all = self.lock();
        all.retain(|other| other.id != held.id);
        if all.len() >= MAX_GRANTS {
            all.remove(0);
        }
        all.push(held);
    }

    /// `true`: it stood.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut all = self.lock();
        let before = all.len();
        all.retain(|held| held.id != id);
        all.len() < before
    }

    /// Whether a grant for this tool stands, and the folders of those that are for one.
    pub(super) fn of_tool(&self, tool: &str) -> Option<Vec<PathBuf>> {
        let all = self.lock();
        let mut of_tool = all.iter().filter(|held| held.tool == tool).peekable();
        of_tool.peek()?;
        Some(of_tool.filter_map(|held| held.folder.clone()).collect())
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.lock().iter().any(|held| held.id == id)
    }

    /// The session is over; its grants with it.
    pub(crate) fn forget(&self, session: SessionId) {
        self.lock()
            .retain(|held| held.lasting != GrantLifetime::Session(session));
    }

    pub(crate) fn all(&self) -> Vec<StandingGrant> {
        self.lock().clone()
    }
}
