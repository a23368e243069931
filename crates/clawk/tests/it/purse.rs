//! One purse, many children, and `kill -9` of the real process while they reserve: sums add up, nothing leaks, never over.

use std::process::Stdio;
use std::time::Duration;

use clawk_kernel::kind;
use clawk_kernel::ports::JournalScan;
use clawk_store::{Filter, StateDirReader};
use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::peers::silent_script;
use crate::stop::{Served, request, until};
use crate::swarm;

const CHILDREN: u32 = 24;
/// Tokens of a day: room for three crowds that are cut off, each with those before it that are taken up again, and for hardly more.
const LIMIT: u64 = 150_000;

const MANIFEST: &str = r#"
claw: "0.3.0"
kind: Claw
metadata: { name: tested, version: "1.0.0" }
spec:
  identity:
    inline: { name: tested, personality: You are tested., autonomy: autonomous }
  providers:
    - inline:
        { name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: { type: none }, limits: { tokens_per_request: 900 } }
  channels:
    - inline: { name: here, type: cli, transport: stdio, auth: { secret_ref: NONE } }
  tools:
    - inline: { name: echo, description: Echoes, input_schema: { type: object } }
  swarm:
    inline:
      name: team
      topology: leader-worker
      agents: [{ identity_ref: hand, role: worker, count: 24 }]
      coordination: { message_passing: direct, backend: in-process, concurrency: { max_parallel: 24 } }
      aggregation: { strategy: merge }
  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
"#;

const SCRIPT: &str = r#"
scenes:
  - steps:
      - say: "dug"
        usage: { input: 120, output: 40 }
        fault: { delay_ms: 1500 }
"#;

fn agent() -> Agent {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), MANIFEST).unwrap();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    std::fs::write(
        agent.path("clawk.toml"),
        format!("[budgets.day]\ntokens = {LIMIT}\n"),
    )
    .unwrap();
    agent
}

