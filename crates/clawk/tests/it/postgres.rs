//! Stores on PostgreSQL, as two processes of an agent use them.

use crate::agent::{Agent, text};

#[cfg(feature = "postgres")]
#[path = "../../../../tests/parts/postgres.rs"]
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
        - { name: notes, type: semantic, backend: postgresql }
        - { name: facts, type: key-value, backend: postgresql, scope: global }
"#;

fn validated(agent: &Agent) -> String {
    let done = agent
        .clawk(["validate", "claw.yaml", "--format", "json"])
        .assert();
    let done = if cfg!(feature = "postgres") {
        done.success()
    } else {
        done.code(1)
    };
    text(&done.get_output().stdout)
}

#[cfg(not(feature = "postgres"))]
#[test]
fn a_build_without_postgresql_names_the_feature() {
    let agent = Agent::new();
    agent.may(REST);
    let said = validated(&agent);
    assert!(said.contains("--features postgres"), "{said}");
    let refused = agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .failure();
    let said = text(&refused.get_output().stderr);
    assert!(said.contains("--features postgres"), "{said}");
}

#[cfg(feature = "postgres")]
mod with {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::{Value, json};

    use super::database::Server as Database;
    use super::*;
    use crate::serve::Server;

    /// An agent whose stores lie in this database.
    fn agent(database: &Database) -> Agent {
        let agent = Agent::new();
        agent.may(REST);
        let url = database.url();
        let config = format!(
            "[secrets_store]\nfile = \"secrets.toml\"\n[postgres]\nurl = \"{url}\"\nsecret_ref = \"PG_PASSWORD\"\ntls = \"disable\"\n\
             connect_timeout_ms = 20000\noperation_timeout_ms = 30000\n"
        );
        std::fs::write(agent.path("clawk.toml"), config).unwrap();
        let secrets = agent.path("secrets.toml");
        std::fs::write(&secrets, format!("PG_PASSWORD = \"{}\"\n", Database::PASSWORD)).unwrap();
        std::fs::set_permissions(secrets, std::fs::Permissions::from_mode(0o600)).unwrap();
        agent
    }

    fn started(agent: &Agent) -> Server {
        let mut server = Server::start(agent, &["claw.yaml", "--stdio"]);
        let named = json!({"kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}});
        assert!(server.initialize(&named)["result"].is_object());
        server
    }

    fn store(server: &mut Server, n: u32, store: &str, entry: &Value) -> Value {
        let context =
            json!({ "request_id": format!("dd0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested" });
        server.ask(
            "claw.memory.store",
            &json!({ "store": store, "entries": [entry], "context": context }),
        )
    }

    fn query(server: &mut Server, store: &str, query: &Value) -> Value {
        server.ask(
            "claw.memory.query",
            &json!({ "store": store, "query": query, "context": { "identity": "tested" } }),
        )
    }

    #[test]
    fn two_agents_of_one_name_share_what_they_remember_on_postgresql() {
        let mut database = Database::start();
        let (one, other) = (agent(&database), agent(&database));
        let (mut first, mut second) = (started(&one), started(&other));
        let note = json!({ "content": "The lamp in the hall is green." });
        let stored = store(&mut first, 1, "notes", &note);
        assert_eq!(stored["result"]["stored"], 1, "{stored}");
        let fact = |text: &str| json!({ "key": "code", "content": text });
        assert!(store(&mut first, 2, "facts", &fact("4711"))["result"].is_object());
        let found = query(
            &mut second,
            "notes",
            &json!({ "type": "semantic", "text": "which colour has the hall's lamp" }),
        );
        assert_eq!(
            found["result"]["entries"][0]["content"], note["content"],
            "{found}"
        );
        assert!(store(&mut second, 3, "facts", &fact("0815"))["result"].is_object());
        let found = query(&mut first, "facts", &json!({ "type": "key", "key": "code" }));
        assert_eq!(found["result"]["entries"][0]["content"], "0815", "{found}");
        assert!(second.end().success());

        // A turn recalls what the other process stored.
        other
            .clawk(["run", "claw.yaml", "-m", "what about the lamp in the hall?"])
            .assert()
            .success();
        let shown = other
            .clawk(["trace", "show", "--format", "json"])
            .assert()
            .success();
        let shown = text(&shown.get_output().stdout);
        assert!(shown.contains("ckp.memory.recalled"), "{shown}");
        let id = stored["result"]["ids"][0].as_str().unwrap();
        assert!(shown.contains(id), "{shown}");

        // While the server is away a turn goes on and says so; a store call fails with its code.
        database.stop();
        let done = other
            .clawk(["run", "claw.yaml", "-m", "what about the lamp in the hall?"])
            .assert()
            .success();
        let (answer, said) = (text(&done.get_output().stdout), text(&done.get_output().stderr));
        assert!(answer.contains("You said"), "{answer}");
        assert!(
            format!("{answer}{said}").contains("`notes` could not be asked"),
            "{answer}{said}"
        );
        let refused = store(&mut first, 4, "facts", &fact("lost"));
        assert_eq!(refused["error"]["code"], -32030, "{refused}");
        database.again();
        let found = query(&mut first, "facts", &json!({ "type": "key", "key": "code" }));
        assert_eq!(found["result"]["entries"][0]["content"], "0815", "{found}");
        assert!(first.end().success());

        for agent in [&one, &other] {
            let found = std::process::Command::new("grep")
                .args(["-rlaF", Database::PASSWORD, "."])
                .current_dir(agent.path(""))
                .output()
                .unwrap();
            assert_eq!(
                text(&found.stdout).trim(),
                "./secrets.toml",
                "the password is nowhere else"
            );
        }
    }

    #[test]
    fn what_the_configuration_of_postgresql_lacks_is_named_by_validate() {
        let agent = Agent::new();
        agent.may(REST);
        for (config, word) in [
            ("", "names no server"),
            (
                "[postgres]\nurl = \"postgres://ann:CANARY@db.example.com/x\"\n",
                "holds a password",
            ),
            (
                "[postgres]\nurl = \"postgres://ann@db.example.com/x\"\ntls = \"disable\"\n",
                "db.example.com",
            ),
            (
                "[postgres]\nurl = \"postgres://ann@db.example.com/x\"\ntls = \"verify-ca\"\n",
                "ca_file",
            ),
        ] {
            std::fs::write(agent.path("clawk.toml"), config).unwrap();
            let said = validated(&agent);
            assert!(said.contains(word) && !said.contains("CANARY"), "{said}");
            let refused = agent
                .clawk(["run", "claw.yaml", "--trust", "-m", "hello"])
                .assert()
                .failure();
            let told = text(&refused.get_output().stderr);
            assert!(told.contains(word) && !told.contains("CANARY"), "{told}");
            let shown = agent.clawk(["config"]).assert().success();
            assert!(!text(&shown.get_output().stdout).contains("CANARY"));
        }
        std::fs::write(
            agent.path("clawk.toml"),
            "[postgres]\nurl = \"postgres://ann@localhost/x\"\ntls = \"disable\"\n",
        )
        .unwrap();
        let said = validated(&agent);
        assert!(!said.contains("does not start"), "{said}");
    }
}
