//! An agent with a Swarm on several hosts: one of them coordinates, whoever is asked; another one goes on when it is lost.

use std::time::Instant;

use serde_json::{Value, json};

use super::{Database, Host, PATIENCE, agent, holds, said, until};
use crate::agent::Agent;
use crate::counter::Counter;
use crate::peers;
use crate::stop::request;

/// The Claw gives what it is told to a worker, which orders it.
const SCRIPT: &str = r#"
scenes:
  - system: role worker
    steps:
      - call: [{ name: order, arguments: { id: "{{last_user_text}}" } }]
      - any:
          - { when: { error: true }, say: "It failed." }
          - say: "Ordered {{last_user_text}}."
            usage: { input: 100, output: 10 }
  - steps:
      - call: [{ name: delegate, arguments: { task: "{{last_user_text}}", to: worker } }]
      - say: "They say: {{last_tool_text}}"
"#;

fn with_swarm(database: &Database, counter: &Counter, workers: u32, more: Value) -> Agent {
    let agent = agent(database, counter);
    add(&agent, workers, more);
    agent
}

/// Gives the agent a Swarm of so many workers.
pub(super) fn add(agent: &Agent, workers: u32, more: Value) {
    let members = json!([{"identity_ref": "hand", "role": "worker", "count": workers}]);
    let swarm = crate::swarm::swarm("leader-worker", "leader-decides", members, more);
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let manifest = format!("{}\n  swarm: {{ inline: {swarm} }}\n", manifest.trim_end());
    std::fs::write(agent.path("claw.yaml"), manifest).unwrap();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
}

/// The host that coordinates, by the record.
fn coordinator(database: &Database) -> String {
    database.sql("SELECT payload::json->>'host' FROM tested.events WHERE kind = 'ckp.swarm.led' ORDER BY row DESC LIMIT 1")
}

fn delegate(host: &mut Host, id: u32, task: &str) {
    let context = json!({"request_id": request(id), "swarm": "team", "member": "worker"});
    let params = json!({"task_id": request(50_000 + id), "task": {"description": task}, "context": context});
    host.send(id, "claw.swarm.delegate", &params);
}

fn ends(database: &Database) -> u32 {
    let ended = database.sql("SELECT count(*) FROM tested.events WHERE kind = 'ckp.swarm.ended'");
    ended.parse().unwrap()
}

/// Each run that was given has ended once, each task was reported once, and all of it stands in one chain.
fn each_once(database: &Database, runs: u32) {
    assert_eq!(ends(database), runs);
    each_ended_once(database);
}

pub(super) fn each_ended_once(database: &Database) {
    let twice = "SELECT string_agg(kind || ' ' || task || ' at rows ' || rows, E'\\n') FROM (SELECT kind, payload::json->>'task_id' AS task, \
        string_agg(row::text, ', ') AS rows FROM tested.events WHERE kind IN ('ckp.swarm.ended', 'ckp.swarm.reported', 'ckp.swarm.run') \
        GROUP BY 1, 2 HAVING count(*) > 1) t";
    let told = database.sql(twice);
    let task = told.split_whitespace().nth(1).unwrap_or_default();
    let about = format!(
        "SELECT row || ' ' || at || ' ' || kind || ' ' || left(payload, 300) FROM tested.events WHERE kind = 'ckp.swarm.led' OR \
         (kind LIKE 'ckp.swarm.%' AND payload LIKE '%{task}%') ORDER BY row"
    );
    assert_eq!(told, "", "{}", database.sql(&about));
    let open = "SELECT count(*) FROM tested.events r WHERE kind = 'ckp.swarm.run' AND NOT EXISTS (SELECT 1 FROM tested.events e \
        WHERE e.kind = 'ckp.swarm.ended' AND e.payload::json->>'task_id' = r.payload::json->>'task_id')";
    assert_eq!(database.sql(open), "0");
    let chains = "SELECT count(DISTINCT session) FROM tested.events WHERE kind IN ('ckp.swarm.run', 'ckp.swarm.ended', 'ckp.swarm.led')";
    assert_eq!(database.sql(chains), "1");
}

