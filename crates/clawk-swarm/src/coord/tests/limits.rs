//! Every limit, exactly.

use clawk_proto::method::TaskStatus::{Completed, Failed, Partial};
use serde_json::{Value, json};

use super::{Do, RetryReason, Sim, SwarmFact, answers, brief, id, reason, say};

const ONE: &[(&str, &str, u32)] = &[("a", "w", 1)];
const TWO: &[(&str, &str, u32)] = &[("a", "w", 2)];

fn concurrency(value: Value) -> Value {
    json!({"coordination": {"concurrency": value}})
}

#[test]
fn no_more_run_at_once_than_may() {
    for most in 1..=4 {
        let sim = Sim::new(
            "broadcast",
            "merge",
            &[("a", "w", 4)],
            concurrency(json!({"max_parallel": most})),
            |_, _| vec![Do::Work(10), Do::Say("x".to_owned())],
        );
        let (result, _, sim) = sim.run("task");
        assert_eq!(
            (sim.most, result.duration_ms),
            (most, 10 * (4_u64.div_ceil(most as u64))),
            "{most}"
        );
    }
}

#[test]
fn who_waits_is_not_counted() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "w", 2)];
    let sim = Sim::new(
        "leader-worker",
        "merge",
        agents,
        concurrency(json!({"max_parallel": 1})),
        |start, _| match &*start.member {
            "head" => vec![
                Do::Delegate(vec![("", "one"), ("", "two")]),
                Do::Work(10),
                Do::Say("h".to_owned()),
            ],
            _ => vec![Do::Work(10), Do::Say("x".to_owned())],
        },
    );
    let (result, _, sim) = sim.run("task");
    assert_eq!((result.status, sim.most, result.duration_ms), (Completed, 1, 30));
}

#[test]
fn a_seat_has_one_task_at_a_time_unless_it_may_have_several() {
    for (sequential, most) in [(true, 1), (false, 3)] {
        let more = concurrency(json!({"max_parallel": 5, "sequential_within_agent": sequential}));
        let mut sim = Sim::new("broadcast", "merge", ONE, more, |_, _| {
            vec![Do::Work(10), Do::Say("x".to_owned())]
        });
        for n in 1..=3 {
            sim.accept(n, "task");
        }
        sim.go();
        assert_eq!((sim.results.len(), sim.most), (3, most), "{sequential}");
        if !sequential {
            continue;
        }
        let order: Vec<_> = sim.results.iter().map(|result| result.task_id.clone()).collect();
        assert_eq!(order, [id(1), id(2), id(3)], "first come, first served");
    }
}

#[test]
fn a_bounded_queue_refuses_what_is_beyond() {
    let mut sim = Sim::new("broadcast", "merge", ONE, json!({}), |_, _| {
        vec![Do::Work(10), Do::Say("x".to_owned())]
    });
    sim.coord.plan.limits.local.max_waiting = 2;
    for n in 1..=3 {
        sim.accept(n, "task");
    }
    let refused = sim
        .coord
        .accept_run(&id(4), brief("task"), None, "test", sim.now)
        .unwrap_err();
    assert_eq!((refused.code, refused.reason), (-32040, "busy"));
}

#[test]
fn direct_lets_nothing_wait_but_the_fan_out_itself() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "w", 1)];
    let direct = json!({"coordination": {"message_passing": "direct"}});
    let sim = Sim::new(
        "leader-worker",
        "leader-decides",
        agents,
        direct.clone(),
        |start, _| match &*start.member {
            "head" => vec![
                Do::Delegate(vec![("a", "one"), ("a", "two")]),
                Do::Say("$got".to_owned()),
            ],
            _ => say("x"),
        },
    );
    let (result, log, _) = sim.run("task");
    assert!(log.contains(&"head refused: -32040 busy".to_owned()));
    assert_eq!(result.text, "refused busy; a:x");
    let mut more = direct;
    more["coordination"]["concurrency"] = json!({"max_parallel": 1});
    let (result, _, _) = Sim::new("broadcast", "merge", TWO, more, |_, _| say("x")).run("task");
    assert_eq!((result.status, result.answers.len()), (Completed, 2));
}

#[test]
fn tries_are_counted_and_spaced() {
    let begins = |sim: &Sim| {
        let began = |fact: &SwarmFact| matches!(fact, SwarmFact::Began { .. });
        sim.facts.iter().filter(|fact| began(fact)).count()
    };
    for (failure, tries, took, word, code) in [
        (json!({}), 1, 0, "crashed", -32041),
        (
            json!({"retry_per_agent": 3}),
            4,
            1000 + 2000 + 4000,
            "crashed",
            -32041,
        ),
        (
            json!({"retry_per_agent": 1, "dead_letter": {"enabled": false}}),
            2,
            1000,
            "crashed",
            -32041,
        ),
        (
            json!({"retry_per_agent": 1, "dead_letter": {"max_retries": 2}}),
            3,
            1000 + 2000,
            "dead_lettered",
            -32041,
        ),
    ] {
        let sim = Sim::new("broadcast", "merge", ONE, json!({"failure": failure}), |_, _| {
            vec![Do::Lose(RetryReason::Crashed)]
        });
        let (result, log, sim) = sim.run("task");
        let fault = result.answers[0].error.clone().unwrap();
        assert_eq!((begins(&sim), result.duration_ms), (tries, took), "{failure}");
        assert_eq!((fault.reason.as_str(), fault.code), (word, code), "{failure}");
        assert_eq!(
            log.contains(&"dead letter".to_owned()),
            word == "dead_lettered",
            "{failure}"
        );
        assert_eq!(result.answers[0].attempts as usize, tries);
    }
    let sim = Sim::new("broadcast", "merge", ONE, json!({}), |_, _| {
        vec![Do::Lose(RetryReason::Unreached)]
    });
    let (result, _, _) = sim.run("task");
    assert_eq!(
        result.answers[0].error.as_ref().unwrap().code,
        -32040,
        "never reached"
    );
}

