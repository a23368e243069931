//! An agent whose stores lie on Qdrant, by the local mode of its own client.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::serve::Server;

#[path = "../../../../tests/parts/qdrant.rs"]
pub(crate) mod database;

/// What the manifest says of memory.
const REST: &str = r#"  tools:
    - inline: { name: sleep, description: Waits, input_schema: { type: object } }
  sandbox:
    inline: { level: process }
  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
  memory:
    inline:
      name: head
      stores:
        - { name: notes, type: semantic, backend: qdrant }
        - { name: facts, type: key-value, backend: qdrant, scope: global }
"#;

/// An agent whose stores lie on this server.
fn configured(url: &str) -> Agent {
    let agent = Agent::new();
    agent.may(REST);
    let config = format!(
        "[secrets_store]\nfile = \"secrets.toml\"\n[qdrant]\nurl = \"{url}\"\nsecret_ref = \"QDRANT_KEY\"\noperation_timeout_ms = 30000\n"
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    let secrets = agent.path("secrets.toml");
    std::fs::write(&secrets, format!("QDRANT_KEY = \"{}\"\n", database::Server::KEY)).unwrap();
    std::fs::set_permissions(secrets, std::fs::Permissions::from_mode(0o600)).unwrap();
    agent
}

fn store(server: &mut Server, n: u32, store: &str, entry: &Value) -> Value {
    let context = json!({"request_id": format!("dd0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested"});
    let params = json!({"store": store, "entries": [entry], "context": context});
    server.ask("claw.memory.store", &params)
}

#[test]
fn what_is_kept_on_qdrant_is_recalled_by_another_process_and_the_key_is_nowhere() {
    let database = database::Server::start();
    let (one, other) = (configured(&database.url()), configured(&database.url()));
    let mut first = Server::start(&one, &["claw.yaml", "--stdio"]);
    let named = json!({"kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}});
    assert!(first.initialize(&named)["result"].is_object());
    let note = json!({"content": "The lamp in the hall is green."});
    let stored = store(&mut first, 1, "notes", &note);
    assert_eq!(stored["result"]["stored"], 1, "{stored}");
    let fact = json!({"key": "code", "content": "4711"});
    assert!(store(&mut first, 2, "facts", &fact)["result"].is_object());
    let params =
        json!({"store": "facts", "query": {"type": "key", "key": "code"}, "context": {"identity": "tested"}});
    let found = first.ask("claw.memory.query", &params);
    assert_eq!(found["result"]["entries"][0]["content"], "4711", "{found}");

    // A turn of another process recalls it.
    let message = "what about the lamp in the hall?";
    other
        .clawk(["run", "claw.yaml", "-m", message])
        .assert()
        .success();
    let shown = other
        .clawk(["trace", "show", "--format", "json"])
        .assert()
        .success();
    let shown = text(&shown.get_output().stdout);
    assert!(shown.contains("ckp.memory.recalled"), "{shown}");
    assert!(
        shown.contains(stored["result"]["ids"][0].as_str().unwrap()),
        "{shown}"
    );

    // While the server is away a turn goes on and says so; a store call fails with its code.
    drop(database);
    let done = other
        .clawk(["run", "claw.yaml", "-m", message])
        .assert()
        .success();
    let (answer, said) = (text(&done.get_output().stdout), text(&done.get_output().stderr));
    assert!(
        format!("{answer}{said}").contains("`notes` could not be asked"),
        "{answer}{said}"
    );
    let refused = store(&mut first, 4, "facts", &fact);
    assert_eq!(refused["error"]["code"], -32030, "{refused}");
    assert!(first.end().success());
    for agent in [&one, &other] {
        let found = std::process::Command::new("grep")
            .args(["-rlaF", database::Server::KEY, "."])
            .current_dir(agent.path(""))
            .output()
            .unwrap();
        assert_eq!(
            text(&found.stdout).trim(),
            "./secrets.toml",
            "the key is nowhere else"
        );
    }
}

#[test]
fn what_the_configuration_of_qdrant_lacks_is_named() {
    let agent = Agent::new();
    agent.may(REST);
    for (config, word) in [
        ("", "names no server"),
        (
            "[qdrant]\nurl = \"http://ann:CANARY@localhost:6333\"\n",
            "holds a password",
        ),
        (
            "[qdrant]\nurl = \"http://db.example.com:6333\"\nsecret_ref = \"K\"\n",
            "https",
        ),
        ("[qdrant]\nurl = \"ftp://db.example.com\"\n", "http or https"),
    ] {
        std::fs::write(agent.path("clawk.toml"), config).unwrap();
        let checked = agent.clawk(["validate", "claw.yaml"]).assert();
        let said = format!(
            "{}{}",
            text(&checked.get_output().stdout),
            text(&checked.get_output().stderr)
        );
        assert!(said.contains(word) && !said.contains("CANARY"), "{said}");
        let refused = agent
            .clawk(["run", "claw.yaml", "--trust", "-m", "hello"])
            .assert()
            .failure();
        let told = text(&refused.get_output().stderr);
        assert!(!told.contains("CANARY"), "{told}");
        let shown = agent.clawk(["config"]).assert().success();
        assert!(!text(&shown.get_output().stdout).contains("CANARY"));
    }
}
