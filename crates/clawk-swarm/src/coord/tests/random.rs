//! Whatever members do: every run ends once, every task is reported once, nothing exceeds its limit.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::{Do, Kind, RetryReason, Sim, SwarmFact, TryStart};

fn script(seed: u64) -> impl FnMut(&TryStart, &[String]) -> Vec<Do> {
    let mut state = seed | 1;
    move |start, got| {
        let mut next = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let mut steps = Vec::new();
        for _ in 0..next(3) {
            match next(8) {
                0 if !start.below.is_empty() => steps.push(Do::Delegate(vec![("", "x"), ("", "y")])),
                1 if !start.below.is_empty() && got.is_empty() => steps.push(Do::Leave("", "z")),
                2 if !start.askable.is_empty() => steps.push(Do::Ask("peer", "?")),
                3 => steps.push(Do::Work(next(400))),
                4 => steps.push(Do::Report(clawk_proto::method::TaskStatus::Partial, json!("p"))),
                _ => {}
            }
        }
        steps.push(match next(10) {
            0 => Do::Lose(RetryReason::Crashed),
            1 => Do::Lose(RetryReason::Unreached),
            2 => Do::Fail("effects_unknown"),
            3 if next(4) == 0 => Do::Spent,
            _ if matches!(start.kind, Kind::Judge { .. }) => Do::Say("1".to_owned()),
            n => Do::Say(format!("{n}")),
        });
        steps
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn every_run_ends_once_and_so_does_every_task(
        topology in prop::sample::select(vec!["leader-worker", "hierarchical", "pipeline", "broadcast", "peer-to-peer"]),
        strategy in prop::sample::select(vec!["leader-decides", "majority-vote", "merge", "chain", "best-of-n"]),
        passing in prop::sample::select(vec!["queue", "direct", "event-bus"]),
        head in any::<bool>(),
        (parallel, sequential) in (1..4_u32, any::<bool>()),
        (retries, dead, breaker) in (0..3_u32, any::<bool>(), any::<bool>()),
        timeout in prop::option::of(50..2000_u64),
        runs in 1..4_u32,
        seed in any::<u64>(),
    ) {
        let mut agents = vec![("a", "peer", 2), ("s", "sub", 1), ("b", "peer", 2)];
        if head {
            agents.insert(1, ("head", "leader", 1));
        }
        let mut more = json!({
            "coordination": {"message_passing": passing, "concurrency": {"max_parallel": parallel, "sequential_within_agent": sequential}},
            "failure": {"retry_per_agent": retries},
        });
        if dead {
            more["failure"]["dead_letter"] = json!({"max_retries": retries + 1});
        }
        if breaker {
            more["failure"]["circuit_breaker"] = json!({"failure_threshold": 2, "reset_timeout_ms": 70});
        }
        if let Some(timeout) = timeout {
            more["aggregation"] = json!({"timeout_ms": timeout});
        }
        let mut sim = Sim::new(topology, strategy, &agents, more, script(seed));
        for n in 1..=runs {
            sim.accept(n, "task");
        }
        sim.go();
        prop_assert_eq!(sim.results.len(), runs as usize, "{:#?}", sim.log);
        prop_assert!(sim.active.is_empty() && sim.coord.tasks.is_empty());
        let mut ends: BTreeMap<&super::TaskId, (u32, u32)> = BTreeMap::new();
        for fact in &sim.facts {
            match fact {
                SwarmFact::Delegated { new, .. } => ends.entry(&new.task).or_default().0 += 1,
                SwarmFact::Reported { task, .. } => ends.entry(task).or_default().1 += 1,
                _ => {}
            }
        }
        prop_assert!(ends.values().all(|end| *end == (1, 1)), "{:#?}", ends);
        for result in &sim.results {
            if let Some(timeout) = timeout {
                prop_assert!(result.duration_ms <= timeout);
            }
        }
    }
}
