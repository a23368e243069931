//! `clawk undo` and `clawk run --dry-run`, through the real binary: counted and compared from outside.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::agent::{Agent, text};
use crate::counter::Counter;

const TOOLS: &str = r#"  tools:
    - inline: { name: file-read, description: A built-in, input_schema: { type: object } }
    - inline: { name: file-write, description: A built-in, input_schema: { type: object } }
    - inline: { name: file-edit, description: A built-in, input_schema: { type: object } }
    - inline: { name: shell, description: A built-in, input_schema: { type: object } }
    - inline:
        name: order
        description: Orders something
        input_schema: { type: object, properties: { id: { type: string } } }
    - inline:
        name: mail
        description: Sends a mail
        input_schema: { type: object, properties: { id: { type: string } } }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: "./work", permissions: rw }] }
        shell: { mode: full }
"#;

const ALLOWED: &str = r#"  policies:
    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }
"#;

const ASKED: &str = r#"  policies:
    - inline:
        name: some
        rules:
          - { id: writing, action: require-approval, scope: tool, match: { name: file-write }, approval: { timeout_seconds: 20 } }
          - { id: all, action: allow, scope: all }
"#;

const SCRIPT: &str = r#"
scenes:
  - user: change
    steps:
      - call:
          - { name: file-write, arguments: { path: work/old.txt, content: "new\n" } }
          - { name: file-write, arguments: { path: work/deep/er/new.txt, content: "made\n" } }
      - call: [{ name: file-edit, arguments: { path: work/old.txt, old_text: "new", new_text: "newer" } }]
      - call: [{ name: shell, arguments: { command: "cd work && rm gone.txt && chmod 600 mode.txt && mkdir made && echo x > made/x && ln -s made link && mv moved.txt elsewhere.txt" } }]
      - call: [{ name: order, arguments: { id: first } }]
      - say: "All is changed."
  - user: write
    steps:
      - call: [{ name: file-write, arguments: { path: work/old.txt, content: "planned\n" } }]
      - any:
          - { when: { error: true }, say: "Not allowed." }
          - say: "Written."
  - user: everything
    steps:
      - call: [{ name: file-read, arguments: { path: work/old.txt } }]
      - call: [{ name: file-write, arguments: { path: work/old.txt, content: "new\n" } }]
      - call: [{ name: shell, arguments: { command: "rm -rf work/gone.txt" } }]
      - call: [{ name: order, arguments: { id: one } }]
      - call: [{ name: mail, arguments: { id: two } }]
      - say: "All is done."
  - steps:
      - say: "Hello."
"#;

struct World {
    agent: Agent,
    orders: Counter,
}

fn world(policy: &str) -> World {
    let agent = Agent::new();
    agent.may(&format!("{TOOLS}{policy}"));
    let orders = Counter::start(None);
    let config = format!(
        "[tools.order.http]\nurl = \"{url}\"\n\n[tools.mail.http]\nurl = \"{url}\"\n",
        url = orders.url
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    let work = agent.path("work");
    std::fs::create_dir(&work).unwrap();
    for name in ["old.txt", "gone.txt", "mode.txt", "moved.txt"] {
        std::fs::write(work.join(name), format!("{name} as it was\n")).unwrap();
    }
    std::fs::set_permissions(work.join("gone.txt"), std::fs::Permissions::from_mode(0o640)).unwrap();
    World { agent, orders }
}

/// Everything below: kind and mode, when it was modified, content.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            let below = std::fs::read_dir(&path).unwrap();
            open.extend(below.map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else {
            std::fs::read(&path).unwrap()
        };
        found.insert(path, (meta.mode(), meta.mtime(), meta.mtime_nsec(), content));
    }
    found
}

fn json(world: &World, args: &[&str]) -> (Option<i32>, Value) {
    let output = world.agent.clawk([]).args(args).output().unwrap();
    let told = text(&output.stderr);
    let value = serde_json::from_slice(&output.stdout);
    let value = value.unwrap_or_else(|_| panic!("{args:?}: {} {told}", text(&output.stdout)));
    (output.status.code(), value)
}

