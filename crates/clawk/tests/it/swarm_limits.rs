//! What bounds a swarm, through the program: each limit holds to the last call, and what would exceed it is refused before it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clawk_kernel::kind;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::peers::{Host, serving, silent_script};
use crate::swarm::{agent, events, run, says, scene, swarm};

/// Says it after so long.
fn slowly(text: &str, ms: u64) -> Value {
    json!([{"say": text, "usage": {"input": 100, "output": 10}, "fault": {"delay_ms": ms}}])
}

fn workers(count: u32) -> Value {
    json!([{"identity_ref": "w", "role": "worker", "count": count}])
}

/// `coordination` with these limits of concurrency.
fn together(message_passing: &str, concurrency: Value) -> Value {
    json!({"coordination": {"message_passing": message_passing, "backend": "in-process", "concurrency": concurrency}})
}

/// Each try as the record tells it, in order: its task, its member, and whether it begins.
fn tries(agent: &Agent) -> Vec<(String, String, bool)> {
    let all = events(agent)
        .into_iter()
        .filter(|event| event.kind == kind::SWARM_TRY);
    all.filter_map(|event| {
        let payload: Value = serde_json::from_str(&event.payload).unwrap();
        let word = |name: &str| payload[name].as_str().unwrap_or_default().to_owned();
        let begins = match payload["state"].as_str()? {
            "began" => true,
            "said" | "lost" | "over" => false,
            _ => return None,
        };
        Some((word("task_id"), word("member"), begins))
    })
    .collect()
}

/// The most tries at a time: of all, and of one member.
fn most(agent: &Agent) -> (usize, usize) {
    let mut now: BTreeMap<String, String> = BTreeMap::new();
    let (mut all, mut of_one) = (0, 0);
    for (task, member, begins) in tries(agent) {
        if begins {
            now.insert(task, member.clone());
        } else {
            now.remove(&task);
        }
        all = all.max(now.len());
        of_one = of_one.max(now.values().filter(|name| **name == member).count());
    }
    (all, of_one)
}

#[test]
fn as_many_work_at_once_as_may() {
    for (bound, expected) in [
        (json!({"max_parallel": 2}), 2),
        (json!({"max_parallel": 1}), 1),
        (json!({}), 4),
    ] {
        let script = json!({"scenes": [scene("", "", slowly("done", 400))]});
        let team = swarm("broadcast", "merge", workers(4), together("queue", bound.clone()));
        let agent = agent(&team, &script);
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{bound}: {result}");
        assert_eq!(most(&agent).0, expected, "{bound}");
    }
}

#[test]
fn one_member_has_one_task_at_a_time_if_it_says_so() {
    let part = |n: u32| json!({"name": "delegate", "arguments": {"task": format!("part {n}"), "to": "w"}});
    let head = json!([{"call": [part(1), part(2), part(3)]}, {"say": "done"}]);
    for (sequential, expected) in [(true, 1), (false, 3)] {
        let script = json!({"scenes": [scene("member head,", "", head.clone()), scene("member w,", "", slowly("part", 400))]});
        let members =
            json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "w", "role": "worker"}]);
        let own = json!({"sequential_within_agent": sequential, "max_parallel": 4});
        let agent = agent(
            &swarm("leader-worker", "leader-decides", members, together("queue", own)),
            &script,
        );
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{sequential}: {result}");
        assert_eq!(most(&agent).1, expected, "{sequential}");
        let order: Vec<&str> = result["answers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|answer| answer["text"].as_str().unwrap())
            .collect();
        assert_eq!(order, ["part"; 3], "{sequential}");
    }
}

