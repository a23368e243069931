//! Atlases in the kernel: the set in force, sessions with their resolutions, what has been spent (DESIGN §2, R12, R29).
//!
//! A turn resolves before its model is asked (`turn`); an action's call passes `gate` on the one path; whoever speaks
//! CRA itself comes through [`crate::CraHandle`]. Everything that happens is in the journal, and what must outlive a restart is folded
//! from it (`restore`).

pub(crate) mod atlases;
pub(crate) mod book;
pub(crate) mod error;
pub(crate) mod event;
mod gate;
mod replay;
pub(crate) mod resolve;
mod restore;
pub(crate) mod turn;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use clawk_carp::atlas::{AtlasAction, Executor};
use clawk_carp::set::SetError;
use clawk_carp::{Atlas, AtlasSet};
use clawk_proto::carp::{CarpRequester, CarpTask};
use jiff::Timestamp;
use uuid::Uuid;

pub use atlases::{AtlasView, Origin};
pub(crate) use book::CarpSessions;
pub use book::{ApprovalState, ApprovalView, NewSession, SessionView};
pub use error::CarpError;
pub use event::ResolutionRecord;
pub(crate) use gate::{AtlasGate, AtlasJudgement, DeferredApproval, pend};
pub use replay::{AtlasRef, CarpFacts, atlas_of};
pub(crate) use replay::{OutsideAtlasEvent, facts};
pub(crate) use restore::{follow, restore};
pub(crate) use turn::{TurnGrant, for_turn, goal_of};

use crate::catalog::ToolCatalog;
use crate::event::{JournalWriter, Thread};

/// The settings of Atlases from `[atlases]` of `clawk.toml`.
#[derive(Debug, Clone)]
pub struct AtlasSettings {
    /// Loaded at the start.
    pub loaded: Vec<Arc<Atlas>>,
    /// What no policy mentions is denied (R29).
    pub strict: bool,
    /// How long a resolution lives, seconds; at most 86,400.
    pub ttl_seconds: u32,
    /// How far a request's timestamp may be off, milliseconds; `None`: any.
    pub clock_skew_ms: Option<u64>,
    /// Tokens of context that one turn is given, over all packs.
    pub max_context_tokens: u64,
    /// The tool that runs actions which name none and have none of their own name.
    pub fallback: Option<String>,
    /// CRA is served: sessions and Atlases that came over the API are taken up again at the start.
    pub served: bool,
}

impl Default for AtlasSettings {
    fn default() -> Self {
        Self {
            loaded: Vec::new(),
            strict: false,
            ttl_seconds: 3600,
            clock_skew_ms: Some(300_000),
            max_context_tokens: 8_000,
            fallback: None,
            served: false,
        }
    }
}

impl AtlasSettings {
    fn options(&self) -> clawk_carp::Options {
        clawk_carp::Options {
            strict: self.strict,
            ttl_seconds: self.ttl_seconds,
        }
    }
}

/// The Atlases in force, compiled together.
#[derive(Debug)]
pub(crate) struct LoadedAtlases {
    pub(crate) set: AtlasSet,
    pub(crate) origins: BTreeMap<Arc<str>, Origin>,
    /// Tools that are only reached through actions.
    executors: HashSet<Box<str>>,
    /// So many times Atlases came or went over the API, as the journal has it: with the configuration, this names the set.
    pub(crate) changes: u64,
}

impl LoadedAtlases {
    fn new(
        atlases: Vec<Arc<Atlas>>,
        origins: BTreeMap<Arc<str>, Origin>,
        changes: u64,
        config: &AtlasSettings,
    ) -> Result<Self, SetError> {
        let mut executors: HashSet<Box<str>> =
            config.fallback.iter().map(|name| name.as_str().into()).collect();
        for action in atlases.iter().flat_map(|atlas| &atlas.actions) {
            if let Some(Executor::Tool(name)) = &action.executor {
                executors.insert(name.clone());
            }
        }
        Ok(Self {
            set: AtlasSet::compile(atlases, config.options())?,
            origins,
            executors,
            changes,
        })
    }
}

/// The kernel's CRA side. Empty, it costs nothing and changes nothing.
#[derive(Debug)]
pub(crate) struct CarpRuntime {
    /// The Identity's name: who asks in the agent's own requests.
    agent_id: String,
    /// The runtime's own chain.
    root: Thread,
    pub(crate) scribe: JournalWriter,
    pub(crate) config: AtlasSettings,
    loaded: RwLock<Arc<LoadedAtlases>>,
    books: Mutex<CarpSessions>,
    /// One change of the set at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

impl CarpRuntime {
    /// Compiles what the configuration names.
    ///
    /// # Errors
    /// The Atlases don't go together.
    pub(crate) fn new(
        config: AtlasSettings,
        agent_id: &str,
        root: Thread,
        scribe: JournalWriter,
    ) -> Result<Self, SetError> {
        let origins = config
            .loaded
            .iter()
            .map(|atlas| (Arc::clone(&atlas.id), Origin::Configured))
            .collect();
        let loaded = LoadedAtlases::new(config.loaded.clone(), origins, 0, &config)?;
        Ok(Self {
            agent_id: agent_id.to_owned(),
            root,
            scribe,
            config,
            loaded: RwLock::new(Arc::new(loaded)),
            books: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        })
    }

    /// The clock as CARP reads it.
    pub(crate) fn now(&self) -> Timestamp {
        // silent-ok: a clock beyond the year 9999 makes every resolution expired, never valid
        Timestamp::from_microsecond(self.scribe.now().0).unwrap_or(Timestamp::MAX)
    }

    /// An id of the clock's.
    pub(crate) fn uuid(&self) -> Uuid {
        self.scribe.clock().uuid()
    }

    /// A thread of the runtime's own chain.
    pub(crate) const fn root(&self, span: Uuid) -> Thread {
        self.root.child(span)
    }

    pub(crate) fn loaded(&self) -> Arc<LoadedAtlases> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, loaded: LoadedAtlases) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, CarpSessions> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No Atlas governs.
    pub(crate) fn is_empty(&self) -> bool {
        self.loaded().set.atlases().is_empty()
    }

    /// The name is an action's.
    pub(crate) fn is_action(&self, name: &str) -> bool {
        self.loaded().set.action(name).is_some()
    }

    /// The tool is not to be called or offered by its own name: an action stands before it.
    pub(crate) fn hides(&self, tool: &str) -> bool {
        let loaded = self.loaded();
        loaded.executors.contains(tool) || loaded.set.action(tool).is_some()
    }

    /// The tool that runs an action, by name: the one that it names, else the one of its own name, else the fallback.
    pub(crate) fn tool_of(&self, action: &AtlasAction, catalog: &ToolCatalog) -> Option<String> {
        if let Some(Executor::Tool(name)) = &action.executor {
            return catalog.get(name).map(|entry| entry.name.to_string());
        }
        let own = &*action.shown.action_id;
        if catalog.get(own).is_some() {
            return Some(own.to_owned());
        }
        // What names an endpoint or a server means it, and nothing else.
        let free = action.executor.is_none();
        self.config.fallback.clone().filter(|_| free)
    }
}

/// Under which resolution a call is made.
#[derive(Debug, Clone)]
pub(crate) struct ResolutionContext {
    pub(crate) resolution: Uuid,
    /// What this execution will be called.
    pub(crate) execution: Uuid,
    pub(crate) requester: CarpRequester,
    pub(crate) task: Option<CarpTask>,
}
