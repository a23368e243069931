//! From parts to READY: what can't be served is refused, what a crash left is taken up.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use clawk_manifest::model::{Manifest, Role};
use clawk_policy::Engine;
use clawk_proto::SessionId;
use clawk_proto::method::LifecycleState;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::{Agent, Options, Parts};
use crate::call::{self, Dedup, Desk};
use crate::carp::{self, Atlases, Carp};
use crate::catalog::Catalog;
use crate::door::Door;
use crate::error::StartError;
use crate::event::{AgentDescribed, Scribe, SessionStarted, Thread, canonical, digest, kind};
use crate::health::{self, Health};
use crate::ingress::Ingress;
use crate::lifecycle::Life;
use crate::outbox::Outbox;
use crate::ports::ANSWER_KEPT_MS;
use crate::purse::{Purses, hour_of};
use crate::rates::Rates;
use crate::recover::{self, Rebuilt};
use crate::replay::AgentFacts;
use crate::screen::Screens;
use crate::session::{self, Opening};
use crate::stop::{self, Brake};
use crate::swarm::{self, Board, OpenTask};

/// Starts an agent; see [`crate::Kernel::start`].
pub(crate) async fn start(parts: Parts) -> Result<Arc<Agent>, StartError> {
    check(&parts)?;
    let agent = Arc::new(assemble(parts).await?);
    let draft = SessionStarted {
        agent_hash: agent.agent_hash,
        agent_id: &agent.manifest.identity.name,
        door: "runtime",
        goal: "lifecycle",
        role: Role::Admin.as_str(),
        run: agent.root.session.0,
    };
    let _ticket = agent.scribe.submit(vec![agent.scribe.entry(
        &agent.root,
        kind::SESSION_STARTED,
        &draft,
    )])?;
    agent_facts(&agent)?;
    let unclean = recover::unclean_since(&agent).await?;
    agent.advance(LifecycleState::Starting, "start")?;
    if let Some(row) = unclean {
        let lost = recover::settle_lost(&agent, row).await?;
        if lost > 0 {
            tracing::warn!(
                lost,
                "inferences of the last run have no known cost; they are settled at what was set aside"
            );
        }
        let unknown = recover::report_unknown(&agent, row).await?;
        if unknown > 0 {
            tracing::warn!(
                unknown,
                "calls of the last run have no known outcome; they are listed in the trace"
            );
        }
    }
    let (month, _) = agent.scribe.now().month();
    let kept = agent.scribe.journal().spent_since(hour_of(month)).await?;
    agent.purses.restore(&kept, agent.scribe.now());
    recover::restore_rates(&agent).await?;
    call::restore(&agent).await?;
    stop::restore(&agent).await?;
    carp::restore(&agent).await?;
    agent.advance(LifecycleState::Ready, "started")?;
    agent.scribe.journal().flush().await?;
    let tasks = swarm::open_tasks(&agent).await?;
    resume_open(&agent, &tasks).await?;
    swarm::take_up(&agent, tasks)
        .await
        .map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
    let own = Arc::clone(&agent);
    agent.tracker.spawn(async move {
        let _working = own.life.join();
        call::reconcile(&own).await;
    });
    health::watch(&agent);
    Ok(agent)
}

/// What a replay needs of the agent, without the values that are known here: a manifest or a context file may quote one.
fn facts(manifest: &Manifest, options: &Options, atlases: &Atlases, screens: &Screens) -> Vec<u8> {
    let facts = AgentFacts::of(manifest, options, atlases);
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return canonical(&facts);
    }
    let mut value = serde_json::to_value(&facts).unwrap_or_default(); // silent-ok: plain structs always serialise
    let _told = scanner.redact_json(&mut value);
    canonical(&value)
}

/// Tells the record what a replay needs of the agent.
fn agent_facts(agent: &Agent) -> Result<(), StartError> {
    let facts = facts(
        &agent.manifest,
        &agent.options,
        &agent.carp.config,
        &agent.screens,
    );
    let payload = AgentDescribed {
        agent: &agent.manifest.metadata.name,
        agent_hash: agent.agent_hash,
    };
    let thread = agent.root.child(agent.root.span);
    let draft = agent.scribe.entry(&thread, kind::AGENT_DESCRIBED, &payload);
    let _ticket = agent
        .scribe
        .submit(vec![draft.content(agent.agent_hash, facts)])?;
    carp::facts(agent)
}

