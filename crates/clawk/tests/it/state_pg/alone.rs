//! An agent with a Swarm: one host serves it at a time, which `validate` and the host that stands by say.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::json;

use super::{Database, Host, command, holds};
use crate::agent::text;
use crate::counter::Counter;

#[test]
fn a_host_that_stands_by_for_a_swarm_says_so_and_serves_when_the_other_one_ends() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = super::agent(&database, &counter);
    let members = json!([{"identity_ref": "tested", "role": "leader"}, {"identity_ref": "tested", "role": "worker", "count": 2}]);
    let swarm = crate::swarm::swarm("leader-worker", "leader-decides", members, json!({}));
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let manifest = format!("{}\n  swarm: {{ inline: {swarm} }}\n", manifest.trim_end());
    std::fs::write(agent.path("claw.yaml"), manifest).unwrap();
    let checked = agent
        .clawk(["validate", "claw.yaml", "--config", "a.toml", "--format", "json"])
        .assert()
        .success();
    let said = text(&checked.get_output().stdout);
    assert!(said.contains("one host serves it at a time"), "{said}");

    let first = Host::start(&agent, "a");
    let mut second = command(&agent, "b").stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(second.stderr.take().unwrap()).lines();
    let note = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("stands by")));
    let note = note.expect("it says that it waits").unwrap();
    assert!(note.contains("the host `a`") && note.contains("Swarm"), "{note}");
    let mut second = Host::of(second);
    first.stop();
    assert!(second.answer(1).get("result").is_some());
    second.order(2);
    assert!(second.answer(2).get("result").is_some());
    second.stop();
    holds(&agent, &database);
}
