//! Who may ask whom, whose report counts, what goes on after a restart.

use clawk_proto::method::TaskStatus::{Completed, Failed, Partial};
use serde_json::json;

use super::{
    Do, Effect, Kind, ReportReception, RetryReason, Sim, SwarmCoordinator, SwarmFact, TaskBrief,
    TaskConstraints, TaskId, answers, brief, id, reason, say,
};

const PEERS: &[(&str, &str, u32)] = &[("a", "peer", 1), ("b", "peer", 1)];

#[test]
fn peers_ask_each_other_and_never_in_a_circle() {
    let sim = Sim::new("peer-to-peer", "merge", PEERS, json!({}), |start, _| {
        match (start.kind, &*start.member) {
            (Kind::Asked, "b") => say("forty"),
            (Kind::Work, "a") => vec![Do::Ask("b", "how many?"), Do::Say("$got".to_owned())],
            (Kind::Work, "b") => vec![Do::Ask("a", "and you?"), Do::Say("$got".to_owned())],
            _ => unreachable!(),
        }
    });
    let (result, log, _) = sim.run("task");
    assert!(
        log.contains(&"b refused: -32040 ask_cycle".to_owned()),
        "{log:#?}"
    );
    assert_eq!(answers(&result), ["a: b:forty", "b: refused ask_cycle"]);
}

#[test]
fn a_question_waits_until_the_asked_one_has_ended_its_task() {
    let sim = Sim::new("peer-to-peer", "merge", PEERS, json!({}), |start, _| {
        match (start.kind, &*start.member) {
            (Kind::Asked, _) => say("late"),
            (_, "a") => vec![Do::Ask("b", "?"), Do::Say("$got".to_owned())],
            _ => vec![Do::Work(10), Do::Say("own".to_owned())],
        }
    });
    let (result, log, _) = sim.run("task");
    assert_eq!(
        log[2],
        "b asked 1: Another member of your swarm asks you. Answer it.||<p member=\"a\">|?|</p>"
    );
    assert_eq!(answers(&result), ["a: b:late", "b: own"]);
}

#[test]
fn who_may_not_delegate_is_refused() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "worker", 1)];
    let sim = Sim::new(
        "leader-worker",
        "merge",
        agents,
        json!({}),
        |start, _| match &*start.member {
            "head" => vec![
                Do::Delegate(vec![("head", "x")]),
                Do::Delegate(vec![("a", "y")]),
                Do::Ask("a", "z"),
                Do::Say("h".to_owned()),
            ],
            _ => vec![Do::Delegate(vec![("head", "back")]), Do::Say("$got".to_owned())],
        },
    );
    let (result, log, _) = sim.run("task");
    let refused: Vec<&String> = log.iter().filter(|line| line.contains("refused")).collect();
    assert_eq!(
        refused,
        [
            "head refused: -32602 not_below",
            "a refused: -32602 not_below",
            "head refused: -32602 not_a_peer"
        ]
    );
    assert_eq!(result.text, "refused not_below");
}

#[test]
fn depth_is_bounded() {
    let sim = |depth: u32| {
        let mut sim = Sim::new(
            "peer-to-peer",
            "merge",
            &[("a", "p", 6)],
            json!({"coordination": {"concurrency": {"sequential_within_agent": false}}}),
            |start, _| match (start.kind, &*start.member) {
                (Kind::Work, "a-1") | (Kind::Asked, _) => {
                    let to = ["a-2", "a-3", "a-4", "a-5", "a-6"];
                    let at = start.member.trim_start_matches("a-").parse::<usize>().unwrap();
                    vec![Do::Ask(to[at - 1], "?"), Do::Say("$got".to_owned())]
                }
                _ => say("w"),
            },
        );
        sim.coord.plan.limits.local.max_depth = depth;
        let (result, _, _) = sim.run("task");
        result.answers[0].text.clone()
    };
    assert_eq!(sim(1), "a-2:refused max_depth");
    assert_eq!(sim(2), "a-2:a-3:refused max_depth");
}

