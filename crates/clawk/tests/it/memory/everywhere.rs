//! The verbs of `clawk memory` give the same answers over every back end.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::{contents, walk};
use crate::agent::{Agent, text};
use crate::qdrant::database::Server as Qdrant;
use crate::serve::Server;

#[cfg(feature = "postgres")]
use crate::postgres::database::Server as Postgres;

/// Each entry's text holds it.
const CANARY: &str = "wombat";

/// What keeps the stores.
struct Place {
    agent: Agent,
    /// What every verb needs besides.
    with: Vec<&'static str>,
    /// `claw.memory.compact` and `restore` are served.
    compacts: bool,
}

fn rest(backend: &str, compacts: bool) -> String {
    let compaction = if compacts {
        ", compaction: { strategy: truncate }"
    } else {
        ""
    };
    format!(
        r#"  tools:
    - inline: {{ name: sleep, description: Waits, input_schema: {{ type: object }} }}
  sandbox:
    inline: {{ level: process, capabilities: {{ filesystem: {{ mode: scoped, mount_paths: [{{ path: "./shelf", permissions: rw }}] }} }} }}
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
  memory:
    inline:
      name: head
      stores:
        - {{ name: notes, type: semantic{backend}{compaction} }}
        - {{ name: facts, type: key-value{backend}, scope: global }}
"#
    )
}