#[test]
fn dead_letters_go_round_the_seats_first() {
    let more = json!({"failure": {"retry_per_agent": 1, "dead_letter": {"max_retries": 4}}});
    let sim = Sim::new("broadcast", "merge", TWO, more, |start, _| match &*start.member {
        "a-1" => vec![Do::Lose(RetryReason::NoProvider)],
        _ if start.task == super::derived(&id(1), "0/0") => vec![Do::Lose(RetryReason::Crashed)],
        _ => say("fine"),
    });
    let (result, log, _) = sim.run("task");
    let tries: Vec<&str> = log
        .iter()
        .filter(|line| line.contains(" work "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(tries, ["a-1", "a-2", "a-1", "a-2", "a-2", "a-1"]);
    assert_eq!(answers(&result), ["a-1:  (dead_lettered)", "a-2: fine"]);
}

#[test]
fn an_effect_that_nobody_knows_is_not_tried_again() {
    let more = json!({"failure": {"retry_per_agent": 5, "dead_letter": {}}});
    let (result, log, _) = Sim::new("broadcast", "merge", ONE, more, |_, _| {
        vec![Do::Fail("effects_unknown")]
    })
    .run("task");
    assert_eq!(
        (
            log.len(),
            result.answers[0].error.as_ref().unwrap().reason.as_str()
        ),
        (1, "effects_unknown")
    );
}

#[test]
fn a_circuit_opens_tries_once_and_closes() {
    let more = json!({"failure": {"circuit_breaker": {"failure_threshold": 2, "reset_timeout_ms": 500}}});
    let mut tries = 0;
    let mut sim = Sim::new("broadcast", "merge", ONE, more, move |_, _| {
        tries += 1;
        if tries <= 3 {
            vec![Do::Lose(RetryReason::Crashed)]
        } else {
            say("back")
        }
    });
    for n in 1..=5 {
        sim.accept(n, "task");
    }
    sim.go();
    let at = 1_000_000;
    let circuits: Vec<String> = sim
        .log
        .iter()
        .filter(|line| line.starts_with("circuit"))
        .cloned()
        .collect();
    assert_eq!(
        circuits,
        [
            format!("circuit a Open {{ until_ms: {} }}", at + 500),
            "circuit a Trial".to_owned(),
            format!("circuit a Open {{ until_ms: {} }}", at + 1000),
            "circuit a Trial".to_owned(),
            "circuit a Closed".to_owned(),
        ]
    );
    let ends: Vec<_> = sim
        .results
        .iter()
        .map(|result| (result.status, result.duration_ms))
        .collect();
    assert_eq!(
        ends,
        [
            (Failed, 0),
            (Failed, 0),
            (Failed, 500),
            (Completed, 1000),
            (Completed, 1000)
        ]
    );
    assert_eq!(sim.coord.members()[0].circuit, "closed");
}

#[test]
fn direct_is_told_of_an_open_circuit() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "w", 1)];
    let more = json!({"coordination": {"message_passing": "direct"},
        "failure": {"circuit_breaker": {"failure_threshold": 1, "reset_timeout_ms": 500}}});
    let sim = Sim::new(
        "leader-worker",
        "leader-decides",
        agents,
        more,
        |start, _| match &*start.member {
            "head" => vec![
                Do::Delegate(vec![("a", "one")]),
                Do::Delegate(vec![("a", "two")]),
                Do::Say("$got".to_owned()),
            ],
            _ => vec![Do::Lose(RetryReason::Crashed)],
        },
    );
    let (result, _, _) = sim.run("task");
    assert_eq!(result.text, "a:crashed; refused circuit_open");
}

#[test]
fn a_try_has_its_share_of_the_time() {
    let more = json!({"aggregation": {"timeout_ms": 900}, "failure": {"retry_per_agent": 2}});
    let sim = Sim::new("broadcast", "merge", ONE, more, |_, _| {
        vec![Do::Work(10_000), Do::Say("x".to_owned())]
    });
    let mut sim = sim;
    sim.coord.plan.limits.local.retry_delay_ms = 1;
    let (result, log, _) = sim.run("task");
    assert_eq!(
        log.iter().filter(|line| *line == "cancel a").count(),
        3,
        "{log:#?}"
    );
    assert_eq!(
        (result.duration_ms, reason(&result)),
        (900, "timeout"),
        "three tries of 300 ms and two waits pass 900 ms"
    );
}