#[test]
fn nothing_waits_where_messages_go_directly_and_no_more_than_may_elsewhere() {
    let part = |n: u32| json!({"name": "delegate", "arguments": {"task": format!("part {n}"), "to": "w"}});
    let head = json!([{"call": [part(1), part(2), part(3)]}, {"say": "{{last_tool_text}}"}]);
    let script =
        json!({"scenes": [scene("member head,", "", head), scene("member w,", "", slowly("part", 600))]});
    let members =
        json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "w", "role": "worker"}]);
    for (passing, toml, done, last) in [
        ("direct", "", 1, "lets nothing wait"),
        ("queue", "max_waiting = 1\n", 2, "1 tasks wait"),
        ("queue", "", 3, "part"),
    ] {
        let own = json!({"sequential_within_agent": true, "max_parallel": 4});
        let team = swarm(
            "leader-worker",
            "leader-decides",
            members.clone(),
            together(passing, own),
        );
        let agent = agent(&team, &script);
        let toml = format!("[swarm]\nretry_delay_ms = 5\n{toml}");
        std::fs::write(agent.path("clawk.toml"), &toml).unwrap();
        let (code, result) = run(&agent, &[]);
        let place = format!("{passing} {toml}: {result}");
        assert_eq!(code, 0, "{place}");
        assert_eq!(result["answers"].as_array().unwrap().len(), done, "{place}");
        assert!(
            result["text"].as_str().unwrap().contains(last),
            "the model is told: {place}"
        );
    }
}

#[test]
fn a_run_ends_at_its_time_with_what_is_there() {
    let script =
        json!({"scenes": [scene("member slow,", "", slowly("slow", 20_000)), scene("", "", says("quick"))]});
    let members = json!([{"identity_ref": "one", "role": "worker"}, {"identity_ref": "two", "role": "worker"},
        {"identity_ref": "slow", "role": "worker"}]);
    let merged = "## one\n\nquick\n\n## two\n\nquick";
    for (strategy, status, text) in [
        ("merge", "partial", merged),
        ("majority-vote", "partial", "quick"),
        ("leader-decides", "failed", ""),
        ("best-of-n", "failed", ""),
    ] {
        for (limit, why) in [("aggregation", "timeout"), ("resource_limits", "swarm_duration")] {
            let more = match limit {
                "aggregation" => json!({"aggregation": {"strategy": strategy, "timeout_ms": 2500}}),
                _ => json!({"resource_limits": {"max_duration_ms": 2500}}),
            };
            let agent = agent(&swarm("broadcast", strategy, members.clone(), more), &script);
            let begun = Instant::now();
            let (code, result) = run(&agent, &[]);
            let place = format!("{strategy} {limit}: {result}");
            assert_eq!((code, result["status"].as_str()), (1, Some(status)), "{place}");
            assert_eq!(
                (&result["error"]["reason"], &result["error"]["code"]),
                (&json!(why), &json!(-32041)),
                "{place}"
            );
            assert_eq!(result["text"], text, "{place}");
            let answers = result["answers"].as_array().unwrap();
            assert_eq!(answers.len(), 3, "answers are told in either case: {place}");
            assert!(begun.elapsed() < Duration::from_secs(18), "{place}");
            // No head was asked when the time was over.
            let asked: BTreeSet<String> = tries(&agent).into_iter().map(|(_, member, _)| member).collect();
            assert_eq!(
                asked.into_iter().collect::<Vec<_>>(),
                ["one", "slow", "two"],
                "{place}"
            );
        }
    }
}

#[test]
fn a_failed_try_is_made_again_as_often_as_may_be() {
    for (failure, tried, why) in [
        (json!({}), 1, "provider_unavailable"),
        (json!({"retry_per_agent": 2}), 3, "provider_unavailable"),
        (
            json!({"retry_per_agent": 1, "dead_letter": {"enabled": false, "max_retries": 5}}),
            2,
            "provider_unavailable",
        ),
        (
            json!({"retry_per_agent": 1, "dead_letter": {"enabled": true, "max_retries": 4}}),
            5,
            "dead_lettered",
        ),
    ] {
        let script = json!({"scenes": [scene("", "", json!([{"fault": {"status": 400, "message": "no"}}]))]});
        let agent = agent(
            &swarm(
                "broadcast",
                "merge",
                workers(1),
                json!({"failure": failure.clone()}),
            ),
            &script,
        );
        let (code, result) = run(&agent, &[]);
        let answer = &result["answers"][0];
        assert_eq!(
            (code, &answer["attempts"]),
            (1, &json!(tried)),
            "{failure}: {result}"
        );
        assert_eq!(answer["error"]["reason"], why, "{failure}: {result}");
        let begun = tries(&agent).into_iter().filter(|(_, _, begins)| *begins).count();
        assert_eq!(begun, tried, "{failure}: one event of each");
    }
}

