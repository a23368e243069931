//! The start of an agent: refuses what can't be used here, recovers from a crash, becomes READY.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use clawk_events::payload::{AgentDescribed, SessionStarted};
use clawk_manifest::model::{Manifest, Role};
use clawk_policy::Engine;
use clawk_proto::method::LifecycleState;
use clawk_proto::{Digest, SessionId};

use crate::agent::{Agent, AgentDependencies};
use crate::call::{self, ApprovalRegistry, CallGovernor, SessionOwner};
use crate::carp::{self, AtlasSettings, CarpRuntime};
use crate::catalog::ToolCatalog;
use crate::checkpoint::{self, InterruptedComposites};
use crate::dedup::DedupTable;
use crate::door::EntryPoint;
use crate::drive::{ContextFileDigests, RecordedAgent, TurnServices};
use crate::error::StartError;
use crate::event::{JournalWriter, Thread, canonical, digest};
use crate::health::{self, Health};
use crate::hosts::{self, PeerHosts};
use crate::infer::{LearntForms, ModelServices};
use crate::judge::InjectionClassifier;
use crate::lifecycle::AgentLifecycle;
use crate::memory::MemoryServices;
use crate::options::{InboxLimits, Options, SwarmOptions};
use crate::outbox::{Outbox, OutboxLimits};
use crate::ports::ToolRunner;
use crate::prompt;
use crate::purse::{BudgetTree, hour_of};
use crate::rank;
use crate::rates::CallRateWindow;
use crate::recover::{self, LossSearchScope, RebuiltSession};
use crate::replay::facts::AgentFacts;
use crate::sampling;
use crate::screen::AgentScreening;
use crate::services::{self, KernelServices, KernelToolRunner};
use crate::session::{self, SessionOpening, SessionServices};
use crate::state::Table;
use crate::stop;
use crate::swarm::{self, SwarmServices};
use crate::team::SwarmTeam;
use crate::tend;
use crate::turn::{Effect, TurnOutcome};
use crate::world_model;

/// Time limit for another host to release the session of an ended task.
const FETCHED: Duration = Duration::from_secs(30);

/// Starts an agent; see [`crate::Kernel::start`].
pub(crate) async fn start_agent(parts: AgentDependencies) -> Result<Arc<Agent>, StartError> {
    check_dependencies(&parts)?;
    let (reach_providers, taped) = (parts.options.reach_providers, parts.options.swarm.taped.is_some());
    let (agent, facts) = assemble_agent(parts).await?;
    let agent = Arc::new(agent);
    let (calls, scribe) = (&*agent.calls, &agent.scribe);
    let draft = SessionStarted {
        agent_hash: Some(agent.sessions.agent_hash),
        agent_id: agent.manifest.identity.name.to_string(),
        door: Some("runtime".to_owned()),
        fork: None,
        goal: "lifecycle".to_owned(),
        role: Some(Role::Admin.as_str().to_owned()),
        run: Some(agent.life.root.session.0),
    };
    let _ticket = agent
        .scribe
        .submit_drafts(vec![agent.scribe.draft_event(&agent.life.root, &draft)])?;
    agent_facts(&agent, facts)?;
    // If hosts share the agent, each session of a lost host is taken over separately, when it is found.
    let hosts = calls.hosts.clone();
    let unclean = match &hosts {
        None => recover::unclean_since(scribe).await?,
        Some(_) => None,
    };
    agent.life.advance_to(LifecycleState::Starting, "start")?;
    if let Some(row) = unclean {
        settle_before(&agent, row).await?;
    }
    fold_journal(calls, hosts.as_deref()).await?;
    calls.models.restore_forms().await?;
    stop::restore_stops(&calls.brake, scribe).await?;
    carp::restore_state(&calls.carp).await?;
    agent.life.advance_to(LifecycleState::Ready, "started")?;
    agent.scribe.journal().flush().await?;
    calls
        .runner
        .set_sampling_handler(sampling::sampling_handler(&agent.sessions));
    if let Some(hosts) = &hosts {
        hosts::spawn_host_watch(&agent, hosts);
        swarm::spawn_coordination(&agent.peers, hosts);
    } else {
        let busy = swarm::restore_swarm(&agent.peers).await?;
        resume_open(&agent.sessions, &busy, None).await?;
        swarm::go_on(&agent.peers)?;
    }
    let own = Arc::clone(&agent.calls);
    if hosts.is_none() {
        agent.life.tracker.spawn(async move {
            let _working = own.life.join_work();
            call::reconcile_effects(&own.governor).await;
        });
    }
    if !taped {
        tend::spawn_retention(&agent.memories);
    }
    if reach_providers {
        health::spawn_health_watch(&agent.health);
    }
    Ok(agent)
}