/// Everything that keeps this agent from starting here, at once.
fn check(parts: &Parts) -> Result<(), StartError> {
    let mut unserved = Purses::faults(&parts.manifest, &parts.options.budgets);
    for provider in &parts.manifest.providers {
        if !parts.providers.contains_key(&provider.name) {
            unserved.push(format!("provider `{}` is not connected", provider.name));
        }
    }
    match (&parts.manifest.memory, &parts.memory) {
        (Some(_), None) => {
            unserved.push("the manifest declares a memory and no backend is configured".to_owned())
        }
        (Some(memory), Some(backend)) => {
            let faults = memory.stores.iter().filter_map(|store| {
                backend
                    .check(store)
                    .err()
                    .map(|error| format!("store `{}`: {error}", store.name))
            });
            unserved.extend(faults);
        }
        (None, _) => {}
    }
    if unserved.is_empty() {
        Ok(())
    } else {
        Err(StartError::Unserved(unserved))
    }
}

async fn assemble(parts: Parts) -> Result<Agent, StartError> {
    let Parts {
        manifest,
        providers,
        runner,
        journal,
        memory,
        secrets,
        clock,
        atlases,
        options,
    } = parts;
    let engine =
        Engine::compile(&manifest.policies).map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
    let carp = Carp::new(atlases).map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
    let screens = Screens::new(&manifest, &options.judge, secrets)
        .map_err(|reason| StartError::Unserved(vec![reason]))?;
    let scribe = Scribe::new(Arc::clone(&journal), clock);
    let id = SessionId(scribe.clock().uuid());
    let since = scribe.now().plus_millis(-ANSWER_KEPT_MS);
    // A chain that went on lately may hold answers: to ask the journal once too often costs less than to look through it here.
    let latest = journal.sessions(1).await?;
    let cold = latest.iter().any(|session| session.last >= since);
    let agent_hash = digest(&facts(&manifest, &options, &carp.config, &screens));
    Ok(Agent {
        agent_hash,
        catalog: Catalog::new(&manifest, &options, &engine, &*runner).await,
        purses: Purses::new(&manifest, &options, scribe.now()),
        rates: Rates::new(&manifest.policies),
        brake: Brake::default(),
        dedup: Dedup::new(scribe.now(), cold),
        started_us: scribe.clock().monotonic_us(),
        root: Thread {
            session: id,
            span: id.0,
            parent: None,
        },
        life: Life::new(),
        health: Health::default(),
        desk: Desk::default(),
        board: Board::default(),
        cuts: Default::default(),
        carp,
        screens,
        tracker: TaskTracker::new(),
        closing: CancellationToken::new(),
        stop: CancellationToken::new(),
        over: CancellationToken::new(),
        owes: AtomicBool::new(false),
        sessions: Mutex::default(),
        talking: tokio::sync::Mutex::default(),
        ingress: Ingress::default(),
        outbox: Outbox::default(),
        seats: Semaphore::new(options.inbox.turns.clamp(1, Semaphore::MAX_PERMITS)),
        beyond: Arc::new(Semaphore::new(options.inbox.waiting.min(Semaphore::MAX_PERMITS))),
        manifest,
        engine,
        providers,
        runner,
        memory,
        scribe,
        options,
    })
}

/// Who comes in by a session that goes on by itself: the door of the message that is answered first. Each turn has the
/// rights of its own message.
fn opened_by(rebuilt: &Rebuilt) -> Door {
    let first = rebuilt.open.first();
    first.map_or(
        Door::Unknown {
            sender: String::new(),
        },
        |open| open.origin.door.clone(),
    )
}

/// Takes up the turns that a crash or a stop interrupted; those of tasks go on with their tasks.
async fn resume_open(agent: &Arc<Agent>, tasks: &[OpenTask]) -> Result<(), StartError> {
    let mut seen: Vec<SessionId> = tasks.iter().map(|task| task.peer_session).collect();
    for open in agent.scribe.journal().open_messages().await? {
        if seen.contains(&open.session) {
            continue;
        }
        seen.push(open.session);
        let rebuilt = recover::rebuild(agent, open.session).await?;
        let opening = Opening {
            id: Some(open.session),
            door: opened_by(&rebuilt),
            provider: agent.primary_provider().to_owned(),
            goal: String::new(),
            history: rebuilt.history,
            under: None,
            spent: rebuilt.spent,
            surface: false,
            peer_messages: Vec::new(),
        };
        let (state, _) = session::open(agent, opening)
            .await
            .map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
        for turn in rebuilt.open {
            state.mailbox.resume(turn);
        }
    }
    Ok(())
}
