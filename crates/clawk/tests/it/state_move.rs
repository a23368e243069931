//! `clawk state move`: everything that an agent keeps goes to a database and comes back, and the agent goes on.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::counter::Counter;
use crate::postgres::database::Server as Database;
use crate::state_pg::{Host, agent, said};
use crate::stop::request;

/// Configurations of the same agent, whose state lies elsewhere.
fn places(agent: &Agent, database: &Database, counter: &Counter) {
    let tool = |name: &str| format!("[tools.{name}]\nhttp = {{ url = \"{}/orders\" }}\n", counter.url);
    let tools = tool("order") + &tool("pay");
    for dir in ["home", "back"] {
        let config = format!("state = \"{dir}\"\n{tools}");
        std::fs::write(agent.path(&format!("{dir}.toml")), config).unwrap();
    }
    let server = format!(
        "[state]\nurl = \"{}\"\nschema = \"moved\"\ndir = \"home\"\nhost = \"home\"\npassword = \"PG_PASSWORD\"\n\
         [secrets_store]\nfile = \"secrets.toml\"\n{tools}",
        database.url()
    );
    std::fs::write(agent.path("server.toml"), server).unwrap();
}

fn moves(agent: &Agent, from: &str, to: &str) -> Output {
    let mut command = agent.clawk(["state", "move", "--from", from, "--to", to, "--format", "json"]);
    let output = command.env("PGPASSWORD", Database::PASSWORD).output().unwrap();
    let told = text(&output.stdout) + &text(&output.stderr);
    assert!(!told.contains(Database::PASSWORD), "{told}");
    output
}

#[track_caller]
fn moved(agent: &Agent, from: &str, to: &str) -> Value {
    let output = moves(agent, from, to);
    let told = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn refused(agent: &Agent, from: &str, to: &str, why: &str) {
    let output = moves(agent, from, to);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(why), "{told}");
}

fn remembers(host: &mut Host, id: u32) {
    let query = json!({"store": "facts", "query": {"type": "key", "key": "k"},
        "context": {"request_id": request(id), "identity": "tested"}});
    host.send(id, "claw.memory.query", &query);
    let found = host.answer(id);
    assert!(found.to_string().contains("kept"), "{found}");
}

/// The host goes on as if nothing had happened: one answer to one request, what it remembers, and something new.
fn goes_on(host: &mut Host, first: &Value, new: u32) {
    host.order(2);
    assert_eq!(host.answer(2)["result"], first["result"], "the one answer");
    remembers(host, new + 1_000);
    host.order(new);
    assert!(host.answer(new).get("result").is_some());
}

#[test]
fn a_state_goes_to_a_database_and_comes_back_and_the_agent_goes_on() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    places(&agent, &database, &counter);
    let url = format!("{}?schema=moved", database.url());
    let mut spoken = agent.clawk(["run", "claw.yaml", "--config", "home.toml", "-m", "hello"]);
    assert!(spoken.output().unwrap().status.success());
    let mut host = Host::start(&agent, "home");
    host.order(2);
    let first = host.answer(2);
    assert!(first.get("result").is_some(), "{first}");
    let context = json!({"request_id": request(90), "identity": "tested"});
    let entry = json!({"content": "kept", "key": "k"});
    host.send(
        90,
        "claw.memory.store",
        &json!({"store": "facts", "entries": [entry], "context": context}),
    );
    assert!(host.answer(90).get("result").is_some());
    refused(&agent, "home", &url, "process");
    host.stop();
    let before = said(&agent, &["budget"], "home");

    let there = moved(&agent, "home", &url);
    assert_eq!(there["valid"], true, "{there}");
    for table in [
        "events", "contents", "inbox", "answers", "memory", "heads", "spent",
    ] {
        assert!(there["moved"][table].as_u64().unwrap() > 0, "{table}: {there}");
    }
    // The source can be read, and is served no more.
    assert_eq!(said(&agent, &["trace", "verify"], "home")["valid"], true);
    let mut again = agent.clawk(["run", "claw.yaml", "--config", "home.toml", "-m", "hello"]);
    let told = text(&again.output().unwrap().stderr);
    assert!(
        told.contains("was moved to") && told.contains("schema=moved"),
        "{told}"
    );
    refused(
        &agent,
        "home",
        &format!("{}?schema=other", database.url()),
        "was moved to",
    );
    refused(&agent, "home", &url, "holds a state already");

    let mut host = Host::start(&agent, "server");
    goes_on(&mut host, &first, 3);
    refused(&agent, &url, "back", "served");
    host.stop();
    assert_eq!(said(&agent, &["budget"], &url)["agent"], before["agent"]);
    assert_eq!(said(&agent, &["trace", "verify"], &url)["valid"], true);

    // The key that signs lies in the directory of the host: a URL alone is refused, and nothing has changed.
    refused(&agent, &url, "back", "name that directory");
    let back = moved(&agent, "home", "back");
    assert_eq!(back["valid"], true, "{back}");
    assert!(back["moved"]["events"].as_u64().unwrap() > there["moved"]["events"].as_u64().unwrap());
    let mut host = Host::start(&agent, "back");
    goes_on(&mut host, &first, 4);
    host.order(3);
    assert!(host.answer(3).get("result").is_some());
    host.stop();
    refused(&agent, "back", "home", "holds a state already");
    std::fs::create_dir_all(agent.path("full/x")).unwrap();
    refused(&agent, "back", "full", "is not empty");
    let counts = counter.counts();
    assert_eq!((counts.len(), counts.values().max()), (3, Some(&1)), "{counts:?}");
    assert_eq!(said(&agent, &["trace", "verify"], "back")["valid"], true);
}

