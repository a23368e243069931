//! Real `kill -9` around real effects: never twice, what nobody knows is listed, and what can be found out is.

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::counter::Counter;
use crate::stop::{Served, request, until};

const MANIFEST: &str = r#"  tools:
    - inline: { name: order, description: Orders, input_schema: { type: object } }
    - inline: { name: keyed, description: Orders by a key, input_schema: { type: object } }
    - inline: { name: asked, description: Orders and can be asked, input_schema: { type: object } }
    - inline: { name: looked, description: Orders and can be looked up, input_schema: { type: object } }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
        shell: { mode: full }
  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
"#;

fn agent() -> (Agent, Counter) {
    let agent = Agent::new();
    let counter = Counter::start(Some(agent.path("seen.txt")));
    let url = &counter.url;
    let config = format!(
        r#"
[tools.order]
http = {{ url = "{url}/orders" }}
[tools.keyed]
http = {{ url = "{url}/orders" }}
idempotency_key = "header:Idempotency-Key"
[tools.asked]
http = {{ url = "{url}/orders" }}
reconcile = {{ http = "{url}/state/{{arguments.id}}" }}
[tools.looked]
http = {{ url = "{url}/orders" }}
reconcile = {{ command = ["/bin/sh", "look.sh"] }}
"#
    );
    let look = "facts=$(cat)\nfor id in $(cat seen.txt); do\n  case \"$facts\" in *\"\\\"$id\\\"\"*) echo done; exit;; esac\ndone\necho not-done\n";
    agent.may(MANIFEST);
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    std::fs::write(agent.path("look.sh"), look).unwrap();
    std::fs::write(agent.path("seen.txt"), "").unwrap();
    (agent, counter)
}

fn effects(agent: &Agent, more: &[&str]) -> Vec<Value> {
    let mut command = agent.clawk(["effects", "--agent", "tested", "--format", "json"]);
    let output = command.args(more).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    listed["effects"].as_array().unwrap().clone()
}

fn kill(mut served: Served) {
    served.child.kill().unwrap();
    served.child.wait().unwrap();
}

#[test]
fn killed_around_an_effect_it_is_never_done_twice_and_what_is_unknown_is_listed() {
    const KILLS: u32 = 24;
    let (agent, counter) = agent();
    let mut unknown = Vec::new();
    let mut last: Option<u32> = None;
    for n in 0..=KILLS {
        let mut served = Served::start(&agent);
        if let Some(id) = last {
            // The same request again, by whoever did not get its answer.
            served.call(id, "order", &json!({"id": format!("order-{id}")}));
            let answer = served.answer(id);
            if answer["error"]["data"]["reason"] == "outcome_unknown" {
                unknown.push(request(id));
            } else {
                assert!(answer.get("result").is_some(), "{answer}");
            }
        }
        if n == KILLS {
            kill(served);
            break;
        }
        let id = 100 + n;
        let (hits, answered) = (counter.hits().len(), counter.answered());
        counter.hold(n % 3 == 1);
        served.call(id, "order", &json!({"id": format!("order-{id}")}));
        match n % 3 {
            // As it comes: somewhere before it is sent.
            0 => std::thread::sleep(std::time::Duration::from_millis(u64::from(n) / 3)),
            1 => until("it is sent", || counter.hits().len() > hits),
            _ => until("it is answered", || counter.answered() > answered),
        }
        kill(served);
        counter.hold(false);
        last = Some(id);
    }
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "never twice: {counts:?}");
    assert!(
        unknown.len() >= usize::try_from(KILLS / 3).unwrap(),
        "{unknown:?}"
    );
    let listed = effects(&agent, &["--unknown"]);
    let mut listed: Vec<&str> = listed
        .iter()
        .map(|effect| effect["request_id"].as_str().unwrap())
        .collect();
    listed.sort_unstable();
    unknown.sort_unstable();
    assert_eq!(listed, unknown);
    let shown = agent
        .clawk(["effects", "--unknown", "--agent", "tested"])
        .output()
        .unwrap();
    let shown = text(&shown.stdout);
    assert!(unknown.iter().all(|id| shown.contains(id.as_str())), "{shown}");
    // A person's word closes one.
    let said = agent
        .clawk([
            "effects",
            "resolve",
            &unknown[0],
            "not-done",
            "--reason",
            "no such order",
            "--agent",
            "tested",
        ])
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert_eq!(effects(&agent, &["--unknown"]).len(), unknown.len() - 1);
}

/// Kills the agent when the other side has the request; what the next start makes of it.
fn killed_on_the_way(agent: &Agent, counter: &Counter, tool: &str, id: u32) -> Value {
    let hits = counter.hits().len();
    counter.hold(true);
    let mut served = Served::start(agent);
    served.call(id, tool, &json!({"id": format!("order-{id}")}));
    until("it is sent", || counter.hits().len() > hits);
    kill(served);
    counter.hold(false);
    settled(agent, id)
}

/// The entry of a call, once the next start has found out about it.
fn settled(agent: &Agent, id: u32) -> Value {
    let served = Served::start(agent);
    let mut found = Value::Null;
    until("it is found out", || {
        let entries = effects(agent, &[]);
        found = entries
            .into_iter()
            .find(|effect| effect["request_id"] == request(id).as_str())
            .unwrap_or_default();
        !matches!(found["state"].as_str(), None | Some("unknown" | "started"))
    });
    kill(served);
    found
}

#[test]
fn the_key_goes_with_every_attempt_and_is_the_same_after_a_kill() {
    let (agent, counter) = agent();
    let entry = killed_on_the_way(&agent, &counter, "keyed", 7);
    assert_eq!(entry["state"], "done", "{entry}");
    let keys: Vec<_> = counter
        .hits()
        .iter()
        .map(|hit| hit.key.clone().unwrap())
        .collect();
    assert_eq!(
        keys,
        [request(7), request(7)],
        "one key, so the other side does one of them"
    );
}

#[test]
fn an_address_says_what_became_of_it() {
    let (agent, counter) = agent();
    let entry = killed_on_the_way(&agent, &counter, "asked", 8);
    assert_eq!(entry["state"], "done", "{entry}");
    assert_eq!(
        counter.counts().get("order-8"),
        Some(&1),
        "looked, not done again"
    );
}

#[test]
fn a_command_says_what_became_of_it() {
    let (agent, counter) = agent();
    let entry = killed_on_the_way(&agent, &counter, "looked", 9);
    assert_eq!(entry["state"], "done", "{entry}");
    assert_eq!(
        counter.counts().get("order-9"),
        Some(&1),
        "looked, not done again"
    );
    // What the other side knows nothing of is not done: the log is emptied before the next start looks.
    let hits = counter.hits().len();
    counter.hold(true);
    let mut served = Served::start(&agent);
    served.call(10, "looked", &json!({"id": "order-10"}));
    until("it is sent", || counter.hits().len() > hits);
    kill(served);
    std::fs::write(agent.path("seen.txt"), "").unwrap();
    let entry = settled(&agent, 10);
    assert_eq!(entry["state"], "failed", "{entry}");
}