#[test]
fn a_report_counts_once_and_is_the_members_own() {
    let sim = Sim::new(
        "broadcast",
        "merge",
        &[("a", "w", 1), ("b", "w", 1), ("c", "w", 1)],
        json!({"failure": {"retry_per_agent": 3}}),
        |start, _| match &*start.member {
            "a" => vec![
                Do::Report(Partial, json!({"text": "half"})),
                Do::Report(Completed, json!("whole")),
                Do::Say("ignored".to_owned()),
            ],
            "b" => vec![
                Do::Report(Completed, json!(1)),
                Do::Report(Failed, json!("no")),
                Do::Say("x".to_owned()),
            ],
            _ => say("c"),
        },
    );
    let (result, log, mut sim) = sim.run("task");
    let reports: Vec<&String> = log.iter().filter(|line| line.contains("reports")).collect();
    assert_eq!(
        reports,
        [
            "a reports: Taken",
            "a reports: Duplicate",
            "b reports: Garbage",
            "b reports: Taken"
        ]
    );
    assert_eq!(answers(&result), ["a: half", "b: no (reported_failed)", "c: c"]);
    assert_eq!(
        log.iter().filter(|line| line.starts_with("b work")).count(),
        1,
        "its word is not tried again"
    );
    assert_eq!(result.text, "## a\n\nhalf\n\n## c\n\nc");
    let refused = |fact: &SwarmFact| matches!(fact, SwarmFact::Refused { .. });
    assert_eq!(sim.facts.iter().filter(|fact| refused(fact)).count(), 2);
    let ended = result.answers[0].task_id.clone();
    let (reception, _) = sim
        .coord
        .accept_report(&ended, Some("a"), Completed, &json!("late"));
    assert_eq!(reception, ReportReception::Late);
    let (reception, effects) = sim
        .coord
        .accept_report(&id(99), Some("a"), Completed, &json!("x"));
    assert_eq!((reception, effects), (ReportReception::Unknown, vec![]));
}

#[test]
fn another_members_report_does_not_count() {
    let mut sim = Sim::new("broadcast", "merge", PEERS, json!({}), |_, _| {
        vec![Do::Work(10), Do::Say("own".to_owned())]
    });
    sim.accept(1, "task");
    let task = sim
        .active
        .values()
        .find(|active| active.start.member == "a")
        .unwrap()
        .start
        .task
        .clone();
    for by in [Some("b"), None] {
        let (reception, effects) = sim.coord.accept_report(&task, by, Completed, &json!("forged"));
        assert_eq!(reception, ReportReception::NotYours);
        sim.take(effects);
    }
    sim.go();
    assert_eq!(answers(&sim.results[0]), ["a: own", "b: own"]);
}

#[test]
fn what_was_not_waited_for_is_told_afterwards() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "worker", 1), ("b", "worker", 1)];
    let sim = Sim::new(
        "leader-worker",
        "leader-decides",
        agents,
        json!({}),
        |start, got| match (&*start.member, got.len()) {
            ("head", 0) => vec![
                Do::Leave("a", "one"),
                Do::Leave("b", "two"),
                Do::Say("wait".to_owned()),
            ],
            ("head", _) => say("now: $got"),
            (member, _) => vec![Do::Work(5), Do::Say(format!("{member}!"))],
        },
    );
    let (result, _, sim) = sim.run("task");
    assert_eq!(
        (result.text.as_str(), answers(&result)),
        ("now: $got", vec!["a: a!".to_owned(), "b: b!".to_owned()])
    );
    let told: Vec<usize> = sim
        .facts
        .iter()
        .filter_map(|fact| {
            if let SwarmFact::Told { of, .. } = fact {
                Some(of.len())
            } else {
                None
            }
        })
        .collect();
    assert_eq!(told, [2], "all together, once");
}

#[test]
fn reports_reach_the_others_of_an_event_bus() {
    let bus = json!({"coordination": {"message_passing": "event-bus", "concurrency": {"max_parallel": 2}}});
    let sim = Sim::new(
        "broadcast",
        "merge",
        &[("a", "w", 3)],
        bus,
        |start, _| match &*start.member {
            "a-3" => say(&format!("heard {}", start.heard.len())),
            "a-1" => say("first"),
            _ => vec![Do::Work(10), Do::Say("slow".to_owned())],
        },
    );
    let (result, log, _) = sim.run("task");
    assert_eq!(
        log.iter().filter(|line| *line == "publish to 1").count(),
        2,
        "{log:#?}"
    );
    assert_eq!(result.answers[2].text, "heard 1");
}

#[test]
fn the_same_request_is_the_same_task() {
    let mut sim = Sim::new("broadcast", "merge", PEERS, json!({}), |_, _| say("x"));
    sim.accept(1, "task");
    assert_eq!(
        sim.coord.accept_run(&id(1), brief("task"), None, "test", sim.now),
        Ok(vec![])
    );
    let other = sim
        .coord
        .accept_run(&id(1), brief("other"), None, "test", sim.now);
    assert_eq!(other.unwrap_err().reason, "task_id_reused");
    sim.go();
    let over = sim.coord.accept_run(&id(1), brief("task"), None, "test", sim.now);
    assert_eq!(
        over.unwrap_err().reason,
        "task_id_reused",
        "the driver knows the results of ended runs"
    );
    let nobody = sim
        .coord
        .accept_run(&id(2), brief("task"), Some("zed"), "test", sim.now);
    assert_eq!(nobody.unwrap_err().reason, "unknown_member");
    let empty = sim
        .coord
        .accept_run(&id(2), TaskBrief::default(), None, "test", sim.now);
    assert_eq!(empty.unwrap_err().reason, "bad_task");
}