#[test]
fn what_any_host_gives_the_swarm_is_worked_on_by_the_one_that_coordinates() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = with_swarm(&database, &counter, 3, json!({}));
    let checked = agent
        .clawk(["validate", "claw.yaml", "--config", "a.toml", "--format", "json"])
        .assert()
        .success();
    let told = crate::agent::text(&checked.get_output().stdout);
    assert!(!told.contains("one host"), "{told}");
    let mut first = Host::start(&agent, "a");
    until("it coordinates", || coordinator(&database) == "a");
    let mut second = Host::start(&agent, "b");
    // By a turn, by a request, at both hosts.
    for (n, host) in [(1, &mut first), (2, &mut second)] {
        host.say(100 + n, &format!("talk-{n}"), &format!("m{n}"));
        delegate(host, 200 + n, &format!("d{n}"));
        // The same again is the same.
        delegate(host, 200 + n, &format!("d{n}"));
        let given = host.answer(200 + n);
        assert!(given.get("result").is_some(), "{given}");
        let again = host.answer(200 + n);
        assert!(again.get("result").is_some(), "{again}");
        let answer = host.answer(100 + n);
        let text = answer["result"]["parts"][0]["text"].as_str().unwrap_or_default();
        assert!(text.contains(&format!("Ordered m{n}.")), "{answer}");
    }
    // Another task under a known id is refused wherever it comes in.
    let context = json!({"request_id": request(300), "swarm": "team"});
    let other = json!({"task_id": request(50_201), "task": {"description": "another"}, "context": context});
    second.send(300, "claw.swarm.delegate", &other);
    let refused = second.answer(300);
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let unknown = json!({"task_id": request(50_301), "task": {"description": "x"},
        "context": {"request_id": request(301), "swarm": "team", "member": "nobody"}});
    second.send(301, "claw.swarm.delegate", &unknown);
    let refused = second.answer(301);
    assert_eq!(refused["error"]["data"]["reason"], "unknown_member", "{refused}");
    until("all are ordered", || counter.hits().len() == 4);
    // A report of a task that nobody gave is an orphan, wherever it comes in.
    let report = json!({"task_id": request(9), "status": "completed", "result": {"text": "x"}});
    second.send(302, "claw.swarm.report", &report);
    let orphan = second.answer(302);
    assert_eq!(orphan["result"]["acknowledged"], true, "{orphan}");
    let peers = [&mut first, &mut second].map(|host| {
        host.send(303, "claw.swarm.discover", &json!({}));
        host.answer(303)["result"]["peers"].clone()
    });
    assert_eq!(peers[0].as_array().unwrap().len(), 3, "{peers:?}");
    assert_eq!(peers[0], peers[1]);
    until("all have ended", || ends(&database) == 4);
    // One tree over both hosts, wherever it is asked for.
    let tree = said(&agent, &["trace", "show", "--task", &request(50_202)], "b");
    let root = &tree["root"];
    assert_eq!(
        (
            &root["task_id"],
            &root["status"],
            root["children"].as_array().map(Vec::len)
        ),
        (&json!(request(50_202)), &json!("completed"), Some(1)),
        "{tree}"
    );
    assert_eq!(
        root["children"][0]["member"]
            .as_str()
            .map(|name| name.starts_with("hand-")),
        Some(true),
        "{tree}"
    );
    each_once(&database, 4);
    counter.never_twice();
    let status = said(
        &agent,
        &["swarm", "status", "claw.yaml", "--config", "a.toml"],
        "b",
    );
    assert_eq!(status["runs"], json!([]), "{status}");
    first.stop();
    second.stop();
    holds(&agent, &database);
}

