//! `clawk run --dry-run` of an agent whose state lies on PostgreSQL: the whole agent on a copy, and nothing in the database but what its
//! model was paid.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::counter::Counter;
use crate::postgres::database::Server as Database;
use crate::sealed::OLD;
use crate::serve::Server;

const WORD: &str = "quokka";

fn rest(encryption: &str) -> String {
    format!(
        r#"  tools:
    - inline: {{ name: order, description: Orders, input_schema: {{ type: object }} }}
    - inline: {{ name: memory-store, description: Stores, input_schema: {{ type: object }} }}
    - inline: {{ name: file-write, description: Writes, input_schema: {{ type: object }} }}
  sandbox:
    inline: {{ level: process, capabilities: {{ filesystem: {{ mode: scoped, mount_paths: [{{ path: "./work", permissions: rw }}] }} }} }}
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
  memory:
    inline:
      name: head
      stores:
        - {{ name: talks, type: conversation{encryption} }}
        - {{ name: notes, type: semantic{encryption} }}
        - {{ name: shelf, type: semantic, backend: filesystem, path: ~/shelf, lifecycle: {{ acquisition: continuous }} }}
        - {{ name: outer, type: semantic, backend: postgresql, lifecycle: {{ acquisition: continuous }} }}
"#
    )
}

const SCRIPT: &str = r#"
scenes:
  - user: everything
    steps:
      - call: [{ name: memory-store, arguments: { store: notes, content: "The quokka is not kept." } }]
      - call: [{ name: order, arguments: { id: "1" } }]
      - call: [{ name: file-write, arguments: { path: work/a, content: "written" } }]
      - say: "All is done with the quokka."
  - steps:
      - say: "The quokka says hello."
"#;

fn agent(database: &Database, counter: &Counter, encryption: &str) -> Agent {
    let agent = Agent::new();
    agent.may(&rest(encryption));
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    for folder in ["work", "shelf", "tmp"] {
        std::fs::create_dir(agent.path(folder)).unwrap();
    }
    let secrets = agent.path("secrets.toml");
    let keys = format!(
        "PG_PASSWORD = \"{}\"\nMEMORY_KEY = \"{OLD}\"\n",
        Database::PASSWORD
    );
    std::fs::write(&secrets, keys).unwrap();
    std::fs::set_permissions(secrets, std::fs::Permissions::from_mode(0o600)).unwrap();
    let url = database.url();
    for (file, dir) in [("clawk.toml", "state/clawk/tested"), ("b.toml", "b")] {
        let config = format!(
            "[memory]\nencryption_key = \"MEMORY_KEY\"\n[secrets_store]\nfile = \"secrets.toml\"\n[state]\nurl = \"{url}\"\n\
             schema = \"tested\"\ndir = \"{dir}\"\nhost = \"{dir}\"\nlease_ms = 4000\npassword = \"PG_PASSWORD\"\n[postgres]\n\
             url = \"{url}\"\nsecret_ref = \"PG_PASSWORD\"\ntls = \"disable\"\nschema = \"elsewhere\"\n\
             [tools.order]\nhttp = {{ url = \"{}/orders\" }}\n",
            counter.url
        );
        std::fs::write(agent.path(file), config).unwrap();
    }
    agent
}

/// Every table's rows, as they are printed.
fn tables(database: &Database) -> BTreeMap<String, String> {
    let sql =
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('tested', 'elsewhere')";
    let names = database.sql(sql);
    let rows = |name: &str| database.sql(&format!("SELECT t::text FROM {name} t ORDER BY 1"));
    names.lines().map(|name| (name.to_owned(), rows(name))).collect()
}

fn dry(agent: &Agent, config: &str) -> Value {
    let args = [
        "run",
        "claw.yaml",
        "--config",
        config,
        "-m",
        "everything",
        "--dry-run",
        "--format",
        "json",
    ];
    let done = agent
        .clawk(args)
        .env("TMPDIR", agent.path("tmp"))
        .output()
        .unwrap();
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(!said.contains("not counted"), "{said}");
    serde_json::from_slice(&done.stdout).unwrap()
}