#[test]
fn a_move_that_is_killed_is_run_again_and_loses_nothing() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    places(&agent, &database, &counter);
    let mut host = Host::start(&agent, "home");
    for id in 2..60 {
        host.order(id);
    }
    let first = host.answer(2);
    for id in 3..60 {
        assert!(host.answer(id).get("result").is_some());
    }
    host.stop();
    let events = said(&agent, &["trace", "verify"], "home")["event_count"].clone();
    let mut from = "home".to_owned();
    for (n, ms) in [1, 10, 25, 50, 80, 120, 200].into_iter().enumerate() {
        let to = match n % 2 {
            0 => format!("{}?schema=killed_{n}", database.url()),
            _ => format!("killed-{n}"),
        };
        // A server's own host directory has the key, a plain URL has none.
        let source = if from.starts_with("postgres") {
            "keys".to_owned()
        } else {
            from.clone()
        };
        let mut child = std::process::Command::new(program())
            .args(["state", "move", "--from", &source, "--to", &to])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .env("PGPASSWORD", Database::PASSWORD)
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        let _ended = child.kill();
        child.wait().unwrap();
        let output = moves(&agent, &source, &to);
        let told = text(&output.stdout) + &text(&output.stderr);
        let done = told.contains("holds a state already") || told.contains("is not empty");
        assert!(output.status.success() || done, "{told}");
        let report = said(&agent, &["trace", "verify"], &to);
        assert_eq!(
            (&report["valid"], &report["event_count"]),
            (&json!(true), &events),
            "{to}: {report}"
        );
        if to.starts_with("postgres") {
            // As a host of this server would have it: its directory names the server, and holds the key.
            let keys = agent.path("keys");
            let _before = std::fs::remove_dir_all(&keys);
            std::fs::create_dir_all(keys.join("keys")).unwrap();
            for entry in std::fs::read_dir(agent.path(&source).join("keys")).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), keys.join("keys").join(entry.file_name())).unwrap();
            }
            let (url, schema) = to.split_once("?schema=").unwrap();
            let server = json!({"url": url, "read_url": null, "schema": schema, "pool": 4, "host": null, "lease_ms": 4000,
                "password": "PGPASSWORD", "password_named": false, "config": null, "ca_file": null});
            std::fs::write(keys.join("postgres.json"), server.to_string()).unwrap();
        }
        from = to;
    }
    // Wherever it is now, it goes on.
    let last = moved(
        &agent,
        if from.starts_with("postgres") {
            "keys"
        } else {
            &from
        },
        "back",
    );
    assert_eq!(last["moved"]["events"], events, "{last}");
    let mut host = Host::start(&agent, "back");
    host.order(2);
    assert_eq!(host.answer(2)["result"], first["result"]);
    host.stop();
    counter.never_twice();
}
