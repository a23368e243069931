use clawk_manifest::model::Swarm;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Plan, PlanFault, SwarmWorkerId};
use crate::limit::LocalLimits;

pub(crate) fn swarm(topology: &str, strategy: &str, agents: &[(&str, &str, u32)], more: Value) -> Swarm {
    let agents: Vec<Value> = agents
        .iter()
        .map(|(name, role, count)| json!({"identity_ref": name, "role": role, "count": count}))
        .collect();
    let mut spec = json!({"name": "team", "topology": topology, "agents": agents,
        "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
        "aggregation": {"strategy": strategy}});
    merge(&mut spec, more);
    serde_json::from_value(spec).unwrap()
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn plan(topology: &str, agents: &[(&str, &str, u32)]) -> Plan {
    Plan::from_manifest(
        &swarm(topology, "merge", agents, json!({})),
        "claw",
        LocalLimits::default(),
    )
    .unwrap()
}

fn names(plan: &Plan, whom: &[SwarmWorkerId]) -> Vec<String> {
    whom.iter().map(|who| plan.member(*who).to_owned()).collect()
}

#[test]
fn members_are_numbered_and_the_head_is_the_first_that_leads() {
    let plan = plan(
        "leader-worker",
        &[
            ("hand", "worker", 2),
            ("claw://local/identity/boss", "leader", 1),
            ("eye", "worker", 1),
        ],
    );
    assert_eq!(
        names(&plan, &plan.all_seats().collect::<Vec<_>>()),
        ["hand-1", "hand-2", "boss", "eye"]
    );
    assert_eq!(plan.head, SwarmWorkerId::Seat(2));
    assert_eq!(
        names(&plan, &plan.delegable_seats(plan.head)),
        ["hand-1", "hand-2", "eye"]
    );
    assert_eq!(plan.delegable_seats(SwarmWorkerId::Seat(0)), []);
    assert_eq!(plan.limits.max_parallel, 4);
    let worker = plan.other_seats();
    assert_eq!(
        names(&plan, &plan.find_seats(&worker, "hand")),
        ["hand-1", "hand-2"]
    );
    assert_eq!(
        names(&plan, &plan.find_seats(&worker, "worker")),
        ["hand-1", "hand-2", "eye"]
    );
    assert_eq!(names(&plan, &plan.find_seats(&worker, "hand-2")), ["hand-2"]);
    assert_eq!(
        plan.find_seats(&worker, "boss"),
        [],
        "the head is not below itself"
    );
}

#[test]
fn without_a_leader_the_claw_leads_and_two_heads_are_an_error() {
    let own = plan(
        "broadcast",
        &[("a", "worker", 1), ("a", "critic", 1), ("claw", "x", 1)],
    );
    assert_eq!(own.head, SwarmWorkerId::Claw);
    assert_eq!(names(&own, &own.other_seats()), ["a", "a.critic", "claw.x"]);
    let two = swarm("broadcast", "merge", &[("a", "leader", 2)], json!({}));
    assert_eq!(
        Plan::from_manifest(&two, "claw", LocalLimits::default()),
        Err(PlanFault::SeveralHeads("a".to_owned()))
    );
}

#[test]
fn a_hierarchy_opens_a_branch_for_each_instance_of_a_sub() {
    let plan = plan(
        "hierarchical",
        &[
            ("top", "root", 1),
            ("direct", "leaf", 1),
            ("sub", "sub", 2),
            ("leaf", "worker", 2),
            ("other", "manager", 1),
            ("pen", "worker", 1),
        ],
    );
    let all: Vec<SwarmWorkerId> = plan.all_seats().collect();
    assert_eq!(
        names(&plan, &all),
        [
            "top",
            "direct",
            "sub-1",
            "sub-2",
            "sub-1.leaf-1",
            "sub-1.leaf-2",
            "sub-2.leaf-1",
            "sub-2.leaf-2",
            "other",
            "other.pen"
        ]
    );
    assert_eq!(
        names(&plan, &plan.delegable_seats(plan.head)),
        ["direct", "sub-1", "sub-2", "other"]
    );
    assert_eq!(
        names(&plan, &plan.delegable_seats(SwarmWorkerId::Seat(3))),
        ["sub-2.leaf-1", "sub-2.leaf-2"]
    );
    assert_eq!(
        names(&plan, &plan.delegable_seats(SwarmWorkerId::Seat(8))),
        ["other.pen"]
    );
    assert_eq!(
        plan.next(
            SwarmWorkerId::Seat(4),
            &plan.delegable_seats(SwarmWorkerId::Seat(2))
        ),
        SwarmWorkerId::Seat(5)
    );
}

#[test]
fn stages_are_entries_without_the_head() {
    let plan = plan(
        "pipeline",
        &[
            ("lead", "leader", 1),
            ("a", "stage", 2),
            ("a", "stage", 1),
            ("b", "stage", 1),
        ],
    );
    let stages: Vec<Vec<String>> = plan.stages().iter().map(|stage| names(&plan, stage)).collect();
    assert_eq!(stages, [vec!["a-1", "a-2"], vec!["a"], vec!["b"]]);
}

#[test]
fn only_peers_ask_each_other() {
    let plan = plan("peer-to-peer", &[("a", "leader", 1), ("b", "peer", 2)]);
    assert_eq!(
        names(&plan, &plan.askable_seats(SwarmWorkerId::Seat(1))),
        ["a", "b-2"]
    );
    assert_eq!(plan.askable_seats(SwarmWorkerId::Claw), []);
}

#[test]
fn the_next_seat_goes_round() {
    let plan = plan("broadcast", &[("a", "w", 2), ("b", "w", 1), ("c", "x", 1)]);
    let all: Vec<SwarmWorkerId> = plan.all_seats().collect();
    assert_eq!(plan.next(SwarmWorkerId::Seat(0), &all), SwarmWorkerId::Seat(1));
    assert_eq!(
        plan.next(SwarmWorkerId::Seat(1), &all),
        SwarmWorkerId::Seat(0),
        "the same identity before the same role"
    );
    assert_eq!(
        plan.next(SwarmWorkerId::Seat(2), &all),
        SwarmWorkerId::Seat(0),
        "the same role"
    );
    assert_eq!(
        plan.next(SwarmWorkerId::Seat(3), &all),
        SwarmWorkerId::Seat(3),
        "nobody else"
    );
}

proptest! {
    #[test]
    fn every_member_has_a_name_of_its_own(
        topology in prop::sample::select(vec!["leader-worker", "hierarchical", "pipeline"]),
        agents in prop::collection::vec(("[ab]", prop::sample::select(vec!["worker", "sub", "leader"]), 1..4_u32), 1..6),
    ) {
        let agents: Vec<(&str, &str, u32)> = agents
            .iter()
            .map(|(name, role, count)| (name.as_str(), *role, if *role == "leader" { 1 } else { *count }))
            .collect();
        let plan = plan(topology, &agents);
        let names: std::collections::BTreeSet<&str> = plan.seats.iter().map(|seat| &*seat.member).collect();
        prop_assert_eq!(names.len(), plan.seats.len());
        for who in plan.all_seats() {
            prop_assert_eq!(plan.find_member(plan.member(who)), Some(who));
            prop_assert!(!plan.delegable_seats(who).contains(&who));
        }
    }
}
