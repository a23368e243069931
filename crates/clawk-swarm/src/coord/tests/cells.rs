//! Each topology with each aggregation: the transcript is what the contract says (SWARM §3, §4).

use clawk_proto::method::TaskStatus::{Completed, Failed};
use serde_json::json;

use super::{Do, Kind, RunResult, Sim, TryStart, answers, reason, say};

/// Two workers and a head; the workers' answers are in `words`, by member.
fn script(start: &TryStart, got: &[String]) -> Vec<Do> {
    match (start.kind, start.member.as_str()) {
        (Kind::Judge { .. }, _) if start.text.contains("Which of these") => say("2"),
        (Kind::Judge { .. }, member) => say(&format!("{member} decides")),
        (_, "head" | "top") if !start.below.is_empty() && got.is_empty() => {
            let mut steps = vec![Do::Delegate(vec![("a", "part one"), ("b", "part two")])];
            steps.extend(say("$got"));
            steps
        }
        (_, "sub") => {
            let mut steps = vec![Do::Delegate(vec![("x", "leaf")])];
            steps.extend(say("sub says"));
            steps
        }
        (_, member) => say(&format!("{member}!")),
    }
}

fn cell(topology: &str, strategy: &str, agents: &[(&str, &str, u32)]) -> (RunResult, Vec<String>) {
    let sim = Sim::new(topology, strategy, agents, json!({}), script);
    let (result, log, _) = sim.run("task");
    assert_eq!(
        (result.topology.as_str(), result.strategy.as_str()),
        (topology, strategy)
    );
    (result, log)
}

const TEAM: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "worker", 1), ("b", "worker", 1)];
/// Both answers as a judge reads them.
const BOTH: &str = "<p member=\"a\">|a!|</p>||<p member=\"b\">|b!|</p>";

fn decide(answers: &str) -> String {
    format!(
        "task||{answers}||The members of your swarm have answered this task. Give the one answer to it, with the help of theirs."
    )
}

fn choose(first: &str, second: &str) -> String {
    format!(
        "task||Answer 1:|<p member=\"{first}\">|{first}!|</p>||Answer 2:|<p member=\"{second}\">|{second}!|</p>||Which of these 2 answers is the best? Say only {{\"best\": K, \"why\": \"…\"}} with K from 1 to 2."
    )
}

#[test]
fn leader_worker() {
    let both = ["a: a!", "b: b!"];
    let parts = ["head work 1: task", "a work 1: part one", "b work 1: part two"];
    let (result, log) = cell("leader-worker", "leader-decides", TEAM);
    assert_eq!(log, parts);
    assert_eq!(
        (result.text.as_str(), result.status, result.head_text.clone()),
        ("a:a!; b:b!", Completed, None)
    );
    assert_eq!(answers(&result), both);

    let (result, log) = cell("leader-worker", "merge", TEAM);
    assert_eq!(log, parts);
    assert_eq!(result.text, "## a\n\na!\n\n## b\n\nb!");
    assert_eq!(result.head_text.as_deref(), Some("a:a!; b:b!"));

    let (result, log) = cell("leader-worker", "majority-vote", TEAM);
    assert_eq!(log, parts);
    assert_eq!((result.status, reason(&result)), (Failed, "no_majority"));
    assert_eq!(result.votes.as_ref().unwrap().len(), 2);

    let (result, log) = cell("leader-worker", "chain", TEAM);
    assert_eq!(
        log,
        [
            "head work 1: task",
            "a work 1: part one",
            "b work 1: part two||<p member=\"a\">|a!|</p>"
        ]
    );
    assert_eq!(
        (result.text.as_str(), answers(&result)),
        ("b!", both.map(str::to_owned).to_vec())
    );

    let (result, log) = cell("leader-worker", "best-of-n", TEAM);
    assert_eq!(log[..3], parts);
    assert_eq!(log[3..], [format!("head judge 1: {}", choose("a", "b"))]);
    assert_eq!(result.text, "b!");
    let judge = result.judge.unwrap();
    assert_eq!((judge.member.as_str(), judge.best), ("head", 2));
    assert_eq!(
        (result.tokens, result.cost_microusd),
        (40, 20),
        "every try is counted"
    );
}