#[test]
fn a_session_is_undone_to_the_byte_and_what_cannot_be_is_listed() {
    let world = world(ALLOWED);
    let before = tree(&world.agent.path("work"));
    let run = world
        .agent
        .clawk(["run", "claw.yaml", "-m", "change"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let changed = tree(&world.agent.path("work"));
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"newer\n"
    );
    assert!(world.agent.path("work/made/x").exists(), "{}", text(&run.stderr));
    assert_eq!(world.orders.hits().len(), 1);
    // A preview changes nothing.
    let (code, preview) = json(&world, &["undo", "last", "--format", "json"]);
    assert_eq!(
        (code, &preview["done"]),
        (Some(0), &Value::Bool(false)),
        "{preview:#}"
    );
    assert_eq!(preview["calls"].as_array().unwrap().len(), 4, "{preview:#}");
    let lost = preview["not_undone"].as_array().unwrap();
    assert_eq!(
        (lost.len(), &lost[0]["tool"]),
        (1, &Value::from("order")),
        "{preview:#}"
    );
    assert_eq!(tree(&world.agent.path("work")), changed);
    let (code, done) = json(&world, &["undo", "last", "--yes", "--format", "json"]);
    assert_eq!((code, &done["done"]), (Some(0), &Value::Bool(true)), "{done:#}");
    assert_eq!(tree(&world.agent.path("work")), before);
    // It is in the trace, which still holds and still replays.
    let shown = world
        .agent
        .clawk(["trace", "show", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(
        text(&shown.stdout).contains("ckp.undo.ended"),
        "{}",
        text(&shown.stdout)
    );
    world
        .agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .assert()
        .success();
    let replayed = world
        .agent
        .clawk(["trace", "replay", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(
        replayed.status.success(),
        "{} {}",
        text(&replayed.stdout),
        text(&replayed.stderr)
    );
    // Nothing is left to be undone.
    let (_, again) = json(&world, &["undo", "last", "--format", "json"]);
    assert_eq!(again["steps"], Value::Array(Vec::new()), "{again:#}");
}

#[test]
fn an_undo_goes_back_to_an_event_and_leaves_what_others_changed() {
    let world = world(ALLOWED);
    world
        .agent
        .clawk(["run", "claw.yaml", "-m", "change"])
        .assert()
        .success();
    // After the two writes and the edit: only the shell's call comes back.
    let shown = world
        .agent
        .clawk(["trace", "export", "--agent", "tested", "--session", "last"])
        .output()
        .unwrap();
    let lines = text(&shown.stdout);
    let events: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shell = events
        .iter()
        .find(|event| event["event_type"] == "action.approved" && event["payload"]["action_id"] == "shell")
        .unwrap();
    let to = (shell["sequence"].as_u64().unwrap() - 1).to_string();
    let (code, done) = json(
        &world,
        &["undo", "last", "--to", &to, "--yes", "--format", "json"],
    );
    assert_eq!(code, Some(0), "{done:#}");
    assert!(world.agent.path("work/gone.txt").exists());
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"newer\n"
    );
    // A person's own work is not overwritten.
    std::fs::write(world.agent.path("work/old.txt"), "a person's words\n").unwrap();
    let (code, done) = json(&world, &["undo", "last", "--yes", "--format", "json"]);
    assert_eq!(code, Some(1), "{done:#}");
    assert!(!done["conflicts"].as_array().unwrap().is_empty());
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"a person's words\n"
    );
    assert!(!world.agent.path("work/deep").exists());
}

#[test]
fn a_dry_run_changes_nothing_and_tells_everything() {
    let world = world(ALLOWED);
    world
        .agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let before = (tree(&world.agent.path("work")), tree(&world.agent.state()));
    let args = [
        "run",
        "claw.yaml",
        "-m",
        "everything",
        "--dry-run",
        "--format",
        "json",
    ];
    let (code, report) = json(&world, &args);
    assert_eq!(
        (code, &report["end"]),
        (Some(0), &Value::from("answered")),
        "{report:#}"
    );
    assert_eq!(world.orders.hits().len(), 0, "no request left");
    let kept = |(path, _): &(PathBuf, _)| path.file_name().is_none_or(|name| name != "lock");
    let after = (tree(&world.agent.path("work")), tree(&world.agent.state()));
    assert_eq!(before.0, after.0);
    let names = |tree: &BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)>| -> Vec<PathBuf> {
        tree.clone()
            .into_iter()
            .filter(kept)
            .map(|(path, _)| path)
            .collect()
    };
    // SQLite may fold its log into the database; no session, no content and no record is added.
    let fixed = |name: &&PathBuf| !name.to_string_lossy().contains("state.db");
    assert_eq!(
        names(&before.1).iter().filter(fixed).collect::<Vec<_>>(),
        names(&after.1).iter().filter(fixed).collect::<Vec<_>>()
    );
    let steps = report["steps"].as_array().unwrap();
    let outcomes: Vec<(&str, &str)> = steps
        .iter()
        .map(|step| (step["tool"].as_str().unwrap(), step["outcome"].as_str().unwrap()))
        .collect();
    let expected = [
        ("file-read", "read"),
        ("file-write", "predicted"),
        ("shell", "predicted"),
        ("order", "predicted"),
        ("mail", "predicted"),
    ];
    assert_eq!(outcomes, expected);
    let prediction = |at: usize| steps[at]["prediction"].to_string();
    assert!(
        prediction(1).contains("- old.txt as it was") && prediction(1).contains("+ new"),
        "{}",
        prediction(1)
    );
    assert!(
        prediction(2).contains("rm -rf work/gone.txt"),
        "{}",
        prediction(2)
    );
    assert!(
        prediction(3).contains("POST http://127.0.0.1"),
        "{}",
        prediction(3)
    );
    let text_report = world
        .agent
        .clawk(["run", "claw.yaml", "-m", "everything", "--dry-run"])
        .output()
        .unwrap();
    assert!(
        text(&text_report.stdout).contains("4 calls would change something"),
        "{}",
        text(&text_report.stdout)
    );
    assert_eq!(world.orders.hits().len(), 0);
}

#[test]
fn a_dry_run_spends_tokens_and_nothing_else_of_the_agents_budget() {
    let world = world(ALLOWED);
    let limits = ["tokens = 8000", "calls = 3"].join("\n");
    let config = std::fs::read_to_string(world.agent.path("clawk.toml")).unwrap();
    std::fs::write(
        world.agent.path("clawk.toml"),
        format!("{config}\n[budgets.day]\n{limits}\n"),
    )
    .unwrap();
    let args = [
        "run",
        "claw.yaml",
        "-m",
        "everything",
        "--dry-run",
        "--format",
        "json",
    ];
    let mut runs = 0;
    let mut counted = Vec::new();
    loop {
        let (_, report) = json(&world, &args);
        runs += 1;
        let tokens = report["tokens"].as_u64().unwrap();
        counted.push(tokens);
        if report["end"] != "answered" {
            assert!(
                report["reason"].as_str().unwrap().contains("tokens"),
                "{report:#}"
            );
            break;
        }
        assert!(runs < 40, "the budget of tokens is never used up: {counted:?}");
    }
    assert!(runs > 1, "the first one had room: {counted:?}");
    assert_eq!(world.orders.hits().len(), 0);
    // On the record: tokens by purse, no calls. The chain and the sums agree.
    let exported = world
        .agent
        .clawk(["trace", "export", "--agent", "tested"])
        .output()
        .unwrap();
    let lines = text(&exported.stdout);
    let events = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: Vec<Value> = events
        .filter(|event| event["event_type"] == "ckp.budget.dry_run")
        .collect();
    assert_eq!(told.len(), runs, "{told:?}");
    let paid = &told[0]["payload"]["paid"];
    let agent = paid
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["purse"] == "agent")
        .unwrap();
    assert_eq!(agent["tokens"].as_u64().unwrap(), counted[0], "{paid}");
    world
        .agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .assert()
        .success();
}

#[test]
fn a_dry_run_of_the_hello_agent_has_no_effect_that_can_be_counted_from_outside() {
    let agent = Agent::new();
    let hello = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hello");
    for entry in std::fs::read_dir(hello).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, agent.path(path.file_name().unwrap().to_str().unwrap())).unwrap();
        }
    }
    let before = tree(&agent.path(""));
    let state = agent.path("elsewhere");
    let run = agent
        .clawk([
            "run",
            "claw.yaml",
            "-m",
            "sum up the notes",
            "--dry-run",
            "--state",
            state.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let mut after = tree(&agent.path(""));
    after.retain(|path, _| !path.starts_with(&state));
    let paths: std::collections::BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    let changed: Vec<&PathBuf> = paths
        .into_iter()
        .filter(|path| before.get(*path) != after.get(*path) && **path != agent.path(""))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
}

#[test]
fn a_program_that_mails_and_one_that_leaves_the_box_are_not_started_by_a_dry_run() {
    let world = world(ALLOWED);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script =
        format!("#!/bin/bash\ntouch work/mailed\nexec 3<>/dev/tcp/127.0.0.1/{port}\necho HELO >&3\n");
    std::fs::write(world.agent.path("work/mail.sh"), script).unwrap();
    let config = format!(
        "[tools.order.http]\nurl = \"{}\"\n[tools.mail]\ncommand = [\"/bin/bash\", \"work/mail.sh\"]\n",
        world.orders.url
    );
    std::fs::write(world.agent.path("clawk.toml"), config).unwrap();
    let before = tree(&world.agent.path("work"));
    let args = [
        "run",
        "claw.yaml",
        "-m",
        "everything",
        "--dry-run",
        "--format",
        "json",
    ];
    let (code, report) = json(&world, &args);
    assert_eq!(
        (code, &report["predicted"]),
        (Some(0), &Value::from(4)),
        "{report:#}"
    );
    assert!(listener.accept().is_err(), "nobody connected");
    assert_eq!(tree(&world.agent.path("work")), before);
    assert_eq!(world.orders.hits().len(), 0);
    // The same for real starts it: the test would see it.
    world
        .agent
        .clawk(["run", "claw.yaml", "-m", "everything"])
        .assert()
        .success();
    assert!(world.agent.path("work/mailed").exists());
    assert_eq!(world.orders.hits().len(), 1);
}

#[test]
fn the_report_of_a_dry_run_is_approved_as_a_plan_and_covers_exactly_itself() {
    let world = world(ASKED);
    let dry = [
        "run",
        "claw.yaml",
        "-m",
        "write",
        "--dry-run",
        "--report",
        "plan.json",
        "--format",
        "json",
    ];
    let (_, report) = json(&world, &dry);
    assert!(report["steps"][0]["asks"].is_string(), "{report:#}");
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"old.txt as it was\n"
    );
    // Without a yes, nothing: there is no terminal to ask.
    let refused = world
        .agent
        .clawk(["run", "claw.yaml", "--plan", "plan.json"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"old.txt as it was\n"
    );
    // What it is about has changed since: the approval does not cover it.
    std::fs::write(world.agent.path("work/old.txt"), "another text\n").unwrap();
    let other = world
        .agent
        .clawk(["run", "claw.yaml", "--plan", "plan.json", "--yes"])
        .output()
        .unwrap();
    assert!(
        text(&other.stdout).contains("Not allowed."),
        "{}",
        text(&other.stdout)
    );
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"another text\n"
    );
    std::fs::write(world.agent.path("work/old.txt"), "old.txt as it was\n").unwrap();
    let done = world
        .agent
        .clawk(["run", "claw.yaml", "--plan", "plan.json", "--yes"])
        .output()
        .unwrap();
    assert!(
        text(&done.stdout).contains("Written."),
        "{} {}",
        text(&done.stdout),
        text(&done.stderr)
    );
    assert_eq!(
        std::fs::read(world.agent.path("work/old.txt")).unwrap(),
        b"planned\n"
    );
    // Another manifest than the one that the report is about.
    world.agent.may(&format!("{TOOLS}{ALLOWED}"));
    let stale = world
        .agent
        .clawk(["run", "claw.yaml", "--plan", "plan.json", "--yes"])
        .output()
        .unwrap();
    assert!(
        text(&stale.stderr).contains("another manifest"),
        "{}",
        text(&stale.stderr)
    );
}
