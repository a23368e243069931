//! The invariants over all hosts of one state, checked at any time and at the end.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ClusterWorld;
use crate::host::{FORBIDDEN, LOOK, PAID, PAID_A_DAY};
use crate::judge::{self, BrokenInvariant, SimInvariant, broken_invariant};

/// Whether everything that was requested is done.
pub(super) fn is_done(world: &ClusterWorld) -> bool {
    let journal = &world.server.journal;
    let ended = judge::ended_runs(journal);
    let mut tasks = world.users.tasks.iter();
    world.users.waits_for().is_none()
        && journal.inbox().iter().all(|(_, end)| end.is_some())
        && tasks.all(|(task, _)| ended.contains_key(task.as_str()))
        && world.server.reserved_amounts().is_empty()
}

/// Checks the invariants that hold at any time.
pub(super) fn check_always(world: &ClusterWorld) -> Result<(), BrokenInvariant> {
    let journal = &world.server.journal;
    if let Some((invariant, seen)) = world.users.facts.told.first_violation() {
        return broken_invariant(invariant, seen);
    }
    judge::reported_once(journal, world.run_tokens)?;
    judge::answered_once(journal)?;
    check_once(world)?;
    let mut used: BTreeMap<String, u64> = BTreeMap::new();
    for (run, tokens) in world.hosts.iter().flat_map(|host| host.used.by_run()) {
        *used.entry(run).or_default() += tokens;
    }
    match used.iter().find(|(_, tokens)| **tokens > world.run_tokens) {
        Some((run, tokens)) => broken_invariant(
            SimInvariant::PurseHolds,
            format!(
                "models used {tokens} tokens for `{run}` on all hosts, {} are allowed",
                world.run_tokens
            ),
        ),
        None => Ok(()),
    }
}

/// Checks the tools' effects over all hosts.
fn check_once(world: &ClusterWorld) -> Result<(), BrokenInvariant> {
    let (mut paid, mut effects) = (0, BTreeMap::<String, Vec<usize>>::new());
    for (at, host) in world.hosts.iter().enumerate() {
        for (tool, arguments) in host.rig.runner.runs() {
            if tool == FORBIDDEN {
                return broken_invariant(SimInvariant::DeniedNeverRuns, format!("host {at} ran `{tool}`"));
            }
            // Tools without side effects, and tools that failed before any, may run any number of times.
            if tool == LOOK || tool == "flaky" {
                continue;
            }
            paid += u64::from(tool == PAID);
            let arguments = Value::Object(arguments);
            effects.entry(format!("{tool} {arguments}")).or_default().push(at);
        }
    }
    if paid > PAID_A_DAY {
        let seen = format!("`{PAID}` ran {paid} times on all hosts, {PAID_A_DAY} are allowed");
        return broken_invariant(SimInvariant::BudgetHolds, seen);
    }
    match effects.iter().find(|(_, hosts)| hosts.len() > 1) {
        Some((what, hosts)) => {
            broken_invariant(SimInvariant::NoEffectTwice, format!("{what} on hosts {hosts:?}"))
        }
        None => Ok(()),
    }
}

/// Checks the invariants that hold once the faults have ended and enough time has passed.
pub(super) fn at_the_end(world: &ClusterWorld) -> Result<(), BrokenInvariant> {
    let journal = &world.server.journal;
    let verified = journal.look(|_, sealed| clawk_trace::verify_events(sealed));
    if !verified.valid {
        return broken_invariant(SimInvariant::ChainsValid, format!("{:?}", verified.fault));
    }
    let ended = judge::ended_runs(journal);
    let open = world
        .users
        .tasks
        .iter()
        .find(|(task, _)| !ended.contains_key(task.as_str()));
    if let Some((_, text)) = open {
        return broken_invariant(SimInvariant::EveryTaskEnds, format!("`{text}` has not"));
    }
    if let Some((message, _)) = journal.inbox().iter().find(|(_, end)| end.is_none()) {
        return broken_invariant(SimInvariant::EveryMessageEnds, format!("{message} is open"));
    }
    if let Some(seen) = world.users.facts.told.missing_answer() {
        return broken_invariant(SimInvariant::SameAnswer, seen);
    }
    if let Some(seen) = world.users.waits_for() {
        return broken_invariant(SimInvariant::EveryMessageEnds, seen);
    }
    match world.server.reserved_amounts().first() {
        Some(aside) => broken_invariant(SimInvariant::NothingLeftAside, aside.clone()),
        None => Ok(()),
    }
}