#[test]
fn a_members_own_failure_is_its_word_and_not_tried_again() {
    let gives_up = json!([{"call": [{"name": "report", "arguments": {"status": "failed", "result": "I can't"}}]}, {"say": "."}]);
    let script = json!({"scenes": [scene("", "", gives_up)]});
    let failure =
        json!({"failure": {"retry_per_agent": 3, "dead_letter": {"enabled": true, "max_retries": 5}}});
    let agent = agent(&swarm("broadcast", "merge", workers(1), failure), &script);
    let (code, result) = run(&agent, &[]);
    let answer = &result["answers"][0];
    assert_eq!((code, &answer["attempts"]), (1, &json!(1)), "{result}");
    assert_eq!(answer["error"]["reason"], "reported_failed", "{result}");
}

/// The breaker opens, is still open in the next process, lets one trial through when its time is over, and closes.
#[test]
fn a_circuit_stays_open_over_a_restart_and_closes_by_a_trial() {
    let broken = json!({"scenes": [scene("", "", json!([{"fault": {"status": 400, "message": "no"}}]))]});
    let failure = json!({"failure": {"retry_per_agent": 1, "circuit_breaker": {"failure_threshold": 2, "reset_timeout_ms": 6000}}});
    let agent = agent(&swarm("broadcast", "merge", workers(1), failure), &broken);
    let circuit = || {
        let output = agent
            .clawk(["swarm", "status", "claw.yaml", "--format", "json"])
            .output()
            .unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let member = &status["members"][0];
        (
            member["circuit"].as_str().unwrap().to_owned(),
            member["status"].as_str().unwrap().to_owned(),
        )
    };
    let (code, _) = run(&agent, &[]);
    let failed = Instant::now();
    assert_eq!(code, 1);
    assert_eq!(circuit(), ("open".to_owned(), "unavailable".to_owned()));
    std::fs::write(
        agent.path("script.yaml"),
        json!({"scenes": [scene("", "", says("well again"))]}).to_string(),
    )
    .unwrap();
    let (code, result) = run(&agent, &[]);
    assert_eq!(
        (code, result["text"].as_str()),
        (0, Some("well again")),
        "{result}"
    );
    assert!(
        failed.elapsed() > Duration::from_millis(5_000),
        "it was left alone until then"
    );
    assert_eq!(result["answers"][0]["attempts"], 1, "waiting is no try");
    assert_eq!(circuit().0, "closed");
}

/// Two providers, of which the second costs less; who names none asks the cheaper one, and the record says which.
#[test]
fn the_cheaper_provider_is_asked_where_cost_counts() {
    for (aware, own, expected) in [
        (false, None, "main"),
        (true, None, "cheap"),
        (true, Some("main"), "main"),
    ] {
        let mut member = json!({"identity_ref": "w", "role": "worker"});
        if let Some(own) = own {
            member["provider_ref"] = json!(own);
        }
        let more = json!({"aggregation": {"strategy": "merge", "cost_aware": aware}});
        let agent = agent(
            &swarm("broadcast", "merge", json!([member]), more),
            &json!({"scenes": [scene("", "", says("dear"))]}),
        );
        let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
        let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
        let cheap = json!({"inline": {"name": "cheap", "protocol": "custom", "endpoint": "script:cheap.yaml", "model": "modest", "auth": {"type": "none"}}});
        manifest["spec"]["providers"].as_array_mut().unwrap().push(cheap);
        std::fs::write(agent.path("claw.yaml"), manifest.to_string()).unwrap();
        std::fs::write(
            agent.path("cheap.yaml"),
            json!({"scenes": [scene("", "", says("cheap"))]}).to_string(),
        )
        .unwrap();
        let prices = "[prices.scripted]\ninput = 10000000\noutput = 10000000\n[prices.modest]\ninput = 1000000\noutput = 1000000\n";
        std::fs::write(agent.path("clawk.toml"), prices).unwrap();
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{aware} {own:?}: {result}");
        assert_eq!(
            result["text"],
            if expected == "main" { "dear" } else { "cheap" },
            "{aware} {own:?}"
        );
        let named = events(&agent).into_iter().find_map(|event| {
            let payload: Value = serde_json::from_str(&event.payload).unwrap();
            payload["provider"].as_str().map(str::to_owned)
        });
        assert_eq!(named.as_deref(), Some(expected), "{aware} {own:?}");
    }
}

