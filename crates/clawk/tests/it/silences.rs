//! What a manifest or `clawk.toml` asks for in vain: `validate` says it with one code, and the start counts the same finding or refuses
//! by the same word.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::agent::Agent;
use crate::trace::json;

const CHANNEL: &str =
    "    - inline: { name: chat, type: TYPE, transport: WORD, auth: { secret_ref: NONE }, MORE }\n";

fn channel(kind: &str, word: &str, more: &str) -> String {
    CHANNEL
        .replace("TYPE", kind)
        .replace("WORD", word)
        .replace("MORE", more)
}

fn store(rest: &str) -> String {
    format!("  memory:\n    inline: {{ stores: [{{ name: notes, {rest} }}] }}\n")
}

fn swarm(backend: &str, passing: &str) -> String {
    format!(
        "  swarm:\n    inline: {{ topology: broadcast, agents: [{{ identity_ref: tested, role: peer }}], \
         coordination: {{ message_passing: {passing}, backend: {backend}, concurrency: {{}} }}, aggregation: {{ strategy: merge }} }}\n"
    )
}

/// The findings of `validate` that the clean manifest has not, as `CODE POINTER`.
fn told(agent: &Agent) -> Vec<String> {
    let (_, report) = json(agent, &["validate", "claw.yaml", "--format", "json"]);
    let found = ["errors", "warnings"].map(|key| report[key].as_array().cloned().unwrap_or_default());
    let name = |one: &Value| {
        format!(
            "{} {}",
            one["code"].as_str().unwrap(),
            one["path"].as_str().unwrap()
        )
    };
    // Another finding of such channels, which has a test of its own.
    let others = |one: &String| !one.starts_with("question-unheard ");
    found.concat().iter().map(name).filter(others).collect()
}

struct SilentCase {
    manifest: String,
    config: &'static str,
    /// What `validate` must say, as `CODE POINTER`.
    told: &'static str,
    /// What a start says on standard error; it fails if the text begins with `!`.
    start: &'static str,
}

fn cases() -> Vec<SilentCase> {
    let case = |manifest: String, config, told, start| SilentCase {
        manifest,
        config,
        told,
        start,
    };
    let mut cases = vec![
        case(
            channel("cli", "stdio", "access_control: { mode: open }"),
            "",
            "no-effect /spec/channels/1/inline/access_control",
            "warning",
        ),
        case(
            channel(
                "cron",
                "stdio",
                "trigger: { schedule: \"0 0 1 1 *\" }, access_control: { mode: open }",
            ),
            "",
            "no-effect /spec/channels/1/inline/access_control",
            "warning",
        ),
        case(
            channel("telegram", "stdio", "access_control: { mode: open }"),
            "",
            "dead-channel /spec/channels/1/transport",
            "warning",
        ),
        case(
            channel("cli", "webhook", "features: { threads: false }"),
            "",
            "unserved-feature /spec/channels/1/transport",
            "warning",
        ),
        case(
            swarm("nats", "queue"),
            "[swarm]\nurl = \"http://bus.example.com\"\n",
            "config /spec/swarm",
            "!",
        ),
        case(swarm("redis", "queue"), "", "config /spec/swarm", "!"),
        case(
            swarm("sqlite-wal", "shared-memory"),
            "",
            "config /spec/swarm",
            "!served with the backend `in-process` only",
        ),
        case(
            String::new(),
            "[registries]\nmine = \"gone\"\n",
            "registry-missing ",
            "warning",
        ),
        case(
            store("type: workspace, backend: sqlite, path: files"),
            "",
            "config /spec/memory",
            "!`path` is for stores in folders",
        ),
        case(
            store("type: workspace, path: files, encryption: true"),
            "[memory]\nencryption_key = \"KEY\"\n",
            "config /spec/memory",
            "!",
        ),
        case(
            store("type: semantic, salience: { enabled: true, signals: [mood] }"),
            "",
            "config /spec/memory",
            "!the signal `mood` is not known",
        ),
        case(
            store("type: semantic, lifecycle: { retrieval: exact }, search: { strategy: hybrid }"),
            "",
            "no-effect /spec/memory/inline/stores/0/search/strategy",
            "warning",
        ),
        case(
            store("type: semantic, confidence: { decay: adaptive }"),
            "",
            "no-effect /spec/memory/inline/stores/0/confidence/decay",
            "warning",
        ),
    ];
    if cfg!(not(feature = "mail")) {
        cases.push(case(
            channel("email", "polling", "access_control: { mode: open }"),
            "[channels.chat]\nurl = \"imaps://mail.example.com\"\nsmtp_url = \"smtps://mail.example.com\"\n",
            "dead-channel /spec/channels/1/type",
            "warning",
        ));
    }
    cases
}

