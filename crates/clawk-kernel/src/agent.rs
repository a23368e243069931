//! An agent at work: its parts, from INIT to STOPPED.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::{Manifest, Provider as ProviderSpec, Role};
use clawk_policy::path::wanted;
use clawk_policy::{Engine, Subject, UsageView};
use clawk_proto::method::LifecycleState;
use clawk_proto::{Digest, SessionId};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{Dedup, Desk, Held, Lasting, suggest};
use crate::carp::{Atlases, Carp};
use crate::catalog::{Catalog, Described, Entry};
use crate::error::CallError;
use crate::event::{
    BudgetWarned, Draft, Scribe, SessionEnded, Thread, ToolDescribed, Transition, canonical, digest, kind,
};
use crate::health::Health;
use crate::infer::ModelOptions;
use crate::ingress::{InboxLimits, Ingress};
use crate::lifecycle::Life;
use crate::outbox::{Outbox, OutboxLimits};
use crate::output::{Cuts, Shown};
use crate::place::Search;
use crate::ports::{Journal, JournalError, Look, Memory, Provider, ToolRunner};
use crate::purse::{Budgets, Prices, Purse, Purses, Warning};
use crate::rates::Rates;
use crate::replay::ToolFacts;
use crate::screen::{Judge, Screens};
use crate::session::State;
use crate::stop::Brake;
use crate::swarm::Board;
use crate::time::Clock;
use crate::turn::Bounds;

/// What is local to this machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where tools start and relative paths begin; absolute.
    pub workdir: PathBuf,
    /// Limits and levels where the manifest's sandbox is silent.
    pub sandbox: clawk_plan::Defaults,
    /// What is the runtime's and not the tools', whatever is mounted.
    pub own: clawk_plan::Own,
    /// The folder where rules are suggested to the operator; none: they are not.
    pub suggestions: Option<PathBuf>,
    /// What it may use up.
    pub budgets: Budgets,
    /// What models cost.
    pub prices: Prices,
    /// Audit records are being delivered where policies want them. While not, what must be audited does not run.
    pub audit_writable: Arc<AtomicBool>,
    /// Who judges text, where a policy asks for a model's judgement.
    pub judge: Judge,
    /// How much of a tool's result a model reads.
    pub shown: Shown,
    /// What is local about asking a provider, by its name in the manifest.
    pub models: BTreeMap<String, ModelOptions>,
    /// After the start, providers are reached for without paying; while none can be, the agent is in ERROR and messages wait.
    pub reach_providers: bool,
    /// How much waits, and how much runs at once.
    pub inbox: InboxLimits,
    /// How long a delivery is tried.
    pub outbox: OutboxLimits,
}

/// Everything an agent is made of; the composition root fills it in.
#[derive(Debug)]
pub struct Parts {
    /// The validated manifest.
    pub manifest: Arc<Manifest>,
    /// By the names of the manifest's providers.
    pub providers: BTreeMap<String, Arc<dyn Provider>>,
    /// Runs the tools.
    pub runner: Arc<dyn ToolRunner>,
    /// The log.
    pub journal: Arc<dyn Journal>,
    /// Keeps the memory's stores; required when the manifest has a Memory.
    pub memory: Option<Arc<dyn Memory>>,
    /// Every secret that was resolved here: none of them may reach a model, a person or the trace.
    pub secrets: clawk_secrets::Given,
    /// Time, ids, randomness.
    pub clock: Arc<dyn Clock>,
    /// The Atlases that govern it; none by default.
    pub atlases: Atlases,
    /// The rest.
    pub options: Options,
}