/// Settles what the last run left open after this row: model requests without a known cost, calls without a known outcome.
async fn settle_before(agent: &Arc<Agent>, row: u64) -> Result<(), StartError> {
    let (calls, scribe) = (&*agent.calls, &agent.scribe);
    let lost = recover::settle_lost(scribe, LossSearchScope::Behind(row)).await?;
    if lost > 0 {
        tracing::warn!(
            lost,
            "inferences of the last run have no known cost; they are settled at what was set aside"
        );
    }
    let open = open_turns(&agent.manifest, scribe).await?;
    let resumable = |turn: &uuid::Uuid| open.contains(turn);
    let (unknown, interrupted) =
        recover::report_unknown(scribe, &calls.catalog, LossSearchScope::Behind(row), &resumable).await?;
    calls.interrupted.add(interrupted);
    if unknown > 0 {
        tracing::warn!(
            unknown,
            "calls of the last run have no known outcome; they are listed in the trace"
        );
    }
    Ok(())
}

/// Restores spending, rate windows, grants and approval requests from the record.
async fn fold_journal(calls: &KernelServices, hosts: Option<&PeerHosts>) -> Result<(), StartError> {
    let scribe = &calls.models.scribe;
    let (month, _) = scribe.now().month_bounds();
    let kept = scribe.journal().spent_since(hour_of(month)).await?;
    calls.purses.restore_spending(&kept, scribe.now());
    recover::restore_rates(scribe, &calls.rates).await?;
    let Some(hosts) = hosts else {
        return Ok(call::restore_approvals(calls).await?);
    };
    let row = hosts.shared.poll_news(false).await?.last_row;
    call::restore_standing(calls).await?;
    let asked = call::open_questions(calls).await?;
    let open = asked.into_iter().filter(|open| open.reply.is_none());
    hosts
        .begin_following(row, open.map(|open| open.question).collect())
        .await;
    Ok(())
}

/// Returns the agent's description for a replay, without known secrets, which a manifest or a context file may quote.
fn replay_facts(
    manifest: &Manifest,
    options: &Options,
    atlases: &AtlasSettings,
    screens: &AgentScreening,
) -> Vec<u8> {
    let facts = AgentFacts::from_manifest(manifest, options, atlases);
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return canonical(&facts);
    }
    let mut value = serde_json::to_value(&facts).unwrap_or_default(); // silent-ok: plain structs always serialise
    let _told = scanner.redact_json(&mut value);
    canonical(&value)
}

/// Records the agent's description for a replay.
fn agent_facts(agent: &Agent, facts: Vec<u8>) -> Result<(), StartError> {
    let agent_hash = agent.sessions.agent_hash;
    let payload = AgentDescribed {
        agent: agent.manifest.metadata.name.to_string(),
        agent_hash,
    };
    let root = agent.life.root;
    let thread = root.child(root.span);
    let draft = agent.scribe.draft_event(&thread, &payload);
    let _ticket = agent
        .scribe
        .submit_drafts(vec![draft.with_content(agent_hash, facts)])?;
    carp::record_facts(&agent.calls.carp)
}