#[test]
fn when_the_host_that_coordinates_is_killed_another_one_goes_on() {
    const RUNS: u32 = 12;
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = with_swarm(&database, &counter, 4, json!({}));
    let mut first = Host::start(&agent, "a");
    until("it coordinates", || coordinator(&database) == "a");
    let mut second = Host::start(&agent, "b");
    let mut third = Host::start(&agent, "c");
    counter.hold(true);
    // Half of them by turns of hosts that do not coordinate.
    for n in 0..RUNS {
        let host = if n % 2 == 0 { &mut second } else { &mut third };
        host.say(100 + n, &format!("talk-{n}"), &format!("m{n}"));
    }
    // Four are at work, and nobody knows what became of their orders; the others wait.
    until("four are at work", || counter.hits().len() == 4);
    until("all are given", || {
        let given = database.sql("SELECT count(*) FROM tested.events WHERE kind = 'ckp.swarm.run'");
        given == RUNS.to_string()
    });
    let begun: Vec<String> = counter.hits().iter().map(|hit| hit.id.clone()).collect();
    counter.hold(false);
    first.kill();
    let killed = Instant::now();
    let mut unknown = 0;
    for n in 0..RUNS {
        let host = if n % 2 == 0 { &mut second } else { &mut third };
        let answer = host.answer(100 + n);
        let text = answer["result"]["parts"][0]["text"].as_str().unwrap_or_default();
        if begun.contains(&format!("m{n}")) {
            // What it ordered is not ordered again: the member is told that nobody knows.
            assert!(text.contains("It failed."), "{answer}");
            unknown += 1;
        } else {
            assert!(text.contains(&format!("Ordered m{n}.")), "{answer}");
        }
    }
    println!("all have ended after {} ms", killed.elapsed().as_millis());
    assert!(killed.elapsed() < PATIENCE);
    assert_eq!(unknown, 4);
    assert_eq!(database.sql("SELECT count(*) FROM tested.effects_open"), "4");
    assert_ne!(coordinator(&database), "a");
    assert_eq!(counter.counts().len(), usize::try_from(RUNS).unwrap());
    counter.never_twice();
    each_once(&database, RUNS);
    // The one that was killed comes back, and works beside the others.
    let mut back = Host::start(&agent, "a");
    back.say(300, "talk-back", "m300");
    let answer = back.answer(300);
    assert!(answer["result"].to_string().contains("Ordered m300."), "{answer}");
    assert_ne!(coordinator(&database), "a");
    for host in [back, second, third] {
        host.stop();
    }
    holds(&agent, &database);
}

#[test]
fn the_swarm_moves_when_its_host_ends_and_back_without_a_task_lost_or_done_twice() {
    const ROUNDS: u32 = 4;
    const EACH: u32 = 6;
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = with_swarm(&database, &counter, 2, json!({}));
    let mut hosts = vec![Host::start(&agent, "a"), Host::start(&agent, "b")];
    until("one coordinates", || !coordinator(&database).is_empty());
    let mut given = 0;
    for _ in 0..ROUNDS {
        let now = coordinator(&database);
        let at = usize::from(now == "b");
        let other = 1 - at;
        for _ in 0..EACH {
            given += 1;
            hosts[other].say(1000 + given, &format!("talk-{given}"), &format!("m{given}"));
        }
        // In the middle of the work, in order.
        until("some are ordered", || {
            counter.hits().len() >= usize::try_from(given - EACH + 1).unwrap()
        });
        let name = if at == 0 { "a" } else { "b" };
        hosts.remove(at).stop();
        hosts.insert(at, Host::start(&agent, name));
        for n in given - EACH + 1..=given {
            let answer = hosts[other].answer(1000 + n);
            assert!(
                answer["result"].to_string().contains(&format!("m{n}")),
                "{answer}"
            );
        }
    }
    let led = database.sql("SELECT count(*) FROM tested.events WHERE kind = 'ckp.swarm.led'");
    assert_eq!(led, (ROUNDS + 1).to_string());
    counter.never_twice();
    each_once(&database, given);
    for host in hosts {
        host.stop();
    }
    holds(&agent, &database);
}

/// Adds to the configuration of each host.
fn also(agent: &Agent, more: &str) {
    for host in ["a", "b", "c", "d"] {
        let path = agent.path(&format!("{host}.toml"));
        let config = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{more}\n{config}")).unwrap();
    }
}

fn scripted(agent: &Agent, scenes: &str) {
    std::fs::write(agent.path("script.yaml"), scenes).unwrap();
}

