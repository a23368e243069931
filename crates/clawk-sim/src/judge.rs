//! The invariants, checked at any time and at the end.

use std::collections::BTreeMap;
use std::fmt;

use clawk_kernel::kind;
use clawk_kernel::testing::MemJournal;
use serde_json::Value;

use crate::desk::HostUser;
use crate::host::{FORBIDDEN, LOOK, PAID, PAID_A_DAY, SwarmHost};
use crate::world::{FORGED, SwarmWorld};

/// A property that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimInvariant {
    /// Every delegated task ends.
    EveryTaskEnds,
    /// A task is reported once, and a run ends once.
    ReportedOnce,
    /// No effect is done twice, on any hosts.
    NoEffectTwice,
    /// No effect begins before its decision is durable.
    DecidedFirst,
    /// A tool that a rule denies never runs.
    DeniedNeverRuns,
    /// At the end, every accepted message is answered or dead.
    EveryMessageEnds,
    /// A run uses no more tokens than its budget.
    PurseHolds,
    /// Only the holder of a task reports it.
    OwnReportsOnly,
    /// Every hash chain verifies.
    ChainsValid,
    /// A tool that needs approval runs only after a person said yes.
    AskedFirst,
    /// After a confirmed stop, no effect begins until the stop is lifted.
    StopHolds,
    /// A client always gets the same result for the same request.
    SameAnswer,
    /// A message is answered once.
    AnsweredOnce,
    /// A tool runs no more often than its budget allows.
    BudgetHolds,
    /// All effects of a task are on one host.
    OneHost,
    /// No effect begins on a host whose sessions were taken over.
    LeaseHolds,
    /// Reservations for calls that are over are released.
    NothingLeftAside,
}

/// An invariant that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenInvariant {
    /// The broken invariant.
    pub invariant: SimInvariant,
    /// The observation that shows it.
    pub seen: String,
}

impl fmt::Display for BrokenInvariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.seen)
    }
}

impl std::error::Error for BrokenInvariant {}

impl BrokenInvariant {
    fn on_host(self, host: usize) -> Self {
        Self {
            seen: format!("host {host}: {}", self.seen),
            ..self
        }
    }
}

pub(crate) fn broken_invariant<T>(invariant: SimInvariant, seen: String) -> Result<T, BrokenInvariant> {
    Err(BrokenInvariant { invariant, seen })
}

/// Payloads of the events of these types.
fn event_payloads(journal: &MemJournal, kinds: &[&str]) -> Vec<(String, Value)> {
    journal.look(|events, _| {
        let wanted = events.iter().filter(|event| kinds.contains(&event.kind.as_str()));
        let read = wanted.map(|event| {
            // silent-ok: the simulated kernel wrote it; what can't be read breaks the invariant that looks for it
            let payload = event.members_with_words().map_or(Value::Null, Value::Object);
            (event.kind.clone(), payload)
        });
        read.collect()
    })
}

fn text_member<'a>(payload: &'a Value, name: &str) -> &'a str {
    payload.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Ended runs, and how often each of them ended.
pub(crate) fn ended_runs(journal: &MemJournal) -> BTreeMap<String, usize> {
    let mut ended = BTreeMap::new();
    for (_, payload) in event_payloads(journal, &[kind::SWARM_ENDED]) {
        *ended
            .entry(text_member(&payload, "task_id").to_owned())
            .or_default() += 1;
    }
    ended
}

/// As [`ended_runs`], in the leader's journal.
fn ended_at_leader(world: &SwarmWorld) -> BTreeMap<String, usize> {
    let leader = world.hosts.first();
    leader
        .map(|leader| ended_runs(&leader.rig.journal))
        .unwrap_or_default()
}

/// Whether every task has ended at the leader.
pub(crate) fn all_ended(world: &SwarmWorld) -> bool {
    let ended = ended_at_leader(world);
    let closed = |host: &SwarmHost| host.rig.journal.inbox().iter().all(|(_, end)| end.is_some());
    let tasks = world.tasks.iter();
    world.hosts.iter().all(closed)
        && world.desks.iter().all(HostUser::is_done)
        && tasks
            .map(|(task, _)| task)
            .all(|task| ended.contains_key(task.as_str()))
}

/// Verifies every hash chain. This is slower than all other checks. It runs rarely, which is enough because journals only grow.
pub(crate) fn check_chains(world: &SwarmWorld) -> Result<(), BrokenInvariant> {
    for (at, host) in world.hosts.iter().enumerate() {
        let verified = host
            .rig
            .journal
            .look(|_, sealed| clawk_trace::verify_events(sealed));
        if !verified.valid {
            return broken_invariant(
                SimInvariant::ChainsValid,
                format!("host {at}: {:?}", verified.fault),
            );
        }
    }
    Ok(())
}