#[test]
fn a_leader_that_delegates_nothing_answers_itself() {
    for strategy in ["leader-decides", "merge", "majority-vote", "chain", "best-of-n"] {
        let sim = Sim::new("leader-worker", strategy, TEAM, json!({}), |_, _| say("alone"));
        let (result, log, _) = sim.run("task");
        assert_eq!(
            (result.text.as_str(), result.status),
            ("alone", Completed),
            "{strategy}"
        );
        assert_eq!(
            (log, answers(&result)),
            (
                vec!["head work 1: task".to_owned()],
                vec!["head: alone".to_owned()]
            )
        );
    }
}

#[test]
fn without_a_leader_the_claw_leads() {
    let sim = Sim::new(
        "leader-worker",
        "merge",
        &[("a", "worker", 2)],
        json!({}),
        |start, _| match &*start.member {
            "claw" => vec![
                Do::Delegate(vec![("", "one"), ("", "two")]),
                Do::Say("done".to_owned()),
            ],
            member => say(member),
        },
    );
    let (result, log, _) = sim.run("task");
    assert_eq!(log, ["claw work 1: task", "a-1 work 1: one", "a-2 work 1: two"]);
    assert_eq!(result.text, "## a-1\n\na-1\n\n## a-2\n\na-2");
}

#[test]
fn broadcast() {
    let both = ["a work 1: task", "b work 1: task"];
    let (result, log) = cell("broadcast", "leader-decides", TEAM);
    assert_eq!(log[..2], both);
    assert_eq!(log[2..], [format!("head judge 1: {}", decide(BOTH))]);
    assert_eq!(
        (result.text.as_str(), answers(&result)),
        ("head decides", vec!["a: a!".to_owned(), "b: b!".to_owned()])
    );

    let (result, log) = cell("broadcast", "merge", TEAM);
    assert_eq!(
        (log, result.text.as_str()),
        (both.map(str::to_owned).to_vec(), "## a\n\na!\n\n## b\n\nb!")
    );

    let (result, log) = cell("broadcast", "majority-vote", TEAM);
    assert_eq!(
        (log, reason(&result)),
        (both.map(str::to_owned).to_vec(), "no_majority")
    );

    let (result, log) = cell("broadcast", "chain", TEAM);
    assert_eq!(
        log,
        ["a work 1: task", "b work 1: task||<p member=\"a\">|a!|</p>"]
    );
    assert_eq!(result.text, "b!");

    let (result, log) = cell("broadcast", "best-of-n", TEAM);
    assert_eq!(log[..2], both);
    assert_eq!(log[2..], [format!("head judge 1: {}", choose("a", "b"))]);
    assert_eq!(
        (result.text.as_str(), result.judge.unwrap().member.as_str()),
        ("b!", "head")
    );
}

#[test]
fn peer_to_peer() {
    let peers: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "peer", 1)];
    let both = ["head work 1: task", "a work 1: task"];
    let (result, log) = cell("peer-to-peer", "leader-decides", peers);
    assert_eq!(log[..2], both);
    assert!(
        log[2].starts_with("head judge 1: task||<p member=\"head\">|head!|</p>||<p member=\"a\">"),
        "{log:?}"
    );
    assert_eq!(
        (result.text.as_str(), answers(&result)),
        ("head decides", vec!["head: head!".to_owned(), "a: a!".to_owned()])
    );

    let (result, _) = cell("peer-to-peer", "merge", peers);
    assert_eq!(result.text, "## head\n\nhead!\n\n## a\n\na!");
    let (result, log) = cell("peer-to-peer", "majority-vote", peers);
    assert_eq!(
        (log, reason(&result)),
        (both.map(str::to_owned).to_vec(), "no_majority")
    );
    let (result, log) = cell("peer-to-peer", "chain", peers);
    assert_eq!(log[1], "a work 1: task||<p member=\"head\">|head!|</p>");
    assert_eq!(result.text, "a!");

    let (result, log) = cell("peer-to-peer", "best-of-n", peers);
    assert_eq!(
        log[2..],
        [format!("claw judge 1: {}", choose("head", "a"))],
        "a contestant does not judge"
    );
    assert_eq!(
        (result.text.as_str(), result.judge.unwrap().member.as_str()),
        ("a!", "claw")
    );
}