fn budget(agent: &Agent) -> Value {
    let output = agent
        .clawk(["budget", "--agent", "tested", "--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The agent's own limit of the day: spent and set aside.
fn day(budget: &Value) -> (u64, u64) {
    let agent = budget["purses"]
        .as_array()
        .unwrap()
        .iter()
        .find(|purse| purse["name"] == "agent")
        .unwrap();
    let limit = agent["limits"]
        .as_array()
        .unwrap()
        .iter()
        .find(|limit| limit["bound"] == LIMIT);
    let limit = limit.unwrap_or_else(|| panic!("{agent}"));
    (number(&limit["spent"]), number(&limit["reserved"]))
}

/// Tokens that the trace says were spent, and inferences that began and have no end in it.
fn trace(agent: &Agent) -> (u64, u64) {
    let reader = StateDirReader::open(agent.state()).unwrap();
    let (mut tokens, mut begun, mut ended) = (0, 0, 0);
    let mut filter = Filter::default();
    loop {
        let page = reader.events(filter).unwrap();
        let Some(last) = page.last() else { break };
        filter.after_row = last.row;
        for stored in &page {
            let payload: Value = serde_json::from_str(stored.event.payload.get()).unwrap();
            match stored.event.event_type.to_string().as_str() {
                "ckp.provider.requested" => begun += 1,
                "ckp.provider.completed" | "ckp.provider.failed" => {
                    ended += 1;
                    tokens += number(&payload["input_tokens"]) + number(&payload["output_tokens"]);
                }
                _ => {}
            }
        }
    }
    (tokens, begun - ended)
}

#[test]
fn killed_while_children_reserve_the_purse_adds_up_and_is_never_over() {
    let agent = agent();
    let mut lost = 0;
    for (round, wait_ms) in [0, 300, 900].into_iter().enumerate() {
        let mut served = Served::start(&agent);
        for child in 0..CHILDREN {
            let id = u32::try_from(round).unwrap() * 1_000 + 100 + child;
            let params = json!({
                "task_id": request(500_000 + id),
                "task": {"description": format!("dig at {id}")},
                "context": {"request_id": request(id), "swarm": "team"}});
            served.send(id, "claw.swarm.delegate", &params);
        }
        until("children reserve", || day(&budget(&agent)).1 > 0);
        let (spent, aside) = day(&budget(&agent));
        assert!(spent + aside <= LIMIT, "never over: {spent} and {aside}");
        std::thread::sleep(Duration::from_millis(wait_ms));
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        lost += trace(&agent).1;
        // Of an agent that does not run: what its state keeps, and no word of what was set aside.
        let kept = budget(&agent);
        assert_eq!(kept["running"], false);
    }
    assert!(lost > 0, "some were under way when it died");
    let mut served = Served::start(&agent);
    // Tasks that had begun go on.
    until(
        "what a death cut off is settled, and nothing is set aside any more",
        || day(&budget(&agent)).1 == 0 && trace(&agent).1 == 0,
    );
    let (spent, _) = day(&budget(&agent));
    let (told, _) = trace(&agent);
    assert_eq!(spent, told, "the purse is the trace");
    assert!(spent > 0 && spent <= LIMIT, "{spent}");
    // Towards the limit, and never beyond.
    let before = spent;
    for child in 0..60 {
        let id = 9_000 + child;
        let params = json!({
            "task_id": request(500_000 + id),
            "task": {"description": format!("dig at {id}")},
            "context": {"request_id": request(id), "swarm": "team"}});
        served.send(id, "claw.swarm.delegate", &params);
    }
    let mut last = (before, 0);
    until("they have spent, and ended", || {
        std::thread::sleep(Duration::from_millis(500));
        let (spent, aside) = day(&budget(&agent));
        assert!(spent + aside <= LIMIT, "never over: {spent} and {aside}");
        let still = last == (spent, aside);
        last = (spent, aside);
        // One attempt sets 900 aside.
        still && aside == 0 && (spent > before || LIMIT - before < 900)
    });
    let shown = agent.clawk(["budget", "--agent", "tested"]).output().unwrap();
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("agent") && shown.contains(&format!("of {LIMIT} tokens")),
        "{shown}"
    );
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let shown = agent.clawk(["budget", "--agent", "tested"]).output().unwrap();
    let shown = text(&shown.stdout);
    assert!(shown.contains("today: ") && shown.contains("tokens"), "{shown}");
}

/// A leader that is killed again and again while members elsewhere report: each report is counted once in the agent's day and in its
/// run, never twice, and never not at all.
#[test]
fn killed_while_members_elsewhere_report_each_report_counts_once() {
    const MEMBERS: u64 = 12;
    let members = json!([{"identity_ref": "py", "role": "worker", "count": MEMBERS}]);
    let own = json!({"coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {"max_parallel": 3}}});
    let agent = swarm::agent(
        &swarm::swarm("broadcast", "merge", members, own),
        &silent_script(),
    );
    let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/peer.py");
    let toml = format!(
        "[budgets.day]\ntokens = {LIMIT}\n[swarm]\nretry_delay_ms = 5\n[peers.py]\ncommand = [\"python3\", \"{peer}\", \"slow\", \"{}\"]\n",
        agent.path("").display()
    );
    std::fs::write(agent.path("clawk.toml"), toml).unwrap();
    let task = ["--task", "00000000-0000-4000-8000-00000000000c"];
    let reported = || {
        let scan = JournalScan {
            kinds: &[kind::SWARM_REPORTED],
            ..JournalScan::default()
        };
        let found = StateDirReader::open(agent.state()).and_then(|reader| reader.recorded_events(&scan));
        found.map_or(0, |found| found.len())
    };
    for round in 0..5 {
        let mut command = std::process::Command::new(program());
        command
            .args(["swarm", "run", "claw.yaml", "do it"])
            .args(task)
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        until("some more are reported", || reported() > round * 2);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kept_of_day(&agent) <= 7 * MEMBERS, "round {round}");
    }
    let (code, result) = swarm::run(&agent, &task);
    assert_eq!(code, 0, "{result}");
    assert_eq!(result["answers"].as_array().unwrap().len(), 12);
    assert_eq!(result["tokens"], 7 * MEMBERS, "{result}");
    assert_eq!(kept_of_day(&agent), 7 * MEMBERS);
}

/// Tokens of the day, of an agent that does not run.
fn kept_of_day(agent: &Agent) -> u64 {
    number(&budget(agent)["purses"][0]["day"]["tokens"])
}