/// An agent with this back end and this configuration; its secrets lie in `secrets.toml`.
fn place(backend: &str, config: &str, secrets: &str, with: &[&'static str]) -> Place {
    let agent = Agent::new();
    let backend = if backend.is_empty() {
        String::new()
    } else {
        format!(", backend: {backend}")
    };
    let compacts = !backend.contains("custom");
    agent.may(&rest(&backend, compacts));
    std::fs::create_dir(agent.path("shelf")).unwrap();
    let file = agent.path("secrets.toml");
    std::fs::write(&file, secrets).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!("{config}\n[secrets_store]\nfile = \"secrets.toml\"\n");
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    Place {
        agent,
        with: with.to_vec(),
        compacts,
    }
}

fn serving(agent: &Agent) -> Server {
    let mut server = Server::start(agent, &["claw.yaml", "--stdio"]);
    let named = json!({"kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}});
    let answer = server.initialize(&named);
    assert!(answer["result"].is_object(), "{answer}");
    server
}

fn asked(server: &mut Server, n: u32, method: &str, mut params: Value) -> Value {
    params["context"] =
        json!({"request_id": format!("dd0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested"});
    let answer = server.ask(method, &params);
    assert!(answer["result"].is_object(), "{method}: {answer}");
    answer["result"].clone()
}

impl Place {
    fn verb(&self, args: &[&str]) -> (i32, Value, String) {
        let mut command = self.agent.clawk(["memory"]);
        command.args(args).args(&self.with);
        if !args.contains(&"export") {
            command.args(["--format", "json"]);
        }
        let done = command.output().unwrap();
        let answer = serde_json::from_slice(&done.stdout).unwrap_or_default();
        let said = format!("{}{}", text(&done.stdout), text(&done.stderr));
        (done.status.code().unwrap(), answer, said)
    }

    fn json(&self, args: &[&str]) -> Value {
        let (code, answer, said) = self.verb(args);
        assert_eq!(code, 0, "{args:?}: {said}");
        answer
    }

    fn counts(&self) -> Vec<(String, String, u64)> {
        let listed = self.json(&["list"]);
        let mut found: Vec<_> = listed["stores"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| {
                let text = |name: &str| part[name].as_str().unwrap().to_owned();
                (text("store"), text("scope"), part["entries"].as_u64().unwrap())
            })
            .collect();
        found.sort();
        found
    }
}

fn named(store: &str, scope: &str, entries: u64) -> (String, String, u64) {
    (store.to_owned(), scope.to_owned(), entries)
}

/// Everything that the verbs do, and what they leave behind. `readable`: what can be read of the back end's own files or tables.
fn verbs(place: &Place, readable: &dyn Fn() -> String) {
    let agent = &place.agent;
    let mut server = serving(agent);
    for n in 0..10 {
        let entry = json!({"content": format!("note {n} of the {CANARY}."), "metadata": {"n": n}});
        asked(
            &mut server,
            n,
            "claw.memory.store",
            json!({"store": "notes", "entries": [entry]}),
        );
    }
    let fact = json!({"key": "burrow", "content": {"code": format!("{CANARY}-4711")}});
    asked(
        &mut server,
        20,
        "claw.memory.store",
        json!({"store": "facts", "entries": [fact]}),
    );

    // Looking, while the agent runs.
    assert_eq!(
        place.counts(),
        [named("facts", "", 1), named("notes", "identity/tested", 10)]
    );
    let notes = place.json(&["list", "--store", "notes", "--limit", "3"]);
    let newest: Vec<&Value> = notes["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["metadata"]["n"])
        .collect();
    assert_eq!(newest, [9, 8, 7], "the newest first");
    let found = place.json(&["search", "note", CANARY, "--store", "notes"]);
    assert_eq!(contents(&found).len(), 10, "{found}");
    assert!(found["entries"][0]["score"].as_f64().unwrap() > 0.0, "{found}");
    let fact = &place.json(&["show", "burrow"])["entries"][0];
    assert_eq!(fact["content"]["code"], format!("{CANARY}-4711"));
    let id = fact["id"].as_str().unwrap();
    assert_eq!(place.json(&["show", id])["entries"][0]["key"], "burrow");
    let why = place.json(&["why", "burrow"]);
    assert_eq!(
        (&why["id"], &why["chain"][0]["kind"]),
        (&json!(id), &json!("entry"))
    );
    let (code, _, said) = place.verb(&["export", "-o", "out.jsonl"]);
    assert_eq!(code, 0, "{said}");
    let lines = std::fs::read_to_string(agent.path("out.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 11, "{lines}");
    assert!(
        lines
            .lines()
            .any(|line| serde_json::from_str::<Value>(line).unwrap() == *fact)
    );
    let (code, _, said) = place.verb(&["show", "nobody"]);
    assert!(
        code == 1 && said.contains("nothing is remembered as `nobody`"),
        "{said}"
    );
    let (code, _, said) = place.verb(&["forget", "burrow", "--reason", "asked for"]);
    assert!(code == 1 && said.contains("what is to be forgotten"), "{said}");

    // What compaction set aside comes back.
    if place.compacts {
        let done = asked(&mut server, 30, "claw.memory.compact", json!({"store": "notes"}));
        assert_eq!(done["entries_after"], 5, "{done}");
    }
    assert!(server.end().success());
    if place.compacts {
        assert_eq!(
            contents(&place.json(&["list", "--store", "notes", "--aside"])).len(),
            5
        );
        assert_eq!(
            place.json(&["restore", "--all", "--store", "notes"])["restored"],
            5
        );
        assert_eq!(place.counts()[1].2, 10);
    } else {
        let (code, _, said) = place.verb(&["restore", "--all", "--store", "notes"]);
        assert!(code == 1 && said.contains("nothing to restore"), "{said}");
    }

    // A turn recalls notes, so that the journal holds what they say.
    agent
        .clawk(["run", "claw.yaml", "-m", "which note is it?"])
        .assert()
        .success();

    // What is forgotten is nowhere, and that it was is on the record.
    let all = place.json(&["list", "--store", "notes"]);
    let ids: Vec<&str> = all["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    let mut forget = vec!["forget", "--reason", "asked for", "burrow"];
    forget.extend(&ids);
    let gone = place.json(&forget);
    assert_eq!(gone["forgotten"].as_array().unwrap().len(), 11, "{gone}");
    assert!(gone["copies"].as_u64() > Some(0), "{gone}");
    assert!(place.counts().iter().all(|(_, _, entries)| *entries == 0));
    let (code, _, said) = place.verb(&["show", "burrow"]);
    assert!(code == 1 && said.contains("nothing is remembered"), "{said}");
    assert!(!readable().contains(CANARY), "the back end still holds it");
    let verified = agent
        .clawk(["trace", "verify", "--format", "json"])
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let shown = agent
        .clawk(["trace", "show", "--format", "json"])
        .output()
        .unwrap();
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("ckp.memory.forgotten") || recorded(agent),
        "{shown}"
    );
    for file in walk(&agent.state()) {
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes());
        assert!(!found, "{} still holds it", file.display());
    }

    // The agent goes on.
    let mut server = serving(agent);
    let found = asked(
        &mut server,
        40,
        "claw.memory.query",
        json!({"store": "facts", "query": {"type": "key", "key": "burrow"}}),
    );
    assert_eq!(found["entries"], json!([]), "{found}");
    assert!(server.end().success());
}

/// The trace of all sessions says that something was forgotten.
fn recorded(agent: &Agent) -> bool {
    let state = agent.state().display().to_string();
    let done = agent
        .clawk(["trace", "export", "--state", &state, "-o", "all.trace.jsonl"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let events = std::fs::read_to_string(agent.path("all.trace.jsonl")).unwrap();
    events.contains("ckp.memory.forgotten")
}

/// Without the manifest, the verbs say what they do not see.
fn unseen(place: &Place, backend: &str) {
    let done = place.agent.clawk(["memory", "list"]).output().unwrap();
    let said = text(&done.stderr);
    assert!(
        said.contains(&format!("`notes` ({backend})")) && said.contains("--claw"),
        "{said}"
    );
    let done = place
        .agent
        .clawk(["memory", "list", "--store", "notes"])
        .output()
        .unwrap();
    assert!(!done.status.success() && text(&done.stderr).contains("--claw"));
}

fn folder(folder: &Path) -> String {
    let files = walk(folder).into_iter();
    files
        .map(|file| String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned())
        .collect()
}

#[test]
fn the_verbs_reach_what_lies_in_sqlite() {
    let place = place("", "", "", &[]);
    verbs(&place, &|| folder(&place.agent.state()));
}

#[test]
fn the_verbs_reach_what_lies_in_folders() {
    let place = place("filesystem", "", "", &[]);
    verbs(&place, &|| folder(&place.agent.state().join("memory")));
}

#[test]
fn the_verbs_reach_what_lies_on_qdrant() {
    let database = Qdrant::start();
    let config = format!(
        "[qdrant]\nurl = \"{}\"\nsecret_ref = \"QDRANT_KEY\"\noperation_timeout_ms = 30000\n",
        database.url()
    );
    let secrets = format!("QDRANT_KEY = \"{}\"\n", Qdrant::KEY);
    let place = place("qdrant", &config, &secrets, &["--claw", "claw.yaml"]);
    verbs(&place, &|| {
        // The collections are empty; there is no other way to look into the local mode.
        assert!(contents(&place.json(&["list", "--aside"])).is_empty());
        String::new()
    });
    unseen(&place, "qdrant");
    drop(database);
    let (code, _, said) = place.verb(&["list"]);
    assert!(code == 1 && said.contains("Qdrant"), "{said}");
}

#[test]
fn the_verbs_reach_what_an_mcp_server_keeps() {
    let parts = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/parts")
        .canonicalize()
        .unwrap();
    let python = std::path::PathBuf::from(parts_folder()).join("clients/bin/python");
    let place = place("custom", "", "", &["--claw", "claw.yaml"]);
    let shelf = place.agent.path("shelf/shelf.json");
    let server = format!(
        "stdio://{}?arg={}&arg={}",
        python.display(),
        parts.join("memory_server.py").display(),
        shelf.display()
    );
    let config = ["notes", "facts"].map(|name| {
        format!(
            "[memory.{name}]\nserver = '{server}'\nread_paths = ['{}']\n",
            parts.display()
        )
    });
    std::fs::write(place.agent.path("clawk.toml"), config.concat()).unwrap();
    verbs(&place, &|| std::fs::read_to_string(&shelf).unwrap_or_default());
    unseen(&place, "custom");
}

pub(super) fn parts_folder() -> std::ffi::OsString {
    #[expect(clippy::disallowed_methods, reason = "a test finds what was installed for it")]
    std::env::var_os("CLAWK_PARTS")
        .expect("CLAWK_PARTS names the folder that `cargo xtask ci` installs parts into")
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;

    fn dumped(database: &Postgres, schema: &str) -> String {
        let tables = database.sql(&format!(
            "SELECT string_agg(format('SELECT t::text FROM {schema}.%I t', tablename), ' UNION ALL ') \
             FROM pg_tables WHERE schemaname = '{schema}'"
        ));
        database.sql(&tables)
    }

    #[test]
    fn the_verbs_reach_what_lies_on_postgresql() {
        let mut database = Postgres::start();
        let config = format!(
            "[postgres]\nurl = \"{}\"\nsecret_ref = \"PG_PASSWORD\"\ntls = \"disable\"\nconnect_timeout_ms = 20000\n\
             operation_timeout_ms = 30000\n",
            database.url()
        );
        let secrets = format!("PG_PASSWORD = \"{}\"\n", Postgres::PASSWORD);
        let place = place("postgresql", &config, &secrets, &["--claw", "claw.yaml"]);
        verbs(&place, &|| dumped(&database, "clawk"));
        unseen(&place, "postgresql");
        database.stop();
        let (code, _, said) = place.verb(&["list"]);
        assert!(
            code == 1 && said.contains("PostgreSQL") && !said.contains(Postgres::PASSWORD),
            "{said}"
        );
    }

    #[test]
    fn the_verbs_reach_a_state_on_postgresql() {
        let database = Postgres::start();
        let config = format!(
            "[state]\nurl = \"{}\"\nschema = \"tested\"\npassword = \"PG_PASSWORD\"\n",
            database.url()
        );
        let secrets = format!("PG_PASSWORD = \"{}\"\n", Postgres::PASSWORD);
        let place = place("", &config, &secrets, &[]);
        verbs(&place, &|| dumped(&database, "tested"));
    }
}