#[test]
fn a_run_ends_at_its_time_with_what_is_there() {
    for (strategy, status, text) in [
        ("merge", Partial, "## a-1\n\nquick\n\n## a-2\n\nquick"),
        ("majority-vote", Partial, "quick"),
        ("best-of-n", Failed, ""),
        ("leader-decides", Failed, ""),
    ] {
        let more = json!({"aggregation": {"timeout_ms": 100}});
        let sim = Sim::new(
            "broadcast",
            strategy,
            &[("a", "w", 3)],
            more,
            |start, _| match &*start.member {
                "a-3" => vec![Do::Work(1000), Do::Say("slow".to_owned())],
                _ => say("quick"),
            },
        );
        let (result, log, _) = sim.run("task");
        assert_eq!(
            (result.status, result.text.as_str(), reason(&result)),
            (status, text, "timeout"),
            "{strategy}"
        );
        assert_eq!((result.duration_ms, result.answers.len()), (100, 3));
        assert!(log.contains(&"cancel a-3".to_owned()) && !log.iter().any(|line| line.contains("judge")));
    }
    let more = json!({"aggregation": {"timeout_ms": 100}, "resource_limits": {"max_duration_ms": 50}});
    let sim = Sim::new("broadcast", "merge", ONE, more, |_, _| {
        vec![Do::Work(1000), Do::Say("x".to_owned())]
    });
    let (result, _, _) = sim.run("task");
    assert_eq!(
        (
            result.duration_ms,
            reason(&result),
            result.error.as_ref().unwrap().code
        ),
        (50, "swarm_duration", -32041)
    );
}

#[test]
fn a_leaders_run_that_is_cut_has_what_it_delegated() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "w", 2)];
    let more = json!({"aggregation": {"timeout_ms": 100}});
    let sim = Sim::new("leader-worker", "merge", agents, more, |start, _| {
        match &*start.member {
            "head" => vec![
                Do::Delegate(vec![("", "one"), ("", "two")]),
                Do::Say("h".to_owned()),
            ],
            "a-1" => say("quick"),
            _ => vec![Do::Work(1000), Do::Say("slow".to_owned())],
        }
    });
    let (result, log, _) = sim.run("task");
    assert_eq!(
        (result.status, result.text.as_str(), reason(&result)),
        (Partial, "quick", "timeout")
    );
    assert_eq!(answers(&result), ["a-1: quick", "a-2:  (timeout)"]);
    assert!(log.contains(&"cancel head".to_owned()));
}

#[test]
fn an_empty_purse_ends_the_run() {
    let more = concurrency(json!({"max_parallel": 2}));
    let sim = Sim::new(
        "broadcast",
        "merge",
        &[("a", "w", 4)],
        more,
        |start, _| match &*start.member {
            "a-1" => say("cheap"),
            "a-2" => vec![Do::Work(5), Do::Spent],
            _ => vec![Do::Work(10), Do::Say("x".to_owned())],
        },
    );
    let (result, log, _) = sim.run("task");
    assert_eq!(
        (result.status, result.text.as_str(), reason(&result)),
        (Partial, "cheap", "swarm_tokens")
    );
    assert_eq!(result.error.as_ref().unwrap().code, -32021);
    assert!(
        !log.iter().any(|line| line.starts_with("a-4")),
        "what has not begun ends unbegun: {log:#?}"
    );
    assert_eq!(result.answers[3].attempts, 0);
}

#[test]
fn an_unreadable_verdict_is_asked_for_once_more() {
    for (second, text, word) in [("2", "a-2", ""), ("none", "", "no_verdict")] {
        let sim = Sim::new(
            "broadcast",
            "best-of-n",
            TWO,
            json!({}),
            move |start, _| match start.kind {
                super::Kind::Judge { again, .. } => say(if again { second } else { "the first" }),
                _ => say(&start.member.clone()),
            },
        );
        let (result, log, _) = sim.run("task");
        assert_eq!((result.text.as_str(), reason(&result)), (text, word));
        assert_eq!(
            log.iter().filter(|line| line.starts_with("claw judge")).count(),
            2
        );
    }
}

#[test]
fn the_cheapest_free_member_is_taken_where_cost_counts() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "w", 1), ("b", "w", 1), ("c", "w", 1)];
    let more = json!({"aggregation": {"cost_aware": true}});
    let mut sim = Sim::new(
        "leader-worker",
        "leader-decides",
        agents,
        more,
        |start, _| match &*start.member {
            "head" => vec![
                Do::Delegate(vec![("", "1"), ("", "2"), ("", "3")]),
                Do::Say("$got".to_owned()),
            ],
            member => say(member),
        },
    );
    for (at, price) in [(1, None), (2, Some(9)), (3, Some(4))] {
        sim.coord.plan.seats[at].price_microusd = price;
    }
    let (_, log, _) = sim.run("task");
    assert_eq!(log[1..], ["c work 1: 1", "b work 1: 2", "a work 1: 3"]);
}