#[test]
fn what_is_asked_for_in_vain_is_said_by_validate_and_by_the_start() {
    let clean = std::fs::read_to_string(Agent::new().path("claw.yaml")).unwrap();
    for case in cases() {
        let agent = Agent::new();
        // A channel goes to the one that is there, any other part to the end.
        let before = if case.manifest.starts_with("    -") {
            "  tools:"
        } else {
            "  policies:"
        };
        let manifest = clean.replacen(before, &format!("{}{before}", case.manifest), 1);
        std::fs::write(agent.path("claw.yaml"), &manifest).unwrap();
        std::fs::write(agent.path("clawk.toml"), case.config).unwrap();
        assert_eq!(told(&agent), [case.told], "{manifest}\n{}", case.config);
        let started = agent.clawk(["run", "claw.yaml", "-m", "hello"]).assert();
        match case.start.strip_prefix('!') {
            Some(why) => started.failure().stderr(contains(why)),
            None => started
                .success()
                .stdout("You said **hello**.\n")
                .stderr(contains(case.start)),
        };
    }
    // The clean manifest has nothing to say.
    let agent = Agent::new();
    assert_eq!(told(&agent), [""; 0]);
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success()
        .stderr(contains("warning").not());
}

/// A registry is a folder; an address is refused where the file is read, by every verb.
#[test]
fn an_address_is_no_registry() {
    let agent = Agent::new();
    std::fs::write(
        agent.path("clawk.toml"),
        "[registries]\nhub = \"https://example.com/hub\"\n",
    )
    .unwrap();
    for words in [
        &["validate", "claw.yaml"][..],
        &["run", "claw.yaml", "-m", "hello"],
    ] {
        let output = agent.clawk([words[0], words[1]]).args(&words[2..]).assert();
        output
            .failure()
            .stderr(contains("`[registries] hub` is an address").and(contains("write its folder")));
    }
}

/// `docker` as a runtime is warned of; programs of a folder's `clawk.toml` are not run by `validate`, which then judges nothing.
#[test]
fn a_container_level_is_not_judged_by_programs_that_are_not_asked() {
    let agent = Agent::new();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let contained = manifest.replace("level: process", "level: container\n      runtime: docker");
    std::fs::write(agent.path("claw.yaml"), contained).unwrap();
    std::fs::write(
        agent.path("clawk.toml"),
        "[sandbox.container]\nruntimes = [\"./own-runtime\"]\n",
    )
    .unwrap();
    std::fs::write(agent.path("own-runtime"), "#!/bin/sh\ntouch executed\n").unwrap();
    let (_, report) = json(&agent, &["validate", "claw.yaml", "--format", "json"]);
    let found = report["warnings"].as_array().unwrap();
    let by = |code: &str| found.iter().filter(|one| one["code"] == code).count();
    assert_eq!(
        (by("not-applied"), by("sandbox-container"), found.len()),
        (1, 1, 2),
        "{report:#}"
    );
    let told = report.to_string();
    assert!(
        told.contains("is not checked here") && told.contains("[sandbox.container]"),
        "{told}"
    );
    assert!(!agent.path("executed").exists());
}