/// Returns all reasons why this agent can't start here.
fn check_dependencies(parts: &AgentDependencies) -> Result<(), StartError> {
    let mut unserved = BudgetTree::find_faults(&parts.manifest, &parts.options.budgets);
    unserved.extend(world_model::planning_faults(&parts.manifest));
    unserved.extend(parts.options.planning.and_then(|limits| limits.limits_fault()));
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
                let refused = backend.check_store(store).err().map(|error| error.to_string());
                let fault = refused.or_else(|| rank::ranking_fault(store))?;
                Some(format!("store `{}`: {fault}", store.name))
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

/// Builds the agent's services from the bottom up, and its description for a replay.
async fn assemble_agent(parts: AgentDependencies) -> Result<(Agent, Vec<u8>), StartError> {
    let AgentDependencies {
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
    let unserved = |reason: String| StartError::Unserved(vec![reason]);
    let engine = Engine::compile(&manifest.policies).map_err(|error| unserved(error.to_string()))?;
    let scribe = JournalWriter::new(Arc::clone(&journal), clock);
    let root = SessionId(scribe.clock().new_uuid());
    let (agent_id, name) = (&manifest.identity.name, &manifest.metadata.name);
    let carp = CarpRuntime::new(atlases, agent_id, Thread::for_session(root), scribe.clone())
        .map_err(|error| unserved(error.to_string()))?;
    let screens =
        AgentScreening::new(&manifest, &options.judge, secrets, scribe.clone()).map_err(unserved)?;
    check_claims_judge(&manifest, &options).map_err(unserved)?;
    // The latest answers may be requested again. Asking the journal once too often is cheaper than reading it here.
    let before = journal
        .list_sessions(1)
        .await?
        .first()
        .map(|session| session.last);
    let facts = replay_facts(&manifest, &options, &carp.config, &screens);
    let catalog = ToolCatalog::new(
        &manifest,
        options.sandbox_settings(),
        services::kernel_tools(),
        &engine,
        &*runner,
    )
    .await;
    let local = (&options.prices, &options.models);
    let purses = Arc::new(BudgetTree::new(&manifest, &options.budgets, local, scribe.now()));
    let table = Arc::new(Table::new(purses.root_account().clone()));
    let dedup = Arc::new(DedupTable::new(
        scribe.shared_clock(),
        before,
        journal.host_cluster().is_some(),
    ));
    let life = Arc::new(AgentLifecycle::new(scribe.clone(), root, name));
    let models = Arc::new(ModelServices {
        manifest: Arc::clone(&manifest),
        providers,
        options: options.models.clone(),
        purses: Arc::clone(&purses),
        screens: Arc::new(screens),
        scribe: scribe.clone(),
        pictures: Default::default(),
        cuts: Arc::default(),
        forms: LearntForms::default(),
    });
    let team = build_team(&manifest, &options, &purses, (&scribe, root))?;
    let classifier = InjectionClassifier { models, table };
    let memories = Arc::new(MemoryServices {
        across_senders: options.across_senders.clone(),
        tender: Default::default(),
        taped: options.swarm.taped.is_some(),
        manifest,
        backend: memory,
        runner: Arc::clone(&runner),
        classifier: classifier.clone(),
        dedup: Arc::clone(&dedup),
        life: Arc::clone(&life),
        scribe,
    });
    let limits = (options.inbox, options.outbox, options.swarm.clone());
    let calls = build_governor(
        (classifier, life, dedup, Arc::clone(&memories)),
        (engine, catalog, carp, runner),
        (options, team),
    );
    Ok((build_agent(calls, memories, digest(&facts), limits), facts))
}

/// Checks that the judge of claims is a provider of the manifest.
fn check_claims_judge(manifest: &Manifest, options: &Options) -> Result<(), String> {
    match &options.claims {
        Some(claims) if manifest.provider(&claims.judge).is_none() => Err(format!(
            "`claims.judge` names the provider `{}`, which the manifest does not have",
            claims.judge
        )),
        Some(_) | None => Ok(()),
    }
}

/// Builds the manifest's swarm; `None` in a replay.
fn build_team(
    manifest: &Manifest,
    options: &Options,
    purses: &BudgetTree,
    (scribe, root): (&JournalWriter, SessionId),
) -> Result<Option<Arc<SwarmTeam>>, StartError> {
    if options.swarm.taped.is_some() {
        return Ok(None);
    }
    let plan = swarm::plan_swarm(manifest, &options.swarm, purses)?;
    let shared = scribe.journal().host_cluster().is_some();
    Ok(plan.map(|plan| {
        let home = shared.then(|| swarm::home_session(&manifest.identity.name, &plan.swarm));
        Arc::new(SwarmTeam::new(
            plan,
            scribe.clone(),
            Thread::for_session(root),
            home,
        ))
    }))
}

/// Builds the governor of calls, and the services of turns around it.
fn build_governor(
    (classifier, life, dedup, memories): (
        InjectionClassifier,
        Arc<AgentLifecycle>,
        Arc<DedupTable>,
        Arc<MemoryServices>,
    ),
    (engine, catalog, carp, runner): (Engine, ToolCatalog, CarpRuntime, Arc<dyn ToolRunner>),
    (options, team): (Options, Option<Arc<SwarmTeam>>),
) -> Arc<KernelServices> {
    let models = Arc::clone(&classifier.models);
    let hosts = PeerHosts::from_journal(&**models.scribe.journal());
    let mut governor = CallGovernor {
        rates: CallRateWindow::new(&models.manifest.policies),
        manifest: Arc::clone(&models.manifest),
        screens: Arc::clone(&models.screens),
        purses: Arc::clone(&models.purses),
        scribe: models.scribe.clone(),
        keeps_checkpoints: checkpoint::checkpoint_store(&models.manifest).is_some(),
        judge: Arc::new(classifier.clone()),
        owners: hosts.clone().map(|hosts| hosts as Arc<dyn SessionOwner>),
        kernel_tools: Arc::new(KernelToolRunner(Weak::new())),
        engine,
        catalog,
        carp,
        runner,
        life,
        dedup,
        brake: Arc::default(),
        desk: ApprovalRegistry::default(),
        owes: AtomicBool::new(false),
        workdir: options.workdir,
        origin: options.origin,
        suggestions: options.suggestions,
        audit_writable: options.audit_writable,
    };
    Arc::new_cyclic(|services| {
        governor.kernel_tools = Arc::new(KernelToolRunner(Weak::clone(services)));
        KernelServices {
            governor: Arc::new(governor),
            cuts: Arc::clone(&models.cuts),
            table: Arc::clone(&classifier.table),
            models,
            classifier,
            team,
            hosts,
            claims: options.claims,
            shown: options.shown,
            timezone: options.timezone,
            memories,
            planning: options.planning,
            interrupted: InterruptedComposites::default(),
            taped: options.swarm.taped,
        }
    })
}

/// Returns the digests of the context files that this run has recorded.
fn context_at_start(manifest: &Manifest) -> ContextFileDigests {
    let texts = prompt::context_texts(manifest, &manifest.identity);
    let files = manifest.identity.context_files.values();
    let of = |file: &String| (file.clone(), texts.get(file).map(|text| digest(text.as_bytes())));
    files.map(of).collect()
}

/// Builds the services above the governor.
fn build_agent(
    calls: Arc<KernelServices>,
    memories: Arc<MemoryServices>,
    agent_hash: Digest,
    (inbox, outbox, swarm): (InboxLimits, OutboxLimits, SwarmOptions),
) -> Agent {
    let (life, scribe) = (Arc::clone(&calls.life), calls.scribe.clone());
    let outbox = Outbox::new(
        Arc::clone(&life),
        Arc::clone(&calls.brake),
        scribe.clone(),
        outbox,
    );
    let outbox = Arc::new(outbox);
    let turns = TurnServices {
        calls: Arc::clone(&calls),
        outbox: Arc::clone(&outbox),
        at_start: Arc::new(RecordedAgent {
            agent_hash,
            context: context_at_start(&calls.manifest),
        }),
    };
    let sessions = Arc::new(SessionServices::new(turns, agent_hash, inbox));
    let (models, table) = (Arc::clone(&calls.models), Arc::clone(&calls.table));
    Agent {
        manifest: Arc::clone(&calls.manifest),
        peers: Arc::new(SwarmServices::new(Arc::clone(&sessions), swarm)),
        health: Arc::new(Health::new(models, Arc::clone(&life), table)),
        scribe,
        life,
        calls,
        sessions,
        memories,
        outbox,
    }
}

/// Returns the turns that will be resumed. Their composite calls continue if checkpoints are kept.
pub(crate) async fn open_turns(
    manifest: &Manifest,
    scribe: &JournalWriter,
) -> Result<BTreeSet<uuid::Uuid>, StartError> {
    if checkpoint::checkpoint_store(manifest).is_none() {
        return Ok(BTreeSet::new());
    }
    let open = scribe.journal().open_messages().await?;
    Ok(open.into_iter().map(|open| open.message.0).collect())
}

/// Returns the entry point for a session that continues by itself: that of the first message to answer. Each turn has the rights of
/// its own message.
fn opened_by(rebuilt: &RebuiltSession) -> EntryPoint {
    let first = rebuilt.open.first();
    first.map_or(
        EntryPoint::Unknown {
            sender: String::new(),
        },
        |open| open.origin.door.clone(),
    )
}

/// Resumes the turns that a crash or a stop interrupted, in these sessions or in all. Turns of tasks continue with their tasks.
pub(crate) async fn resume_open(
    sessions: &Arc<SessionServices>,
    busy: &[SessionId],
    only: Option<&BTreeSet<SessionId>>,
) -> Result<(), StartError> {
    let mut seen: Vec<SessionId> = busy.to_vec();
    for open in sessions.scribe.journal().open_messages().await? {
        let left_out = only.is_some_and(|only| !only.contains(&open.session));
        // A session that was opened since is already working.
        if left_out
            || seen.contains(&open.session)
            || (only.is_some() && sessions.table.get(open.session).is_some())
        {
            continue;
        }
        seen.push(open.session);
        let rebuilt = recover::rebuild_session(&sessions.calls, open.session).await?;
        // The swarm's coordinator continues its tasks and ends the turns of ended tasks.
        if only.is_some() && of_task(&rebuilt) && has_home(sessions) {
            continue;
        }
        begin_again(sessions, open.session, rebuilt).await?;
    }
    Ok(())
}

fn of_task(rebuilt: &RebuiltSession) -> bool {
    matches!(opened_by(rebuilt), EntryPoint::Peer { .. })
}

fn has_home(sessions: &SessionServices) -> bool {
    let team = sessions.calls.team.as_ref();
    team.is_some_and(|team| team.home_session().is_some())
}

/// Ends the turns of ended tasks, if hosts share the agent. `busy`: the sessions of tasks that continue.
pub(crate) async fn end_tasks(sessions: &Arc<SessionServices>, busy: &[SessionId]) -> Result<(), StartError> {
    let mut seen: Vec<SessionId> = busy.to_vec();
    for open in sessions.scribe.journal().open_messages().await? {
        if seen.contains(&open.session) || sessions.table.get(open.session).is_some() {
            continue;
        }
        seen.push(open.session);
        if of_task(&recover::rebuild_session(&sessions.calls, open.session).await?) {
            end_task(sessions, open.session).await?;
        }
    }
    Ok(())
}

/// Ends the turn of an ended task in this session, unless it is open here.
pub(crate) async fn end_task(sessions: &Arc<SessionServices>, session: SessionId) -> Result<(), StartError> {
    let fetched = hosts::fetch_session(sessions, session);
    match tokio::time::timeout(FETCHED, fetched).await {
        Ok(fetched) => fetched.map_err(|error| StartError::Unserved(vec![error.to_string()]))?,
        Err(_) => {
            tracing::warn!(%session, "the turn of a task that has ended is with another host; whoever coordinates next ends it");
            return Ok(());
        }
    }
    if sessions.table.get(session).is_some() {
        return Ok(());
    }
    let rebuilt = recover::rebuild_session(&sessions.calls, session).await?;
    if rebuilt.open.is_empty() {
        return Ok(());
    }
    begin_again(sessions, session, rebuilt).await
}

/// Opens a session again and continues its turns.
async fn begin_again(
    sessions: &Arc<SessionServices>,
    session: SessionId,
    rebuilt: RebuiltSession,
) -> Result<(), StartError> {
    let opening = SessionOpening {
        id: Some(session),
        door: opened_by(&rebuilt),
        provider: sessions.calls.models.primary_provider().to_owned(),
        goal: String::new(),
        history: rebuilt.history,
        under: None,
        spent: rebuilt.spent,
        surface: false,
        peer_messages: Vec::new(),
        member: None,
    };
    let (state, _) = session::open_session(sessions, opening)
        .await
        .map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
    state.set_model(rebuilt.model);
    for mut turn in rebuilt.open {
        // The member's task has ended, so its turn has no rights of its own.
        if matches!(turn.origin.door, EntryPoint::Peer { .. }) {
            turn.effects = vec![Effect::Done(TurnOutcome::Failed("its task has ended".to_owned()))];
        }
        state.mailbox.push_resumed_turn(turn);
    }
    Ok(())
}
