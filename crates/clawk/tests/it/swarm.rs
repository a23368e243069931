//! Swarms through the real program: each topology with each aggregation, limits, rights, and `kill -9`.

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_kernel::{SWARM_KINDS, fact_of, kind};
use clawk_store::StateDirReader;
use clawk_swarm::SwarmFact;
use serde_json::{Value, json};

use crate::agent::{Agent, program, text};

/// A manifest whose model is a script, with this swarm.
pub(crate) fn agent(swarm: &Value, script: &Value) -> Agent {
    let agent = Agent::new();
    let provider = json!({"name": "main", "protocol": "custom", "endpoint": "script:script.yaml", "model": "scripted", "auth": {"type": "none"}});
    let manifest = json!({"claw": "0.3.0", "kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}, "spec": {
        "identity": {"inline": {"name": "tested", "personality": "You are tested.", "autonomy": "autonomous"}},
        "providers": [{"inline": provider}],
        "channels": [{"inline": {"name": "here", "type": "cli", "transport": "stdio", "auth": {"secret_ref": "NONE"}}}],
        "tools": [{"inline": {"name": "echo", "description": "Echoes", "input_schema": {"type": "object"}}},
            {"inline": {"name": "file-write", "description": "Writes", "input_schema": {"type": "object"}}}],
        "sandbox": {"inline": {"level": "process", "capabilities": {"filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]}}}},
        "policies": [{"inline": {"name": "tested", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}}],
        "swarm": {"inline": swarm},
    }});
    std::fs::write(agent.path("claw.yaml"), manifest.to_string()).unwrap();
    std::fs::write(agent.path("script.yaml"), script.to_string()).unwrap();
    std::fs::write(agent.path("clawk.toml"), "[swarm]\nretry_delay_ms = 5\n").unwrap();
    agent
}

pub(crate) fn swarm(topology: &str, strategy: &str, agents: Value, more: Value) -> Value {
    let mut swarm = json!({"name": "team", "topology": topology, "agents": agents,
        "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
        "aggregation": {"strategy": strategy}});
    for (key, value) in more.as_object().unwrap() {
        swarm[key] = value.clone();
    }
    swarm
}

/// A scene of one member, or of whoever is asked about answers.
pub(crate) fn scene(system: &str, user: &str, steps: Value) -> Value {
    let mut scene = json!({"steps": steps});
    for (key, pattern) in [("system", system), ("user", user)] {
        if !pattern.is_empty() {
            scene[key] = json!(pattern);
        }
    }
    scene
}

pub(crate) fn says(text: &str) -> Value {
    json!([{"say": text, "usage": {"input": 100, "output": 10}}])
}

/// Runs the task: exit code and result.
pub(crate) fn run(agent: &Agent, more: &[&str]) -> (i32, Value) {
    let mut clawk = agent.clawk(["swarm", "run", "claw.yaml", "do it", "--format", "json"]);
    let output = clawk.args(more).output().unwrap();
    let told = serde_json::from_slice(&output.stdout);
    (
        output.status.code().unwrap(),
        told.unwrap_or_else(|_| panic!("{}", text(&output.stderr))),
    )
}

/// A run that somebody waits for; killed when dropped.
pub(crate) struct Giving(pub(crate) Option<Child>);

impl Drop for Giving {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Giving {
    pub(crate) fn new(leader: &Agent) -> Self {
        let mut command = Command::new(program());
        command
            .args(["swarm", "run", "claw.yaml", "do it", "--format", "json"])
            .current_dir(leader.path(""))
            .env_clear()
            .envs(leader.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    /// What it printed, within two minutes.
    pub(crate) fn output(mut self) -> Output {
        let until = Instant::now() + Duration::from_mins(2);
        while self.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "the run does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

pub(crate) fn events(agent: &Agent) -> Vec<RecordedEvent> {
    let scan = JournalScan {
        kinds: &SWARM_KINDS,
        with_content: true,
        limit: 100_000,
        ..JournalScan::default()
    };
    StateDirReader::open(agent.state())
        .unwrap()
        .recorded_events(&scan)
        .unwrap()
}

fn spoken(result: &Value) -> Vec<String> {
    let answers = result["answers"].as_array().unwrap().iter();
    answers
        .map(|answer| {
            format!(
                "{}: {}",
                answer["member"].as_str().unwrap(),
                answer["text"].as_str().unwrap()
            )
        })
        .collect()
}

fn team() -> Value {
    json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "a", "role": "worker"}, {"identity_ref": "b", "role": "worker"}])
}

fn script() -> Value {
    let both = json!([{"call": [{"name": "delegate", "arguments": {"task": "part one", "to": "a"}},
        {"name": "delegate", "arguments": {"task": "part two", "to": "b"}}]}, {"say": "head has spoken"}]);
    json!({"scenes": [
        scene("", "Which of these", says("{\"best\": 2}")),
        scene("", "have answered this task", says("decided")),
        scene("member head, role leader, swarm team", "^do it$", both),
        scene("member a,", "", says("same")),
        scene("member b,", "", says("Same.")),
        scene("", "", says("other")),
    ]})
}

/// A topology, its results by strategy, and its answers in order.
type Cell<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn each_topology_with_each_aggregation_answers_as_the_contract_says() {
    let head = "head has spoken";
    let merged = "## a\n\nsame\n\n## b\n\nSame.";
    let peers = "## head\n\nhead has spoken\n\n## a\n\nsame\n\n## b\n\nSame.";
    let both = ["a: same", "b: Same."];
    let cells: &[Cell<'_>] = &[
        (
            "leader-worker",
            &[
                ("leader-decides", head),
                ("majority-vote", "same"),
                ("merge", merged),
                ("chain", "Same."),
                ("best-of-n", "Same."),
            ],
            &both,
        ),
        (
            "hierarchical",
            &[
                ("leader-decides", head),
                ("majority-vote", "same"),
                ("merge", merged),
                ("chain", "Same."),
                ("best-of-n", "Same."),
            ],
            &both,
        ),
        (
            "broadcast",
            &[
                ("leader-decides", "decided"),
                ("majority-vote", "same"),
                ("merge", merged),
                ("chain", "Same."),
                ("best-of-n", "Same."),
            ],
            &both,
        ),
        (
            "pipeline",
            &[
                ("leader-decides", "decided"),
                ("majority-vote", "Same."),
                ("merge", "Same."),
                ("chain", "Same."),
                ("best-of-n", "Same."),
            ],
            &both,
        ),
        (
            "peer-to-peer",
            &[
                ("leader-decides", "decided"),
                ("majority-vote", "same"),
                ("merge", peers),
                ("chain", "Same."),
                ("best-of-n", "same"),
            ],
            &["head: head has spoken", "a: same", "b: Same."],
        ),
    ];
    for (topology, strategies, answers) in cells {
        for (strategy, expected) in *strategies {
            let agent = agent(&swarm(topology, strategy, team(), json!({})), &script());
            let (code, result) = run(&agent, &[]);
            let place = format!("{topology} × {strategy}: {result}");
            assert_eq!(code, 0, "{place}");
            assert_eq!(result["text"], *expected, "{place}");
            assert_eq!(spoken(&result), *answers, "{place}");
            assert_eq!(result["status"], "completed", "{place}");
            assert!(result["tokens"].as_u64().unwrap() > 0, "{place}");
        }
    }
}

#[test]
fn what_a_member_is_not_given_it_cannot_use() {
    let agents = json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "a", "role": "worker"}]);
    let write = json!([{"call": [{"name": "file-write", "arguments": {"path": "out.txt", "content": "x"}}]}, {"say": "{{last_tool_text}}"}]);
    let head = json!([{"call": [{"name": "delegate", "arguments": {"task": "write", "to": "a", "tools": ["echo"]}}]}, {"say": "{{last_tool_text}}"}]);
    let script = json!({"scenes": [scene("member head,", "", head), scene("member a,", "", write)]});
    let agent = agent(
        &swarm("leader-worker", "leader-decides", agents, json!({})),
        &script,
    );
    let (_, result) = run(&agent, &[]);
    assert!(
        result["text"]
            .as_str()
            .unwrap()
            .contains("given without this tool"),
        "{result}"
    );
    assert!(!agent.path("out.txt").exists());
}

#[test]
fn a_member_has_its_own_identity() {
    let agents = json!([{"identity_ref": "poet", "role": "worker"}]);
    let script =
        json!({"scenes": [scene("You rhyme", "", says("in verse")), scene("", "", says("in prose"))]});
    let agent = agent(&swarm("broadcast", "merge", agents, json!({})), &script);
    let (_, result) = run(&agent, &["--task", "00000000-0000-4000-8000-000000000001"]);
    assert_eq!(
        result["text"], "in prose",
        "without a document it is the Claw under another name"
    );
    let validated = agent.clawk(["validate", "claw.yaml"]).output().unwrap();
    assert!(
        text(&validated.stderr).contains("member_without_identity")
            || text(&validated.stdout).contains("member_without_identity")
    );
    std::fs::create_dir(agent.path("identities")).unwrap();
    let poet = json!({"claw": "0.3.0", "kind": "Identity", "metadata": {"name": "poet"}, "spec": {"personality": "You rhyme."}});
    std::fs::write(agent.path("identities/poet.yaml"), poet.to_string()).unwrap();
    let (_, result) = run(&agent, &[]);
    assert_eq!(result["text"], "in verse");
}

#[test]
fn the_swarms_purse_is_never_exceeded() {
    // A token costs a millionth of a dollar, so both limits are the same.
    let limits = [
        ("max_total_tokens", json!(6000), "swarm_tokens"),
        ("max_total_cost_usd", json!(0.006), "swarm_cost"),
    ];
    for (limit, bound, reason) in limits {
        let agents = json!([{"identity_ref": "a", "role": "worker", "count": 4}]);
        let script = json!({"scenes": [scene("", "", json!([{"say": "x", "usage": {"input": 1300, "output": 700}}]))]});
        let more = json!({"resource_limits": {limit: bound},
            "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {"max_parallel": 1}}});
        let agent = agent(&swarm("broadcast", "merge", agents, more), &script);
        std::fs::write(
            agent.path("clawk.toml"),
            "[prices.scripted]\ninput = 1000000\noutput = 1000000\n",
        )
        .unwrap();
        let (code, result) = run(&agent, &[]);
        assert_eq!(
            (code, &result["status"]),
            (1, &json!("partial")),
            "{limit}: {result}"
        );
        assert_eq!(
            (&result["error"]["reason"], &result["error"]["code"]),
            (&json!(reason), &json!(-32021)),
            "{limit}"
        );
        let tokens = result["tokens"].as_u64().unwrap();
        assert!((2000..=6000).contains(&tokens), "{limit}: {tokens}");
        let answers = result["answers"].as_array().unwrap();
        let unasked = answers.iter().filter(|answer| answer["tokens"] == 0).count();
        assert!(
            unasked >= 1,
            "what would exceed it was refused before it left: {result}"
        );
    }
}

#[test]
fn a_member_that_no_model_answers_goes_to_the_dead_letters_and_comes_back() {
    let agents = json!([{"identity_ref": "a", "role": "worker"}]);
    let broken = json!({"scenes": [scene("", "", json!([{"fault": {"status": 400, "message": "no"}}]))]});
    let failure = json!({"failure": {"retry_per_agent": 1, "dead_letter": {"max_retries": 2}}});
    let agent = agent(&swarm("broadcast", "merge", agents, failure), &broken);
    let (code, result) = run(&agent, &[]);
    assert_eq!(
        (code, &result["answers"][0]["attempts"]),
        (1, &json!(3)),
        "{result}"
    );
    assert_eq!(result["answers"][0]["error"]["reason"], "dead_lettered");
    let listed = agent
        .clawk(["dead-letters", "list", "--agent", "tested", "--format", "json"])
        .output()
        .unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let letters = listed["dead_letters"].as_array().unwrap();
    let task = letters.iter().find(|letter| letter["kind"] == "task").unwrap();
    assert_eq!(
        (&task["member"], &task["attempts"], &task["text"]),
        (&json!("a"), &json!(3), &json!("do it"))
    );
    std::fs::write(
        agent.path("script.yaml"),
        json!({"scenes": [scene("", "", says("back"))]}).to_string(),
    )
    .unwrap();
    let again = agent
        .clawk([
            "dead-letters",
            "replay",
            task["task_id"].as_str().unwrap(),
            "claw.yaml",
            "--agent",
            "tested",
        ])
        .output()
        .unwrap();
    assert_eq!(text(&again.stdout).trim(), "back", "{}", text(&again.stderr));
}

#[test]
fn status_graph_and_tree_tell_what_the_record_has() {
    let agent = agent(&swarm("leader-worker", "merge", team(), json!({})), &script());
    let id = "00000000-0000-4000-8000-00000000000a";
    let (_, first) = run(&agent, &["--task", id]);
    let (_, again) = run(&agent, &["--task", id]);
    assert_eq!(first, again, "the stored result");
    let other = agent
        .clawk(["swarm", "run", "claw.yaml", "else", "--task", id])
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
    let json_of = |args: &[&str]| -> Value {
        let output = agent.clawk([]).args(args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
    };
    let status = json_of(&["swarm", "status", "claw.yaml", "--format", "json"]);
    assert_eq!(status["members"].as_array().unwrap().len(), 3);
    assert_eq!(
        (&status["members"][1]["done"], &status["members"][1]["circuit"]),
        (&json!(1), &json!("closed"))
    );
    assert_eq!((&status["running"], &status["runs"]), (&json!(0), &json!([])));
    let graph = json_of(&["swarm", "graph", "claw.yaml", "--format", "json"]);
    assert_eq!(
        graph["edges"][0],
        json!({"from": "head", "to": "a", "kind": "delegates"})
    );
    let real = json_of(&["swarm", "graph", "claw.yaml", "--task", id, "--format", "json"]);
    assert_eq!(real["edges"].as_array().unwrap().len(), 3);
    let tree = json_of(&[
        "trace", "show", "--task", id, "--agent", "tested", "--format", "json",
    ]);
    let head = &tree["root"]["children"][0];
    assert_eq!(
        (&tree["root"]["status"], &head["member"]),
        (&json!("completed"), &json!("head"))
    );
    assert_eq!(head["children"].as_array().unwrap().len(), 2);
    assert!(
        head["events"]
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["type"] == "ckp.message.answered")
    );
    let verified = agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", text(&verified.stderr));
}

#[test]
fn after_kill_9_what_ended_is_not_worked_on_again_and_the_rest_goes_on() {
    let slow = |text: &str| json!([{"say": text, "fault": {"delay_ms": 1500}}]);
    let both = json!([{"call": [{"name": "delegate", "arguments": {"task": "quick", "to": "a"}}, {"name": "delegate", "arguments": {"task": "slow", "to": "b"}}]}, {"say": "head"}]);
    let script = json!({"scenes": [scene("member head,", "", both), scene("member a,", "", says("quick")), scene("member b,", "", slow("slow"))]});
    let agent = agent(&swarm("leader-worker", "merge", team(), json!({})), &script);
    let id = "00000000-0000-4000-8000-00000000000b";
    let mut child = std::process::Command::new(program());
    child
        .args(["swarm", "run", "claw.yaml", "do it", "--task", id])
        .current_dir(agent.path("."));
    child.env_clear().envs(agent.environment());
    child
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut child = child.spawn().unwrap();
    // The program may be making its state just now.
    let reported = || {
        let scan = JournalScan {
            kinds: &[kind::SWARM_REPORTED],
            ..JournalScan::default()
        };
        let found = StateDirReader::open(agent.state()).and_then(|reader| reader.recorded_events(&scan));
        found.is_ok_and(|found| !found.is_empty())
    };
    for _ in 0..600 {
        if reported() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(reported(), "the quick one has reported");
    child.kill().unwrap();
    child.wait().unwrap();
    let (code, result) = run(&agent, &["--task", id]);
    assert_eq!(
        (code, result["text"].as_str().unwrap()),
        (0, "## a\n\nquick\n\n## b\n\nslow"),
        "{result}"
    );
    let (mut begun, mut ended) = (BTreeMap::new(), BTreeMap::new());
    for event in events(&agent) {
        match fact_of(&event) {
            Some(SwarmFact::Began { task, .. }) => *begun.entry(task).or_insert(0) += 1,
            Some(SwarmFact::Reported { task, .. }) => *ended.entry(task).or_insert(0) += 1,
            _ => {}
        }
    }
    assert_eq!((begun.len(), ended.len()), (3, 3));
    assert!(
        begun.values().chain(ended.values()).all(|times| *times == 1),
        "no new try, one report each: {begun:?} {ended:?}"
    );
    let verified = agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", text(&verified.stderr));
}

#[test]
fn members_of_a_run_share_a_store_with_versions() {
    let agents = json!([{"identity_ref": "a", "role": "worker"}, {"identity_ref": "b", "role": "worker"}]);
    let more = json!({"coordination": {"message_passing": "shared-memory", "backend": "in-process", "concurrency": {"max_parallel": 1}}});
    let put = |content: &str, version: Value| {
        let mut arguments = json!({"store": "swarm", "key": "plan", "content": content});
        if !version.is_null() {
            arguments["version"] = version;
        }
        json!({"call": [{"name": "memory-store", "arguments": arguments}]})
    };
    let read = json!({"call": [{"name": "memory-query", "arguments": {"store": "swarm", "text": "plan"}}]});
    let a = json!([put("first", json!(0)), {"say": "{{last_tool_text}}"}]);
    let b = json!([put("second", json!(0)), put("third", json!(1)), read, {"say": "{{last_tool_text}}"}]);
    let script = json!({"scenes": [scene("member a,", "", a), scene("member b,", "", b)]});
    let agent = agent(&swarm("broadcast", "merge", agents, more), &script);
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    for name in ["memory-store", "memory-query"] {
        let tool =
            json!({"inline": {"name": name, "description": "memory", "input_schema": {"type": "object"}}});
        manifest["spec"]["tools"].as_array_mut().unwrap().push(tool);
    }
    manifest["spec"]["memory"] = json!({"inline": {"name": "mem", "stores": [{"name": "notes", "type": "key-value", "backend": "sqlite"}]}});
    std::fs::write(agent.path("claw.yaml"), manifest.to_string()).unwrap();
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    let said = spoken(&result);
    assert!(said[0].contains("version 1 of `plan`"), "{said:?}");
    assert!(
        said[1].contains("plan (version 2): third"),
        "what it said of version 0 was a conflict: {said:?}"
    );
    let shared = events(&agent)
        .into_iter()
        .filter(|event| event.payload.contains("\"state\":\"shared\""));
    assert_eq!(shared.count(), 2, "the conflict changed nothing");
}