/// The worker has its task when its host, and with it what report tokens are made of, is lost. It reports with the token that it was given.
#[test]
fn a_report_over_the_bus_counts_at_whichever_host_coordinates_then() {
    const TASKS: u32 = 4;
    let (database, counter) = (Database::start(), Counter::start(None));
    let bus =
        json!({"coordination": {"message_passing": "queue", "backend": "sqlite-wal", "concurrency": {}}});
    let agent = with_swarm(&database, &counter, TASKS, bus);
    let url = format!("[swarm]\nurl = \"{}\"\n", agent.path("bus.db").display());
    also(&agent, &format!("{url}serve = []"));
    // It orders at once, and speaks when the host that gave it the task is long gone.
    let worker = with_swarm(
        &database,
        &counter,
        TASKS,
        json!({"coordination":
        {"message_passing": "queue", "backend": "sqlite-wal", "concurrency": {}}}),
    );
    scripted(
        &worker,
        &SCRIPT.replace(
            "          - say: \"Ordered",
            "          - fault: { delay_ms: 7000 }\n            say: \"Ordered",
        ),
    );
    let tools = ["order", "pay"]
        .map(|tool| format!("[tools.{tool}]\nhttp = {{ url = \"{}/orders\" }}\n", counter.url));
    std::fs::write(worker.path("clawk.toml"), url + &tools.concat()).unwrap();
    let _working = peers::Host::start(
        &mut peers::serving(&worker, &["--config", "clawk.toml"]),
        "working for the swarm",
    );
    let mut first = Host::start(&agent, "a");
    until("it coordinates", || coordinator(&database) == "a");
    let mut second = Host::start(&agent, "b");
    for n in 0..TASKS {
        second.say(100 + n, &format!("talk-{n}"), &format!("m{n}"));
    }
    until("all are at work", || {
        counter.hits().len() == usize::try_from(TASKS).unwrap()
    });
    first.kill();
    for n in 0..TASKS {
        let answer = second.answer(100 + n);
        assert!(
            answer["result"].to_string().contains(&format!("Ordered m{n}.")),
            "{answer}"
        );
    }
    assert_eq!(coordinator(&database), "b");
    counter.never_twice();
    each_once(&database, TASKS);
    let refused = database.sql("SELECT count(*) FROM tested.events WHERE kind = 'ckp.swarm.refused'");
    assert_eq!(refused, "0");
    second.stop();
    holds(&agent, &database);
}

/// A member that is a process of the lost host: what it did, nobody knows.
#[test]
fn a_task_of_a_lost_hosts_own_process_is_not_given_to_another_one() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = with_swarm(&database, &counter, 1, json!({}));
    let (peer, notes) = (peers::PEER, agent.path(""));
    also(
        &agent,
        &format!(
            "[peers.hand]\ncommand = [\"python3\", \"{peer}\", \"silent\", \"{}\"]",
            notes.display()
        ),
    );
    let mut first = Host::start(&agent, "a");
    until("it coordinates", || coordinator(&database) == "a");
    let mut second = Host::start(&agent, "b");
    second.say(100, "talk", "m1");
    let given = || {
        let noted = std::fs::read_to_string(agent.path("delegated")).unwrap_or_default();
        noted.lines().count()
    };
    until("it is given", || given() == 1);
    first.kill();
    let answer = second.answer(100);
    assert!(
        answer["result"].to_string().contains("effects_unknown"),
        "{answer}"
    );
    assert_eq!(given(), 1);
    each_once(&database, 1);
    second.stop();
    holds(&agent, &database);
}

/// Tries that run at the same moment, by the order of the record.
fn most_at_once(database: &Database) -> u32 {
    let most = database.sql(
        "SELECT max(running) FROM (SELECT sum(CASE WHEN payload::json->>'state' = 'began' THEN 1 ELSE -1 END) OVER (ORDER BY row) \
         AS running FROM tested.events WHERE kind = 'ckp.swarm.try' AND payload::json->>'state' IN ('began', 'said', 'lost', 'over')) t",
    );
    most.parse().unwrap()
}