/// The agent's inside.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) engine: Engine,
    pub(crate) catalog: Catalog,
    pub(crate) providers: BTreeMap<String, Arc<dyn Provider>>,
    pub(crate) runner: Arc<dyn ToolRunner>,
    pub(crate) memory: Option<Arc<dyn Memory>>,
    pub(crate) scribe: Scribe,
    pub(crate) options: Options,
    pub(crate) life: Life,
    pub(crate) health: Health,
    pub(crate) dedup: Dedup,
    pub(crate) desk: Desk,
    pub(crate) purses: Purses,
    pub(crate) rates: Rates,
    pub(crate) brake: Brake,
    pub(crate) board: Board,
    /// What of tools' results was cut.
    pub(crate) cuts: Cuts,
    /// Atlases, and whoever speaks CRA.
    pub(crate) carp: Carp,
    pub(crate) screens: Screens,
    pub(crate) tracker: TaskTracker,
    /// Nothing new begins: workers end after the turn that they are in.
    pub(crate) closing: CancellationToken,
    /// What runs is cancelled.
    pub(crate) stop: CancellationToken,
    /// STOPPED: surfaces may go.
    pub(crate) over: CancellationToken,
    /// The runtime's own chain: lifecycle.
    pub(crate) root: Thread,
    /// SHA-256 of what `ckp.agent.described` holds.
    pub(crate) agent_hash: Digest,
    pub(crate) started_us: u64,
    /// The outcome of an effect could not be recorded: it is told unknown before the end, at the latest.
    pub(crate) owes: AtomicBool,
    pub(crate) sessions: Mutex<HashMap<SessionId, Arc<State>>>,
    /// Held while a conversation's session is looked for and opened.
    pub(crate) talking: tokio::sync::Mutex<()>,
    /// Conversations of channels.
    pub(crate) ingress: Ingress,
    /// Answers on their way.
    pub(crate) outbox: Outbox,
    /// One permit per turn that runs.
    pub(crate) seats: Semaphore,
    /// One permit per message that waits beyond the mailboxes.
    pub(crate) beyond: Arc<Semaphore>,
}

impl Agent {
    pub(crate) fn clock(&self) -> &dyn Clock {
        self.scribe.clock()
    }

    pub(crate) fn sessions_lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<State>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was spent today, as rules see it.
    pub(crate) fn usage(&self) -> UsageView {
        let (tokens_today, cost_today_microusd) = self.purses.today(self.scribe.now());
        UsageView {
            tokens_today,
            cost_today_microusd,
        }
    }

    /// A session's purse; the agent's own where no such session is open.
    pub(crate) fn purse_of(&self, session: SessionId) -> Purse {
        let open = self
            .sessions_lock()
            .get(&session)
            .map(|state| state.purse.clone());
        open.unwrap_or_else(|| self.purses.root().clone())
    }

    /// What who opened a session may do; nothing where no such session is open.
    pub(crate) fn role_of(&self, session: SessionId) -> Role {
        let open = self.sessions_lock().get(&session).map(|state| state.door.role());
        open.unwrap_or(Role::Viewer)
    }

    /// What a turn may do at most.
    pub(crate) fn bounds(&self) -> Bounds {
        let budgets = self.purses.budgets();
        Bounds {
            steps: budgets.steps_per_turn.max(1),
            repeats: budgets.repeats_per_turn,
        }
    }

    /// The events of limits that passed their mark.
    pub(crate) fn warned(&self, thread: &Thread, warnings: &[Warning]) -> Vec<Draft> {
        let event = |warning: &Warning| {
            let payload = BudgetWarned {
                bound: warning.bound,
                limit: &warning.limit,
                purse: &warning.scope,
                resets_at: warning.resets_at.as_deref(),
                spent: warning.spent,
            };
            self.scribe.entry(thread, kind::BUDGET_WARNED, &payload)
        };
        warnings.iter().map(event).collect()
    }

    /// The first provider of the manifest; validation says that there is one.
    pub(crate) fn primary_provider(&self) -> &str {
        self.manifest
            .providers
            .first()
            .map(|provider| provider.name.as_str())
            .unwrap_or_default()
    }

    /// A provider and its fallbacks in order, each once (CKP §5.2).
    pub(crate) fn chain(&self, provider: &str) -> Vec<&ProviderSpec> {
        let Some(first) = self.manifest.provider(provider) else {
            return Vec::new();
        };
        let mut chain = vec![first];
        for fallback in &first.fallback {
            if let Some(next) = self.manifest.provider(&fallback.provider_ref)
                && !chain.iter().any(|known| known.name == next.name)
            {
                chain.push(next);
            }
        }
        chain
    }

    /// What is local about asking this provider.
    pub(crate) fn model_options(&self, provider: &str) -> ModelOptions {
        self.options.models.get(provider).cloned().unwrap_or_default()
    }