#[track_caller]
fn predicted(report: &Value) {
    assert_eq!(report["end"], "answered", "{report:#}");
    let steps = report["steps"].as_array().unwrap();
    let outcomes: Vec<&str> = steps
        .iter()
        .map(|step| step["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["predicted"; 3], "{report:#}");
}

/// What differs between two looks at the database, by table, and that only a payment does.
#[track_caller]
fn paid_alone(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>, database: &Database) {
    let changed: Vec<&str> = after
        .iter()
        .filter(|(name, rows)| before.get(*name) != Some(rows))
        .map(|(name, _)| name.strip_prefix("tested.").unwrap_or(name))
        .collect();
    // Hosts come and go by these; the rest is one session that says what was paid.
    let may = [
        "events", "hosts", "journal", "leases", "runs", "sessions", "spent",
    ];
    assert!(changed.iter().all(|name| may.contains(name)), "{changed:?}");
    assert!(changed.contains(&"spent"), "{changed:?}");
    let kinds = "SELECT string_agg(kind, ' ' ORDER BY row) FROM (SELECT kind, row FROM tested.events ORDER BY row DESC LIMIT 3) AS last";
    assert_eq!(
        database.sql(kinds),
        "session.started ckp.budget.dry_run session.ended"
    );
    let rows = |tables: &BTreeMap<String, String>| tables["tested.events"].lines().count();
    assert_eq!(rows(after), rows(before) + 3);
}

fn outer(database: &Database) -> String {
    database.sql("SELECT count(*) FROM elsewhere.memory m JOIN elsewhere.memory_parts p ON p.id = m.part WHERE p.store = 'outer'")
}

#[test]
fn a_dry_run_on_postgresql_writes_what_its_model_was_paid_and_nothing_else() {
    for encryption in ["", ", encryption: true"] {
        let (database, counter) = (Database::start(), Counter::start(None));
        let agent = agent(&database, &counter, encryption);
        agent
            .clawk(["run", "claw.yaml", "-m", "hello"])
            .assert()
            .success();
        // Finished turns are taken up by the stores outside of the state, so a dry run could have done it, too.
        assert_ne!(outer(&database), "0");
        let shelf = crate::sealed::anywhere(&agent.path("shelf"), WORD);
        assert!(!shelf.is_empty());
        let contents = || {
            shelf
                .iter()
                .map(|file| std::fs::read(file).unwrap())
                .collect::<Vec<_>>()
        };
        let (before, files) = (tables(&database), contents());
        predicted(&dry(&agent, "clawk.toml"));
        paid_alone(&before, &tables(&database), &database);
        assert_eq!(files, contents());
        assert_eq!(counter.counts().len(), 0, "no request left");
        assert!(!agent.path("work/a").exists());
        assert_eq!(
            std::fs::read_dir(agent.path("tmp")).unwrap().count(),
            0,
            "the copy is gone"
        );

        // While another host serves the agent: neither waits for the other.
        let mut server = Server::start(&agent, &["claw.yaml", "--stdio", "--config", "b.toml"]);
        let named = json!({"kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}});
        assert!(server.initialize(&named)["result"].is_object());
        let before = tables(&database);
        predicted(&dry(&agent, "clawk.toml"));
        paid_alone(&before, &tables(&database), &database);
        assert!(server.end().success());
        assert_eq!(counter.counts().len(), 0);
        let verified = agent
            .clawk(["trace", "verify", "--config", "clawk.toml"])
            .output()
            .unwrap();
        assert!(verified.status.success(), "{}", text(&verified.stderr));
    }
}

#[test]
fn a_dry_run_begins_a_new_state_nowhere() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter, "");
    let without = rest("")
        .lines()
        .filter(|line| !line.contains("outer"))
        .collect::<Vec<_>>()
        .join("\n");
    agent.may(&without);
    predicted(&dry(&agent, "clawk.toml"));
    assert_eq!(counter.counts().len(), 0);
    // What the model was paid is all that was written.
    let kinds = "SELECT string_agg(DISTINCT kind, ' ' ORDER BY kind) FROM tested.events";
    assert_eq!(
        database.sql(kinds),
        "ckp.budget.dry_run session.ended session.started"
    );
    assert_eq!(database.sql("SELECT count(*) FROM tested.contents"), "0");
}