#[test]
fn limits_of_the_swarm_hold_over_all_hosts() {
    const RUNS: u32 = 10;
    let (database, counter) = (Database::start(), Counter::start(None));
    let two = json!({"coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {"max_parallel": 2}}});
    let agent = with_swarm(&database, &counter, 6, two);
    scripted(
        &agent,
        &SCRIPT.replace(
            "          - say: \"Ordered",
            "          - fault: { delay_ms: 150 }\n            say: \"Ordered",
        ),
    );
    let mut hosts = ["a", "b", "c"].map(|name| Host::start(&agent, name));
    until("one coordinates", || !coordinator(&database).is_empty());
    for n in 0..RUNS {
        hosts[usize::try_from(n % 3).unwrap()].say(100 + n, &format!("talk-{n}"), &format!("m{n}"));
    }
    for n in 0..RUNS {
        let answer = hosts[usize::try_from(n % 3).unwrap()].answer(100 + n);
        assert!(
            answer["result"].to_string().contains(&format!("Ordered m{n}.")),
            "{answer}"
        );
    }
    assert_eq!(most_at_once(&database), 2);
    counter.never_twice();
    each_once(&database, RUNS);
    hosts.into_iter().for_each(Host::stop);
    holds(&agent, &database);
}

/// The session's purse is with its host, and the run is worked on by another one.
#[test]
fn a_session_pays_for_what_another_host_does_for_it() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = with_swarm(&database, &counter, 1, json!({}));
    let asked = |database: &Database| {
        database.sql(
            "SELECT count(*) FROM tested.events WHERE kind = 'ckp.provider.requested' AND session IN \
             (SELECT session FROM tested.events WHERE kind = 'session.started' AND payload::json->>'door' = 'peer')",
        )
    };
    also(&agent, "[budgets.session]\ntokens = 700");
    let first = Host::start(&agent, "a");
    until("it coordinates", || coordinator(&database) == "a");
    let mut second = Host::start(&agent, "b");
    // Half of what is left is less than the member's first question.
    second.say(100, "talk", "m1");
    second.answer(100);
    assert_eq!((asked(&database).as_str(), counter.hits().len()), ("0", 0));
    let why = "SELECT payload::json->>'reason' FROM tested.events WHERE kind = 'ckp.swarm.ended'";
    assert_eq!(database.sql(why), "quota");
    second.stop();
    // With more it may, and the session's purse knows it.
    let path = agent.path("b.toml");
    let config = std::fs::read_to_string(&path)
        .unwrap()
        .replace("tokens = 700", "tokens = 14000");
    std::fs::write(&path, config).unwrap();
    let mut second = Host::start(&agent, "b");
    second.say(101, "another", "m2");
    let answer = second.answer(101);
    assert!(answer["result"].to_string().contains("Ordered m2."), "{answer}");
    assert_eq!(asked(&database), "2");
    let (lent, used) = (
        "SELECT payload::json->>'token_usage' FROM tested.events WHERE kind = 'ckp.swarm.try' AND payload::json->>'state' = 'lent'",
        "SELECT sum((payload::json->>'input_tokens')::int + (payload::json->>'output_tokens')::int) FROM tested.events \
         WHERE kind = 'ckp.provider.completed' AND session IN \
         (SELECT session FROM tested.events WHERE kind = 'session.started' AND payload::json->>'door' = 'peer')",
    );
    assert_eq!(database.sql(lent), database.sql(used));
    counter.never_twice();
    second.stop();
    first.stop();
    holds(&agent, &database);
}

/// The host ends in order while the turn waits for the run. The call has no known outcome and is not made again, so all that was set
/// aside for it counts.
#[test]
fn a_session_pays_its_share_of_a_run_whose_end_it_is_not_told() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = with_swarm(&database, &counter, 1, json!({}));
    scripted(
        &agent,
        &SCRIPT.replace(
            "          - say: \"Ordered",
            "          - fault: { delay_ms: 5000 }\n            say: \"Ordered",
        ),
    );
    also(&agent, "[budgets.session]\ntokens = 30000");
    let first = Host::start(&agent, "a");
    until("it coordinates", || coordinator(&database) == "a");
    let mut second = Host::start(&agent, "b");
    second.say(100, "talk", "m1");
    until("it is ordered", || counter.hits().len() == 1);
    second.send(
        101,
        "claw.shutdown",
        &json!({"reason": "the turn is not waited for", "timeout_ms": 100}),
    );
    second.answer(101);
    second.stop();
    assert_eq!(ends(&database), 0, "the run goes on");
    let mut second = Host::start(&agent, "b");
    second.say(100, "talk", "m1");
    let answer = second.answer(100);
    assert!(answer["result"].to_string().contains("unknown"), "{answer}");
    until("the run has ended", || ends(&database) == 1);
    let counted = database.sql(
        "SELECT string_agg(payload::json->>'state', ',') FROM tested.events WHERE kind = 'ckp.swarm.try' \
         AND payload::json->>'state' IN ('lent', 'assumed')",
    );
    assert_eq!(counted, "assumed");
    counter.never_twice();
    second.stop();
    first.stop();
    holds(&agent, &database);
}