    /// The provider's own window, tokens.
    pub(crate) fn context_tokens(&self, provider: &str) -> Option<usize> {
        let limit = self.manifest.provider(provider)?.limits.max_context_window?;
        usize::try_from(limit).ok() // silent-ok: more than the address space is no limit
    }

    /// Everything known of a tool; what was not told in this run is told to the record.
    pub(crate) async fn described(&self, entry: &Entry) -> Result<Arc<Described>, CallError> {
        let scanner = || self.screens.scanner().without_shapes();
        let described = entry.described(&*self.runner, scanner).await?;
        if entry.first_look() {
            let bytes = canonical(&ToolFacts::of(&described, entry.from.as_deref()));
            let tool_hash = digest(&bytes);
            let payload = ToolDescribed {
                action_id: &entry.name,
                tool_hash,
            };
            let thread = self.root.child(self.root.span);
            let draft = self.scribe.entry(&thread, kind::TOOL_DESCRIBED, &payload);
            // Queued before the decision that rests on it; the decision waits for both.
            if let Err(error) = self.scribe.submit(vec![draft.content(tool_hash, bytes)]) {
                entry.look_again();
                return Err(error.into());
            }
        }
        Ok(described)
    }

    /// Why the rules decide as they do, for people.
    pub(crate) async fn explain(&self, tool: &str, arguments: &Map<String, Value>) -> Vec<String> {
        let Some(entry) = self.catalog.get(tool) else {
            return Vec::new();
        };
        let Ok(described) = self.described(&entry).await else {
            return Vec::new();
        };
        let workdir = &self.options.workdir;
        let subject = Subject {
            tool,
            labels: &described.labels,
            annotations: &described.annotations,
            arguments,
            schema: Some(&described.input_schema),
            workdir,
            usage: self.usage(),
            places: None,
        };
        let roots = self.engine.roots(&subject);
        let then = roots
            .keys()
            .filter_map(|root| self.catalog.roots.get_key_value(root));
        let search = Search {
            paths: wanted(arguments, subject.schema, workdir),
            then: then.map(|(root, then)| (root.clone(), then.clone())).collect(),
            roots,
        };
        let look = Look {
            tool,
            arguments,
            plan: &entry.plan,
            workdir,
        };
        let places = self.runner.places(look, search).await;
        let subject = Subject {
            places: Some(&places),
            ..subject
        };
        self.engine
            .explain(&subject)
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// A person's standing grant stands from here on.
    pub(crate) fn stands(&self, held: Held) {
        if let (Lasting::Always, Some(dir)) = (held.lasting, &self.options.suggestions)
            && let Err(error) = suggest(dir, &held)
        {
            tracing::warn!(%error, "a suggested rule could not be written");
        }
        self.desk.standing.add(held);
    }

    /// Moves the lifecycle and records the move (CKP §8).
    pub(crate) fn advance(&self, to: LifecycleState, reason: &str) -> Result<(), JournalError> {
        let now_us = self.clock().monotonic_us();
        let Some(from) = self.life.advance(to, now_us) else {
            return Ok(());
        };
        let payload = Transition {
            agent: &self.manifest.metadata.name,
            duration_ms: now_us.saturating_sub(self.started_us) / 1000,
            from: from.name(),
            reason,
            to: to.name(),
        };
        let draft = self
            .scribe
            .entry(&self.root.child(self.root.span), kind::LIFECYCLE, &payload);
        let _ticket = self.scribe.submit(vec![draft])?; // order is kept by the journal; `start` and `shutdown` flush
        Ok(())
    }

    /// Ends a session: its chain gets its last event, its grants lapse.
    pub(crate) async fn end_session(&self, id: SessionId, reason: &str) {
        let Some(state) = self.sessions_lock().remove(&id) else {
            return;
        };
        self.desk.forget(id);
        self.cuts.forget(id);
        let duration_ms = self.clock().monotonic_us().saturating_sub(state.started_us) / 1000;
        let draft = self.scribe.entry(
            &state.thread.child(id.0),
            kind::SESSION_ENDED,
            &SessionEnded { duration_ms, reason },
        );
        if let Err(error) = self.scribe.write(vec![draft]).await {
            tracing::error!(%error, session = %id, "a session's end could not be recorded");
        }
    }
}
