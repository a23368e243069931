//! A rolling restart: the new program looks at the record while hosts serve, and takes the place of one host after the other.

use serde_json::{Value, json};

use super::{Database, Host, agent, holds, until};
use crate::agent::{Agent, program, text};
use crate::counter::Counter;

fn upgrade(agent: &Agent, args: &[&str]) -> (Option<i32>, Value) {
    let output = agent
        .clawk(["upgrade", "claw.yaml", "--config", "a.toml", "--format", "json"])
        .args(args)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (output.status.code(), report)
}

#[test]
fn both_versions_share_the_state_while_hosts_restart_one_after_the_other() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    first.say(10, "one", "hello");
    assert!(first.answer(10)["result"].to_string().contains("hello"));
    for id in 20..23 {
        second.order(id);
        assert!(second.answer(id).get("result").is_some());
    }

    // The new version, another file, replays the record of the server while both serve.
    std::fs::copy(program(), agent.path("fresh")).unwrap();
    let (code, report) = upgrade(&agent, &["--shadow", "fresh"]);
    assert_eq!(
        (code, &report["differences"]),
        (Some(0), &json!([])),
        "{report:#}"
    );
    assert!(report["sessions"].as_u64().unwrap() >= 2, "{report:#}");
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let stricter = manifest.replace(
        "{ id: all, action: allow, scope: all }",
        "{ id: none, action: deny, scope: tool, match: { name: order } }, { id: all, action: allow, scope: all }",
    );
    assert_ne!(manifest, stricter);
    std::fs::write(agent.path("next.yaml"), stricter).unwrap();
    for new in [
        &["--shadow", "next.yaml"][..],
        &["--shadow", "fresh", "--shadow", "next.yaml"],
    ] {
        let (code, report) = upgrade(&agent, new);
        let found = report["differences"].as_array().unwrap();
        assert_eq!((code, found.len()), (Some(1), 3), "{report:#}");
        assert!(
            found.iter().all(|one| one["would_be"]["rule"] == "none"),
            "{report:#}"
        );
    }
    assert_eq!(counter.counts().len(), 3, "a replay does nothing");

    // A later version has added what this one need not know: one that restarts serves on beside it.
    database.sql(
        "INSERT INTO tested.migrations (step, oldest) SELECT max(step) + 1, max(step) FROM tested.migrations",
    );
    first.stop();
    let mut first = Host::start(&agent, "a");
    first.say(11, "one", "again");
    assert!(first.answer(11)["result"].to_string().contains("again"));
    second.say(12, "one", "and here");
    assert!(second.answer(12)["result"].to_string().contains("and here"));
    second.stop();

    // One that this version can't serve: whoever serves goes on, and whoever starts is told what to do.
    database.sql("INSERT INTO tested.migrations (step, oldest) SELECT max(step) + 1, max(step) + 1 FROM tested.migrations");
    let refused = agent
        .clawk(["serve", "claw.yaml", "--stdio", "--config", "b.toml"])
        .write_stdin("")
        .assert()
        .failure();
    let said = text(&refused.get_output().stderr);
    assert!(
        said.contains("later version of clawk") && said.contains("start such a version"),
        "{said}"
    );
    database.sql("DELETE FROM tested.migrations WHERE oldest = step");
    first.order(30);
    until("it serves on", || first.answer(30).get("result").is_some());
    holds(&agent, &database);
}
