//! Atlases in the kernel: the set in force, sessions with their resolutions, used limits (DESIGN §2, R12, R29).
//!
//! A turn makes a resolution before it asks its model (`turn`). An action's call passes `gate` on the call path. CRA clients use
//! the kernel's `CraHandle`. Every step is in the journal, and `restore` rebuilds from it what must survive a restart.

pub mod atlases;
pub mod book;
pub mod error;
pub mod event;
mod gate;
mod replay;
pub mod resolve;
mod restore;
pub mod turn;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use clawk_carp::atlas::{AtlasAction, Executor};
use clawk_carp::set::SetError;
use clawk_carp::{Atlas, AtlasSet};
use clawk_proto::carp::{CarpRequester, CarpTask};
use jiff::Timestamp;
use uuid::Uuid;

pub use atlases::{AtlasView, Origin};
pub use book::CarpSessions;
pub use book::{ApprovalState, ApprovalView, NewSession, SessionView};
pub use error::CarpError;
pub use event::ResolutionRecord;
pub use gate::{AtlasGate, AtlasJudgement, DeferredApproval, defer_approval};
pub use replay::{AtlasRef, CarpFacts, atlas_of};
pub use replay::{OutsideAtlasEvent, record_facts};
pub use restore::{apply_remote_event, restore_state};
pub use turn::{TurnGrant, for_turn, goal_of};

use crate::catalog::ToolCatalog;
use crate::event::{JournalWriter, Thread};

/// The settings of Atlases from `[atlases]` of `clawk.toml`.
#[derive(Debug, Clone)]
pub struct AtlasSettings {
    /// Atlases loaded at the start.
    pub loaded: Vec<Arc<Atlas>>,
    /// Actions that no policy mentions are denied (R29).
    pub strict: bool,
    /// Lifetime of a resolution in seconds; at most 86,400.
    pub ttl_seconds: u32,
    /// Allowed deviation of a request's timestamp, in milliseconds; `None`: any.
    pub clock_skew_ms: Option<u64>,
    /// Largest context for one turn over all packs, in tokens.
    pub max_context_tokens: u64,
    /// The tool that runs actions which name no tool and have no tool with their own name.
    pub fallback: Option<String>,
    /// CRA is served: sessions and Atlases that were loaded over the API are restored at the start.
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
pub struct LoadedAtlases {
    /// The compiled Atlases.
    pub set: AtlasSet,
    /// The origin of each, by its id.
    pub origins: BTreeMap<Arc<str>, Origin>,
    /// Tools that can be reached only through actions.
    executors: HashSet<Box<str>>,
    /// Number of Atlas changes over the API, as recorded in the journal. Together with the configuration it identifies the set.
    pub changes: u64,
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

/// The CRA part of the kernel. Without Atlases it has no cost and no effect.
#[derive(Debug)]
pub struct CarpRuntime {
    /// The Identity's name, which the agent's own requests use.
    agent_id: String,
    /// The runtime's own chain.
    root: Thread,
    /// Writes the journal.
    pub scribe: JournalWriter,
    /// The settings.
    pub config: AtlasSettings,
    loaded: RwLock<Arc<LoadedAtlases>>,
    books: Mutex<CarpSessions>,
    /// Locked while the set changes, so that changes happen one at a time.
    pub changing: tokio::sync::Mutex<()>,
}

impl CarpRuntime {
    /// Compiles the configured Atlases.
    ///
    /// # Errors
    /// The Atlases are not compatible.
    pub fn new(
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

    /// Returns the current time for CARP.
    pub fn now(&self) -> Timestamp {
        // silent-ok: a clock after the year 9999 makes every resolution expired, never valid
        Timestamp::from_microsecond(self.scribe.now().0).unwrap_or(Timestamp::MAX)
    }

    /// Returns a new id from the clock.
    pub fn new_uuid(&self) -> Uuid {
        self.scribe.clock().new_uuid()
    }

    /// Returns a thread of the runtime's own chain.
    pub const fn root_thread(&self, span: Uuid) -> Thread {
        self.root.child(span)
    }

    /// Returns the Atlases in force.
    pub fn loaded_atlases(&self) -> Arc<LoadedAtlases> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace_atlases(&self, loaded: LoadedAtlases) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    /// Locks the sessions.
    pub fn lock_sessions(&self) -> MutexGuard<'_, CarpSessions> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether no Atlas governs.
    pub fn is_empty(&self) -> bool {
        self.loaded_atlases().set.atlases().is_empty()
    }

    /// Returns whether the name is an action's.
    pub fn is_action(&self, name: &str) -> bool {
        self.loaded_atlases().set.action(name).is_some()
    }

    /// Returns whether the tool must not be called or offered by its own name, because an action controls it.
    pub fn hides_tool(&self, tool: &str) -> bool {
        let loaded = self.loaded_atlases();
        loaded.executors.contains(tool) || loaded.set.action(tool).is_some()
    }

    /// Returns the name of the tool that runs an action: the one that it names, else the one with its own name, else the fallback.
    pub fn tool_of(&self, action: &AtlasAction, catalog: &ToolCatalog) -> Option<String> {
        if let Some(Executor::Tool(name)) = &action.executor {
            return catalog.get(name).map(|entry| entry.name.to_string());
        }
        let own = &*action.shown.action_id;
        if catalog.get(own).is_some() {
            return Some(own.to_owned());
        }
        // An action that names an endpoint or a server uses only that.
        let free = action.executor.is_none();
        self.config.fallback.clone().filter(|_| free)
    }
}

/// The resolution under which a call is made.
#[derive(Debug, Clone)]
pub struct ResolutionContext {
    /// Id of the resolution.
    pub resolution: Uuid,
    /// Id of this execution.
    pub execution: Uuid,
    /// Who asked for it.
    pub requester: CarpRequester,
    /// Its task, if it names one.
    pub task: Option<CarpTask>,
}