/// What one member reports, the others read as data before their next word.
#[test]
fn a_report_reaches_the_others_of_an_event_bus() {
    let steps = |end: &str| json!([{"say": "a moment", "call": [{"name": "echo", "arguments": {"text": "x"}}], "fault": {"delay_ms": 2500}}, {"say": end}]);
    let script = json!({"scenes": [
        scene("member quick,", "", says("I am done first")),
        scene("peer-message[\\s\\S]*I am done first", "", steps("heard it")),
        scene("member slow,", "", steps("heard nothing")),
    ]});
    let members =
        json!([{"identity_ref": "quick", "role": "worker"}, {"identity_ref": "slow", "role": "worker"}]);
    for (passing, said) in [("event-bus", "heard it"), ("queue", "heard nothing")] {
        let agent = agent(
            &swarm(
                "broadcast",
                "merge",
                members.clone(),
                together(passing, json!({})),
            ),
            &script,
        );
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{result}");
        assert_eq!(result["answers"][1]["text"], said, "{passing}");
    }
}

/// A leader and a worker of two hosts with one purse: what all members use together never passes the limit, and what would pass it is
/// refused before any model is asked.
#[test]
fn one_purse_pays_for_all_hosts() {
    let own = json!({"coordination": {"message_passing": "queue", "backend": "sqlite-wal", "concurrency": {"max_parallel": 2}},
        "resource_limits": {"max_total_tokens": 3000}});
    let members = json!([{"identity_ref": "hand", "role": "worker", "count": 12}]);
    let team = swarm("broadcast", "merge", members, own);
    let part = json!([{"say": "done", "usage": {"input": 200, "output": 200}}]);
    let worker = agent(&team, &json!({"scenes": [scene("member hand", "", part)]}));
    let leader = agent(&team, &silent_script());
    let bus = format!(
        "[swarm]\nretry_delay_ms = 5\nurl = \"{}\"\n",
        leader.path("bus.db").display()
    );
    std::fs::write(leader.path("clawk.toml"), format!("{bus}serve = []\n")).unwrap();
    std::fs::write(worker.path("clawk.toml"), bus).unwrap();
    let host = Host::start(&mut serving(&worker, &[]), "working for the swarm");
    let (code, result) = run(&leader, &[]);
    drop(host);
    assert_eq!(code, 0, "what was answered is merged: {result}");
    let tokens = result["tokens"].as_u64().unwrap();
    assert!((1200..=3000).contains(&tokens), "{result}");
    let answers = result["answers"].as_array().unwrap();
    let done = answers
        .iter()
        .filter(|answer| answer["status"] == "completed")
        .count();
    assert!((3..=7).contains(&done), "{done}: {result}");
    // By the worker's own record: as many were asked as answered, and each request had room in its slice.
    let export = worker
        .clawk(["trace", "export", "-o", "all.jsonl"])
        .arg("--state")
        .arg(worker.state())
        .output()
        .unwrap();
    assert!(export.status.success());
    let (mut asked, mut used) = (0, 0);
    for line in std::fs::read_to_string(worker.path("all.jsonl")).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let of = |name: &str| event["payload"][name].as_u64().unwrap_or(0);
        match event["event_type"].as_str().unwrap_or_default() {
            "ckp.provider.requested" => {
                asked += 1;
                assert!(of("input_tokens") + of("output_tokens") <= 3000 - used, "{event}");
            }
            "ckp.provider.completed" => used += of("input_tokens") + of("output_tokens"),
            _ => {}
        }
    }
    assert_eq!(asked, done, "{result}");
    // The last one may use more than its slice, which its host was told: of that, its slice is counted.
    assert!(tokens <= used && used <= 3000, "{used}: {result}");
    // A person sees by what the members are reached.
    let status = leader
        .clawk(["swarm", "status", "claw.yaml", "--format", "json"])
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let hand = &status["members"][0];
    assert_eq!(
        (&hand["binding"], &hand["host"], &hand["provider"]),
        (&json!("sqlite-wal"), &json!("any"), &Value::Null)
    );
}
