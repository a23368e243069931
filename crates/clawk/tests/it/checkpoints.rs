//! Checkpoints, through the real binary: a long task is killed with `kill -9` again and again, goes on each time, and does nothing twice.

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::counter::Counter;
use crate::stop::{Served, request, until};

const TOOLS: &str = r#"  tools:
    - inline: { name: order, description: Orders, input_schema: { type: object } }
    - inline: { name: long, description: Orders six times, input_schema: { type: object }, composite: true, skill_ref: six }
  skills:
    - inline:
        name: six
        description: Orders six times.
        tools_required: [order]
        instruction: Order six times.
  sandbox: { inline: { level: process } }
  policies:
    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }
"#;

/// Six orders, one after the other: by an inner turn, and by a turn itself.
fn script() -> String {
    let orders = |names: &str| {
        let steps = ["one", "two", "three", "four", "five", "six"];
        let steps =
            steps.map(|id| format!("      - call: [{{ name: order, arguments: {{ id: {names}-{id} }} }}]\n        fault: {{ delay_ms: 80 }}\n"));
        steps.concat()
    };
    format!(
        "scenes:\n  - system: \"Order six times\"\n    steps:\n{}      - say: \"Six are ordered.\"\n  - user: composite\n    steps:\n      \
         - call: [{{ name: long, arguments: {{}} }}]\n      - say: \"It says: {{{{last_tool_text}}}}\"\n  - user: plain\n    steps:\n{}      \
         - say: \"All six.\"\n",
        orders("inner"),
        orders("outer")
    )
}

fn agent(backend: &str, limits: &str) -> (Agent, Counter) {
    let agent = Agent::new();
    let counter = Counter::start(None);
    agent.may(&format!(
        "{TOOLS}  memory:\n    inline: {{ stores: [{{ name: tasks, type: checkpoint, backend: {backend}, checkpoint: {limits} }}] }}\n"
    ));
    std::fs::write(agent.path("script.yaml"), script()).unwrap();
    let config = format!("[tools.order.http]\nurl = \"{}\"\n", counter.url);
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    (agent, counter)
}

fn kill(mut served: Served) {
    served.child.kill().unwrap();
    served.child.wait().unwrap();
}

/// Every checkpoint that is kept: its key and what it holds.
fn kept(served: &mut Served, id: u32) -> Vec<(String, Value)> {
    let range = json!({"from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"});
    let query = json!({"type": "time-range", "time_range": range, "top_k": 1000});
    served.send(
        id,
        "claw.memory.query",
        &json!({"store": "tasks", "query": query}),
    );
    let answer = served.answer(id);
    let entries = answer["result"]["entries"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"))
        .clone();
    let pair = |entry: Value| {
        (
            entry["key"].as_str().unwrap().to_owned(),
            entry["content"].clone(),
        )
    };
    entries.into_iter().map(pair).collect()
}

#[test]
fn killed_again_and_again_a_long_task_goes_on_from_its_last_checkpoint() {
    for backend in ["sqlite", "filesystem"] {
        for task in ["composite", "plain"] {
            let what = format!("{backend} {task}");
            let (agent, counter) = agent(backend, "{ max_snapshots: 2 }");
            let params = json!({"text": task, "request_id": request(7)});
            let mut kills = 0;
            let mut served = Served::start(&agent);
            served.send(7, "claw.message.send", &params);
            // After each of the first five orders, sometimes before the answer of the server is taken.
            while counter.hits().len() < 5 {
                let hits = counter.hits().len();
                until(&what, || counter.hits().len() > hits);
                if kills % 2 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                }
                kill(served);
                kills += 1;
                served = Served::start(&agent);
            }
            served.send(7, "claw.message.send", &params);
            let answer = served.answer(7);
            let said = answer["result"]["parts"][0]["text"].as_str().unwrap_or_default();
            let wanted = if task == "composite" {
                "It says: Six are ordered."
            } else {
                "All six."
            };
            assert_eq!(said, wanted, "{what}: {answer}");
            let counts = counter.counts();
            assert_eq!(
                (counts.len(), counts.values().max()),
                (6, Some(&1)),
                "{what}: {counts:?}"
            );
            assert!(
                kills > 3,
                "{what}: more kills than a task without checkpoints survives: {kills}"
            );
            let all = kept(&mut served, 8);
            let of = |kind: &str| all.iter().filter(|(key, _)| key.starts_with(kind)).count();
            assert_eq!(of("turn/"), 2, "{what}: {all:?}");
            assert_eq!(
                of("call/"),
                if task == "composite" { 2 } else { 0 },
                "{what}: {all:?}"
            );
            let newest = all
                .iter()
                .filter(|(_, content)| content["state"] == "done")
                .count();
            assert_eq!(newest, if task == "composite" { 2 } else { 1 }, "{what}: {all:?}");
            kill(served);
            agent
                .clawk(["trace", "verify", "--agent", "tested"])
                .assert()
                .success();
        }
    }
}

#[test]
fn a_checkpoint_past_its_time_resumes_nothing_and_goes() {
    for backend in ["sqlite", "filesystem"] {
        let (agent, counter) = agent(backend, "{ max_snapshots: 2, ttl: 2s }");
        let params = json!({"text": "composite", "request_id": request(7)});
        let mut served = Served::start(&agent);
        served.send(7, "claw.message.send", &params);
        until("two orders", || counter.hits().len() >= 2);
        kill(served);
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        let before = counter.hits().len();
        let mut served = Served::start(&agent);
        served.send(7, "claw.message.send", &params);
        let answer = served.answer(7);
        let said = answer["result"]["parts"][0]["text"].as_str().unwrap_or_default();
        assert!(
            said.contains("there is no checkpoint of it"),
            "{backend}: {answer}"
        );
        assert_eq!(counter.hits().len(), before, "{backend}: nothing is begun again");
        counter.never_twice();
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        // Retention runs with the next that is kept.
        served.send(
            9,
            "claw.message.send",
            &json!({"text": "plain", "request_id": request(9)}),
        );
        assert_eq!(served.answer(9)["result"]["stop"], "answered", "{backend}");
        let all = kept(&mut served, 10);
        assert!(
            !all.is_empty() && all.iter().all(|(key, _)| key.starts_with("turn/")),
            "{backend}: {all:?}"
        );
        kill(served);
    }
}