/// Checks the invariants that hold at any time.
pub(crate) fn check_always(world: &SwarmWorld) -> Result<(), BrokenInvariant> {
    check_once(world)?;
    for (at, host) in world.hosts.iter().enumerate() {
        reported_once(&host.rig.journal, world.run_tokens).map_err(|broken| broken.on_host(at))?;
        answered_once(&host.rig.journal).map_err(|broken| broken.on_host(at))?;
        if let Some((invariant, seen)) = world.desks.get(at).and_then(|desk| desk.facts.first_violation()) {
            return broken_invariant(invariant, format!("host {at}: {seen}"));
        }
        if let Some(what) = host.early_effects().first() {
            return broken_invariant(SimInvariant::DecidedFirst, format!("host {at}: {what}"));
        }
        if let Some((run, tokens)) = host.most_used().filter(|(_, tokens)| *tokens > world.run_tokens) {
            return broken_invariant(
                SimInvariant::PurseHolds,
                format!("host {at}: models used {tokens} tokens for `{run}`"),
            );
        }
        let forged = host.rig.journal.look(|events, _| {
            let mut ended = events.iter().filter(|event| event.kind == kind::SWARM_ENDED);
            let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(FORGED);
            ended.any(|event| event.content.as_ref().is_some_and(|content| said(&content.bytes)))
        });
        if forged {
            return broken_invariant(
                SimInvariant::OwnReportsOnly,
                format!("host {at} took a forged report"),
            );
        }
    }
    Ok(())
}

/// Checks that every task is reported once, that every run ends once, and that it stays within its token budget.
pub(crate) fn reported_once(journal: &MemJournal, run_tokens: u64) -> Result<(), BrokenInvariant> {
    let mut reported: BTreeMap<String, usize> = BTreeMap::new();
    for (name, payload) in event_payloads(journal, &[kind::SWARM_REPORTED, kind::SWARM_ENDED]) {
        if payload.get("orphan") != Some(&Value::Bool(true)) {
            *reported
                .entry(format!("{name} {}", text_member(&payload, "task_id")))
                .or_default() += 1;
        }
        let tokens = payload.get("run_tokens").and_then(Value::as_u64).unwrap_or(0);
        if tokens > run_tokens {
            return broken_invariant(SimInvariant::PurseHolds, format!("{tokens} tokens"));
        }
    }
    match reported.iter().find(|(_, times)| **times > 1) {
        Some((what, times)) => broken_invariant(SimInvariant::ReportedOnce, format!("{what} {times} times")),
        None => Ok(()),
    }
}

/// Checks that no message has two answers.
pub(crate) fn answered_once(journal: &MemJournal) -> Result<(), BrokenInvariant> {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for (_, payload) in event_payloads(journal, &[kind::MESSAGE_ANSWERED, kind::MESSAGE_DEAD]) {
        *ends
            .entry(text_member(&payload, "message_id").to_owned())
            .or_default() += 1;
    }
    match ends.iter().find(|(_, times)| **times > 1) {
        Some((message, times)) => broken_invariant(
            SimInvariant::AnsweredOnce,
            format!("{message} ended {times} times"),
        ),
        None => Ok(()),
    }
}

/// Checks that no two tool runs, over all hosts, are the same effect.
fn check_once(world: &SwarmWorld) -> Result<(), BrokenInvariant> {
    let mut effects: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut hands: BTreeMap<String, usize> = BTreeMap::new();
    for (at, host) in world.hosts.iter().enumerate() {
        let mut paid = 0;
        for (tool, arguments) in host.rig.runner.runs() {
            if tool == FORBIDDEN {
                return broken_invariant(SimInvariant::DeniedNeverRuns, format!("host {at} ran `{tool}`"));
            }
            // Tools without side effects, and tools that failed before any, may run any number of times.
            if tool == LOOK || tool == "flaky" {
                continue;
            }
            paid += u64::from(tool == PAID);
            let task = arguments.get("task").and_then(Value::as_str);
            if let Some(task) = task {
                let first = *hands.entry(task.to_owned()).or_insert(at);
                if first != at {
                    let seen = format!("effects of `{task}` on the hosts {first} and {at}");
                    return broken_invariant(SimInvariant::OneHost, seen);
                }
            }
            let arguments = Value::Object(arguments).to_string();
            effects.entry(format!("{tool} {arguments}")).or_default().push(at);
        }
        if paid > PAID_A_DAY {
            let seen = format!("host {at}: `{PAID}` ran {paid} times, {PAID_A_DAY} are allowed");
            return broken_invariant(SimInvariant::BudgetHolds, seen);
        }
    }
    match effects.iter().find(|(_, hosts)| hosts.len() > 1) {
        Some((what, hosts)) => {
            broken_invariant(SimInvariant::NoEffectTwice, format!("{what} on hosts {hosts:?}"))
        }
        None => Ok(()),
    }
}

/// Checks the invariants that hold once the faults have ended and enough time has passed.
pub(crate) fn at_the_end(world: &SwarmWorld) -> Result<(), BrokenInvariant> {
    let ended = ended_at_leader(world);
    for (task, text) in &world.tasks {
        if !ended.contains_key(task.as_str()) {
            return broken_invariant(SimInvariant::EveryTaskEnds, format!("`{text}` has not"));
        }
    }
    for (at, host) in world.hosts.iter().enumerate() {
        if let Some(seen) = world.desks.get(at).and_then(|desk| desk.facts.missing_answer()) {
            return broken_invariant(SimInvariant::SameAnswer, format!("host {at}: {seen}"));
        }
        if let Some((message, _)) = host.rig.journal.inbox().iter().find(|(_, end)| end.is_none()) {
            return broken_invariant(
                SimInvariant::EveryMessageEnds,
                format!("host {at}: {message} is open"),
            );
        }
    }
    Ok(())
}