#[test]
fn one_member_can_be_meant() {
    let mut sim = Sim::new("broadcast", "merge", PEERS, json!({}), |start, _| {
        say(&start.member.clone())
    });
    let effects = sim
        .coord
        .accept_run(&id(1), brief("task"), Some("b"), "test", sim.now)
        .unwrap();
    sim.take(effects);
    sim.go();
    assert_eq!(
        (sim.results[0].text.as_str(), sim.results[0].answers.len()),
        ("b", 1)
    );
}

/// Cuts the record behind each commit, starts again from it, and goes on.
#[test]
fn a_restart_at_any_point_goes_on() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "worker", 2)];
    let script = |start: &super::TryStart, _: &[String]| match (start.kind, &*start.member) {
        (Kind::Judge { .. }, _) => say("1"),
        (_, "head") => vec![
            Do::Delegate(vec![("", "one"), ("", "two")]),
            Do::Say("h".to_owned()),
        ],
        (_, "a-1") if start.attempt == 1 => vec![Do::Lose(RetryReason::Crashed)],
        (_, member) => say(member),
    };
    let more = json!({"failure": {"retry_per_agent": 1}});
    let (_, _, whole) = Sim::new("leader-worker", "best-of-n", agents, more.clone(), script).run("task");
    let cuts = whole
        .kept
        .iter()
        .copied()
        .filter(|cut| (1..whole.facts.len()).contains(cut));
    for cut in cuts {
        let mut sim = Sim::new("leader-worker", "best-of-n", agents, more.clone(), script);
        for fact in &whole.facts[..cut] {
            sim.coord.apply_fact(fact);
            sim.facts.push(fact.clone());
        }
        let ended = |fact: &SwarmFact| matches!(fact, SwarmFact::Reported { .. });
        let before = whole.facts[..cut].iter().filter(|fact| ended(fact)).count();
        let effects = sim.coord.resume(sim.now);
        for effect in &effects {
            if let Effect::Start(start) = effect {
                let begun = |fact: &SwarmFact| matches!(fact, SwarmFact::Began { task, attempt, .. } if *task == start.task && *attempt == start.attempt);
                assert_eq!(
                    start.resumed,
                    whole.facts[..cut].iter().any(begun),
                    "begun ones go on"
                );
            }
        }
        sim.take(effects);
        sim.go();
        assert_eq!(sim.results.len(), 1, "cut behind {:?}", whole.facts[cut - 1]);
        assert_eq!(
            (sim.results[0].status, reason(&sim.results[0])),
            (Completed, ""),
            "cut behind {:?}",
            whole.facts[cut - 1]
        );
        assert_eq!(sim.results[0].answers.len(), 2);
        let mut reported: Vec<&TaskId> = sim
            .facts
            .iter()
            .filter_map(|fact| {
                if let SwarmFact::Reported { task, .. } = fact {
                    Some(task)
                } else {
                    None
                }
            })
            .collect();
        let all = reported.len();
        assert!(all >= before);
        reported.sort();
        reported.dedup();
        assert_eq!(reported.len(), all, "each task is reported once");
    }
}

#[test]
fn a_swarm_that_changed_ends_its_runs() {
    let mut sim = Sim::new("broadcast", "merge", PEERS, json!({}), |_, _| {
        vec![Do::Work(10), Do::Say("x".to_owned())]
    });
    sim.accept(1, "task");
    let other = Sim::new("broadcast", "merge", &[("z", "w", 1)], json!({}), |_, _| say("z"));
    let mut after: SwarmCoordinator = other.coord;
    for fact in &sim.facts {
        after.apply_fact(fact);
    }
    let effects = after.resume(sim.now);
    let ended = effects.iter().find_map(|effect| {
        if let Effect::RunEnded(result) = effect {
            Some(result)
        } else {
            None
        }
    });
    assert_eq!(reason(ended.unwrap()), "swarm_changed");
    assert!(after.run(&id(1)).is_none());
}

#[test]
fn wishes_only_narrow() {
    let agents: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "worker", 1)];
    let sim = Sim::new(
        "leader-worker",
        "leader-decides",
        agents,
        json!({}),
        |start, _| match &*start.member {
            "head" => {
                let wish = TaskConstraints {
                    timeout_ms: Some(50),
                    ..TaskConstraints::default()
                };
                vec![Do::Wish("slow", wish), Do::Say("$got".to_owned())]
            }
            _ => vec![Do::Work(100), Do::Say("x".to_owned())],
        },
    );
    let (result, log, _) = sim.run("task");
    assert!(log.contains(&"cancel a".to_owned()), "{log:#?}");
    assert_eq!(result.text, "a:timeout");
}