#[test]
fn pipeline() {
    let stages: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "stage", 1), ("b", "stage", 1)];
    let handed = ["a work 1: task", "b work 1: task||<p member=\"a\">|a!|</p>"];
    let (result, log) = cell("pipeline", "leader-decides", stages);
    assert_eq!(log[..2], handed);
    assert_eq!(log[2..], [format!("head judge 1: {}", decide(BOTH))]);
    assert_eq!(result.text, "head decides");
    for strategy in ["chain", "merge", "majority-vote", "best-of-n"] {
        let (result, log) = cell("pipeline", strategy, stages);
        assert_eq!(
            (log, result.text.as_str()),
            (handed.map(str::to_owned).to_vec(), "b!"),
            "{strategy}"
        );
        assert_eq!(answers(&result), ["a: a!", "b: b!"], "{strategy}");
    }
}

#[test]
fn a_stage_of_several_becomes_one_before_the_next() {
    let stages: &[(&str, &str, u32)] = &[("head", "leader", 1), ("a", "stage", 2), ("b", "stage", 1)];
    let two = ["a-1 work 1: task", "a-2 work 1: task"];
    let (result, log) = cell("pipeline", "merge", stages);
    assert_eq!(log[..2], two);
    assert_eq!(
        log[2],
        "b work 1: task||<p member=\"a\">|## a-1||a-1!||## a-2||a-2!|</p>"
    );
    assert_eq!((result.text.as_str(), answers(&result).len()), ("b!", 2));

    let (result, log) = cell("pipeline", "best-of-n", stages);
    assert_eq!(log[..2], two);
    assert_eq!(log[2], format!("head judge 1: {}", choose("a-1", "a-2")));
    assert_eq!(log[3..], ["b work 1: task||<p member=\"a\">|a-2!|</p>"]);
    assert_eq!(result.text, "b!");

    let (result, log) = cell("pipeline", "majority-vote", stages);
    assert_eq!(
        (log, reason(&result)),
        (two.map(str::to_owned).to_vec(), "no_majority"),
        "nothing to hand on"
    );

    for strategy in ["chain", "leader-decides"] {
        let (_, log) = cell("pipeline", strategy, stages);
        assert_eq!(
            log[..2],
            ["a-1 work 1: task", "b work 1: task||<p member=\"a-1\">|a-1!|</p>"],
            "{strategy}"
        );
    }
}

#[test]
fn hierarchical() {
    let agents: &[(&str, &str, u32)] = &[
        ("top", "root", 1),
        ("a", "leaf", 1),
        ("sub", "sub", 1),
        ("x", "leaf", 1),
    ];
    let script = |start: &TryStart, _: &[String]| match (start.kind, start.member.as_str()) {
        (Kind::Judge { .. }, _) => say("1"),
        (_, "top") => vec![
            Do::Delegate(vec![("a", "p"), ("sub", "q")]),
            Do::Say("$got".to_owned()),
        ],
        (_, "sub") => vec![Do::Delegate(vec![("sub.x", "r")]), Do::Say("$got".to_owned())],
        (_, member) => say(&format!("{member}!")),
    };
    let started = [
        "top work 1: task",
        "a work 1: p",
        "sub work 1: q",
        "sub.x work 1: r",
    ];
    for (strategy, text, judges) in [
        ("leader-decides", "a:a!; sub:sub.x:sub.x!", 0),
        ("merge", "## a\n\na!\n\n## sub\n\nsub.x!", 0),
        ("majority-vote", "", 0),
        ("best-of-n", "a!", 1),
    ] {
        let (result, log, _) = Sim::new("hierarchical", strategy, agents, json!({}), script).run("task");
        assert_eq!(log[..4], started, "{strategy}");
        assert_eq!(
            (result.text.as_str(), log.len() - 4),
            (text, judges),
            "{strategy}"
        );
        assert_eq!(answers(&result).len(), 2, "{strategy}");
    }
    let (result, log, _) = Sim::new("hierarchical", "chain", agents, json!({}), script).run("task");
    assert_eq!(log[2], "sub work 1: q||<p member=\"a\">|a!|</p>");
    assert_eq!((result.text.as_str(), reason(&result)), ("sub.x!", ""));
}
